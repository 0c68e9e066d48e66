/* A program written to the public header, alone on the loopback interface: two connected queue
 * pairs, datagrams, events, and the misuse that man pages name. Exits with 0 if everything is as
 * they say. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>

#define CHECK(condition)                                                                            \
	do {                                                                                        \
		if (!(condition)) {                                                                 \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition,    \
				errno);                                                             \
			exit(1);                                                                    \
		}                                                                                   \
	} while (0)

enum { LENGTH = 64 * 1024, GRH = 40, QKEY = 0x11111111 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;

static struct ibv_qp *new_qp(struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2,
			 .max_inline_data = 32 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	CHECK(init.cap.max_send_wr >= 8 && init.cap.max_inline_data >= 32);
	CHECK(qp->qp_num != 0 && qp->state == IBV_QPS_RESET && qp->qp_type == type);
	return qp;
}

static struct ibv_ah_attr self(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 4 } };
	return attr;
}

static void connect_rc(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL); /* attributes are missing */
	CHECK(ibv_modify_qp(qp, &attr, init) == 0 && qp->state == IBV_QPS_INIT);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 7,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12, .ah_attr = self(),
	};
	int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	attr.ah_attr.is_global = 0;
	CHECK(ibv_modify_qp(qp, &attr, rtr) == EINVAL); /* no GRH */
	attr.ah_attr.is_global = 1;
	CHECK(ibv_modify_qp(qp, &attr, rtr) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 7,
		.max_rd_atomic = 4,
	};
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	struct ibv_qp_init_attr got;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &got) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == peer && attr.path_mtu == IBV_MTU_1024);
	CHECK(attr.ah_attr.is_global == 1 && !memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof gid));
	CHECK(got.qp_type == IBV_QPT_RC && got.sq_sig_all == 1);
}

static struct ibv_wc wait_for(struct ibv_cq *cq, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc;
	int count;
	do {
		count = ibv_poll_cq(cq, 1, &wc);
		CHECK(count >= 0);
		CHECK(count == 0 || wc.status == IBV_WC_SUCCESS);
	} while (count == 0 || wc.opcode != opcode);
	return wc;
}

static void exchange(struct ibv_qp *a, struct ibv_qp *b, struct ibv_mr *mr, char *from, char *to)
{
	struct ibv_sge in[2] = { { (uintptr_t)to, 100, mr->lkey }, { (uintptr_t)to + 100, LENGTH - 100, mr->lkey } };
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = in, .num_sge = 2 }, *bad_receive;
	CHECK(ibv_post_recv(b, &receive, &bad_receive) == 0);
	struct ibv_sge out = { (uintptr_t)from, LENGTH, mr->lkey };
	struct ibv_send_wr second = { .wr_id = 3, .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_RDMA_READ };
	struct ibv_send_wr first = { .wr_id = 2, .next = &second, .sg_list = &out, .num_sge = 1,
				     .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = 0x04030201 }, *bad;
	second.wr.rdma.remote_addr = (uintptr_t)to;
	second.wr.rdma.rkey = mr->rkey;
	for (int i = 0; i < LENGTH; i++)
		from[i] = (char)(i * 31 + 7);
	CHECK(ibv_post_send(a, &first, &bad) == 0);
	struct ibv_wc wc = wait_for(b->recv_cq, IBV_WC_RECV);
	CHECK(wc.wr_id == 1 && wc.byte_len == LENGTH && wc.qp_num == b->qp_num);
	CHECK((wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == 0x04030201);
	CHECK(wait_for(a->send_cq, IBV_WC_RDMA_READ).wr_id == 3);
	CHECK(!memcmp(from, to, LENGTH));
}

