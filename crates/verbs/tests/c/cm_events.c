/* The events of both sides, the calls that wait for each other, and those that do not wait. */
#include "cm.h"

enum { PORT = 7100 };

static struct rdma_event_channel *asks, *answers;

static int is_padded(const struct rdma_conn_param *param, const char *text, unsigned length)
{
	const char *data = param->private_data;
	size_t used = strlen(text);
	if (param->private_data_len != length || !data || memcmp(data, text, used) != 0)
		return 0;
	for (size_t i = used; i < length; i++)
		if (data[i])
			return 0;
	return 1;
}

static struct rdma_conn_param saying(const char *text)
{
	struct rdma_conn_param param = { .private_data = text, .private_data_len = strlen(text) };
	return param;
}

static void what_both_sides_are_told(void)
{
	int context;
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
	listen->context = &context;
	struct rdma_cm_id *active = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT);
	give_qp(active);
	struct rdma_conn_param param = saying("may I?");
	param.responder_resources = 3;
	param.initiator_depth = 5;
	param.retry_count = 6;
	param.rnr_retry_count = 4;
	CHECK(rdma_connect(active, &param) == 0);
	FAILS("connecting twice", rdma_connect(active, &param), EINVAL);

	struct rdma_cm_event *event = EVENT(answers, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *passive = event->id;
	struct rdma_conn_param *told = &event->param.conn;
	CHECK(event->listen_id == listen && passive != listen && event->status == 0);
	CHECK(passive->context == &context && passive->channel == answers && passive->ps == RDMA_PS_TCP);
	CHECK(passive->verbs == active->verbs && passive->port_num == 1);
	CHECK(told->responder_resources == 5 && told->initiator_depth == 3);
	CHECK(told->retry_count == 6 && told->rnr_retry_count == 4 && told->qp_num == active->qp->qp_num);
	CHECK(is_padded(told, "may I?", 56));
	CHECK(rdma_get_src_port(passive) == htons(PORT) && rdma_get_dst_port(passive) == rdma_get_src_port(active));
	CHECK(rdma_get_src_port(active) != 0 && rdma_get_dst_port(active) == htons(PORT));
	CHECK(rdma_get_local_addr(passive)->sa_family == AF_INET && rdma_get_peer_addr(passive)->sa_family == AF_INET);
	give_qp(passive);
	char much[200] = "";
	struct rdma_conn_param refused = { .private_data = much, .private_data_len = 197 };
	FAILS("more private data than a reply holds", rdma_accept(passive, &refused), EINVAL);
	struct rdma_conn_param yes = saying("you may");
	yes.responder_resources = 2;
	yes.initiator_depth = 1;
	yes.rnr_retry_count = 3;
	CHECK(rdma_accept(passive, &yes) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	FAILS("accepting twice", rdma_accept(passive, &yes), EINVAL);

	event = EVENT(asks, RDMA_CM_EVENT_ESTABLISHED);
	told = &event->param.conn;
	CHECK(event->id == active && event->listen_id == NULL && event->status == 0);
	CHECK(told->responder_resources == 1 && told->initiator_depth == 2 && told->rnr_retry_count == 3);
	CHECK(told->qp_num == passive->qp->qp_num && is_padded(told, "you may", 196));
	CHECK(rdma_ack_cm_event(event) == 0);
	event = EVENT(answers, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == passive && event->listen_id == NULL && event->param.conn.private_data_len == 0);
	CHECK(rdma_ack_cm_event(event) == 0);

	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int all = IBV_QP_STATE | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		  IBV_QP_DEST_QPN;
	CHECK(ibv_query_qp(active->qp, &attr, all, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.max_rd_atomic == 2 && attr.max_dest_rd_atomic == 1);
	CHECK(attr.retry_cnt == 6 && attr.rnr_retry == 3 && attr.dest_qp_num == passive->qp->qp_num);
	CHECK(ibv_query_qp(passive->qp, &attr, all, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.max_rd_atomic == 1 && attr.max_dest_rd_atomic == 2);
	CHECK(attr.retry_cnt == 6 && attr.rnr_retry == 4);
	transfer((struct pair){ active, passive });

	/* Both hear of the end, each once, and then of the end of the timewait. */
	CHECK(rdma_disconnect(active) == 0);
	CHECK(ibv_query_qp(active->qp, &attr, all, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_DISCONNECTED) == 0);
	IS("ending twice", rdma_disconnect(active), 0);
	IS("ending what has ended", rdma_disconnect(passive), 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_TIMEWAIT_EXIT) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_TIMEWAIT_EXIT) == 0);
	IS("ending what is forgotten", rdma_disconnect(passive), 0);
	NOTHING(asks, 0);
	NOTHING(answers, 0);
	destroy(active);
	destroy(passive);
	destroy(listen);
}

/* A request to a port where no process listens, after its refusal. */
static struct rdma_cm_id *refused(void)
{
	struct rdma_cm_id *active = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT + 1);
	give_qp(active);
	CHECK(rdma_connect(active, NULL) == 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_REJECTED) == 8);
	return active;
}

