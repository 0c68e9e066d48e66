/* A program that opens a library with RTLD_DEEPBIND, as Valkey opens its modules:
 *   deep_bound LIBRARY      prints what the library's `said` returns
 * With -DMODULE it is that library, linked with libibverbs; with -DPLAIN one without. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

const char *whose(void);

#ifdef MODULE
#include <infiniband/verbs.h>

const char *said(void)
{
	int count = 0;
	struct ibv_device **devices = ibv_get_device_list(&count);
	return count == 1 ? ibv_get_device_name(devices[0]) : "not one device";
}
#elif defined(PLAIN)
const char *whose(void)
{
	return "its own";
}

const char *said(void)
{
	return whose();
}
#else
const char *whose(void)
{
	return "the program's";
}

int main(int argc, char **argv)
{
	void *module = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
	const char *(*said)(void) = module ? (const char *(*)(void))dlsym(module, "said") : NULL;
	puts(said ? said() : dlerror());
	return !said;
}
#endif
