/* Completion queues that turn out too small: ibv_resize_cq(3) in time, and what happens
 * otherwise. */
#include "loopback.h"

static char memory[64];

static void write_to_self(struct ibv_qp *qp, struct ibv_mr *mr, int count)
{
    for (int i = 0; i < count; i++) {
        struct ibv_send_wr wr = { .wr_id = i, .opcode = IBV_WR_RDMA_WRITE,
                                  .wr.rdma = { (uintptr_t)memory + 32, mr->rkey } };
        post_send(qp, wr, part_of(mr, memory, 8));
    }
}

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *small = ibv_create_cq(context, 4, NULL, NULL, 0), *other = ibv_create_cq(context, 64, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, ALL_ACCESS);
    CHECK(pd && small && other && mr);
    int before = small->cqe;
    printf("asked for 4 entries, got %d\n", before);
    CHECK(before < 16);

    struct ibv_qp *a = create_qp(pd, small, IBV_QPT_RC, NULL), *b = create_qp(pd, other, IBV_QPT_RC, NULL);
    connect_pair(a, b);
    write_to_self(a, mr, before);
    CHECK(ibv_resize_cq(small, 16) == 0 && small->cqe >= 16);
    write_to_self(a, mr, 16 - before);
    for (int i = 0; i < 16; i++)
        CHECK(expect(small, IBV_WC_RDMA_WRITE).wr_id == (uint64_t)(i < before ? i : i - before));
    printf("resized to %d: 16 completions in their order\n", small->cqe);

    write_to_self(a, mr, before);
    post_send(b, (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_READ, .wr.rdma = { (uintptr_t)memory, mr->rkey } },
              part_of(mr, memory + 32, 8));
    expect(other, IBV_WC_RDMA_READ);
    CHECK(ibv_resize_cq(small, 1) == EINVAL);
    printf("not to less than it holds\n");
    for (int i = 0; i < before; i++)
        expect(small, IBV_WC_RDMA_WRITE);

    /* More requests in flight than completions fit. */
    CHECK(ibv_resize_cq(small, 4) == 0 && small->cqe == before);
    write_to_self(a, mr, before + 1);
    struct ibv_async_event event = next_event(context);
    CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == small);
    printf("event: %s\n", ibv_event_type_str(event.event_type));
    ibv_ack_async_event(&event);
    struct ibv_wc wc;
    int count = 0, result;
    while ((result = ibv_poll_cq(small, 1, &wc)) == 1)
        count++;
    CHECK(result < 0 && count == before);
    printf("what it held is there, then ibv_poll_cq fails: it can only be destroyed\n");

    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(small) == 0 && ibv_destroy_cq(other) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
