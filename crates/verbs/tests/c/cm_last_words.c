/* The end of a connection is not reported before its last data, whichever descriptor is polled
 * first. */
#include "cm.h"
#include <poll.h>

enum { PORT = 7210, ROUNDS = 10, MESSAGES = 8, LENGTH = 4096 };

static struct rdma_event_channel *asks, *answers;
static char out[MESSAGES][LENGTH], in[MESSAGES][LENGTH];

static struct ibv_mr *registered(struct rdma_cm_id *id, void *buffer)
{
	struct ibv_mr *mr = ibv_reg_mr(id->pd, buffer, MESSAGES * LENGTH, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	return mr;
}

static int is_readable(int fd)
{
	struct pollfd waits = { .fd = fd, .events = POLLIN };
	return poll(&waits, 1, 0) == 1;
}

/* One end sends and disconnects at once; the other looks late, and at its connection's channel
 * first. */
static void replies_come_first(int messages)
{
	struct pair pair = connected(asks, answers, "127.0.0.1", PORT);
	struct ibv_mr *from = registered(pair.passive, out), *to = registered(pair.active, in);
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .num_sge = 1 }, *bad;
	struct ibv_recv_wr receive = { .num_sge = 1 }, *bad_receive;
	struct ibv_sge sge;
	for (int i = 0; i < messages; i++) {
		sge = (struct ibv_sge){ (uintptr_t)in[i], LENGTH, to->lkey };
		receive.sg_list = &sge;
		CHECK(ibv_post_recv(pair.active->qp, &receive, &bad_receive) == 0);
	}
	for (int i = 0; i < messages; i++) {
		sge = (struct ibv_sge){ (uintptr_t)out[i], LENGTH, from->lkey };
		send.sg_list = &sge;
		CHECK(ibv_post_send(pair.passive->qp, &send, &bad) == 0);
	}
	CHECK(rdma_disconnect(pair.passive) == 0);
	usleep(20000);
	int taken = 0;
	double end = seconds() + 20;
	while (taken < messages && seconds() < end) {
		/* A program that hears of the end here looks no more at what came before it. */
		if (is_readable(asks->fd)) {
			RULE_BROKEN("the end", "%d of %d messages were there", taken, messages);
			break;
		}
		struct ibv_wc wc;
		int got = ibv_poll_cq(pair.active->recv_cq, 1, &wc);
		CHECK(got >= 0 && (got == 0 || wc.status == IBV_WC_SUCCESS));
		taken += got;
	}
	IS("messages", taken, messages);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_DISCONNECTED) == 0);
	CHECK(rdma_disconnect(pair.active) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	CHECK(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(to) == 0);
	destroy(pair.active);
	destroy(pair.passive);
}

static int next_of(struct rdma_event_channel *channel)
{
	/* Connections of the rounds before leave their timewait at any moment. */
	for (;;) {
		struct rdma_cm_event *event = event_within(channel, 30000);
		CHECK(event);
		int kind = event->event;
		CHECK(rdma_ack_cm_event(event) == 0);
		if (kind != RDMA_CM_EVENT_TIMEWAIT_EXIT)
			return kind;
	}
}

/* What the peer does next on the same channel comes behind the end, although data that was not
 * taken waits. */
static void the_end_comes_before_the_next_request(void)
{
	struct rdma_event_channel *again = new_channel();
	struct pair pair = connected(asks, answers, "127.0.0.1", PORT);
	struct ibv_mr *from = registered(pair.active, out), *to = registered(pair.passive, in);
	struct ibv_sge sge = { (uintptr_t)in, LENGTH, to->lkey };
	struct ibv_recv_wr receive = { .num_sge = 1, .sg_list = &sge }, *bad_receive;
	CHECK(ibv_post_recv(pair.passive->qp, &receive, &bad_receive) == 0);
	sge = (struct ibv_sge){ (uintptr_t)out, LENGTH, from->lkey };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .num_sge = 1, .sg_list = &sge }, *bad;
	CHECK(ibv_post_send(pair.active->qp, &send, &bad) == 0);
	CHECK(rdma_disconnect(pair.active) == 0);
	struct rdma_cm_id *next = routed(again, RDMA_PS_TCP, "127.0.0.1", PORT);
	give_qp(next);
	CHECK(rdma_connect(next, NULL) == 0);

	int first = next_of(answers), second = next_of(answers);
	IS("the end", first, RDMA_CM_EVENT_DISCONNECTED);
	IS("the next request", second, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_DISCONNECTED) == 0);
	CHECK(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(to) == 0);
	destroy(next);
	destroy(pair.active);
	destroy(pair.passive);
	rdma_destroy_event_channel(again);
}

int main(void)
{
	asks = new_channel();
	answers = new_channel();
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
	for (int i = 0; i < ROUNDS; i++)
		replies_come_first(i % MESSAGES + 1);
	the_end_comes_before_the_next_request();
	destroy(listen);
	rdma_destroy_event_channel(asks);
	rdma_destroy_event_channel(answers);
	return rules_hold();
}
