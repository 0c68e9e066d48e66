/*
 * A process forks while another of its threads opens devices, and the child looks for devices in
 * sysfs: what it may do after a fork of a process with threads, open(2) among it, must not wait for
 * a lock whose holder is not in the child.
 */
#include <pthread.h>
#include <sys/wait.h>

#include "common.h"

static volatile int stop;

static void *opens_devices(void *argument)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	while (!stop) {
		struct ibv_context *opened = ibv_open_device(list[0]);
		CHECK(opened && ibv_close_device(opened) == 0);
	}
	ibv_free_device_list(list);
	return argument;
}

int main(void)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, opens_devices, NULL) == 0);
	for (int i = 0; i < 200; i++) {
		pid_t child = fork();
		if (child == 0) {
			alarm(10); /* a hang ends in a signal */
			access("/sys/class/infiniband", R_OK);
			access("/sys/class/infiniband/nothing", R_OK);
			_exit(0);
		}
		int status;
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	puts("ok");
	return 0;
}
