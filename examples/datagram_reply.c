/* Answering a datagram: who sent it stands in its completion and in the 40 bytes before the data.
 * ibv_init_ah_from_wc(3), ibv_create_ah_from_wc(3). */
#include "loopback.h"

static struct ibv_cq *cq;
static struct ibv_mr *mr;

static void send_to(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t number, char *text)
{
    post_send(qp, (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .wr.ud = { ah, number, QKEY } }, part_of(mr, text, 32));
}

static struct ibv_wc receive(struct ibv_qp *qp)
{
    for (;;) {
        struct ibv_wc wc = next_completion(cq);
        CHECK(wc.status == IBV_WC_SUCCESS);
        if (wc.opcode == IBV_WC_SEND)
            continue;
        CHECK(wc.qp_num == qp->qp_num && wc.byte_len == GRH_BYTES + 32 && (wc.wc_flags & IBV_WC_GRH));
        return wc;
    }
}

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 32, NULL, NULL, 0);
    static struct {
        char question[32], answer[32];
        struct {
            struct ibv_grh grh;
            char text[32];
        } in[2];
    } memory = { .question = "who is there?", .answer = "you" };
    mr = ibv_reg_mr(pd, &memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    CHECK(pd && cq && mr);
    struct ibv_qp *asker = create_qp(pd, cq, IBV_QPT_UD, NULL), *answerer = create_qp(pd, cq, IBV_QPT_UD, NULL);
    ready_for_datagrams(asker);
    ready_for_datagrams(answerer);
    post_receive(answerer, 0, part_of(mr, &memory.in[0], sizeof memory.in[0]));
    post_receive(asker, 1, part_of(mr, &memory.in[1], sizeof memory.in[1]));

    struct ibv_ah_attr there = path_to_self(context);
    struct ibv_ah *ah = ibv_create_ah(pd, &there);
    CHECK(ah != NULL);
    send_to(asker, ah, answerer->qp_num, memory.question);
    struct ibv_wc wc = receive(answerer);
    printf("asked by queue pair %s: %s\n", wc.src_qp == asker->qp_num ? "of the asker" : "of a stranger", memory.in[0].text);
    CHECK(wc.src_qp == asker->qp_num);

    /* The attributes of the way back, and an address handle for it; the second call does both. */
    struct ibv_ah_attr attr;
    CHECK(ibv_init_ah_from_wc(context, 1, &wc, &memory.in[0].grh, &attr) == 0);
    CHECK(attr.is_global && memcmp(&attr.grh.dgid, &there.grh.dgid, sizeof attr.grh.dgid) == 0);
    struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, &memory.in[0].grh, 1);
    CHECK(back != NULL);
    send_to(answerer, back, wc.src_qp, memory.answer);
    wc = receive(asker);
    CHECK(wc.src_qp == answerer->qp_num && strcmp(memory.in[1].text, "you") == 0);
    printf("answered: %s\n", memory.in[1].text);

    /* A wrong Q_Key: the datagram is dropped without notice. */
    post_receive(answerer, 2, part_of(mr, &memory.in[0], sizeof memory.in[0]));
    struct ibv_send_wr stranger = { .opcode = IBV_WR_SEND, .wr.ud = { ah, answerer->qp_num, QKEY + 1 } };
    post_send(asker, stranger, part_of(mr, memory.answer, 32));
    send_to(asker, ah, answerer->qp_num, memory.question);
    CHECK(receive(answerer).wr_id == 2 && strcmp(memory.in[0].text, memory.question) == 0);
    printf("what has a wrong Q_Key does not arrive\n");

    CHECK(ibv_dealloc_pd(pd) == EBUSY);
    CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_ah(back) == 0);
    CHECK(ibv_destroy_qp(asker) == 0 && ibv_destroy_qp(answerer) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
