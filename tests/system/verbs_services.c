/*
 * Moves patterned data between two hosts, which need not run the same RDMA stack, by what
 * verbs_check leaves out:
 *
 *   verbs_services [-d DEVICE] [-g GID_INDEX] MODE          server
 *   verbs_services [-d DEVICE] [-g GID_INDEX] MODE HOST     client
 *
 *   uc        SEND and WRITE, with and without immediate data, on an unreliable connection
 *   shared    four queue pairs fill the receives of one shared queue
 *   many      64 queue pairs write, read and send at once
 *   patient   messages wait until receives are posted, as often as it takes (RNR)
 *   inline    inline data of every length that both ends take, from memory that changes at once
 *   refusals  what a peer must refuse, and what both ends are told then
 *   records   Write-Records, which rxe does not know, to its datagram queue pair: nothing happens
 *   atomic    WRITE, and ATOMIC_WRITE behind it, also refused (rxe of Linux 6.2 and newer)
 *
 * Exit status: 0 all good, 1 a check failed, 2 it could not be set up.
 */
#define NAME "verbs_services"
#include "verbs_pair.h"
#include "../../crates/verbs/include/airdma/verbs_record.h"
#include <errno.h>

#define QPS_MAX 64
#define SLOT 65536u
#define SLOTS 128
#define BYTES ((size_t)SLOTS * SLOT)
#define UNTOUCHED 0xa5
#define DEPTH 64
#define INLINE_WANTED 256
#define QKEY 0x11111111u
#define ALL_RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

struct end { union ibv_gid gid; uint64_t address; uint32_t rkey, bare_rkey, inline_max, qpns[QPS_MAX]; };

static const char *device;
static int gid_index, pairs = 1;
static enum ibv_mtu path_mtu;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_srq *srq;
static struct ibv_qp *qps[QPS_MAX];
static struct ibv_mr *mr, *bare;
static uint8_t *buffer;
static struct end mine, theirs;

static uint8_t *slot(int number) { return buffer + (size_t)number * SLOT; }

static void open_device(void)
{
    context = open_device_named(device);
    struct ibv_port_attr port;
    SETUP(ibv_query_port(context, 1, &port) == 0, "ibv_query_port");
    path_mtu = port.active_mtu;
    SETUP(ibv_query_gid(context, 1, gid_index, &mine.gid) == 0, "ibv_query_gid(%d)", gid_index);
    SETUP(pd = ibv_alloc_pd(context), "ibv_alloc_pd: %m");
    SETUP(posix_memalign((void **)&buffer, 4096, BYTES) == 0, "no memory");
    memset(buffer, UNTOUCHED, BYTES);
    SETUP(mr = ibv_reg_mr(pd, buffer, BYTES, ALL_RIGHTS), "ibv_reg_mr: %m");
    SETUP(bare = ibv_reg_mr(pd, buffer, BYTES, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr: %m");
    SETUP(send_cq = ibv_create_cq(context, 4 * QPS_MAX, NULL, NULL, 0), "ibv_create_cq: %m");
    SETUP(receive_cq = ibv_create_cq(context, 4 * QPS_MAX, NULL, NULL, 0), "ibv_create_cq: %m");
}

static void create(enum ibv_qp_type type, int rights, uint32_t inline_wanted)
{
    for (int i = 0; i < pairs; i++) {
        struct ibv_qp_init_attr init = { .send_cq = send_cq, .recv_cq = receive_cq, .srq = srq, .qp_type = type,
            .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1,
                     .max_inline_data = inline_wanted } };
        SETUP(qps[i] = ibv_create_qp(pd, &init), "ibv_create_qp %d: %m", i);
        mine.inline_max = init.cap.max_inline_data;
        struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = rights };
        int error = ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        SETUP(error == 0, "to INIT: %s", strerror(error));
        mine.qpns[i] = qps[i]->qp_num;
    }
    mine.address = (uintptr_t)buffer;
    mine.rkey = mr->rkey;
    mine.bare_rkey = bare->rkey;
}

