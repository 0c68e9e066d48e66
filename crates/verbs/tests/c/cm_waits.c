/* Calls that wait for their events (no channel), endpoints, and threads that share a channel. */
#include "cm.h"
#include <signal.h>

enum { PORT = 7200, ROUNDS = 20 };

static struct rdma_event_channel *asks, *answers;

static struct rdma_addrinfo *found(const char *ip, int port, int flags, int space)
{
	char service[8];
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = space }, *info;
	snprintf(service, sizeof service, "%d", port);
	CHECK(rdma_getaddrinfo(ip, service, &hints, &info) == 0);
	return info;
}

static struct rdma_cm_id *endpoint(const char *ip, int port, int flags)
{
	struct rdma_cm_id *id;
	struct rdma_addrinfo *info = found(ip, port, flags, RDMA_PS_TCP);
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	CHECK(rdma_create_ep(&id, info, NULL, &attr) == 0);
	rdma_freeaddrinfo(info);
	return id;
}

/* One that is asked, one that asks; each call waits. */
static void *serves(void *listen)
{
	struct rdma_cm_id *id;
	char in[32] = "";
	for (int i = 0; i < 3; i++) {
		CHECK(rdma_get_request(listen, &id) == 0 && id->qp);
		CHECK(id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && id->event->listen_id == listen);
		CHECK(id->event->param.conn.private_data_len == 56);
		if (i == 1) {
			/* The private data of a rejection. */
			CHECK(rdma_reject(id, "full", 4) == 0);
			rdma_destroy_ep(id);
			continue;
		}
		struct ibv_mr *mr = rdma_reg_msgs(id, in, sizeof in);
		CHECK(mr && rdma_post_recv(id, in, in, sizeof in, mr) == 0);
		CHECK(rdma_accept(id, NULL) == 0 && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
		struct ibv_wc wc;
		CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == (uintptr_t)in);
		CHECK(strcmp(in, "hello") == 0);
		CHECK(rdma_disconnect(id) == 0 && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
		CHECK(rdma_dereg_mr(mr) == 0);
		rdma_destroy_ep(id);
	}
	return NULL;
}

static void endpoints(const char *ip)
{
	pthread_t thread;
	struct rdma_cm_id *listen = endpoint(ip, PORT, RAI_PASSIVE), *id, *other;
	FAILS("a request before listening", rdma_get_request(listen, &id), EINVAL);
	CHECK(!listen->qp && rdma_listen(listen, 0) == 0);
	CHECK(pthread_create(&thread, NULL, serves, listen) == 0);
	for (int i = 0; i < 3; i++) {
		id = endpoint(ip, PORT, 0);
		CHECK(id->qp && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
		FAILS("a request of who asks", rdma_get_request(id, &other), EINVAL);
		if (i == 1) {
			FAILS("refused", rdma_connect(id, NULL), ECONNREFUSED);
			CHECK(id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 28);
			CHECK(memcmp(id->event->param.conn.private_data, "full", 5) == 0);
			rdma_destroy_ep(id);
			continue;
		}
		CHECK(rdma_connect(id, NULL) == 0 && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
		char out[32] = "hello";
		struct ibv_mr *mr = rdma_reg_msgs(id, out, sizeof out);
		struct ibv_wc wc;
		CHECK(mr && rdma_post_send(id, NULL, out, sizeof out, mr, IBV_SEND_SIGNALED) == 0);
		CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		CHECK(rdma_disconnect(id) == 0 && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
		CHECK(rdma_dereg_mr(mr) == 0);
		rdma_destroy_ep(id);
	}
	CHECK(pthread_join(thread, NULL) == 0);
	/* No process listens there. */
	rdma_destroy_ep(listen);
	id = endpoint(ip, PORT, 0);
	FAILS("nobody is there", rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event->status == 8);
	rdma_destroy_ep(id);
}

static void endpoints_that_cannot_be(void)
{
	struct rdma_cm_id *id = NULL;
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_addrinfo *info = found("192.0.2.1", PORT, 0, RDMA_PS_TCP);
	FAILS("no way there", rdma_create_ep(&id, info, NULL, &attr), ENETUNREACH);
	rdma_freeaddrinfo(info);
	info = found("192.0.2.1", PORT, RAI_PASSIVE, RDMA_PS_TCP);
	FAILS("not our address", rdma_create_ep(&id, info, NULL, &attr), EADDRNOTAVAIL);
	rdma_freeaddrinfo(info);
	info = found("127.0.0.1", PORT, 0, RDMA_PS_TCP);
	attr.cap.max_recv_wr = 1 << 30;
	IS("too large a queue pair", rdma_create_ep(&id, info, NULL, &attr), -1);
	FAILS("nowhere", rdma_create_ep(NULL, info, NULL, &attr), EINVAL);
	rdma_freeaddrinfo(info);
}

/* Datagrams: the caller waits for the answer only. */
static void *answers_datagrams(void *listen)
{
	struct rdma_cm_id *id;
	for (int i = 0; i < 2; i++) {
		CHECK(rdma_get_request(listen, &id) == 0 && id->qp && id->qp_type == IBV_QPT_UD);
		if (i == 0) {
			struct rdma_conn_param param = { .qp_num = id->qp->qp_num };
			CHECK(rdma_accept(id, &param) == 0);
		} else {
			CHECK(rdma_reject(id, NULL, 0) == 0);
		}
		rdma_destroy_ep(id);
	}
	return NULL;
}

static void endpoints_of_datagrams(void)
{
	pthread_t thread;
	struct rdma_cm_id *ends[2];
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_UD);
	struct rdma_addrinfo *info = found("127.0.0.1", PORT, RAI_PASSIVE, RDMA_PS_UDP);
	CHECK(rdma_create_ep(&ends[0], info, NULL, &attr) == 0 && rdma_listen(ends[0], 0) == 0);
	rdma_freeaddrinfo(info);
	CHECK(pthread_create(&thread, NULL, answers_datagrams, ends[0]) == 0);
	info = found("127.0.0.1", PORT, 0, RDMA_PS_UDP);
	for (int i = 0; i < 2; i++) {
		attr = small_qp(IBV_QPT_UD);
		CHECK(rdma_create_ep(&ends[1], info, NULL, &attr) == 0);
		IS("connecting", rdma_connect(ends[1], NULL), i == 0 ? 0 : -1);
		CHECK(ends[1]->event->event == (i == 0 ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_UNREACHABLE));
		rdma_destroy_ep(ends[1]);
	}
	rdma_freeaddrinfo(info);
	CHECK(pthread_join(thread, NULL) == 0);
	rdma_destroy_ep(ends[0]);
}

/* From a channel to none and back. */
static void changing_sides(void)
{
	struct rdma_cm_id *id = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT);
	give_qp(id);
	CHECK(rdma_migrate_id(id, NULL) == 0 && id->channel && id->channel != asks);
	FAILS("nobody is there", rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(id->event);
	CHECK(rdma_migrate_id(id, asks) == 0 && id->channel == asks && !id->event);
	NOTHING(asks, 0);
	destroy(id);
}

/* Several threads fetch from one channel: each event comes once, and none is lost. */
static int fetched;
static volatile int over;

static void *fetches(void *unused)
{
	(void)unused;
	while (!over) {
		struct rdma_cm_event *event = NULL;
		CHECK(rdma_get_cm_event(asks, &event) == 0 && event);
		CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(rdma_ack_cm_event(event) == 0);
		__atomic_add_fetch(&fetched, 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

static void two_threads_on_a_channel(void)
{
	pthread_t threads[2];
	struct rdma_cm_id *ids[ROUNDS + 2];
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, fetches, NULL) == 0);
	for (int i = 0; i < ROUNDS; i++) {
		ids[i] = new_id(asks, RDMA_PS_TCP);
		CHECK(rdma_resolve_addr(ids[i], NULL, at_port("127.0.0.1", PORT), 1000) == 0);
	}
	double end = seconds() + 30;
	while (__atomic_load_n(&fetched, __ATOMIC_SEQ_CST) < ROUNDS && seconds() < end)
		usleep(1000);
	IS("events", __atomic_load_n(&fetched, __ATOMIC_SEQ_CST), ROUNDS);
	/* One more for each thread, to go home with. A thread may take both. */
	over = 1;
	for (int i = 0; i < 2; i++) {
		ids[ROUNDS + i] = new_id(asks, RDMA_PS_TCP);
		CHECK(rdma_resolve_addr(ids[ROUNDS + i], NULL, at_port("127.0.0.1", PORT), 1000) == 0);
	}
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	for (int i = 0; i < ROUNDS + 2; i++)
		destroy(ids[i]);
}

static void *waits(void *unused)
{
	struct rdma_cm_event *event;
	(void)unused;
	rdma_get_cm_event(asks, &event);
	return NULL;
}

/* A thread that waits can be cancelled, and leaves the channel as it was. */
static void cancelled(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		pthread_t thread;
		void *result;
		CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
		usleep(i % 4 * 500);
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
		IS("cancelled", result == PTHREAD_CANCELED, 1);
	}
	destroy(routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT));
}

static void interrupts(int signal)
{
	(void)signal;
}

static void *interrupted(void *unused)
{
	struct rdma_cm_event *event;
	(void)unused;
	FAILS("a signal", rdma_get_cm_event(asks, &event), EINTR);
	return NULL;
}

static void signals(void)
{
	pthread_t thread;
	struct sigaction action = { .sa_handler = interrupts };
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, interrupted, NULL) == 0);
	struct timespec soon;
	do {
		pthread_kill(thread, SIGUSR1);
		clock_gettime(CLOCK_REALTIME, &soon);
		soon.tv_sec += 1;
	} while (pthread_timedjoin_np(thread, NULL, &soon) != 0);
}

