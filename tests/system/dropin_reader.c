/* Looks for RDMA devices as programs do that are built without libibverbs and librdmacm: by
 * dlopen(3), and each function by dlvsym(3) with the version that it had when it was introduced.
 * Both libraries must be one to them: what one opens the other knows. Prints the names of the
 * devices, and of how many files the two libraries are. Exit status 1 if something is missing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <link.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;

static void *load(const char *name, const char *other)
{
    void *loaded = dlopen(name, RTLD_NOW);
    if (!loaded)
        loaded = dlopen(other, RTLD_NOW);
    if (!loaded) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return loaded;
}

static void *find(const char *name, const char *version)
{
    void *symbol = dlvsym(library, name, version);
    if (!symbol) {
        fprintf(stderr, "%s@%s: %s\n", name, version, dlerror());
        exit(1);
    }
    return symbol;
}

/* Counts the files that are one of the libraries, or airdma's preload. */
static int count(struct dl_phdr_info *info, size_t size, void *files)
{
    (void)size;
    if (strstr(info->dlpi_name, "/libibverbs.so") || strstr(info->dlpi_name, "/librdmacm.so") ||
        strstr(info->dlpi_name, "/libairdma.so"))
        ++*(int *)files;
    return 0;
}

/* The calls of librdmacm; `open` of libibverbs is a function that both handles must know as the
 * same. */
static void connection_manager(void *open)
{
    library = load("librdmacm.so", "librdmacm.so.1");
    struct rdma_event_channel *(*create_channel)(void) = find("rdma_create_event_channel", "RDMACM_1.0");
    void (*destroy_channel)(struct rdma_event_channel *) = find("rdma_destroy_event_channel", "RDMACM_1.0");
    int (*create)(struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space) =
        find("rdma_create_id", "RDMACM_1.0");
    int (*destroy)(struct rdma_cm_id *) = find("rdma_destroy_id", "RDMACM_1.0");
    struct ibv_context **(*devices)(int *) = find("rdma_get_devices", "RDMACM_1.0");
    void (*free_devices)(struct ibv_context **) = find("rdma_free_devices", "RDMACM_1.0");
    find("rdma_join_multicast_ex", "RDMACM_1.1");
    find("rdma_establish", "RDMACM_1.2");
    find("rdma_reject_ece", "RDMACM_1.3");
    if (dlvsym(library, "rdma_create_id", "RDMACM_9.9") || dlvsym(library, "rdma_establish", "IBVERBS_1.1")) {
        fprintf(stderr, "a version that does not exist is found\n");
        exit(1);
    }
    if (find("ibv_open_device", "IBVERBS_1.1") != open) {
        fprintf(stderr, "libibverbs is there twice\n");
        exit(1);
    }
    struct rdma_event_channel *channel = create_channel();
    struct rdma_cm_id *id;
    if (!channel || create(channel, &id, NULL, RDMA_PS_TCP) || destroy(id)) {
        fprintf(stderr, "no identifier\n");
        exit(1);
    }
    destroy_channel(channel);
    int number = 0;
    struct ibv_context **opened = devices(&number);
    struct ibv_pd *(*alloc)(struct ibv_context *) = find("ibv_alloc_pd", "IBVERBS_1.1");
    int (*dealloc)(struct ibv_pd *) = find("ibv_dealloc_pd", "IBVERBS_1.1");
    for (int i = 0; i < number; i++) {
        struct ibv_pd *domain = alloc(opened[i]);
        if (!domain || dealloc(domain)) {
            fprintf(stderr, "a device that rdma_get_devices opened is unknown to libibverbs\n");
            exit(1);
        }
        printf("opened by librdmacm: %s\n", opened[i]->device->name);
    }
    free_devices(opened);
}

int main(void)
{
    library = load("libibverbs.so", "libibverbs.so.1");
    struct ibv_device **(*list)(int *) = find("ibv_get_device_list", "IBVERBS_1.1");
    const char *(*name)(struct ibv_device *) = find("ibv_get_device_name", "IBVERBS_1.1");
    struct ibv_context *(*open)(struct ibv_device *) = find("ibv_open_device", "IBVERBS_1.1");
    int (*close)(struct ibv_context *) = find("ibv_close_device", "IBVERBS_1.1");
    /* Exported it fills a struct that ends before the newest fields: nothing behind them may be
     * written. */
    int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *) = find("ibv_query_port", "IBVERBS_1.1");
    find("ibv_reg_mr_iova2", "IBVERBS_1.8");
    find("ibv_query_ece", "IBVERBS_1.10");
    find("ibv_reg_dmabuf_mr", "IBVERBS_1.12");
    if (dlvsym(library, "ibv_get_device_list", "IBVERBS_9.9")) {
        fprintf(stderr, "a version that does not exist is found\n");
        return 1;
    }
    int number;
    struct ibv_device **devices = list(&number);
    for (int i = 0; devices && i < number; i++) {
        struct ibv_context *context = open(devices[i]);
        struct ibv_port_attr port = { .port_cap_flags2 = 0x5a5a };
        if (!context || query_port(context, 1, &port) || port.port_cap_flags2 != 0x5a5a) {
            fprintf(stderr, "%s: cannot be opened and asked about its port\n", name(devices[i]));
            return 1;
        }
        printf("%s: MTU %d\n", name(devices[i]), 128 << port.active_mtu);
        close(context);
    }
    connection_manager((void *)open);
    int files = 0;
    dl_iterate_phdr(count, &files);
    printf("files: %d\n", files);
    return number > 0 ? 0 : 1;
}
