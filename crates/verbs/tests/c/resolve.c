/* ibv_resolve_eth_l2_from_gid: the Ethernet address behind a GID. The script beside it in
 * smoke.rs makes the interfaces: v0 with 10.5.0.1 and fd00::1, two neighbours by hand, one
 * (10.5.0.3) that answers, a gateway, and VLAN 7 if the kernel has VLANs. */
#include "common.h"
#include <arpa/inet.h>
#include <net/if.h>

static struct ibv_context *opened(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *found = NULL;
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			found = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	return found;
}

/* The row of the device's own address. */
static uint8_t row(const char *address)
{
	union ibv_gid wanted = { .raw = { 0 } }, is;
	wanted.raw[10] = wanted.raw[11] = 0xff;
	if (inet_pton(AF_INET, address, wanted.raw + 12) != 1)
		CHECK(inet_pton(AF_INET6, address, wanted.raw) == 1);
	for (int i = 0; ibv_query_gid(context, 1, i, &is) == 0; i++)
		if (!memcmp(&is, &wanted, sizeof is))
			return i;
	fprintf(stderr, "%s is not there\n", address);
	exit(1);
}

static int resolve(const char *from, const char *to, uint8_t mac[6], uint16_t *vid)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = row(from), .hop_limit = 4 } };
	attr.grh.dgid.raw[10] = attr.grh.dgid.raw[11] = 0xff;
	if (inet_pton(AF_INET, to, attr.grh.dgid.raw + 12) != 1)
		CHECK(inet_pton(AF_INET6, to, attr.grh.dgid.raw) == 1);
	return ibv_resolve_eth_l2_from_gid(context, &attr, mac, vid);
}

static void leads_to(const char *from, const char *to, const char *expected)
{
	uint8_t mac[6];
	uint16_t vid = 0;
	char text[18];
	int result = resolve(from, to, mac, &vid);
	snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
	if (result || strcmp(text, expected))
		fprintf(stderr, "%s: %d, %s, not %s\n", to, result, text, expected);
	CHECK(result == 0 && !strcmp(text, expected) && vid == 0xffff);
}

/* A path is refused as by the kernel: what an address handle and the move to RTR say. */
static void path_is(const char *to, int expected)
{
	struct ibv_pd *domain = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(domain, &init);
	CHECK(domain && cq && qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 17, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = row("10.5.0.1"), .hop_limit = 4 } } };
	attr.ah_attr.grh.dgid.raw[10] = attr.ah_attr.grh.dgid.raw[11] = 0xff;
	CHECK(inet_pton(AF_INET, to, attr.ah_attr.grh.dgid.raw + 12) == 1);
	errno = 0;
	struct ibv_ah *ah = ibv_create_ah(domain, &attr.ah_attr);
	int said = ah ? 0 : errno;
	int moved = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (said != expected || moved != expected)
		fprintf(stderr, "%s: %d, %d, not %d\n", to, said, moved, expected);
	CHECK(said == expected && moved == expected);
	CHECK(qp->state == (expected ? IBV_QPS_INIT : IBV_QPS_RTR));
	CHECK((!ah || ibv_destroy_ah(ah) == 0) && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(domain) == 0);
}

int main(void)
{
	uint8_t mac[6];
	uint16_t vid;
	context = opened("airdma_v0");
	CHECK(context);
	leads_to("10.5.0.1", "10.5.0.2", "02:00:00:00:00:09");
	leads_to("10.5.0.1", "10.9.1.1", "02:00:00:00:00:09"); /* behind the gateway */
	leads_to("fd00::1", "fd00::2", "02:00:00:00:00:0a");
	leads_to("10.5.0.1", "10.5.0.3", "02:00:00:00:00:03"); /* asked for */
	leads_to("10.5.0.1", "10.5.0.1", "02:00:00:00:00:01"); /* ourselves */
	leads_to("10.5.0.1", "239.1.2.3", "01:00:5e:01:02:03");
	CHECK(resolve("10.5.0.1", "10.5.0.2", mac, NULL) == 0 && resolve("10.5.0.1", "10.5.0.2", NULL, &vid) == EINVAL);
	CHECK(resolve("10.5.0.1", "fd00::2", mac, &vid) == EINVAL);
	CHECK(resolve("10.5.0.1", "10.5.0.77", mac, &vid) == EHOSTUNREACH);
	path_is("10.5.0.2", 0);
	path_is("10.5.0.1", 0); /* ourselves */
	path_is("10.9.1.1", 0); /* behind the gateway */
	path_is("10.5.0.78", ETIMEDOUT); /* asked for, in vain */
	path_is("192.0.2.1", ENETUNREACH); /* no route */
	struct ibv_ah_attr local = { .is_global = 0, .port_num = 1 };
	CHECK(ibv_resolve_eth_l2_from_gid(context, &local, mac, &vid) == EINVAL);
	CHECK(ibv_close_device(context) == 0);
	if (if_nametoindex("v0.7")) {
		context = opened("airdma_v0.7");
		CHECK(context && resolve("10.7.0.1", "10.7.0.1", mac, &vid) == 0 && vid == 7);
		CHECK(ibv_close_device(context) == 0);
	} else {
		fprintf(stderr, "skipped: no VLANs\n");
	}
	puts("ok");
	return 0;
}
