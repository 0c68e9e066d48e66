/* Two hosts. A thread that waits on a completion channel before its host has any queue pair is
 * woken by later events, although no thread polls: it keeps the progress thread away, so it has
 * to notice the sockets that are opened while it sleeps. */
#include "common.h"
#include <sched.h>
#include <sys/wait.h>

enum { LENGTH = 4096, WAIT_SECONDS_MAX = 20 };

struct end {
	uint32_t qp_num;
	union ibv_gid gid;
};

static void tell(int fd, const void *what, size_t length)
{
	CHECK(write(fd, what, length) == (ssize_t)length);
}

static void hear(int fd, void *what, size_t length)
{
	CHECK(read(fd, what, length) == (ssize_t)length);
}

/* A queue pair that is connected to the other host's. */
static struct ibv_qp *meet(struct ibv_cq *cq, int from, int to)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(cq, IBV_QPT_RC, IBV_QP_EX_WITH_SEND);
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	CHECK(qp);
	struct end mine = { qp->qp_num, gid }, other;
	tell(to, &mine, sizeof(mine));
	hear(from, &other, sizeof(other));
	gid = other.gid;
	connect_to(qp, other.qp_num);
	return qp;
}

static void *wait_for_an_event(void *channel)
{
	struct ibv_cq *cq;
	void *cq_context;
	CHECK(ibv_get_cq_event(channel, &cq, &cq_context) == 0);
	ibv_ack_cq_events(cq, 1);
	return cq;
}

static void receive(int from, int to)
{
	open_device();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, channel, 0);
	CHECK(channel && cq && ibv_req_notify_cq(cq, 0) == 0);
	pthread_t waiter;
	CHECK(pthread_create(&waiter, NULL, wait_for_an_event, channel) == 0);
	usleep(300000); /* it sleeps by now */

	struct ibv_qp *qp = meet(cq, from, to);
	receive_at(qp, 5, 0, LENGTH);
	tell(to, "", 1);

	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_SECONDS_MAX;
	void *woken;
	CHECK(pthread_timedjoin_np(waiter, &woken, &until) == 0);
	CHECK(woken == cq);
	CHECK(success(cq, 5).byte_len == LENGTH && memory[0] == 'a' && memory[LENGTH - 1] == 'z');
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	close_device();
}

static void send_one(int from, int to)
{
	int other_host = open(getenv("OTHER_HOST"), O_RDONLY);
	CHECK(other_host >= 0 && setns(other_host, CLONE_NEWNET) == 0);
	open_device();
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp *qp = meet(cq, from, to);
	char ready;
	hear(from, &ready, 1);
	usleep(100000); /* the other host has nothing else to do */
	memory[0] = 'a';
	memory[LENGTH - 1] = 'z';
	struct ibv_sge sge = { (uintptr_t)memory, LENGTH, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 6, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	success(cq, 6);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	close_device();
}

int main(void)
{
	int here[2], there[2], status;
	CHECK(pipe(here) == 0 && pipe(there) == 0);
	unsetenv("AIRDMA_LOOPBACK"); /* one device on each host */
	pid_t sender = fork();
	CHECK(sender >= 0);
	if (sender == 0) {
		send_one(there[0], here[1]);
		return 0;
	}
	receive(here[0], there[1]);
	CHECK(waitpid(sender, &status, 0) == sender && status == 0);
	puts("ok");
	return 0;
}
