/* Work requests that cannot be done: those that posting refuses, and those that complete with an
 * error, at one end or at both. Statuses as in IBTA 11.6.2. */
#include <limits.h>
#include "rules.h"

enum { NONE = -1, LENGTH = 64, SOURCE = 0, TARGET = 4096, RECEIVED = 8192, BIG = 16384 };

static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_pd *other_pd;
/* Regions: of the other domain; readable only, locally and by peers; without any access. */
static struct ibv_mr *foreign, *only_read, *nothing;

/* One request, and what becomes of it. What is not named is good. */
struct row {
	const char *what;
	enum ibv_wr_opcode opcode;
	struct ibv_mr **local, **remote; /* whose keys; ours if NULL */
	uint32_t local_key, remote_key;	 /* or these */
	uint64_t local_va, remote_va;	 /* or here */
	uint32_t length;
	uint32_t receive;     /* bytes of the posted receive */
	int receive_key;      /* a wrong one */
	int no_access;	      /* the peer's queue pair grants nothing */
	int status, received; /* of the request, and of the receive */
	int event;	      /* at the peer */
};

static const struct row rows[] = {
	{ "local key 0", IBV_WR_SEND, .local_key = UINT32_MAX, .status = IBV_WC_LOC_PROT_ERR },
	{ "unknown local key", IBV_WR_RDMA_WRITE, .local_key = 0x7fffff01, .status = IBV_WC_LOC_PROT_ERR },
	{ "local key of another domain", IBV_WR_RDMA_WRITE, .local = &foreign, .status = IBV_WC_LOC_PROT_ERR },
	{ "before the region", IBV_WR_RDMA_WRITE, .local_va = 1, .status = IBV_WC_LOC_PROT_ERR },
	{ "behind the region", IBV_WR_RDMA_WRITE, .local_va = 2, .status = IBV_WC_LOC_PROT_ERR },
	{ "across the end of the addresses", IBV_WR_SEND, .local_va = 3, .status = IBV_WC_LOC_PROT_ERR },
	{ "READ into what cannot be written", IBV_WR_RDMA_READ, .local = &only_read, .status = IBV_WC_LOC_PROT_ERR },
	{ "atomic into what cannot be written", IBV_WR_ATOMIC_FETCH_AND_ADD, .local = &only_read, .length = 8,
	  .status = IBV_WC_LOC_PROT_ERR },
	{ "remote key 0", IBV_WR_RDMA_WRITE, .remote_key = UINT32_MAX, .status = IBV_WC_REM_ACCESS_ERR,
	  .event = IBV_EVENT_QP_ACCESS_ERR },
	{ "unknown remote key", IBV_WR_RDMA_READ, .remote_key = 0x7fffff01, .status = IBV_WC_REM_ACCESS_ERR,
	  .event = IBV_EVENT_QP_ACCESS_ERR },
	{ "remote key of another domain", IBV_WR_RDMA_WRITE, .remote = &foreign, .status = IBV_WC_REM_ACCESS_ERR,
	  .event = IBV_EVENT_QP_ACCESS_ERR },
	{ "before the remote region", IBV_WR_RDMA_WRITE, .remote_va = 1, .status = IBV_WC_REM_ACCESS_ERR,
	  .event = IBV_EVENT_QP_ACCESS_ERR },
	{ "behind the remote region", IBV_WR_RDMA_READ, .remote_va = 2, .status = IBV_WC_REM_ACCESS_ERR,
	  .event = IBV_EVENT_QP_ACCESS_ERR },
	{ "across the end of the remote addresses", IBV_WR_RDMA_WRITE, .remote_va = 3, .status = IBV_WC_REM_ACCESS_ERR,
	  .event = IBV_EVENT_QP_ACCESS_ERR },
	{ "WRITE to what peers may read", IBV_WR_RDMA_WRITE, .remote = &only_read, .status = IBV_WC_REM_ACCESS_ERR,
	  .event = IBV_EVENT_QP_ACCESS_ERR },
	{ "READ of what peers may not read", IBV_WR_RDMA_READ, .remote = &nothing, .status = IBV_WC_REM_ACCESS_ERR,
	  .event = IBV_EVENT_QP_ACCESS_ERR },
	{ "atomic on what peers may read", IBV_WR_ATOMIC_CMP_AND_SWP, .remote = &only_read, .length = 8,
	  .status = IBV_WC_REM_ACCESS_ERR, .event = IBV_EVENT_QP_ACCESS_ERR },
	{ "WRITE that the peer does not grant", IBV_WR_RDMA_WRITE, .no_access = 1, .status = IBV_WC_REM_INV_REQ_ERR,
	  .event = IBV_EVENT_QP_REQ_ERR },
	{ "READ that the peer does not grant", IBV_WR_RDMA_READ, .no_access = 1, .status = IBV_WC_REM_INV_REQ_ERR,
	  .event = IBV_EVENT_QP_REQ_ERR },
	{ "atomic that the peer does not grant", IBV_WR_ATOMIC_FETCH_AND_ADD, .no_access = 1, .length = 8,
	  .status = IBV_WC_REM_INV_REQ_ERR, .event = IBV_EVENT_QP_REQ_ERR },
	{ "atomic write that the peer does not grant", IBV_WR_ATOMIC_WRITE, .no_access = 1, .length = 8,
	  .status = IBV_WC_REM_INV_REQ_ERR, .event = IBV_EVENT_QP_REQ_ERR },
	{ "add to an unaligned word", IBV_WR_ATOMIC_FETCH_AND_ADD, .remote_va = 4, .length = 8,
	  .status = IBV_WC_REM_INV_REQ_ERR, .event = IBV_EVENT_QP_REQ_ERR },
	{ "swap of an unaligned word", IBV_WR_ATOMIC_CMP_AND_SWP, .remote_va = 4, .length = 8,
	  .status = IBV_WC_REM_INV_REQ_ERR, .event = IBV_EVENT_QP_REQ_ERR },
	{ "atomic write to an unaligned word", IBV_WR_ATOMIC_WRITE, .remote_va = 4, .length = 8,
	  .status = IBV_WC_REM_INV_REQ_ERR, .event = IBV_EVENT_QP_REQ_ERR },
	{ "a message longer than the receive", IBV_WR_SEND, .receive = LENGTH - 1, .status = IBV_WC_REM_INV_REQ_ERR,
	  .received = IBV_WC_LOC_LEN_ERR, .event = IBV_EVENT_QP_REQ_ERR },
	{ "a message of many packets longer than the receive", IBV_WR_SEND, .length = 5000, .receive = 4999,
	  .status = IBV_WC_REM_INV_REQ_ERR, .received = IBV_WC_LOC_LEN_ERR, .event = IBV_EVENT_QP_REQ_ERR },
	{ "a receive with a wrong key", IBV_WR_SEND, .receive = LENGTH, .receive_key = 1, .status = IBV_WC_REM_OP_ERR,
	  .received = IBV_WC_LOC_PROT_ERR, .event = IBV_EVENT_QP_FATAL },
	{ "no receive", IBV_WR_SEND, .status = IBV_WC_RNR_RETRY_EXC_ERR },
	{ "no receive for the immediate data", IBV_WR_RDMA_WRITE_WITH_IMM, .status = IBV_WC_RNR_RETRY_EXC_ERR },
	{ "invalidation of a region's key", IBV_WR_SEND_WITH_INV, .receive = LENGTH, .status = IBV_WC_REM_ACCESS_ERR,
	  .received = IBV_WC_WR_FLUSH_ERR, .event = IBV_EVENT_QP_ACCESS_ERR },
	{ "local invalidation of an unknown key", IBV_WR_LOCAL_INV, .remote_key = 0x7fffff01, .status = IBV_WC_MW_BIND_ERR },
};

