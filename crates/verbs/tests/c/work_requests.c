/* The work request API of queue pairs that ibv_create_qp_ex made, ibv_wr_post(3): every
 * operation and setter, batches that are posted whole or not at all, misuse, and two threads. */
#include "common.h"

enum { EVERYTHING = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
       IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
       IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE };

static struct ibv_cq *cq, *peer_cq;

static struct ibv_qp_ex *extended(struct ibv_cq *of, enum ibv_qp_type type, uint64_t operations)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(of, type, operations);
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	CHECK(qp);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	CHECK(ex && &ex->qp_base == qp);
	return ex;
}

static int refused(enum ibv_qp_type type, uint32_t mask, uint64_t operations)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(cq, type, operations);
	attr.comp_mask = mask;
	errno = 0;
	CHECK(!ibv_create_qp_ex(context, &attr));
	return errno;
}

static void creation(void)
{
	uint32_t both = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	CHECK(refused(IBV_QPT_RC, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, 0) == EINVAL); /* no protection domain */
	CHECK(refused(IBV_QPT_RC, both | 1 << 12, 0) == EINVAL);
	CHECK(refused(IBV_QPT_RC, both | IBV_QP_INIT_ATTR_MAX_TSO_HEADER, 0) == EOPNOTSUPP);
	CHECK(refused(IBV_QPT_RC, both | IBV_QP_INIT_ATTR_RX_HASH, 0) == EOPNOTSUPP);
	CHECK(refused(IBV_QPT_RC, both, IBV_QP_EX_WITH_TSO) == EOPNOTSUPP);
	CHECK(refused(IBV_QPT_RC, both, 1ull << 40) == EOPNOTSUPP);
	CHECK(refused(IBV_QPT_UC, both, IBV_QP_EX_WITH_RDMA_READ) == EOPNOTSUPP);
	CHECK(refused(IBV_QPT_UD, both, IBV_QP_EX_WITH_RDMA_WRITE) == EOPNOTSUPP);
	struct ibv_qp_init_attr_ex attr = qp_attr(cq, IBV_QPT_RC, 0);
	attr.comp_mask = IBV_QP_INIT_ATTR_PD;
	struct ibv_qp *plain = ibv_create_qp_ex(context, &attr);
	CHECK(plain && !ibv_qp_to_qp_ex(plain) && ibv_destroy_qp(plain) == 0);
}

static void begin(struct ibv_qp_ex *qp, uint64_t wr_id)
{
	qp->wr_id = wr_id;
	qp->wr_flags = IBV_SEND_SIGNALED;
}

static uint64_t at(size_t offset)
{
	return (uintptr_t)memory + offset;
}

static uint64_t *word(size_t offset)
{
	return (uint64_t *)(memory + offset);
}

