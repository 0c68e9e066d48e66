/* fork(2) around a device in use, with ibv_fork_init(3) and without: the parent goes on
 * undisturbed, the child gets ENODEV for whatever is the parent's, and its own device if it
 * opens one. */
#include <sys/wait.h>
#include "rules.h"

enum { BYTES = 1024, CHILDREN = 50 };

static struct ibv_cq *cq;
static struct ibv_qp *a, *b;
static uint64_t messages;

/* One message from a to b, checked. */
static void exchange(void)
{
	memset(memory, (char)++messages, BYTES);
	receive_at(b, messages, BYTES, BYTES);
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = messages, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	CHECK(ibv_post_send(a, &wr, &bad) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = awaited(cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == messages);
	}
	CHECK(memcmp(memory, memory + BYTES, BYTES) == 0);
}

static struct ibv_qp *new_qp(struct ibv_pd *domain, struct ibv_cq *queue)
{
	struct ibv_qp_init_attr_ex init = qp_attr(queue, IBV_QPT_RC, IBV_QP_EX_WITH_SEND);
	init.pd = domain;
	init.sq_sig_all = 1;
	return ibv_create_qp_ex(domain->context, &init);
}

struct parents {
	struct ibv_comp_channel *channel;
	struct ibv_cq *heard;
	struct ibv_cq_ex *extended;
	struct ibv_srq *srq;
	struct ibv_qp *datagrams;
	struct ibv_ah *ah;
	struct ibv_mw *window;
	struct ibv_dm *dm;
};

static void use_the_parents(const struct parents *its)
{
	struct ibv_wc wc;
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad_receive;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };
	struct ibv_srq_attr srq_attr = { .srq_limit = 1 };
	struct ibv_srq_init_attr srq_init = { .attr = { 8, 1, 0 } };
	struct ibv_ah_attr self = to_self();
	struct ibv_cq *from;
	void *cookie;
	struct ibv_async_event event;
	struct ibv_poll_cq_attr poll_attr = { 0 };
	IS("post_send", ibv_post_send(a, &send, &bad), ENODEV);
	IS("post_recv", ibv_post_recv(b, &receive, &bad_receive), ENODEV);
	IS("post_srq_recv", ibv_post_srq_recv(its->srq, &receive, &bad_receive), ENODEV);
	FAILS("poll_cq", ibv_poll_cq(cq, 1, &wc), ENODEV);
	IS("start_poll", ibv_start_poll(its->extended, &poll_attr), ENODEV);
	struct ibv_qp_ex *builder = ibv_qp_to_qp_ex(a);
	ibv_wr_start(builder);
	ibv_wr_send(builder);
	ibv_wr_set_sge(builder, mr->lkey, (uintptr_t)memory, 8);
	IS("wr_complete", ibv_wr_complete(builder), ENODEV);
	IS("req_notify_cq", ibv_req_notify_cq(its->heard, 0), ENODEV);
	/* These would block for ever, or take the parent's events. */
	FAILS("get_cq_event", ibv_get_cq_event(its->channel, &from, &cookie), ENODEV);
	FAILS("get_async_event", ibv_get_async_event(context, &event), ENODEV);
	IS("resize_cq", ibv_resize_cq(cq, 128), ENODEV);
	IS("modify_qp", ibv_modify_qp(a, &attr, IBV_QP_STATE), ENODEV);
	IS("query_qp", ibv_query_qp(a, &attr, IBV_QP_STATE, &init), ENODEV);
	IS("modify_srq", ibv_modify_srq(its->srq, &srq_attr, IBV_SRQ_LIMIT), ENODEV);
	FAILS("rereg_mr", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), ENODEV);
	IS("attach_mcast", ibv_attach_mcast(its->datagrams, &gid, 0) != 0, 1);
	REFUSED("alloc_pd", ibv_alloc_pd(context), ENODEV);
	REFUSED("reg_mr", ibv_reg_mr(pd, memory, 64, 0), ENODEV);
	REFUSED("alloc_mw", ibv_alloc_mw(pd, IBV_MW_TYPE_1), ENODEV);
	REFUSED("create_cq", ibv_create_cq(context, 8, NULL, NULL, 0), ENODEV);
	REFUSED("create_comp_channel", ibv_create_comp_channel(context), ENODEV);
	REFUSED("create_qp", ibv_create_qp(pd, &init), ENODEV);
	REFUSED("create_srq", ibv_create_srq(pd, &srq_init), ENODEV);
	REFUSED("create_ah", ibv_create_ah(pd, &self), ENODEV);
	IS("destroy_qp", ibv_destroy_qp(a), ENODEV);
	IS("destroy_cq", ibv_destroy_cq(its->heard), ENODEV);
	IS("destroy_srq", ibv_destroy_srq(its->srq), ENODEV);
	IS("dealloc_mw", ibv_dealloc_mw(its->window), ENODEV);
	IS("dereg_mr", ibv_dereg_mr(mr), ENODEV);
}

