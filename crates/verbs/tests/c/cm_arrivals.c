/* Interfaces that come, or get their first address, while a process listens at all addresses
 * (see `NO_LOOPBACK` of cm.rs): it is reached there too, for as long as it listens. */
#include "cm.h"

enum { PORT = 7500 };

static struct rdma_event_channel *channel, *requests;

/* What becomes of a connection to an address: an event of the client's. Requests are accepted. */
static int outcome(const char *ip)
{
	struct rdma_cm_id *client = routed(channel, RDMA_PS_TCP, ip, PORT), *server = NULL;
	give_qp(client);
	CHECK(rdma_connect(client, NULL) == 0);
	struct rdma_cm_event *event;
	while (!(event = event_within(channel, 10)))
		if (!server && (event = event_within(requests, 10))) {
			CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
			server = event->id;
			CHECK(rdma_ack_cm_event(event) == 0);
			give_qp(server);
			CHECK(rdma_accept(server, NULL) == 0);
		}
	int kind = event->event;
	CHECK(kind != RDMA_CM_EVENT_REJECTED || event->status == 8 /* nobody has the service */);
	CHECK(rdma_ack_cm_event(event) == 0);
	if (server) {
		CHECK(EXPECT(requests, RDMA_CM_EVENT_ESTABLISHED) == 0);
		destroy(server);
	}
	destroy(client);
	return kind;
}

/* The kernel tells of an interface, and a thread that hears it listens there: both take a
 * moment. */
static void becomes_reachable(const char *ip)
{
	double start = seconds();
	while (outcome(ip) != RDMA_CM_EVENT_ESTABLISHED)
		CHECK(seconds() - start < 20);
}

static void appears(const char *name, const char *ip)
{
	char command[256];
	snprintf(command, sizeof command, "ip link add %s type veth peer name peer_%s && ip addr add %s dev %s nodad && ip link set %s up && ip link set peer_%s up",
		 name, name, ip, name, name, name);
	CHECK(system(command) == 0);
}

int main(void)
{
	channel = new_channel();
	requests = new_channel();
	/* A known interface that is deleted before its first use does no harm. */
	appears("brief", "10.6.0.1/24");
	struct ibv_context **known = rdma_get_devices(NULL);
	int is_known = 0;
	for (int i = 0; known && known[i]; i++)
		is_known |= strcmp(ibv_get_device_name(known[i]->device), "airdma_brief") == 0;
	CHECK(is_known);
	rdma_free_devices(known);
	CHECK(system("ip link del brief") == 0);
	struct rdma_cm_id *id = listener(requests, RDMA_PS_TCP, "0.0.0.0", PORT);
	CHECK(outcome("10.9.0.1") == RDMA_CM_EVENT_ESTABLISHED);
	appears("new", "10.8.0.1/24");
	becomes_reachable("10.8.0.1");
	/* The other end of the cable had no address, and so was no device. */
	CHECK(system("ip addr add 10.7.0.1/24 dev vb") == 0);
	becomes_reachable("10.7.0.1");
	CHECK(outcome("10.9.0.1") == RDMA_CM_EVENT_ESTABLISHED);
	struct rdma_cm_id *second = new_id(requests, RDMA_PS_TCP);
	CHECK(rdma_migrate_id(id, channel) == 0 && rdma_migrate_id(id, requests) == 0);
	destroy(id);
	for (int i = 0; i < 3; i++)
		CHECK(outcome((const char *[]){ "10.9.0.1", "10.8.0.1", "10.7.0.1" }[i]) == RDMA_CM_EVENT_REJECTED);
	/* A deleted interface does no harm. */
	CHECK(system("ip link del new") == 0);
	CHECK(rdma_bind_addr(second, at_port("::", PORT)) == 0 && rdma_listen(second, 0) == 0);
	CHECK(outcome("10.9.0.1") == RDMA_CM_EVENT_ESTABLISHED && outcome("10.7.0.1") == RDMA_CM_EVENT_ESTABLISHED);
	/* Also one that comes back under its old name. */
	appears("new", "fd08::1/64");
	becomes_reachable("fd08::1");
	destroy(second);
	rdma_destroy_event_channel(requests);
	rdma_destroy_event_channel(channel);
	puts("ok");
	return 0;
}
