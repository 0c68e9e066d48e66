/*
 * What rdma-core's libibverbs offers to its hardware providers. Programs such as perftest link
 * libmlx5 and libefa, whose symbols must all be there when they are loaded. There is no kernel
 * device behind this library, so a provider that registers itself is heard out, and one that would
 * talk to a kernel driver is told that there is none.
 *
 * The names are those of versions.txt with node IBVERBS_PRIVATE_34; a test compares the two. A
 * release of rdma-core has them all under one node, whose number is that of the release in which
 * the interface to providers last changed: IN_OTHER_NODES gives each name the nodes of other
 * releases.
 */
#include <errno.h>

#define IN_NODE(at, node, symbol) __asm__(".symver stub_" #symbol ", " #symbol #at "IBVERBS_PRIVATE_" #node);
#define IN_OTHER_NODES(symbol) \
    IN_NODE(@, 25, symbol) IN_NODE(@, 33, symbol) IN_NODE(@, 57, symbol) \
    IN_NODE(@, 59, symbol) IN_NODE(@, 64, symbol) IN_NODE(@, 65, symbol)
#define IN_EACH_NODE(symbol) IN_NODE(@@, 34, symbol) IN_OTHER_NODES(symbol)

#define REFUSES(name) int stub_##name(void) { errno = ENODEV; return ENODEV; } IN_EACH_NODE(name)
#define FAILS(name) int stub_##name(void) { errno = ENODEV; return -1; } IN_EACH_NODE(name)
#define IGNORES(name) void stub_##name(void) { } IN_EACH_NODE(name)
#define NOTHING(name) void *stub_##name(void) { errno = ENODEV; return 0; } IN_EACH_NODE(name)

char stub_verbs_allow_disassociate_destroy;
IN_EACH_NODE(verbs_allow_disassociate_destroy)

/* The two that are not for providers. They are implemented elsewhere, with the first node. */
int ibv_query_gid_type(void *context, unsigned char port, unsigned int index, unsigned int *type);
const char *ibv_wr_opcode_str(unsigned int opcode);

int stub_ibv_query_gid_type(void *context, unsigned char port, unsigned int index, unsigned int *type)
{
    return ibv_query_gid_type(context, port, index, type);
}
IN_OTHER_NODES(ibv_query_gid_type)

const char *stub_ibv_wr_opcode_str(unsigned int opcode)
{
    return ibv_wr_opcode_str(opcode);
}
IN_OTHER_NODES(ibv_wr_opcode_str)

/* A provider registers with the release that it was built for. */
#define REGISTERS(node) void verbs_register_driver_##node(void) { }
REGISTERS(25)
REGISTERS(33)
REGISTERS(34)
REGISTERS(57)
REGISTERS(59)
REGISTERS(64)
REGISTERS(65)

IGNORES(__verbs_log)
IGNORES(ibv_dmabuf_heap_destroy)
IGNORES(ibv_dmabuf_heap_free)
IGNORES(verbs_init_cq)
IGNORES(verbs_set_ops)
IGNORES(verbs_uninit_context)
NOTHING(_verbs_init_and_alloc_context)
NOTHING(ibv_dmabuf_heap_alloc)
NOTHING(ibv_dmabuf_heap_cc_shared_init)
NOTHING(verbs_open_device)
FAILS(ibv_cmd_export_dmabuf_fd)
FAILS(ibv_read_ibdev_sysfs_file)
REFUSES(__ioctl_final_num_attrs)
REFUSES(execute_ioctl)
REFUSES(ibv_cmd_advise_mr)
REFUSES(ibv_cmd_alloc_dm)
REFUSES(ibv_cmd_alloc_dmah)
REFUSES(ibv_cmd_alloc_mw)
REFUSES(ibv_cmd_alloc_pd)
REFUSES(ibv_cmd_attach_mcast)
REFUSES(ibv_cmd_close_xrcd)
REFUSES(ibv_cmd_create_ah)
REFUSES(ibv_cmd_create_comp_cntr)
REFUSES(ibv_cmd_create_counters)
REFUSES(ibv_cmd_create_cq)
REFUSES(ibv_cmd_create_cq_ex)
REFUSES(ibv_cmd_create_cq_ex2)
REFUSES(ibv_cmd_create_flow)
REFUSES(ibv_cmd_create_flow_action_esp)
REFUSES(ibv_cmd_create_qp)
REFUSES(ibv_cmd_create_qp_ex)
REFUSES(ibv_cmd_create_qp_ex2)
REFUSES(ibv_cmd_create_rwq_ind_table)
REFUSES(ibv_cmd_create_srq)
REFUSES(ibv_cmd_create_srq_ex)
REFUSES(ibv_cmd_create_wq)
REFUSES(ibv_cmd_dealloc_mw)
REFUSES(ibv_cmd_dealloc_pd)
REFUSES(ibv_cmd_dereg_mr)
REFUSES(ibv_cmd_destroy_ah)
REFUSES(ibv_cmd_destroy_comp_cntr)
REFUSES(ibv_cmd_destroy_counters)
REFUSES(ibv_cmd_destroy_cq)
REFUSES(ibv_cmd_destroy_flow)
REFUSES(ibv_cmd_destroy_flow_action)
REFUSES(ibv_cmd_destroy_qp)
REFUSES(ibv_cmd_destroy_rwq_ind_table)
REFUSES(ibv_cmd_destroy_srq)
REFUSES(ibv_cmd_destroy_wq)
REFUSES(ibv_cmd_detach_mcast)
REFUSES(ibv_cmd_free_dm)
REFUSES(ibv_cmd_free_dmah)
REFUSES(ibv_cmd_get_context)
REFUSES(ibv_cmd_inc_comp_cntr)
REFUSES(ibv_cmd_inc_err_comp_cntr)
REFUSES(ibv_cmd_modify_cq)
REFUSES(ibv_cmd_modify_flow_action_esp)
REFUSES(ibv_cmd_modify_qp)
REFUSES(ibv_cmd_modify_qp_ex)
REFUSES(ibv_cmd_modify_srq)
REFUSES(ibv_cmd_modify_wq)
REFUSES(ibv_cmd_open_qp)
REFUSES(ibv_cmd_open_xrcd)
REFUSES(ibv_cmd_poll_cq)
REFUSES(ibv_cmd_post_recv)
REFUSES(ibv_cmd_post_send)
REFUSES(ibv_cmd_post_srq_recv)
REFUSES(ibv_cmd_qp_attach_comp_cntr)
REFUSES(ibv_cmd_query_comp_cntr_caps)
REFUSES(ibv_cmd_query_context)
REFUSES(ibv_cmd_query_device_any)
REFUSES(ibv_cmd_query_mr)
REFUSES(ibv_cmd_query_port)
REFUSES(ibv_cmd_query_port_speed)
REFUSES(ibv_cmd_query_qp)
REFUSES(ibv_cmd_query_srq)
REFUSES(ibv_cmd_read_comp_cntr)
REFUSES(ibv_cmd_read_counters)
REFUSES(ibv_cmd_read_err_comp_cntr)
REFUSES(ibv_cmd_reg_dm_mr)
REFUSES(ibv_cmd_reg_dmabuf_mr)
REFUSES(ibv_cmd_reg_mr)
REFUSES(ibv_cmd_reg_mr_ex)
REFUSES(ibv_cmd_req_notify_cq)
REFUSES(ibv_cmd_rereg_mr)
REFUSES(ibv_cmd_resize_cq)
REFUSES(ibv_cmd_set_comp_cntr)
REFUSES(ibv_cmd_set_err_comp_cntr)
