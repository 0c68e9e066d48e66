/* Arguments that rdma_* refuse, and calls in the wrong state: the numbers are those of librdmacm
 * and of the kernel behind it. */
#include "cm.h"
#include <pthread.h>

static struct rdma_event_channel *channel, *other;

static void nothing_at_all(void)
{
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	struct rdma_addrinfo *info, hints = { .ai_flags = RAI_PASSIVE }, unknown = { .ai_flags = 0x100 };
	struct rdma_addrinfo torn = { .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_UD };
	struct ibv_qp_attr attr;
	struct ibv_ece ece;
	int mask, value = 1;
	struct sockaddr *ip = at_port("127.0.0.1", 7000);
	rdma_destroy_event_channel(NULL);
	FAILS("an identifier of an unknown port space", rdma_create_id(channel, &id, NULL, 0x7), EINVAL);
	FAILS("an identifier nowhere", rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	FAILS("no identifier to destroy", rdma_destroy_id(NULL), EINVAL);
	FAILS("an event of no channel", rdma_get_cm_event(NULL, &event), EINVAL);
	FAILS("an event nowhere", rdma_get_cm_event(channel, NULL), EINVAL);
	FAILS("no event to acknowledge", rdma_ack_cm_event(NULL), EINVAL);
	FAILS("no identifier to bind", rdma_bind_addr(NULL, ip), EINVAL);
	FAILS("no identifier to resolve", rdma_resolve_addr(NULL, NULL, ip, 1), EINVAL);
	FAILS("no identifier with a route", rdma_resolve_route(NULL, 1), EINVAL);
	FAILS("no identifier to listen", rdma_listen(NULL, 1), EINVAL);
	FAILS("no identifier to connect", rdma_connect(NULL, NULL), EINVAL);
	FAILS("no identifier to accept", rdma_accept(NULL, NULL), EINVAL);
	FAILS("no identifier to reject", rdma_reject(NULL, NULL, 0), EINVAL);
	FAILS("no identifier to disconnect", rdma_disconnect(NULL), EINVAL);
	FAILS("no identifier to establish", rdma_establish(NULL), EINVAL);
	FAILS("no identifier to notify", rdma_notify(NULL, IBV_EVENT_COMM_EST), EINVAL);
	FAILS("no identifier with a queue pair", rdma_create_qp(NULL, NULL, NULL), EINVAL);
	FAILS("no identifier with a longer queue pair", rdma_create_qp_ex(NULL, NULL), EINVAL);
	FAILS("no identifier with a shared queue", rdma_create_srq(NULL, NULL, &(struct ibv_srq_init_attr){ 0 }), EINVAL);
	FAILS("no identifier with a longer shared queue", rdma_create_srq_ex(NULL, NULL), EINVAL);
	FAILS("no identifier to reject for its extensions", rdma_reject_ece(NULL, NULL, 0), EINVAL);
	FAILS("no identifier of extensions", rdma_get_remote_ece(NULL, &ece), EINVAL);
	FAILS("no identifier to join more", rdma_join_multicast_ex(NULL, NULL, NULL), EINVAL);
	FAILS("no identifier with attributes", rdma_init_qp_attr(NULL, &attr, &mask), EINVAL);
	FAILS("no identifier with options", rdma_set_option(NULL, 0, 0, &value, 1), EINVAL);
	FAILS("no identifier to move", rdma_migrate_id(NULL, channel), EINVAL);
	FAILS("no identifier to join", rdma_join_multicast(NULL, ip, NULL), EINVAL);
	FAILS("no identifier to leave", rdma_leave_multicast(NULL, ip), EINVAL);
	FAILS("no listener", rdma_get_request(NULL, &id), EINVAL);
	FAILS("no identifier with extensions", rdma_set_local_ece(NULL, &ece), EINVAL);
	FAILS("an endpoint of nothing", rdma_create_ep(&id, NULL, NULL, NULL), EINVAL);
	FAILS("an endpoint of an unknown port space", rdma_create_ep(&id, &(struct rdma_addrinfo){ .ai_port_space = 7 }, NULL, NULL),
	      EINVAL);
	FAILS("an endpoint without address", rdma_create_ep(&id, &(struct rdma_addrinfo){ .ai_port_space = RDMA_PS_TCP }, NULL, NULL),
	      EINVAL);
	IS("no source port", rdma_get_src_port(NULL), 0);
	rdma_destroy_qp(NULL);
	rdma_destroy_srq(NULL);
	rdma_destroy_ep(NULL);
	rdma_freeaddrinfo(NULL);
	rdma_free_devices(NULL);
	FAILS("the address of nobody", rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);
	IS("a flag that there is not", rdma_getaddrinfo("127.0.0.1", "1", &unknown, &info), EAI_BADFLAGS);
	IS("datagrams over connections", rdma_getaddrinfo("127.0.0.1", "1", &torn, &info) != 0, 1);
	IS("a name where a number should be",
	   rdma_getaddrinfo("no number", "1", &(struct rdma_addrinfo){ .ai_flags = RAI_NUMERICHOST }, &info), EAI_NONAME);
	IS("a passive address", rdma_getaddrinfo(NULL, "7471", &hints, &info), 0);
	CHECK(info->ai_src_addr && !info->ai_dst_addr && info->ai_port_space == RDMA_PS_TCP &&
	      info->ai_qp_type == IBV_QPT_RC && (info->ai_flags & RAI_PASSIVE));
	rdma_freeaddrinfo(info);
	IS("an event that there is not", strcmp(rdma_event_str(99), "UNKNOWN EVENT"), 0);
}

/* Calls on a channel without an event. */
static void empty_channel(void)
{
	struct rdma_cm_event *event;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	IS("nothing to read", poll(&fd, 1, 0), 0);
	int flags = fcntl(channel->fd, F_GETFL);
	CHECK(fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) == 0);
	FAILS("no event", rdma_get_cm_event(channel, &event), EAGAIN);
	CHECK(fcntl(channel->fd, F_SETFL, flags) == 0);
}