static void refusals(void)
{
	struct rdma_cm_id *active = refused();
	IS("ending what never was", rdma_disconnect(active), 0);
	FAILS("connecting again", rdma_connect(active, NULL), EINVAL);
	destroy(active);

	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
	/* By the program, with words, with too many, and by destroying. */
	char much[200] = "";
	for (int i = 0; i < 2; i++) {
		active = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT);
		give_qp(active);
		CHECK(rdma_connect(active, NULL) == 0);
		struct rdma_cm_id *passive = requested(answers);
		FAILS("too many words", rdma_reject(passive, much, 149), EINVAL);
		if (i == 0) {
			CHECK(rdma_reject(passive, "no", 2) == 0);
			FAILS("rejecting twice", rdma_reject(passive, "no", 2), EINVAL);
			FAILS("accepting what was rejected", rdma_accept(passive, NULL), EINVAL);
		}
		destroy(passive);
		struct rdma_cm_event *event = EVENT(asks, RDMA_CM_EVENT_REJECTED);
		CHECK(event->id == active && event->status == 28);
		CHECK(is_padded(&event->param.conn, i == 0 ? "no" : "", 148));
		CHECK(rdma_ack_cm_event(event) == 0);
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		CHECK(ibv_query_qp(active->qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
		destroy(active);
	}
	/* A listener that is destroyed refuses the requests that were not fetched. */
	active = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT);
	give_qp(active);
	CHECK(rdma_connect(active, NULL) == 0);
	struct pollfd fd = { .fd = answers->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 10000) == 1);
	destroy(listen);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_REJECTED) == 28);
	NOTHING(answers, 0);
	destroy(active);

	/* The peer goes away. A request that was fetched is rejected. One that was not, and that
	 * poll(2) may have announced, is fetched all the same, as from the kernel: a call that
	 * blocks behind poll(2) does not wait. Accepting it fails. */
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *passive = NULL;
		listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
		active = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT);
		give_qp(active);
		CHECK(rdma_connect(active, NULL) == 0);
		if (i == 1)
			passive = requested(answers);
		else
			CHECK(poll(&fd, 1, 10000) == 1);
		destroy(active);
		if (i == 0) {
			/* What is said later comes later. */
			struct rdma_event_channel *others = new_channel();
			struct rdma_cm_id *other = listener(others, RDMA_PS_TCP, "127.0.0.1", PORT + 1);
			struct pair pair = connected(asks, others, "127.0.0.1", PORT + 1);
			IS("what was announced is there", poll(&fd, 1, 0), 1);
			passive = requested(answers);
			NOTHING(answers, 0);
			FAILS("rejecting what is over", rdma_reject(passive, "no", 2), EINVAL);
			destroy(pair.active);
			CHECK(EXPECT(others, RDMA_CM_EVENT_DISCONNECTED) == 0);
			destroy(pair.passive);
			destroy(other);
			rdma_destroy_event_channel(others);
		} else {
			/* 4: timeout, what the kernel says of a request that is taken back. */
			CHECK(EXPECT(answers, RDMA_CM_EVENT_REJECTED) == 4);
		}
		FAILS("accepting what was taken back", rdma_accept(passive, NULL), EINVAL);
		destroy(passive);
		NOTHING(answers, 0);
		destroy(listen);
	}
}

