/* Calls the verbs of future_verbs.c on a context of airdma's: each is named, and answers that it is not supported. */
#include "common.h"

void *ibv_create_future(struct ibv_context *context, int kind);
int ibv_query_future(struct ibv_context *context, int kind);
int ibv_ask_future(struct ibv_context *context, volatile int *answer);
int ibv_last_future(struct ibv_context *context, int kind);

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
    close_device();
    puts("ok");
    return 0;
}
