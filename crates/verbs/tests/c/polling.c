/* Extended completion queues, ibv_create_cq_ex(3): completions are taken one at a time and read
 * field by field. */
#include "common.h"

static struct ibv_cq_ex *new_cq(uint64_t wc_flags, uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = wc_flags, .flags = flags,
					    .comp_mask = flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0, .cq_context = &attr };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	CHECK(cq && cq->cqe >= 64 && cq->cq_context == &attr && cq->context == context);
	return cq;
}

static int refused(struct ibv_cq_init_attr_ex attr)
{
	errno = 0;
	CHECK(!ibv_create_cq_ex(context, &attr));
	return errno;
}

static void creation(void)
{
	struct ibv_cq_init_attr_ex good = { .cqe = 8 }, attr = good;
	attr.cqe = 0;
	CHECK(refused(attr) == EINVAL);
	attr = good;
	attr.comp_vector = context->num_comp_vectors;
	CHECK(refused(attr) == EINVAL);
	attr = good;
	attr.comp_mask = 1 << 7;
	CHECK(refused(attr) == EINVAL);
	attr = good;
	attr.wc_flags = IBV_WC_EX_WITH_CVLAN;
	CHECK(refused(attr) == EOPNOTSUPP);
	attr.wc_flags = IBV_WC_EX_WITH_TM_INFO | IBV_WC_STANDARD_FLAGS;
	CHECK(refused(attr) == EOPNOTSUPP);
	attr = good;
	attr.flags = 1 << 9;
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	CHECK(refused(attr) == EOPNOTSUPP);
	attr = good;
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
	attr.parent_domain = pd;
	CHECK(refused(attr) == EINVAL); /* no parent domain */
	struct ibv_parent_domain_init_attr parent = { .pd = pd };
	attr.parent_domain = ibv_alloc_parent_domain(context, &parent);
	CHECK(attr.parent_domain);
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	CHECK(cq && ibv_dealloc_pd(attr.parent_domain) == EBUSY);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && ibv_dealloc_pd(attr.parent_domain) == 0);
}

static int start(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	return ibv_start_poll(cq, &attr);
}

/* Waits for the first completion of a poll. */
static void first(struct ibv_cq_ex *cq)
{
	int result;
	do
		result = start(cq);
	while (result == ENOENT);
	CHECK(result == 0);
}

static void next(struct ibv_cq_ex *cq)
{
	int result;
	do
		result = ibv_next_poll(cq);
	while (result == ENOENT);
	CHECK(result == 0);
}

static uint64_t wall_clock(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static uint64_t raw_clock(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK | 1 << 5 };
	CHECK(ibv_query_rt_values_ex(context, &values) == 0 && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	return values.raw_clock.tv_sec * 1000000000ull + values.raw_clock.tv_nsec;
}

static void send(struct ibv_qp *qp, uint64_t wr_id, uint32_t length, uint32_t imm)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
				  .opcode = imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, .imm_data = imm }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void nothing_in_hand(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { .comp_mask = 1 };
	struct ibv_wc_tm_info info;
	CHECK(start(cq) == ENOENT && start(cq) == ENOENT && ibv_start_poll(cq, &attr) == EINVAL);
	CHECK(ibv_next_poll(cq) == EINVAL);
	ibv_end_poll(cq);
	CHECK(ibv_wc_read_qp_num(cq) == 0 && ibv_wc_read_completion_ts(cq) == 0 && ibv_wc_read_cvlan(cq) == 0);
	CHECK(ibv_wc_read_flow_tag(cq) == 0);
	ibv_wc_read_tm_info(cq, &info);
}

static void fields(struct ibv_cq_ex *cq, struct ibv_qp *a, struct ibv_qp *b)
{
	uint64_t raw = raw_clock(), wall = wall_clock();
	for (int i = 0; i < 3; i++)
		receive_at(b, 10 + i, 4096, 64);
	send(a, 1, 33, 0);
	send(a, 2, 0, 0x0a0b0c0d);
	send(a, 3, 65, 0); /* longer than the receive */
	uint64_t stamp = raw;
	int sent = 0, received = 0;
	first(cq);
	for (;;) {
		CHECK(start(cq) == EINVAL); /* within a poll */
		uint64_t now = ibv_wc_read_completion_ts(cq), then = ibv_wc_read_completion_wallclock_ns(cq);
		CHECK(now >= stamp && now <= raw_clock());
		CHECK(then + 1000000000 > wall && then < wall_clock() + 1000000000);
		stamp = now;
		CHECK(ibv_wc_read_vendor_err(cq) == 0 && ibv_wc_read_slid(cq) == 0 && ibv_wc_read_sl(cq) == 0);
		CHECK(ibv_wc_read_dlid_path_bits(cq) == 0);
		if (cq->wr_id >= 10) {
			CHECK(ibv_wc_read_qp_num(cq) == b->qp_num && cq->wr_id == 10u + received);
			CHECK(cq->status == (received == 2 ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS));
			CHECK(received == 2 || ibv_wc_read_opcode(cq) == IBV_WC_RECV);
			CHECK(received != 0 || (ibv_wc_read_byte_len(cq) == 33 && ibv_wc_read_wc_flags(cq) == 0));
			CHECK(received != 1 || (ibv_wc_read_byte_len(cq) == 0 && ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_IMM &&
						ibv_wc_read_imm_data(cq) == 0x0a0b0c0d));
			received++;
		} else {
			CHECK(ibv_wc_read_qp_num(cq) == a->qp_num && cq->wr_id == 1u + sent);
			CHECK(cq->status == (sent == 2 ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_SUCCESS));
			CHECK(sent == 2 || ibv_wc_read_opcode(cq) == IBV_WC_SEND);
			sent++;
		}
		if (sent + received == 6)
			break;
		next(cq);
	}
	CHECK(ibv_next_poll(cq) == ENOENT);
	ibv_end_poll(cq);
	nothing_in_hand(cq);
}

