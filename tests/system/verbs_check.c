/*
 * Moves patterned data between two hosts with every operation the verbs offer on RC (or datagrams
 * on UD), checks every byte at both ends, and checks that no byte beside the granted ranges
 * changed. The stock ping-pongs look at one byte a page, perftest at none: this is what says "data
 * intact" in the system tests.
 *
 *   verbs_check [-d DEVICE] [-g GID_INDEX] [-m PATH_MTU] [-r ROUNDS] [-w SECONDS] [-uel]   server
 *   verbs_check [the same options] HOST                                     client
 *
 * -w: how long a completion may take, 40 s if not given. -u: UD. -e: wrong key, wrong bounds,
 * missing permission, no receive: each must fail as the specification says. -l: the longest
 * message, 2^31 - 1 bytes, each way; the most elements, 32; the most inline data, 512 bytes.
 * Exit status: 0 all good, 1 a check failed, 2 it could not be set up.
 */
#define NAME "verbs_check"
#include "verbs_pair.h"
#include <endian.h>
#include <sys/mman.h>

#define AREA (8u << 20)
#define GUARD 4096u
#define GUARD_BYTE 0xa5
#define MESSAGES_MAX 48
#define SEND_DEPTH 64
#define UD_QKEY 0x11111111
#define GRH_BYTES 40
#define ELEMENTS 32
#define INLINE_BYTES 512
#define LONGEST 0x7fffffffu
#define REPEATED (16u << 20)

/* The registered buffer: a guard, then three areas and the atomic's word, each with a guard behind
 * it. */
enum area { SOURCE, TARGET, RECEIVED, AREAS };
#define AREA_OFFSET(area) (GUARD + (size_t)(area) * (AREA + GUARD))
#define WORD_OFFSET AREA_OFFSET(AREAS)
#define BUFFER_BYTES (WORD_OFFSET + 8 * (1 + MESSAGES_MAX) + GUARD)

struct end { union ibv_gid gid; uint64_t address; uint32_t qpn, psn, rkey, read_only_rkey; };
struct step { uint64_t seed; uint32_t size, count, first_kind; };
enum fault { NONE, WRONG_KEY, WRONG_BOUNDS, NO_PERMISSION, NO_RECEIVE, FAULTS };

static const char *device;
static int gid_index = 0, rounds = 1, reads_max;
static enum ibv_mtu path_mtu = 0;
static bool datagrams, errors, limits;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *receive_cq;
static struct ibv_qp *qp;
static struct ibv_ah *ah;
static struct ibv_mr *mr, *read_only_mr;
static uint8_t *buffer;
static struct end mine, theirs;

static void check_untouched(size_t from, size_t to, const char *what)
{
    for (size_t i = from; i < to; i++)
        CHECK(buffer[i] == GUARD_BYTE, "%s: byte %zu of the buffer changed, nobody may write it", what, i);
}

static uint8_t *area(enum area a, size_t offset) { return buffer + AREA_OFFSET(a) + offset; }
static uint64_t *results(void) { return (uint64_t *)(buffer + WORD_OFFSET) + 1; }

/* ---- queue pairs ---- */

static void open_device(void)
{
    context = open_device_named(device);
    struct ibv_port_attr port;
    SETUP(ibv_query_port(context, 1, &port) == 0, "ibv_query_port");
    if (!path_mtu)
        path_mtu = port.active_mtu;
    struct ibv_device_attr limit;
    SETUP(ibv_query_device(context, &limit) == 0, "ibv_query_device");
    reads_max = limit.max_qp_rd_atom < 16 ? limit.max_qp_rd_atom : 16;
    SETUP(ibv_query_gid(context, 1, gid_index, &mine.gid) == 0, "ibv_query_gid(%d)", gid_index);
    SETUP(pd = ibv_alloc_pd(context), "ibv_alloc_pd: %m");
    SETUP(posix_memalign((void **)&buffer, 4096, BUFFER_BYTES) == 0, "no memory");
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    SETUP(mr = ibv_reg_mr(pd, buffer, BUFFER_BYTES, all), "ibv_reg_mr: %m");
    SETUP(read_only_mr = ibv_reg_mr(pd, buffer, BUFFER_BYTES, IBV_ACCESS_REMOTE_READ), "ibv_reg_mr: %m");
    SETUP(send_cq = ibv_create_cq(context, 2 * SEND_DEPTH, NULL, NULL, 0), "ibv_create_cq: %m");
    SETUP(receive_cq = ibv_create_cq(context, 2 * SEND_DEPTH, NULL, NULL, 0), "ibv_create_cq: %m");
}

