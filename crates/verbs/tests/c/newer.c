/* Calls that rdma-core has got after release 44. */
#include "common.h"
#include "newer.h"

static void registers(void)
{
	struct ibv_mr_init_attr attr = { .length = 4096, .access = ALL_ACCESS, .comp_mask = IBV_REG_MR_MASK_ADDR, .addr = memory };
	struct ibv_mr *plain = ibv_reg_mr_ex(pd, &attr);
	CHECK(plain && plain->addr == memory && plain->length == 4096 && plain->pd == pd && plain->context == context);
	CHECK(ibv_dereg_mr(plain) == 0);

	/* A handle is in use as long as a region has it. */
	struct ibv_dmah_init_attr hints = { .comp_mask = IBV_DMAH_INIT_ATTR_MASK_CPU_ID | IBV_DMAH_INIT_ATTR_MASK_PH, .cpu_id = 0, .ph = 3 };
	struct ibv_dmah *handle = ibv_alloc_dmah(context, &hints);
	CHECK(handle && handle->context == context);
	attr.comp_mask |= IBV_REG_MR_MASK_DMAH | IBV_REG_MR_MASK_IOVA;
	attr.dmah = handle;
	attr.iova = 0x10000;
	struct ibv_mr *hinted = ibv_reg_mr_ex(pd, &attr);
	CHECK(hinted);
	CHECK(ibv_dealloc_dmah(handle) == EBUSY);
	CHECK(ibv_dereg_mr(hinted) == 0 && ibv_dealloc_dmah(handle) == 0);
	hints.ph = 4;
	CHECK(!ibv_alloc_dmah(context, &hints) && errno == EINVAL);
	hints.comp_mask = 1 << 20;
	CHECK(!ibv_alloc_dmah(context, &hints) && errno == EOPNOTSUPP);

	/* Memory that is paged on demand has no hints; memory of other devices, unknown bits, no address. */
	hints.comp_mask = 0;
	attr.dmah = ibv_alloc_dmah(context, &hints);
	attr.access |= IBV_ACCESS_ON_DEMAND;
	CHECK(attr.dmah && !ibv_reg_mr_ex(pd, &attr) && errno == EINVAL);
	CHECK(ibv_dealloc_dmah(attr.dmah) == 0);
	attr.access &= ~IBV_ACCESS_ON_DEMAND;
	attr.comp_mask = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET;
	CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = IBV_REG_MR_MASK_ADDR | 1ull << 40;
	CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = 0;
	CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EINVAL);
}

static void allocates(void)
{
	struct ibv_buf *buf = NULL;
	char *data = ibv_alloc_buf(pd, 10000, &buf);
	CHECK(data && buf && (uintptr_t)data % 4096 == 0);
	memset(data, 7, 10000);
	struct ibv_mr *region = ibv_reg_buf_mr(pd, buf, data + 100, 9900, ALL_ACCESS);
	CHECK(region && region->addr == data + 100 && region->length == 9900);
	CHECK(ibv_dereg_mr(region) == 0);
	CHECK(!ibv_reg_buf_mr(pd, buf, data + 100, 9901, ALL_ACCESS) && errno == EINVAL);
	CHECK(!ibv_reg_buf_mr(pd, buf, data - 1, 10, ALL_ACCESS) && errno == EINVAL);
	struct ibv_pd *other = ibv_alloc_pd(context);
	CHECK(other && !ibv_reg_buf_mr(other, buf, data, 10, ALL_ACCESS) && errno == EINVAL);
	CHECK(ibv_dealloc_pd(other) == 0);
	CHECK(ibv_export_buf_dmabuf_fd(buf) == -1 && errno == ENODATA);
	ibv_free_buf(buf);
	CHECK(!ibv_alloc_buf(pd, 0, &buf) && errno == EINVAL);

	struct ibv_alloc_dm_attr wanted = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &wanted);
	CHECK(dm && ibv_dm_export_dmabuf_fd(dm) == -1 && errno == EOPNOTSUPP);
	CHECK(ibv_free_dm(dm) == 0);
}

static void tells(void)
{
	uint64_t speed = 0;
	CHECK(ibv_query_port_speed(context, 1, &speed) == 0 && speed > 0);
	CHECK(ibv_query_port_speed(context, 2, &speed) == EINVAL);
	CHECK(strcmp(ibv_wr_opcode_str(IBV_WR_RDMA_READ), "rdma-read") == 0);
	CHECK(strcmp(ibv_wr_opcode_str(99), "unknown") == 0);
	CHECK(strcmp(ibv_event_type_str(IBV_EVENT_WQ_FATAL + 1), "Device link speed change") == 0);
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->event == type);
	return event;
}

static void resolves(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_addrinfo *info, hints = { .ai_flags = RAI_DNS | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP };
	CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_query_addrinfo(id, &info) == -1 && errno == ENOENT);
	CHECK(rdma_resolve_addrinfo(id, "no.such.name.", "7471", &hints) == -1);
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints) == 0);
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "7471", &hints) == -1 && errno == EBUSY);
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_ADDRINFO_RESOLVED);
	CHECK(event->id == id && event->status == 0 && rdma_ack_cm_event(event) == 0);
	CHECK(rdma_query_addrinfo(id, &info) == 0 && info->ai_dst_addr);
	struct sockaddr_in *to = (struct sockaddr_in *)info->ai_dst_addr;
	CHECK(to->sin_family == AF_INET && to->sin_port == htons(7471) && to->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	rdma_freeaddrinfo(info);
	CHECK(rdma_query_addrinfo(id, &info) == -1 && errno == ENOENT);
	hints.ai_flags = RAI_SA;
	CHECK(rdma_resolve_addrinfo(id, NULL, "1", &hints) == -1 && errno == EOPNOTSUPP);
	/* Resolved, and never asked for: freed with the identifier. */
	CHECK(rdma_resolve_addrinfo(id, "127.0.0.1", "1", NULL) == 0);
	CHECK(rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDRINFO_RESOLVED)) == 0);

	CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 3, 0x123456789abcdef) == 0);
	CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, -4, 5) == 0);
	CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0) == -1 && errno == EINVAL);
	event = next(channel, RDMA_CM_EVENT_USER);
	CHECK(event->id == id && event->status == 3 && *(uint64_t *)&event->param == 0x123456789abcdef);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = next(channel, RDMA_CM_EVENT_USER);
	CHECK(event->status == -4 && *(uint64_t *)&event->param == 5 && rdma_ack_cm_event(event) == 0);
	CHECK(strcmp(rdma_event_str(RDMA_CM_EVENT_USER), "RDMA_CM_EVENT_USER") == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	open_device();
	registers();
	allocates();
	tells();
	resolves();
	close_device();
	puts("ok");
	return 0;
}
