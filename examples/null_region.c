/* A region without memory: what is written to it vanishes, what is read from it is zero.
 * ibv_alloc_null_mr(3). Good for the parts of a message that are not needed. */
#include "loopback.h"

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    static char message[] = "header of no interest|the body", body[16];
    enum { HEADER = 22, BODY = sizeof message - HEADER };
    struct ibv_mr *mr = ibv_reg_mr(pd, message, sizeof message, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *target = ibv_reg_mr(pd, body, sizeof body, ALL_ACCESS);
    struct ibv_mr *null = ibv_alloc_null_mr(pd);
    CHECK(pd && cq && mr && target && null);
    struct ibv_qp *a = create_qp(pd, cq, IBV_QPT_RC, NULL), *b = create_qp(pd, cq, IBV_QPT_RC, NULL);
    connect_pair(a, b);

    /* Any address will do. */
    struct ibv_sge list[2] = { { 0x1234, HEADER, null->lkey }, part_of(target, body, BODY) };
    struct ibv_recv_wr receive = { .sg_list = list, .num_sge = 2 }, *bad_receive;
    CHECK(ibv_post_recv(b, &receive, &bad_receive) == 0);
    post_send(a, (struct ibv_send_wr){ .opcode = IBV_WR_SEND }, part_of(mr, message, sizeof message));
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = next_completion(cq);
        CHECK(wc.status == IBV_WC_SUCCESS && (wc.opcode == IBV_WC_SEND || wc.byte_len == sizeof message));
    }
    CHECK(strcmp(body, "the body") == 0);
    printf("received without its header: %s\n", body);

    /* Zeros from nowhere: erases the peer's memory. */
    struct ibv_send_wr erase = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)body, target->rkey } };
    post_send(a, erase, (struct ibv_sge){ 0, sizeof body, null->lkey });
    expect(cq, IBV_WC_RDMA_WRITE);
    for (size_t i = 0; i < sizeof body; i++)
        CHECK(body[i] == 0);
    printf("sent zeros without having any\n");

    /* It is for our own requests: a peer gets nowhere with its key. */
    struct ibv_send_wr wrong = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { 0, null->rkey } };
    post_send(a, wrong, part_of(mr, message, 8));
    expect_failure(cq, IBV_WC_REM_ACCESS_ERR);
    printf("its key is of no use to a peer\n");

    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
    CHECK(ibv_dereg_mr(null) == 0 && ibv_dereg_mr(target) == 0 && ibv_dereg_mr(mr) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
