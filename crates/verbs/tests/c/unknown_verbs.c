/* Calls the verbs of future_verbs.c on a context of airdma's: each is named, and answers that it
 * is not supported. */
#include "common.h"
#include <dlfcn.h>

void *ibv_create_future(struct ibv_context *context, int kind);
int ibv_query_future(struct ibv_context *context, int kind);
int ibv_ask_future(struct ibv_context *context, volatile int *answer);
int ibv_last_future(struct ibv_context *context, int kind);

int ibv_export_future_fd(struct ibv_context *context, int kind);

typedef int verb(struct ibv_context *, int);

/* Through a register, behind bytes that look like another call, whose target is nowhere. */
static int called_oddly(verb *called)
{
    int answer = EOPNOTSUPP;
#ifdef __x86_64__
    register verb *target __asm__("rbx") = called;
    struct ibv_context *first = context;
    __asm__ volatile("sub $128, %%rsp\n movl $0xe800, %%eax\n call *%%rbx\n add $128, %%rsp"
                     : "=a"(answer), "+D"(first)
                     : "r"(target), "S"(1)
                     : "rdx", "rcx", "r8", "r9", "r10", "r11", "memory", "cc");
#else
    answer = called(context, 1);
#endif
    return answer;
}

int main(void)
{
    volatile int answer = 0;
    open_device();

    errno = 0;
    CHECK(ibv_create_future(context, 1) == NULL);
    CHECK(errno == EOPNOTSUPP);
    CHECK(ibv_query_future(context, 1) == EOPNOTSUPP);
    CHECK(ibv_query_future(context, 2) == EOPNOTSUPP);
    CHECK(ibv_ask_future(context, &answer) == EOPNOTSUPP);
    CHECK(ibv_last_future(context, 1) == EOPNOTSUPP);
    CHECK(ibv_export_future_fd(context, 1) == -1);
    CHECK(called_oddly(ibv_query_future) == EOPNOTSUPP);

    verb *volatile pointed = (verb *)dlsym(RTLD_DEFAULT, "ibv_pointed_future");
    CHECK(pointed && pointed(context, 1) == EOPNOTSUPP);
    CHECK(dlsym(RTLD_DEFAULT, "rdma_future"));
    close_device();
    puts("ok");
    return 0;
}