static void connect_all(void)
{
    tell(&mine, sizeof mine);
    hear(&theirs, sizeof theirs);
    for (int i = 0; i < pairs; i++) {
        bool reliable = qps[i]->qp_type == IBV_QPT_RC;
        struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = path_mtu, .dest_qp_num = theirs.qpns[i],
            .rq_psn = 0xfffffe, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
            .ah_attr = { .is_global = 1, .port_num = 1,
                         .grh = { .dgid = theirs.gid, .sgid_index = gid_index, .hop_limit = 64 } } };
        int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        int error = ibv_modify_qp(qps[i], &attr, mask | (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
        SETUP(error == 0, "to RTR: %s", strerror(error));
        attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 0xfffffe, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
            .max_rd_atomic = 4 };
        mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        error = ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (reliable ? mask : 0));
        SETUP(error == 0, "to RTS: %s", strerror(error));
    }
    barrier();
}

static void destroy_all(void)
{
    for (int i = 0; i < pairs; i++)
        CHECK(ibv_destroy_qp(qps[i]) == 0, "ibv_destroy_qp: %m");
}

static void receive(int pair, int number, uint32_t length)
{
    struct ibv_sge sge = { (uintptr_t)slot(number), length, mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1 }, *bad;
    int error = srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qps[pair], &wr, &bad);
    CHECK(error == 0, "posting a receive: %s", strerror(error));
}

/* A request from slot `from`, or into it for a READ; `at` is the peer's slot. Returns what
 * ibv_post_send does. */
static int request(int pair, uint64_t id, enum ibv_wr_opcode opcode, int from, uint32_t length, int at)
{
    struct ibv_sge sge = { (uintptr_t)slot(from), length, mr->lkey };
    struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
        .imm_data = htonl(id), .wr.rdma = { theirs.address + (uint64_t)at * SLOT, theirs.rkey } }, *bad;
    return ibv_post_send(qps[pair], &wr, &bad);
}

static void posted(int error) { CHECK(error == 0, "ibv_post_send: %s", strerror(error)); }

static struct ibv_wc success(struct ibv_cq *cq, const char *what)
{
    struct ibv_wc wc = completion(cq, what);
    CHECK(wc.status == IBV_WC_SUCCESS, "%s %lu: %s", what, (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
    return wc;
}

static void untouched(int number, uint32_t from)
{
    for (uint32_t i = from; i < SLOT; i++)
        CHECK(slot(number)[i] == UNTOUCHED, "byte %u of slot %d changed", i, number);
}

/* ---- the modes ---- */

static int unreliable(void)
{
    static const uint32_t sizes[] = { 0, 1, 3, 1023, 1024, 1025, 4096, 10001, SLOT };
    static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM };
    int messages = 0;
    create(IBV_QPT_UC, IBV_ACCESS_REMOTE_WRITE, 0);
    connect_all();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t o = 0; o < sizeof opcodes / sizeof *opcodes; o++, messages++) {
            bool write = opcodes[o] == IBV_WR_RDMA_WRITE || opcodes[o] == IBV_WR_RDMA_WRITE_WITH_IMM;
            bool immediate = o % 2;
            memset(slot(1), UNTOUCHED, 2 * SLOT);
            if (!client && opcodes[o] != IBV_WR_RDMA_WRITE)
                receive(0, 1, SLOT);
            barrier();
            if (client) {
                fill(slot(0), sizes[s], messages);
                posted(request(0, messages, opcodes[o], 0, sizes[s], 2));
                success(send_cq, "request");
            } else if (opcodes[o] != IBV_WR_RDMA_WRITE) {
                struct ibv_wc wc = success(receive_cq, "receive");
                CHECK(wc.byte_len == sizes[s], "%u bytes instead of %u", wc.byte_len, sizes[s]);
                CHECK(!!(wc.wc_flags & IBV_WC_WITH_IMM) == immediate, "immediate data: %d", !immediate);
                CHECK(!immediate || wc.imm_data == htonl(messages), "immediate data %x", ntohl(wc.imm_data));
            } else {
                /* Nothing tells; the last byte comes last. */
                uint8_t expected[SLOT];
                fill(expected, sizes[s], messages);
                const volatile uint8_t *last = slot(2) + sizes[s] - 1;
                for (int i = 0; sizes[s] && *last != expected[sizes[s] - 1] && i < patience_s * 1000; i++)
                    usleep(1000);
            }
            if (!client) {
                check(slot(write ? 2 : 1), sizes[s], messages, "message");
                untouched(write ? 1 : 2, 0);
                untouched(write ? 2 : 1, sizes[s]);
            }
            barrier();
        }
    return messages;
}

