/* Where there is no device, no address, or no port to be had, and what happens when an address
 * goes (see `NOWHERE` of cm.rs: the loopback interface is no device, and `va` has no address
 * yet). What helps is said on standard error. */
#include "cm.h"
#include <sys/mman.h>

enum { PORT = 7600, ROCE = 4791 };

static struct rdma_event_channel *channel, *answers;
static int saying, terminal;

/* Whether this was said on standard error since the last question. */
static int said(const char *words)
{
	static char text[1 << 16];
	static off_t seen;
	ssize_t length = pread(saying, text, sizeof text - 1, seen);
	text[length > 0 ? length : 0] = 0;
	seen += length > 0 ? length : 0;
	return strstr(text, words) != NULL;
}

static void tell_all(void)
{
	static char text[1 << 16];
	ssize_t length = pread(saying, text, sizeof text, 0);
	if (write(terminal, text, length > 0 ? length : 0) < 0)
		_exit(1);
}

static void run(const char *command)
{
	CHECK(system(command) == 0);
}

static void no_device(void)
{
	int count = 7;
	struct rdma_cm_id *id;
	REFUSED("a channel", rdma_create_event_channel(), ENODEV);
	IS("words", said("no device"), 1);
	REFUSED("a channel again", rdma_create_event_channel(), ENODEV);
	IS("the same words", said("no device"), 0);
	REFUSED("devices", rdma_get_devices(&count), ENODEV);
	FAILS("an identifier that waits", rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), ENODEV);
}

/* Another process has the port at this address. */
static void a_stranger(const char *ip)
{
	struct sockaddr *at = at_port(ip, ROCE);
	int family = at->sa_family;
	int stranger = socket(family, SOCK_DGRAM, 0), only = 1;
	if (family == AF_INET6)
		CHECK(setsockopt(stranger, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only) == 0);
	CHECK(bind(stranger, at, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)) == 0);
	struct rdma_cm_id *id = new_id(answers, RDMA_PS_TCP);
	CHECK(rdma_bind_addr(id, at_port(ip, PORT)) == 0);
	FAILS("listening", rdma_listen(id, 0), EADDRINUSE);
	IS("words", said("UDP port 4791"), 1);
	struct rdma_cm_id *asks = routed(channel, RDMA_PS_TCP, ip, PORT);
	FAILS("connecting", rdma_connect(asks, &(struct rdma_conn_param){ .qp_num = 2 }), EADDRINUSE);
	IS("words", said("end it first"), 1);
	destroy(asks);
	/* It ends, as the words advise. */
	CHECK(close(stranger) == 0);
	CHECK(rdma_listen(id, 0) == 0);
	destroy(id);
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, ip, PORT);
	transfer(connected(channel, answers, ip, PORT));
	destroy(listen);
}

/* Until the kernel has checked the address. */
static struct sockaddr_in6 link_local(const char *interface)
{
	char command[128], text[64] = "";
	snprintf(command, sizeof command,
		 "ip -6 -o addr show dev %s scope link | grep -v tentative | sed 's/.*inet6 //; s,/.*,,'", interface);
	for (int i = 0; i < 100 && !text[0]; i++) {
		FILE *file = popen(command, "r");
		CHECK(file);
		if (!fgets(text, sizeof text, file))
			usleep(100000);
		pclose(file);
	}
	text[strcspn(text, "\n")] = 0;
	struct sockaddr_in6 ip = *(struct sockaddr_in6 *)at_port(text, PORT);
	ip.sin6_scope_id = if_nametoindex(interface);
	return ip;
}

/* A host that has link-local addresses, and no other. */
static void only_link_local(void)
{
	struct sockaddr_in6 ip = link_local("va");
	channel = new_channel();
	answers = new_channel();
	struct rdma_cm_id *listen = new_id(answers, RDMA_PS_TCP), *id = new_id(channel, RDMA_PS_TCP);
	FAILS("an address of IPv4", rdma_bind_addr(id, at_port("10.9.0.1", PORT)), EADDRNOTAVAIL);
	FAILS("no way for IPv4", rdma_resolve_addr(id, NULL, at_port("10.9.0.2", PORT), 100), ENETUNREACH);
	FAILS("no way for others", rdma_resolve_addr(id, NULL, at_port("fd09::2", PORT), 100), ENETUNREACH);
	CHECK(rdma_bind_addr(listen, (void *)&ip) == 0 && rdma_listen(listen, 0) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (void *)&ip, 1000) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0 && rdma_resolve_route(id, 1000) == 0);
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
}

