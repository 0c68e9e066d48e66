/* Results are defined whatever happens to the call: what was on the caller's stack is never taken
 * for a handle. */
#include <airdma.h>
#include <assert.h>
#include <stdio.h>
#include <string.h>

/* What is on a stack. */
static void *const RUBBISH = (void *)(uintptr_t)0x5a5a5a5a5a5a5a5a;

#define FAILS(call)                                                                                                    \
    do {                                                                                                               \
        airdma_error *error = (call);                                                                                  \
        assert(error != NULL);                                                                                         \
        puts(airdma_error_text(error));                                                                                \
        airdma_error_free(error);                                                                                      \
    } while (0)

#define FINE(call) assert((call) == NULL)

/* The call fails, and leaves NULL. */
#define LEAVES_NULL(type, call)                                                                                        \
    do {                                                                                                               \
        type *place = RUBBISH;                                                                                         \
        FAILS(call);                                                                                                   \
        assert(place == NULL);                                                                                         \
    } while (0)

static airdma_result rubbish(void)
{
    airdma_result result;
    memset(&result, 0x5a, sizeof result);
    return result;
}

static void assert_nothing(const airdma_result *result)
{
    assert(result->endpoint == NULL && result->region == NULL);
    assert(result->offset == 0 && result->length == 0 && result->value == 0);
    assert(result->arrival == NULL);
}

int main(void)
{
    airdma_device *device;
    airdma_listener *listener;
    airdma_region *region, *none = NULL;
    airdma_shared *shared, *unshared = NULL;
    airdma_remote remote;
    uint64_t word = 0x5a5a;

    LEAVES_NULL(airdma_device, airdma_open(NULL, &place));
    LEAVES_NULL(airdma_device, airdma_open("eth77", &place));
    LEAVES_NULL(airdma_device, airdma_towards("nonsense", &place));
    LEAVES_NULL(airdma_region, airdma_allocate(NULL, 1, &place));
    LEAVES_NULL(airdma_listener, airdma_listen(NULL, 7471, &place));
    FINE(airdma_open("127.0.0.1", &device));
    LEAVES_NULL(airdma_region, airdma_allocate(device, 0, &place));
    FINE(airdma_allocate(device, 8, &region));
    LEAVES_NULL(airdma_shared, airdma_share(&region, 64, &place));
    LEAVES_NULL(airdma_shared, airdma_share(&none, AIRDMA_READ, &place));
    LEAVES_NULL(airdma_shared, airdma_share(NULL, AIRDMA_READ, &place));
    LEAVES_NULL(airdma_region, airdma_withdraw(&unshared, &place));
    LEAVES_NULL(airdma_region, airdma_withdraw(NULL, &place));
    assert(region != NULL);
    FINE(airdma_share(&region, AIRDMA_READ, &shared));
    FAILS(airdma_word(shared, 1, &word));
    assert(word == 0);
    word = 0x5a5a;
    FAILS(airdma_word(NULL, 0, &word));
    assert(word == 0);
    memset(&remote, 0x5a, sizeof remote);
    FAILS(airdma_shared_remote(shared, NULL, &remote));
    assert(memcmp(&remote, &(airdma_remote){ { 0 } }, sizeof remote) == 0);

    memset(&remote, 0x5a, sizeof remote);
    FAILS(airdma_shared_remote_for_records(shared, NULL, &remote));
    assert(memcmp(&remote, &(airdma_remote){ { 0 } }, sizeof remote) == 0);
    airdma_address address;
    memset(&address, 0x5a, sizeof address);
    FAILS(airdma_datagrams_address(NULL, &address));
    assert(memcmp(&address, &(airdma_address){ { 0 } }, sizeof address) == 0);
    LEAVES_NULL(airdma_datagrams, airdma_datagrams_open(NULL, &place));
    airdma_arrived arrived;
    memset(&arrived, 0x5a, sizeof arrived);
    FAILS(airdma_arrival_read(NULL, &arrived));
    assert(arrived.length == 0 && arrived.source[0] == 0 && !arrived.has_immediate);

    /* No operation, one that is not done, one that failed, and one without a result. */
    airdma_result result = rubbish();
    airdma_operation *operation = NULL;
    FAILS(airdma_wait(&operation, 0, &result));
    assert_nothing(&result);
    result = rubbish();
    FAILS(airdma_wait(NULL, 0, &result));
    assert_nothing(&result);
    FINE(airdma_listen(device, 7471, &listener));
    LEAVES_NULL(airdma_listener, airdma_listen(device, 7471, &place));
    operation = airdma_accept(listener);
    result = rubbish();
    FINE(airdma_wait(&operation, 10, &result));
    assert(operation != NULL);
    assert_nothing(&result);
    airdma_give_up(operation);
    operation = airdma_connect(device, "nonsense");
    result = rubbish();
    FAILS(airdma_wait(&operation, -1, &result));
    assert(operation == NULL);
    assert_nothing(&result);

    airdma_shared_free(shared);
    airdma_listener_free(listener);
    airdma_device_free(device);
    return 0;
}
