/* Threads that are cancelled, pthread_cancel(3): asleep in the calls that wait for events, which
 * end there, and busy in others, which are done first. The process and the objects live on. */
#include "common.h"
#include <signal.h>

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *a, *b;
static _Atomic int cleaned, got;

static void clean_up(void *argument)
{
	(void)argument;
	cleaned++;
}

static void *wait_on_channel(void *argument)
{
	struct ibv_cq *of;
	void *cq_context;
	pthread_cleanup_push(clean_up, NULL);
	CHECK(ibv_get_cq_event(channel, &of, &cq_context) == 0 && of == cq && cq_context == &cq);
	got++;
	ibv_ack_cq_events(of, 1);
	pthread_cleanup_pop(0);
	return argument;
}

static void *wait_on_device(void *argument)
{
	struct ibv_async_event event;
	pthread_cleanup_push(clean_up, NULL);
	for (;;)
		if (ibv_get_async_event(context, &event) == 0)
			ibv_ack_async_event(&event);
	pthread_cleanup_pop(0);
	return argument;
}

static pthread_t started(void *(*body)(void *))
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, body, &cq) == 0);
	usleep(100000); /* asleep by now */
	return thread;
}

static void *joined(pthread_t thread)
{
	struct timespec end;
	void *result;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 10;
	CHECK(pthread_timedjoin_np(thread, &result, &end) == 0);
	return result;
}

static void write_signalled(void)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(ibv_post_send(a, &wr, &bad) == 0);
}

static void asleep(void)
{
	for (int i = 1; i <= 3; i++) {
		pthread_t thread = started(wait_on_channel);
		CHECK(pthread_cancel(thread) == 0 && joined(thread) == PTHREAD_CANCELED && cleaned == i && got == 0);
	}
	pthread_t thread = started(wait_on_device);
	CHECK(pthread_cancel(thread) == 0 && joined(thread) == PTHREAD_CANCELED && cleaned == 4);
	/* Two wait, one is cancelled, the other gets the event. */
	pthread_t first = started(wait_on_channel), second = started(wait_on_channel);
	CHECK(pthread_cancel(first) == 0 && joined(first) == PTHREAD_CANCELED && cleaned == 5);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	write_signalled();
	CHECK(joined(second) == &cq && got == 1 && cleaned == 5);
	success(cq, 1);
	/* Messages still go while no thread waits: the progress thread runs the worker again. */
	write_signalled();
	success(cq, 1);
}

/* A thread that is cancelled before it sleeps, and one that may not be cancelled. */
static void *wait_when_told(void *argument)
{
	int before;
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
	usleep(200000);
	CHECK(pthread_setcancelstate(before, NULL) == 0);
	return wait_on_channel(argument);
}

static void *wait_uncancelled(void *argument)
{
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
	wait_on_channel(argument);
	int state;
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state) == 0 && state == PTHREAD_CANCEL_DISABLE);
	return argument;
}

static void before_it_sleeps(void)
{
	pthread_t thread = started(wait_when_told);
	CHECK(pthread_cancel(thread) == 0 && joined(thread) == PTHREAD_CANCELED && cleaned == 6);
	thread = started(wait_uncancelled);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	write_signalled();
	CHECK(joined(thread) == &cq && got == 2 && cleaned == 6);
	success(cq, 1);
}

static _Atomic int within, calls;

static void not_within(void *argument)
{
	(void)argument;
	CHECK(!within);
	cleaned++;
}

/* Calls that are no cancellation points though they send and receive packets, read files and so
 * on. */
static void *busy(void *argument)
{
	pthread_cleanup_push(not_within, NULL);
	while (!argument)
		usleep(1); /* never: it keeps the compiler from knowing */
	int before;
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
	usleep(200000); /* the cancellation is pending from here on */
	within = 1;
	CHECK(pthread_setcancelstate(before, NULL) == 0);
	for (int i = 0; i < 100; i++) {
		struct ibv_wc wc;
		int count;
		write_signalled();
		while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
			;
		CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
	}
	int devices;
	struct ibv_device **list = ibv_get_device_list(&devices);
	CHECK(list && devices == 1);
	ibv_free_device_list(list);
	struct ibv_port_attr port;
	CHECK(ibv_query_port(context, 1, &port) == 0);
	calls++;
	within = 0;
	pthread_testcancel();
	pthread_cleanup_pop(0);
	return argument;
}

/* open(2) is one, also of paths that lead elsewhere here. */
static void *opens(void *path)
{
	pthread_cleanup_push(clean_up, NULL);
	int before;
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
	usleep(200000);
	CHECK(pthread_setcancelstate(before, NULL) == 0);
	int fd = open(path, O_RDONLY);
	pthread_testcancel();
	close(fd);
	pthread_cleanup_pop(0);
	return NULL;
}

static void in_other_calls(void)
{
	pthread_t thread = started(busy);
	CHECK(pthread_cancel(thread) == 0 && joined(thread) == PTHREAD_CANCELED && cleaned == 7 && calls == 1);
	static char *paths[] = { "/dev/null", "/sys/class/infiniband/airdma_lo/node_type", "/sys/class/infiniband/nothing" };
	for (int i = 0; i < 3; i++) {
		CHECK(pthread_create(&thread, NULL, opens, paths[i]) == 0);
		usleep(50000);
		CHECK(pthread_cancel(thread) == 0 && joined(thread) == PTHREAD_CANCELED && cleaned == 8 + i);
	}
}

static void on_signal(int number)
{
	(void)number;
}

static void *interrupted(void *argument)
{
	struct ibv_cq *of;
	void *cq_context;
	errno = 0;
	CHECK(ibv_get_cq_event(channel, &of, &cq_context) == -1 && errno == EINTR);
	return argument;
}

/* What the calls say otherwise. */
static void answers(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	pthread_t thread = started(interrupted);
	CHECK(pthread_kill(thread, SIGUSR1) == 0 && joined(thread) == &cq);
	struct ibv_cq *of;
	void *cq_context;
	struct ibv_async_event event;
	CHECK(ibv_get_cq_event(channel, NULL, &cq_context) == -1 && errno == EINVAL);
	CHECK(ibv_get_async_event(context, NULL) == -1 && errno == EINVAL);
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0 && fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(channel, &of, &cq_context) == -1 && errno == EAGAIN);
	errno = 0;
	while (ibv_get_async_event(context, &event) == 0)
		ibv_ack_async_event(&event);
	CHECK(errno == EAGAIN);
}

int main(void)
{
	open_device();
	channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 16, &cq, channel, 0);
	CHECK(channel && cq);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 8, .max_recv_wr = 8 } };
	a = ibv_create_qp(pd, &init);
	b = ibv_create_qp(pd, &init);
	CHECK(a && b);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	asleep();
	before_it_sleeps();
	in_other_calls();
	answers();
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	close_device();
	puts("ok");
	return 0;
}
