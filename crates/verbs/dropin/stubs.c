/*
 * What rdma-core's libibverbs offers to its hardware providers. Programs such as perftest link libmlx5 and libefa, whose
 * symbols must all be there when they are loaded. There is no kernel device behind this library, so a provider that
 * registers itself is heard out, and one that would talk to a kernel driver is told that there is none.
 *
 * The names are those of versions.txt with node IBVERBS_PRIVATE_34; a test compares the two.
 */
#include <errno.h>

#define REFUSES(name) int name(void) { errno = ENODEV; return ENODEV; }
#define IGNORES(name) void name(void) { }
#define NOTHING(name) void *name(void) { errno = ENODEV; return 0; }

char verbs_allow_disassociate_destroy;

IGNORES(__verbs_log)
IGNORES(verbs_register_driver_34)
IGNORES(verbs_set_ops)
IGNORES(verbs_uninit_context)
IGNORES(verbs_init_cq)
NOTHING(_verbs_init_and_alloc_context)
NOTHING(verbs_open_device)
REFUSES(execute_ioctl)
REFUSES(ibv_cmd_advise_mr)
REFUSES(ibv_cmd_alloc_dm)
REFUSES(ibv_cmd_alloc_mw)
REFUSES(ibv_cmd_alloc_pd)
REFUSES(ibv_cmd_attach_mcast)
REFUSES(ibv_cmd_close_xrcd)
REFUSES(ibv_cmd_create_ah)
REFUSES(ibv_cmd_create_counters)
REFUSES(ibv_cmd_create_cq)
REFUSES(ibv_cmd_create_cq_ex)
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
REFUSES(ibv_cmd_get_context)
REFUSES(ibv_cmd_modify_cq)
REFUSES(ibv_cmd_modify_flow_action_esp)
REFUSES(ibv_cmd_modify_qp)
REFUSES(ibv_cmd_modify_qp_ex)
REFUSES(ibv_cmd_modify_srq)
REFUSES(ibv_cmd_modify_wq)
REFUSES(ibv_cmd_open_qp)
REFUSES(ibv_cmd_open_xrcd)
REFUSES(ibv_cmd_query_context)
REFUSES(ibv_cmd_query_device_any)
REFUSES(ibv_cmd_query_mr)
REFUSES(ibv_cmd_query_port)
REFUSES(ibv_cmd_query_qp)
REFUSES(ibv_cmd_query_srq)
REFUSES(ibv_cmd_read_counters)
REFUSES(ibv_cmd_reg_dm_mr)
REFUSES(ibv_cmd_reg_dmabuf_mr)
REFUSES(ibv_cmd_reg_mr)
REFUSES(ibv_cmd_rereg_mr)
REFUSES(ibv_cmd_resize_cq)
