/* fork(2) in a program that is connected: what is the parent's stays the parent's, and the child
 * is a process of its own, which connects to itself and to its parent while the parent goes on. */
#include <sys/wait.h>
#include "cm.h"

enum { PORT = 7300, CHILDS_PORT = 7301, ROUNDS = 20, CHILDREN = 50, BYTES = 64 };

static struct rdma_event_channel *asks, *answers;
static struct pair pair;

static void ended_well(pid_t child)
{
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static pid_t forked(void)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		alarm(30); /* a hang ends in a signal */
	return child;
}

/* A child that uses what it has a copy of is refused, and neither the parent nor its peer hears
 * of it. */
static void use_the_parents(struct rdma_cm_id *listen)
{
	struct rdma_cm_event *event;
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);
	struct rdma_cm_id *id;
	struct sockaddr *ip = at_port("127.0.0.1", PORT);
	int yes = 1, mask;
	struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT };
	FAILS("get_cm_event", rdma_get_cm_event(answers, &event), ENODEV);
	FAILS("create_id", rdma_create_id(asks, &id, NULL, RDMA_PS_TCP), ENODEV);
	FAILS("bind_addr", rdma_bind_addr(listen, ip), ENODEV);
	FAILS("resolve_addr", rdma_resolve_addr(listen, NULL, ip, 1), ENODEV);
	FAILS("resolve_route", rdma_resolve_route(pair.active, 1), ENODEV);
	FAILS("listen", rdma_listen(listen, 0), ENODEV);
	FAILS("get_request", rdma_get_request(listen, &id), ENODEV);
	FAILS("connect", rdma_connect(pair.active, NULL), ENODEV);
	FAILS("accept", rdma_accept(pair.passive, NULL), ENODEV);
	FAILS("reject", rdma_reject(pair.passive, NULL, 0), ENODEV);
	FAILS("establish", rdma_establish(pair.active), ENODEV);
	FAILS("notify", rdma_notify(pair.passive, IBV_EVENT_COMM_EST), ENODEV);
	FAILS("disconnect", rdma_disconnect(pair.active), ENODEV);
	FAILS("migrate_id", rdma_migrate_id(pair.active, NULL), ENODEV);
	FAILS("set_option", rdma_set_option(listen, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof yes), ENODEV);
	FAILS("join_multicast", rdma_join_multicast(listen, at_port("239.1.2.3", 0), NULL), ENODEV);
	FAILS("leave_multicast", rdma_leave_multicast(listen, at_port("239.1.2.3", 0)), ENODEV);
	FAILS("init_qp_attr", rdma_init_qp_attr(pair.active, &state, &mask), ENODEV);
	FAILS("create_qp", rdma_create_qp(listen, pair.active->pd, &attr), ENODEV);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	IS("post_send", ibv_post_send(pair.active->qp, &wr, &bad), ENODEV);
	/* What many programs do before they execute another: the memory goes, and nothing else
	 * happens. */
	rdma_destroy_qp(pair.active);
	rdma_destroy_id(pair.active);
	rdma_destroy_id(listen);
	rdma_destroy_event_channel(asks);
}

/* Events that the parent has fetched, or has not, are not the child's. */
static void forks_beside_events(void)
{
	struct rdma_cm_id *ids[2];
	for (int i = 0; i < 2; i++) {
		ids[i] = new_id(asks, RDMA_PS_TCP);
		CHECK(rdma_resolve_addr(ids[i], NULL, at_port("127.0.0.1", PORT), 1000) == 0);
	}
	struct rdma_cm_event *fetched = EVENT(asks, RDMA_CM_EVENT_ADDR_RESOLVED);
	pid_t child = forked();
	if (child == 0) {
		IS("destroying", rdma_destroy_id(ids[1]), 0);
		IS("destroying what has an event out", rdma_destroy_id(ids[0]), 0);
		exit(broken != 0);
	}
	ended_well(child);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	CHECK(fetched->id == ids[0] && rdma_ack_cm_event(fetched) == 0);
	destroy(ids[0]);
	destroy(ids[1]);
}

/* One message from one process to the other. */
static void say(struct rdma_cm_id *id, int sends)
{
	static char memory[BYTES];
	struct ibv_mr *region = ibv_reg_mr(id->pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	CHECK(region);
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, region->lkey };
	struct ibv_wc wc;
	if (sends) {
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		memset(memory, 0x5a, BYTES);
		CHECK(ibv_post_send(id->qp, &wr, &bad) == 0);
		wc = awaited(id->send_cq);
	} else {
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_post_recv(id->qp, &wr, &bad) == 0);
		wc = awaited(id->recv_cq);
		CHECK(memory[0] == 0x5a && memory[BYTES - 1] == 0x5a);
	}
	CHECK(wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(region) == 0);
}

