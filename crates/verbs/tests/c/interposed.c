/* Opens a device by functions that it looks up in libibverbs, whatever else is in front of
 * airdma or behind it. With -DSTUBS and -rdynamic it exports functions of these names itself, as
 * programs do that open libibverbs when it is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/stat.h>

#ifdef STUBS
void **ibv_get_device_list(int *count)
{
	void **(*real)(int *) = (void **(*)(int *))dlsym(dlopen("libibverbs.so.1", RTLD_NOW), "ibv_get_device_list");
	return real ? real(count) : NULL;
}
#endif

int main(void)
{
	struct stat root;
	int count = -1;
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW);
	void **(*list)(int *) = (void **(*)(int *))dlsym(handle, "ibv_get_device_list");
	void *(*open)(void *) = (void *(*)(void *))dlsym(handle, "ibv_open_device");
	void *next = dlsym(RTLD_NEXT, "ibv_open_device");
	int *hooked = dlsym(RTLD_DEFAULT, "hooked");
#ifdef STUBS
	list = ibv_get_device_list;
#endif
	if (!list || !open || stat("/", &root) != 0)
		return 2;
	void **devices = list(&count);
	void *context = count == 1 ? open(devices[0]) : NULL;
	int *wrapped = dlsym(RTLD_DEFAULT, "wrapped");
	if (wrapped && ((void *(*)(void *))next)(devices[0]) && *wrapped != 1)
		return 3;
	printf("%s %s\n", context ? "opened" : "not opened", !hooked ? "" : *hooked ? "hooked" : "not hooked");
	return 0;
}
