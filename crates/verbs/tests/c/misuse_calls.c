/* Calls with arguments that the man pages forbid: nothing there, beyond the limits, unknown
 * masks, in use. */
#include <sys/mman.h>
#include "rules.h"

static struct ibv_device_attr_ex device;
static struct ibv_cq *cq;

static void nothing_there(void)
{
	struct ibv_cq *from;
	void *cookie;
	struct ibv_async_event event;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr;
	struct ibv_srq_attr srq_attr;
	struct ibv_srq_init_attr srq_init = { .attr = { 8, 1, 0 } };
	struct ibv_device_attr plain;
	REFUSED("open no device", ibv_open_device(NULL), EINVAL);
	FAILS("close no context", ibv_close_device(NULL), EINVAL);
	IS("query without context", ibv_query_device(NULL, &plain), EINVAL);
	IS("query into nothing", ibv_query_device(context, NULL), EINVAL);
	REFUSED("domain without context", ibv_alloc_pd(NULL), EINVAL);
	IS("no domain", ibv_dealloc_pd(NULL), EINVAL);
	REFUSED("region without domain", ibv_reg_mr(NULL, memory, 64, 0), EINVAL);
	IS("no region", ibv_dereg_mr(NULL), EINVAL);
	FAILS("no region to change", ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), EINVAL);
	REFUSED("queue without context", ibv_create_cq(NULL, 8, NULL, NULL, 0), EINVAL);
	IS("no queue to resize", ibv_resize_cq(NULL, 8), EINVAL);
	IS("no queue", ibv_destroy_cq(NULL), EINVAL);
	ibv_ack_cq_events(NULL, 1);
	REFUSED("channel without context", ibv_create_comp_channel(NULL), EINVAL);
	IS("no channel", ibv_destroy_comp_channel(NULL), EINVAL);
	FAILS("event of no channel", ibv_get_cq_event(NULL, &from, &cookie), EINVAL);
	FAILS("event of no context", ibv_get_async_event(NULL, &event), EINVAL);
	FAILS("event into nothing", ibv_get_async_event(context, NULL), EINVAL);
	ibv_ack_async_event(NULL);
	REFUSED("queue pair without domain", ibv_create_qp(NULL, &init), EINVAL);
	REFUSED("queue pair without attributes", ibv_create_qp(pd, NULL), EINVAL);
	REFUSED("queue pair without queues", ibv_create_qp(pd, &init), EINVAL);
	IS("no queue pair to modify", ibv_modify_qp(NULL, &attr, 0), EINVAL);
	IS("no queue pair to query", ibv_query_qp(NULL, &attr, 0, &init), EINVAL);
	IS("no queue pair", ibv_destroy_qp(NULL), EINVAL);
	REFUSED("shared queue without domain", ibv_create_srq(NULL, &srq_init), EINVAL);
	REFUSED("shared queue without attributes", ibv_create_srq(pd, NULL), EINVAL);
	IS("no shared queue to modify", ibv_modify_srq(NULL, &srq_attr, 0), EINVAL);
	IS("no shared queue to query", ibv_query_srq(NULL, &srq_attr), EINVAL);
	IS("no shared queue", ibv_destroy_srq(NULL), EINVAL);
	REFUSED("handle without address", ibv_create_ah(pd, NULL), EINVAL);
	IS("no handle", ibv_destroy_ah(NULL), EINVAL);
	IS("group of no queue pair", ibv_attach_mcast(NULL, &gid, 0), EINVAL);
	REFUSED("import of no descriptor", ibv_import_device(-1), EBADF);
	REFUSED("import of another descriptor", ibv_import_device(0), EINVAL);
	REFUSED("import of no domain", ibv_import_pd(context, 0x7fffffff), ENOENT);
	REFUSED("import of no region", ibv_import_mr(pd, 0x7fffffff), ENOENT);
	REFUSED("import of no device memory", ibv_import_dm(context, 0x7fffffff), ENOENT);
	ibv_unimport_pd(NULL);
	ibv_unimport_mr(NULL);
	ibv_unimport_dm(NULL);
}

