/* Calls that rdma-core has got after release 44. */
#include "common.h"
#include "newer.h"

static void registers(void)
{
	struct ibv_mr_init_attr attr = { .length = 4096, .access = ALL_ACCESS, .comp_mask = IBV_REG_MR_MASK_ADDR, .addr = memory };
	struct ibv_mr *plain = ibv_reg_mr_ex(pd, &attr);
	CHECK(plain && plain->addr == memory && plain->length == 4096 && plain->pd == pd && plain->context == context);
	CHECK(ibv_dereg_mr(plain) == 0);

	/* A handle is in use as long as a region has it. */
	struct ibv_dmah_init_attr hints = { .comp_mask = IBV_DMAH_INIT_ATTR_MASK_CPU_ID | IBV_DMAH_INIT_ATTR_MASK_PH, .cpu_id = 0, .ph = 3 };
	struct ibv_dmah *handle = ibv_alloc_dmah(context, &hints);
	CHECK(handle && handle->context == context);
	attr.comp_mask |= IBV_REG_MR_MASK_DMAH | IBV_REG_MR_MASK_IOVA;
	attr.dmah = handle;
	attr.iova = 0x10000;
	struct ibv_mr *hinted = ibv_reg_mr_ex(pd, &attr);
	CHECK(hinted);
	CHECK(ibv_dealloc_dmah(handle) == EBUSY);
	CHECK(ibv_dereg_mr(hinted) == 0 && ibv_dealloc_dmah(handle) == 0);
	hints.ph = 4;
	CHECK(!ibv_alloc_dmah(context, &hints) && errno == EINVAL);
	hints.comp_mask = 1 << 20;
	CHECK(!ibv_alloc_dmah(context, &hints) && errno == EOPNOTSUPP);

	/* Memory that is paged on demand has no hints; memory of other devices, unknown bits, no
	 * address. */
	hints.comp_mask = 0;
	attr.dmah = ibv_alloc_dmah(context, &hints);
	attr.access |= IBV_ACCESS_ON_DEMAND;
	CHECK(attr.dmah && !ibv_reg_mr_ex(pd, &attr) && errno == EINVAL);
	CHECK(ibv_dealloc_dmah(attr.dmah) == 0);
	attr.access &= ~IBV_ACCESS_ON_DEMAND;
	attr.comp_mask = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET;
	CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = IBV_REG_MR_MASK_ADDR | 1ull << 40;
	CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = 0;
	CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EINVAL);
}

static void allocates(void)
{
	struct ibv_buf *buf = NULL;
	char *data = ibv_alloc_buf(pd, 10000, &buf);
	CHECK(data && buf && (uintptr_t)data % 4096 == 0);
	memset(data, 7, 10000);
	struct ibv_mr *region = ibv_reg_buf_mr(pd, buf, data + 100, 9900, ALL_ACCESS);
	CHECK(region && region->addr == data + 100 && region->length == 9900);
	CHECK(ibv_dereg_mr(region) == 0);
	CHECK(!ibv_reg_buf_mr(pd, buf, data + 100, 9901, ALL_ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_buf_mr(pd, buf, data - 1, 10, ALL_ACCESS) && errno == EINVAL);
	struct ibv_pd *other = ibv_alloc_pd(context);
	CHECK(other && !ibv_reg_buf_mr(other, buf, data, 10, ALL_ACCESS) && errno == EINVAL);
	CHECK(ibv_dealloc_pd(other) == 0);
	CHECK(ibv_export_buf_dmabuf_fd(buf) == -1 && errno == ENODATA);
	ibv_free_buf(buf);
	CHECK(!ibv_alloc_buf(pd, 0, &buf) && errno == EINVAL);

	struct ibv_alloc_dm_attr wanted = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &wanted);
	CHECK(dm && ibv_dm_export_dmabuf_fd(dm) == -1 && errno == EOPNOTSUPP);
	CHECK(ibv_free_dm(dm) == 0);
}

static void tells(void)
{
	/* As many completion vectors as processors. */
	CHECK(context->num_comp_vectors == sysconf(_SC_NPROCESSORS_CONF));
	struct ibv_cq *last = ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors - 1);
	CHECK(last && ibv_destroy_cq(last) == 0);
	CHECK(!ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors) && errno == EINVAL);
	uint64_t speed = 0;
	CHECK(ibv_query_port_speed(context, 1, &speed) == 0 && speed > 0);
	CHECK(ibv_query_port_speed(context, 2, &speed) == EINVAL);
	CHECK(strcmp(ibv_wr_opcode_str(IBV_WR_RDMA_READ), "rdma-read") == 0);
	CHECK(strcmp(ibv_wr_opcode_str(99), "unknown") == 0);
	CHECK(strcmp(ibv_event_type_str(IBV_EVENT_WQ_FATAL + 1), "Device link speed change") == 0);
}

static uint64_t value_of(struct ibv_comp_cntr *counter)
{
	uint64_t value;
	CHECK(ibv_read_comp_cntr(counter, &value) == 0);
	return value;
}