/* The address of a bound, a listening, a connecting and a connected identifier goes, and comes
 * back. */
static void vanishing(void)
{
	const char *ip = "10.9.0.1", *remove = "ip addr del 10.9.0.1/24 dev va", *add = "ip addr add 10.9.0.1/24 dev va";
	struct rdma_cm_id *bound = new_id(answers, RDMA_PS_TCP), *late;
	CHECK(rdma_bind_addr(bound, at_port(ip, PORT + 1)) == 0);
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, ip, PORT);
	struct pair pairs[2] = { connected(channel, answers, ip, PORT), connected(channel, answers, ip, PORT) };
	struct rdma_cm_id *half = routed(channel, RDMA_PS_TCP, ip, PORT);
	give_qp(half);
	run(remove);

	/* A transfer gets an error completion, a disconnect the event that the connection has
	 * ended. */
	double start = seconds();
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(pairs[0].active->qp, &wr, &bad) == 0);
	struct ibv_wc wc = awaited(pairs[0].active->send_cq);
	CHECK((int)wc.status != -1 && wc.status != IBV_WC_SUCCESS && seconds() - start < 15);
	start = seconds();
	for (int i = 0; i < 2; i++) {
		CHECK(rdma_disconnect(pairs[i].active) == 0);
		CHECK(EXPECT(channel, RDMA_CM_EVENT_DISCONNECTED) == 0);
	}
	CHECK(seconds() - start < 5);
	/* A connect reports that there is no route. */
	CHECK(rdma_connect(half, NULL) == 0);
	IS("no way", EXPECT(channel, RDMA_CM_EVENT_UNREACHABLE), -ETIMEDOUT);
	CHECK(seconds() - start < 5);
	destroy(half);
	for (int i = 0; i < 2; i++)
		destroy(pairs[i].active);
	late = new_id(channel, RDMA_PS_TCP);
	FAILS("binding", rdma_bind_addr(late, at_port(ip, PORT + 2)), EADDRNOTAVAIL);
	destroy(late);

	/* It is there again, and so is who listens. */
	run(add);
	struct pair pair = connected(channel, answers, ip, PORT);
	transfer(pair);
	destroy(pair.active);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	destroy(pair.passive);
	CHECK(rdma_listen(bound, 0) == 0);
	pair = connected(channel, answers, ip, PORT + 1);
	transfer(pair);
	/* The other ends were never told, and end what they have. */
	for (int i = 0; i < 2; i++) {
		CHECK(rdma_disconnect(pairs[i].passive) == 0);
		CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
		destroy(pairs[i].passive);
	}
	destroy(pair.active);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	destroy(pair.passive);
	destroy(bound);
	destroy(listen);
}

/* A neighbour that does not know RoCE: a request stays without answer until it is given up,
 * after 69 s as from a kernel; destroying the identifier does not wait for that. */
static void no_roce_there(void)
{
	run("ip neigh replace 10.9.0.8 lladdr 02:00:00:00:00:08 dev va nud permanent");
	struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, "10.9.0.8", PORT);
	give_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	NOTHING(channel, 500);
	FAILS("ending what has not begun", rdma_disconnect(id), EINVAL);
	double start = seconds();
	destroy(id);
	CHECK(seconds() - start < 1);
	NOTHING(channel, 0);
}

int main(void)
{
	saying = memfd_create("stderr", 0);
	terminal = dup(2);
	CHECK(saying >= 0 && atexit(tell_all) == 0 && dup2(saying, 2) == 2);
	no_device();
	CHECK(dup2(terminal, 2) == 2);
	run("ip link add va type veth peer name vb && ip link set va up && ip link set vb up");
	only_link_local();
	run("ip addr add 10.9.0.1/24 dev va && ip -6 addr add fd09::1/64 dev vb nodad");
	vanishing();
	no_roce_there();
	CHECK(dup2(saying, 2) == 2);
	a_stranger("fd09::1");
	CHECK(dup2(terminal, 2) == 2);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(answers);
	return rules_hold();
}
