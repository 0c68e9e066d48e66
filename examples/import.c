/* Two contexts of one process that share objects, as two libraries in a program would:
 * ibv_import_device(3), ibv_import_pd(3), ibv_import_mr(3), ibv_import_dm(3). What one tells the
 * other are a descriptor and handles. */
#include <unistd.h>
#include "loopback.h"

int main(void)
{
    /* The owner of all objects. */
    struct ibv_context *owner = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(owner);
    static char memory[64] = "registered by the owner, sent by the importer", received[64];
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, ALL_ACCESS);
    struct ibv_alloc_dm_attr attr = { .length = 64 };
    struct ibv_dm *dm = ibv_alloc_dm(owner, &attr);
    CHECK(pd && mr && dm);

    /* The borrower. The context owns the descriptor that it is given. */
    struct ibv_context *importer = ibv_import_device(dup(owner->cmd_fd));
    CHECK(importer && importer->device == owner->device);
    struct ibv_pd *borrowed_pd = ibv_import_pd(importer, pd->handle);
    struct ibv_mr *borrowed_mr = ibv_import_mr(borrowed_pd, mr->handle);
    struct ibv_dm *borrowed_dm = ibv_import_dm(importer, dm->handle);
    CHECK(borrowed_pd && borrowed_mr && borrowed_dm);
    CHECK(borrowed_mr->lkey == mr->lkey && borrowed_mr->rkey == mr->rkey);
    printf("imported: a device, a protection domain, a memory region, device memory\n");
    CHECK(!ibv_import_pd(importer, 0x7fffffff) && errno == ENOENT);

    struct ibv_mr *target = ibv_reg_mr(borrowed_pd, received, sizeof received, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_cq *cq = ibv_create_cq(importer, 16, NULL, NULL, 0);
    CHECK(target && cq);
    struct ibv_qp *a = create_qp(borrowed_pd, cq, IBV_QPT_RC, NULL), *b = create_qp(borrowed_pd, cq, IBV_QPT_RC, NULL);
    connect_pair(a, b);
    post_receive(b, 0, part_of(target, received, sizeof received));
    post_send(a, (struct ibv_send_wr){ .opcode = IBV_WR_SEND }, part_of(borrowed_mr, memory, sizeof memory));
    for (int i = 0; i < 2; i++)
        CHECK(next_completion(cq).status == IBV_WC_SUCCESS);
    CHECK(strcmp(received, memory) == 0);
    printf("%s\n", received);

    CHECK(ibv_memcpy_to_dm(borrowed_dm, 0, "shared!", 8) == 0 && ibv_memcpy_from_dm(received, dm, 0, 8) == 0);
    CHECK(strcmp(received, "shared!") == 0);
    printf("device memory is the same for both\n");

    /* The importer's handles go first; the objects stay. */
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(target) == 0);
    ibv_unimport_mr(borrowed_mr);
    ibv_unimport_dm(borrowed_dm);
    ibv_unimport_pd(borrowed_pd);
    CHECK(ibv_close_device(importer) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_free_dm(dm) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(owner) == 0);
    printf("the owner destroyed what is its own\n");
    return 0;
}
