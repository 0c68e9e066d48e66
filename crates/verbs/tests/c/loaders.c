/* Programs that open the libraries and look up functions by their names alone (dlsym), by short
 * name or by path, and what else dlsym is asked for. */
#include "rules.h"
#include <dlfcn.h>
#include <infiniband/verbs.h>

#define FOUND(what, found) IS(what, (found) != NULL, 1)

static void lists_a_device(const char *library)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		RULE_BROKEN(library, "%s", dlerror());
		return;
	}
	struct ibv_device **(*list)(int *) = dlsym(handle, "ibv_get_device_list");
	void (*release)(struct ibv_device **) = dlsym(handle, "ibv_free_device_list");
	const char *(*name)(struct ibv_device *) = dlsym(handle, "ibv_get_device_name");
	CHECK(list && release && name);
	int count = -1;
	struct ibv_device **devices = list(&count);
	IS(library, count, 1);
	if (count == 1)
		IS("the name", strcmp(name(devices[0]), "airdma_lo"), 0);
	if (devices)
		release(devices);
	IS("a function that it does not have", (long)dlsym(handle, "ibv_no_such_function"), 0);
	FOUND("an error", dlerror());
	CHECK(dlclose(handle) == 0);
}

/* Where the genuine library lies. */
static const char *genuine(void)
{
	static char path[4096];
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[4200];
	CHECK(dlopen("libibverbs.so.1", RTLD_NOW) && maps);
	while (fgets(line, sizeof line, maps)) {
		char *start = strchr(line, '/');
		if (start && strstr(start, "/libibverbs.so") && sscanf(start, "%4095s", path) == 1)
			return path;
	}
	return "no libibverbs.so";
}

static void connections(void)
{
	void *handle = dlopen("librdmacm.so.1", RTLD_NOW);
	CHECK(handle);
	FOUND("rdma_create_id", dlsym(handle, "rdma_create_id"));
	IS("the same by either way", dlsym(handle, "rdma_create_id") == dlsym(RTLD_DEFAULT, "rdma_create_id"), 1);
	FOUND("rsockets, which stay rdma-core's", dlsym(handle, "rsocket"));
}

int main(void)
{
	lists_a_device("libibverbs.so.1");
	lists_a_device(genuine());
	connections();
	/* What has nothing to do with verbs. */
	FOUND("a function of the C library", dlsym(RTLD_DEFAULT, "puts"));
	FOUND("the next one, as seen from here", dlsym(RTLD_NEXT, "puts"));
	IS("the program's own comes before the next", dlsym(RTLD_NEXT, "main") == (void *)main, 0);
	return rules_hold();
}
