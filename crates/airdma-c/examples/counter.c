/* A counter that others add to while its owner does nothing for it.
 *
 *     counter own 192.0.2.1 3               waits for three programs, and prints the sum
 *     counter add 192.0.2.1:7473 1000       adds 1, a thousand times
 */
#include "check.h"
#include <inttypes.h>
#include <string.h>

enum { PROGRAMS_MAX = 64, UNDER_WAY = 16 };

static void own(const char *address, int programs)
{
    airdma_device *device;
    airdma_listener *listener;
    airdma_region *region;
    airdma_shared *counter;
    airdma_endpoint *endpoints[PROGRAMS_MAX];
    airdma_remote remote;
    uint64_t sum;

    check(airdma_open(address, &device));
    check(airdma_allocate(device, 8, &region));
    check(airdma_share(&region, AIRDMA_ATOMIC, &counter));
    check(airdma_listen(device, 7473, &listener));
    fprintf(stderr, "listening on %s, port 7473\n", address);

    check(airdma_allocate(device, sizeof remote, &region));
    for (int index = 0; index < programs; index++) {
        endpoints[index] = finish(airdma_accept(listener)).endpoint;
        check(airdma_shared_remote(counter, endpoints[index], &remote));
        memcpy(airdma_region_bytes(region), &remote, sizeof remote);
        region = finish(airdma_send(endpoints[index], &region, 0, sizeof remote)).region;
    }
    for (int index = 0; index < programs; index++) {
        /* No message arrives: this ends when the peer is done. */
        airdma_operation *end = airdma_recv(endpoints[index], &region, 0, sizeof remote);
        airdma_result result;
        airdma_error *error = airdma_wait(&end, -1, &result);
        if (!airdma_error_is_closed(error))
            check(error);
        airdma_error_free(error);
        region = result.region;
        airdma_endpoint_free(endpoints[index]);
    }
    check(airdma_word(counter, 0, &sum));
    printf("%" PRIu64 "\n", sum);

    airdma_region_free(region);
    airdma_shared_free(counter);
    airdma_listener_free(listener);
    airdma_device_free(device);
}

static void add(const char *peer, int times)
{
    airdma_device *device;
    airdma_region *region;
    airdma_remote counter;
    airdma_operation *additions[UNDER_WAY] = { NULL };

    check(airdma_towards(peer, &device));
    airdma_endpoint *endpoint = finish(airdma_connect(device, peer)).endpoint;
    check(airdma_allocate(device, sizeof counter, &region));
    airdma_result message = finish(airdma_recv(endpoint, &region, 0, sizeof counter));
    if (message.length != sizeof counter) {
        fprintf(stderr, "the peer sent %zu bytes, and no counter\n", message.length);
        exit(1);
    }
    memcpy(&counter, (char *)airdma_region_bytes(message.region) + message.offset, sizeof counter);
    airdma_region_free(message.region);

    for (int index = 0; index < times; index++) {
        airdma_operation **place = &additions[index % UNDER_WAY];
        if (*place != NULL)
            finish(*place);
        *place = airdma_fetch_add(endpoint, &counter, 0, 1);
    }
    for (int index = 0; index < UNDER_WAY; index++)
        if (additions[index] != NULL)
            finish(additions[index]);
    finish(airdma_close(&endpoint));
    airdma_device_free(device);
}

int main(int count, char **arguments)
{
    int number = count == 4 ? atoi(arguments[3]) : 0;
    if (count == 4 && strcmp(arguments[1], "own") == 0 && number > 0 && number <= PROGRAMS_MAX) {
        own(arguments[2], number);
    } else if (count == 4 && strcmp(arguments[1], "add") == 0 && number > 0) {
        add(arguments[2], number);
    } else {
        fprintf(stderr, "usage: counter own ADDRESS PROGRAMS | counter add ADDRESS:7473 TIMES\n");
        return 2;
    }
    return 0;
}
