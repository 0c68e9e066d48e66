/* Addresses without a host, on a link where the kernel asks for them (see `NEIGHBOURS` of
 * cm.rs): 10.9.0.1 and fd09::1 are ours, 10.9.0.2 is the other interface's, which is ours too. */
#include "cm.h"

enum { PORT = 7300 };

static struct rdma_event_channel *channel;

static void nobody(const char *ip)
{
	/* The call does not wait, whatever the program's share of the processors. */
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	double start = seconds();
	CHECK(rdma_resolve_addr(id, NULL, at_port(ip, PORT), 60000) == 0);
	CHECK(seconds() - start < 20);
	destroy(id);
	id = new_id(channel, RDMA_PS_TCP);
	start = seconds();
	CHECK(rdma_resolve_addr(id, NULL, at_port(ip, PORT), 300) == 0);
	FAILS("resolving twice", rdma_resolve_addr(id, NULL, at_port(ip, PORT), 300), EINVAL);
	FAILS("a route to nobody", rdma_resolve_route(id, 300), EINVAL);
	FAILS("a queue pair at no device", rdma_create_qp(id, NULL, &(struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC }),
	      EINVAL);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_ERROR) == -ETIMEDOUT);
	CHECK(seconds() - start > 0.29 && seconds() - start < 3);
	CHECK(!id->verbs);
	/* The identifier may try again, also elsewhere. */
	CHECK(rdma_resolve_addr(id, NULL, at_port(ip, PORT), 0) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_ERROR) == -ETIMEDOUT);
	const char *self = strchr(ip, ':') ? "::1" : "127.0.0.1";
	CHECK(rdma_resolve_addr(id, NULL, at_port(self, PORT), 300) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	CHECK(id->verbs && rdma_resolve_route(id, 300) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == 0);
	destroy(id);
}

static void appears_meanwhile(void)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	double start = seconds();
	CHECK(rdma_resolve_addr(id, at_port("10.9.0.1", 0), at_port("10.9.0.8", PORT), 60000) == 0);
	NOTHING(channel, 100);
	CHECK(system("ip neigh replace 10.9.0.8 lladdr 02:00:00:00:00:08 dev va nud reachable") == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0 && seconds() - start < 5);
	destroy(id);
	/* Now it is known. */
	id = new_id(channel, RDMA_PS_TCP);
	CHECK(rdma_resolve_addr(id, NULL, at_port("10.9.0.8", PORT), 0) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	CHECK(id->verbs && strcmp(ibv_get_device_name(id->verbs->device), "airdma_va") == 0);
	destroy(id);
}

/* An identifier that resolves an address without a host can be migrated, and is destroyed at
 * once. */
static void leaving(void)
{
	struct rdma_event_channel *other = new_channel();
	struct rdma_cm_id *ids[8];
	for (int i = 0; i < 8; i++) {
		ids[i] = new_id(channel, RDMA_PS_TCP);
		CHECK(rdma_resolve_addr(ids[i], NULL, at_port("10.9.0.9", PORT), i < 4 ? 60000 : 300) == 0);
	}
	CHECK(rdma_migrate_id(ids[7], other) == 0);
	double start = seconds();
	for (int i = 0; i < 4; i++)
		destroy(ids[i]);
	CHECK(seconds() - start < 1);
	for (int i = 4; i < 7; i++)
		CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_ERROR) == -ETIMEDOUT);
	CHECK(EXPECT(other, RDMA_CM_EVENT_ADDR_ERROR) == -ETIMEDOUT);
	NOTHING(channel, 50);
	for (int i = 4; i < 8; i++)
		destroy(ids[i]);
	rdma_destroy_event_channel(other);
}

static void who_waits(void)
{
	struct rdma_cm_id *id = new_id(NULL, RDMA_PS_TCP);
	FAILS("nobody answers", rdma_resolve_addr(id, NULL, at_port("10.9.0.9", PORT), 300), ETIMEDOUT);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ADDR_ERROR);
	destroy(id);
	struct rdma_addrinfo *info;
	CHECK(rdma_getaddrinfo("10.9.0.9", "7300", NULL, &info) == 0);
	FAILS("an endpoint", rdma_create_ep(&id, info, NULL, NULL), ETIMEDOUT);
	rdma_freeaddrinfo(info);
}