static void addresses(void)
{
	struct sockaddr_storage odd = { .ss_family = AF_UNIX };
	struct sockaddr_storage none = { .ss_family = AF_UNSPEC };
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *second = new_id(channel, RDMA_PS_TCP);
	FAILS("an address of another family", rdma_bind_addr(id, (void *)&odd), EINVAL);
	FAILS("no address", rdma_bind_addr(id, NULL), EINVAL);
	FAILS("an address of another host", rdma_bind_addr(id, at_port("192.0.2.9", 7000)), EADDRNOTAVAIL);
	FAILS("an address of another host in IPv6", rdma_bind_addr(id, at_port("2001:db8::9", 7000)), EADDRNOTAVAIL);
	FAILS("a link without interface", rdma_bind_addr(id, at_port("fe80::1", 7000)), EINVAL);
	FAILS("resolving a link without interface", rdma_resolve_addr(id, NULL, at_port("fe80::1", 7000), 1000), EINVAL);
	FAILS("resolving an address of another family", rdma_resolve_addr(id, NULL, (void *)&odd, 1000), EINVAL);
	FAILS("resolving nothing", rdma_resolve_addr(id, NULL, NULL, 1000), EINVAL);
	FAILS("no way there", rdma_resolve_addr(id, NULL, at_port("192.0.2.9", 1), 1000), ENETUNREACH);
	FAILS("two families", rdma_resolve_addr(id, at_port("127.0.0.1", 0), at_port("::1", 1), 1000), EINVAL);
	FAILS("a route without address", rdma_resolve_route(id, 1000), EINVAL);
	FAILS("a connection without address", rdma_connect(id, NULL), EINVAL);
	FAILS("accepting what nobody asked", rdma_accept(id, NULL), EINVAL);
	FAILS("rejecting what nobody asked", rdma_reject(id, NULL, 0), EINVAL);
	FAILS("ending what never began", rdma_disconnect(id), EINVAL);
	FAILS("establishing what never began", rdma_establish(id), EINVAL);
	FAILS("notifying what never began", rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	FAILS("a request of who does not listen", rdma_get_request(id, &second), EINVAL);
	IS("port of nobody", rdma_get_src_port(id), 0);

	IS("an address", rdma_bind_addr(id, at_port("127.0.0.1", 7000)), 0);
	CHECK(id->verbs && id->port_num == 1 && ntohs(rdma_get_src_port(id)) == 7000);
	FAILS("two addresses", rdma_bind_addr(id, at_port("127.0.0.1", 7001)), EINVAL);
	FAILS("an address in use", rdma_bind_addr(second, at_port("127.0.0.1", 7000)), EADDRINUSE);
	FAILS("all addresses where one is in use", rdma_bind_addr(second, at_port("0.0.0.0", 7000)), EADDRNOTAVAIL);
	IS("a port that somebody chooses", rdma_bind_addr(second, at_port("0.0.0.0", 0)), 0);
	CHECK(!second->verbs && rdma_get_src_port(second) != 0 && rdma_get_src_port(second) != htons(7000));
	FAILS("resolving another family than the own", rdma_resolve_addr(id, NULL, at_port("::1", 1), 1000), EINVAL);
	NOTHING(channel, 0);
	/* A source of no family is none. */
	IS("resolving", rdma_resolve_addr(id, (void *)&none, at_port("127.0.0.1", 7001), 1000), 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	FAILS("resolving twice", rdma_resolve_addr(id, NULL, at_port("127.0.0.1", 7001), 1000), EINVAL);
	FAILS("listening where one connects", rdma_listen(id, 1), EINVAL);
	FAILS("a connection without route", rdma_connect(id, NULL), EINVAL);
	IS("the route", rdma_resolve_route(id, 1000), 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == 0);
	CHECK(id->route.num_paths == 1 && id->route.path_rec && ntohs(rdma_get_dst_port(id)) == 7001);
	FAILS("the route twice", rdma_resolve_route(id, 1000), EINVAL);
	FAILS("no queue pair and no number of one", rdma_connect(id, NULL), EINVAL);
	destroy(id);
	destroy(second);
	/* The port is free again. */
	id = listener(channel, RDMA_PS_TCP, "127.0.0.1", 7000);
	FAILS("listening twice", rdma_listen(id, 1), EINVAL);
	FAILS("connecting where one listens", rdma_connect(id, NULL), EINVAL);
	FAILS("resolving where one listens", rdma_resolve_addr(id, NULL, at_port("127.0.0.1", 1), 10), EINVAL);
	FAILS("a request with a channel", rdma_get_request(id, &second), EINVAL);
	destroy(id);
	/* An identifier that listens without an address gets some port. */
	id = new_id(channel, RDMA_PS_TCP);
	IS("listening without address", rdma_listen(id, 1), 0);
	CHECK(rdma_get_src_port(id) != 0);
	destroy(id);
}

static void reuse_and_families(void)
{
	int yes = 1, no = 0;
	struct rdma_cm_id *a = new_id(channel, RDMA_PS_TCP), *b = new_id(channel, RDMA_PS_TCP);
	IS("reuse", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), 0);
	IS("bound", rdma_bind_addr(a, at_port("127.0.0.1", 7010)), 0);
	FAILS("one of two wants to share", rdma_bind_addr(b, at_port("127.0.0.1", 7010)), EADDRINUSE);
	IS("reuse too", rdma_set_option(b, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), 0);
	IS("both want to share", rdma_bind_addr(b, at_port("127.0.0.1", 7010)), 0);
	IS("the first listens", rdma_listen(a, 1), 0);
	FAILS("the second listens", rdma_listen(b, 1), EADDRINUSE);
	FAILS("no sharing once bound", rdma_set_option(b, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &no, sizeof no), EINVAL);
	destroy(a);
	IS("the second listens then", rdma_listen(b, 1), 0);
	destroy(b);

	/* IPv4 and IPv6 share their ports, unless both say otherwise. */
	a = new_id(channel, RDMA_PS_TCP);
	b = new_id(channel, RDMA_PS_TCP);
	IS("all addresses of IPv4", rdma_bind_addr(a, at_port("0.0.0.0", 7011)), 0);
	FAILS("all addresses of IPv6", rdma_bind_addr(b, at_port("::", 7011)), EADDRNOTAVAIL);
	destroy(a);
	a = new_id(channel, RDMA_PS_TCP);
	IS("own family", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof yes), 0);
	IS("own family too", rdma_set_option(b, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof yes), 0);
	IS("IPv4 only", rdma_bind_addr(a, at_port("0.0.0.0", 7011)), 0);
	IS("IPv6 only", rdma_bind_addr(b, at_port("::", 7011)), 0);
	IS("IPv4 only listens", rdma_listen(a, 1), 0);
	IS("IPv6 only listens", rdma_listen(b, 1), 0);
	FAILS("too late", rdma_set_option(b, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &no, sizeof no), EINVAL);
	/* Each hears of its own. */
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id = routed(other, RDMA_PS_TCP, i ? "::1" : "127.0.0.1", 7011);
		give_qp(id);
		CHECK(rdma_connect(id, NULL) == 0);
		struct rdma_cm_event *event = EVENT(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(event->listen_id == (i ? b : a));
		struct rdma_cm_id *new = event->id;
		CHECK(rdma_get_peer_addr(new)->sa_family == (i ? AF_INET6 : AF_INET));
		CHECK(rdma_ack_cm_event(event) == 0 && rdma_reject(new, NULL, 0) == 0);
		CHECK(EXPECT(other, RDMA_CM_EVENT_REJECTED) == 28);
		destroy(new);
		destroy(id);
	}
	destroy(a);
	destroy(b);

	/* One that does not say so takes both. */
	for (int i = 0; i < 2; i++) {
		a = listener(channel, RDMA_PS_TCP, i ? "::" : "0.0.0.0", 7012);
		struct pair pair = connected(other, channel, i ? "127.0.0.1" : "::1", 7012);
		transfer(pair);
		destroy(pair.active);
		CHECK(EXPECT(channel, RDMA_CM_EVENT_DISCONNECTED) == 0);
		destroy(pair.passive);
		destroy(a);
	}
}

