/* In air mode a full buffer stops the peer that fills it, until there is room. Both ends of a
 * connection in one program. */
#include "../examples/check.h"
#include <assert.h>

enum { PIECE = 1 << 20, FEW = PIECE / 16, BUFFER = 8 * PIECE, PIECES_MAX = 100, PATIENCE_MS = 20000, STOPPED_MS = 500 };

int main(void)
{
    airdma_device *device;
    airdma_listener *listener;
    airdma_region *region;
    airdma_shared *shared;
    airdma_remote remote;
    airdma_result result;

    check(airdma_open("127.0.0.1", &device));
    check(airdma_listen(device, 7471, &listener));
    airdma_operation *connecting = airdma_connect(device, "127.0.0.1:7471");
    airdma_endpoint *right = finish(airdma_accept(listener)).endpoint;
    airdma_endpoint *left = finish(connecting).endpoint;
    check(airdma_allocate(device, PIECE, &region));
    check(airdma_share(&region, AIRDMA_WRITE, &shared));
    check(airdma_shared_remote(shared, right, &remote));
    check(airdma_allocate(device, PIECE, &region));

    check(airdma_tell_buffer(right, FEW, BUFFER));
    region = finish(airdma_write(left, &region, 0, PIECE, &remote, 0)).region;

    check(airdma_tell_buffer(right, BUFFER, BUFFER));
    airdma_operation *writing = NULL;
    for (int piece = 0; piece < PIECES_MAX && writing == NULL; piece++) {
        writing = airdma_write(left, &region, 0, PIECE, &remote, 0);
        check(airdma_wait(&writing, STOPPED_MS, &result));
        region = result.region;
    }
    assert(writing != NULL);

    check(airdma_tell_buffer(right, FEW, BUFFER));
    check(airdma_wait(&writing, PATIENCE_MS, &result));
    assert(writing == NULL);

    airdma_region_free(result.region);
    airdma_endpoint_free(left);
    airdma_endpoint_free(right);
    airdma_shared_free(shared);
    airdma_listener_free(listener);
    airdma_device_free(device);
    return 0;
}