static void every_operation(struct ibv_qp_ex *a, struct ibv_qp *b)
{
	char text[] = "inline list";
	struct ibv_data_buf pieces[] = { { text, 7 }, { NULL, 0 }, { text + 7, 5 } };
	struct ibv_sge list[] = { { at(0), 4, mr->lkey }, { at(8), 4, mr->lkey } };
	memcpy(memory, "two ....pcs.", 12);
	*word(64) = 40;
	for (int i = 0; i < 4; i++)
		receive_at(b, 50 + i, 8192, 64);

	ibv_wr_start(a);
	begin(a, 1);
	ibv_wr_rdma_write(a, mr->rkey, at(1024));
	ibv_wr_set_sge_list(a, 2, list);
	begin(a, 2);
	ibv_wr_rdma_write(a, mr->rkey, at(1100));
	ibv_wr_set_inline_data_list(a, 3, pieces);
	memset(text, 0, sizeof text); /* was copied */
	begin(a, 3);
	a->wr_flags |= IBV_SEND_FENCE | IBV_SEND_SOLICITED;
	ibv_wr_rdma_write_imm(a, mr->rkey, at(1200), htobe32(0x01020304));
	ibv_wr_set_sge(a, mr->lkey, at(0), 8);
	begin(a, 4);
	ibv_wr_atomic_fetch_add(a, mr->rkey, at(64), 2);
	ibv_wr_set_sge(a, mr->lkey, at(72), 8);
	begin(a, 5);
	ibv_wr_atomic_cmp_swp(a, mr->rkey, at(64), 42, 99);
	ibv_wr_set_sge(a, mr->lkey, at(80), 8);
	begin(a, 6);
	ibv_wr_rdma_read(a, mr->rkey, at(64));
	ibv_wr_set_sge(a, mr->lkey, at(88), 8);
	a->wr_id = 7;
	a->wr_flags = 0; /* succeeds in silence */
	uint64_t value = 0x1122334455667788;
	ibv_wr_atomic_write(a, mr->rkey, at(96), &value);
	value = 0;
	begin(a, 8);
	ibv_wr_send(a);
	ibv_wr_set_inline_data(a, "inline", 6);
	begin(a, 9);
	ibv_wr_send_imm(a, 77);
	begin(a, 10);
	ibv_wr_send(a);
	ibv_wr_set_sge_list(a, 0, NULL);
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0 && ibv_poll_cq(peer_cq, 1, &wc) == 0); /* nothing is posted yet */
	CHECK(ibv_wr_complete(a) == 0);

	static const enum ibv_wc_opcode opcodes[] = {
		IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP,
		IBV_WC_RDMA_READ, 0, IBV_WC_SEND, IBV_WC_SEND, IBV_WC_SEND,
	};
	for (int id = 1; id <= 10; id++)
		CHECK(id == 7 || success(cq, id).opcode == opcodes[id - 1]);
	wc = success(peer_cq, 50);
	CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htobe32(0x01020304));
	CHECK(success(peer_cq, 51).byte_len == 6);
	wc = success(peer_cq, 52);
	CHECK(wc.byte_len == 0 && wc.wc_flags == IBV_WC_WITH_IMM && wc.imm_data == 77);
	CHECK(success(peer_cq, 53).byte_len == 0);
	CHECK(!memcmp(memory + 1024, "two pcs.", 8) && !memcmp(memory + 1100, "inline list", 12));
	CHECK(*word(72) == 40 && *word(80) == 42 && *word(88) == 99 && *word(96) == 0x1122334455667788);
}

static int bad_data(struct ibv_qp_ex *a, int which)
{
	static char long_text[4096];
	struct ibv_sge list[64] = { { 0 } };
	struct ibv_data_buf pieces[2] = { { long_text, 60 }, { long_text, 60 } };
	switch (which) {
	case 0:
		ibv_wr_set_sge_list(a, 64, list);
		return EINVAL;
	case 1:
		ibv_wr_set_inline_data(a, long_text, sizeof long_text);
		return ENOMEM;
	case 2:
		ibv_wr_set_inline_data_list(a, 2, pieces);
		return ENOMEM;
	case 3:
		ibv_wr_set_inline_data(a, NULL, 8);
		return EINVAL;
	case 4:
		ibv_wr_send(a); /* not among send_ops_flags */
		return EINVAL;
	case 5:
		ibv_wr_send_tso(a, long_text, 14, 100);
		return EOPNOTSUPP;
	case 6:
		ibv_wr_set_ud_addr(a, NULL, 1, 1);
		return EINVAL;
	case 7:
		a->wr_flags = 1u << 20;
		ibv_wr_rdma_write(a, mr->rkey, at(0));
		return EINVAL;
	case 8:
		ibv_wr_atomic_fetch_add(a, mr->rkey, at(64), 1); /* no room for the result */
		return EINVAL;
	case 9:
		ibv_wr_rdma_read(a, mr->rkey, at(0));
		ibv_wr_set_inline_data(a, long_text, 8);
		return EINVAL;
	case 10:
		ibv_wr_set_inline_data_list(a, SIZE_MAX, pieces);
		return ENOMEM;
	default:
		return 0;
	}
}