static void create_qp(void)
{
    struct ibv_qp_init_attr init = {
        .send_cq = send_cq, .recv_cq = receive_cq, .qp_type = datagrams ? IBV_QPT_UD : IBV_QPT_RC,
        .cap = { .max_send_wr = SEND_DEPTH, .max_recv_wr = SEND_DEPTH, .max_send_sge = limits ? ELEMENTS : 2,
                 .max_recv_sge = limits ? ELEMENTS : 2, .max_inline_data = limits ? INLINE_BYTES : 64 },
    };
    SETUP(qp = ibv_create_qp(pd, &init), "ibv_create_qp: %m");
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = UD_QKEY,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    int error = ibv_modify_qp(qp, &attr, mask);
    SETUP(error == 0, "to INIT: %s", strerror(error));
    mine.qpn = qp->qp_num;
    mine.psn = 0xfffff0; /* so that the sequence numbers wrap early */
    mine.address = (uintptr_t)buffer;
    mine.rkey = mr->rkey;
    mine.read_only_rkey = read_only_mr->rkey;
}

static void connect_qp(void)
{
    tell(&mine, sizeof mine);
    hear(&theirs, sizeof theirs);
    struct ibv_ah_attr path = { .is_global = 1, .port_num = 1,
        .grh = { .dgid = theirs.gid, .sgid_index = gid_index, .hop_limit = 64 } };
    struct ibv_qp_attr to_rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = path_mtu, .dest_qp_num = theirs.qpn,
        .rq_psn = theirs.psn, .max_dest_rd_atomic = reads_max, .min_rnr_timer = 12, .ah_attr = path };
    int rc = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int error = ibv_modify_qp(qp, &to_rtr, IBV_QP_STATE | (datagrams ? 0 : rc));
    SETUP(error == 0, "to RTR: %s", strerror(error));
    struct ibv_qp_attr to_rts = { .qp_state = IBV_QPS_RTS, .sq_psn = mine.psn, .timeout = 14, .retry_cnt = 7,
        .rnr_retry = errors ? 0 : 7, .max_rd_atomic = reads_max };
    rc = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    error = ibv_modify_qp(qp, &to_rts, IBV_QP_STATE | IBV_QP_SQ_PSN | (datagrams ? 0 : rc));
    SETUP(error == 0, "to RTS: %s", strerror(error));
    if (datagrams)
        SETUP(ah = ibv_create_ah(pd, &path), "ibv_create_ah: %m");
    barrier();
}

static void post_send(struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    int error = ibv_post_send(qp, wr, &bad);
    CHECK(error == 0, "ibv_post_send: %s", strerror(error));
}

static void post_receive(uint64_t id, size_t offset, uint32_t length)
{
    struct ibv_sge sge = { (uintptr_t)area(RECEIVED, offset), length, mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = length ? 1 : 0 }, *bad;
    int error = ibv_post_recv(qp, &wr, &bad);
    CHECK(error == 0, "ibv_post_recv: %s", strerror(error));
}

/* ---- RC: one step is `count` messages of `size` bytes, the operations taking turns, all posted at
 * once ---- */

enum kind { SEND, WRITE, READ, WRITE_IMM, ADD, SEND_IMM, SWAP, KINDS };

static enum kind kind_of(const struct step *step, uint32_t i) { return (step->first_kind + i) % KINDS; }
static bool wants_receive(enum kind k) { return k == SEND || k == SEND_IMM || k == WRITE_IMM; }
static uint64_t seed_of(const struct step *step, uint32_t i, bool from_client) { return step->seed + 2 * i + from_client; }

static void prepare(const struct step *step)
{
    memset(buffer, GUARD_BYTE, BUFFER_BYTES);
    *(uint64_t *)(buffer + WORD_OFFSET) = step->seed;
    for (uint32_t i = 0; i < step->count; i++) {
        size_t offset = (size_t)i * step->size;
        fill(area(SOURCE, offset), step->size, seed_of(step, i, client));
        if (!client && wants_receive(kind_of(step, i)))
            post_receive(i, offset, kind_of(step, i) == WRITE_IMM ? 0 : step->size);
    }
}

