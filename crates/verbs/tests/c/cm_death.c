/* Processes that are killed, or end without disconnecting, at any moment: the other side is
 * notified in time, and the next process finds everything free. Processes are made before RDMA is
 * used. `SEED` replays a run. */
#include "cm.h"
#include <signal.h>
#include <sys/wait.h>

enum { PORT = 7400, DEADLINE_S = 30, SOON_S = 10, CONNECTIONS_MAX = 64 };

static int ready[2];

/* The active side: connects, sends for a while, disconnects. Any step may fail. */
static void asks_once(int port, int milliseconds)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	static char data[4096];
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		_exit(3);
	if (rdma_resolve_addr(id, NULL, at_port("127.0.0.1", port), 1000) || rdma_get_cm_event(channel, &event))
		_exit(4);
	rdma_ack_cm_event(event);
	if (rdma_resolve_route(id, 1000) || rdma_get_cm_event(channel, &event))
		_exit(5);
	rdma_ack_cm_event(event);
	give_qp(id);
	struct ibv_mr *mr = ibv_reg_mr(id->pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	if (rdma_connect(id, NULL) || rdma_get_cm_event(channel, &event))
		_exit(6);
	int type = event->event;
	rdma_ack_cm_event(event);
	if (type != RDMA_CM_EVENT_ESTABLISHED)
		_exit(7);
	double end = seconds() + milliseconds / 1e3;
	while (seconds() < end) {
		struct ibv_wc wc;
		int got;
		if (rdma_post_send(id, NULL, data, sizeof data, mr, IBV_SEND_SIGNALED))
			_exit(8);
		while ((got = ibv_poll_cq(id->send_cq, 1, &wc)) == 0)
			;
		if (got < 0 || wc.status != IBV_WC_SUCCESS)
			_exit(9);
	}
	rdma_disconnect(id);
	if (rdma_get_cm_event(channel, &event) == 0)
		rdma_ack_cm_event(event);
	destroy(id);
}

/* The passive side: accepts every connection, and receives until it ends, in whichever way. When
 * the parent has closed its end of `control` all connections have to end soon. 0 if they did. */
static int answers_all(int control)
{
	static struct rdma_cm_id *ids[CONNECTIONS_MAX];
	static char data[4096];
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *listen = listener(channel, RDMA_PS_TCP, "127.0.0.1", PORT);
	int open = 0;
	double end = 0;
	CHECK(write(ready[1], "r", 1) == 1);
	while (!end || (open && seconds() < end)) {
		struct pollfd fd = { .fd = control, .events = POLLIN };
		if (!end && poll(&fd, 1, 0) == 1)
			end = seconds() + DEADLINE_S;
		for (int i = 0; i < open; i++) {
			struct ibv_wc wc;
			while (ibv_poll_cq(ids[i]->recv_cq, 1, &wc) == 1)
				if (wc.status == IBV_WC_SUCCESS)
					CHECK(rdma_post_recv(ids[i], ids[i]->context, data, 4096, ids[i]->context) == 0);
		}
		struct rdma_cm_event *event = event_within(channel, 1);
		if (!event)
			continue;
		int type = event->event;
		struct rdma_cm_id *id = event->id;
		CHECK(rdma_ack_cm_event(event) == 0);
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			CHECK(open < CONNECTIONS_MAX);
			ids[open++] = id;
			give_qp(id);
			id->context = ibv_reg_mr(id->pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
			CHECK(id->context);
			for (int i = 0; i < 8; i++)
				CHECK(rdma_post_recv(id, id->context, data, 4096, id->context) == 0);
			/* The active side may be gone: then an event says so. */
			rdma_accept(id, NULL);
		} else if (type != RDMA_CM_EVENT_ESTABLISHED) {
			int i = 0;
			while (i < open && ids[i] != id)
				i++;
			CHECK(i < open);
			ids[i] = ids[--open];
			struct ibv_mr *mr = id->context;
			destroy(id);
			CHECK(ibv_dereg_mr(mr) == 0);
		}
	}
	destroy(listen);
	if (open)
		fprintf(stderr, "%d connections were never ended\n", open);
	return open != 0;
}

struct server {
	pid_t pid;
	int control;
};

static struct server server(void)
{
	int control[2];
	CHECK(pipe(control) == 0);
	struct server new = { fork(), control[1] };
	CHECK(new.pid >= 0);
	if (new.pid == 0) {
		close(control[1]);
		_exit(answers_all(control[0]) ? 2 : 0);
	}
	close(control[0]);
	return new;
}

static pid_t client(int milliseconds)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid)
		return pid;
	asks_once(PORT, milliseconds);
	_exit(0);
}