static void lists_stop_at_the_bad_request(struct ibv_qp *qp, struct ibv_mr *mr, char *memory)
{
	struct ibv_sge sge[64];
	for (int i = 0; i < 64; i++)
		sge[i] = (struct ibv_sge){ (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr bad_one = { .wr_id = 2, .sg_list = sge, .num_sge = 64, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_send_wr good = { .wr_id = 1, .next = &bad_one, .sg_list = sge, .num_sge = 1,
				    .opcode = IBV_WR_RDMA_WRITE }, *bad = NULL;
	good.wr.rdma.remote_addr = (uintptr_t)memory + 64;
	good.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(qp, &good, &bad) != 0 && bad == &bad_one);
	CHECK(wait_for(qp->send_cq, IBV_WC_RDMA_WRITE).wr_id == 1);
	struct ibv_send_wr unknown = { .opcode = IBV_WR_TSO };
	CHECK(ibv_post_send(qp, &unknown, &bad) == EOPNOTSUPP && bad == &unknown);
}

static void datagram(struct ibv_cq *cq, struct ibv_mr *mr, char *memory)
{
	struct ibv_qp *qp = new_qp(cq, IBV_QPT_UD);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);

	struct ibv_ah_attr address = self();
	address.is_global = 0;
	CHECK(!ibv_create_ah(pd, &address) && errno == EINVAL);
	address = self();
	address.grh.sgid_index = 200;
	CHECK(!ibv_create_ah(pd, &address) && errno == EINVAL);
	address = self();
	struct ibv_ah *ah = ibv_create_ah(pd, &address);
	CHECK(ah);

	struct ibv_sge in = { (uintptr_t)memory, GRH + 16, mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &in, .num_sge = 1 }, *bad_receive;
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
	char text[16] = "datagram inline";
	struct ibv_sge out = { (uintptr_t)text, sizeof text, 0 };
	struct ibv_send_wr send = { .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_INLINE }, *bad;
	CHECK(ibv_post_send(qp, &send, &bad) == EINVAL && bad == &send); /* no address handle */
	send.wr.ud.ah = ah;
	send.wr.ud.remote_qpn = qp->qp_num;
	send.wr.ud.remote_qkey = QKEY;
	CHECK(ibv_post_send(qp, &send, &bad) == 0);
	memset(text, 0, sizeof text);
	struct ibv_wc wc = wait_for(cq, IBV_WC_RECV);
	CHECK(wc.byte_len == GRH + 16 && (wc.wc_flags & IBV_WC_GRH) && wc.src_qp == qp->qp_num);
	CHECK(!memcmp(memory + GRH, "datagram inline", 16));

	struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)memory, 1);
	CHECK(back);
	CHECK(ibv_destroy_ah(back) == 0 && ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0);
}

static void multicast(struct ibv_cq *cq)
{
	union ibv_gid group = { .raw = { [10] = 0xff, 0xff, 239, 7, 7, 7 } };
	struct ibv_qp *ud = new_qp(cq, IBV_QPT_UD), *rc = new_qp(cq, IBV_QPT_RC);
	CHECK(ibv_attach_mcast(rc, &group, 0) == EINVAL && ibv_attach_mcast(ud, &gid, 0) == EINVAL);
	CHECK(ibv_detach_mcast(ud, &group, 0) == EINVAL);
	CHECK(ibv_attach_mcast(ud, &group, 0) == 0 && ibv_attach_mcast(ud, &group, 0) == 0);
	CHECK(ibv_destroy_qp(ud) == EBUSY);
	CHECK(ibv_detach_mcast(ud, &group, 0) == 0 && ibv_detach_mcast(ud, &group, 0) == EINVAL);
	CHECK(ibv_destroy_qp(ud) == 0 && ibv_destroy_qp(rc) == 0);
}

static void raw_packets(struct ibv_cq *cq)
{
	struct ibv_qp *qp = new_qp(cq, IBV_QPT_RAW_PACKET);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 && qp->state == IBV_QPS_RTS);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void completion_events(struct ibv_qp *a, struct ibv_qp *b, struct ibv_comp_channel *channel,
			      struct ibv_mr *mr, char *memory)
{
	struct ibv_cq *cq;
	void *cookie;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(channel, &cq, &cookie) == -1 && errno == EAGAIN);
	CHECK(poll(&fd, 1, 0) == 0);
	CHECK(ibv_req_notify_cq(a->send_cq, 0) == 0);
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 64;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(a, &wr, &bad) == 0);
	CHECK(poll(&fd, 1, 5000) == 1);
	CHECK(ibv_get_cq_event(channel, &cq, &cookie) == 0 && cq == a->send_cq && cookie == &pd);
	wait_for(cq, IBV_WC_RDMA_WRITE);
	CHECK(cq->comp_events_completed == 0);
	ibv_ack_cq_events(cq, 1);
	CHECK(cq->comp_events_completed == 1);
	(void)b;
}

