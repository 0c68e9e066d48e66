/* An interface that is deleted: identifiers at its device and their queue pairs hear of it while
 * the program only waits, listeners at all addresses go on at the others, and an interface of
 * the same name is another device (see `NO_LOOPBACK` of cm.rs). */
#include "cm.h"
#include <fcntl.h>

enum { PORT = 7500, BOUND_PORT = 7501, TIMES = 10 };

static int descriptors(void)
{
	int count = 0;
	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void appears(void)
{
	CHECK(system("ip link add gone type veth peer name peer && ip addr add 10.8.0.1/24 dev gone nodad && "
		     "ip link set gone up && ip link set peer up") == 0);
}

static void removed(struct rdma_event_channel *channel, struct rdma_cm_id *id)
{
	struct rdma_cm_event *event = EVENT(channel, RDMA_CM_EVENT_DEVICE_REMOVAL);
	CHECK(event->id == id && event->status == 0 && rdma_ack_cm_event(event) == 0);
}

int main(void)
{
	struct rdma_event_channel *channels[5];
	for (int i = 0; i < 5; i++)
		channels[i] = new_channel();
	appears();
	struct rdma_cm_id *everywhere = listener(channels[0], RDMA_PS_TCP, "0.0.0.0", PORT);
	struct rdma_cm_id *bound = listener(channels[1], RDMA_PS_TCP, "10.8.0.1", BOUND_PORT);
	struct rdma_cm_id *idle = routed(channels[2], RDMA_PS_TCP, "10.8.0.1", PORT);
	struct pair pair = connected(channels[3], channels[0], "10.8.0.1", PORT);
	CHECK(rdma_migrate_id(pair.passive, channels[4]) == 0);
	transfer(pair);
	struct ibv_context *verbs = pair.active->verbs;
	struct ibv_recv_wr wr = { .wr_id = 7 }, *bad;
	CHECK(ibv_post_recv(pair.active->qp, &wr, &bad) == 0);

	CHECK(system("ip link del gone") == 0);
	removed(channels[1], bound);
	removed(channels[2], idle);
	removed(channels[3], pair.active);
	removed(channels[4], pair.passive);
	NOTHING(channels[0], 100);
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(pair.active->recv_cq, 1, &wc) == 1);
	CHECK(wc.wr_id == 7 && wc.status == IBV_WC_WR_FLUSH_ERR);
	int fatal = 0;
	while (!fatal) {
		struct ibv_async_event event;
		CHECK(ibv_get_async_event(verbs, &event) == 0);
		fatal = event.event_type == IBV_EVENT_DEVICE_FATAL;
		ibv_ack_async_event(&event);
	}
	CHECK(rdma_connect(idle, NULL) != 0);
	destroy(pair.active);
	destroy(pair.passive);
	destroy(idle);
	destroy(bound);

	/* The listener at all addresses still listens, at the new interface as well. */
	destroy(connected(channels[3], channels[0], "10.9.0.1", PORT).active);
	CHECK(EXPECT(channels[0], RDMA_CM_EVENT_DISCONNECTED) == 0);
	/* Interfaces that come and go take no descriptors with them. */
	int before = 0;
	for (int i = 0; i < TIMES; i++) {
		appears();
		usleep(300000);
		CHECK(system("ip link del gone") == 0);
		usleep(300000);
		/* By then the other interfaces have their link-local addresses. */
		if (i == TIMES / 2)
			before = descriptors();
	}
	CHECK(descriptors() <= before + 2); /* a device has more */
	destroy(everywhere);
	puts("ok");
	return 0;
}