/* The exit status, or -1 for one that was killed; the process is killed if it does not end. */
static int ended(pid_t pid)
{
	double end = seconds() + DEADLINE_S + 10;
	int status;
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (seconds() > end) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -2;
		}
		usleep(1000);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void await_ready(void)
{
	char byte;
	struct pollfd fd = { .fd = ready[0], .events = POLLIN };
	CHECK(poll(&fd, 1, 20000) == 1 && read(ready[0], &byte, 1) == 1);
}

/* Clients are killed at some moment: their server goes on, and hears of each, at the latest when
 * the next one comes. */
static void clients_die(int rounds)
{
	struct server serves = server();
	await_ready();
	for (int i = 0; i < rounds; i++) {
		int moment = rand() % 12000;
		pid_t dies = client(60000);
		usleep(moment);
		kill(dies, SIGKILL);
		IS("it was killed", ended(dies), -1);
		double start = seconds();
		int status = ended(client(1));
		if (status != 0 || seconds() - start > SOON_S)
			RULE_BROKEN("the next client", "status %d, after %d us, in %.1f s", status, moment, seconds() - start);
	}
	close(serves.control);
	IS("their server", ended(serves.pid), 0);
}

/* Servers are killed at some moment: the client is not left waiting, and the next server may
 * listen at once. */
static void servers_die(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		int moment = rand() % 12000;
		struct server dies = server();
		await_ready();
		pid_t asks = client(1000);
		usleep(moment);
		kill(dies.pid, SIGKILL);
		IS("it was killed", ended(dies.pid), -1);
		close(dies.control);
		double start = seconds();
		struct server lives = server();
		await_ready();
		int status = ended(client(1));
		if (status != 0 || seconds() - start > SOON_S)
			RULE_BROKEN("the next client", "status %d, after %d us, in %.1f s", status, moment, seconds() - start);
		/* A request that was lost with the server is repeated after 4.3 seconds, and
		 * reaches the next one. */
		status = ended(asks);
		if (status < 0 || seconds() - start > 15)
			RULE_BROKEN("its client", "status %d, after %d us, in %.1f s", status, moment, seconds() - start);
		close(lives.control);
		IS("the next server", ended(lives.pid), 0);
	}
}

/* A process that exits without disconnecting, or returns from main, leaves no peer waiting. */
static void farewells(void)
{
	for (int forks = 0; forks < 2; forks++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			struct rdma_event_channel *channel = new_channel();
			struct rdma_cm_id *listen = listener(channel, RDMA_PS_TCP, "127.0.0.1", PORT);
			CHECK(write(ready[1], "r", 1) == 1);
			struct rdma_cm_id *id = requested(channel);
			CHECK(rdma_accept(id, NULL) == 0);
			CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
			if (forks) {
				/* The end of a child is not ours. */
				pid_t child = fork();
				if (child == 0)
					exit(0);
				CHECK(ended(child) == 0);
				CHECK(rdma_post_send(id, NULL, NULL, 0, NULL, IBV_SEND_SIGNALED) == 0);
				CHECK(awaited(id->send_cq).status == IBV_WC_SUCCESS);
			}
			(void)listen;
			exit(0);
		}
		await_ready();
		pid_t asks = fork();
		CHECK(asks >= 0);
		if (asks == 0) {
			struct rdma_event_channel *channel = new_channel();
			struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, "127.0.0.1", PORT);
			give_qp(id);
			struct ibv_recv_wr nothing = { 0 }, *bad;
			CHECK(ibv_post_recv(id->qp, &nothing, &bad) == 0);
			CHECK(rdma_connect(id, NULL) == 0);
			CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
			double start = seconds();
			if (forks)
				CHECK(awaited(id->recv_cq).status == IBV_WC_SUCCESS);
			CHECK(EXPECT(channel, RDMA_CM_EVENT_DISCONNECTED) == 0);
			CHECK(seconds() - start < 5);
			_exit(0);
		}
		IS("who ended without a word", ended(pid), 0);
		IS("who heard of it", ended(asks), 0);
	}
}

/* The same at chosen moments: one of two processes stops for good at some step, and is killed
 * there; the other is notified, and the next process finds the port free. */
struct stage {
	const char *name;
	void (*serves)(struct rdma_event_channel *channel);
	void (*asks)(struct rdma_event_channel *channel, int port);
	int server_dies, server_stops;
};

static int go[2];

static void tell(void)
{
	CHECK(write(ready[1], "r", 1) == 1);
}

static void until_killed(void)
{
	tell();
	for (;;)
		pause();
}

static void until_told(void)
{
	char byte;
	CHECK(read(go[0], &byte, 1) == 1);
}