/* One of our own addresses, on another interface: the way leads through neither. */
static void ourselves(const char *source, const char *ip)
{
	struct rdma_event_channel *answers = new_channel();
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, ip, PORT);
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	CHECK(rdma_resolve_addr(id, source ? at_port(source, 0) : NULL, at_port(ip, PORT), 0) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	CHECK(rdma_resolve_route(id, 0) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == 0);
	give_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	struct pair pair = { id, requested(answers) };
	CHECK(rdma_accept(pair.passive, NULL) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_ESTABLISHED) == 0);
	transfer(pair);
	destroy(pair.active);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	destroy(pair.passive);
	destroy(listen);
	rdma_destroy_event_channel(answers);
}

/* One listener for all interfaces; requests say where they came in. */
static void everywhere(void)
{
	struct rdma_event_channel *answers = new_channel();
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "0.0.0.0", PORT);
	const char *ips[] = { "127.0.0.1", "10.9.0.1", "10.9.0.2" }, *names[] = { "airdma_lo", "airdma_va", "airdma_vb" };
	CHECK(!listen->verbs);
	for (int i = 0; i < 3; i++) {
		struct pair pair = connected(channel, answers, ips[i], PORT);
		struct sockaddr_in *local = (void *)rdma_get_local_addr(pair.passive);
		CHECK(strcmp(inet_ntoa(local->sin_addr), ips[i]) == 0 && local->sin_port == htons(PORT));
		CHECK(strcmp(ibv_get_device_name(pair.passive->verbs->device), names[i]) == 0);
		transfer(pair);
		destroy(pair.active);
		CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
		destroy(pair.passive);
	}
	destroy(listen);
	rdma_destroy_event_channel(answers);
}

/* A link-local address means something together with its interface only. */
static void link_local(void)
{
	char text[64] = "";
	FILE *file = popen("ip -6 -o addr show dev va scope link | sed 's/.*inet6 //; s,/.*,,'", "r");
	CHECK(file && fgets(text, sizeof text, file));
	pclose(file);
	text[strcspn(text, "\n")] = 0;
	struct sockaddr_in6 ip = *(struct sockaddr_in6 *)at_port(text, PORT);
	struct rdma_event_channel *answers = new_channel();
	struct rdma_cm_id *listen = new_id(answers, RDMA_PS_TCP), *id = new_id(channel, RDMA_PS_TCP);
	ip.sin6_scope_id = if_nametoindex("va");
	CHECK(rdma_bind_addr(listen, (void *)&ip) == 0 && rdma_listen(listen, 1) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (void *)&ip, 300) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0 && rdma_resolve_route(id, 300) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == 0);
	give_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	struct pair pair = { id, requested(answers) };
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *end = i ? pair.active : pair.passive;
		CHECK(((struct sockaddr_in6 *)rdma_get_local_addr(end))->sin6_scope_id == ip.sin6_scope_id);
		CHECK(((struct sockaddr_in6 *)rdma_get_peer_addr(end))->sin6_scope_id == ip.sin6_scope_id);
	}
	CHECK(rdma_accept(pair.passive, NULL) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_ESTABLISHED) == 0);
	transfer(pair);
	destroy(pair.active);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	destroy(pair.passive);
	destroy(listen);
	/* Another address on that link, without a host. */
	id = new_id(channel, RDMA_PS_TCP);
	struct sockaddr_in6 other = *(struct sockaddr_in6 *)at_port("fe80::99", PORT);
	other.sin6_scope_id = ip.sin6_scope_id;
	CHECK(rdma_resolve_addr(id, NULL, (void *)&other, 100) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_ERROR) == -ETIMEDOUT);
	destroy(id);
	rdma_destroy_event_channel(answers);
}

int main(void)
{
	channel = new_channel();
	nobody("10.9.0.9");
	nobody("fd09::9");
	appears_meanwhile();
	leaving();
	who_waits();
	ourselves(NULL, "10.9.0.1");
	ourselves("10.9.0.1", "10.9.0.2");
	ourselves(NULL, "fd09::1");
	everywhere();
	link_local();
	rdma_destroy_event_channel(channel);
	return rules_hold();
}
