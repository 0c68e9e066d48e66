/* What the test programs share: one device, the loopback interface's, and pairs of queue pairs
 * on it. Included first. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define CHECK(condition)                                                                            \
	do {                                                                                        \
		if (!(condition)) {                                                                 \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition,    \
				errno);                                                             \
			exit(1);                                                                    \
		}                                                                                   \
	} while (0)

enum { MEMORY = 64 * 1024, QKEY = 0x11111111, ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char *memory;
static union ibv_gid gid;

static inline void open_device(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
	pd = ibv_alloc_pd(context);
	memory = aligned_alloc(4096, MEMORY);
	memset(memory, 0, MEMORY);
	mr = ibv_reg_mr(pd, memory, MEMORY, ALL_ACCESS);
	CHECK(pd && mr);
}

static inline void close_device(void)
{
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	free(memory);
}

static inline struct ibv_qp_init_attr_ex qp_attr(struct ibv_cq *cq, enum ibv_qp_type type, uint64_t operations)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = operations,
		.cap = { .max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 2, .max_recv_sge = 1,
			 .max_inline_data = 64 },
	};
	return attr;
}

static inline struct ibv_ah_attr to_self(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 4 } };
	return attr;
}

/* To RTS; the halves of an extended connection ignore what they have no use for. */
static inline void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_ACCESS & 0xf };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 7,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1, .ah_attr = to_self(),
	};
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 7,
		.max_rd_atomic = 4,
	};
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static inline void datagrams(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

static inline void receive_at(struct ibv_qp *qp, uint64_t wr_id, size_t offset, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory + offset, length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* The next completion. */
static inline struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;
	do
		count = ibv_poll_cq(cq, 1, &wc);
	while (count == 0);
	CHECK(count == 1);
	return wc;
}

static inline struct ibv_wc success(struct ibv_cq *cq, uint64_t wr_id)
{
	struct ibv_wc wc = completion(cq);
	if (wc.status != IBV_WC_SUCCESS || wc.wr_id != wr_id)
		fprintf(stderr, "%s for %lu, not success for %lu\n", ibv_wc_status_str(wc.status), wc.wr_id, wr_id);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id);
	return wc;
}