static int shared(void)
{
    enum { PER_PAIR = 16 };
    pairs = 4;
    struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
    if (!client)
        SETUP(srq = ibv_create_srq(pd, &init), "ibv_create_srq: %m");
    create(IBV_QPT_RC, 0, 0);
    for (int i = 0; i < pairs * PER_PAIR && !client; i++)
        receive(0, i, 8192);
    connect_all();
    for (int i = 0; i < pairs * PER_PAIR && client; i++) {
        uint32_t length = i * 257u % 8192;
        fill(slot(i), length, i);
        posted(request(i % pairs, i, IBV_WR_SEND_WITH_IMM, i, length, 0));
    }
    int last[4] = { -1, -1, -1, -1 };
    for (int i = 0; i < pairs * PER_PAIR; i++) {
        struct ibv_wc wc = success(client ? send_cq : receive_cq, "message");
        if (client)
            continue;
        int message = ntohl(wc.imm_data), pair = message % pairs;
        CHECK(message >= 0 && message < pairs * PER_PAIR, "message %d of %d", message, pairs * PER_PAIR);
        CHECK(wc.qp_num == qps[pair]->qp_num, "message %d on queue pair %x", message, wc.qp_num);
        CHECK(message > last[pair], "message %d after %d", message, last[pair]);
        last[pair] = message;
        CHECK(wc.byte_len == message * 257u % 8192, "message %d has %u bytes", message, wc.byte_len);
        check(slot(wc.wr_id), wc.byte_len, message, "message");
        untouched(wc.wr_id, wc.byte_len);
    }
    barrier();
    return pairs * PER_PAIR;
}

static int many(void)
{
    enum { WRITTEN = 2000, READ = 1500, SENT = 1025, BEHIND = 8192 };
    pairs = QPS_MAX;
    create(IBV_QPT_RC, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, 0);
    for (int i = 0; i < pairs && !client; i++) {
        receive(i, i, SENT);
        fill(slot(i) + 4 * BEHIND, READ, 3000 + i);
    }
    connect_all();
    for (int i = 0; i < pairs && client; i++) {
        struct { enum ibv_wr_opcode opcode; uint32_t length, at; } three[] = { { IBV_WR_RDMA_WRITE, WRITTEN, 2 * BEHIND },
            { IBV_WR_RDMA_READ, READ, 4 * BEHIND }, { IBV_WR_SEND, SENT, 0 } };
        fill(slot(i), SENT, 1000 + i);
        fill(slot(i) + 2 * BEHIND, WRITTEN, 2000 + i);
        for (int r = 0; r < 3; r++) {
            struct ibv_sge sge = { (uintptr_t)slot(i) + three[r].at, three[r].length, mr->lkey };
            struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = three[r].opcode,
                .send_flags = r == 2 ? IBV_SEND_SIGNALED : 0,
                .wr.rdma = { theirs.address + (uint64_t)i * SLOT + three[r].at, theirs.rkey } }, *bad;
            posted(ibv_post_send(qps[i], &wr, &bad));
        }
    }
    for (int i = 0; i < pairs; i++) {
        struct ibv_wc wc = success(client ? send_cq : receive_cq, "message");
        if (client) {
            check(slot(wc.wr_id) + 4 * BEHIND, READ, 3000 + wc.wr_id, "READ");
        } else {
            check(slot(wc.wr_id), SENT, 1000 + wc.wr_id, "SEND");
            check(slot(wc.wr_id) + 2 * BEHIND, WRITTEN, 2000 + wc.wr_id, "WRITE");
        }
    }
    barrier();
    return 3 * pairs;
}

