/* One queue of receives for several connections: ibv_create_srq(3), ibv_modify_srq(3), the limit
 * event. */
#include "loopback.h"

enum { RECEIVES = 4, BYTES = 64 };

static void post(struct ibv_srq *srq, struct ibv_mr *mr, int number)
{
    struct ibv_sge sge = part_of(mr, (char *)mr->addr + number * BYTES, BYTES);
    struct ibv_recv_wr wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1 }, *bad;
    CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    char *memory = calloc(RECEIVES + 1, BYTES);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, (RECEIVES + 1) * BYTES, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    CHECK(pd && cq && mr && srq);
    printf("a queue of %u receives\n", init.attr.max_wr);

    struct ibv_qp *sender[2], *receiver[2];
    for (int i = 0; i < 2; i++) {
        sender[i] = create_qp(pd, cq, IBV_QPT_RC, NULL);
        receiver[i] = create_qp(pd, cq, IBV_QPT_RC, srq);
        connect_pair(sender[i], receiver[i]);
    }
    for (int i = 0; i < RECEIVES; i++)
        post(srq, mr, i);

    /* Tell us when fewer than three are left. */
    struct ibv_srq_attr attr = { .srq_limit = 3 };
    CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);

    for (int i = 0; i < 2; i++) {
        char *text = memory + RECEIVES * BYTES;
        strcpy(text, i ? "from the second" : "from the first");
        post_send(sender[i], (struct ibv_send_wr){ .opcode = IBV_WR_SEND }, part_of(mr, text, BYTES));
        for (int seen = 0; seen < 2; seen++) {
            struct ibv_wc wc = next_completion(cq);
            CHECK(wc.status == IBV_WC_SUCCESS);
            if (wc.opcode == IBV_WC_SEND)
                continue;
            /* The receives go to whoever gets a message; the completion says to whom. */
            CHECK(wc.qp_num == receiver[i]->qp_num && wc.wr_id == (uint64_t)i);
            printf("receive %d, connection %d: %s\n", (int)wc.wr_id, i, memory + wc.wr_id * BYTES);
        }
    }

    struct ibv_async_event event = next_event(context);
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
    printf("event: %s\n", ibv_event_type_str(event.event_type));
    ibv_ack_async_event(&event);
    CHECK(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 0);
    printf("the limit has to be set anew for the next event\n");

    attr.max_wr = 100;
    CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == 0);
    CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr >= 100);
    printf("resized to %u; what was posted stays\n", attr.max_wr);

    /* Once a queue pair is in the error state and takes no more receives, an event says so: then it
     * can be destroyed. */
    struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
    CHECK(ibv_modify_qp(receiver[0], &error, IBV_QP_STATE) == 0);
    event = next_event(context);
    CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == receiver[0]);
    printf("event: %s\n", ibv_event_type_str(event.event_type));
    ibv_ack_async_event(&event);

    CHECK(ibv_destroy_srq(srq) == EBUSY);
    for (int i = 0; i < 2; i++)
        CHECK(ibv_destroy_qp(sender[i]) == 0 && ibv_destroy_qp(receiver[i]) == 0);
    CHECK(ibv_destroy_srq(srq) == 0);
    printf("destroyed, after the queue pairs that used it\n");
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    free(memory);
    return 0;
}
