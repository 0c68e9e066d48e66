/* What tests expect of calls and operations. */
#include <airdma.h>
#include <assert.h>
#include <stdio.h>
#include <string.h>

/* The call fails: who is to blame, and words of the text. */
#define BLAMED(call, whose, words)                                                                                     \
    do {                                                                                                               \
        airdma_error *error = (call);                                                                                  \
        printf("%s\n", airdma_error_text(error));                                                                      \
        assert(airdma_error_blame(error) == (whose) && strstr(airdma_error_text(error), (words)) != NULL);             \
        airdma_error_free(error);                                                                                      \
    } while (0)

#define FINE(call) assert((call) == NULL)

/* Waits for the end of an operation. */
static airdma_error *wait_for(airdma_operation *operation, airdma_result *result)
{
    airdma_error *error = airdma_wait(&operation, 20000, result);
    assert(operation == NULL);
    return error;
}