static void ports(void)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;
	union ibv_gid other;
	__be16 pkey;
	IS("port 0", ibv_query_port(context, 0, &port), EINVAL);
	IS("port 2", ibv_query_port(context, 2, &port), EINVAL);
	CHECK(ibv_query_port(context, 1, &port) == 0);
	IS("GID of port 2", ibv_query_gid(context, 2, 0, &other), -1);
	IS("GID behind the table", ibv_query_gid(context, 1, port.gid_tbl_len, &other), -1);
	IS("negative GID", ibv_query_gid(context, 1, -1, &other), -1);
	IS("entry behind the table", ibv_query_gid_ex(context, 1, port.gid_tbl_len, &entry, 0), EINVAL);
	IS("unknown flags", ibv_query_gid_ex(context, 1, 0, &entry, 1), EINVAL);
	IS("partition key behind the table", ibv_query_pkey(context, 1, 1, &pkey), -1);
	struct ibv_ah_attr ah = to_self();
	ah.port_num = 2;
	REFUSED("handle for port 2", ibv_create_ah(pd, &ah), EINVAL);
	ah = to_self();
	ah.is_global = 0;
	REFUSED("handle without GID", ibv_create_ah(pd, &ah), EINVAL);
	ah = to_self();
	ah.grh.sgid_index = 255;
	REFUSED("handle from a GID that is not there", ibv_create_ah(pd, &ah), EINVAL);
}

static struct ibv_qp *qp_with(struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = cap };
	return ibv_create_qp(pd, &init);
}

static struct ibv_srq *srq_with(uint32_t max_wr, uint32_t max_sge)
{
	struct ibv_srq_init_attr init = { .attr = { max_wr, max_sge, 0 } };
	return ibv_create_srq(pd, &init);
}

static struct ibv_dm *dm_with(size_t length, uint32_t alignment, uint32_t mask)
{
	struct ibv_alloc_dm_attr attr = { length, alignment, mask };
	return ibv_alloc_dm(context, &attr);
}