static struct ibv_qp *new_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .send_cq = send_cq, .recv_cq = recv_cq, .qp_type = type,
					 .cap = { 8, 8, 2, 2, 32 }, .sq_sig_all = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static uint64_t place(uint64_t chosen, struct ibv_mr *region, uint64_t usual, uint32_t length)
{
	uint64_t begin = (uintptr_t)region->addr, end = begin + region->length;
	switch (chosen) {
	case 1: return begin - 8;
	case 2: return end - length + 8;
	case 3: return UINT64_MAX - 7;
	case 4: return begin + usual + 4;
	}
	return begin + usual;
}

static uint32_t key(uint32_t chosen, uint32_t usual)
{
	return chosen == UINT32_MAX ? 0 : chosen ? chosen : usual;
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static void try(const struct row *row)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_RC), *peer = new_qp(IBV_QPT_RC);
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	modify(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .min_rnr_timer = 1 }, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER);
	if (row->no_access)
		modify(peer, (struct ibv_qp_attr){ .qp_access_flags = 0 }, IBV_QP_ACCESS_FLAGS);

	uint32_t length = row->length ? row->length : LENGTH;
	memset(memory, 0x55, MEMORY);
	memset(memory + SOURCE, 0x33, LENGTH);
	struct ibv_mr *local = row->local ? *row->local : mr, *remote = row->remote ? *row->remote : mr;
	struct ibv_sge sge = { place(row->local_va, local, row->length > LENGTH ? BIG : SOURCE, length), length,
			       key(row->local_key, local->lkey) };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = row->opcode }, *bad;
	uint32_t rkey = key(row->remote_key, remote->rkey);
	uint64_t va = place(row->remote_va, remote, remote == mr ? TARGET : 0, length);
	if (row->opcode == IBV_WR_SEND_WITH_INV || row->opcode == IBV_WR_LOCAL_INV) {
		wr.invalidate_rkey = rkey;
		wr.num_sge = row->opcode == IBV_WR_SEND_WITH_INV;
	} else if (row->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || row->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = va;
		wr.wr.atomic.rkey = rkey;
	} else {
		wr.wr.rdma.remote_addr = va;
		wr.wr.rdma.rkey = rkey;
	}
	if (row->receive) {
		struct ibv_sge into = { (uintptr_t)memory + RECEIVED, row->receive, mr->lkey ^ (row->receive_key ? 0x1000 : 0) };
		struct ibv_recv_wr receive = { .wr_id = 3, .sg_list = &into, .num_sge = 1 }, *bad_receive;
		CHECK(ibv_post_recv(peer, &receive, &bad_receive) == 0);
	}
	if (row->status == IBV_WC_RNR_RETRY_EXC_ERR) {
		/* Not for ever. */
		CHECK(ibv_destroy_qp(qp) == 0);
		qp = new_qp(IBV_QPT_RC);
		connect_to(qp, peer->qp_num);
		modify(peer, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE);
		connect_to(peer, qp->qp_num);
		modify(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQD }, IBV_QP_STATE);
		modify(qp, (struct ibv_qp_attr){ .rnr_retry = 1 }, IBV_QP_RNR_RETRY);
		modify(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS }, IBV_QP_STATE);
	}

	IS(row->what, ibv_post_send(qp, &wr, &bad), 0);
	struct ibv_wc wc = awaited(send_cq);
	IS(row->what, wc.status, row->status);
	IS(row->what, wc.wr_id, 1);
	if (row->received) {
		wc = awaited(recv_cq);
		IS(row->what, wc.status, row->received);
		IS(row->what, wc.wr_id, 3);
	}
	IS(row->what, next_event(row->event ? 5000 : 0), row->event ? row->event : NONE);

	/* Nothing was touched but, by what came before the error, the receive. */
	for (int at = LENGTH; at < MEMORY; at++)
		if (memory[at] != 0x55 && !(row->receive && at >= RECEIVED && at < RECEIVED + (int)row->receive)) {
			RULE_BROKEN(row->what, "byte %d was overwritten", at);
			break;
		}
	/* What is posted from now on does not leave. */
	wr = (struct ibv_send_wr){ .wr_id = 2, .opcode = IBV_WR_SEND };
	IS(row->what, ibv_post_send(qp, &wr, &bad), 0);
	wc = awaited(send_cq);
	IS(row->what, wc.status, IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
	/* A receive that was not taken is flushed if the peer failed. */
	while (ibv_poll_cq(recv_cq, 1, &wc) == 1)
		;
}