/* The child has a device, channels and identifiers of its own, at the address of its parent. */
static void use_its_own(void)
{
	struct ibv_context *parents = pair.active->verbs;
	struct rdma_event_channel *own = new_channel(), *other = new_channel();
	struct rdma_cm_id *listen = listener(other, RDMA_PS_TCP, "127.0.0.1", CHILDS_PORT);
	CHECK(listen->verbs != parents);
	struct pair its = connected(own, other, "127.0.0.1", CHILDS_PORT);
	CHECK(its.active->verbs == listen->verbs && its.passive->verbs == listen->verbs);
	for (int i = 0; i < ROUNDS; i++)
		transfer(its);
	struct rdma_cm_id *to_parent = routed(own, RDMA_PS_TCP, "127.0.0.1", PORT);
	give_qp(to_parent);
	CHECK(rdma_connect(to_parent, NULL) == 0);
	CHECK(EXPECT(own, RDMA_CM_EVENT_ESTABLISHED) == 0);
	say(to_parent, 1);
	say(to_parent, 0);
	CHECK(rdma_disconnect(its.active) == 0);
	CHECK(EXPECT(other, RDMA_CM_EVENT_DISCONNECTED) == 0);
	CHECK(rdma_disconnect(its.passive) == 0);
	CHECK(EXPECT(own, RDMA_CM_EVENT_DISCONNECTED) == 0);
	destroy(its.active);
	destroy(its.passive);
	CHECK(rdma_destroy_id(listen) == 0);
	/* The connection with the parent ends with the process. */
}

static int stormy = 1;

static void *binds(void *unused)
{
	struct rdma_event_channel *own = new_channel();
	while (__atomic_load_n(&stormy, __ATOMIC_SEQ_CST)) {
		struct rdma_cm_id *id = new_id(own, RDMA_PS_TCP);
		CHECK(rdma_bind_addr(id, at_port("127.0.0.1", 0)) == 0);
		CHECK(rdma_destroy_id(id) == 0);
	}
	rdma_destroy_event_channel(own);
	return unused;
}

/* What another thread was in the middle of keeps no child from the same. */
static void forks_beside_calls(void)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, binds, NULL) == 0);
	for (int i = 0; i < CHILDREN; i++) {
		pid_t child = forked();
		if (child == 0) {
			struct rdma_cm_id *id = new_id(new_channel(), RDMA_PS_TCP);
			CHECK(rdma_bind_addr(id, at_port("127.0.0.1", 0)) == 0);
			exit(0);
		}
		ended_well(child);
	}
	__atomic_store_n(&stormy, 0, __ATOMIC_SEQ_CST);
	CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
	asks = new_channel();
	answers = new_channel();
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
	pair = connected(asks, answers, "127.0.0.1", PORT);
	transfer(pair);

	pid_t child = forked();
	if (child == 0) {
		use_the_parents(listen);
		exit(broken != 0); /* with all that a process does at its end */
	}
	transfer(pair);
	ended_well(child);
	transfer(pair);
	NOTHING(asks, 50);
	NOTHING(answers, 50);

	child = forked();
	if (child == 0) {
		use_its_own();
		exit(broken != 0);
	}
	for (int i = 0; i < ROUNDS; i++)
		transfer(pair);
	struct rdma_cm_id *from_child = requested(answers);
	CHECK(rdma_accept(from_child, NULL) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_ESTABLISHED) == 0);
	say(from_child, 0);
	say(from_child, 1);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	ended_well(child);
	destroy(from_child);

	/* A grandchild, whose parent had no use for any of it. */
	child = forked();
	if (child == 0) {
		pid_t grandchild = forked();
		if (grandchild == 0) {
			struct rdma_event_channel *own = new_channel(), *other = new_channel();
			struct rdma_cm_id *its = listener(other, RDMA_PS_TCP, "127.0.0.1", CHILDS_PORT);
			transfer(connected(own, other, "127.0.0.1", CHILDS_PORT));
			CHECK(rdma_destroy_id(its) == 0);
			exit(broken != 0);
		}
		ended_well(grandchild);
		exit(broken != 0);
	}
	ended_well(child);

	forks_beside_events();
	forks_beside_calls();
	transfer(pair);
	NOTHING(asks, 50);
	CHECK(rdma_disconnect(pair.active) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	CHECK(rdma_disconnect(pair.passive) == 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_DISCONNECTED) == 0);
	destroy(pair.active);
	destroy(pair.passive);
	CHECK(rdma_destroy_id(listen) == 0);
	rdma_destroy_event_channel(asks);
	rdma_destroy_event_channel(answers);
	return rules_hold();
}
