/* Loopback addresses where the loopback interface is no device (see `NO_LOOPBACK` of cm.rs), as in
 * the kernel: an identifier that is bound to one is reached at every address, and one that connects
 * to one reaches this host. */
#include "cm.h"

enum { PORT = 7400 };

static struct rdma_event_channel *channel;

static void reaches(const char *ip, const char *seen)
{
	struct rdma_cm_id *client = routed(channel, RDMA_PS_TCP, ip, PORT);
	CHECK(client->verbs);
	give_qp(client);
	CHECK(rdma_connect(client, NULL) == 0);
	struct rdma_cm_id *server = requested(channel);
	char text[INET6_ADDRSTRLEN];
	struct sockaddr *from = rdma_get_peer_addr(server);
	const void *address = from->sa_family == AF_INET ? (void *)&((struct sockaddr_in *)from)->sin_addr
							 : (void *)&((struct sockaddr_in6 *)from)->sin6_addr;
	CHECK(inet_ntop(from->sa_family, address, text, sizeof text) && !strcmp(text, seen));
	CHECK(rdma_accept(server, NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	CHECK(rdma_disconnect(client) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(EXPECT(channel, RDMA_CM_EVENT_DISCONNECTED) == 0);
	destroy(client);
	destroy(server);
}

int main(void)
{
	channel = new_channel();
	for (int i = 0; i < 2; i++) {
		const char *own = i ? "fd09::1" : "10.9.0.1", *loopback = i ? "::1" : "127.0.0.1";
		struct rdma_cm_id *id = listener(channel, RDMA_PS_TCP, loopback, PORT);
		CHECK(!id->verbs && ntohs(rdma_get_src_port(id)) == PORT);
		struct rdma_cm_id *second = new_id(channel, RDMA_PS_TCP);
		FAILS("all addresses, of which one is in use", rdma_bind_addr(second, at_port("0.0.0.0", PORT)), EADDRNOTAVAIL);
		destroy(second);
		reaches(loopback, own);
		reaches(own, own);
		/* A source is no more than the host either. */
		struct rdma_cm_id *client = new_id(channel, RDMA_PS_TCP);
		CHECK(rdma_resolve_addr(client, at_port(loopback, 0), at_port(own, PORT), 2000) == 0);
		CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0 && client->verbs);
		destroy(client);
		destroy(id);
	}
	rdma_destroy_event_channel(channel);
	puts("ok");
	return 0;
}
