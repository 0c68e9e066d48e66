/* Misuse: each is an error, and none ends the program. Both ends of a connection in one program. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "expect.h"

/* How many are open. */
static int descriptors(void)
{
    int count = 0;
    for (int number = 0; number < 4096; number++)
        count += fcntl(number, F_GETFD) >= 0;
    return count;
}

int main(void)
{
    airdma_device *device = NULL;
    airdma_listener *listener;
    airdma_region *region, *other;
    airdma_shared *shared = NULL;
    airdma_remote remote, rubbish = { { 0 } };
    airdma_result result;
    uint64_t word;
    char bytes[16] = { 0 };
    int ends[2];
    struct pollfd rings = { .fd = eventfd(0, EFD_CLOEXEC), .events = POLLIN };

    BLAMED(airdma_open(NULL, &device), AIRDMA_YOU, "pointer is NULL");
    BLAMED(airdma_open("eth77", &device), AIRDMA_YOU, "no device \"eth77\"");
    BLAMED(airdma_open("\xff", &device), AIRDMA_YOU, "UTF-8");
    BLAMED(airdma_allocate(NULL, 1, &region), AIRDMA_YOU, "no device");
    FINE(airdma_open("127.0.0.1", &device));
    /* An open device has one configuration, which a changed variable cannot change. */
    airdma_device *second = NULL;
    setenv("AIRDMA_MTU", "512", 1);
    BLAMED(airdma_open("127.0.0.1", &second), AIRDMA_YOU, "another configuration (AIRDMA_MTU)");
    unsetenv("AIRDMA_MTU");
    FINE(airdma_open("127.0.0.1", &second));
    airdma_device_free(second);
    BLAMED(airdma_allocate(device, 0, &region), AIRDMA_YOU, "0 bytes");
    BLAMED(airdma_allocate(device, (size_t)-1, &region), AIRDMA_SYSTEM, "bytes of memory");
    BLAMED(airdma_listen(device, 7471, NULL), AIRDMA_YOU, "place for the result");
    BLAMED(wait_for(airdma_connect(device, "127.0.0.1:9"), NULL), AIRDMA_PEER, "no program listens");
    BLAMED(wait_for(airdma_connect(device, "nonsense"), NULL), AIRDMA_YOU, "HOST:PORT");
    BLAMED(wait_for(NULL, NULL), AIRDMA_YOU, "no operation");
    BLAMED(airdma_notify(NULL, 0), AIRDMA_YOU, "no operation");
    BLAMED(airdma_tell_buffer(NULL, 0, 0), AIRDMA_YOU, "no endpoint");

    FINE(airdma_listen(device, 7471, &listener));
    airdma_operation *connecting = airdma_connect(device, "127.0.0.1:7471");
    FINE(wait_for(airdma_accept(listener), &result));
    airdma_endpoint *right = result.endpoint;
    FINE(wait_for(connecting, &result));
    airdma_endpoint *left = result.endpoint;
    assert(right != NULL && left != NULL);

    /* A region that was given away is not there a second time. */
    FINE(airdma_allocate(device, 8, &region));
    airdma_operation *receiving = airdma_recv(left, &region, 0, 8);
    assert(region == NULL && airdma_region_bytes(region) == NULL && airdma_region_length(region) == 0);
    BLAMED(wait_for(airdma_send(left, &region, 0, 8), NULL), AIRDMA_YOU, "no region");
    FINE(airdma_wait(&receiving, 20, &result));
    assert(receiving != NULL);
    FINE(airdma_notify(receiving, rings.fd));
    /* As often as one likes, with one descriptor for all. */
    airdma_operation *accepting = airdma_accept(listener);
    for (int round = 0; round < 2000; round++)
        FINE(airdma_notify(accepting, rings.fd));
    assert(descriptors() < 50);
    airdma_give_up(accepting);
    assert(pipe(ends) == 0);
    BLAMED(airdma_notify(receiving, ends[1]), AIRDMA_YOU, "cannot be rung");
    close(ends[0]);
    close(ends[1]);
    BLAMED(airdma_notify(receiving, 999), AIRDMA_YOU, "descriptor 999 cannot be rung");
    BLAMED(airdma_notify(receiving, -1), AIRDMA_YOU, "descriptor -1 cannot be rung");

    /* It comes back with the error. */
    FINE(airdma_allocate(device, 8, &region));
    BLAMED(wait_for(airdma_send(right, &region, 4, 5), &result), AIRDMA_YOU, "bytes 4..9 of a region of 8 bytes");
    region = result.region;
    BLAMED(wait_for(airdma_write(right, &region, 0, 8, &rubbish, 0), &result), AIRDMA_YOU, "not a `Remote`");
    assert(region != NULL);
    BLAMED(airdma_share(&region, 64, &shared), AIRDMA_YOU, "rights that do not exist");
    assert(region != NULL && shared == NULL);

    FINE(airdma_share(&region, AIRDMA_READ | AIRDMA_WRITE, &shared));
    assert(region == NULL);
    BLAMED(airdma_shared_remote(shared, NULL, &remote), AIRDMA_YOU, "no endpoint");
    FINE(airdma_shared_remote(shared, right, &remote));
    BLAMED(airdma_copy_out(shared, 1, bytes, 8), AIRDMA_YOU, "stay within it");
    BLAMED(airdma_copy_in(shared, (size_t)-1, bytes, 8), AIRDMA_YOU, "stay within it");
    BLAMED(airdma_word(shared, 1, &word), AIRDMA_YOU, "stay within it");
    FINE(airdma_allocate(device, 8, &other));
    memcpy(airdma_region_bytes(other), "one side", 8);
    FINE(wait_for(airdma_write(left, &other, 0, 8, &remote, 0), &result));
    other = result.region;
    FINE(airdma_copy_out(shared, 0, bytes, 8));
    assert(memcmp(bytes, "one side", 8) == 0);
    FINE(airdma_withdraw(&shared, &region));
    assert(shared == NULL && memcmp(airdma_region_bytes(region), "one side", 8) == 0);

    /* The peer's fault, and what follows from it. */
    BLAMED(wait_for(airdma_write(left, &other, 0, 8, &remote, 0), &result), AIRDMA_PEER, "does not allow");
    assert(result.region != NULL);
    airdma_region_free(result.region);
    poll(&rings, 1, 20000);
    assert(rings.revents == POLLIN);
    BLAMED(airdma_wait(&receiving, 0, &result), AIRDMA_PEER, "does not allow");
    close(rings.fd);
    airdma_region_free(result.region);

    airdma_region_free(region);
    airdma_endpoint_free(left);
    /* Whether that is an error to the other end depends on what it has heard already. */
    airdma_error_free(wait_for(airdma_close(&right), NULL));
    assert(right == NULL);
    airdma_listener_free(listener);
    airdma_device_free(device);
    airdma_device_free(NULL);
    return 0;
}