static void whole_or_not_at_all(void)
{
	struct ibv_qp_ex *a = extended(cq, IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
				       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
	struct ibv_qp_ex *b = extended(peer_cq, IBV_QPT_RC, 0);
	connect_to(&a->qp_base, b->qp_base.qp_num);
	connect_to(&b->qp_base, a->qp_base.qp_num);
	*word(0) = 1;
	*word(2048) = 0;
	for (int which = 0;; which++) {
		ibv_wr_start(a);
		begin(a, 100);
		ibv_wr_rdma_write(a, mr->rkey, at(2048));
		ibv_wr_set_sge(a, mr->lkey, at(0), 8);
		begin(a, 101);
		ibv_wr_rdma_write(a, mr->rkey, at(2048));
		ibv_wr_set_sge(a, mr->lkey, at(0), 8);
		int expected = bad_data(a, which);
		if (!expected) {
			ibv_wr_abort(a);
			break;
		}
		begin(a, 102);
		ibv_wr_rdma_write(a, mr->rkey, at(2048));
		ibv_wr_set_sge(a, mr->lkey, at(0), 8);
		errno = 0;
		int got = ibv_wr_complete(a);
		if (got != expected)
			fprintf(stderr, "mistake %d: %d, not %d\n", which, got, expected);
		CHECK(got == expected);
	}
	/* Data before any request; a batch of nothing; calls outside of a batch. */
	ibv_wr_start(a);
	ibv_wr_set_sge(a, mr->lkey, at(0), 8);
	CHECK(ibv_wr_complete(a) == EINVAL);
	ibv_wr_start(a);
	CHECK(ibv_wr_complete(a) == 0);
	CHECK(ibv_wr_complete(a) == EINVAL);
	ibv_wr_abort(a);
	ibv_wr_rdma_write(a, mr->rkey, at(2048));
	ibv_wr_start(a);
	ibv_wr_start(a); /* twice by the same thread: a mistake, but no deadlock */
	CHECK(ibv_wr_complete(a) == EINVAL);
	/* The queue has room for as many as before, and one too many is refused. */
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(&a->qp_base, &attr, IBV_QP_CAP, &init) == 0);
	for (uint32_t extra = 1; extra-- > 0;) {
		ibv_wr_start(a);
		for (uint32_t i = 0; i < init.cap.max_send_wr + extra; i++) {
			begin(a, i);
			ibv_wr_rdma_write(a, mr->rkey, at(2056));
			ibv_wr_set_sge(a, mr->lkey, at(0), 8);
		}
		CHECK(ibv_wr_complete(a) == (extra ? ENOMEM : 0));
	}
	for (uint32_t i = 0; i < init.cap.max_send_wr; i++)
		success(cq, i); /* the first completion of all: nothing above was posted */
	CHECK(*word(2048) == 0 && *word(2056) == 1);
	CHECK(ibv_destroy_qp(&a->qp_base) == 0 && ibv_destroy_qp(&b->qp_base) == 0);
}

