/*
 * Memory of a dmabuf: what exporters of main memory let a program map is registered and carries
 * requests; all else is refused as the kernel does. Says which exporters it found.
 */
#include "common.h"
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

enum { BYTES = 4 * 4096, WITHIN = 4096 + 64, LENGTH = 2 * 4096 };

static int sealed_memory(void)
{
	int fd = memfd_create("memory", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	return fd;
}

static int of_memory(int memory_fd)
{
	struct udmabuf_create create = { .memfd = memory_fd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = BYTES };
	int driver = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	int fd = driver < 0 ? -1 : ioctl(driver, UDMABUF_CREATE, &create);
	CHECK(driver < 0 || fd >= 0);
	close(driver);
	return fd;
}

static int of_heap(void)
{
	struct dma_heap_allocation_data data = { .len = BYTES, .fd_flags = O_RDWR | O_CLOEXEC };
	int driver = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);
	if (driver < 0)
		return -1;
	CHECK(ioctl(driver, DMA_HEAP_IOCTL_ALLOC, &data) == 0);
	close(driver);
	return data.fd;
}

static int is_mapped(void)
{
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		found |= strstr(line, "/dmabuf:") != NULL;
	fclose(maps);
	return found;
}

static void refused(int fd)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	CHECK(!ibv_reg_dmabuf_mr(pd, BYTES - 4096, 4097, 0x1000, fd, access) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, -4096ull, 8192, 0x1000, fd, access) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 0, 0x1000, fd, access) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, WITHIN, 64, 0x1000, fd, access) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 64, 0x1000, fd, access | IBV_ACCESS_ON_DEMAND) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 64, 0x1000, fd, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK(!is_mapped());
}

static struct ibv_wc request(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t remote, uint32_t length, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = remote, .rkey = rkey },
	};
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	return completion(qp->send_cq);
}

/* `content`: the same memory, by a mapping of its own. */
static void carries(int fd, const char *content)
{
	const uint64_t iova = 0x7000000000 + WITHIN % 4096;
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex attr = qp_attr(cq, IBV_QPT_RC, 0);
	attr.comp_mask = IBV_QP_INIT_ATTR_PD;
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	CHECK(cq && qp);
	connect_to(qp, qp->qp_num);
	struct ibv_mr *region = ibv_reg_dmabuf_mr(pd, WITHIN, LENGTH, iova, fd, ALL_ACCESS & 0xf);
	CHECK(region && region->length == LENGTH && is_mapped());
	/* The region keeps the memory. */
	CHECK(close(fd) == 0);

	for (int at = 0; at < LENGTH; at++)
		memory[at] = (char)(at * 7);
	CHECK(request(qp, IBV_WR_RDMA_WRITE, iova, LENGTH, region->rkey).status == IBV_WC_SUCCESS);
	CHECK(memcmp(content + WITHIN, memory, LENGTH) == 0);
	memset(memory, 0, LENGTH);
	CHECK(request(qp, IBV_WR_RDMA_READ, iova + 1, LENGTH - 1, region->rkey).status == IBV_WC_SUCCESS);
	CHECK(memcmp(content + WITHIN + 1, memory, LENGTH - 1) == 0);
	/* Responder and requester are one queue pair, which may flush its request first. */
	memset(memory, 1, LENGTH);
	CHECK(request(qp, IBV_WR_RDMA_WRITE, iova + 1, LENGTH, region->rkey).status != IBV_WC_SUCCESS);
	CHECK(content[WITHIN - 1] == 0 && content[WITHIN + LENGTH] == 0);
	CHECK(ibv_dereg_mr(region) == 0 && !is_mapped());
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(void)
{
	open_device();
	int memory_fd = sealed_memory();
	/* Neither a file of another kind nor none. */
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, memory_fd, IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE) && errno == EBADF);
	int fd = of_memory(memory_fd);
	if (fd >= 0) {
		char *content = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, memory_fd, 0);
		CHECK(content != MAP_FAILED);
		refused(fd);
		carries(fd, content);
		fprintf(stderr, "udmabuf\n");
	}
	fd = of_heap();
	if (fd >= 0) {
		refused(fd);
		struct ibv_mr *region = ibv_reg_dmabuf_mr(pd, 0, BYTES, 0, fd, ALL_ACCESS & 0xf);
		CHECK(region && close(fd) == 0 && ibv_dereg_mr(region) == 0 && !is_mapped());
		fprintf(stderr, "heap\n");
	}
	close_device();
	puts("ok");
	return 0;
}
