/* Write-Record from C: what airdma/verbs_record.h says. */
#include "common.h"
#include "../../include/airdma/verbs_record.h"

static struct ibv_cq *cq;
static struct ibv_qp *from, *to;
static struct ibv_ah *ah;
static struct ibv_mr *records;

enum { TARGET = 32 * 1024 };

static struct ibv_qp *queue_pair(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(qp);
	datagrams(qp);
	return qp;
}

static struct airdma_record_wr request(struct ibv_sge *sge, uint32_t length)
{
	*sge = (struct ibv_sge){ (uintptr_t)memory, length, mr->lkey };
	return (struct airdma_record_wr){
		.wr_id = 5, .sg_list = sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .ah = ah,
		.remote_qpn = to->qp_num, .remote_qkey = QKEY, .remote_addr = (uintptr_t)memory + TARGET,
		.rkey = records->rkey,
	};
}

/* The completions of one message, in either order: returns that of the record. */
static struct ibv_wc arrives(void)
{
	struct ibv_wc first = completion(cq), second = completion(cq), record;
	CHECK(first.status == IBV_WC_SUCCESS && second.status == IBV_WC_SUCCESS);
	record = (int)first.opcode == AIRDMA_WC_RECORD ? first : second;
	struct ibv_wc sent = (int)first.opcode == AIRDMA_WC_RECORD ? second : first;
	CHECK((int)record.opcode == AIRDMA_WC_RECORD && (int)sent.opcode == AIRDMA_WC_RECORD_SENT);
	CHECK(sent.wr_id == 5 && sent.qp_num == from->qp_num);
	CHECK(record.qp_num == to->qp_num && record.src_qp == from->qp_num);
	return record;
}

static void a_message_arrives_and_is_read(void)
{
	struct ibv_sge sge;
	struct airdma_record_wr wr = request(&sge, 20000);
	struct airdma_record record;
	uint64_t bits[64];
	for (int at = 0; at < 20000; at++)
		memory[at] = at % 251;
	wr.flags = AIRDMA_RECORD_WITH_IMM;
	wr.imm_data = htobe32(77);
	CHECK(airdma_record_post(from, &wr) == 0);
	struct ibv_wc wc = arrives();
	CHECK(wc.byte_len == 20000 && wc.wc_flags == IBV_WC_WITH_IMM && wc.imm_data == htobe32(77));
	CHECK(airdma_record_read(to, wc.wr_id, &record) == 0);
	CHECK(record.addr == (uintptr_t)memory + TARGET && record.rkey == records->rkey);
	CHECK(record.length == 20000 && record.valid == 20000 && record.ended == AIRDMA_RECORD_WHOLE);
	CHECK(record.flags == AIRDMA_RECORD_WITH_IMM && record.imm_data == htobe32(77));
	CHECK(record.id == 0 && record.src_qp == from->qp_num && !memcmp(&record.source, &gid, sizeof gid));
	uint32_t units = (record.length + record.unit - 1) / record.unit;
	CHECK(units > 1 && record.words == (units + 63) / 64);
	CHECK(airdma_record_map(to, wc.wr_id, bits, 64) == 0);
	CHECK(units < 64 && bits[0] == (UINT64_C(1) << units) - 1);
	CHECK(memcmp(memory, memory + TARGET, 20000) == 0);
	CHECK(airdma_record_free(to, wc.wr_id) == 0);
	CHECK(airdma_record_free(to, wc.wr_id) == ENOENT && errno == ENOENT);
	CHECK(airdma_record_read(to, wc.wr_id, &record) == ENOENT);
	CHECK(airdma_record_map(to, wc.wr_id, bits, 64) == ENOENT);
	CHECK(airdma_record_peek(to, records->rkey, record.addr, &record, NULL, 0) == ENOENT);
	CHECK(airdma_record_close(to, records->rkey, record.addr) == ENOENT);
}

static void inline_data_is_taken_at_once(void)
{
	char data[] = "reading";
	struct ibv_sge sge;
	struct airdma_record_wr wr = request(&sge, 0);
	sge = (struct ibv_sge){ (uintptr_t)data, 8, 0 };
	wr.send_flags |= IBV_SEND_INLINE;
	CHECK(airdma_record_post(from, &wr) == 0);
	memset(data, 'x', 7);
	struct ibv_wc wc = arrives();
	CHECK(wc.byte_len == 8 && strcmp(memory + TARGET, "reading") == 0);
	CHECK(airdma_record_free(to, wc.wr_id) == 0);
}

