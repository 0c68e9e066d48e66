/* A program that ends in a signal handler, as fi_pingpong does: exit(3) runs the library's exit
 * handler in the middle of whatever the thread was doing in the library. Not allowed by POSIX,
 * and seen everywhere: it has to end all the same. */
#include "cm.h"
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { PORT = 7600, CHILDREN = 16, SECONDS_MAX = 10 };

static void on_signal(int number)
{
	(void)number;
	exit(7);
}

/* Has a connection, and is at work until the signal comes. */
static void child(int number)
{
	struct rdma_event_channel *channel = new_channel();
	listener(channel, RDMA_PS_TCP, "127.0.0.1", PORT);
	struct rdma_cm_id *client = routed(channel, RDMA_PS_TCP, "127.0.0.1", PORT);
	give_qp(client);
	CHECK(rdma_connect(client, NULL) == 0);
	CHECK(rdma_accept(requested(channel), NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(EXPECT(channel, RDMA_CM_EVENT_ESTABLISHED) == 0);
	signal(SIGALRM, on_signal);
	struct itimerval soon = { .it_value = { .tv_usec = 2000 + 137 * number } };
	CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
	struct ibv_wc wc;
	for (;;)
		ibv_poll_cq(client->send_cq, 1, &wc);
}

int main(void)
{
	for (int i = 0; i < CHILDREN; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			child(i);
		int status = 0;
		double start = seconds();
		while (waitpid(pid, &status, WNOHANG) == 0) {
			if (seconds() - start > SECONDS_MAX)
				kill(pid, SIGKILL);
			usleep(1000);
		}
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	}
	puts("ok");
	return 0;
}
