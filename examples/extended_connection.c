/* Extended reliable connections (XRC): one connection reaches every process of the other host, each
 * through a shared receive queue of its own. ibv_open_xrcd(3), ibv_create_srq_ex(3),
 * ibv_open_qp(3). Two contexts stand for two users of that host here: they meet in a domain that a
 * file names. */
#include <fcntl.h>
#include <unistd.h>
#include "loopback.h"

static struct ibv_xrcd *open_domain(struct ibv_context *context, int fd, int flags)
{
    struct ibv_xrcd_init_attr attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = flags,
    };
    struct ibv_xrcd *domain = ibv_open_xrcd(context, &attr);
    CHECK(domain != NULL);
    return domain;
}

static struct ibv_srq *create_queue(struct ibv_pd *pd, struct ibv_xrcd *domain, struct ibv_cq *cq)
{
    struct ibv_srq_init_attr_ex init = {
        .attr = { .max_wr = 8, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = domain, .cq = cq,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
    };
    struct ibv_srq *srq = ibv_create_srq_ex(pd->context, &init);
    CHECK(srq != NULL);
    return srq;
}

/* Reads the message from one user's queue. */
static void receive(struct ibv_srq *srq, struct ibv_qp *initiator, struct ibv_cq *sent, struct ibv_cq *received,
                    struct ibv_mr *mr, struct ibv_mr *source, const char *text)
{
    uint32_t number;
    CHECK(ibv_get_srq_num(srq, &number) == 0);
    struct ibv_sge sge = part_of(mr, mr->addr, 64);
    struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
    CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    strcpy(source->addr, text);
    /* Each message says into which queue it goes. */
    post_send(initiator, (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .qp_type.xrc.remote_srqn = number },
              part_of(source, source->addr, strlen(text) + 1));
    expect(sent, IBV_WC_SEND);
    expect(received, IBV_WC_RECV);
    CHECK(strcmp(mr->addr, text) == 0);
    printf("%s\n", text);
}

int main(void)
{
    /* The two users. */
    struct ibv_context *first = open_first_device(), *second = open_first_device();
    struct ibv_pd *pd[2] = { ibv_alloc_pd(first), ibv_alloc_pd(second) };
    struct ibv_cq *cq[2] = { ibv_create_cq(first, 16, NULL, NULL, 0), ibv_create_cq(second, 16, NULL, NULL, 0) };
    static char memory[3][64];
    struct ibv_mr *mr[2];
    for (int i = 0; i < 2; i++) {
        CHECK(pd[i] && cq[i]);
        CHECK((mr[i] = ibv_reg_mr(pd[i], memory[i], 64, IBV_ACCESS_LOCAL_WRITE)) != NULL);
    }

    char path[] = "/tmp/extended_connection.XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    struct ibv_xrcd *domain[2] = { open_domain(first, fd, O_CREAT), open_domain(second, fd, 0) };
    printf("both have the domain that the file names\n");
    struct ibv_srq *srq[2] = { create_queue(pd[0], domain[0], cq[0]), create_queue(pd[1], domain[1], cq[1]) };

    /* The target has neither protection domain nor queues: those of the shared receive queue
     * count. */
    struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = domain[0] };
    struct ibv_qp *target = ibv_create_qp_ex(first, &init);
    CHECK(target != NULL);
    struct ibv_qp_open_attr open = {
        .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
        .qp_num = target->qp_num, .xrcd = domain[1], .qp_type = IBV_QPT_XRC_RECV, .qp_context = &open,
    };
    struct ibv_qp *shared = ibv_open_qp(second, &open);
    CHECK(shared && shared->qp_num == target->qp_num && shared->qp_context == &open);
    printf("the second opened the first one's target by its number\n");

    /* The far side, with the only sending half. */
    struct ibv_context *far = open_first_device();
    struct ibv_pd *far_pd = ibv_alloc_pd(far);
    struct ibv_cq *sent = ibv_create_cq(far, 16, NULL, NULL, 0);
    struct ibv_mr *source = ibv_reg_mr(far_pd, memory[2], 64, 0);
    CHECK(far_pd && sent && source);
    struct ibv_qp_init_attr_ex send = {
        .qp_type = IBV_QPT_XRC_SEND, .send_cq = sent, .sq_sig_all = 1, .cap = { .max_send_wr = 8, .max_send_sge = 1 },
        .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = far_pd,
    };
    struct ibv_qp *initiator = ibv_create_qp_ex(far, &send);
    CHECK(initiator != NULL);
    connect_pair(initiator, target);
    receive(srq[0], initiator, sent, cq[0], mr[0], source, "one connection reaches the first one's queue");
    receive(srq[1], initiator, sent, cq[1], mr[1], source, "and the second one's");

    /* The process that made the target may close it; it stays while another has it open. */
    CHECK(ibv_destroy_qp(target) == 0);
    receive(srq[1], initiator, sent, cq[1], mr[1], source, "still, when the first one has left");
    CHECK(ibv_destroy_srq(srq[0]) == 0 && ibv_close_xrcd(domain[0]) == 0);
    CHECK(ibv_close_xrcd(domain[1]) == EBUSY);
    printf("the last one cannot close the domain before the target and the queue\n");
    CHECK(ibv_destroy_qp(shared) == 0 && ibv_destroy_srq(srq[1]) == 0 && ibv_close_xrcd(domain[1]) == 0);

    CHECK(ibv_destroy_qp(initiator) == 0 && ibv_dereg_mr(source) == 0 && ibv_destroy_cq(sent) == 0);
    CHECK(ibv_dealloc_pd(far_pd) == 0 && ibv_close_device(far) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(ibv_dereg_mr(mr[i]) == 0 && ibv_destroy_cq(cq[i]) == 0 && ibv_dealloc_pd(pd[i]) == 0);
    CHECK(ibv_close_device(first) == 0 && ibv_close_device(second) == 0);
    close(fd);
    unlink(path);
    return 0;
}