static void options(void)
{
	uint8_t tos = 0x20, code = 10, long_code = 32;
	int value = 1;
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *datagrams = new_id(channel, RDMA_PS_UDP);
	IS("type of service", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1), 0);
	FAILS("a long one", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &value, sizeof value), EINVAL);
	FAILS("none", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), EINVAL);
	FAILS("a short flag", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &value, 1), EINVAL);
	IS("ack timeout", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code, 1), 0);
	FAILS("beyond the field", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &long_code, 1), EINVAL);
	FAILS("of datagrams", rdma_set_option(datagrams, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code, 1), EINVAL);
	FAILS("a name that there is not", rdma_set_option(id, RDMA_OPTION_ID, 99, &value, sizeof value), ENOSYS);
	FAILS("a level that there is not", rdma_set_option(id, 9, 0, &value, sizeof value), ENOSYS);
	destroy(id);
	destroy(datagrams);
}

static void queue_pairs(void)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC), datagrams = small_qp(IBV_QPT_UD), large = attr;
	struct ibv_qp_attr state = { .qp_state = IBV_QPS_RTR };
	int mask;
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	FAILS("a queue pair at no device", rdma_create_qp(id, NULL, &attr), EINVAL);
	FAILS("attributes at no device", rdma_init_qp_attr(id, &state, &mask), EINVAL);
	FAILS("a shared queue at no device", rdma_create_srq(id, NULL, &(struct ibv_srq_init_attr){ .attr = { 8, 1, 0 } }), EINVAL);
	destroy(id);
	id = routed(channel, RDMA_PS_TCP, "127.0.0.1", 7020);
	FAILS("a queue pair like nothing", rdma_create_qp(id, NULL, NULL), EINVAL);
	FAILS("datagrams over a connection", rdma_create_qp(id, NULL, &datagrams), EINVAL);
	large.cap.max_send_wr = 1 << 30;
	IS("too large a queue pair", rdma_create_qp(id, NULL, &large), -1);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq);
	IS("a queue pair", rdma_create_qp(id, NULL, &attr), 0);
	CHECK(id->qp && id->pd && id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel);
	CHECK(id->qp->send_cq == id->send_cq && id->send_cq->cq_context == id);
	FAILS("two", rdma_create_qp(id, NULL, &attr), EINVAL);
	FAILS("attributes of a peer that is not there", rdma_init_qp_attr(id, &state, &mask), EINVAL);
	state.qp_state = IBV_QPS_SQE;
	FAILS("attributes of no step", rdma_init_qp_attr(id, &state, &mask), EINVAL);
	state.qp_state = IBV_QPS_INIT;
	IS("attributes", rdma_init_qp_attr(id, &state, &mask), 0);
	IS("which", mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	FAILS("attributes nowhere", rdma_init_qp_attr(id, NULL, &mask), EINVAL);
	FAILS("establishing with a queue pair", rdma_establish(id), EINVAL);
	FAILS("more reads than a device does", rdma_connect(id, &(struct rdma_conn_param){ .initiator_depth = 254 }), EINVAL);
	char data[200] = "";
	struct rdma_conn_param much = { .private_data = data, .private_data_len = 57 };
	FAILS("more private data than a request holds", rdma_connect(id, &much), EINVAL);
	destroy(id);
}