static void limits(void)
{
	struct ibv_device_attr *max = &device.orig_attr;
	REFUSED("no entries", ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	REFUSED("negative entries", ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	REFUSED("too many entries", ibv_create_cq(context, max->max_cqe + 1, NULL, NULL, 0), EINVAL);
	REFUSED("no such vector", ibv_create_cq(context, 8, NULL, NULL, context->num_comp_vectors), EINVAL);
	REFUSED("negative vector", ibv_create_cq(context, 8, NULL, NULL, -1), EINVAL);
	IS("resize to none", ibv_resize_cq(cq, 0), EINVAL);
	IS("resize to too many", ibv_resize_cq(cq, max->max_cqe + 1), EINVAL);
	REFUSED("too many sends", qp_with((struct ibv_qp_cap){ max->max_qp_wr + 1, 1, 1, 1, 0 }), EINVAL);
	REFUSED("too many receives", qp_with((struct ibv_qp_cap){ 1, max->max_qp_wr + 1, 1, 1, 0 }), EINVAL);
	REFUSED("too many elements to send", qp_with((struct ibv_qp_cap){ 1, 1, max->max_sge + 1, 1, 0 }), EINVAL);
	REFUSED("too many elements to receive", qp_with((struct ibv_qp_cap){ 1, 1, 1, max->max_sge + 1, 0 }), EINVAL);
	REFUSED("too much inline", qp_with((struct ibv_qp_cap){ 1, 1, 1, 1, 1 << 20 }), EINVAL);
	REFUSED("no shared receives", srq_with(0, 1), EINVAL);
	REFUSED("too many shared receives", srq_with(max->max_srq_wr + 1, 1), EINVAL);
	REFUSED("too many shared elements", srq_with(1, max->max_srq_sge + 1), EINVAL);
	REFUSED("no device memory", dm_with(0, 0, 0), EINVAL);
	REFUSED("too much device memory", dm_with(device.max_dm_size + 1, 0, 0), ENOMEM);
	REFUSED("alignment beyond a page", dm_with(64, 40, 0), EINVAL);
	REFUSED("unknown mask of device memory", dm_with(64, 0, 1), EINVAL);
}

static void regions(void)
{
	char *page = mmap(NULL, 2 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED && munmap(page + 4096, 4096) == 0);
	int write = IBV_ACCESS_LOCAL_WRITE;
	REFUSED("no bytes", ibv_reg_mr(pd, memory, 0, write), EINVAL);
	REFUSED("an end before the beginning", ibv_reg_mr(pd, memory, SIZE_MAX, write), EINVAL);
	REFUSED("memory that is not there", ibv_reg_mr(pd, page + 4096, 4096, 0), EFAULT);
	REFUSED("memory that is there in part", ibv_reg_mr(pd, page, 4097, 0), EFAULT);
	REFUSED("memory that cannot be written", ibv_reg_mr(pd, page, 4096, write), EFAULT);
	CHECK(mprotect(page, 4096, PROT_NONE) == 0);
	REFUSED("memory that cannot be read", ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_READ), EFAULT);
	REFUSED("memory that cannot be touched", ibv_reg_mr(pd, page, 4096, write), EFAULT);
	CHECK(mprotect(page, 4096, PROT_READ) == 0);
	struct ibv_mr *read_only = ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_READ);
	IS("memory that is only read", read_only != NULL && ibv_dereg_mr(read_only) == 0, 1);
	REFUSED("remote write without local", ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED("remote atomics without local write", ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	REFUSED("unknown right", ibv_reg_mr(pd, memory, 64, 1 << 14), EINVAL);
	REFUSED("remote addresses that wrap", ibv_reg_mr_iova(pd, memory, 64, UINT64_MAX - 8, write), EINVAL);
	REFUSED("device memory beyond its end", ibv_reg_mr(pd, NULL, 64, write), EFAULT);
	struct ibv_dm *dm = dm_with(4096, 0, 0);
	int zero_based = write | IBV_ACCESS_ZERO_BASED;
	CHECK(dm);
	REFUSED("beyond the end of device memory", ibv_reg_dm_mr(pd, dm, 4000, 200, zero_based), EINVAL);
	REFUSED("an offset that wraps", ibv_reg_dm_mr(pd, dm, UINT64_MAX - 4, 200, zero_based), EINVAL);
	REFUSED("device memory not based at zero", ibv_reg_dm_mr(pd, dm, 0, 64, write), EINVAL);
	IS("copy beyond the end", ibv_memcpy_to_dm(dm, 4096, memory, 4), EINVAL);
	IS("copy from beyond the end", ibv_memcpy_from_dm(memory, dm, UINT64_MAX - 3, 8), EINVAL);
	IS("copy more than any memory has", ibv_memcpy_to_dm(dm, 0, memory, SIZE_MAX - 3), EINVAL);
	IS("copy more than any memory has", ibv_memcpy_from_dm(memory, dm, 0, SIZE_MAX - 3), EINVAL);
	IS("copy from nothing", ibv_memcpy_to_dm(dm, 0, NULL, 4), EINVAL);
	CHECK(ibv_free_dm(dm) == 0);

	FAILS("change nothing", ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), EINVAL);
	FAILS("unknown change", ibv_rereg_mr(mr, 1 << 5, NULL, NULL, 0, 0), EINVAL);
	FAILS("to no memory", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 64, 0), EINVAL);
	FAILS("to no bytes", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 0, 0), EINVAL);
	FAILS("to memory that is not there", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, page + 4096, 64, 0), EFAULT);
	FAILS("to no domain", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), EINVAL);
	FAILS("to an unknown right", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 1 << 14), EINVAL);
	FAILS("to a right too few", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	munmap(page, 4096);
}

