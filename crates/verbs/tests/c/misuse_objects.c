/* Objects in use are not destroyed, queues that are too small do no harm, windows keep their
 * rules, and waiting ends. */
#include "rules.h"

static struct ibv_cq *cq;

static struct ibv_qp *new_qp(struct ibv_pd *domain, struct ibv_cq *sends, struct ibv_cq *receives, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = { .send_cq = sends, .recv_cq = receives, .srq = srq, .qp_type = IBV_QPT_RC,
					 .cap = { 32, srq ? 0 : 32, 2, srq ? 0 : 2, 32 }, .sq_sig_all = 1 };
	struct ibv_qp *qp = ibv_create_qp(domain, &init);
	CHECK(qp);
	return qp;
}

static void write_once(struct ibv_qp *qp, uint32_t rkey, uint64_t va)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { va, rkey } }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Each user alone keeps what it uses. */
static void in_use(void)
{
	struct ibv_pd *domain = ibv_alloc_pd(context);
	struct ibv_mr *region = ibv_reg_mr(domain, memory, 64, 0);
	IS("a domain with a region", ibv_dealloc_pd(domain), EBUSY);
	CHECK(ibv_dereg_mr(region) == 0);
	struct ibv_mr *null = ibv_alloc_null_mr(domain);
	CHECK(null);
	IS("as on hardware, a region of nothing has the greatest length", null->length == SIZE_MAX, 1);
	IS("and no key for peers", null->rkey, 0);
	IS("a domain with a region of nothing", ibv_dealloc_pd(domain), EBUSY);
	CHECK(ibv_dereg_mr(null) == 0);
	struct ibv_qp *qp = new_qp(domain, cq, cq, NULL);
	IS("a domain with a queue pair", ibv_dealloc_pd(domain), EBUSY);
	IS("a completion queue with a queue pair", ibv_destroy_cq(cq), EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0);
	struct ibv_srq_init_attr init = { .attr = { 8, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(domain, &init);
	IS("a domain with a shared queue", ibv_dealloc_pd(domain), EBUSY);
	qp = new_qp(pd, cq, cq, srq);
	IS("a shared queue with a queue pair", ibv_destroy_srq(srq), EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0);
	struct ibv_ah_attr self = to_self();
	struct ibv_ah *ah = ibv_create_ah(domain, &self);
	IS("a domain with an address handle", ibv_dealloc_pd(domain), EBUSY);
	CHECK(ibv_destroy_ah(ah) == 0);
	struct ibv_mw *window = ibv_alloc_mw(domain, IBV_MW_TYPE_1);
	IS("a domain with a window", ibv_dealloc_pd(domain), EBUSY);
	CHECK(ibv_dealloc_mw(window) == 0);
	struct ibv_td_init_attr thread = { 0 };
	struct ibv_td *td = ibv_alloc_td(context, &thread);
	struct ibv_parent_domain_init_attr parent_init = { .pd = domain, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &parent_init);
	IS("a domain with a parent", ibv_dealloc_pd(domain), EBUSY);
	IS("a thread domain with a parent", ibv_dealloc_td(td), EBUSY);
	region = ibv_reg_mr(parent, memory, 64, 0);
	IS("a parent with a region", ibv_dealloc_pd(parent), EBUSY);
	CHECK(ibv_dereg_mr(region) == 0 && ibv_dealloc_pd(parent) == 0 && ibv_dealloc_td(td) == 0);

	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	region = ibv_reg_dm_mr(domain, dm, 0, 64, IBV_ACCESS_ZERO_BASED);
	IS("device memory with a region", ibv_free_dm(dm), EBUSY);
	CHECK(ibv_dereg_mr(region) == 0 && ibv_free_dm(dm) == 0);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *heard = ibv_create_cq(context, 8, NULL, channel, 0);
	IS("a channel with a queue", ibv_destroy_comp_channel(channel), EBUSY);
	CHECK(ibv_destroy_cq(heard) == 0 && ibv_destroy_comp_channel(channel) == 0);

	struct ibv_xrcd_init_attr attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &attr);
	struct ibv_cq *extended_cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_srq_init_attr_ex extended = {
		.attr = { 8, 1, 0 }, .pd = domain, .cq = extended_cq, .xrcd = xrcd, .srq_type = IBV_SRQT_XRC,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
	};
	srq = ibv_create_srq_ex(context, &extended);
	CHECK(srq);
	IS("an extended domain with a queue", ibv_close_xrcd(xrcd), EBUSY);
	IS("a completion queue with a shared queue", ibv_destroy_cq(extended_cq), EBUSY);
	REFUSED("a queue pair of another kind on it",
		ibv_create_qp(pd, &(struct ibv_qp_init_attr){ .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC }),
		EINVAL);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_close_xrcd(xrcd) == 0 && ibv_destroy_cq(extended_cq) == 0);
	qp = new_qp(pd, cq, cq, NULL);
	struct ibv_srq_init_attr basic = { .attr = { 8, 1, 0 } };
	srq = ibv_create_srq(domain, &basic);
	IS("the domain, still", ibv_dealloc_pd(domain), EBUSY);
	CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_qp(qp) == 0);
	CHECK(ibv_dealloc_pd(domain) == 0);
}

