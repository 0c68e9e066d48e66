/* What the tests of rdma_* share: identifiers, their events, and connections of a process with
 * itself. */
#include "rules.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* A socket address, IPv4 or IPv6, from text. */
static inline struct sockaddr *at_port(const char *ip, int port)
{
	static struct sockaddr_storage places[8];
	static int next;
	struct sockaddr_storage *place = &places[next++ % 8];
	memset(place, 0, sizeof *place);
	struct sockaddr_in *in = (void *)place;
	struct sockaddr_in6 *in6 = (void *)place;
	if (inet_pton(AF_INET, ip, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons(port);
	} else {
		CHECK(inet_pton(AF_INET6, ip, &in6->sin6_addr) == 1);
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
	}
	return (void *)place;
}

/* The next event of a channel; NULL if none comes in that time. */
static inline struct rdma_cm_event *event_within(struct rdma_event_channel *channel, int milliseconds)
{
	struct rdma_cm_event *event = NULL;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	if (poll(&fd, 1, milliseconds) != 1)
		return NULL;
	int got = rdma_get_cm_event(channel, &event);
	if (got != 0 && errno == EAGAIN)
		return NULL; /* its identifier was destroyed meanwhile */
	CHECK(got == 0 && event);
	return event;
}

/* The next event, which has to be this one. */
#define EVENT(channel, wanted)                                                                      \
	({                                                                                          \
		struct rdma_cm_event *event_ = event_within((channel), 30000);                      \
		if (!event_ || event_->event != (wanted))                                           \
			fprintf(stderr, "%s:%d: %s, status %d\n", __FILE__, __LINE__,               \
				event_ ? rdma_event_str(event_->event) : "no event",                \
				event_ ? event_->status : 0);                                       \
		CHECK(event_ && event_->event == (wanted));                                         \
		event_;                                                                             \
	})

/* The same, acknowledged; its status. */
#define EXPECT(channel, wanted)                                                                     \
	({                                                                                          \
		struct rdma_cm_event *seen_ = EVENT(channel, wanted);                               \
		int status_ = seen_->status;                                                        \
		CHECK(rdma_ack_cm_event(seen_) == 0);                                               \
		status_;                                                                            \
	})

#define NOTHING(channel, milliseconds) CHECK(event_within(channel, milliseconds) == NULL)

static inline struct rdma_event_channel *new_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	return channel;
}

static inline struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id = NULL;
	CHECK(rdma_create_id(channel, &id, NULL, space) == 0 && id);
	return id;
}

static inline struct rdma_cm_id *listener(struct rdma_event_channel *channel, enum rdma_port_space space,
					  const char *ip, int port)
{
	struct rdma_cm_id *id = new_id(channel, space);
	CHECK(rdma_bind_addr(id, at_port(ip, port)) == 0);
	CHECK(rdma_listen(id, 0) == 0);
	return id;
}

/* An identifier that may connect. */
static inline struct rdma_cm_id *routed(struct rdma_event_channel *channel, enum rdma_port_space space,
					const char *ip, int port)
{
	struct rdma_cm_id *id = new_id(channel, space);
	CHECK(rdma_resolve_addr(id, NULL, at_port(ip, port), 2000) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == 0);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	CHECK(EXPECT(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == 0);
	return id;
}

static inline struct ibv_qp_init_attr small_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = type,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	return attr;
}

static inline void give_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = small_qp(id->qp_type);
	CHECK(rdma_create_qp(id, NULL, &attr) == 0 && id->qp);
}

/* Takes the next request, and gives the new identifier a queue pair. */
static inline struct rdma_cm_id *requested(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = EVENT(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	CHECK(event->status == 0 && rdma_ack_cm_event(event) == 0);
	give_qp(id);
	return id;
}

struct pair {
	struct rdma_cm_id *active, *passive;
};

/* A connection with the listener of another channel. */
static inline struct pair connected(struct rdma_event_channel *asks, struct rdma_event_channel *answers,
				    const char *ip, int port)
{
	struct pair pair = { .active = routed(asks, RDMA_PS_TCP, ip, port) };
	give_qp(pair.active);
	CHECK(rdma_connect(pair.active, NULL) == 0);
	pair.passive = requested(answers);
	CHECK(rdma_accept(pair.passive, NULL) == 0);
	CHECK(EXPECT(asks, RDMA_CM_EVENT_ESTABLISHED) == 0);
	CHECK(EXPECT(answers, RDMA_CM_EVENT_ESTABLISHED) == 0);
	return pair;
}

static inline void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* Reads what a connection transfers: a message each way. */
static inline void transfer(struct pair pair)
{
	static char out[2][64], in[2][64];
	struct rdma_cm_id *ends[2] = { pair.active, pair.passive };
	struct ibv_mr *mrs[2][2];
	struct ibv_wc wc;
	for (int i = 0; i < 2; i++) {
		snprintf(out[i], sizeof out[i], "message %d of %p", i, (void *)ends[i]);
		memset(in[i], 0, sizeof in[i]);
		mrs[i][0] = ibv_reg_mr(ends[i]->pd, out[i], 64, IBV_ACCESS_LOCAL_WRITE);
		mrs[i][1] = ibv_reg_mr(ends[i]->pd, in[i], 64, IBV_ACCESS_LOCAL_WRITE);
		CHECK(mrs[i][0] && mrs[i][1]);
		struct ibv_sge sge = { (uintptr_t)in[i], 64, mrs[i][1]->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_post_recv(ends[i]->qp, &wr, &bad) == 0);
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = { (uintptr_t)out[i], 64, mrs[i][0]->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		CHECK(ibv_post_send(ends[i]->qp, &wr, &bad) == 0);
		wc = awaited(ends[i]->send_cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
		wc = awaited(ends[!i]->recv_cq);
		CHECK(wc.status == IBV_WC_SUCCESS && memcmp(out[i], in[!i], 64) == 0);
	}
	for (int i = 0; i < 4; i++)
		CHECK(ibv_dereg_mr(mrs[i / 2][i % 2]) == 0);
}