/* Connections begin, are used and end in two threads that know of each other by the wire alone. */
static void *accepts(void *unused)
{
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
	int ended = 0;
	(void)unused;
	while (ended < ROUNDS) {
		struct rdma_cm_event *event = event_within(answers, 30000);
		CHECK(event);
		struct rdma_cm_id *id = event->id;
		int type = event->event;
		CHECK(rdma_ack_cm_event(event) == 0);
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			give_qp(id);
			CHECK(rdma_accept(id, NULL) == 0);
		} else if (type == RDMA_CM_EVENT_DISCONNECTED) {
			destroy(id);
			ended++;
		} else {
			CHECK(type == RDMA_CM_EVENT_ESTABLISHED);
		}
	}
	destroy(listen);
	return NULL;
}

static void many(void)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, accepts, NULL) == 0);
	usleep(50000);
	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_cm_id *id = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT);
		give_qp(id);
		CHECK(rdma_connect(id, NULL) == 0);
		CHECK(EXPECT(asks, RDMA_CM_EVENT_ESTABLISHED) == 0);
		if (i % 2) {
			CHECK(rdma_disconnect(id) == 0);
			CHECK(EXPECT(asks, RDMA_CM_EVENT_DISCONNECTED) == 0);
		}
		destroy(id);
	}
	CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
	asks = new_channel();
	answers = new_channel();
	endpoints("127.0.0.1");
	endpoints("::1");
	endpoints_of_datagrams();
	endpoints_that_cannot_be();
	changing_sides();
	two_threads_on_a_channel();
	cancelled();
	signals();
	many();
	rdma_destroy_event_channel(asks);
	rdma_destroy_event_channel(answers);
	return rules_hold();
}