/* The next event of a channel, acknowledged. */
static void event_of(struct ibv_comp_channel *channel, struct ibv_cq *wanted)
{
	struct ibv_cq *from;
	void *cookie;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 20000) == 1 && ibv_get_cq_event(channel, &from, &cookie) == 0 && from == wanted);
	ibv_ack_cq_events(from, 1);
}

/* Completions that find no room are lost by one queue, and by no other. */
static void overrun(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *small = ibv_create_cq(context, 2, NULL, channel, 0);
	CHECK(channel && small);
	int room = small->cqe;
	struct ibv_qp *qp = new_qp(pd, small, small, NULL), *peer = new_qp(pd, cq, cq, NULL);
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	for (int i = 0; i < room; i++) {
		CHECK(ibv_req_notify_cq(small, 0) == 0);
		write_once(qp, mr->rkey, (uintptr_t)memory + 64);
		event_of(channel, small);
	}
	IS("resize below what it holds", ibv_resize_cq(small, 1), EINVAL);
	IS("no event yet", next_event(0), -1);
	for (int i = 0; i < 20; i++)
		write_once(qp, mr->rkey, (uintptr_t)memory + 64);
	IS("overrun", next_event(5000), IBV_EVENT_CQ_ERR);
	IS("the end of its queue pair", next_event(5000), IBV_EVENT_QP_FATAL);
	IS("and of no other", next_event(0), -1);
	struct ibv_wc wc;
	for (int i = 0; i < room; i++)
		IS("what it held", ibv_poll_cq(small, 1, &wc), 1);
	FAILS("then it is of no use", ibv_poll_cq(small, 1, &wc), EOVERFLOW);
	FAILS("for good", ibv_poll_cq(small, 1, &wc), EOVERFLOW);
	/* The others go on. */
	struct ibv_qp *a = new_qp(pd, cq, cq, NULL), *b = new_qp(pd, cq, cq, NULL);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	write_once(a, mr->rkey, (uintptr_t)memory + 64);
	IS("another queue", awaited(cq).status, IBV_WC_SUCCESS);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0 && ibv_destroy_cq(small) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	while (next_event(0) != -1 || ibv_poll_cq(cq, 1, &wc) == 1)
		;
}

static int bind_1(struct ibv_qp *qp, struct ibv_mw *window, struct ibv_mr *region, uint64_t va, uint64_t length, int access)
{
	struct ibv_mw_bind bind = { .wr_id = 9, .bind_info = { region, va, length, access } };
	return ibv_bind_mw(qp, window, &bind);
}

static int bind_2(struct ibv_qp *qp, struct ibv_mw *window, uint32_t rkey, struct ibv_mr *region, uint64_t va, uint64_t length,
		  int access)
{
	struct ibv_send_wr wr = { .wr_id = 9, .opcode = IBV_WR_BIND_MW }, *bad;
	wr.bind_mw.mw = window;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ region, va, length, access };
	int result = ibv_post_send(qp, &wr, &bad);
	return result ? result : (int)awaited(cq).status;
}