/* Identifiers without queue pair: the program moves its own. */
static void own_queue_pairs(void)
{
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
	struct rdma_cm_id *ids[2] = { routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT) };
	struct ibv_pd *domain = ibv_alloc_pd(ids[0]->verbs);
	struct ibv_cq *cq = ibv_create_cq(ids[0]->verbs, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = small_qp(IBV_QPT_RC);
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qps[2] = { ibv_create_qp(domain, &init), ibv_create_qp(domain, &init) };
	CHECK(domain && cq && qps[0] && qps[1]);
	struct rdma_conn_param param = { .qp_num = qps[0]->qp_num, .responder_resources = 1, .initiator_depth = 1,
					 .retry_count = 7, .rnr_retry_count = 7, .srq = 1 };
	CHECK(rdma_connect(ids[0], &param) == 0);
	struct rdma_cm_event *event = EVENT(answers, RDMA_CM_EVENT_CONNECT_REQUEST);
	ids[1] = event->id;
	CHECK(event->param.conn.qp_num == qps[0]->qp_num && event->param.conn.srq == 1);
	CHECK(rdma_ack_cm_event(event) == 0);
	FAILS("accepting with no queue pair at all", rdma_accept(ids[1], NULL), EINVAL);
	enum ibv_qp_state states[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_attr attr = { .qp_state = states[i] };
		int mask;
		CHECK(rdma_init_qp_attr(ids[1], &attr, &mask) == 0 && ibv_modify_qp(qps[1], &attr, mask) == 0);
	}
	param.qp_num = qps[1]->qp_num;
	CHECK(rdma_accept(ids[1], &param) == 0);
	event = EVENT(asks, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->id == ids[0] && event->param.conn.qp_num == qps[1]->qp_num && event->param.conn.srq == 1);
	CHECK(rdma_ack_cm_event(event) == 0);
	NOTHING(answers, 50);
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_attr attr = { .qp_state = states[i] };
		int mask;
		CHECK(rdma_init_qp_attr(ids[0], &attr, &mask) == 0 && ibv_modify_qp(qps[0], &attr, mask) == 0);
	}
	CHECK(rdma_establish(ids[0]) == 0);
	FAILS("establishing twice", rdma_establish(ids[0]), EINVAL);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_ESTABLISHED) == 0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_post_send(qps[i], &wr, &bad) == 0);
		CHECK(awaited(cq).status == IBV_WC_SUCCESS);
	}
	CHECK(rdma_disconnect(ids[1]) == 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_DISCONNECTED) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	CHECK(ibv_destroy_qp(qps[0]) == 0 && ibv_destroy_qp(qps[1]) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dealloc_pd(domain) == 0);
	destroy(ids[0]);
	destroy(ids[1]);
	destroy(listen);
}

/* The accepting side hears that data came before the last message. */
static void notified(void)
{
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
	struct rdma_cm_id *active = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT);
	struct rdma_conn_param param = { .qp_num = 0x1234 };
	CHECK(rdma_connect(active, &param) == 0);
	struct rdma_cm_id *passive = requested(answers);
	CHECK(rdma_accept(passive, NULL) == 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_CONNECT_RESPONSE) == 0);
	FAILS("an event that tells nothing", rdma_notify(passive, IBV_EVENT_QP_FATAL), EINVAL);
	CHECK(rdma_notify(passive, IBV_EVENT_COMM_EST) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_ESTABLISHED) == 0);
	/* Instead of establishing, the program says no. */
	CHECK(rdma_reject(active, "no", 2) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	destroy(active);
	destroy(passive);
	destroy(listen);
}

static void *destroys(void *id)
{
	destroy(id);
	return NULL;
}

