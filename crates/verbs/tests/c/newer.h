/*
 * What verbs.h and rdma_cma.h have got from rdma-core 45 to 65, for compilers that find an older
 * release: names, numbers and layouts.
 */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#ifndef IBV_DEVICE_CC_DMA_BOUNCE

struct ibv_dmah { struct ibv_context *context; };
struct ibv_dmah_init_attr { uint32_t comp_mask, cpu_id; uint8_t ph, tph_mem_type; };
enum { IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1, IBV_DMAH_INIT_ATTR_MASK_PH = 2, IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 4 };
struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr);
int ibv_dealloc_dmah(struct ibv_dmah *dmah);

struct ibv_buf;
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);
int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm);

struct ibv_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	struct ibv_dmah *dmah;
	struct ibv_buf *buf;
};
enum {
	IBV_REG_MR_MASK_IOVA = 1, IBV_REG_MR_MASK_ADDR = 2, IBV_REG_MR_MASK_FD = 4, IBV_REG_MR_MASK_FD_OFFSET = 8,
	IBV_REG_MR_MASK_DMAH = 16, IBV_REG_MR_MASK_BUF = 32
};
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr);

int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed);
const char *ibv_wr_opcode_str(enum ibv_wr_opcode opcode);

enum {
	IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1, IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 2, IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 4,
	IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 8, IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 16,
	IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 32
};
struct ibv_comp_cntr_caps { uint64_t max_value; uint32_t max_counters, supported_qp_attach_ops; };
struct ibv_comp_cntr { struct ibv_context *context; uint32_t handle; };
enum ibv_comp_cntr_type { IBV_COMP_CNTR_TYPE_WRS, IBV_COMP_CNTR_TYPE_BYTES };
struct ibv_comp_cntr_init_attr { uint32_t comp_mask; enum ibv_comp_cntr_type type; uint32_t flags; };
struct ibv_qp_attach_comp_cntr_attr { uint32_t comp_mask, op_mask; };
int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t size);
struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr_init_attr *attr);
int ibv_destroy_comp_cntr(struct ibv_comp_cntr *counter);
int ibv_set_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value);
int ibv_set_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value);
int ibv_inc_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount);
int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount);
int ibv_read_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *value);
int ibv_read_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *value);
int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *counter, struct ibv_qp_attach_comp_cntr_attr *attr);

#define RDMA_CM_EVENT_ADDRINFO_RESOLVED ((enum rdma_cm_event_type)(RDMA_CM_EVENT_TIMEWAIT_EXIT + 1))
#define RDMA_CM_EVENT_USER ((enum rdma_cm_event_type)(RDMA_CM_EVENT_TIMEWAIT_EXIT + 3))
enum { RAI_SA = 0x10, RAI_DNS = 0x20 };
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service, const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t argument);

#endif
