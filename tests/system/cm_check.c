/*
 * Connects twice by RDMA CM: the first time the server refuses, with private data that says why,
 * the second time it accepts, takes a message, and ends the connection. Each end checks what it is
 * told.
 *
 *   cm_check ADDRESS        server
 *   cm_check -c ADDRESS     client
 *
 * Exit status: 0 all good, 1 a check failed, 2 it could not be set up.
 */
#define NAME "cm_check"
#include "verbs_pair.h"
#include <poll.h>
#include <rdma/rdma_cma.h>

#define CM_PATIENCE_MS 20000
#define LENGTH 3000
#define REFUSED_BY_CONSUMER 28 /* IBTA table 106 */
#define ASK_REFUSE "please refuse"
#define ASK_ACCEPT "please accept"
#define REASON "no thanks"
#define WELCOME "welcome"

static struct rdma_event_channel *channel;
static uint8_t message[LENGTH];

/* The next event, which has to be of that kind. The caller acknowledges it. */
static struct rdma_cm_event *awaited(enum rdma_cm_event_type wanted)
{
    struct pollfd readable = { channel->fd, POLLIN, 0 };
    CHECK(poll(&readable, 1, CM_PATIENCE_MS) == 1, "no %s", rdma_event_str(wanted));
    struct rdma_cm_event *event;
    CHECK(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event: %m");
    CHECK(event->event == wanted, "%s, status %d, instead of %s", rdma_event_str(event->event), event->status,
          rdma_event_str(wanted));
    return event;
}

static void pass(enum rdma_cm_event_type wanted) { rdma_ack_cm_event(awaited(wanted)); }

static void check_private_data(const struct rdma_cm_event *event, const char *wanted)
{
    const struct rdma_conn_param *of = &event->param.conn;
    CHECK(of->private_data && of->private_data_len >= strlen(wanted) && memcmp(of->private_data, wanted, strlen(wanted)) == 0,
          "%s: %d bytes of private data, and not %s", rdma_event_str(event->event), of->private_data_len, wanted);
}

static struct rdma_conn_param says(const char *text)
{
    return (struct rdma_conn_param){ .private_data = text, .private_data_len = strlen(text), .retry_count = 7,
        .rnr_retry_count = 7 };
}

/* A queue pair for the connection, and memory that is registered where it is. */
static struct ibv_mr *equip(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
    SETUP(init.send_cq = init.recv_cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0), "ibv_create_cq: %m");
    SETUP(rdma_create_qp(id, NULL, &init) == 0, "rdma_create_qp: %m");
    struct ibv_mr *mr = ibv_reg_mr(id->pd, message, LENGTH, IBV_ACCESS_LOCAL_WRITE);
    SETUP(mr, "ibv_reg_mr: %m");
    return mr;
}

