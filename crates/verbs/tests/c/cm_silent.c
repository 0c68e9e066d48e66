/* A peer that does not run any more: a program that ends its connections to it one after the
 * other waits for its answers once, and not for each. */
#include "cm.h"
#include <signal.h>
#include <sys/wait.h>

enum { PORT = 7220, CONNECTIONS = 8 };

/* With one timer for each: 4.8 s. */
static const double SECONDS_MAX = 2.4;

/* The other process: as many connections, each with receives posted. */
static void peer(void)
{
	static char buffer[64];
	struct rdma_event_channel *channel = new_channel();
	usleep(200000);
	for (int i = 0; i < CONNECTIONS; i++) {
		struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, "127.0.0.1", PORT);
		give_qp(id);
		struct ibv_mr *mr = ibv_reg_mr(id->pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_sge sge = { (uintptr_t)buffer, sizeof buffer, mr->lkey };
		struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_post_recv(id->qp, &receive, &bad) == 0);
		CHECK(rdma_connect(id, NULL) == 0);
		CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	}
	for (;;)
		pause();
}

int main(void)
{
	static char buffer[64];
	struct rdma_cm_id *ids[CONNECTIONS];
	pid_t child = fork();
	if (child == 0)
		peer();
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *listen = listener(channel, RDMA_PS_TCP, "127.0.0.1", PORT);
	for (int i = 0; i < CONNECTIONS; i++) {
		ids[i] = requested(channel);
		CHECK(rdma_accept(ids[i], NULL) == 0);
		CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	}
	int status;
	CHECK(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child);

	double since = seconds();
	for (int i = 0; i < CONNECTIONS; i++) {
		struct ibv_mr *mr = ibv_reg_mr(ids[i]->pd, buffer, sizeof buffer, 0);
		struct ibv_sge sge = { (uintptr_t)buffer, sizeof buffer, mr->lkey };
		struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .num_sge = 1, .sg_list = &sge }, *bad;
		CHECK(ibv_post_send(ids[i]->qp, &send, &bad) == 0);
		CHECK(rdma_disconnect(ids[i]) == 0);
	}
	double took = seconds() - since;
	if (took > SECONDS_MAX)
		RULE_BROKEN("all ends", "%.2f s, not %.2f s at most", took, SECONDS_MAX);
	if (took < 0.5)
		RULE_BROKEN("the first end", "%.2f s: nothing was waited for", took);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	(void)listen;
	return rules_hold();
}