static int patient(void)
{
    enum { MESSAGES = 8, LENGTH = 3000, WAIT_US = 100000 };
    create(IBV_QPT_RC, 0, 0);
    connect_all();
    for (int i = 0; i < MESSAGES && client; i++) {
        fill(slot(i), LENGTH, i);
        posted(request(0, i, IBV_WR_SEND, i, LENGTH, 0));
    }
    barrier(); /* the first is on its way */
    for (int i = 0; i < MESSAGES && !client; i++) {
        usleep(i ? WAIT_US / 20 : WAIT_US);
        receive(0, i, LENGTH);
    }
    for (int i = 0; i < MESSAGES; i++) {
        struct ibv_wc wc = success(client ? send_cq : receive_cq, "message");
        CHECK(wc.wr_id == (uint64_t)i, "message %d when %d was due", (int)wc.wr_id, i);
        if (!client)
            check(slot(i), LENGTH, i, "message");
    }
    barrier();
    return MESSAGES;
}

static int inlined(void)
{
    create(IBV_QPT_RC, IBV_ACCESS_REMOTE_WRITE, INLINE_WANTED);
    connect_all();
    uint32_t longest = mine.inline_max < theirs.inline_max ? mine.inline_max : theirs.inline_max;
    CHECK(longest >= INLINE_WANTED, "%u bytes of inline data at the most", longest);
    for (uint32_t length = 0; length <= INLINE_WANTED; length++) {
        memset(slot(0), UNTOUCHED, 2 * SLOT);
        if (!client)
            receive(0, 0, SLOT);
        barrier();
        if (client) {
            uint8_t bytes[INLINE_WANTED + 8]; /* not registered */
            fill(bytes, length, length);
            struct ibv_sge sge = { (uintptr_t)bytes, length, 0 };
            struct ibv_send_wr write = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                .send_flags = IBV_SEND_INLINE, .wr.rdma = { theirs.address + SLOT, theirs.rkey } }, *bad;
            struct ibv_send_wr send = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED };
            write.next = &send;
            posted(ibv_post_send(qps[0], &write, &bad));
            memset(bytes, 0, sizeof bytes);
            success(send_cq, "inline");
        } else {
            success(receive_cq, "inline");
            for (int i = 0; i < 2; i++) {
                check(slot(i), length, length, i ? "inline WRITE" : "inline SEND");
                untouched(i, length);
            }
        }
        barrier();
    }
    return 2 * (INLINE_WANTED + 1);
}

