/* What ibv_modify_qp(3) refuses, and what can be posted in which state. */
#include "rules.h"

static struct ibv_cq *cq;

static struct ibv_qp *new_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type,
					 .cap = { 8, 8, 2, 2, 32 }, .sq_sig_all = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	UD_TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
	UC_TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
	TO_RTR = UC_TO_RTR | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	UC_TO_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN,
	TO_RTS = UC_TO_RTS | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
};

/* What every attribute may be. */
static struct ibv_qp_attr good(enum ibv_qp_state state, struct ibv_qp *qp)
{
	return (struct ibv_qp_attr){
		.qp_state = state, .port_num = 1, .qp_access_flags = ALL_ACCESS & 0xf, .qkey = QKEY, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num, .rq_psn = 7, .sq_psn = 7, .max_dest_rd_atomic = 4, .max_rd_atomic = 4,
		.min_rnr_timer = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .ah_attr = to_self(),
	};
}

/* The ordinary way of each service: what it needs in each of three steps. */
static const struct {
	enum ibv_qp_type type;
	int needs[3];
} ways[] = {
	{ IBV_QPT_RC, { TO_INIT, TO_RTR, TO_RTS } },
	{ IBV_QPT_UC, { TO_INIT, UC_TO_RTR, UC_TO_RTS } },
	{ IBV_QPT_UD, { UD_TO_INIT, IBV_QP_STATE, UC_TO_RTS } },
};

static const enum ibv_qp_state steps[3] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

static void attributes_of_each_step(void)
{
	for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
		struct ibv_qp *qp = new_qp(ways[way].type);
		for (int step = 0; step < 3; step++) {
			enum ibv_qp_state before = state_of(qp);
			struct ibv_qp_attr attr = good(steps[step], qp);
			int needs = ways[way].needs[step];
			for (int bit = 0; bit < 31; bit++) {
				char what[64];
				int flag = 1 << bit;
				if (flag == IBV_QP_STATE)
					continue;
				snprintf(what, sizeof what, "service %d, step %d, attribute %d", ways[way].type, step, bit);
				if (needs & flag)
					IS(what, ibv_modify_qp(qp, &attr, needs & ~flag), EINVAL);
				else if (step == 0)
					/* Nothing is optional on the way to INIT. */
					IS(what, ibv_modify_qp(qp, &attr, needs | flag), EINVAL);
				IS("nothing was modified", state_of(qp), before);
			}
			CHECK(ibv_modify_qp(qp, &attr, needs) == 0 && state_of(qp) == steps[step]);
		}
		CHECK(ibv_destroy_qp(qp) == 0);
	}
}

