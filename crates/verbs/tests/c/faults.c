/* A program that protects memory which it has registered, and removes the protection at the
 * first write there, as programs do that track changes: its handler is called for the library's
 * threads too. */
#include "common.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { ROUNDS = 20, WAITS_MAX = 100000 };

/* All of them, and those in threads that the program did not start. */
static int faults, elsewhere;

static void on_fault(int number, siginfo_t *info, void *state)
{
	(void)number, (void)state;
	char *at = info->si_addr;
	if (at < memory || at >= memory + MEMORY || mprotect(memory, MEMORY, PROT_READ | PROT_WRITE))
		_exit(3);
	if (syscall(SYS_gettid) != getpid())
		__atomic_add_fetch(&elsewhere, 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&faults, 1, __ATOMIC_SEQ_CST);
}

static struct ibv_qp *queue_pair(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 8 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(qp);
	return qp;
}

/* Writes the number from elsewhere to protected memory. */
static void write_number(struct ibv_qp *qp, struct ibv_cq *cq, uint64_t number)
{
	struct ibv_sge sge = { (uintptr_t)&number, sizeof number, 0 };
	struct ibv_send_wr wr = {
		.wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
		.wr.rdma = { (uintptr_t)memory, mr->rkey },
	}, *bad;
	int before = __atomic_load_n(&faults, __ATOMIC_SEQ_CST);
	CHECK(mprotect(memory, MEMORY, PROT_NONE) == 0);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	for (int i = 0; __atomic_load_n(&faults, __ATOMIC_SEQ_CST) == before; i++) {
		CHECK(i < WAITS_MAX);
		usleep(100);
	}
	success(cq, number);
	CHECK(*(volatile uint64_t *)memory == number);
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
	open_device();
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp *left = queue_pair(cq), *right = queue_pair(cq);
	connect_to(left, right->qp_num);
	connect_to(right, left->qp_num);
	for (uint64_t number = 1; number <= ROUNDS; number++)
		write_number(left, cq, number);
	CHECK(elsewhere > 0);
	CHECK(ibv_destroy_qp(left) == 0 && ibv_destroy_qp(right) == 0 && ibv_destroy_cq(cq) == 0);
	close_device();
	puts("ok");
	return 0;
}
