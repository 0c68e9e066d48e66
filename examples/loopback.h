/* What every example needs: a device, and queue pairs of it that are connected with each other
 * through the interface's own address, so that one program plays both sides. Between two hosts
 * everything is the same, but that the queue pair numbers, GIDs, addresses and keys are told by
 * other means (a TCP connection, mostly). */
#ifndef LOOPBACK_H
#define LOOPBACK_H

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <infiniband/verbs.h>

/* Stops the program unless the condition holds. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s (errno: %s)\n", __FILE__, __LINE__, #condition, strerror(errno));       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum {
    WAIT_SECONDS = 20,
    GRH_BYTES = 40, /* before the data of a datagram */
    QKEY = 0x11111111,
    ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
};

static inline struct ibv_context *open_first_device(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list != NULL);
    if (count == 0) {
        fprintf(stderr, "no RDMA device; start this program with `airdma run --` before its name\n");
        exit(1);
    }
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context != NULL);
    ibv_free_device_list(list); /* not before a device of it is open */
    return context;
}

/* The way to ourselves: our own address as the destination. RoCE knows no destination without a GID
 * (is_global). */
static inline struct ibv_ah_attr path_to_self(struct ibv_context *context)
{
    struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };
    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
    for (int index = port.gid_tbl_len - 1; index >= 0; index--) {
        struct ibv_gid_entry entry;
        if (ibv_query_gid_ex(context, 1, index, &entry, 0) != 0 || entry.gid_type != IBV_GID_TYPE_ROCE_V2)
            continue;
        attr.grh.sgid_index = index;
        attr.grh.dgid = entry.gid;
    }
    CHECK(attr.grh.dgid.global.interface_id != 0);
    return attr;
}

/* A queue pair whose requests all complete into `cq`, and whose receives come from `srq`, if that
 * is not NULL. */
static inline struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type, .sq_sig_all = 1,
        .cap = { .max_send_wr = 32, .max_recv_wr = srq ? 0 : 32, .max_send_sge = 4, .max_recv_sge = srq ? 0 : 4,
                 .max_inline_data = 64 },
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp != NULL);
    return qp;
}

/* Takes a reliable connection through its states to the one in which it sends. The extended kind
 * names the same. */
static inline void connect_to(struct ibv_qp *qp, uint32_t peer)
{
    struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_ACCESS };
    CHECK(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 100,
        .max_dest_rd_atomic = 4, .min_rnr_timer = 12, .ah_attr = path_to_self(qp->context),
    };
    CHECK(ibv_modify_qp(qp, &receive,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    struct ibv_qp_attr send = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 100, .max_rd_atomic = 4,
    };
    CHECK(ibv_modify_qp(qp, &send,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static inline void connect_pair(struct ibv_qp *a, struct ibv_qp *b)
{
    connect_to(a, b->qp_num);
    connect_to(b, a->qp_num);
}

/* A datagram queue pair needs no peer, but a Q_Key that who sends to it has to know. */
static inline void ready_for_datagrams(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

static inline struct ibv_sge part_of(struct ibv_mr *mr, void *address, size_t length)
{
    return (struct ibv_sge){ (uintptr_t)address, (uint32_t)length, mr->lkey };
}

static inline void post_receive(struct ibv_qp *qp, uint64_t wr_id, struct ibv_sge sge)
{
    struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* Posts what `wr` says of one piece of memory. The list may go when the call returns; the memory
 * may not. */
static inline void post_send(struct ibv_qp *qp, struct ibv_send_wr wr, struct ibv_sge sge)
{
    struct ibv_send_wr *bad;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static inline double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* The next completion, whatever its status. Sleeping for it is shown in async_events.c. */
static inline struct ibv_wc next_completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int count;
    double deadline = now() + WAIT_SECONDS;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
        CHECK(now() < deadline);
    CHECK(count == 1);
    return wc;
}

static inline struct ibv_wc expect(struct ibv_cq *cq, enum ibv_wc_opcode opcode)
{
    struct ibv_wc wc = next_completion(cq);
    if (wc.status != IBV_WC_SUCCESS)
        fprintf(stderr, "a completion says: %s\n", ibv_wc_status_str(wc.status));
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
    return wc;
}

/* The opcode of a completion that failed means nothing. */
static inline void expect_failure(struct ibv_cq *cq, enum ibv_wc_status status)
{
    struct ibv_wc wc = next_completion(cq);
    if (wc.status != status)
        fprintf(stderr, "a completion says: %s\n", ibv_wc_status_str(wc.status));
    CHECK(wc.status == status);
}

/* Waits for an asynchronous event, which the caller has to acknowledge. */
static inline struct ibv_async_event next_event(struct ibv_context *context)
{
    struct ibv_async_event event;
    struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
    CHECK(poll(&fd, 1, WAIT_SECONDS * 1000) == 1);
    CHECK(ibv_get_async_event(context, &event) == 0);
    return event;
}

#endif