static void transitions(void)
{
	static const enum ibv_qp_state all[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD };
	struct ibv_qp *qp = new_qp(IBV_QPT_RC);
	/* From RESET only to INIT; from INIT not further than RTR; never back but to RESET. */
	for (int step = -1; step < 3; step++) {
		if (step >= 0) {
			struct ibv_qp_attr attr = good(steps[step], qp);
			CHECK(ibv_modify_qp(qp, &attr, ways[0].needs[step]) == 0);
		}
		for (int to = 0; to < 4; to++) {
			struct ibv_qp_attr attr = good(all[to], qp);
			int possible = to == step + 1 || to == step;
			if (possible || (step == 2 && all[to] == IBV_QPS_SQD))
				continue;
			int mask = to < 3 ? ways[0].needs[to] : IBV_QP_STATE;
			IS("a state out of turn", ibv_modify_qp(qp, &attr, mask), EINVAL);
		}
	}
	struct ibv_qp_attr attr = { .qp_state = 77 };
	IS("a state that there is not", ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = IBV_QPS_SQE;
	IS("a state that is only fallen into", ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQD };
	IS("not the current state", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
	IS("resizing", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP), EINVAL);
	IS("unknown attribute", ibv_modify_qp(qp, &attr, IBV_QP_STATE | 1 << 30), EINVAL);
	IS("no attributes", ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL);
	IS("query into nothing", ibv_query_qp(qp, NULL, IBV_QP_STATE, NULL), EINVAL);
	CHECK(state_of(qp) == IBV_QPS_RTS && ibv_destroy_qp(qp) == 0);
}

static void values(void)
{
	struct ibv_device_attr max;
	CHECK(ibv_query_device(context, &max) == 0);
	struct {
		const char *what;
		int step;
		struct ibv_qp_attr attr;
	} rows[32];
	int count = 0;
	struct ibv_qp *qp = new_qp(IBV_QPT_RC);
#define ROW(name, number, field, value)                                                             \
	do {                                                                                        \
		rows[count].what = name;                                                            \
		rows[count].step = number;                                                          \
		rows[count].attr = good(steps[number], qp);                                         \
		rows[count++].attr.field = value;                                                   \
	} while (0)
	ROW("port 0", 0, port_num, 0);
	ROW("port 2", 0, port_num, 2);
	ROW("a partition key behind the table", 0, pkey_index, 1);
	ROW("an unknown right", 0, qp_access_flags, 1 << 14);
	ROW("path MTU 0", 1, path_mtu, 0);
	ROW("path MTU 6", 1, path_mtu, 6);
	ROW("more READs to answer than the device can", 1, max_dest_rd_atomic, max.max_qp_rd_atom + 1);
	ROW("a timer of more than 5 bits", 1, min_rnr_timer, 32);
	ROW("a path without GID", 1, ah_attr.is_global, 0);
	ROW("a path of port 2", 1, ah_attr.port_num, 2);
	ROW("a path from no GID", 1, ah_attr.grh.sgid_index, 255);
	ROW("a path to nobody", 1, ah_attr.grh.dgid, ((union ibv_gid){ 0 }));
	ROW("more READs than the device can", 2, max_rd_atomic, max.max_qp_init_rd_atom + 1);
	ROW("a timeout of more than 5 bits", 2, timeout, 32);
	ROW("retries of more than 3 bits", 2, retry_cnt, 8);
	ROW("patience of more than 3 bits", 2, rnr_retry, 8);
#undef ROW
	int done = 0;
	for (int row = 0; row < count; row++) {
		for (; done < rows[row].step; done++) {
			struct ibv_qp_attr attr = good(steps[done], qp);
			CHECK(ibv_modify_qp(qp, &attr, ways[0].needs[done]) == 0);
		}
		enum ibv_qp_state before = state_of(qp);
		IS(rows[row].what, ibv_modify_qp(qp, &rows[row].attr, ways[0].needs[rows[row].step]), EINVAL);
		IS("nothing was modified", state_of(qp), before);
	}
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* What each state makes of a send and of a receive. */
static void posting(void)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_RC), *peer = new_qp(IBV_QPT_RC);
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr send = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad = NULL;
	struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad_receive = NULL;
	IS("send in RESET", ibv_post_send(qp, &send, &bad), EINVAL);
	IS("which is named", bad == &send, 1);
	IS("receive in RESET", ibv_post_recv(qp, &receive, &bad_receive), EINVAL);
	IS("which is named", bad_receive == &receive, 1);
	for (int step = 0; step < 2; step++) {
		struct ibv_qp_attr attr = good(steps[step], peer);
		CHECK(ibv_modify_qp(qp, &attr, ways[0].needs[step]) == 0);
		bad = NULL;
		IS(step ? "send in RTR" : "send in INIT", ibv_post_send(qp, &send, &bad), EINVAL);
		IS("which is named", bad == &send, 1);
		IS("a receive waits", ibv_post_recv(qp, &receive, &bad_receive), 0);
	}
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0);
	IS("send in ERR", ibv_post_send(qp, &send, &bad), 0);
	IS("receive in ERR", ibv_post_recv(qp, &receive, &bad_receive), 0);
	int sends = 0, receives = 0;
	for (int i = 0; i < 4; i++) {
		struct ibv_wc wc = awaited(cq);
		IS("all are flushed", wc.status, IBV_WC_WR_FLUSH_ERR);
		sends += wc.wr_id == 1;
		receives += wc.wr_id == 2;
	}
	IS("the send", sends, 1);
	IS("three receives", receives, 3);
	struct ibv_wc wc;
	IS("no more", ibv_poll_cq(cq, 1, &wc), 0);
	IS("poll of a negative number", ibv_poll_cq(cq, -1, &wc), -1);
	IS("poll of none", ibv_poll_cq(cq, 0, NULL), 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
}

int main(void)
{
	open_device();
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(cq);
	attributes_of_each_step();
	transitions();
	values();
	posting();
	CHECK(ibv_destroy_cq(cq) == 0);
	close_device();
	return rules_hold();
}
