/* Reads by datagrams between two hosts: the peer is a process in another network namespace, whose
 * device loses one packet in twenty. What is lost is asked for again. */
#include "common.h"
#include <sched.h>
#include <sys/wait.h>
#include "../../include/airdma/verbs_record.h"

enum { READS = 40, BYTES = 200 * 1000, DEPTH = 4 };

struct peer {
	uint64_t addr;
	uint32_t rkey, qp_num;
	union ibv_gid gid;
};

static int to_reader[2], to_peer[2];

static char byte_of(int at)
{
	return (char)(1 + (at * 7 + at / 251) % 255);
}

static struct ibv_qp *queue_pair(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(qp);
	datagrams(qp);
	CHECK(airdma_record_enable(qp, NULL) == 0);
	return qp;
}

static void peer(void)
{
	char token, *data = malloc(BYTES);
	int namespace = open(getenv("OTHER_HOST"), O_RDONLY);
	CHECK(namespace >= 0 && setns(namespace, CLONE_NEWNET) == 0);
	setenv("AIRDMA_IMPAIR", "drop=5%,seed=3", 1);
	open_device();
	for (int at = 0; at < BYTES; at++)
		data[at] = byte_of(at);
	struct ibv_qp *qp = queue_pair(ibv_create_cq(context, 400, NULL, NULL, 0));
	struct ibv_mr *readable = airdma_record_reg_read(pd, data, BYTES, NULL);
	CHECK(readable);
	struct peer self = { (uintptr_t)data, readable->rkey, qp->qp_num, gid };
	CHECK(write(to_reader[1], &self, sizeof self) == sizeof self);
	/* The library answers; the program has nothing to do. */
	CHECK(read(to_peer[0], &token, 1) == 1);
	exit(0);
}

int main(void)
{
	CHECK(pipe(to_reader) == 0 && pipe(to_peer) == 0);
	unsetenv("AIRDMA_LOOPBACK"); /* one device on each host */
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		peer();
	struct peer there;
	CHECK(read(to_reader[0], &there, sizeof there) == sizeof there);
	open_device();
	char *data = calloc(DEPTH, BYTES);
	struct ibv_cq *cq = ibv_create_cq(context, 400, NULL, NULL, 0);
	struct ibv_qp *qp = queue_pair(cq);
	struct ibv_mr *mine = ibv_reg_mr(pd, data, DEPTH * BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = there.gid, .hop_limit = 4 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(mine && ah);
	for (int posted = 0, ended = 0; ended < READS;) {
		for (; posted < READS && posted - ended < DEPTH; posted++) {
			struct airdma_record_read_wr wr = {
				.ah = ah, .remote_qpn = there.qp_num, .remote_qkey = QKEY, .remote_addr = there.addr,
				.rkey = there.rkey, .length = BYTES, .addr = (uintptr_t)data + posted % DEPTH * BYTES,
				.lkey = mine->lkey, .deadline_us = 20 * 1000 * 1000,
			};
			uint64_t handle;
			memset((char *)(uintptr_t)wr.addr, 0, BYTES);
			CHECK(airdma_record_read_from(qp, &wr, &handle) == 0);
		}
		/* All of a round, so that each has its own memory. */
		for (int round = posted; ended < round; ended++) {
			struct airdma_record record;
			struct ibv_wc wc = completion(cq);
			CHECK(wc.status == IBV_WC_SUCCESS && (int)wc.opcode == AIRDMA_WC_RECORD);
			CHECK(airdma_record_read(qp, wc.wr_id, &record) == 0);
			CHECK(record.ended == AIRDMA_RECORD_WHOLE && record.valid == BYTES);
			for (int at = 0; at < BYTES; at++)
				CHECK(((char *)(uintptr_t)record.addr)[at] == byte_of(at));
			CHECK(airdma_record_free(qp, wc.wr_id) == 0);
		}
	}
	int status;
	CHECK(write(to_peer[1], "", 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dereg_mr(mine) == 0);
	free(data);
	close_device();
	puts("ok");
	return 0;
}