static void windows(struct ibv_qp_ex *a, struct ibv_qp *b)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2), *first = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(mw && first);
	struct ibv_mw_bind_info info = { .mr = mr, .addr = at(4096), .length = 4096,
					 .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	ibv_wr_start(a);
	begin(a, 1);
	ibv_wr_bind_mw(a, first, ibv_inc_rkey(first->rkey), &info); /* ibv_bind_mw is for those of type 1 */
	CHECK(ibv_wr_complete(a) == EINVAL);
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	receive_at(b, 60, 8192, 64);
	ibv_wr_start(a);
	begin(a, 2);
	ibv_wr_bind_mw(a, mw, rkey, &info);
	begin(a, 3);
	a->wr_flags |= IBV_SEND_FENCE;
	ibv_wr_local_inv(a, rkey);
	CHECK(ibv_wr_complete(a) == 0);
	CHECK(success(cq, 2).opcode == IBV_WC_BIND_MW && success(cq, 3).opcode == IBV_WC_LOCAL_INV);
	/* Bound again, and invalidated by the peer's message. The program keeps the key of a
	 * window of type 2. */
	mw->rkey = rkey;
	rkey = ibv_inc_rkey(rkey);
	struct ibv_qp_ex *bx = ibv_qp_to_qp_ex(b);
	ibv_wr_start(a);
	begin(a, 4);
	ibv_wr_bind_mw(a, mw, rkey, &info);
	CHECK(ibv_wr_complete(a) == 0);
	success(cq, 4);
	receive_at(&a->qp_base, 61, 8192, 64);
	ibv_wr_start(bx);
	begin(bx, 5);
	ibv_wr_rdma_write(bx, rkey, at(4096));
	ibv_wr_set_inline_data(bx, "window", 6);
	begin(bx, 6);
	ibv_wr_send_inv(bx, rkey);
	CHECK(ibv_wr_complete(bx) == 0);
	success(peer_cq, 5);
	success(peer_cq, 6);
	struct ibv_wc wc = success(cq, 61);
	CHECK(wc.wc_flags == IBV_WC_WITH_INV && wc.invalidated_rkey == rkey && !memcmp(memory + 4096, "window", 6));
	ibv_wr_start(bx);
	begin(bx, 7);
	ibv_wr_rdma_write(bx, rkey, at(4096));
	ibv_wr_set_inline_data(bx, "closed", 6);
	CHECK(ibv_wr_complete(bx) == 0);
	CHECK(completion(peer_cq).status == IBV_WC_REM_ACCESS_ERR && !memcmp(memory + 4096, "window", 6));
	CHECK(ibv_dealloc_mw(mw) == 0 && ibv_dealloc_mw(first) == 0);
}

static void addressed(void)
{
	struct ibv_qp_ex *qp = extended(cq, IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
	datagrams(&qp->qp_base);
	struct ibv_ah_attr attr = to_self();
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	receive_at(&qp->qp_base, 70, 8192, 64);
	receive_at(&qp->qp_base, 71, 8292, 64);
	ibv_wr_start(qp);
	begin(qp, 1);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, "nowhere", 7);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_start(qp);
	qp->wr_id = 2;
	qp->wr_flags = 0;
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, ah, qp->qp_base.qp_num, QKEY); /* the setters come in any order */
	ibv_wr_set_inline_data(qp, "first", 5);
	begin(qp, 3);
	ibv_wr_send_imm(qp, 5);
	ibv_wr_set_inline_data(qp, "second", 6);
	ibv_wr_set_ud_addr(qp, ah, qp->qp_base.qp_num, QKEY);
	CHECK(ibv_wr_complete(qp) == 0);
	for (int seen = 0; seen != 7;) {
		struct ibv_wc wc = completion(cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
		CHECK(wc.wr_id == 3 || (wc.wr_id == 70 && wc.byte_len == 45) || (wc.wr_id == 71 && wc.byte_len == 46));
		seen |= wc.wr_id == 3 ? 1 : wc.wr_id == 70 ? 2 : 4;
	}
	CHECK(!memcmp(memory + 8232, "first", 5) && !memcmp(memory + 8332, "second", 6));
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(&qp->qp_base) == 0);
}

