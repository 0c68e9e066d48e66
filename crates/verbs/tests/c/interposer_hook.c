/* A library with a dlsym of its own, as those have that stand in front of graphics or CUDA; this
 * one looks at files. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>

int hooked;

void *dlsym(void *handle, const char *symbol)
{
	static void *(*next)(void *, const char *);
	struct stat root;
	if (!next)
		next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	hooked += stat("/", &root) == 0;
	return next ? next(handle, symbol) : (void *)0;
}
