/* Reliable datagrams from C: what airdma/verbs_record.h says. */
#include "common.h"
#include "../../include/airdma/verbs_record.h"

enum { TARGET = 32 * 1024, AREA = 40, BYTES = 10000 };

static struct ibv_cq *sends, *receives;
static struct ibv_qp *from, *to;
static struct ibv_ah *ah;
static struct ibv_mr *records;

static struct ibv_qp *queue_pair(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 8, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(qp);
	datagrams(qp);
	return qp;
}

static struct ibv_send_wr message(struct ibv_sge *sge, uint64_t wr_id, uint32_t qpn)
{
	*sge = (struct ibv_sge){ (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	};
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = QKEY;
	return wr;
}

static void post_receive(uint64_t wr_id, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory + TARGET, length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(to, &wr, &bad) == 0);
}

static void a_send_of_many_packets_fills_a_receive(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = message(&sge, 1, to->qp_num), *bad;
	for (int at = 0; at < BYTES; at++)
		memory[at] = at % 251;
	post_receive(2, AREA + BYTES);
	CHECK(airdma_rd_send(from, &wr, &bad) == 0);
	struct ibv_wc received = completion(receives), sent = completion(sends);
	CHECK(received.status == IBV_WC_SUCCESS && received.wr_id == 2 && received.byte_len == AREA + BYTES);
	CHECK(received.opcode == IBV_WC_RECV && received.src_qp == from->qp_num && received.wc_flags & IBV_WC_GRH);
	CHECK(sent.status == IBV_WC_SUCCESS && sent.wr_id == 1 && sent.opcode == IBV_WC_SEND);
	CHECK(memcmp(memory, memory + TARGET + AREA, BYTES) == 0);
}

static void a_record_is_acknowledged(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	struct airdma_record record;
	struct airdma_record_wr wr = {
		.wr_id = 3, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .ah = ah,
		.remote_qpn = to->qp_num, .remote_qkey = QKEY, .remote_addr = (uintptr_t)memory + TARGET,
		.rkey = records->rkey, .flags = AIRDMA_RECORD_RELIABLE,
	};
	CHECK(airdma_record_post(from, &wr) == 0);
	struct ibv_wc sent = completion(sends), arrived = completion(receives);
	CHECK(sent.status == IBV_WC_SUCCESS && sent.wr_id == 3 && (int)sent.opcode == AIRDMA_WC_RECORD_SENT);
	CHECK((int)arrived.opcode == AIRDMA_WC_RECORD && arrived.byte_len == BYTES);
	CHECK(airdma_record_read(to, arrived.wr_id, &record) == 0 && record.ended == AIRDMA_RECORD_WHOLE);
	CHECK(airdma_record_free(to, arrived.wr_id) == 0);
	wr.rkey ^= 0x100;
	CHECK(airdma_record_post(from, &wr) == 0);
	CHECK(completion(sends).status == IBV_WC_REM_ACCESS_ERR);
}

static void one_destination_that_fails_harms_no_other(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = message(&sge, 4, 0x777777), *bad;
	CHECK(airdma_rd_send(from, &wr, &bad) == 0);
	wr = message(&sge, 5, to->qp_num);
	post_receive(6, AREA + BYTES - 1);
	CHECK(airdma_rd_send(from, &wr, &bad) == 0);
	struct ibv_wc wc = completion(sends);
	CHECK(wc.wr_id == 5 && wc.status == IBV_WC_REM_INV_REQ_ERR);
	sge.length = BYTES - 1;
	CHECK(airdma_rd_send(from, &wr, &bad) == 0);
	wc = completion(sends);
	CHECK(wc.wr_id == 5 && wc.status == IBV_WC_SUCCESS);
	CHECK(completion(receives).wr_id == 6);
	wc = completion(sends);
	CHECK(wc.wr_id == 4 && wc.status == IBV_WC_RETRY_EXC_ERR);
	CHECK(from->state == IBV_QPS_RTS);
}

static void what_is_wrong_is_refused(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = message(&sge, 1, to->qp_num), *bad = NULL;
	struct airdma_rd_attr attr = { .silence_us = 4000001 };
	CHECK(airdma_rd_enable(from, NULL) == EINVAL);
	CHECK(airdma_rd_enable(to, &attr) == EINVAL);
	attr = (struct airdma_rd_attr){ .reserved = { 1 } };
	CHECK(airdma_rd_enable(to, &attr) == EINVAL);
	CHECK(airdma_rd_send(to, &wr, &bad) == EINVAL && bad == &wr);
	wr.send_flags = 1 << 16;
	CHECK(ibv_post_send(from, &wr, &bad) == EINVAL);
	attr = (struct airdma_rd_attr){ .messages_max = 16 };
	CHECK(airdma_rd_enable(to, &attr) == 0);
}

int main(void)
{
	struct airdma_rd_attr attr = { .silence_us = 300000 };
	CHECK(airdma_rd_enable && airdma_rd_send);
	open_device();
	sends = ibv_create_cq(context, 64, NULL, NULL, 0);
	receives = ibv_create_cq(context, 400, NULL, NULL, 0);
	CHECK(sends && receives);
	from = queue_pair();
	to = queue_pair();
	struct ibv_ah_attr ah_attr = to_self();
	ah = ibv_create_ah(pd, &ah_attr);
	CHECK(ah);
	records = airdma_record_reg(pd, memory + TARGET, BYTES, NULL);
	CHECK(records && airdma_record_enable(to, NULL) == 0 && airdma_rd_enable(from, &attr) == 0);
	a_send_of_many_packets_fills_a_receive();
	a_record_is_acknowledged();
	one_destination_that_fails_harms_no_other();
	what_is_wrong_is_refused();
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
	CHECK(ibv_dereg_mr(records) == 0 && ibv_destroy_cq(sends) == 0 && ibv_destroy_cq(receives) == 0);
	close_device();
	puts("ok");
	return 0;
}