static void groups(void)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_UDP);
	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = 0x80 };
	int number;
	FAILS("a group at no device", rdma_join_multicast(id, at_port("239.1.2.3", 0), NULL), EINVAL);
	IS("an address", rdma_bind_addr(id, at_port("127.0.0.1", 0)), 0);
	give_qp(id);
	FAILS("a group that is none", rdma_join_multicast(id, at_port("127.0.0.1", 0), NULL), EINVAL);
	FAILS("leaving what was not joined", rdma_leave_multicast(id, at_port("239.1.2.3", 0)), EADDRNOTAVAIL);
	FAILS("nothing to join", rdma_join_multicast(id, NULL, NULL), EINVAL);
	FAILS("a mask that there is not", rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	attr = (struct rdma_cm_join_mc_attr_ex){
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, .join_flags = 7,
		.addr = at_port("239.1.2.3", 0),
	};
	FAILS("a flag that there is not", rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	IS("a group", rdma_join_multicast(id, at_port("239.1.2.3", 0), &number), 0);
	struct rdma_cm_event *event = EVENT(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->status == 0 && event->id == id && event->param.ud.private_data == &number);
	CHECK(event->param.ud.qp_num == 0xffffff && event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK(event->param.ud.ah_attr.is_global && event->param.ud.ah_attr.grh.dgid.raw[12] == 239);
	CHECK(rdma_ack_cm_event(event) == 0);
	IS("left", rdma_leave_multicast(id, at_port("239.1.2.3", 0)), 0);
	FAILS("left twice", rdma_leave_multicast(id, at_port("239.1.2.3", 0)), EADDRNOTAVAIL);
	/* Leaving before the event is fetched drops it; joining again gives one event. */
	IS("once more", rdma_join_multicast(id, at_port("239.1.2.3", 0), &number), 0);
	IS("and left", rdma_leave_multicast(id, at_port("239.1.2.3", 0)), 0);
	IS("and again", rdma_join_multicast(id, at_port("239.1.2.3", 0), id), 0);
	event = EVENT(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->status == 0 && event->param.ud.private_data == id);
	CHECK(rdma_ack_cm_event(event) == 0);
	IS("left at last", rdma_leave_multicast(id, at_port("239.1.2.3", 0)), 0);
	/* A group of IPv6, and one to which is only sent. */
	struct rdma_cm_join_mc_attr_ex sender = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, .addr = at_port("239.1.2.4", 0),
	};
	IS("a group to send to", rdma_join_multicast_ex(id, &sender, &number), 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_MULTICAST_JOIN) == 0);
	IS("left", rdma_leave_multicast(id, at_port("239.1.2.4", 0)), 0);
	int flags = fcntl(channel->fd, F_GETFL);
	CHECK(fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) == 0);
	FAILS("no event", rdma_get_cm_event(channel, &event), EAGAIN);
	CHECK(fcntl(channel->fd, F_SETFL, flags) == 0);
	destroy(id);
	id = new_id(channel, RDMA_PS_TCP);
	IS("an address", rdma_bind_addr(id, at_port("127.0.0.1", 0)), 0);
	FAILS("a group for connections", rdma_join_multicast(id, at_port("239.1.2.3", 0), NULL), EINVAL);
	destroy(id);
}