static void advice(void)
{
	struct ibv_mr *paged = ibv_reg_mr(pd, memory, MEMORY, IBV_ACCESS_ON_DEMAND);
	CHECK(paged);
	struct ibv_sge good = { (uintptr_t)memory, 4096, paged->lkey }, sge = good;
	IS("unknown advice", ibv_advise_mr(pd, 77, 0, &good, 1), EOPNOTSUPP);
	IS("unknown flags", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1 << 4, &good, 1), EINVAL);
	IS("about nothing", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0), EINVAL);
	IS("a list that is not there", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 1), EINVAL);
	sge.length = MEMORY + 1;
	IS("out of bounds", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1), EFAULT);
	sge = good;
	sge.lkey ^= 0x1000;
	IS("a wrong key", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1), EFAULT);
	IS("to write what cannot be written",
	   ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &good, 1), EFAULT);
	CHECK(ibv_dereg_mr(paged) == 0);
}

static void extended_attributes(void)
{
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &domain);
	CHECK(xrcd);
	domain.comp_mask = IBV_XRCD_INIT_ATTR_FD;
	REFUSED("a domain without flags", ibv_open_xrcd(context, &domain), EINVAL);
	domain.comp_mask = 1 << 9;
	REFUSED("unknown mask of a domain", ibv_open_xrcd(context, &domain), EOPNOTSUPP);
	int fd = fileno(tmpfile());
	domain = (struct ibv_xrcd_init_attr){ .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd };
	REFUSED("a domain that nobody created", ibv_open_xrcd(context, &domain), EAGAIN);
	domain.fd = 1000;
	REFUSED("a domain of no file", ibv_open_xrcd(context, &domain), EBADF);

	struct ibv_srq_init_attr_ex srq = { .attr = { 8, 1, 0 }, .pd = pd, .cq = cq, .xrcd = xrcd, .srq_type = IBV_SRQT_XRC };
	srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	REFUSED("a shared queue without domain", ibv_create_srq_ex(context, &srq), EINVAL);
	srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD;
	REFUSED("an extended one without completion queue", ibv_create_srq_ex(context, &srq), EINVAL);
	srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ;
	REFUSED("an extended one without its domain", ibv_create_srq_ex(context, &srq), EINVAL);
	srq.comp_mask |= 1 << 9;
	REFUSED("unknown mask of a shared queue", ibv_create_srq_ex(context, &srq), EOPNOTSUPP);
	srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
	srq.srq_type = 77;
	REFUSED("unknown type of shared queue", ibv_create_srq_ex(context, &srq), EINVAL);
	srq.srq_type = IBV_SRQT_TM;
	REFUSED("tag matching", ibv_create_srq_ex(context, &srq), EOPNOTSUPP);

	struct ibv_qp_init_attr_ex qp = qp_attr(cq, IBV_QPT_RC, 0);
	qp.comp_mask = 0;
	REFUSED("no domain for a queue pair", ibv_create_qp_ex(context, &qp), EINVAL);
	qp.comp_mask = IBV_QP_INIT_ATTR_PD | 1 << 20;
	REFUSED("unknown mask of a queue pair", ibv_create_qp_ex(context, &qp), EINVAL);
	qp.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	qp.send_ops_flags = 1ull << 40;
	REFUSED("unknown operation", ibv_create_qp_ex(context, &qp), EOPNOTSUPP);
	qp = qp_attr(cq, IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_READ);
	REFUSED("an operation that datagrams do not have", ibv_create_qp_ex(context, &qp), EOPNOTSUPP);
	qp = qp_attr(cq, IBV_QPT_XRC_RECV, 0);
	REFUSED("a target without its domain", ibv_create_qp_ex(context, &qp), EINVAL);
	struct ibv_qp_init_attr plain = { .send_cq = cq, .recv_cq = cq, .qp_type = 77 };
	REFUSED("unknown type of queue pair", ibv_create_qp(pd, &plain), EINVAL);
	plain.qp_type = IBV_QPT_XRC_RECV;
	REFUSED("a target the plain way", ibv_create_qp(pd, &plain), EINVAL);

	qp = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *target = ibv_create_qp_ex(context, &qp);
	CHECK(target);
	struct ibv_qp_open_attr open = { .qp_num = target->qp_num, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV };
	open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD;
	REFUSED("opened without type", ibv_open_qp(context, &open), EINVAL);
	open.comp_mask |= IBV_QP_OPEN_ATTR_TYPE | 1 << 9;
	REFUSED("unknown mask of opening", ibv_open_qp(context, &open), EOPNOTSUPP);
	open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	open.qp_type = IBV_QPT_RC;
	REFUSED("opened as another type", ibv_open_qp(context, &open), EINVAL);
	open.qp_type = IBV_QPT_XRC_RECV;
	open.qp_num ^= 1 << 23;
	REFUSED("opened by a wrong number", ibv_open_qp(context, &open), ENOENT);
	IS("a domain with a target", ibv_close_xrcd(xrcd), EBUSY);
	CHECK(ibv_destroy_qp(target) == 0 && ibv_close_xrcd(xrcd) == 0);

	REFUSED("a window of type 0", ibv_alloc_mw(pd, 0), EINVAL);
	REFUSED("a window of type 3", ibv_alloc_mw(pd, 3), EINVAL);
	struct ibv_td_init_attr thread = { .comp_mask = 1 };
	REFUSED("unknown mask of a thread domain", ibv_alloc_td(context, &thread), EINVAL);
	struct ibv_parent_domain_init_attr parent = { .pd = NULL };
	REFUSED("parent of nothing", ibv_alloc_parent_domain(context, &parent), EINVAL);
	parent = (struct ibv_parent_domain_init_attr){ .pd = pd, .comp_mask = 1 << 9 };
	REFUSED("unknown mask of a parent", ibv_alloc_parent_domain(context, &parent), EINVAL);
	IS("notification without channel: nobody hears it", ibv_req_notify_cq(cq, 0), 0);
}