/* Destroying an identifier waits until its events are acknowledged. */
static void acknowledgements(void)
{
	pthread_t thread;
	struct timespec soon;
	struct rdma_cm_id *id = new_id(asks, RDMA_PS_TCP);
	CHECK(rdma_resolve_addr(id, NULL, at_port("127.0.0.1", PORT), 2000) == 0);
	struct rdma_cm_event *event = EVENT(asks, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(pthread_create(&thread, NULL, destroys, id) == 0);
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_nsec += 50000000;
	soon.tv_sec += soon.tv_nsec / 1000000000;
	soon.tv_nsec %= 1000000000;
	IS("an event is out", pthread_timedjoin_np(thread, NULL, &soon), ETIMEDOUT);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	/* An event that was not fetched goes with it. */
	id = new_id(asks, RDMA_PS_TCP);
	CHECK(rdma_resolve_addr(id, NULL, at_port("127.0.0.1", PORT), 2000) == 0);
	destroy(id);
	NOTHING(asks, 0);

	/* A request counts for its listener. */
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
	id = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT);
	give_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	event = EVENT(answers, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(pthread_create(&thread, NULL, destroys, listen) == 0);
	soon.tv_sec += 1;
	IS("a request is out", pthread_timedjoin_np(thread, NULL, &soon), ETIMEDOUT);
	struct rdma_cm_id *passive = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	/* What was fetched lives on without it. */
	give_qp(passive);
	CHECK(rdma_accept(passive, NULL) == 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_ESTABLISHED) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_ESTABLISHED) == 0);
	transfer((struct pair){ id, passive });
	destroy(passive);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_DISCONNECTED) == 0);
	destroy(id);
}

/* Events that wait move along, in order; those that were fetched are waited for. */
static void migration(void)
{
	struct rdma_event_channel *third = new_channel();
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
	struct rdma_cm_id *active = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT);
	give_qp(active);
	CHECK(rdma_connect(active, NULL) == 0);
	struct pollfd fd = { .fd = answers->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 10000) == 1);
	CHECK(rdma_migrate_id(listen, third) == 0 && listen->channel == third);
	NOTHING(answers, 0);
	struct rdma_cm_id *passive = requested(third);
	CHECK(passive->channel == third);
	CHECK(rdma_accept(passive, NULL) == 0);
	fd.fd = asks->fd;
	CHECK(poll(&fd, 1, 10000) == 1);
	CHECK(rdma_migrate_id(active, answers) == 0);
	NOTHING(asks, 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_ESTABLISHED) == 0);
	CHECK(EXPECT(third, RDMA_CM_EVENT_ESTABLISHED) == 0);
	CHECK(rdma_migrate_id(passive, asks) == 0);
	CHECK(rdma_disconnect(passive) == 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_DISCONNECTED) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	NOTHING(third, 0);
	destroy(active);
	destroy(passive);
	destroy(listen);
	rdma_destroy_event_channel(third);
}