static void post(const struct step *step, uint32_t i)
{
    static const enum ibv_wr_opcode opcodes[KINDS] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
        IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_IMM, IBV_WR_ATOMIC_CMP_AND_SWP };
    enum kind kind = kind_of(step, i);
    bool atomic = kind == ADD || kind == SWAP;
    size_t offset = (size_t)i * step->size;
    uint8_t *local = atomic ? (uint8_t *)&results()[i] : area(kind == READ ? TARGET : SOURCE, offset);
    uint32_t size = atomic ? 8 : step->size, first = !atomic && size >= 3 ? size / 3 : size;
    struct ibv_sge sges[2] = { { (uintptr_t)local, first, mr->lkey }, { (uintptr_t)local + first, size - first, mr->lkey } };
    bool inlined = kind != READ && !atomic && step->size <= 64 && i % 2;
    bool last = i + 1 == step->count;
    struct ibv_send_wr wr = { .wr_id = i, .sg_list = sges, .num_sge = size == 0 ? 0 : first == size ? 1 : 2,
        .opcode = opcodes[kind], .imm_data = htonl(0x1000 + i),
        /* Plain writes report nothing: a later request retires them. */
        .send_flags = (kind == WRITE && !last ? 0 : IBV_SEND_SIGNALED) | (inlined ? IBV_SEND_INLINE : 0) };
    if (atomic) {
        wr.wr.atomic.remote_addr = theirs.address + WORD_OFFSET;
        wr.wr.atomic.rkey = theirs.rkey;
        /* Each swap expects the value that the operations before it leave, and adds 1 as well. */
        uint64_t before = step->seed;
        for (uint32_t j = 0; j < i; j++)
            before += kind_of(step, j) == ADD || kind_of(step, j) == SWAP;
        wr.wr.atomic.compare_add = kind == ADD ? 1 : before;
        wr.wr.atomic.swap = before + 1;
    } else {
        wr.wr.rdma.remote_addr = theirs.address + AREA_OFFSET(kind == READ ? SOURCE : TARGET) + offset;
        wr.wr.rdma.rkey = theirs.rkey;
    }
    post_send(&wr);
}

static void client_step(const struct step *step)
{
    for (uint32_t i = 0; i < step->count; i++)
        post(step, i);
    for (uint32_t i = 0; i < step->count; i++) {
        if (kind_of(step, i) == WRITE && i + 1 != step->count)
            continue;
        struct ibv_wc wc = completion(send_cq, "request");
        CHECK(wc.status == IBV_WC_SUCCESS, "request %u of %u bytes: %s", i, step->size, ibv_wc_status_str(wc.status));
        CHECK(wc.wr_id == i, "completion of request %u came when %u was due", (unsigned)wc.wr_id, i);
    }
    uint64_t word = step->seed;
    for (uint32_t i = 0; i < step->count; i++) {
        enum kind kind = kind_of(step, i);
        if (kind == READ)
            check(area(TARGET, (size_t)i * step->size), step->size, seed_of(step, i, false), "READ");
        if (kind == ADD || kind == SWAP) {
            CHECK(results()[i] == word, "atomic %u returned %lu, not %lu: lost or applied twice", i, results()[i], word);
            word++;
        }
    }
}

static void server_step(const struct step *step)
{
    uint64_t word = step->seed;
    for (uint32_t i = 0; i < step->count; i++) {
        enum kind kind = kind_of(step, i);
        size_t offset = (size_t)i * step->size;
        word += kind == ADD || kind == SWAP;
        if (wants_receive(kind)) {
            struct ibv_wc wc = completion(receive_cq, "receive");
            CHECK(wc.status == IBV_WC_SUCCESS, "receive %u: %s", i, ibv_wc_status_str(wc.status));
            CHECK(wc.wr_id == i, "receive %u completed when %u was due", (unsigned)wc.wr_id, i);
            CHECK(wc.byte_len == step->size, "receive %u says %u bytes, not %u", i, wc.byte_len, step->size);
            bool imm = kind != SEND;
            CHECK(!!(wc.wc_flags & IBV_WC_WITH_IMM) == imm, "receive %u: immediate data %d", i, !imm);
            CHECK(!imm || wc.imm_data == htonl(0x1000 + i), "receive %u: wrong immediate data", i);
        }
        if (kind == SEND || kind == SEND_IMM)
            check(area(RECEIVED, offset), step->size, seed_of(step, i, true), "SEND");
        else
            check_untouched(AREA_OFFSET(RECEIVED) + offset, AREA_OFFSET(RECEIVED) + offset + step->size, "receive area");
        if (kind == WRITE || kind == WRITE_IMM)
            check(area(TARGET, offset), step->size, seed_of(step, i, true), "WRITE");
        else
            check_untouched(AREA_OFFSET(TARGET) + offset, AREA_OFFSET(TARGET) + offset + step->size, "target area");
    }
    CHECK(*(uint64_t *)(buffer + WORD_OFFSET) == word, "the atomics' word is wrong");
    for (int a = SOURCE; a < AREAS; a++)
        check_untouched(AREA_OFFSET(a) + (size_t)step->count * step->size, AREA_OFFSET(a + 1), "guard");
    check_untouched(0, GUARD, "guard");
    check_untouched(WORD_OFFSET + 8, BUFFER_BYTES, "guard");
}