/* A connection ends, or is refused, in time; datagrams may be lost with a process that dies, so
 * what came before may be missing. */
static void ends_soon(struct rdma_event_channel *channel)
{
	for (;;) {
		struct rdma_cm_event *event = event_within(channel, SOON_S * 1000);
		int type = event ? (int)event->event : -1;
		if (!event || (type != RDMA_CM_EVENT_ESTABLISHED && type != RDMA_CM_EVENT_REJECTED &&
			       type != RDMA_CM_EVENT_DISCONNECTED))
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, event ? rdma_event_str(type) : "no event");
		CHECK(event && rdma_ack_cm_event(event) == 0);
		if (type != RDMA_CM_EVENT_ESTABLISHED) {
			CHECK(type == RDMA_CM_EVENT_REJECTED || type == RDMA_CM_EVENT_DISCONNECTED);
			return;
		}
	}
}

static void serves_nobody(struct rdma_event_channel *channel)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 10000) == 1);
	until_killed();
}

static void serves_fetched(struct rdma_event_channel *channel)
{
	requested(channel);
	until_killed();
}

static struct rdma_cm_id *accepted(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = requested(channel);
	CHECK(rdma_accept(id, NULL) == 0);
	return id;
}

static void serves_accepted(struct rdma_event_channel *channel)
{
	accepted(channel);
	until_killed();
}

static void serves_established(struct rdma_event_channel *channel)
{
	accepted(channel);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	until_killed();
}

static void serves_stopped(struct rdma_event_channel *channel)
{
	accepted(channel);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	raise(SIGSTOP);
	ends_soon(channel);
}

static void serves_who_is_gone(struct rdma_event_channel *channel)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	until_told();
	if (poll(&fd, 1, SOON_S * 1000) == 1) {
		accepted(channel);
		ends_soon(channel);
	}
}

static void serves_who_goes(struct rdma_event_channel *channel)
{
	accepted(channel);
	until_told();
	ends_soon(channel);
}

static void serves_who_was_there(struct rdma_event_channel *channel)
{
	accepted(channel);
	until_told();
	ends_soon(channel);
}

static struct rdma_cm_id *asked(struct rdma_event_channel *channel, int port)
{
	struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, "127.0.0.1", port);
	give_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	return id;
}

static struct rdma_cm_id *asked_without_qp(struct rdma_event_channel *channel, int port)
{
	struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, "127.0.0.1", port);
	CHECK(rdma_connect(id, &(struct rdma_conn_param){ .qp_num = 0x1234 }) == 0);
	return id;
}

static void asks_in_vain(struct rdma_event_channel *channel, int port)
{
	asked(channel, port);
	ends_soon(channel);
}

static void asks_late(struct rdma_event_channel *channel, int port)
{
	struct rdma_cm_id *id = asked_without_qp(channel, port);
	struct rdma_cm_event *event = event_within(channel, SOON_S * 1000);
	CHECK(event);
	int type = event->event;
	CHECK(rdma_ack_cm_event(event) == 0);
	if (type == RDMA_CM_EVENT_REJECTED)
		return; /* the answer was lost with who gave it */
	CHECK(type == RDMA_CM_EVENT_CONNECT_RESPONSE);
	until_told();
	/* The connection may be established already. */
	rdma_establish(id);
	ends_soon(channel);
}

static void asks_and_loses(struct rdma_event_channel *channel, int port)
{
	asked(channel, port);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	until_told();
	ends_soon(channel);
}

static void asks_and_dies(struct rdma_event_channel *channel, int port)
{
	asked(channel, port);
	until_killed();
}

static void asks_and_dies_answered(struct rdma_event_channel *channel, int port)
{
	asked_without_qp(channel, port);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_CONNECT_RESPONSE) == 0);
	until_killed();
}

static void asks_and_dies_connected(struct rdma_event_channel *channel, int port)
{
	asked(channel, port);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	until_killed();
}

static void asks_and_dies_ending(struct rdma_event_channel *channel, int port)
{
	struct rdma_cm_id *id = asked(channel, port);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	until_told();
	CHECK(rdma_disconnect(id) == 0);
	until_killed();
}

static void asks_and_ends(struct rdma_event_channel *channel, int port)
{
	struct rdma_cm_id *id = asked(channel, port);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	until_told();
	CHECK(rdma_disconnect(id) == 0);
	tell();
	ends_soon(channel);
}