static void extended_connection(void)
{
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
					     .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &domain);
	CHECK(xrcd);
	struct ibv_srq_init_attr_ex queue = {
		.attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .xrcd = xrcd, .cq = peer_cq, .pd = pd,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
	};
	struct ibv_srq *srq = ibv_create_srq_ex(context, &queue);
	uint32_t number;
	CHECK(srq && ibv_get_srq_num(srq, &number) == 0);
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *b = ibv_create_qp_ex(context, &target);
	struct ibv_qp_ex *a = extended(cq, IBV_QPT_XRC_SEND, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_LOCAL_INV);
	CHECK(b && !ibv_qp_to_qp_ex(b));
	struct ibv_qp_open_attr again = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = b->qp_num, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_qp *other = ibv_open_qp(context, &again);
	CHECK(other && other != b && other->qp_num == b->qp_num);
	connect_to(&a->qp_base, b->qp_num);
	connect_to(b, a->qp_base.qp_num);
	struct ibv_sge sge = { at(8192), 64, mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 80, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_srq_recv(srq, &receive, &bad) == 0);
	ibv_wr_start(a);
	begin(a, 1);
	ibv_wr_send(a);
	CHECK(ibv_wr_complete(a) == EINVAL); /* to which queue? */
	ibv_wr_start(a);
	begin(a, 2);
	ibv_wr_send(a);
	ibv_wr_set_xrc_srqn(a, number);
	ibv_wr_set_inline_data(a, "extended", 8);
	CHECK(ibv_wr_complete(a) == 0);
	success(cq, 2);
	CHECK(success(peer_cq, 80).byte_len == 8 && !memcmp(memory + 8192, "extended", 8));
	/* Events go to who created the target, whoever else has it open. */
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_async_event event;
	int flags = fcntl(context->async_fd, F_GETFL);
	CHECK(ibv_modify_qp(b, &error, IBV_QP_STATE) == 0);
	CHECK(fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK) == 0);
	do {
		CHECK(ibv_get_async_event(context, &event) == 0);
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK(event.element.qp == b && fcntl(context->async_fd, F_SETFL, flags) == 0);
	CHECK(ibv_destroy_qp(other) == 0);
	CHECK(ibv_destroy_qp(&a->qp_base) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_srq(srq) == 0);
	CHECK(ibv_close_xrcd(xrcd) == 0);
}

enum { BATCHES = 300, THREADS = 2 };

/* Batches posted and not yet polled: the completion queue has room for 42. */
static _Atomic int outstanding;

static void *writer(void *argument)
{
	struct ibv_qp_ex *qp = argument;
	static _Atomic uint64_t next_thread = 1;
	uint64_t id = next_thread++ << 32;
	for (int i = 0; i < BATCHES; i++) {
		while (outstanding > 30)
			usleep(10);
		outstanding++;
		for (;;) {
			ibv_wr_start(qp);
			for (int part = 0; part < 3; part++) {
				begin(qp, id + part);
				ibv_wr_rdma_write(qp, mr->rkey, at(1024));
				ibv_wr_set_sge(qp, mr->lkey, at(0), 8);
				if (part == 0 && i % 16 == 0)
					usleep(100); /* the other thread waits */
			}
			int result = ibv_wr_complete(qp);
			if (result == 0)
				break;
			CHECK(result == ENOMEM);
			usleep(10);
		}
		id += 3;
	}
	return NULL;
}

/* Batches of two threads follow each other and never mix. */
static void two_threads(struct ibv_qp_ex *qp)
{
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, writer, qp) == 0);
	for (int i = 0; i < BATCHES * THREADS; i++) {
		struct ibv_wc wc = completion(cq);
		CHECK(wc.status == IBV_WC_SUCCESS && (uint32_t)wc.wr_id % 3 == 0);
		success(cq, wc.wr_id + 1);
		success(cq, wc.wr_id + 2);
		outstanding--;
	}
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(void)
{
	open_device();
	cq = ibv_create_cq(context, 128, NULL, NULL, 0);
	peer_cq = ibv_create_cq(context, 128, NULL, NULL, 0);
	CHECK(cq && peer_cq);
	creation();
	struct ibv_qp_ex *a = extended(cq, IBV_QPT_RC, EVERYTHING), *b = extended(peer_cq, IBV_QPT_RC, EVERYTHING);
	connect_to(&a->qp_base, b->qp_base.qp_num);
	connect_to(&b->qp_base, a->qp_base.qp_num);
	every_operation(a, &b->qp_base);
	whole_or_not_at_all();
	two_threads(a);
	addressed();
	extended_connection();
	windows(a, &b->qp_base);
	CHECK(ibv_destroy_qp(&a->qp_base) == 0 && ibv_destroy_qp(&b->qp_base) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(peer_cq) == 0);
	close_device();
	puts("ok");
	return 0;
}