/* What is wrong with a request, and what both ends may be told. */
#define ONE(status) (1u << IBV_WC_##status)
static const struct refusal {
    const char *what;
    enum ibv_wr_opcode opcode;
    int rights; /* that the server's queue pair grants */
    bool wrong_key, bare_key;
    uint64_t offset;
    uint32_t length;
    unsigned at_client, at_server;
} refusals[] = {
    { "WRITE by a wrong key", IBV_WR_RDMA_WRITE, ALL_RIGHTS, true, false, 0, 4096, ONE(REM_ACCESS_ERR), ONE(WR_FLUSH_ERR) },
    { "READ by a wrong key", IBV_WR_RDMA_READ, ALL_RIGHTS, true, false, 0, 4096, ONE(REM_ACCESS_ERR), ONE(WR_FLUSH_ERR) },
    { "atomic by a wrong key", IBV_WR_ATOMIC_FETCH_AND_ADD, ALL_RIGHTS, true, false, 0, 8, ONE(REM_ACCESS_ERR), ONE(WR_FLUSH_ERR) },
    { "WRITE past the end", IBV_WR_RDMA_WRITE, ALL_RIGHTS, false, false, BYTES - 4095, 4096, ONE(REM_ACCESS_ERR), ONE(WR_FLUSH_ERR) },
    { "READ past the end", IBV_WR_RDMA_READ, ALL_RIGHTS, false, false, BYTES - 4095, 4096, ONE(REM_ACCESS_ERR), ONE(WR_FLUSH_ERR) },
    { "WRITE before the begin", IBV_WR_RDMA_WRITE, ALL_RIGHTS, false, false, -1ull, 4096, ONE(REM_ACCESS_ERR), ONE(WR_FLUSH_ERR) },
    { "WRITE to a region that does not grant it", IBV_WR_RDMA_WRITE, ALL_RIGHTS, false, true, 0, 64, ONE(REM_ACCESS_ERR), ONE(WR_FLUSH_ERR) },
    { "READ of a region that does not grant it", IBV_WR_RDMA_READ, ALL_RIGHTS, false, true, 0, 64, ONE(REM_ACCESS_ERR), ONE(WR_FLUSH_ERR) },
    { "atomic on a region that does not grant it", IBV_WR_ATOMIC_FETCH_AND_ADD, ALL_RIGHTS, false, true, 0, 8, ONE(REM_ACCESS_ERR), ONE(WR_FLUSH_ERR) },
    { "WRITE to a queue pair that does not grant it", IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_READ, false, false, 0, 64, ONE(REM_INV_REQ_ERR), ONE(WR_FLUSH_ERR) },
    { "READ from a queue pair that does not grant it", IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_WRITE, false, false, 0, 64, ONE(REM_INV_REQ_ERR), ONE(WR_FLUSH_ERR) },
    { "atomic on a queue pair that does not grant it", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_WRITE, false, false, 0, 8, ONE(REM_INV_REQ_ERR), ONE(WR_FLUSH_ERR) },
    { "atomic that is not aligned", IBV_WR_ATOMIC_FETCH_AND_ADD, ALL_RIGHTS, false, false, 4, 8, ONE(REM_INV_REQ_ERR) | ONE(REM_ACCESS_ERR), ONE(WR_FLUSH_ERR) },
    /* Invalid request, and a local length error (IBTA 9.9.3); rxe says operational errors at both
     * ends. */
    { "SEND longer than the receive", IBV_WR_SEND, ALL_RIGHTS, false, false, 0, 5000, ONE(REM_INV_REQ_ERR) | ONE(REM_OP_ERR), ONE(LOC_LEN_ERR) | ONE(LOC_QP_OP_ERR) },
};

static int refused(void)
{
    int done = 0;
    for (size_t r = 0; r < sizeof refusals / sizeof *refusals; r++, done++) {
        const struct refusal *of = &refusals[r];
        create(IBV_QPT_RC, client ? 0 : of->rights, 0);
        memset(buffer, UNTOUCHED, BYTES);
        if (!client)
            receive(0, 0, 1000);
        connect_all();
        uint8_t local = false;
        if (client) {
            memset(slot(1), 0x11, SLOT);
            struct ibv_sge sge = { (uintptr_t)slot(1), of->length, mr->lkey };
            uint32_t key = of->wrong_key ? theirs.rkey ^ 0x5a5a5a : of->bare_key ? theirs.bare_rkey : theirs.rkey;
            struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = of->opcode,
                .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { theirs.address + of->offset, key } }, *bad;
            if (of->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
                wr.wr.atomic.remote_addr = theirs.address + of->offset;
                wr.wr.atomic.compare_add = 1;
                wr.wr.atomic.rkey = key;
            }
            int error = ibv_post_send(qps[0], &wr, &bad);
            /* rxe itself does not take an atomic that is not aligned. */
            local = error == EINVAL && of->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD && of->offset % 8;
            CHECK(error == 0 || local, "%s: ibv_post_send: %s", of->what, strerror(error));
            wr.wr_id = 2;
            posted(local ? 0 : ibv_post_send(qps[0], &wr, &bad));
            for (uint64_t id = 1; id <= 2 && !local; id++) {
                struct ibv_wc wc = completion(send_cq, of->what);
                unsigned allowed = id == 1 ? of->at_client : ONE(WR_FLUSH_ERR);
                CHECK(wc.wr_id == id && allowed >> wc.status & 1, "%s: request %d: %s", of->what, (int)wc.wr_id,
                      ibv_wc_status_str(wc.status));
            }
            for (uint32_t i = 0; i < of->length; i++)
                CHECK(slot(1)[i] == 0x11, "%s: byte %u of the request's memory changed", of->what, i);
        }
        if (client)
            tell(&local, 1);
        else
            hear(&local, 1);
        if (!client) {
            if (!local) {
                struct ibv_wc wc = completion(receive_cq, of->what);
                CHECK(of->at_server >> wc.status & 1, "%s: the receive: %s", of->what, ibv_wc_status_str(wc.status));
            }
            /* A message that is too long may have filled its receive. */
            for (size_t i = of->opcode == IBV_WR_SEND ? 1000 : 0; i < BYTES; i++)
                CHECK(buffer[i] == UNTOUCHED, "%s: byte %zu changed", of->what, i);
        }
        barrier();
        destroy_all();
    }
    return done;
}