static void run_step(const struct step *step)
{
    prepare(step);
    barrier();
    if (client)
        client_step(step);
    barrier(); /* all requests are complete: what they wrote must be there */
    if (!client)
        server_step(step);
    barrier();
}

static void run_reliable(void)
{
    static const uint32_t sizes[] = { 0, 1, 2, 3, 7, 64, 65, 255, 1023, 1024, 1025, 4095, 4096, 4097, 10000, 65536,
        131071, 1 << 20, AREA };
    uint64_t messages = 0;
    create_qp();
    connect_qp();
    for (int round = 0; round < rounds; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            uint32_t fit = sizes[i] ? AREA / sizes[i] : MESSAGES_MAX;
            uint32_t count = fit < MESSAGES_MAX ? fit : MESSAGES_MAX;
            /* A step of few messages is run again until every operation has had its turn. */
            for (uint32_t first = 0; first < KINDS; first += count) {
                struct step step = { .seed = 100000 * (round + 1) + 100 * (i * KINDS + first), .size = sizes[i],
                    .count = count, .first_kind = first };
                run_step(&step);
                messages += count;
            }
        }
    printf("%lu messages of 0 to %u bytes intact\n", messages, AREA);
}

/* ---- UD ---- */

static void run_datagrams(void)
{
    uint32_t largest = 128u << path_mtu, count = 0;
    create_qp();
    connect_qp();
    for (int round = 0; round < rounds * 20; round++) {
        uint32_t size = round == 0 ? 0 : round % 20 == 19 ? largest : round * 997u % largest;
        struct step step = { .seed = round * 1000, .size = size, .count = 16 };
        memset(buffer, GUARD_BYTE, BUFFER_BYTES);
        for (uint32_t i = 0; i < step.count && !client; i++)
            post_receive(i, (size_t)i * 8192, GRH_BYTES + size);
        barrier();
        for (uint32_t i = 0; i < step.count && client; i++) {
            fill(area(SOURCE, (size_t)i * 8192), size, seed_of(&step, i, true));
            struct ibv_sge sge = { (uintptr_t)area(SOURCE, (size_t)i * 8192), size, mr->lkey };
            struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = size ? 1 : 0, .opcode = IBV_WR_SEND_WITH_IMM,
                .imm_data = htonl(i), .send_flags = IBV_SEND_SIGNALED,
                .wr.ud = { .ah = ah, .remote_qpn = theirs.qpn, .remote_qkey = UD_QKEY } };
            post_send(&wr);
        }
        for (uint32_t i = 0; i < step.count; i++) {
            struct ibv_wc wc = completion(client ? send_cq : receive_cq, "datagram");
            CHECK(wc.status == IBV_WC_SUCCESS, "datagram %u: %s", i, ibv_wc_status_str(wc.status));
            if (client)
                continue;
            uint8_t *grh = area(RECEIVED, (size_t)i * 8192);
            bool ipv4 = memcmp(theirs.gid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12) == 0;
            CHECK(wc.wr_id == i && wc.imm_data == htonl(i), "datagram %u out of order", i);
            CHECK(wc.byte_len == GRH_BYTES + size, "datagram of %u bytes: byte_len %u", size, wc.byte_len);
            CHECK(wc.wc_flags & IBV_WC_GRH, "no GRH flag");
            CHECK(wc.src_qp == theirs.qpn, "source queue pair %x, not %x", wc.src_qp, theirs.qpn);
            const void *source = ipv4 ? grh + 20 + 12 : grh + 8;
            CHECK(memcmp(source, ipv4 ? theirs.gid.raw + 12 : theirs.gid.raw, ipv4 ? 4 : 16) == 0, "wrong source in the GRH");
            check(grh + GRH_BYTES, size, seed_of(&step, i, true), "datagram");
            size_t end = AREA_OFFSET(RECEIVED) + (size_t)i * 8192;
            check_untouched(end + GRH_BYTES + size, end + 8192, "behind the datagram");
        }
        count += step.count;
        barrier();
    }
    printf("%u datagrams of 0 to %u bytes intact\n", count, largest);
}

