/*
 * Looks for RDMA devices as programs do that are built without libibverbs: by dlopen(3), and each function by dlvsym(3) with the
 * version that it had when it was introduced. Prints the names of the devices. Exit status 1 if something is missing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

static void *library;

static void *find(const char *name, const char *version)
{
    void *symbol = dlvsym(library, name, version);
    if (!symbol) {
        fprintf(stderr, "%s@%s: %s\n", name, version, dlerror());
        exit(1);
    }
    return symbol;
}

int main(void)
{
    library = dlopen("libibverbs.so", RTLD_NOW);
    if (!library)
        library = dlopen("libibverbs.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    struct ibv_device **(*list)(int *) = find("ibv_get_device_list", "IBVERBS_1.1");
    const char *(*name)(struct ibv_device *) = find("ibv_get_device_name", "IBVERBS_1.1");
    struct ibv_context *(*open)(struct ibv_device *) = find("ibv_open_device", "IBVERBS_1.1");
    int (*close)(struct ibv_context *) = find("ibv_close_device", "IBVERBS_1.1");
    /* Exported it fills a struct that ends before the newest fields: nothing behind them may be written. */
    int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *) = find("ibv_query_port", "IBVERBS_1.1");
    find("ibv_reg_mr_iova2", "IBVERBS_1.8");
    find("ibv_query_ece", "IBVERBS_1.10");
    find("ibv_reg_dmabuf_mr", "IBVERBS_1.12");
    if (dlvsym(library, "ibv_get_device_list", "IBVERBS_9.9")) {
        fprintf(stderr, "a version that does not exist is found\n");
        return 1;
    }
    int count;
    struct ibv_device **devices = list(&count);
    for (int i = 0; devices && i < count; i++) {
        struct ibv_context *context = open(devices[i]);
        struct ibv_port_attr port = { .port_cap_flags2 = 0x5a5a };
        if (!context || query_port(context, 1, &port) || port.port_cap_flags2 != 0x5a5a) {
            fprintf(stderr, "%s: cannot be opened and asked about its port\n", name(devices[i]));
            return 1;
        }
        printf("%s: MTU %d\n", name(devices[i]), 128 << port.active_mtu);
        close(context);
    }
    return count > 0 ? 0 : 1;
}