static void create_extended(void)
{
    struct ibv_qp_init_attr_ex init = { .send_cq = send_cq, .recv_cq = receive_cq, .qp_type = IBV_QPT_RC, .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_WRITE,
        .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
    SETUP(qps[0] = ibv_create_qp_ex(context, &init), "ibv_create_qp_ex: %m");
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = client ? 0 : ALL_RIGHTS };
    int error = ibv_modify_qp(qps[0], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    SETUP(error == 0, "to INIT: %s", strerror(error));
    mine.qpns[0] = qps[0]->qp_num;
    mine.address = (uintptr_t)buffer;
    mine.rkey = mr->rkey;
    mine.bare_rkey = bare->rkey;
}

/* A WRITE, and an ATOMIC_WRITE behind it. */
static void write_behind(uint64_t id, uint32_t length, uint32_t key)
{
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(qps[0]);
    fill(slot(1), length, id);
    ibv_wr_start(qp);
    qp->wr_flags = IBV_SEND_SIGNALED;
    qp->wr_id = id;
    ibv_wr_rdma_write(qp, theirs.rkey, theirs.address);
    ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)slot(1), length);
    qp->wr_id = id + 1;
    ibv_wr_atomic_write(qp, key, theirs.address + length, &id);
    posted(ibv_wr_complete(qp));
}

static int atomic_writes(void)
{
    enum { ROUNDS = 50 };
    create_extended();
    connect_all();
    for (uint64_t id = 1; id <= 2 * ROUNDS; id += 2) {
        uint32_t length = 8 * id * id;
        if (client) {
            write_behind(id, length, theirs.rkey);
            success(send_cq, "WRITE");
            success(send_cq, "ATOMIC_WRITE");
        }
        barrier();
        if (!client) {
            check(slot(0), length, id, "WRITE");
            CHECK(memcmp(slot(0) + length, &id, 8) == 0, "ATOMIC_WRITE behind %u bytes: wrong data", length);
        }
        barrier();
    }
    if (client) {
        write_behind(1, 8, theirs.bare_rkey);
        success(send_cq, "WRITE");
        struct ibv_wc wc = completion(send_cq, "ATOMIC_WRITE");
        CHECK(wc.status == IBV_WC_REM_ACCESS_ERR, "ATOMIC_WRITE to a region that does not grant it: %s",
              ibv_wc_status_str(wc.status));
    }
    barrier();
    destroy_all();
    return 2 * ROUNDS + 2;
}