/* ---- errors: a fresh queue pair for each, since each ends one ---- */

static void provoke(enum fault fault)
{
    static const enum ibv_wc_status expected[FAULTS] = { [WRONG_KEY] = IBV_WC_REM_ACCESS_ERR,
        [WRONG_BOUNDS] = IBV_WC_REM_ACCESS_ERR, [NO_PERMISSION] = IBV_WC_REM_ACCESS_ERR,
        [NO_RECEIVE] = IBV_WC_RNR_RETRY_EXC_ERR };
    struct ibv_sge sge = { (uintptr_t)area(SOURCE, 0), 4096, mr->lkey };
    struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
        .opcode = fault == NO_RECEIVE ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
        .wr.rdma = { theirs.address, fault == WRONG_KEY ? theirs.rkey ^ 0x5a5a5a
                                     : fault == NO_PERMISSION ? theirs.read_only_rkey : theirs.rkey } };
    if (fault == WRONG_BOUNDS)
        wr.wr.rdma.remote_addr += BUFFER_BYTES - 4095;
    post_send(&wr);
    wr.wr_id = 2;
    post_send(&wr);
    struct ibv_wc wc = completion(send_cq, "faulty request");
    CHECK(wc.wr_id == 1 && wc.status == expected[fault], "fault %d: %s, expected %s", fault, ibv_wc_status_str(wc.status),
          ibv_wc_status_str(expected[fault]));
    wc = completion(send_cq, "request behind the faulty one");
    CHECK(wc.wr_id == 2 && wc.status == IBV_WC_WR_FLUSH_ERR, "fault %d: %s behind it, expected a flush", fault,
          ibv_wc_status_str(wc.status));
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR, "fault %d: state %d", fault,
          attr.qp_state);
}

static void run_errors(void)
{
    for (enum fault fault = WRONG_KEY; fault < FAULTS; fault++) {
        memset(buffer, GUARD_BYTE, BUFFER_BYTES);
        if (client)
            fill(area(SOURCE, 0), 4096, fault);
        create_qp();
        connect_qp();
        if (client)
            provoke(fault);
        barrier();
        if (!client)
            check_untouched(0, BUFFER_BYTES, "a refused request");
        CHECK(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp: %m");
        barrier();
    }
    printf("%d faults refused\n", FAULTS - 1);
}

/* ---- the limits ---- */

/* A list of 32 elements of odd lengths, which gathers in one order and scatters in another. */
static uint32_t elements(struct ibv_sge *list, uint8_t *base)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        uint32_t at = base == area(SOURCE, 0) ? i : ELEMENTS - 1 - i;
        list[i] = (struct ibv_sge){ (uintptr_t)base + at * 4096, 1 + i * 37, mr->lkey };
        total += list[i].length;
    }
    return total;
}