/* The child is a process like any other, at the address of its parent. */
static void use_its_own(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1);
	struct ibv_context *own = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(own);
	struct ibv_port_attr port;
	struct ibv_device_attr attr;
	IS("query_port", ibv_query_port(own, 1, &port), 0);
	IS("query_device", ibv_query_device(own, &attr), 0);
	struct ibv_pd *domain = ibv_alloc_pd(own);
	struct ibv_cq *queue = ibv_create_cq(own, 8, NULL, NULL, 0);
	CHECK(domain && queue);
	struct ibv_mr *region = ibv_reg_mr(domain, memory, 2 * BYTES, IBV_ACCESS_LOCAL_WRITE);
	CHECK(region);
	struct ibv_qp *ours = a, *others = b;
	a = new_qp(domain, queue);
	b = new_qp(domain, queue);
	CHECK(a && b);
	CHECK(a->qp_num >> 12 != ours->qp_num >> 12 && a->qp_num >> 12 != others->qp_num >> 12);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	cq = queue;
	mr = region;
	for (int i = 0; i < CHILDREN; i++)
		exchange();
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_dereg_mr(region) == 0 && ibv_destroy_cq(queue) == 0 && ibv_dealloc_pd(domain) == 0);
	CHECK(ibv_close_device(own) == 0);
}

static int ended(pid_t child)
{
	int status;
	return waitpid(child, &status, WNOHANG) == child ? (WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : -1) : 0;
}

static void children_that_use_verbs(void)
{
	struct ibv_cq_init_attr_ex extended = { .cqe = 8 };
	struct ibv_srq_init_attr shared = { .attr = { 8, 1, 0 } };
	struct ibv_qp_init_attr ud = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_ah_attr self = to_self();
	struct parents its = { .channel = ibv_create_comp_channel(context) };
	its.heard = ibv_create_cq(context, 8, NULL, its.channel, 0);
	its.extended = ibv_create_cq_ex(context, &extended);
	its.srq = ibv_create_srq(pd, &shared);
	its.datagrams = ibv_create_qp(pd, &ud);
	its.ah = ibv_create_ah(pd, &self);
	its.window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	its.dm = ibv_alloc_dm(context, &dm);
	CHECK(its.channel && its.heard && its.extended && its.srq && its.datagrams && its.ah && its.window && its.dm);
	for (int own = 0; own < 2; own++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			alarm(30);
			if (own)
				use_its_own();
			else
				use_the_parents(&its);
			ibv_close_device(context);
			exit(broken != 0); /* with all that a process does at its end */
		}
		int result;
		while ((result = ended(child)) == 0)
			exchange();
		IS(own ? "the child with its own device" : "the child with the parent's", result, 1);
		exchange();
	}
	CHECK(next_event(0) == -1);
	CHECK(ibv_free_dm(its.dm) == 0 && ibv_dealloc_mw(its.window) == 0 && ibv_destroy_ah(its.ah) == 0);
	CHECK(ibv_destroy_qp(its.datagrams) == 0 && ibv_destroy_srq(its.srq) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(its.extended)) == 0 && ibv_destroy_cq(its.heard) == 0);
	CHECK(ibv_destroy_comp_channel(its.channel) == 0);
}

static int stormy = 1;

/* Forks, and forks and executes, in a thread beside the traffic. */
static void *storm(void *unused)
{
	for (int i = 0; i < CHILDREN; i++) {
		CHECK(system("true") == 0);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			if (i % 2)
				execlp("true", "true", NULL);
			_exit(0);
		}
		CHECK(waitpid(child, NULL, 0) == child);
	}
	__atomic_store_n(&stormy, 0, __ATOMIC_SEQ_CST);
	return unused;
}

static void scenario(void)
{
	open_device();
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(cq);
	a = new_qp(pd, cq);
	b = new_qp(pd, cq);
	CHECK(a && b);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	exchange();
	children_that_use_verbs();
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, storm, NULL) == 0);
	do
		exchange();
	while (__atomic_load_n(&stormy, __ATOMIC_SEQ_CST));
	CHECK(pthread_join(thread, NULL) == 0);
	exchange();
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
	close_device();
}

int main(void)
{
	int status;
	pid_t without = fork();
	CHECK(without >= 0);
	if (without == 0) {
		scenario();
		exit(broken != 0);
	}
	CHECK(waitpid(without, &status, 0) == without);
	IS("without ibv_fork_init", status, 0);
	CHECK(ibv_fork_init() == 0);
	scenario();
	return rules_hold();
}
