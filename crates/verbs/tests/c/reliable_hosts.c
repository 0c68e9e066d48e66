/* Reliable datagrams between two hosts: the source is a process in another network namespace, and
 * both devices lose one packet in twenty. Records and SENDs arrive whole, once each. */
#include "common.h"
#include <sched.h>
#include <sys/wait.h>
#include "../../include/airdma/verbs_record.h"

enum { MESSAGES = 60, BYTES = 60 * 1000, AREA = 40 };

struct target {
	uint64_t addr;
	uint32_t rkey, qp_num;
	union ibv_gid gid;
};

static int to_target[2], to_source[2];

static void tell(const int *ends, const void *what, size_t bytes)
{
	CHECK(write(ends[1], what, bytes) == (ssize_t)bytes);
}

static void hear(const int *ends, void *what, size_t bytes)
{
	CHECK(read(ends[0], what, bytes) == (ssize_t)bytes);
}

static char byte_of(int message, int at)
{
	return (char)(1 + (at * 7 + at / 251 + message) % 255);
}

static struct ibv_qp *queue_pair(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = MESSAGES, .max_recv_wr = MESSAGES, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(qp);
	datagrams(qp);
	return qp;
}

/* A completion, within 20 s. */
static struct ibv_wc wait_for(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (time_t end = time(NULL) + 20; ibv_poll_cq(cq, 1, &wc) == 0;)
		CHECK(time(NULL) < end);
	CHECK(wc.status == IBV_WC_SUCCESS);
	return wc;
}

static void source(void)
{
	char token, *data = calloc(MESSAGES, BYTES);
	struct target target;
	int namespace = open(getenv("OTHER_HOST"), O_RDONLY);
	CHECK(namespace >= 0 && setns(namespace, CLONE_NEWNET) == 0);
	setenv("AIRDMA_IMPAIR", "drop=5%,seed=3", 1);
	open_device();
	struct ibv_cq *cq = ibv_create_cq(context, 2 * MESSAGES, NULL, NULL, 0);
	struct ibv_qp *qp = queue_pair(cq);
	struct ibv_mr *region = ibv_reg_mr(pd, data, (size_t)MESSAGES * BYTES, 0);
	CHECK(region && airdma_rd_enable(qp, NULL) == 0);
	hear(to_source, &target, sizeof target);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = target.gid, .hop_limit = 4 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	for (int message = 0; message < MESSAGES; message++) {
		struct ibv_sge sge = { (uintptr_t)data + (size_t)message * BYTES, BYTES, region->lkey };
		struct airdma_record_wr record = {
			.wr_id = message, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .ah = ah,
			.remote_qpn = target.qp_num, .remote_qkey = QKEY, .rkey = target.rkey,
			.remote_addr = target.addr + (size_t)message * BYTES, .flags = AIRDMA_RECORD_RELIABLE,
		};
		struct ibv_send_wr send = {
			.wr_id = message, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
			.send_flags = IBV_SEND_SIGNALED, .imm_data = htobe32(message),
		}, *bad;
		send.wr.ud.ah = ah;
		send.wr.ud.remote_qpn = target.qp_num;
		send.wr.ud.remote_qkey = QKEY;
		for (int at = 0; at < BYTES; at++)
			data[(size_t)message * BYTES + at] = byte_of(message, at);
		CHECK((message % 2 ? airdma_rd_send(qp, &send, &bad) : airdma_record_post(qp, &record)) == 0);
	}
	for (int message = 0; message < MESSAGES; message++)
		wait_for(cq);
	hear(to_source, &token, 1);
	exit(0);
}

int main(void)
{
	CHECK(pipe(to_target) == 0 && pipe(to_source) == 0);
	unsetenv("AIRDMA_LOOPBACK"); /* one device on each host */
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		source();
	setenv("AIRDMA_IMPAIR", "drop=5%,seed=4", 1);
	open_device();
	char *data = calloc(MESSAGES, BYTES), *room = calloc(MESSAGES, AREA + BYTES);
	struct ibv_cq *cq = ibv_create_cq(context, 400, NULL, NULL, 0);
	struct ibv_qp *qp = queue_pair(cq);
	struct ibv_mr *records = airdma_record_reg(pd, data, (size_t)MESSAGES * BYTES, NULL);
	struct ibv_mr *region = ibv_reg_mr(pd, room, (size_t)MESSAGES * (AREA + BYTES), IBV_ACCESS_LOCAL_WRITE);
	CHECK(records && region && airdma_record_enable(qp, NULL) == 0);
	for (int message = 0; message < MESSAGES; message++) {
		struct ibv_sge sge = { (uintptr_t)room + (size_t)message * (AREA + BYTES), AREA + BYTES, region->lkey };
		struct ibv_recv_wr wr = { .wr_id = message, .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
	}
	struct target target = { (uintptr_t)data, records->rkey, qp->qp_num, gid };
	tell(to_source, &target, sizeof target);
	char seen[MESSAGES] = { 0 };
	for (int arrived = 0; arrived < MESSAGES; arrived++) {
		struct ibv_wc wc = wait_for(cq);
		struct airdma_record record;
		const char *bytes = room + wc.wr_id * (AREA + BYTES) + AREA;
		int message = (int)be32toh(wc.imm_data);
		if ((int)wc.opcode == AIRDMA_WC_RECORD) {
			CHECK(airdma_record_read(qp, wc.wr_id, &record) == 0 && record.ended == AIRDMA_RECORD_WHOLE);
			CHECK(airdma_record_free(qp, wc.wr_id) == 0);
			message = (int)((record.addr - target.addr) / BYTES);
			bytes = (char *)(uintptr_t)record.addr;
		}
		CHECK(wc.byte_len == BYTES + (message % 2 ? AREA : 0) && !seen[message]);
		seen[message] = 1;
		for (int at = 0; at < BYTES; at++)
			CHECK(bytes[at] == byte_of(message, at));
	}
	tell(to_source, "", 1);
	int status;
	struct ibv_wc none;
	CHECK(waitpid(child, &status, 0) == child && status == 0 && ibv_poll_cq(cq, 1, &none) == 0);
	puts("ok");
	return 0;
}