static void many_elements(void)
{
    struct ibv_sge list[ELEMENTS];
    struct ibv_recv_wr receive = { .sg_list = list, .num_sge = ELEMENTS }, *bad;
    if (!client) {
        elements(list, area(RECEIVED, 0));
        CHECK(ibv_post_recv(qp, &receive, &bad) == 0, "a receive of %d elements", ELEMENTS);
    }
    barrier();
    if (client) {
        fill(area(SOURCE, 0), ELEMENTS * 4096, 77);
        uint32_t total = elements(list, area(SOURCE, 0));
        struct ibv_send_wr wr = { .sg_list = list, .num_sge = ELEMENTS, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
        post_send(&wr);
        struct ibv_wc wc = completion(send_cq, "many elements");
        CHECK(wc.status == IBV_WC_SUCCESS, "%d elements, %u bytes: %s", ELEMENTS, total, ibv_wc_status_str(wc.status));
    } else {
        CHECK(completion(receive_cq, "many elements").status == IBV_WC_SUCCESS, "receiving %d elements", ELEMENTS);
        fill(area(SOURCE, 0), ELEMENTS * 4096, 77);
        for (uint32_t i = 0; i < ELEMENTS; i++)
            CHECK(!memcmp(area(SOURCE, i * 4096), area(RECEIVED, (ELEMENTS - 1 - i) * 4096), 1 + i * 37), "element %u", i);
    }
    barrier();
}

static void much_inline(void)
{
    if (!client)
        post_receive(1, 0, INLINE_BYTES);
    barrier();
    if (client) {
        uint8_t bytes[INLINE_BYTES]; /* not registered, and gone when the call returns */
        fill(bytes, sizeof bytes, 78);
        struct ibv_sge sge = { (uintptr_t)bytes, sizeof bytes, 0 };
        struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
            .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
        post_send(&wr);
        memset(bytes, 0, sizeof bytes);
        CHECK(completion(send_cq, "inline").status == IBV_WC_SUCCESS, "inline send");
    } else {
        CHECK(completion(receive_cq, "inline").status == IBV_WC_SUCCESS, "inline receive");
        check(area(RECEIVED, 0), INLINE_BYTES, 78, "inline data");
    }
    barrier();
}

/* 2 GiB of addresses over 16 MiB of memory. */
static uint8_t *repeated(void)
{
    int fd = memfd_create("verbs_check", 0);
    SETUP(fd >= 0 && ftruncate(fd, REPEATED) == 0, "memfd: %m");
    uint8_t *base = mmap(NULL, (size_t)LONGEST + 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    SETUP(base != MAP_FAILED, "2 GiB of addresses: %m");
    for (size_t at = 0; at <= LONGEST; at += REPEATED)
        SETUP(mmap(base + at, REPEATED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED, "mmap: %m");
    return base;
}

static void longest_message(enum ibv_wr_opcode opcode)
{
    uint8_t *base = repeated();
    struct ibv_mr *whole = ibv_reg_mr(pd, base, LONGEST,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    SETUP(whole, "ibv_reg_mr of 2^31 - 1 bytes: %m");
    bool source = client == (opcode == IBV_WR_RDMA_WRITE);
    if (source)
        fill(base, REPEATED, 79);
    struct { uint64_t address; uint32_t rkey; } here = { (uintptr_t)base, whole->rkey }, there;
    tell(&here, sizeof here);
    hear(&there, sizeof there);
    if (client) {
        struct ibv_sge sge = { (uintptr_t)base, LONGEST, whole->lkey };
        struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
            .wr.rdma = { there.address, there.rkey } };
        post_send(&wr);
        struct ibv_wc wc = completion(send_cq, "the longest message");
        CHECK(wc.status == IBV_WC_SUCCESS, "2^31 - 1 bytes: %s", ibv_wc_status_str(wc.status));
        CHECK(opcode != IBV_WR_RDMA_READ || wc.byte_len == LONGEST, "%u bytes read", wc.byte_len);
    }
    barrier();
    if (!source)
        check(base, REPEATED, 79, "the longest message");
    barrier();
    CHECK(ibv_dereg_mr(whole) == 0 && munmap(base, (size_t)LONGEST + 1) == 0, "giving 2 GiB back");
}

static void run_limits(void)
{
    create_qp();
    connect_qp();
    many_elements();
    much_inline();
    longest_message(IBV_WR_RDMA_WRITE);
    longest_message(IBV_WR_RDMA_READ);
    printf("limits reached\n");
}

int main(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "d:g:m:r:w:uel")) != -1)
        switch (option) {
        case 'd': device = optarg; break;
        case 'g': gid_index = atoi(optarg); break;
        case 'm': path_mtu = __builtin_ctz(atoi(optarg) / 128); break;
        case 'r': rounds = atoi(optarg); break;
        case 'w': patience_s = atoi(optarg); break;
        case 'u': datagrams = true; break;
        case 'e': errors = true; break;
        case 'l': limits = true; break;
        default: return 2;
        }
    client = optind < argc;
    open_device();
    connect_control(client ? argv[optind] : NULL);
    if (limits)
        run_limits();
    else if (errors)
        run_errors();
    else if (datagrams)
        run_datagrams();
    else
        run_reliable();
    return 0;
}