static const struct stage stages[] = {
	{ "the server, before it fetched the request", serves_nobody, asks_in_vain, 1, 0 },
	{ "the server, before it accepted", serves_fetched, asks_in_vain, 1, 0 },
	{ "the server, before it heard the last message", serves_accepted, asks_late, 1, 0 },
	{ "the server of a connection", serves_established, asks_and_loses, 1, 0 },
	{ "the server, while the client ends the connection", serves_stopped, asks_and_ends, 1, 1 },
	{ "the client, before it had an answer", serves_who_is_gone, asks_and_dies, 0, 0 },
	{ "the client, before it said the last message", serves_who_goes, asks_and_dies_answered, 0, 0 },
	{ "the client of a connection", serves_who_was_there, asks_and_dies_connected, 0, 0 },
	{ "the client, while it ends the connection", serves_stopped, asks_and_dies_ending, 0, 1 },
};

enum { STAGES = sizeof stages / sizeof stages[0] };

static pid_t serving(void (*serves)(struct rdma_event_channel *), int port)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid)
		return pid;
	struct rdma_event_channel *channel = new_channel();
	listener(channel, RDMA_PS_TCP, "127.0.0.1", port);
	tell();
	serves(channel);
	_exit(0);
}

static void serves_once(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = accepted(channel);
	static char data[4096];
	struct ibv_mr *mr = ibv_reg_mr(id->pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 8; i++)
		CHECK(mr && rdma_post_recv(id, NULL, data, sizeof data, mr) == 0);
	ends_soon(channel);
}

static int dies_at(const struct stage *stage, int port)
{
	int status = -1;
	CHECK(pipe(ready) == 0 && pipe(go) == 0);
	pid_t serves = serving(stage->serves, port);
	await_ready();
	pid_t asks = fork();
	CHECK(asks >= 0);
	if (asks == 0) {
		stage->asks(new_channel(), port);
		_exit(0);
	}
	if (stage->server_stops) {
		CHECK(waitpid(serves, &status, WUNTRACED) == serves && WIFSTOPPED(status));
		CHECK(write(go[1], "g", 1) == 1);
	}
	await_ready();
	pid_t dies = stage->server_dies ? serves : asks, lives = stage->server_dies ? asks : serves;
	kill(dies, SIGKILL);
	IS(stage->name, ended(dies), -1);
	CHECK(write(go[1], "g", 1) == 1);
	kill(lives, SIGCONT);
	if (stage->server_dies) {
		/* Its place is free at once, while its client does not know yet. */
		pid_t next = serving(serves_once, port + STAGES);
		await_ready();
		kill(next, SIGKILL);
		IS("killed too", ended(next), -1);
		IS(stage->name, ended(lives), 0);
	} else {
		IS(stage->name, ended(lives), 0);
	}
	pid_t next = serving(serves_once, port);
	await_ready();
	double start = seconds();
	asks = fork();
	CHECK(asks >= 0);
	if (asks == 0) {
		asks_once(port, 0);
		_exit(0);
	}
	IS("the next client", ended(asks), 0);
	IS("the next server", ended(next), 0);
	IS("their time", seconds() - start < SOON_S, 1);
	return broken;
}

static void at_each_stage(void)
{
	for (int i = 0; i < STAGES; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(dies_at(&stages[i], PORT + 10 + i));
		IS(stages[i].name, ended(pid), 0);
	}
}

/* A port that another process listens at is in use, for as long as it does. */
static void waits(struct rdma_event_channel *channel)
{
	(void)channel;
	until_told();
}

static void ports_of_others(void)
{
	CHECK(pipe(go) == 0);
	pid_t other = serving(waits, PORT);
	await_ready();
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		struct rdma_event_channel *channel = new_channel();
		const char *ips[] = { "127.0.0.1", "0.0.0.0" };
		for (int i = 0; i < 2; i++) {
			struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
			CHECK(rdma_bind_addr(id, at_port(ips[i], PORT)) == 0);
			if (i == 0)
				FAILS("somebody else's port", rdma_listen(id, 0), EADDRINUSE);
			destroy(id);
		}
		CHECK(write(go[1], "g", 1) == 1);
		IS("another service", rdma_destroy_id(listener(channel, RDMA_PS_UDP, "127.0.0.1", PORT)), 0);
		_exit(broken != 0);
	}
	IS("who wanted the port", ended(pid), 0);
	IS("who had it", ended(other), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		_exit(rdma_destroy_id(listener(new_channel(), RDMA_PS_TCP, "127.0.0.1", PORT)));
	IS("who comes later", ended(pid), 0);
}

int main(void)
{
	const char *given = getenv("SEED");
	unsigned seed = given ? strtoul(given, NULL, 10) : (unsigned)(seconds() * 1e6);
	fprintf(stderr, "SEED=%u\n", seed);
	srand(seed);
	at_each_stage();
	CHECK(pipe(ready) == 0);
	ports_of_others();
	farewells();
	clients_die(10);
	servers_die(6);
	return rules_hold();
}
