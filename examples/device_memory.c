/* Memory of the device: allocated there, copied to and from by calls, and registered for peers.
 * ibv_alloc_dm(3) */
#include "loopback.h"

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_device_attr_ex device;
    CHECK(ibv_query_device_ex(context, NULL, &device) == 0 && device.max_dm_size > 0);
    printf("up to %llu bytes at once\n", (unsigned long long)device.max_dm_size);

    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(pd && cq);
    struct ibv_alloc_dm_attr attr = { .length = 4096, .log_align_req = 6 };
    struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
    CHECK(dm != NULL);

    uint64_t counter = 40, result = 0;
    CHECK(ibv_memcpy_to_dm(dm, 64, &counter, sizeof counter) == 0);
    printf("copied to it: %d\n", (int)counter);

    /* It has no address of ours: the region begins at 0. */
    struct ibv_mr *shared = ibv_reg_dm_mr(pd, dm, 64, 1024, ALL_ACCESS | IBV_ACCESS_ZERO_BASED);
    struct ibv_mr *mr = ibv_reg_mr(pd, &result, sizeof result, IBV_ACCESS_LOCAL_WRITE);
    CHECK(shared && mr);
    CHECK(!ibv_reg_dm_mr(pd, dm, 0, 1024, ALL_ACCESS) && errno == EINVAL);

    struct ibv_qp *owner = create_qp(pd, cq, IBV_QPT_RC, NULL), *peer = create_qp(pd, cq, IBV_QPT_RC, NULL);
    connect_pair(owner, peer);
    struct ibv_send_wr add = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                               .wr.atomic = { .remote_addr = 0, .rkey = shared->rkey, .compare_add = 2 } };
    post_send(peer, add, part_of(mr, &result, sizeof result));
    expect(cq, IBV_WC_FETCH_ADD);
    CHECK(result == 40);
    CHECK(ibv_memcpy_from_dm(&counter, dm, 64, sizeof counter) == 0 && counter == 42);
    printf("a peer added to it: %d\n", (int)counter);

    struct ibv_send_wr write = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { 8, shared->rkey } };
    result = 7;
    post_send(peer, write, part_of(mr, &result, sizeof result));
    expect(cq, IBV_WC_RDMA_WRITE);
    CHECK(ibv_memcpy_from_dm(&counter, dm, 72, sizeof counter) == 0 && counter == 7);
    printf("a peer wrote to it: %d\n", (int)counter);

    /* It sends as well, without a copy of ours. */
    uint64_t received = 0;
    struct ibv_mr *into = ibv_reg_mr(pd, &received, sizeof received, IBV_ACCESS_LOCAL_WRITE);
    post_receive(peer, 0, part_of(into, &received, sizeof received));
    post_send(owner, (struct ibv_send_wr){ .opcode = IBV_WR_SEND }, (struct ibv_sge){ 0, 8, shared->lkey });
    for (int i = 0; i < 2; i++)
        CHECK(next_completion(cq).status == IBV_WC_SUCCESS);
    CHECK(received == 42);
    printf("sent from it: %d\n", (int)received);

    CHECK(ibv_memcpy_to_dm(dm, 4092, &counter, 8) == EINVAL);
    CHECK(ibv_free_dm(dm) == EBUSY);
    printf("bounds are kept, and so is memory that is registered\n");
    CHECK(ibv_destroy_qp(owner) == 0 && ibv_destroy_qp(peer) == 0);
    CHECK(ibv_dereg_mr(into) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(shared) == 0 && ibv_free_dm(dm) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
