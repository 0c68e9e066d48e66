/*
 * A libibverbs of the future: verbs that do what rdma-core's functions do, call the provider's
 * function through the table that the private pointer of the context leads to. As in rdma-core 65,
 * some jump there and others call.
 */
#include <infiniband/verbs.h>
#include <stddef.h>

struct provider {
    unsigned long unsupported[2];
    uint32_t driver;
    uint8_t writes;
    void *(*create)(struct ibv_context *context, int kind);
    int (*query)(struct ibv_context *context, int kind);
    int (*ask)(struct ibv_context *context, int kind);
    int (*last[80])(struct ibv_context *context, int kind);
};

static struct provider *provider_of(struct ibv_context *context)
{
    struct verbs_context *extended = (void *)((char *)context - offsetof(struct verbs_context, context));
    return (void *)extended->priv;
}

void *ibv_create_future(struct ibv_context *context, int kind)
{
    return provider_of(context)->create(context, kind);
}

int ibv_query_future(struct ibv_context *context, int kind)
{
    return provider_of(context)->query(context, kind);
}

/* Calls, and does something afterwards. */
int ibv_ask_future(struct ibv_context *context, volatile int *answer)
{
    *answer = provider_of(context)->ask(context, 0);
    return *answer;
}

int ibv_last_future(struct ibv_context *context, int kind)
{
    return provider_of(context)->last[79](context, kind);
}

/* Returns a descriptor, or -1. */
int ibv_export_future_fd(struct ibv_context *context, int kind)
{
    return provider_of(context)->query(context, kind);
}

/* What programs only look up. */
int ibv_pointed_future(struct ibv_context *context, int kind)
{
    return provider_of(context)->query(context, kind);
}

int rdma_future(void *id)
{
    return id != NULL;
}