/* Requests that never get into the queue. */
static void refused(void)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_RC), *ud = new_qp(IBV_QPT_UD), *uc = new_qp(IBV_QPT_UC);
	connect_to(qp, qp->qp_num);
	datagrams(ud);
	struct ibv_sge list[40];
	for (int i = 0; i < 40; i++)
		list[i] = (struct ibv_sge){ (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr good = { .sg_list = list, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				    .wr.rdma = { (uintptr_t)memory + TARGET, mr->rkey } }, wr, *bad;
#define WRONG(what, which, field, value, number)                                                    \
	do {                                                                                        \
		wr = good;                                                                          \
		wr.field = value;                                                                   \
		bad = NULL;                                                                         \
		IS(what, ibv_post_send(which, &wr, &bad), number);                                  \
		IS("which is named", bad == &wr, 1);                                                \
	} while (0)
	WRONG("too many elements", qp, num_sge, 3, EINVAL);
	WRONG("a negative number of elements", qp, num_sge, -1, EINVAL);
	WRONG("a list that is not there", qp, sg_list, NULL, EINVAL);
	WRONG("an operation that there is not", qp, opcode, 77, EINVAL);
	WRONG("segmentation", qp, opcode, IBV_WR_TSO, EOPNOTSUPP);
	WRONG("a driver's operation", qp, opcode, IBV_WR_DRIVER1, EINVAL);
	WRONG("unknown flags", qp, send_flags, 1 << 9, EINVAL);
	list[0].length = 1u << 31;
	WRONG("a message above max_msg_sz", qp, num_sge, 1, EINVAL);
	list[0].length = list[1].length = UINT_MAX;
	WRONG("lengths whose sum wraps", qp, num_sge, 2, EINVAL);
	list[0].length = 33;
	WRONG("inline data above the limit", qp, send_flags, IBV_SEND_INLINE, EINVAL);
	list[0].length = 8;
	good.send_flags = IBV_SEND_INLINE;
	WRONG("an inline READ", qp, opcode, IBV_WR_RDMA_READ, EINVAL);
	WRONG("an inline atomic", qp, opcode, IBV_WR_ATOMIC_FETCH_AND_ADD, EINVAL);
	good.send_flags = 0;
	list[0].length = 4;
	WRONG("an atomic into 4 bytes", qp, opcode, IBV_WR_ATOMIC_FETCH_AND_ADD, EINVAL);
	list[0].length = 8;
	good.opcode = IBV_WR_SEND;
	WRONG("a datagram to nowhere", ud, wr.ud.ah, NULL, EINVAL);
	struct ibv_ah_attr self = to_self();
	struct ibv_ah *ah = ibv_create_ah(pd, &self);
	CHECK(ah);
	good.wr.ud.ah = ah;
	good.wr.ud.remote_qpn = ud->qp_num;
	good.wr.ud.remote_qkey = QKEY;
	WRONG("WRITE by datagram", ud, opcode, IBV_WR_RDMA_WRITE, EINVAL);
	WRONG("an unreliable connection that is none", uc, num_sge, 1, EINVAL);

	struct ibv_recv_wr receive = { .sg_list = list, .num_sge = 3 }, *bad_receive = NULL;
	IS("too many elements to receive", ibv_post_recv(qp, &receive, &bad_receive), EINVAL);
	IS("which is named", bad_receive == &receive, 1);
	receive.num_sge = 1;
	for (int i = 0; i < 8; i++)
		CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
	IS("more receives than fit", ibv_post_recv(qp, &receive, &bad_receive), ENOMEM);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(ud) == 0 && ibv_destroy_qp(uc) == 0);
}