static void what_is_wrong_is_refused(void)
{
	struct ibv_sge sge;
	struct airdma_record_wr wr = request(&sge, 8);
	struct airdma_record_attr attr = { .open_max = 100000 };
	CHECK(airdma_record_enable(to, NULL) == EINVAL);
	CHECK(airdma_record_enable(from, &attr) == EINVAL);
	attr = (struct airdma_record_attr){ .reserved = 1 };
	CHECK(airdma_record_enable(from, &attr) == EINVAL);
	CHECK(airdma_record_post(from, NULL) == EINVAL);
	wr.flags = 2;
	CHECK(airdma_record_post(from, &wr) == EINVAL);
	wr = request(&sge, 8);
	wr.ah = NULL;
	CHECK(airdma_record_post(from, &wr) == EINVAL);
	CHECK(airdma_record_read(to, 0, NULL) == EINVAL);
	CHECK(!airdma_record_reg(pd, memory, 0, NULL) && errno == EINVAL);
	/* A key for records grants nothing to a connection, and its region stays as it is. */
	CHECK(ibv_rereg_mr(records, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS) != 0);
}

static void memory_of_a_peer_is_read(void)
{
	struct ibv_mr *readable = airdma_record_reg_read(pd, memory, TARGET, &gid);
	CHECK(readable && airdma_record_enable(from, NULL) == 0);
	struct airdma_record_read_wr wr = {
		.ah = ah, .remote_qpn = from->qp_num, .remote_qkey = QKEY, .remote_addr = (uintptr_t)memory,
		.rkey = readable->rkey, .length = 20000, .addr = (uintptr_t)memory + TARGET, .lkey = mr->lkey,
	};
	struct airdma_record record;
	uint64_t handle;
	for (int at = 0; at < 20000; at++)
		memory[at] = at % 241;
	memset(memory + TARGET, 0, 20000);
	CHECK(airdma_record_read_from(to, &wr, &handle) == 0);
	struct ibv_wc wc = completion(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && (int)wc.opcode == AIRDMA_WC_RECORD);
	CHECK(wc.wr_id == handle && wc.byte_len == 20000 && wc.qp_num == to->qp_num);
	CHECK(airdma_record_read(to, handle, &record) == 0);
	CHECK(record.ended == AIRDMA_RECORD_WHOLE && record.flags == AIRDMA_RECORD_WAS_READ);
	CHECK(record.addr == wr.addr && record.rkey == mr->lkey && record.src_qp == from->qp_num);
	CHECK(memcmp(memory, memory + TARGET, 20000) == 0 && airdma_record_free(to, handle) == 0);
	/* A key of a connection opens nothing to datagrams. */
	wr.rkey = mr->rkey;
	CHECK(airdma_record_read_from(to, &wr, &handle) == 0);
	wc = completion(cq);
	CHECK(wc.wr_id == handle && wc.byte_len == 0 && airdma_record_read(to, handle, &record) == 0);
	CHECK(record.ended == AIRDMA_RECORD_REFUSED && airdma_record_free(to, handle) == 0);
	CHECK(airdma_record_read_from(to, NULL, &handle) == EINVAL && airdma_record_read_from(to, &wr, NULL) == EINVAL);
	wr.reserved = 1;
	CHECK(airdma_record_read_from(to, &wr, &handle) == EINVAL);
	wr.reserved = 0;
	wr.lkey ^= 1;
	CHECK(airdma_record_read_from(to, &wr, &handle) == EINVAL);
	CHECK(ibv_dereg_mr(readable) == 0);
}

int main(void)
{
	CHECK(airdma_record_enable && airdma_record_reg && airdma_record_post);
	open_device();
	cq = ibv_create_cq(context, 400, NULL, NULL, 0);
	CHECK(cq);
	from = queue_pair();
	to = queue_pair();
	struct ibv_ah_attr attr = to_self();
	ah = ibv_create_ah(pd, &attr);
	records = airdma_record_reg(pd, memory + TARGET, MEMORY - TARGET, &gid);
	CHECK(ah && records && records->addr == memory + TARGET);
	struct airdma_record_attr limits = { .open_max = 8, .closed_max = 8, .units_max = 64 };
	CHECK(airdma_record_enable(to, &limits) == 0);
	a_message_arrives_and_is_read();
	inline_data_is_taken_at_once();
	what_is_wrong_is_refused();
	memory_of_a_peer_is_read();
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
	CHECK(ibv_dereg_mr(records) == 0 && ibv_destroy_cq(cq) == 0);
	close_device();
	puts("ok");
	return 0;
}