static void shared_queue(void)
{
	struct ibv_srq *srq = srq_with(16, 1);
	CHECK(srq);
	struct ibv_srq_attr attr;
	CHECK(ibv_query_srq(srq, &attr) == 0);
	uint32_t size = attr.max_wr;
	attr.srq_limit = size + 1;
	IS("limit above the size", ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
	IS("unknown mask", ibv_modify_srq(srq, &attr, 1 << 7), EINVAL);
	IS("nothing to modify by", ibv_modify_srq(srq, NULL, IBV_SRQ_LIMIT), EINVAL);
	IS("query into nothing", ibv_query_srq(srq, NULL), EINVAL);
	attr.max_wr = device.orig_attr.max_srq_wr + 1;
	IS("resize beyond the limit", ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
	attr.max_wr = 0;
	IS("resize to none", ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
	struct ibv_sge list[2] = { { (uintptr_t)memory, 8, mr->lkey }, { (uintptr_t)memory, 8, mr->lkey } };
	struct ibv_recv_wr wr = { .sg_list = list, .num_sge = 2 }, *bad = NULL;
	IS("too many elements", ibv_post_srq_recv(srq, &wr, &bad), EINVAL);
	IS("which is named", bad == &wr, 1);
	wr.num_sge = -1;
	IS("a negative number of elements", ibv_post_srq_recv(srq, &wr, &bad), EINVAL);
	wr.num_sge = 1;
	for (uint32_t i = 0; i < size; i++)
		CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	IS("one too many", ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
	attr.max_wr = size / 2;
	IS("resize below what is posted", ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr == size && attr.srq_limit == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
}

int main(void)
{
	open_device();
	CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(cq);
	nothing_there();
	ports();
	limits();
	regions();
	advice();
	extended_attributes();
	shared_queue();
	CHECK(ibv_destroy_cq(cq) == 0);
	close_device();
	return rules_hold();
}