static void reset(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	connect_to(qp, peer);
}

/* The same queue with the calls for plain ones, events included. */
static void as_a_plain_one(struct ibv_qp *qp, struct ibv_comp_channel *channel, struct ibv_cq_ex *ex)
{
	struct ibv_cq *cq = ibv_cq_ex_to_cq(ex), *got;
	void *cq_context;
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	struct ibv_send_wr wr = { .wr_id = 4, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	CHECK(ibv_get_cq_event(channel, &got, &cq_context) == 0 && got == cq && cq_context == ex->cq_context);
	ibv_ack_cq_events(cq, 1);
	CHECK(success(cq, 4).opcode == IBV_WC_RDMA_WRITE);
	CHECK(ibv_resize_cq(cq, 200) == 0 && ex->cqe >= 200);
}

enum { MESSAGES = 2000 };

static _Atomic int taken;
static _Atomic uint64_t sum;

static void *poller(void *argument)
{
	struct ibv_cq_ex *cq = argument;
	while (taken < MESSAGES) {
		if (start(cq) != 0)
			continue;
		do {
			uint64_t wr_id = cq->wr_id;
			uint32_t qp_num = ibv_wc_read_qp_num(cq);
			CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id == wr_id);
			CHECK(ibv_wc_read_qp_num(cq) == qp_num && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
			sum += wr_id;
			taken++;
		} while (ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
	return NULL;
}

/* Two threads poll: each completion is seen once, with its own fields. */
static void two_threads(struct ibv_cq_ex *cq, struct ibv_qp *qp)
{
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, poller, cq) == 0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = mr->rkey;
	for (int i = 1; i <= MESSAGES; i++) {
		while (i - taken > 40) /* the queue has room for 64 */
			usleep(10);
		wr.wr_id = i;
		int result;
		do
			result = ibv_post_send(qp, &wr, &bad);
		while (result == ENOMEM);
		CHECK(result == 0);
	}
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(taken == MESSAGES && sum == MESSAGES * (MESSAGES + 1ull) / 2);
}

static struct ibv_qp *new_qp(struct ibv_cq_ex *cq)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(ibv_cq_ex_to_cq(cq), IBV_QPT_RC, 0);
	attr.comp_mask = IBV_QP_INIT_ATTR_PD;
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	CHECK(qp);
	return qp;
}

/* Completions that find no room are lost, and neither the queue nor the queue pair minds. */
static void overrun(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 2, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					    .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	struct ibv_cq *other = ibv_create_cq(context, 2, NULL, NULL, 0);
	CHECK(cq && other);
	struct ibv_qp *qp = new_qp(cq);
	struct ibv_qp_init_attr init = { .send_cq = other, .recv_cq = other, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 1, .max_recv_wr = 1 } };
	struct ibv_qp *peer = ibv_create_qp(pd, &init);
	CHECK(peer);
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = mr->rkey;
	for (wr.wr_id = 0; wr.wr_id < 16; wr.wr_id++)
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	usleep(200000);
	uint64_t seen = 0;
	for (int i = 0; i < 100; i++) {
		int result = start(cq);
		CHECK(result == 0 || result == ENOENT);
		if (result == 0) {
			CHECK(cq->status == IBV_WC_SUCCESS && (seen > 1 || cq->wr_id == seen));
			CHECK(ibv_wc_read_completion_ts(cq) == 0); /* nobody asked for it */
			seen++;
			ibv_end_poll(cq);
		}
	}
	CHECK(seen >= 2 && seen < 16);
	struct ibv_qp_attr state;
	CHECK(ibv_query_qp(qp, &state, IBV_QP_STATE, &init) == 0 && state.qp_state == IBV_QPS_RTS);
	CHECK(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	struct ibv_async_event event;
	while (ibv_get_async_event(context, &event) == 0) {
		CHECK(event.event_type != IBV_EVENT_CQ_ERR);
		ibv_ack_async_event(&event);
	}
	CHECK(errno == EAGAIN);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && ibv_destroy_cq(other) == 0);
}

int main(void)
{
	open_device();
	creation();
	uint64_t stamps = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS | stamps, .channel = channel,
					    .cq_context = channel };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr), *single = new_cq(0, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	CHECK(cq && channel->refcnt == 1);
	struct ibv_qp *a = new_qp(cq), *b = new_qp(cq), *c = new_qp(single);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	nothing_in_hand(cq);
	nothing_in_hand(single);
	fields(cq, a, b);
	reset(a, b->qp_num);
	reset(b, a->qp_num);
	as_a_plain_one(a, channel, cq);
	two_threads(cq, a);
	overrun();
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_qp(c) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(single)) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	close_device();
	puts("ok");
	return 0;
}
