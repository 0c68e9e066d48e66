/* Tables of rules: each line does one thing that a man page or the specification forbids, and
 * names what it must answer. A broken rule is told, and the rest is tried all the same. */
#include "common.h"
#include <poll.h>

static int broken;

#define RULE_BROKEN(what, format, ...)                                                              \
	(broken++, fprintf(stderr, "%s:%d: %s: " format "\n", __FILE__, __LINE__, what, __VA_ARGS__))

/* A call that returns a number. */
#define IS(what, call, wanted)                                                                      \
	do {                                                                                        \
		long got_ = (call);                                                                 \
		if (got_ != (wanted))                                                               \
			RULE_BROKEN(what, "%ld, not %ld", got_, (long)(wanted));                    \
	} while (0)

/* A call that returns -1, or NULL, and says why in errno. */
#define FAILS(what, call, wanted)                                                                   \
	do {                                                                                        \
		errno = 0;                                                                          \
		long got_ = (long)(call);                                                           \
		if (got_ != -1)                                                                     \
			RULE_BROKEN(what, "%ld, not -1", got_);                                     \
		else if (errno != (wanted))                                                         \
			RULE_BROKEN(what, "errno %d, not %d", errno, (int)(wanted));                \
	} while (0)

#define REFUSED(what, call, wanted)                                                                 \
	do {                                                                                        \
		errno = 0;                                                                          \
		if (call)                                                                           \
			RULE_BROKEN(what, "it is %s", "granted");                                   \
		else if (errno != (wanted))                                                         \
			RULE_BROKEN(what, "errno %d, not %d", errno, (int)(wanted));                \
	} while (0)

static inline double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* The next completion; its status is -1 if none comes. */
static inline struct ibv_wc awaited(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	double end = seconds() + 20;
	do
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			return wc;
	while (seconds() < end);
	wc.status = -1;
	return wc;
}

/* The next asynchronous event, acknowledged; -1 if none is there, or comes within the time. */
static inline int next_event(int milliseconds)
{
	struct ibv_async_event event;
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	if (poll(&fd, 1, milliseconds) != 1)
		return -1;
	CHECK(ibv_get_async_event(context, &event) == 0);
	ibv_ack_async_event(&event);
	return event.event_type;
}

static inline int rules_hold(void)
{
	if (broken == 0)
		puts("ok");
	return broken != 0;
}
