/* What the examples do about errors: say them, and end. */
#ifndef CHECK_H
#define CHECK_H

#include <airdma.h>
#include <stdio.h>
#include <stdlib.h>

static inline void check(airdma_error *error)
{
    if (error == NULL)
        return;
    fprintf(stderr, "%s\n", airdma_error_text(error));
    airdma_error_free(error);
    exit(1);
}

/* Waits for as long as it takes. */
static inline airdma_result finish(airdma_operation *operation)
{
    airdma_result result;
    check(airdma_wait(&operation, -1, &result));
    return result;
}

#endif
