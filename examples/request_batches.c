/* The newer way to post: requests are built by calls between ibv_wr_start and ibv_wr_complete, and
 * completions are read field by field. ibv_create_qp_ex(3), ibv_wr_post(3), ibv_create_cq_ex(3). */
#include "loopback.h"

static struct ibv_cq_ex *cq;

/* The next completion, which must be a success; returns its opcode. */
static enum ibv_wc_opcode next(uint64_t *nanoseconds)
{
    struct ibv_poll_cq_attr attr = { 0 };
    double deadline = now() + WAIT_SECONDS;
    int result;
    while ((result = ibv_start_poll(cq, &attr)) == ENOENT)
        CHECK(now() < deadline);
    CHECK(result == 0 && cq->status == IBV_WC_SUCCESS);
    enum ibv_wc_opcode opcode = ibv_wc_read_opcode(cq);
    *nanoseconds = ibv_wc_read_completion_wallclock_ns(cq);
    ibv_end_poll(cq);
    return opcode;
}

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq_init_attr_ex cq_init = {
        .cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    };
    cq = ibv_create_cq_ex(context, &cq_init);
    static struct {
        uint64_t flag, list[3];
        char text[40];
    } memory;
    struct ibv_mr *mr = ibv_reg_mr(pd, &memory, sizeof memory, ALL_ACCESS);
    CHECK(pd && cq && mr);

    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_RC, .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .sq_sig_all = 1, .pd = pd,
        .cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64 },
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_RDMA_READ,
    };
    struct ibv_qp *a = ibv_create_qp_ex(context, &init);
    CHECK(a != NULL);
    struct ibv_qp_ex *post = ibv_qp_to_qp_ex(a);
    struct ibv_qp *b = create_qp(pd, ibv_cq_ex_to_cq(cq), IBV_QPT_RC, NULL);
    CHECK(post != NULL);
    connect_pair(a, b);

    /* Three requests that leave together: data, then a word that says it is there, then a look at
     * it. */
    uint64_t flag = 1, when = 0, before = 0;
    struct ibv_data_buf pieces[2] = { { "in two ", 7 }, { "pieces", 7 } };
    ibv_wr_start(post);
    post->wr_id = 1;
    post->wr_flags = 0;
    ibv_wr_rdma_write(post, mr->rkey, (uintptr_t)memory.text);
    ibv_wr_set_inline_data_list(post, 2, pieces);
    ibv_wr_atomic_write(post, mr->rkey, (uintptr_t)&memory.flag, &flag);
    ibv_wr_rdma_read(post, mr->rkey, (uintptr_t)&memory.flag);
    ibv_wr_set_sge(post, mr->lkey, (uintptr_t)memory.list, 8);
    CHECK(ibv_wr_complete(post) == 0);
    static const enum ibv_wc_opcode order[3] = { IBV_WC_RDMA_WRITE, IBV_WC_ATOMIC_WRITE, IBV_WC_RDMA_READ };
    for (int i = 0; i < 3; i++) {
        CHECK(next(&when) == order[i]);
        CHECK(when >= before);
        before = when;
    }
    CHECK(strcmp(memory.text, "in two pieces") == 0 && memory.flag == 1 && memory.list[0] == 1);
    printf("three requests at once: %s\n", memory.text);
    CHECK(when / 1000000000 <= (uint64_t)time(NULL) && when / 1000000000 + 60 > (uint64_t)time(NULL));
    printf("completions say at what time of day they were made\n");

    /* Nothing of what was begun is posted. */
    ibv_wr_start(post);
    ibv_wr_rdma_write(post, mr->rkey, (uintptr_t)memory.text);
    ibv_wr_set_inline_data(post, "never", 6);
    ibv_wr_abort(post);
    /* An operation that was not asked for at creation: the error comes at the end, for all. */
    ibv_wr_start(post);
    ibv_wr_send(post);
    ibv_wr_set_sge(post, mr->lkey, (uintptr_t)memory.text, 8);
    CHECK(ibv_wr_complete(post) != 0);
    CHECK(strcmp(memory.text, "in two pieces") == 0);
    printf("aborted and refused ones leave no trace\n");

    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