/* Datagram services are looked up; there is no connection. */
static void services(void)
{
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_UDP, "127.0.0.1", PORT);
	struct rdma_cm_id *active = routed(asks, RDMA_PS_UDP, "127.0.0.1", PORT);
	give_qp(active);
	struct rdma_conn_param param = saying("where?");
	/* Depths are for connections: what stands there means nothing. */
	param.responder_resources = param.initiator_depth = 200;
	char much[200] = "";
	struct rdma_conn_param refused = { .private_data = much, .private_data_len = 181 };
	FAILS("more private data than a question holds", rdma_connect(active, &refused), EINVAL);
	CHECK(rdma_connect(active, &param) == 0);
	struct rdma_cm_event *event = EVENT(answers, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *passive = event->id;
	CHECK(event->listen_id == listen && passive->ps == RDMA_PS_UDP && passive->qp_type == IBV_QPT_UD);
	CHECK(is_padded(&event->param.conn, "where?", 180));
	CHECK(rdma_ack_cm_event(event) == 0);
	give_qp(passive);
	param = saying("here");
	param.qp_num = passive->qp->qp_num;
	CHECK(rdma_accept(passive, &param) == 0);
	event = EVENT(asks, RDMA_CM_EVENT_ESTABLISHED);
	struct rdma_ud_param *told = &event->param.ud;
	CHECK(event->status == 0 && told->qp_num == passive->qp->qp_num && told->qkey == RDMA_UDP_QKEY);
	CHECK(told->ah_attr.is_global && told->ah_attr.port_num == 1 && told->private_data_len == 136);
	struct ibv_ah *ah = ibv_create_ah(active->pd, &told->ah_attr);
	CHECK(ah);
	static char out[8] = "hello", in[64];
	struct ibv_mr *mrs[2] = { ibv_reg_mr(active->pd, out, 8, 0), ibv_reg_mr(passive->pd, in, 64, IBV_ACCESS_LOCAL_WRITE) };
	struct ibv_sge to = { (uintptr_t)in, 64, mrs[1]->lkey }, from = { (uintptr_t)out, 8, mrs[0]->lkey };
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
				    .wr.ud = { ah, told->qp_num, told->qkey } }, *bad;
	CHECK(ibv_post_recv(passive->qp, &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(active->qp, &send, &bad) == 0);
	CHECK(awaited(active->send_cq).status == IBV_WC_SUCCESS);
	CHECK(awaited(passive->recv_cq).status == IBV_WC_SUCCESS && strcmp(in + 40, "hello") == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mrs[0]) == 0 && ibv_dereg_mr(mrs[1]) == 0);
	destroy(active);
	destroy(passive);

	/* A request is refused by rejecting it, by destroying its identifier, by a missing
	 * listener. */
	for (int i = 0; i < 3; i++) {
		active = routed(asks, RDMA_PS_UDP, "127.0.0.1", PORT + (i == 2));
		give_qp(active);
		CHECK(rdma_connect(active, NULL) == 0);
		if (i < 2) {
			event = EVENT(answers, RDMA_CM_EVENT_CONNECT_REQUEST);
			passive = event->id;
			CHECK(rdma_ack_cm_event(event) == 0);
			if (i == 0)
				CHECK(rdma_reject(passive, "no", 2) == 0);
			destroy(passive);
		}
		/* 1: unsupported; 2: rejected (IBTA 12.11.2). */
		event = EVENT(asks, RDMA_CM_EVENT_UNREACHABLE);
		CHECK(event->status == (i == 2 ? 1 : 2));
		CHECK(rdma_ack_cm_event(event) == 0);
		destroy(active);
	}
	destroy(listen);
}

/* As much private data as a message holds arrives whole. */
static int is_whole(const struct rdma_conn_param *param, const char *sent, unsigned length)
{
	return param->private_data_len == length && memcmp(param->private_data, sent, length) == 0;
}

static void as_much_as_fits(void)
{
	char data[200];
	for (unsigned i = 0; i < sizeof data; i++)
		data[i] = i + 1;
	struct rdma_conn_param param = { .private_data = data };
	for (int datagrams = 0; datagrams < 2; datagrams++) {
		enum rdma_port_space space = datagrams ? RDMA_PS_UDP : RDMA_PS_TCP;
		unsigned asked = datagrams ? 180 : 56, accepted = datagrams ? 136 : 196, refused = datagrams ? 136 : 148;
		struct rdma_cm_id *listen = listener(answers, space, "127.0.0.1", PORT);
		for (int rejects = 0; rejects < 2; rejects++) {
			struct rdma_cm_id *active = routed(asks, space, "127.0.0.1", PORT);
			give_qp(active);
			param.private_data_len = asked + 1;
			FAILS("a byte more", rdma_connect(active, &param), EINVAL);
			param.private_data_len = asked;
			CHECK(rdma_connect(active, &param) == 0);
			struct rdma_cm_event *event = EVENT(answers, RDMA_CM_EVENT_CONNECT_REQUEST);
			struct rdma_cm_id *passive = event->id;
			CHECK(is_whole(&event->param.conn, data, asked));
			CHECK(rdma_ack_cm_event(event) == 0);
			give_qp(passive);
			param.qp_num = passive->qp->qp_num;
			if (rejects) {
				FAILS("a byte more", rdma_reject(passive, data, refused + 1), EINVAL);
				CHECK(rdma_reject(passive, data, refused) == 0);
				event = EVENT(asks, datagrams ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED);
				CHECK(event->status == (datagrams ? 2 : 28));
			} else {
				param.private_data_len = accepted + 1;
				FAILS("a byte more", rdma_accept(passive, &param), EINVAL);
				param.private_data_len = accepted;
				CHECK(rdma_accept(passive, &param) == 0);
				event = EVENT(asks, RDMA_CM_EVENT_ESTABLISHED);
				if (!datagrams)
					CHECK(EXPECT(answers, RDMA_CM_EVENT_ESTABLISHED) == 0);
			}
			CHECK(is_whole(&event->param.conn, data, rejects ? refused : accepted));
			CHECK(rdma_ack_cm_event(event) == 0);
			destroy(active);
			if (!rejects && !datagrams)
				CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
			destroy(passive);
		}
		destroy(listen);
	}
}