static void devices(void)
{
	int count = 0;
	struct ibv_context **list = rdma_get_devices(&count);
	CHECK(list && count == 1 && list[0] && !list[1]);
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	IS("bound", rdma_bind_addr(id, at_port("127.0.0.1", 0)), 0);
	CHECK(id->verbs == list[0]);
	destroy(id);
	rdma_free_devices(list);
	list = rdma_get_devices(NULL);
	CHECK(list);
	rdma_free_devices(list);
}

static void names(void)
{
	struct rdma_addrinfo *info, hints = { .ai_flags = RAI_FAMILY | RAI_PASSIVE, .ai_family = AF_INET6 };
	IS("a passive address of IPv6", rdma_getaddrinfo(NULL, "7471", &hints, &info), 0);
	CHECK(info->ai_family == AF_INET6 && info->ai_src_len == sizeof(struct sockaddr_in6) && info->ai_dst_len == 0);
	struct sockaddr_in6 *passive = (void *)info->ai_src_addr;
	CHECK(passive->sin6_family == AF_INET6 && passive->sin6_port == htons(7471));
	CHECK(IN6_IS_ADDR_UNSPECIFIED(&passive->sin6_addr) && !info->ai_next);
	rdma_freeaddrinfo(info);

	hints.ai_flags = RAI_FAMILY;
	IS("IPv4 as IPv6", rdma_getaddrinfo("127.0.0.1", "1", &hints, &info) != 0, 1);
	IS("a service that there is not", rdma_getaddrinfo("127.0.0.1", "no such service", NULL, &info), EAI_SERVICE);

	/* Where from is the caller's, where to is found; datagrams have their own port space and
	 * queue pairs. */
	hints = (struct rdma_addrinfo){
		.ai_port_space = RDMA_PS_UDP, .ai_src_addr = at_port("127.0.0.1", 9), .ai_src_len = sizeof(struct sockaddr_in),
	};
	IS("datagrams", rdma_getaddrinfo("127.0.0.2", "7472", &hints, &info), 0);
	struct sockaddr_in *from = (void *)info->ai_src_addr, *to = (void *)info->ai_dst_addr;
	CHECK(info->ai_qp_type == IBV_QPT_UD && info->ai_port_space == RDMA_PS_UDP && info->ai_family == AF_INET);
	CHECK(from && from->sin_port == htons(9) && info->ai_src_len == sizeof *from);
	CHECK(to && to->sin_port == htons(7472) && to->sin_addr.s_addr == htonl(0x7f000002) && info->ai_dst_len == sizeof *to);
	CHECK((void *)from != (void *)hints.ai_src_addr);
	rdma_freeaddrinfo(info);

	/* Addresses that the caller has already. */
	hints.ai_dst_addr = at_port("::1", 7);
	hints.ai_src_addr = NULL;
	IS("no name", rdma_getaddrinfo(NULL, NULL, &hints, &info), 0);
	CHECK(info->ai_dst_addr && info->ai_dst_addr->sa_family == AF_INET6 && info->ai_family == AF_INET6);
	rdma_freeaddrinfo(info);

	/* A numeric host is not looked up, and one that is none is an error at once. */
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_NUMERICHOST | RAI_NOROUTE };
	IS("a number", rdma_getaddrinfo("::1", "7473", &hints, &info), 0);
	CHECK(info->ai_qp_type == IBV_QPT_RC && info->ai_route_len == 0 && !info->ai_src_addr);
	rdma_freeaddrinfo(info);
	errno = 0;
	IS("nowhere to put it", rdma_getaddrinfo("::1", "7473", &hints, NULL), -1);
	IS("and why", errno, EINVAL);
}

/* What rdma-core 65 has behind the public struct, from its condition variable on: a function of
 * a newer librdmacm may use it. */
static void behind_the_identifier(void)
{
	struct behind {
		char known[40];
		pthread_cond_t condition;
		pthread_mutex_t mutex;
		char more[160];
	};
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct behind *behind = (void *)(id + 1);
	static const char zeros[sizeof *behind - sizeof behind->known];
	IS("zeros", memcmp(&behind->condition, zeros, sizeof zeros), 0);
	IS("a mutex", pthread_mutex_trylock(&behind->mutex), 0);
	memset(&behind->condition, 0xff, sizeof zeros);
	IS("an address", rdma_bind_addr(id, at_port("127.0.0.1", 7009)), 0);
	destroy(id);
}

int main(void)
{
	channel = new_channel();
	other = new_channel();
	nothing_at_all();
	empty_channel();
	addresses();
	reuse_and_families();
	options();
	queue_pairs();
	groups();
	devices();
	names();
	behind_the_identifier();
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	return rules_hold();
}