static void windows(void)
{
	uint64_t va = (uintptr_t)memory;
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mr *foreign = ibv_reg_mr(other, memory, 64, IBV_ACCESS_MW_BIND);
	struct ibv_mr *unbindable = ibv_reg_mr(pd, memory, 64, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *read_only = ibv_reg_mr(pd, memory, 64, IBV_ACCESS_MW_BIND);
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(other && foreign && unbindable && read_only && one && two);
	struct ibv_qp *qp = new_qp(pd, cq, cq, NULL);
	connect_to(qp, qp->qp_num);
	uint32_t before = one->rkey;
	IS("type 2 by ibv_bind_mw", bind_1(qp, two, mr, va, 64, IBV_ACCESS_REMOTE_READ), EINVAL);
	IS("bytes of no region", bind_1(qp, one, NULL, va, 64, IBV_ACCESS_REMOTE_READ), EINVAL);
	IS("a region of another domain", bind_1(qp, one, foreign, va, 64, IBV_ACCESS_REMOTE_READ), EPERM);
	IS("type 1 based at zero", bind_1(qp, one, mr, va, 64, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED), EINVAL);
	IS("the key is what it was", one->rkey, before);
	struct {
		const char *what;
		struct ibv_mr *region;
		uint64_t offset, length;
		int access;
	} rows[] = {
		{ "a region that is not to be bound in", unbindable, 0, 64, IBV_ACCESS_REMOTE_READ },
		{ "beyond the region", read_only, 32, 64, IBV_ACCESS_REMOTE_READ },
		{ "an end that wraps", read_only, 0, UINT64_MAX, IBV_ACCESS_REMOTE_READ },
		{ "to be written where the region is not", read_only, 0, 64, IBV_ACCESS_REMOTE_WRITE },
		{ "to be added to where the region is not written", read_only, 0, 64, IBV_ACCESS_REMOTE_ATOMIC },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		IS(rows[i].what, bind_2(qp, two, ibv_inc_rkey(two->rkey), rows[i].region, va + rows[i].offset, rows[i].length,
					rows[i].access), IBV_WC_MW_BIND_ERR);
		CHECK(ibv_destroy_qp(qp) == 0);
		qp = new_qp(pd, cq, cq, NULL);
		connect_to(qp, qp->qp_num);
	}
	IS("type 1 by a work request", bind_2(qp, one, ibv_inc_rkey(one->rkey), mr, va, 64, IBV_ACCESS_REMOTE_READ), EINVAL);
	uint32_t rkey = ibv_inc_rkey(two->rkey);
	IS("type 2", bind_2(qp, two, rkey, mr, va, 64, IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
	IS("a region with a window", ibv_dereg_mr(mr), EBUSY);
	FAILS("a region with a window cannot change",
	      ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), EBUSY);
	IS("type 2, bound already", bind_2(qp, two, ibv_inc_rkey(rkey), mr, va, 64, IBV_ACCESS_REMOTE_READ), IBV_WC_MW_BIND_ERR);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_dealloc_mw(two) == 0 && ibv_dealloc_mw(one) == 0);
	CHECK(ibv_dereg_mr(foreign) == 0 && ibv_dereg_mr(unbindable) == 0 && ibv_dereg_mr(read_only) == 0);
	CHECK(ibv_dealloc_pd(other) == 0);
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) == 1 || next_event(0) != -1)
		;
}

static void events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *heard = ibv_create_cq(context, 8, NULL, channel, 0), *from;
	void *cookie;
	struct ibv_async_event event;
	CHECK(channel && heard);
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0 && fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	FAILS("no completion event", ibv_get_cq_event(channel, &from, &cookie), EAGAIN);
	FAILS("no asynchronous event", ibv_get_async_event(context, &event), EAGAIN);
	struct ibv_qp *qp = new_qp(pd, heard, heard, NULL);
	connect_to(qp, qp->qp_num);
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_req_notify_cq(heard, 0) == 0);
		write_once(qp, mr->rkey, (uintptr_t)memory + 64);
		struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
		CHECK(poll(&fd, 1, 5000) == 1 && ibv_get_cq_event(channel, &from, &cookie) == 0 && from == heard);
		/* More than there were: none is left, and the next is counted anew. */
		ibv_ack_cq_events(heard, 100);
		CHECK(awaited(heard).status == IBV_WC_SUCCESS);
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(heard) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

int main(void)
{
	open_device();
	cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	CHECK(cq);
	in_use();
	overrun();
	windows();
	events();
	IS("a domain with a region", ibv_dealloc_pd(pd), EBUSY);
	CHECK(ibv_destroy_cq(cq) == 0);
	close_device();
	return rules_hold();
}
