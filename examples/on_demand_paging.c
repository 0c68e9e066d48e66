/* On-demand paging: memory is registered before it is there, or all of it at once, and pages come
 * when they are touched. IBV_ACCESS_ON_DEMAND in ibv_reg_mr(3), ibv_advise_mr(3). */
#include <sys/mman.h>
#include "loopback.h"

enum { PAGE = 4096, PAGES = 16 };

static void write_and_look(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *target, char *to, const char *text)
{
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)to, target->rkey },
                              .send_flags = IBV_SEND_INLINE };
    post_send(qp, wr, (struct ibv_sge){ (uintptr_t)text, (uint32_t)strlen(text) + 1, 0 });
    expect(cq, IBV_WC_RDMA_WRITE);
    CHECK(strcmp(to, text) == 0);
    printf("%s\n", to);
}

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_device_attr_ex device;
    CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
    CHECK((device.odp_caps.general_caps & IBV_ODP_SUPPORT) && (device.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT));
    CHECK(device.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_WRITE);

    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(pd && cq);
    struct ibv_qp *a = create_qp(pd, cq, IBV_QPT_RC, NULL), *b = create_qp(pd, cq, IBV_QPT_RC, NULL);
    connect_pair(a, b);

    char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGES * PAGE, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
    CHECK(mr != NULL);
    write_and_look(a, cq, mr, memory + PAGE, "into a page that nobody had touched");

    CHECK(madvise(memory, PAGES * PAGE, MADV_DONTNEED) == 0);
    CHECK(memory[PAGE] == 0);
    write_and_look(a, cq, mr, memory + PAGE, "into a page that was given back");

    /* A hint: fetch these now. With the flag it is done when the call returns. */
    struct ibv_sge list[2] = { part_of(mr, memory, 2 * PAGE), part_of(mr, memory + 8 * PAGE, PAGE) };
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, list, 2) == 0);
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, list, 2) == 0);
    printf("prefetched\n");

    /* The whole address space: one region for everything, once and for all. */
    struct ibv_mr *everything = ibv_reg_mr(pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
    CHECK(everything != NULL);
    char *late = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(late != MAP_FAILED);
    write_and_look(a, cq, everything, late, "into memory that was mapped after it was registered");
    char local[64] = "";
    write_and_look(a, cq, everything, local, "into a variable");

    /* What is not there at all is refused, and no program crashes. */
    CHECK(munmap(late, PAGE) == 0);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)late, everything->rkey } };
    post_send(a, wr, part_of(mr, memory, 8));
    expect_failure(cq, IBV_WC_REM_ACCESS_ERR);
    printf("memory that is not there is refused\n");

    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
    CHECK(ibv_dereg_mr(everything) == 0 && ibv_dereg_mr(mr) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    munmap(memory, PAGES * PAGE);
    return 0;
}