static void send_datagram(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t number, uint32_t qkey, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .wr.ud = { ah, number, qkey } }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Datagrams that arrive nowhere: the sender is not told; one that cannot leave stops the
 * sender's queue. */
static void lost_datagrams(void)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_UD), *peer = new_qp(IBV_QPT_UD);
	datagrams(qp);
	datagrams(peer);
	struct ibv_ah_attr self = to_self();
	struct ibv_ah *ah = ibv_create_ah(pd, &self);
	CHECK(ah);
	receive_at(peer, 5, RECEIVED, 40 + 16);
	send_datagram(qp, ah, peer->qp_num, QKEY + 1, 16);
	send_datagram(qp, ah, peer->qp_num ^ (1 << 23), QKEY, 16);
	send_datagram(qp, ah, peer->qp_num, QKEY, 17);
	send_datagram(qp, ah, peer->qp_num, QKEY, 16);
	for (int i = 0; i < 4; i++)
		IS("sent all the same", awaited(send_cq).status, IBV_WC_SUCCESS);
	struct ibv_wc wc = awaited(recv_cq);
	IS("the last one arrives", wc.status, IBV_WC_SUCCESS);
	IS("as long as it is", wc.byte_len, 40 + 16);
	IS("and none of the others", ibv_poll_cq(recv_cq, 1, &wc), 0);

	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	send_datagram(qp, ah, peer->qp_num, QKEY, 4097);
	send_datagram(qp, ah, peer->qp_num, QKEY, 16);
	IS("longer than the MTU", awaited(send_cq).status, IBV_WC_LOC_LEN_ERR);
	IS("what is behind it", awaited(send_cq).status, IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_QKEY, &init) == 0);
	IS("the struct, which no call was asked to bring up to date", qp->state, IBV_QPS_RTS);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	IS("the send queue stands", attr.qp_state, IBV_QPS_SQE);
	IS("and the struct says so", qp->state, IBV_QPS_SQE);
	modify(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS }, IBV_QP_STATE);
	receive_at(peer, 6, RECEIVED, 40 + 16);
	send_datagram(qp, ah, peer->qp_num, QKEY, 16);
	IS("and runs again", awaited(send_cq).status, IBV_WC_SUCCESS);
	IS("to the other side", awaited(recv_cq).wr_id, 6);
	IS("no event of all that", next_event(0), NONE);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
}

int main(void)
{
	open_device();
	send_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	recv_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	other_pd = ibv_alloc_pd(context);
	static char places[3][4096];
	foreign = ibv_reg_mr(other_pd, places[0], 4096, ALL_ACCESS);
	only_read = ibv_reg_mr(pd, places[1], 4096, IBV_ACCESS_REMOTE_READ);
	nothing = ibv_reg_mr(pd, places[2], 4096, 0);
	CHECK(send_cq && recv_cq && foreign && only_read && nothing);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		try(&rows[i]);
	refused();
	lost_datagrams();
	CHECK(ibv_dereg_mr(foreign) == 0 && ibv_dereg_mr(only_read) == 0 && ibv_dereg_mr(nothing) == 0);
	CHECK(ibv_destroy_cq(send_cq) == 0 && ibv_destroy_cq(recv_cq) == 0 && ibv_dealloc_pd(other_pd) == 0);
	close_device();
	return rules_hold();
}