/* Type of service and ACK timeout, at both ends. */
static void options_are_obeyed(void)
{
	uint8_t tos = 0x28, code = 13, passive_code = 15;
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
	struct rdma_cm_id *ids[2] = { new_id(asks, RDMA_PS_TCP) };
	CHECK(rdma_set_option(ids[0], RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1) == 0);
	CHECK(rdma_set_option(ids[0], RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code, 1) == 0);
	CHECK(rdma_resolve_addr(ids[0], NULL, at_port("127.0.0.1", PORT), 2000) == 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	CHECK(rdma_resolve_route(ids[0], 2000) == 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_ROUTE_RESOLVED) == 0);
	CHECK(ids[0]->route.path_rec->traffic_class == tos && ids[0]->route.path_rec->packet_life_time == code - 1);
	give_qp(ids[0]);
	CHECK(rdma_connect(ids[0], NULL) == 0);
	ids[1] = requested(answers);
	/* The passive side gets the value of the other end, or its own. */
	CHECK(rdma_set_option(ids[1], RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &passive_code, 1) == 0);
	CHECK(rdma_accept(ids[1], NULL) == 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_ESTABLISHED) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_ESTABLISHED) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		CHECK(ibv_query_qp(ids[i]->qp, &attr, IBV_QP_AV | IBV_QP_TIMEOUT, &init) == 0);
		IS("type of service", attr.ah_attr.grh.traffic_class, tos);
		IS("ack timeout", attr.timeout, i ? passive_code : code);
	}
	transfer((struct pair){ ids[0], ids[1] });
	destroy(ids[0]);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	destroy(ids[1]);
	destroy(listen);
}

/* Both ends of a service lookup may migrate to another channel meanwhile, or be destroyed. */
static void services_that_change(void)
{
	struct rdma_event_channel *third = new_channel();
	struct rdma_cm_id *listen = listener(answers, RDMA_PS_UDP, "127.0.0.1", PORT), *active, *passive;
	struct pollfd fd = { .fd = answers->fd, .events = POLLIN };
	active = routed(asks, RDMA_PS_UDP, "127.0.0.1", PORT);
	give_qp(active);
	CHECK(rdma_connect(active, NULL) == 0);
	passive = requested(answers);
	CHECK(rdma_migrate_id(active, third) == 0);
	/* What was fetched lives on without its listener. */
	destroy(listen);
	CHECK(rdma_accept(passive, NULL) == 0);
	CHECK(EXPECT(third, RDMA_CM_EVENT_ESTABLISHED) == 0);
	NOTHING(asks, 0);
	destroy(active);
	destroy(passive);
	/* What was not is refused with it. */
	listen = listener(answers, RDMA_PS_UDP, "127.0.0.1", PORT);
	active = routed(third, RDMA_PS_UDP, "127.0.0.1", PORT);
	give_qp(active);
	CHECK(rdma_connect(active, NULL) == 0);
	CHECK(poll(&fd, 1, 10000) == 1);
	destroy(listen);
	IS("refused", EXPECT(third, RDMA_CM_EVENT_UNREACHABLE), 2);
	NOTHING(answers, 0);
	destroy(active);
	/* The identifier that asked is gone: the answer is dropped. */
	listen = listener(answers, RDMA_PS_UDP, "127.0.0.1", PORT);
	active = routed(third, RDMA_PS_UDP, "127.0.0.1", PORT);
	give_qp(active);
	CHECK(rdma_connect(active, NULL) == 0);
	passive = requested(answers);
	destroy(active);
	CHECK(rdma_accept(passive, NULL) == 0);
	NOTHING(third, 20);
	destroy(passive);
	destroy(listen);
	rdma_destroy_event_channel(third);
}