/* A UD queue pair in RTS, and how the peer's is reached. */
static struct ibv_ah *datagrams(void)
{
    struct ibv_qp_init_attr init = { .send_cq = send_cq, .recv_cq = receive_cq, .qp_type = IBV_QPT_UD,
        .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
    SETUP(qps[0] = ibv_create_qp(pd, &init), "ibv_create_qp: %m");
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    SETUP(ibv_modify_qp(qps[0], &attr, mask) == 0, "to INIT");
    attr.qp_state = IBV_QPS_RTR;
    SETUP(ibv_modify_qp(qps[0], &attr, IBV_QP_STATE) == 0, "to RTR");
    attr.qp_state = IBV_QPS_RTS;
    SETUP(ibv_modify_qp(qps[0], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0, "to RTS");
    mine.qpns[0] = qps[0]->qp_num;
    mine.address = (uintptr_t)buffer;
    mine.rkey = mr->rkey;
    tell(&mine, sizeof mine);
    hear(&theirs, sizeof theirs);
    struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1,
        .grh = { .dgid = theirs.gid, .sgid_index = gid_index, .hop_limit = 64 } };
    struct ibv_ah *to = ibv_create_ah(pd, &ah);
    SETUP(to, "ibv_create_ah: %m");
    return to;
}

/* Posts a Write-Record over memory that the peer has registered, and waits for its completion. */
static void record(struct ibv_ah *to, int id, uint32_t flags, enum ibv_wc_status status)
{
    struct ibv_sge sge = { (uintptr_t)slot(0), 10000, mr->lkey };
    struct airdma_record_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .ah = to,
        .remote_qpn = theirs.qpns[0], .remote_qkey = QKEY, .remote_addr = theirs.address + 2 * SLOT,
        .rkey = theirs.rkey, .flags = flags };
    int error = airdma_record_post(qps[0], &wr);
    CHECK(error == 0, "airdma_record_post: %s", strerror(error));
    struct ibv_wc wc = completion(send_cq, "record");
    CHECK(wc.status == status, "record %d: %s", id, ibv_wc_status_str(wc.status));
}

/* Without them at the client's end, the datagrams alone. */
static int records(void)
{
    enum { RECORDS = 20, GRH = 40, LENGTH = 64 };
    struct ibv_ah *to = datagrams();
    bool sends_records = client && airdma_record_post;
    int sent = 0;
    for (int round = 0; round < 2; round++) {
        if (!client)
            receive(0, 1, GRH + LENGTH);
        barrier();
        if (client) {
            fill(slot(0), LENGTH, round);
            if (sends_records && round == 0) {
                for (; sent < RECORDS; sent++)
                    record(to, sent, 0, IBV_WC_SUCCESS);
                CHECK(airdma_rd_enable(qps[0], NULL) == 0, "airdma_rd_enable: %m");
                record(to, sent++, AIRDMA_RECORD_RELIABLE, IBV_WC_RETRY_EXC_ERR);
            }
            struct ibv_sge sge = { (uintptr_t)slot(0), LENGTH, mr->lkey };
            struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
                .wr.ud = { to, theirs.qpns[0], QKEY } }, *bad;
            posted(ibv_post_send(qps[0], &wr, &bad));
            success(send_cq, "datagram");
        } else {
            struct ibv_wc wc = success(receive_cq, "receive");
            CHECK(wc.byte_len == GRH + LENGTH, "%u bytes", wc.byte_len);
            check(slot(1) + GRH, LENGTH, round, "datagram");
            for (int other = 2; other < SLOTS; other++)
                untouched(other, 0);
            struct ibv_wc more;
            CHECK(ibv_poll_cq(receive_cq, 1, &more) == 0, "something else arrived: opcode %d", more.opcode);
        }
        barrier();
    }
    CHECK(ibv_destroy_ah(to) == 0, "ibv_destroy_ah: %m");
    CHECK(ibv_destroy_qp(qps[0]) == 0, "ibv_destroy_qp: %m");
    return sent + 2;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; int (*run)(void); } modes[] = { { "uc", unreliable }, { "shared", shared },
        { "many", many }, { "patient", patient }, { "inline", inlined }, { "refusals", refused },
        { "records", records }, { "atomic", atomic_writes } };
    for (int option; (option = getopt(argc, argv, "d:g:")) != -1;)
        switch (option) {
        case 'd': device = optarg; break;
        case 'g': gid_index = atoi(optarg); break;
        default: return 2;
        }
    client = optind + 1 < argc;
    for (size_t i = 0; i < sizeof modes / sizeof *modes && optind < argc; i++)
        if (strcmp(modes[i].name, argv[optind]) == 0) {
            open_device();
            connect_control(client ? argv[optind + 1] : NULL);
            printf("%d good\n", modes[i].run());
            return 0;
        }
    fprintf(stderr, "usage: " NAME " [-d DEVICE] [-g GID_INDEX] uc|shared|many|patient|inline|refusals|records|atomic [HOST]\n");
    return 2;
}
