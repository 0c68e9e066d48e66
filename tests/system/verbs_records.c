/*
 * Write-Records from one host to another, as many as the queues take:
 *
 *   verbs_records [-d DEVICE] [-g GID_INDEX] [-n SILENT | -b | -u]          server: the target
 *   verbs_records [-d DEVICE] [-g GID_INDEX] [-n SILENT | -b | -u] HOST     client: the source
 *
 * The client writes messages of 200 bytes, 200,000 bytes and 4 MB back to back, and prints per
 * size the share of bytes that arrived. With -n there are messages of 200,000 bytes alone, and a
 * host at the address SILENT, which does not answer, gets as many. With -b they have 64 MB. With
 * -u messages of 64 bytes to 64 KiB go to a table of the usual size, whose program reads each byte.
 *
 * Exit status: 0 all arrived, 1 not all, 2 it could not be set up.
 */
#define NAME "verbs_records"
#include "verbs_pair.h"
#include "../../crates/verbs/include/airdma/verbs_record.h"

#define BYTES (64u << 20)
#define DEPTH 64
#define QKEY 0x1234

struct end { union ibv_gid gid; uint64_t address; uint32_t rkey, qpn; };
struct load { uint32_t length, messages, at_once; };

static const struct load USUAL[] = { { 200, 2000, DEPTH }, { 200000, 100, DEPTH }, { 4000000, 8, 8 }, { 0 } };
static const struct load BESIDE[] = { { 200000, 20, DEPTH }, { 0 } };
static const struct load BIG[] = { { 64000000, 8, 2 }, { 0 } };
static const struct load TABLE[] = { { 64, 50000, DEPTH }, { 1024, 50000, DEPTH }, { 4096, 50000, DEPTH },
				     { 16384, 20000, DEPTH }, { 65536, 5000, DEPTH }, { 0 } };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr, *records;
static uint8_t *buffer;
static struct end mine, theirs;
static struct ibv_ah *ah, *silent;
static int gid_index;

static double now_s(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

static struct ibv_ah *way_to(const union ibv_gid *gid)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	attr.grh.dgid = *gid;
	attr.grh.sgid_index = gid_index;
	struct ibv_ah *way = ibv_create_ah(pd, &attr);
	SETUP(way, "ibv_create_ah: %m");
	return way;
}

