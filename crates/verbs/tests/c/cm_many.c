/* A listener at all addresses of a host with thirty interfaces, where the soft limit allows
 * fewer descriptors than their devices need (see `MANY` of cm.rs). The limit, and most of the
 * numbers below it, are still the program's. Idle devices have no threads. */
#include "cm.h"
#include <dirent.h>
#include <sys/resource.h>

enum { PORT = 7500, LIMIT = 192 };

int main(void)
{
	struct rdma_event_channel *asks = new_channel(), *answers = new_channel();
	struct rdma_cm_id *id = listener(answers, RDMA_PS_TCP, "0.0.0.0", PORT);
	for (int i = 1; i <= 15; i += 7) {
		char ip[32];
		snprintf(ip, sizeof ip, "10.9.2.%d", i);
		struct pair pair = connected(asks, answers, ip, PORT);
		transfer(pair);
		destroy(pair.active);
		CHECK(EXPECT(answers, RDMA_CM_EVENT_DISCONNECTED) == 0);
		destroy(pair.passive);
	}
	int threads = 0;
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	while (readdir(tasks))
		threads++;
	closedir(tasks);
	/* `.`, `..`, this one, the watcher, arrivals, and those of the six devices that were busy. */
	CHECK(threads <= 2 + 3 + 6);
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == LIMIT);
	int own = 0;
	while (dup(1) >= 0)
		own++;
	CHECK(errno == EMFILE && own >= 32);
	destroy(id);
	puts("ok");
	return 0;
}
