/* A region need not be known to peers by its address here: ibv_reg_mr_iova(3), zero-based regions;
 * and it can change while its keys stay: ibv_rereg_mr(3). */
#include "loopback.h"

static struct ibv_qp *a, *b;
static struct ibv_cq *cq;

static void write_word(struct ibv_mr *mr, uint64_t remote, const char *word, enum ibv_wc_status status)
{
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { remote, mr->rkey }, .send_flags = IBV_SEND_INLINE };
    post_send(a, wr, (struct ibv_sge){ (uintptr_t)word, (uint32_t)strlen(word) + 1, 0 });
    expect_failure(cq, status);
}

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context), *other_pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(pd && other_pd && cq);
    a = create_qp(pd, cq, IBV_QPT_RC, NULL);
    b = create_qp(pd, cq, IBV_QPT_RC, NULL);
    connect_pair(a, b);
    static char first[4096], second[4096];

    struct ibv_mr *mr = ibv_reg_mr_iova(pd, first, sizeof first, 0x1000000, ALL_ACCESS);
    CHECK(mr && mr->addr == first);
    write_word(mr, 0x1000000 + 8, "chosen", IBV_WC_SUCCESS);
    CHECK(strcmp(first + 8, "chosen") == 0);
    printf("addresses that we chose\n");
    CHECK(ibv_dereg_mr(mr) == 0);

    mr = ibv_reg_mr(pd, first, sizeof first, ALL_ACCESS | IBV_ACCESS_ZERO_BASED);
    CHECK(mr != NULL);
    write_word(mr, 16, "zero", IBV_WC_SUCCESS);
    CHECK(strcmp(first + 16, "zero") == 0);
    printf("addresses from zero on\n");
    CHECK(ibv_dereg_mr(mr) == 0);

    /* Other memory, under the same keys. */
    mr = ibv_reg_mr(pd, first, sizeof first, ALL_ACCESS);
    CHECK(mr != NULL);
    uint32_t rkey = mr->rkey;
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, second, sizeof second, 0) == 0);
    CHECK(mr->addr == second && mr->rkey == rkey);
    write_word(mr, (uintptr_t)second, "moved", IBV_WC_SUCCESS);
    CHECK(strcmp(second, "moved") == 0);
    printf("other memory under the same key\n");

    /* An error leaves everything as it was. */
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_INPUT);
    write_word(mr, (uintptr_t)second + 8, "stays", IBV_WC_SUCCESS);
    CHECK(strcmp(second + 8, "stays") == 0);
    printf("nothing changed by an error\n");

    /* Another domain: queue pairs of the first one have no access any more. */
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other_pd, NULL, 0, 0) == 0 && mr->pd == other_pd);
    write_word(mr, (uintptr_t)second, "refused", IBV_WC_REM_ACCESS_ERR);
    CHECK(strcmp(second, "moved") == 0);
    printf("out of the domain, out of reach\n");

    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0);
    CHECK(ibv_dealloc_pd(other_pd) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