static uint64_t failures_of(struct ibv_comp_cntr *counter)
{
	uint64_t value;
	CHECK(ibv_read_err_comp_cntr(counter, &value) == 0);
	return value;
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t length, uint32_t rkey, int flags)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 8192;
	wr.wr.rdma.rkey = rkey;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void counts(void)
{
	struct ibv_comp_cntr_caps caps = { 0 };
	CHECK(_ibv_query_comp_cntr_caps(context, &caps, sizeof caps) == 0);
	CHECK(caps.max_value == UINT64_MAX && caps.max_counters >= 1024);
	CHECK(caps.supported_qp_attach_ops == (IBV_QP_ATTACH_COMP_CNTR_OP_SEND | IBV_QP_ATTACH_COMP_CNTR_OP_RECV |
					       IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ | IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE));
	struct ibv_comp_cntr_init_attr init = { .type = IBV_COMP_CNTR_TYPE_WRS };
	struct ibv_comp_cntr *requests = ibv_create_comp_cntr(context, &init);
	init.type = IBV_COMP_CNTR_TYPE_BYTES;
	struct ibv_comp_cntr *bytes = ibv_create_comp_cntr(context, &init), *received = ibv_create_comp_cntr(context, &init);
	CHECK(requests && bytes && received && requests->context == context);
	init.flags = 1;
	CHECK(!ibv_create_comp_cntr(context, &init) && errno == EINVAL);

	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { 16, 16, 1, 1, 64 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(cq && qp);
	struct ibv_qp_attach_comp_cntr_attr to = { .op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_SEND | IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ };
	CHECK(ibv_qp_attach_comp_cntr(qp, requests, &to) == 0);
	CHECK(ibv_qp_attach_comp_cntr(qp, bytes, &to) == EBUSY);
	to.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ;
	CHECK(ibv_qp_attach_comp_cntr(qp, bytes, &to) == EOPNOTSUPP);
	to.op_mask = 0;
	CHECK(ibv_qp_attach_comp_cntr(qp, bytes, &to) == EINVAL);
	to.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE;
	CHECK(ibv_qp_attach_comp_cntr(qp, bytes, &to) == 0);
	to.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_RECV;
	CHECK(ibv_qp_attach_comp_cntr(qp, received, &to) == 0);
	connect_to(qp, qp->qp_num);
	to.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_SEND;
	CHECK(ibv_qp_attach_comp_cntr(qp, bytes, &to) == EINVAL);
	CHECK(ibv_destroy_comp_cntr(requests) == EBUSY);

	/* Requests without a completion count as well. */
	receive_at(qp, 9, 16384, 1000);
	post(qp, IBV_WR_SEND, 100, 0, 0);
	post(qp, IBV_WR_RDMA_READ, 200, mr->rkey, 0);
	post(qp, IBV_WR_RDMA_WRITE, 300, mr->rkey, 0);
	post(qp, IBV_WR_RDMA_WRITE, 40, mr->rkey, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
	success(cq, 9);
	success(cq, 1);
	CHECK(value_of(requests) == 2 && value_of(bytes) == 340 && value_of(received) == 100);
	CHECK(failures_of(requests) == 0 && failures_of(bytes) == 0);
	CHECK(ibv_inc_comp_cntr(bytes, 5) == 0 && value_of(bytes) == 345);
	CHECK(ibv_set_comp_cntr(bytes, 7) == 0 && value_of(bytes) == 7);
	CHECK(ibv_inc_err_comp_cntr(bytes, 2) == 0 && failures_of(bytes) == 2 && ibv_set_err_comp_cntr(bytes, 0) == 0);
	/* The write that fails, and the SEND and the receive that are flushed. */
	receive_at(qp, 9, 16384, 1000);
	post(qp, IBV_WR_RDMA_WRITE, 10, mr->rkey + 0x1000000, IBV_SEND_SIGNALED);
	post(qp, IBV_WR_SEND, 10, 0, IBV_SEND_SIGNALED);
	for (int i = 0; i < 3; i++)
		CHECK(completion(cq).status != IBV_WC_SUCCESS);
	CHECK(failures_of(bytes) == 1 && failures_of(requests) == 1 && failures_of(received) == 1);
	CHECK(value_of(bytes) == 7 && value_of(requests) == 2 && value_of(received) == 100);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_cntr(requests) == 0 && ibv_destroy_comp_cntr(bytes) == 0 && ibv_destroy_comp_cntr(received) == 0);
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->event == type);
	return event;
}

static void resolves(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_addrinfo *info, hints = { .ai_flags = RAI_DNS | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP };
	CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_query_addrinfo(id, &info) == -1 && errno == ENOENT);
	CHECK(rdma_resolve_addrinfo(id, "no.such.name.", "7471", &hints) == -1);
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints) == 0);
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints) == -1 && errno == EBUSY);
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_ADDRINFO_RESOLVED);
	CHECK(event->id == id && event->status == 0 && rdma_ack_cm_event(event) == 0);
	CHECK(rdma_query_addrinfo(id, &info) == 0 && info->ai_dst_addr);
	struct sockaddr_in *to = (struct sockaddr_in *)info->ai_dst_addr;
	CHECK(to->sin_family == AF_INET && to->sin_port == htons(7471) && to->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	rdma_freeaddrinfo(info);
	CHECK(rdma_query_addrinfo(id, &info) == -1 && errno == ENOENT);
	hints.ai_flags = RAI_SA;
	CHECK(rdma_resolve_addrinfo(id, NULL, "1", &hints) == -1 && errno == EOPNOTSUPP);
	/* Resolved, and never asked for: freed with the identifier. */
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "1", NULL) == 0);
	CHECK(rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDRINFO_RESOLVED)) == 0);

	CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 3, 0x123456789abcdef) == 0);
	CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, -4, 5) == 0);
	CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0) == -1 && errno == EINVAL);
	event = next(channel, RDMA_CM_EVENT_USER);
	CHECK(event->id == id && event->status == 3 && *(uint64_t *)&event->param == 0x123456789abcdef);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = next(channel, RDMA_CM_EVENT_USER);
	CHECK(event->status == -4 && *(uint64_t *)&event->param == 5 && rdma_ack_cm_event(event) == 0);
	CHECK(strcmp(rdma_event_str(RDMA_CM_EVENT_USER), "RDMA_CM_EVENT_USER") == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	open_device();
	registers();
	allocates();
	tells();
	counts();
	resolves();
	close_device();
	puts("ok");
	return 0;
}
