/* A thread domain promises that what is created with it is used by one thread at a time; a parent
 * domain carries the promise, and allocators of one's own, to where objects are created.
 * ibv_alloc_td(3), ibv_alloc_parent_domain(3). */
#include "loopback.h"

static int allocated;

static void *allocate(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment, uint64_t resource_type)
{
    (void)pd, (void)pd_context, (void)size, (void)alignment, (void)resource_type;
    allocated++;
    return IBV_ALLOCATOR_USE_DEFAULT;
}

static void release(struct ibv_pd *pd, void *pd_context, void *memory, uint64_t resource_type)
{
    (void)pd, (void)pd_context, (void)memory, (void)resource_type;
}

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_td_init_attr td_init = { 0 };
    struct ibv_td *td = ibv_alloc_td(context, &td_init);
    CHECK(pd && td);
    struct ibv_parent_domain_init_attr init = {
        .pd = pd, .td = td, .alloc = allocate, .free = release,
        .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS,
    };
    struct ibv_pd *parent = ibv_alloc_parent_domain(context, &init);
    CHECK(parent != NULL);
    printf("a parent domain of a protection domain and a thread domain\n");

    struct ibv_cq_init_attr_ex cq_init = {
        .cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD,
        .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED, .parent_domain = parent,
    };
    struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &cq_init);
    CHECK(extended != NULL);
    struct ibv_cq *cq = ibv_cq_ex_to_cq(extended);

    /* Its objects are the protection domain's: regions of the one serve queue pairs of the
     * other. */
    static char memory[64] = "one domain";
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, ALL_ACCESS);
    CHECK(mr != NULL);
    struct ibv_qp *a = create_qp(parent, cq, IBV_QPT_RC, NULL), *b = create_qp(pd, cq, IBV_QPT_RC, NULL);
    CHECK(a->pd == parent);
    connect_pair(a, b);
    struct ibv_send_wr write = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)memory + 32, mr->rkey } };
    post_send(a, write, part_of(mr, memory, 16));
    expect(cq, IBV_WC_RDMA_WRITE);
    CHECK(strcmp(memory + 32, "one domain") == 0);
    printf("%s: it writes what was registered in the other\n", memory + 32);
    printf("the allocator was asked %s\n", allocated ? "for memory" : "for nothing: this device needs none of it");

    CHECK(ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(pd) == EBUSY && ibv_dealloc_pd(parent) == EBUSY);
    printf("each stays while something uses it\n");
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dealloc_pd(parent) == 0 && ibv_dealloc_td(td) == 0 && ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