static void dispose(struct rdma_cm_id *id, struct ibv_mr *mr)
{
    struct ibv_cq *cq = id->qp->send_cq;
    CHECK(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr: %m");
    rdma_destroy_qp(id);
    CHECK(ibv_destroy_cq(cq) == 0, "ibv_destroy_cq: %m");
    CHECK(rdma_destroy_id(id) == 0, "rdma_destroy_id: %m");
}

static void serve(struct sockaddr *address)
{
    struct rdma_cm_id *listener;
    SETUP(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0, "rdma_create_id: %m");
    SETUP(rdma_bind_addr(listener, address) == 0 && rdma_listen(listener, 2) == 0, "listening: %m");

    struct rdma_cm_event *event = awaited(RDMA_CM_EVENT_CONNECT_REQUEST);
    check_private_data(event, ASK_REFUSE);
    struct rdma_cm_id *refused = event->id;
    CHECK(rdma_reject(refused, REASON, strlen(REASON)) == 0, "rdma_reject: %m");
    rdma_ack_cm_event(event);
    CHECK(rdma_destroy_id(refused) == 0, "rdma_destroy_id: %m");

    event = awaited(RDMA_CM_EVENT_CONNECT_REQUEST);
    check_private_data(event, ASK_ACCEPT);
    struct rdma_cm_id *id = event->id;
    rdma_ack_cm_event(event);
    struct ibv_mr *mr = equip(id);
    struct ibv_sge sge = { (uintptr_t)message, LENGTH, mr->lkey };
    struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
    CHECK(ibv_post_recv(id->qp, &receive, &bad) == 0, "ibv_post_recv");
    struct rdma_conn_param welcome = says(WELCOME);
    CHECK(rdma_accept(id, &welcome) == 0, "rdma_accept: %m");
    pass(RDMA_CM_EVENT_ESTABLISHED);
    struct ibv_wc wc = completion(id->qp->recv_cq, "message");
    CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == LENGTH, "%s, %u bytes", ibv_wc_status_str(wc.status), wc.byte_len);
    check(message, LENGTH, 1, "message");
    CHECK(rdma_disconnect(id) == 0, "rdma_disconnect: %m");
    pass(RDMA_CM_EVENT_DISCONNECTED);
    dispose(id, mr);
    CHECK(rdma_destroy_id(listener) == 0, "rdma_destroy_id: %m");
}

static struct rdma_cm_id *reach(struct sockaddr *address)
{
    struct rdma_cm_id *id;
    SETUP(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id: %m");
    SETUP(rdma_resolve_addr(id, NULL, address, 5000) == 0, "rdma_resolve_addr: %m");
    pass(RDMA_CM_EVENT_ADDR_RESOLVED);
    SETUP(rdma_resolve_route(id, 5000) == 0, "rdma_resolve_route: %m");
    pass(RDMA_CM_EVENT_ROUTE_RESOLVED);
    return id;
}

static void call(struct sockaddr *address)
{
    struct rdma_cm_id *id = reach(address);
    struct ibv_mr *mr = equip(id);
    struct rdma_conn_param param = says(ASK_REFUSE);
    CHECK(rdma_connect(id, &param) == 0, "rdma_connect: %m");
    struct rdma_cm_event *event = awaited(RDMA_CM_EVENT_REJECTED);
    CHECK(event->status == REFUSED_BY_CONSUMER, "rejected for reason %d", event->status);
    check_private_data(event, REASON);
    rdma_ack_cm_event(event);
    dispose(id, mr);

    id = reach(address);
    mr = equip(id);
    param = says(ASK_ACCEPT);
    CHECK(rdma_connect(id, &param) == 0, "rdma_connect: %m");
    event = awaited(RDMA_CM_EVENT_ESTABLISHED);
    check_private_data(event, WELCOME);
    rdma_ack_cm_event(event);
    fill(message, LENGTH, 1);
    struct ibv_sge sge = { (uintptr_t)message, LENGTH, mr->lkey };
    struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
    CHECK(ibv_post_send(id->qp, &send, &bad) == 0, "ibv_post_send");
    struct ibv_wc wc = completion(id->qp->send_cq, "message");
    CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
    pass(RDMA_CM_EVENT_DISCONNECTED);
    rdma_disconnect(id);
    dispose(id, mr);
}

int main(int argc, char **argv)
{
    client = argc == 3 && strcmp(argv[1], "-c") == 0;
    if (argc != (client ? 3 : 2)) {
        fprintf(stderr, "usage: " NAME " [-c] ADDRESS\n");
        return 2;
    }
    struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *found;
    SETUP(getaddrinfo(argv[argc - 1], "7471", &hints, &found) == 0, "%s is no address", argv[argc - 1]);
    SETUP(channel = rdma_create_event_channel(), "rdma_create_event_channel: %m");
    if (client)
        call(found->ai_addr);
    else
        serve(found->ai_addr);
    rdma_destroy_event_channel(channel);
    freeaddrinfo(found);
    printf("refused, accepted, ended\n");
    return 0;
}
