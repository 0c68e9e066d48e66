/* Memory windows lend a part of a region to a peer, and take it back, without a new registration:
 * ibv_alloc_mw(3), ibv_bind_mw(3) for type 1; work requests for type 2, which only one peer can use
 * and can be told to give up. */
#include "loopback.h"

enum { BYTES = 4096, LENT = 256 };

static struct ibv_cq *cq;
static struct ibv_mr *mr, *source;

static struct ibv_send_wr write_to(void *address, uint32_t rkey)
{
    return (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)address, rkey } };
}

static void write_through(struct ibv_qp *qp, uint32_t rkey, size_t offset, const char *text)
{
    strcpy(source->addr, text);
    post_send(qp, write_to((char *)mr->addr + offset, rkey), part_of(source, source->addr, strlen(text) + 1));
    expect(cq, IBV_WC_RDMA_WRITE);
    CHECK(strcmp((char *)mr->addr + offset, text) == 0);
    printf("%s\n", text);
}

static void type_1(struct ibv_qp *owner, struct ibv_qp *peer)
{
    struct ibv_mw *window = ibv_alloc_mw(owner->pd, IBV_MW_TYPE_1);
    CHECK(window != NULL);
    struct ibv_mw_bind bind = {
        .wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
        .bind_info = { mr, (uintptr_t)mr->addr, LENT, IBV_ACCESS_REMOTE_WRITE },
    };
    CHECK(ibv_bind_mw(owner, window, &bind) == 0);
    expect(cq, IBV_WC_BIND_MW);
    write_through(peer, window->rkey, 0, "type 1: written through the window");

    /* Bound elsewhere it has another key, and the one before opens nothing. */
    uint32_t before = window->rkey;
    bind.bind_info.addr += LENT;
    CHECK(ibv_bind_mw(owner, window, &bind) == 0 && window->rkey != before);
    expect(cq, IBV_WC_BIND_MW);
    write_through(peer, window->rkey, LENT, "type 1: written behind it, after binding again");
    CHECK(ibv_dereg_mr(mr) == EBUSY);

    bind.bind_info.length = 0; /* bound to nothing */
    CHECK(ibv_bind_mw(owner, window, &bind) == 0);
    expect(cq, IBV_WC_BIND_MW);
    CHECK(ibv_dealloc_mw(window) == 0);
}

/* Types 2 are bound by a work request; the low eight bits of the key are ours to choose. */
static void bind_type_2(struct ibv_qp *owner, struct ibv_mw *window)
{
    struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
    wr.bind_mw.mw = window;
    wr.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    wr.bind_mw.bind_info =
        (struct ibv_mw_bind_info){ mr, (uintptr_t)mr->addr, LENT, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
    CHECK(ibv_post_send(owner, &wr, &bad) == 0);
    expect(cq, IBV_WC_BIND_MW);
    window->rkey = wr.bind_mw.rkey;
}

static void type_2(struct ibv_qp *owner, struct ibv_qp *peer)
{
    struct ibv_mw *window = ibv_alloc_mw(owner->pd, IBV_MW_TYPE_2);
    CHECK(window != NULL);
    bind_type_2(owner, window);
    write_through(peer, window->rkey, 0, "type 2: written through the window");

    struct ibv_send_wr take_back = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = window->rkey }, *bad;
    CHECK(ibv_post_send(owner, &take_back, &bad) == 0);
    expect(cq, IBV_WC_LOCAL_INV);
    printf("type 2: taken back by its owner\n");

    /* The peer can give it back together with a message. */
    bind_type_2(owner, window);
    post_receive(owner, 7, part_of(mr, (char *)mr->addr + BYTES / 2, LENT));
    post_send(peer, (struct ibv_send_wr){ .opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = window->rkey },
              part_of(source, source->addr, 8));
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = next_completion(cq);
        CHECK(wc.status == IBV_WC_SUCCESS);
        if (wc.opcode == IBV_WC_RECV)
            CHECK((wc.wc_flags & IBV_WC_WITH_INV) && wc.invalidated_rkey == window->rkey);
    }
    printf("type 2: given back by the peer, with a message\n");

    post_send(peer, write_to(mr->addr, window->rkey), part_of(source, source->addr, 8));
    expect_failure(cq, IBV_WC_REM_ACCESS_ERR);
    printf("type 2: its key opens nothing any more\n");
    CHECK(ibv_dealloc_mw(window) == 0);
}

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    char *memory = calloc(2, BYTES);
    /* The region itself need not be open to peers. */
    mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    source = ibv_reg_mr(pd, memory + BYTES, BYTES, IBV_ACCESS_LOCAL_WRITE);
    CHECK(pd && cq && mr && source);
    struct ibv_qp *owner = create_qp(pd, cq, IBV_QPT_RC, NULL), *peer = create_qp(pd, cq, IBV_QPT_RC, NULL);
    connect_pair(owner, peer);
    type_1(owner, peer);
    type_2(owner, peer);
    CHECK(ibv_destroy_qp(owner) == 0 && ibv_destroy_qp(peer) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(source) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    free(memory);
    return 0;
}
