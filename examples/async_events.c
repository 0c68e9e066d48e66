/* Sleeping until something happens: completion channels (ibv_req_notify_cq(3), ibv_get_cq_event(3))
 * and asynchronous events (ibv_get_async_event(3)), each with a descriptor for poll(2). */
#include <fcntl.h>
#include "loopback.h"

static char memory[64];

int main(void)
{
    struct ibv_context *context = open_first_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    CHECK(pd && channel);
    int mine; /* comes back with each event */
    struct ibv_cq *cq = ibv_create_cq(context, 16, &mine, channel, 0), *other = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, ALL_ACCESS);
    CHECK(cq && other && mr);
    struct ibv_qp *a = create_qp(pd, other, IBV_QPT_RC, NULL), *b = create_qp(pd, cq, IBV_QPT_RC, NULL);
    connect_pair(a, b);

    /* Descriptors that are not waited for. */
    struct ibv_cq *from;
    void *cookie;
    struct ibv_async_event event;
    CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0 && fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(ibv_get_cq_event(channel, &from, &cookie) == -1 && errno == EAGAIN);
    CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
    printf("no event yet\n");

    /* Only what the sender marks wakes us. */
    struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
    CHECK(ibv_req_notify_cq(cq, 1) == 0);
    post_receive(b, 1, part_of(mr, memory, 8));
    post_receive(b, 2, part_of(mr, memory, 8));
    post_send(a, (struct ibv_send_wr){ .opcode = IBV_WR_SEND }, part_of(mr, memory + 8, 8));
    expect(other, IBV_WC_SEND);
    CHECK(poll(&fd, 1, 50) == 0);
    post_send(a, (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SOLICITED }, part_of(mr, memory + 8, 8));
    CHECK(poll(&fd, 1, WAIT_SECONDS * 1000) == 1);
    CHECK(ibv_get_cq_event(channel, &from, &cookie) == 0 && from == cq && cookie == &mine);
    printf("woken by the second message, which is solicited\n");

    /* The usual order: take the event, ask for the next one, then poll until there is nothing
     * left. */
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    CHECK(expect(cq, IBV_WC_RECV).wr_id == 1 && expect(cq, IBV_WC_RECV).wr_id == 2);
    ibv_ack_cq_events(cq, 1); /* costs a lock: many at once are better. Destroying the queue waits for all. */
    expect(other, IBV_WC_SEND);

    /* A request that the peer refuses: a completion for the one, an event for the other. */
    struct ibv_send_wr wrong = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)memory, ~mr->rkey } };
    post_send(a, wrong, part_of(mr, memory, 8));
    expect_failure(other, IBV_WC_REM_ACCESS_ERR);
    printf("completion of the sender: %s\n", ibv_wc_status_str(IBV_WC_REM_ACCESS_ERR));
    event = next_event(context);
    CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b);
    printf("event of the receiver: %s\n", ibv_event_type_str(event.event_type));
    ibv_ack_async_event(&event);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(a, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
    CHECK(ibv_query_qp(b, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
    printf("both are in the error state now\n");

    CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(other) == 0);
    CHECK(ibv_destroy_comp_channel(channel) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