/* A write with a wrong key: the writer gets an error completion, the victim an event. */
static void access_error(struct ibv_qp *a, struct ibv_qp *b, struct ibv_mr *mr, char *memory)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	struct ibv_async_event event;
	struct ibv_wc wc;
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = mr->rkey ^ 0x5a5a5a5a;
	CHECK(ibv_post_send(a, &wr, &bad) == 0);
	while (ibv_poll_cq(a->send_cq, 1, &wc) == 0)
		;
	CHECK(wc.wr_id == 9 && wc.status == IBV_WC_REM_ACCESS_ERR);
	CHECK(poll(&fd, 1, 5000) == 1);
	CHECK(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b);
	CHECK(b->events_completed == 0);
	ibv_ack_async_event(&event);
	CHECK(b->events_completed == 1);
}

static void unsupported(void)
{
	struct ibv_counters_init_attr counters = { 0 };
	CHECK(!ibv_create_counters(context, &counters) && errno == EOPNOTSUPP);
	struct ibv_wq_init_attr wq = { 0 };
	CHECK(!ibv_create_wq(context, &wq) && errno == EOPNOTSUPP);
	CHECK(ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
}

static void queries(void)
{
	struct ibv_device_attr_ex attr;
	CHECK(ibv_query_device_ex(context, NULL, &attr) == 0 && attr.orig_attr.phys_port_cnt == 1);
	struct ibv_port_attr port;
	CHECK(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
	CHECK(ibv_query_port(context, 2, &port) == EINVAL);
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0 && ibv_query_gid(context, 1, 99, &gid) == -1);
	struct ibv_gid_entry entry, table[256];
	CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	CHECK(!memcmp(&entry.gid, &gid, sizeof gid));
	ssize_t rows = ibv_query_gid_table(context, table, 256, 0);
	CHECK(rows >= 1 && rows < port.gid_tbl_len);
	CHECK(ibv_query_gid_ex(context, 1, port.gid_tbl_len - 1, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid_ex(context, 1, port.gid_tbl_len, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_table(context, table, 0, 0) == -EINVAL);
	uint16_t pkey;
	CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0);
}

int main(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1 && !list[1] && !strcmp(ibv_get_device_name(list[0]), "airdma_lo"));
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	CHECK(context->abi_compat == (void *)UINTPTR_MAX);
	queries();

	pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(pd && channel);
	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 8, NULL, NULL, context->num_comp_vectors) && errno == EINVAL);
	struct ibv_cq *cq_a = ibv_create_cq(context, 32, &pd, channel, 0);
	struct ibv_cq *cq_b = ibv_create_cq(context, 32, NULL, NULL, 0);
	CHECK(cq_a && cq_b && cq_a->cqe >= 32);
	CHECK(channel->refcnt == 1 && ibv_destroy_comp_channel(channel) == EBUSY);

	char *memory = aligned_alloc(4096, 2 * LENGTH);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	CHECK(!ibv_reg_mr(pd, memory, 2 * LENGTH, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * LENGTH, access);
	CHECK(mr && mr->addr == memory && mr->length == 2 * LENGTH);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	unsupported();

	struct ibv_qp *a = new_qp(cq_a, IBV_QPT_RC), *b = new_qp(cq_b, IBV_QPT_RC);
	CHECK(ibv_destroy_cq(cq_a) == EBUSY);
	connect_rc(a, b->qp_num);
	connect_rc(b, a->qp_num);
	exchange(a, b, mr, memory, memory + LENGTH);
	exchange(b, a, mr, memory, memory + LENGTH);
	lists_stop_at_the_bad_request(a, mr, memory);
	datagram(cq_b, mr, memory);
	multicast(cq_b);
	raw_packets(cq_b);
	completion_events(a, b, channel, mr, memory);
	access_error(a, b, mr, memory);

	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_destroy_cq(cq_a) == 0 && ibv_destroy_cq(cq_b) == 0 && channel->refcnt == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	free(memory);
	puts("ok");
	return 0;
}