static void set_up(const char *device, const struct load *loads)
{
	context = open_device_named(device);
	SETUP(ibv_query_gid(context, 1, gid_index, &mine.gid) == 0, "ibv_query_gid(%d)", gid_index);
	SETUP(pd = ibv_alloc_pd(context), "ibv_alloc_pd: %m");
	SETUP(posix_memalign((void **)&buffer, 4096, BYTES) == 0, "no memory");
	memset(buffer, 0xa5, BYTES);
	SETUP(mr = ibv_reg_mr(pd, buffer, BYTES, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr: %m");
	SETUP(records = airdma_record_reg(pd, buffer, BYTES, NULL), "airdma_record_reg: %m");
	SETUP(cq = ibv_create_cq(context, 1024, NULL, NULL, 0), "ibv_create_cq: %m");
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = DEPTH * 2, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	SETUP(qp = ibv_create_qp(pd, &init), "ibv_create_qp: %m");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	SETUP(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	SETUP(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	SETUP(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
	struct airdma_record_attr long_ones = { .units_max = 1 << 16, .idle_us = 1000000, .age_us = 20000000 };
	struct airdma_record_attr limits = { .open_max = 128, .closed_max = 8192, .sources_max = 16384, .idle_us = 1000000, .age_us = 20000000 };
	/* A busy machine must not look like loss. */
	struct airdma_record_attr usual = { .idle_us = 1000000, .age_us = 20000000 };
	const struct airdma_record_attr *table = loads == BIG ? &long_ones : loads == TABLE ? &usual : &limits;
	SETUP(airdma_record_enable(qp, table) == 0, "airdma_record_enable: %m");
	mine.address = (uintptr_t)buffer;
	mine.rkey = records->rkey;
	mine.qpn = qp->qp_num;
	tell(&mine, sizeof mine);
	hear(&theirs, sizeof theirs);
}

/* Takes records until the client says that it sent all, and as long as some come. */
static void target(const struct load *load)
{
	uint64_t valid = 0, ended = 0;
	double quiet = now_s();
	bool all_sent = false;
	while (ended < load->messages && (!all_sent || now_s() - quiet < 2.5)) {
		struct ibv_wc wc;
		struct airdma_record record;
		char token;
		if (!all_sent)
			all_sent = recv(control, &token, 1, MSG_DONTWAIT) == 1;
		if (ibv_poll_cq(cq, 1, &wc) <= 0)
			continue;
		quiet = now_s();
		CHECK((int)wc.opcode == AIRDMA_WC_RECORD && wc.status == IBV_WC_SUCCESS, "a completion of another kind");
		CHECK(airdma_record_read(qp, wc.wr_id, &record) == 0, "airdma_record_read: %m");
		CHECK(record.length == load->length, "a record of %u bytes", record.length);
		if (record.ended == AIRDMA_RECORD_WHOLE)
			check((void *)(uintptr_t)record.addr, record.length, load->length, "a record");
		valid += record.valid;
		ended++;
		CHECK(airdma_record_free(qp, wc.wr_id) == 0, "airdma_record_free: %m");
	}
	if (!all_sent)
		hear(&(char){ 0 }, 1);
	tell(&valid, sizeof valid);
}

static bool source(const struct load *load)
{
	struct ibv_sge sge = { (uintptr_t)buffer, load->length, mr->lkey };
	struct airdma_record_wr wr = {
		.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.remote_qpn = theirs.qpn, .remote_qkey = QKEY, .rkey = theirs.rkey,
	};
	uint32_t posted = 0, under_way = 0, requests = load->messages * (silent ? 2 : 1);
	double begun = now_s();
	fill(buffer, load->length, load->length);
	while (posted < requests || under_way > 0) {
		struct ibv_wc wc;
		if (posted < requests && under_way < load->at_once) {
			uint32_t number = silent ? posted / 2 : posted;
			wr.ah = silent && posted % 2 == 0 ? silent : ah;
			wr.remote_addr = theirs.address + (uint64_t)(number % (BYTES / load->length)) * load->length;
			CHECK(airdma_record_post(qp, &wr) == 0, "airdma_record_post: %m");
			posted++;
			under_way++;
		}
		if (ibv_poll_cq(cq, 1, &wc) == 1) {
			CHECK(wc.status == IBV_WC_SUCCESS, "a record: %s", ibv_wc_status_str(wc.status));
			under_way--;
		}
	}
	double took = now_s() - begun;
	uint64_t valid, all = (uint64_t)load->length * load->messages;
	tell("x", 1);
	hear(&valid, sizeof valid);
	printf("%u bytes: %.2f %% of %u messages, %.1f MB/s\n", load->length, 100.0 * valid / all, load->messages,
	       all / took / 1e6);
	return valid == all;
}

int main(int argc, char **argv)
{
	const char *device = NULL, *absent = NULL;
	const struct load *loads = USUAL;
	int option;
	while ((option = getopt(argc, argv, "d:g:n:bu")) != -1) {
		if (option == 'd')
			device = optarg;
		else if (option == 'g')
			gid_index = atoi(optarg);
		else if (option == 'n')
			absent = optarg, loads = BESIDE;
		else if (option == 'b')
			loads = BIG;
		else if (option == 'u')
			loads = TABLE;
		else
			return 2;
	}
	client = optind < argc;
	connect_control(client ? argv[optind] : NULL);
	SETUP(airdma_record_enable, "this is not airdma");
	set_up(device, loads);
	if (client) {
		ah = way_to(&theirs.gid);
		if (absent) {
			union ibv_gid gid = { .raw = { [10] = 0xff, 0xff } };
			SETUP(inet_pton(AF_INET, absent, &gid.raw[12]) == 1, "no IPv4 address: %s", absent);
			silent = way_to(&gid);
		}
	}
	bool good = true;
	for (; loads->messages; loads++) {
		if (client)
			good &= source(loads);
		else
			target(loads);
	}
	return good ? 0 : 1;
}