/* One thread fetches requests while another destroys the listener: each request is answered. */
static volatile int over;

static void *refuses(void *unused)
{
	while (!over) {
		struct rdma_cm_event *event = event_within(answers, 1);
		if (!event)
			continue;
		CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *id = event->id;
		CHECK(rdma_ack_cm_event(event) == 0);
		CHECK(rdma_destroy_id(id) == 0);
	}
	return unused;
}

static void listeners_that_go(void)
{
	enum { ROUNDS = 200 };
	pthread_t thread;
	int flags = fcntl(answers->fd, F_GETFL);
	CHECK(fcntl(answers->fd, F_SETFL, flags | O_NONBLOCK) == 0);
	CHECK(pthread_create(&thread, NULL, refuses, NULL) == 0);
	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_cm_id *listen = listener(answers, RDMA_PS_TCP, "127.0.0.1", PORT);
		struct rdma_cm_id *active = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT);
		CHECK(rdma_connect(active, &(struct rdma_conn_param){ .qp_num = 2 + i }) == 0);
		usleep(i % 20 * 10);
		CHECK(rdma_destroy_id(listen) == 0);
		double start = seconds();
		int status = EXPECT(asks, RDMA_CM_EVENT_REJECTED);
		/* 8: the listener was gone before. */
		CHECK((status == 28 || status == 8) && seconds() - start < 4);
		destroy(active);
	}
	over = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(fcntl(answers->fd, F_SETFL, flags) == 0);
}

/* More requests than the backlog wait until there is room: the peer asks again. */
static void backlog(void)
{
	enum { COUNT = 4 };
	double start = seconds();
	struct rdma_cm_id *listen = new_id(answers, RDMA_PS_TCP), *ids[COUNT];
	CHECK(rdma_bind_addr(listen, at_port("127.0.0.1", PORT)) == 0 && rdma_listen(listen, 2) == 0);
	for (int i = 0; i < COUNT; i++) {
		ids[i] = routed(asks, RDMA_PS_TCP, "127.0.0.1", PORT);
		give_qp(ids[i]);
		CHECK(rdma_connect(ids[i], NULL) == 0);
	}
	/* Once a later request is refused, these have arrived. Two were taken, and perhaps one that
	 * could not make way for a younger one: it was the only event, which a poll may have seen. */
	destroy(refused());
	struct rdma_cm_id *passive[COUNT];
	int requests = 0, established = 0;
	while (established < COUNT) {
		struct rdma_cm_event *event = event_within(answers, 30000);
		CHECK(event);
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			passive[requests++] = event->id;
			give_qp(event->id);
			CHECK(rdma_accept(event->id, NULL) == 0);
			CHECK(rdma_ack_cm_event(event) == 0);
			CHECK(EXPECT(asks, RDMA_CM_EVENT_ESTABLISHED) == 0);
		} else {
			CHECK(event->event == RDMA_CM_EVENT_ESTABLISHED);
			CHECK(rdma_ack_cm_event(event) == 0);
			established++;
			CHECK(established != 2 || requests < COUNT || seconds() - start > 1);
		}
	}
	for (int i = 0; i < COUNT; i++) {
		destroy(ids[i]);
		CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
	}
	for (int i = 0; i < COUNT; i++)
		destroy(passive[i]);
	destroy(listen);
}

int main(void)
{
	asks = new_channel();
	answers = new_channel();
	what_both_sides_are_told();
	refusals();
	own_queue_pairs();
	notified();
	acknowledgements();
	migration();
	services();
	services_that_change();
	as_much_as_fits();
	options_are_obeyed();
	listeners_that_go();
	backlog();
	rdma_destroy_event_channel(asks);
	rdma_destroy_event_channel(answers);
	return rules_hold();
}
