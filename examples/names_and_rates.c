/* The small calls: names of values, rates, keys of partitions, and what a device says that cannot
 * do something. */
#include "loopback.h"

static void names(struct ibv_context *context)
{
    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0);
    printf("%s: %s, port %s\n", ibv_get_device_name(context->device), ibv_node_type_str(context->device->node_type),
           ibv_port_state_str(port.state));
    CHECK(strcmp(ibv_port_state_str(IBV_PORT_ACTIVE), "active") == 0);
    CHECK(strcmp(ibv_wc_status_str(IBV_WC_SUCCESS), "success") == 0);
    CHECK(strcmp(ibv_event_type_str(IBV_EVENT_DEVICE_FATAL), "local catastrophic error") == 0);
    CHECK(strcmp(ibv_node_type_str(IBV_NODE_CA), "InfiniBand channel adapter") == 0);
    /* What is none has a name as well. */
    CHECK(strcmp(ibv_wc_status_str(1000), "unknown") == 0 && ibv_event_type_str(1000) && ibv_port_state_str(1000));
    /* A device that was opened twice has one number. */
    CHECK(ibv_get_device_index(context->device) >= 0);
    CHECK(ibv_get_device_guid(context->device) != 0);
}

static void rates(void)
{
    static const struct {
        enum ibv_rate rate;
        int multiple, mbps; /* of 2.5 Gbit/s; as data is transferred, signalling aside */
    } known[] = { { IBV_RATE_2_5_GBPS, 1, 2500 },   { IBV_RATE_10_GBPS, 4, 10000 }, { IBV_RATE_40_GBPS, 16, 40000 },
                  { IBV_RATE_120_GBPS, 48, 120000 }, { IBV_RATE_100_GBPS, -1, 103125 } };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        CHECK(ibv_rate_to_mbps(known[i].rate) == known[i].mbps && mbps_to_ibv_rate(known[i].mbps) == known[i].rate);
        if (known[i].multiple > 0)
            CHECK(ibv_rate_to_mult(known[i].rate) == known[i].multiple && mult_to_ibv_rate(known[i].multiple) == known[i].rate);
    }
    CHECK(mbps_to_ibv_rate(1) == IBV_RATE_MAX && ibv_rate_to_mbps(IBV_RATE_MAX) == -1);
    printf("IBV_RATE_100_GBPS is %d Mbit/s\n", ibv_rate_to_mbps(IBV_RATE_100_GBPS));
}

static void port_tables(struct ibv_context *context)
{
    /* RoCE has one partition, of which everybody is a full member. */
    __be16 pkey;
    CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
    CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0 && ibv_get_pkey_index(context, 1, htobe16(0x1234)) == -1);
    struct ibv_ah_attr attr = path_to_self(context);
    /* Switches spread packets by their UDP source port, which is made from the flow label. */
    attr.grh.flow_label = 0x12345;
    printf("flow label 0x%x leaves from UDP port %u\n", attr.grh.flow_label, ibv_flow_label_to_udp_sport(attr.grh.flow_label));
}

/* What is part of the interface, but not of this device. */
static void absent(struct ibv_context *context)
{
    struct ibv_counters_init_attr counters = { 0 };
    CHECK(!ibv_create_counters(context, &counters) && errno == EOPNOTSUPP);
    struct ibv_flow_action_esp_attr esp = { 0 };
    CHECK(!ibv_create_flow_action_esp(context, &esp) && errno == EOPNOTSUPP);
    struct ibv_wq_init_attr wq = { 0 };
    CHECK(!ibv_create_wq(context, &wq) && errno == EOPNOTSUPP);
    struct ibv_rwq_ind_table_init_attr table = { 0 };
    CHECK(!ibv_create_rwq_ind_table(context, &table) && errno == EOPNOTSUPP);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
    struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 16, 16 } };
    CHECK(cq && ibv_modify_cq(cq, &moderation) == EOPNOTSUPP);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_qp *qp = create_qp(pd, cq, IBV_QPT_RC, NULL);
    struct ibv_qp_rate_limit_attr limit = { .rate_limit = 1000 };
    CHECK(ibv_modify_qp_rate_limit(qp, &limit) == EINVAL); /* a queue pair that does not send yet has none */
    struct ibv_flow_attr flow = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof flow, .port = 1 };
    CHECK(!ibv_create_flow(qp, &flow) && errno == EOPNOTSUPP);
    CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE));
    CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0) == 0);
    CHECK(!ibv_qp_to_qp_ex(qp)); /* not created with ibv_create_qp_ex and its operations */
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
    printf("what there is not is refused: %s\n", strerror(EOPNOTSUPP));
}

int main(void)
{
    struct ibv_context *context = open_first_device();
    names(context);
    rates();
    port_tables(context);
    absent(context);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
