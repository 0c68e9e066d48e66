/* What the queries answer: the extended device attributes, whatever size of struct the program
 * was compiled with; queue pairs as they were set; and the calls that this device does not have. */
#include "common.h"

static void device(void)
{
	struct ibv_device_attr_ex attr;
	memset(&attr, 0xff, sizeof attr);
	CHECK(ibv_query_device_ex(context, NULL, &attr) == 0);
	CHECK(attr.orig_attr.phys_port_cnt == 1 && attr.phys_port_cnt_ex == 1 && attr.comp_mask == 0);
	CHECK((uint32_t)attr.device_cap_flags_ex == attr.orig_attr.device_cap_flags);
	/* IB_UVERBS_DEVICE_FLUSH_GLOBAL, not _PERSISTENT, and IB_UVERBS_DEVICE_ATOMIC_WRITE */
	CHECK(attr.device_cap_flags_ex >> 32 == (1 << 6 | 1 << 8));
	CHECK(attr.completion_timestamp_mask == UINT64_MAX && attr.hca_core_clock == 1000000);
	CHECK(attr.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	uint32_t all = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
		       IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV | 1 << 6 | 1 << 7; /* FLUSH, ATOMIC WRITE */
	CHECK(attr.odp_caps.per_transport_caps.rc_odp_caps == all && attr.xrc_odp_caps == all);
	CHECK((attr.odp_caps.per_transport_caps.ud_odp_caps & IBV_ODP_SUPPORT_WRITE) == 0);
	CHECK(attr.tso_caps.max_tso == 0 && attr.rss_caps.supported_qpts == 0 && attr.max_wq_type_rq == 0);
	CHECK(attr.packet_pacing_caps.qp_rate_limit_min == 1 && attr.packet_pacing_caps.qp_rate_limit_max == 1000000000);
	CHECK(attr.packet_pacing_caps.supported_qpts & 1 << IBV_QPT_RC && attr.tm_caps.max_num_tags == 0);
	CHECK(attr.cq_mod_caps.max_cq_count == 0 && attr.pci_atomic_caps.fetch_add == 0 && attr.max_dm_size > 0);

	/* An older program's struct, a newer one's, and one that ends too early. */
	struct verbs_context *verbs = verbs_get_ctx(context);
	struct { struct ibv_device_attr_ex known; char rest[64]; } newer;
	memset(&newer, 0xff, sizeof newer);
	size_t old_size = offsetof(struct ibv_device_attr_ex, completion_timestamp_mask);
	CHECK(verbs->query_device_ex(context, NULL, &newer.known, old_size) == 0);
	CHECK(newer.known.odp_caps.general_caps == attr.odp_caps.general_caps);
	CHECK(newer.known.hca_core_clock == UINT64_MAX); /* untouched */
	CHECK(verbs->query_device_ex(context, NULL, &newer.known, sizeof newer) == 0);
	CHECK(newer.known.max_dm_size == attr.max_dm_size && newer.known.xrc_odp_caps == attr.xrc_odp_caps);
	CHECK(newer.rest[0] == 0 && newer.rest[63] == 0);
	CHECK(verbs->query_device_ex(context, NULL, &newer.known, sizeof attr.orig_attr) == EINVAL);
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	CHECK(ibv_query_device_ex(context, &input, &attr) == EINVAL);
}

static void queue_pair(struct ibv_cq *send_cq, struct ibv_cq *recv_cq)
{
	struct ibv_srq_init_attr queue = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &queue);
	struct ibv_qp_init_attr init = { .send_cq = send_cq, .recv_cq = recv_cq, .srq = srq, .qp_context = &queue,
					 .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = 5, .max_send_sge = 3, .max_inline_data = 100 } }, got;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(srq && qp);
	struct ibv_qp_attr attr;
	CHECK(ibv_query_qp(qp, &attr, 0, &got) == 0);
	CHECK(attr.qp_state == IBV_QPS_RESET && attr.cur_qp_state == IBV_QPS_RESET);
	CHECK(got.qp_context == &queue && got.send_cq == send_cq && got.recv_cq == recv_cq && got.srq == srq);
	CHECK(got.qp_type == IBV_QPT_RC && got.sq_sig_all == 1);
	CHECK(got.cap.max_send_wr >= 5 && got.cap.max_send_sge >= 3 && got.cap.max_inline_data >= 100);
	CHECK(got.cap.max_recv_wr == 0 && !memcmp(&got.cap, &init.cap, sizeof got.cap) && !memcmp(&attr.cap, &got.cap, sizeof got.cap));

	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_2048, .dest_qp_num = 0x123456,
				     .rq_psn = 0xabcdef, .max_dest_rd_atomic = 3, .min_rnr_timer = 9, .ah_attr = to_self() };
	attr.ah_attr.grh.traffic_class = 0x28;
	attr.ah_attr.grh.flow_label = 0x54321;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = 5, .rnr_retry = 6,
				     .sq_psn = 0xfedcba, .max_rd_atomic = 2 };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	memset(&attr, 0xff, sizeof attr);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &got) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.cur_qp_state == IBV_QPS_RTS && attr.path_mtu == IBV_MTU_2048);
	CHECK(attr.dest_qp_num == 0x123456 && attr.rq_psn == 0xabcdef && attr.sq_psn == 0xfedcba);
	CHECK(attr.qp_access_flags == IBV_ACCESS_REMOTE_READ && attr.pkey_index == 0 && attr.port_num == 1);
	CHECK(attr.max_rd_atomic == 2 && attr.max_dest_rd_atomic == 3 && attr.min_rnr_timer == 9);
	CHECK(attr.timeout == 17 && attr.retry_cnt == 5 && attr.rnr_retry == 6 && attr.sq_draining == 0);
	CHECK(attr.ah_attr.is_global == 1 && attr.ah_attr.port_num == 1 && attr.ah_attr.grh.hop_limit == 4);
	CHECK(attr.ah_attr.grh.traffic_class == 0x28 && attr.ah_attr.grh.flow_label == 0x54321);
	CHECK(attr.ah_attr.grh.sgid_index == 0 && !memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof gid));
	CHECK(ibv_query_qp(qp, NULL, 0, &got) == EINVAL && ibv_query_qp(qp, &attr, 0, NULL) == EINVAL);

	struct ibv_ece ece = { .vendor_id = 0x1234 };
	CHECK(ibv_query_ece(qp, &ece) == EOPNOTSUPP && ibv_set_ece(qp, &ece) == EOPNOTSUPP);
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 1000 };
	CHECK(ibv_modify_qp_rate_limit(qp, &rate) == 0);
	rate.rate_limit = 1000000001;
	CHECK(ibv_modify_qp_rate_limit(qp, &rate) == EINVAL);
	struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 16, 100 } };
	CHECK(ibv_modify_cq(send_cq, &moderation) == EOPNOTSUPP);
	CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0) == 0);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0);
}

int main(void)
{
	open_device();
	struct ibv_cq *send_cq = ibv_create_cq(context, 8, NULL, NULL, 0), *recv_cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	CHECK(send_cq && recv_cq);
	device();
	queue_pair(send_cq, recv_cq);
	CHECK(ibv_destroy_cq(send_cq) == 0 && ibv_destroy_cq(recv_cq) == 0);
	close_device();
	puts("ok");
	return 0;
}
