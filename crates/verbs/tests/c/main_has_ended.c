/* A program whose main thread has ended while others go on (pthread_exit(3)), on a kernel that
 * does not know MADV_POPULATE: what may be registered is then read off the list of mappings, of
 * which the process itself has none any more. */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* madvise(2) with advice 22 or more is answered as by Linux before 5.14. */
static void forget_populating(void)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 22, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof steps / sizeof *steps, steps };
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void *registers(void *of_main)
{
	pthread_join(*(pthread_t *)of_main, NULL);
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);
	CHECK(devices && count > 0);
	struct ibv_context *context = ibv_open_device(devices[0]);
	CHECK(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(mprotect(memory + 4096, 4096, PROT_NONE) == 0);
	errno = 0;
	CHECK(!ibv_reg_mr(pd, memory, 8192, 0) && errno == EFAULT);
	puts("ok");
	exit(0);
}

int main(void)
{
	static pthread_t main_thread;
	pthread_t other;
	main_thread = pthread_self();
	forget_populating();
	CHECK(pthread_create(&other, NULL, registers, &main_thread) == 0);
	pthread_exit(NULL);
}
