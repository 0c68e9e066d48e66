/* What happens to a parent that forks, and to its child: ibv_fork_init(3). */
#include <unistd.h>
#include <sys/wait.h>
#include "loopback.h"

enum { BYTES = 1024, ROUNDS = 20 };

static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[2 * BYTES];

static void exchange(struct ibv_qp *a, struct ibv_qp *b, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        memset(memory, i + 1, BYTES);
        post_receive(b, i, part_of(mr, memory + BYTES, BYTES));
        post_send(a, (struct ibv_send_wr){ .opcode = IBV_WR_SEND }, part_of(mr, memory, BYTES));
        CHECK(next_completion(cq).status == IBV_WC_SUCCESS && next_completion(cq).status == IBV_WC_SUCCESS);
        CHECK(memcmp(memory, memory + BYTES, BYTES) == 0);
    }
}

/* The parent's objects are not the child's to use: they say so, and nothing happens to the
 * parent. */
static void child(struct ibv_context *context, struct ibv_qp *qp)
{
    CHECK(!ibv_alloc_pd(context) && errno == ENODEV);
    CHECK(!ibv_reg_mr(mr->pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE) && errno == ENODEV);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == ENODEV && ibv_destroy_qp(qp) == ENODEV);
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad = NULL;
    CHECK(ibv_post_send(qp, &wr, &bad) == ENODEV && bad == &wr);
    struct ibv_recv_wr receive = { .wr_id = 1 }, *bad_receive;
    CHECK(ibv_post_recv(qp, &receive, &bad_receive) == ENODEV);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) < 0 && errno == ENODEV);

    /* It can open the device itself, and then it is a process like any other. */
    struct ibv_context *own = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(own);
    struct ibv_mr *region = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_port_attr port;
    CHECK(pd && region && ibv_query_port(own, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
    struct ibv_cq *queue = ibv_create_cq(own, 8, NULL, NULL, 0);
    CHECK(queue);
    struct ibv_qp *a = create_qp(pd, queue, IBV_QPT_RC, NULL), *b = create_qp(pd, queue, IBV_QPT_RC, NULL);
    connect_pair(a, b);
    cq = queue;
    mr = region;
    exchange(a, b, ROUNDS);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(queue) == 0);
    CHECK(ibv_dereg_mr(region) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(own) == 0);

    execlp("true", "true", NULL); /* what most children do next */
    exit(1);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc == 1) { /* with an argument: without */
        /* Before anything is registered. Says that fork is safe afterwards; airdma pins no pages,
         * so it always is. */
        CHECK(ibv_fork_init() == 0);
        CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED || ibv_is_fork_initialized() == IBV_FORK_ENABLED);
    }
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    mr = ibv_reg_mr(pd, memory, sizeof memory, ALL_ACCESS);
    CHECK(pd && cq && mr);
    struct ibv_qp *a = create_qp(pd, cq, IBV_QPT_RC, NULL), *b = create_qp(pd, cq, IBV_QPT_RC, NULL);
    connect_pair(a, b);
    exchange(a, b, ROUNDS);

    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        child(context, a);
    exchange(a, b, ROUNDS);
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0)
        exchange(a, b, 1);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("the child could not use what is the parent's, and opened the device itself\n");

    for (int i = 0; i < ROUNDS; i++) {
        CHECK(system("true") == 0);
        exchange(a, b, 1);
    }
    printf("the parent went on, also while it ran %d programs\n", ROUNDS);

    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
