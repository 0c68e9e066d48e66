/* A peer whose port has a larger path MTU than ours, which no queue pair here can have (see
 * `SMALL` of cm.rs): the request is refused with the reason that says so. The program never sees
 * one that it cannot accept. */
#include "cm.h"
#include <sys/wait.h>

enum { PORT = 7700, INVALID_PATH_MTU = 26 };

/* A process whose port has this path MTU, or that of the interface, asks for a connection; how
 * that ends. */
static pid_t ask(const char *path_mtu, enum rdma_cm_event_type wanted, int status)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child != 0)
		return child;
	alarm(60); /* a hang ends in a signal */
	if (path_mtu)
		CHECK(setenv("AIRDMA_MTU", path_mtu, 1) == 0);
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = routed(channel, RDMA_PS_TCP, "127.0.0.1", PORT);
	give_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	IS("status", EXPECT(channel, wanted), status);
	_exit(broken != 0);
}

static void ended_well(pid_t child)
{
	int status = -1;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *listens = listener(channel, RDMA_PS_TCP, "127.0.0.1", PORT);
	pid_t larger = ask("4096", RDMA_CM_EVENT_REJECTED, INVALID_PATH_MTU);
	struct rdma_cm_event *event = event_within(channel, 2000);
	if (event) {
		struct rdma_cm_id *id = event->id;
		CHECK(rdma_ack_cm_event(event) == 0);
		give_qp(id);
		IS("accepting what the program was told of", rdma_accept(id, NULL), 0);
		destroy(id);
	}
	ended_well(larger);
	/* One that fits is accepted. */
	pid_t same = ask(NULL, RDMA_CM_EVENT_ESTABLISHED, 0);
	struct rdma_cm_id *id = requested(channel);
	CHECK(rdma_accept(id, NULL) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	ended_well(same);
	destroy(id);
	destroy(listens);
	rdma_destroy_event_channel(channel);
	return rules_hold();
}
