/* Hello: a program that listens, and one that greets it.
 *
 *     hello listen 192.0.2.1            an address or the name of an interface here
 *     hello greet 192.0.2.1:7471        from anywhere
 */
#include "check.h"
#include <string.h>

static void listen_for_one(const char *address)
{
    airdma_device *device;
    airdma_listener *listener;
    airdma_region *region;

    check(airdma_open(address, &device));
    check(airdma_listen(device, 7471, &listener));
    fprintf(stderr, "listening on %s, port 7471\n", address);
    airdma_endpoint *endpoint = finish(airdma_accept(listener)).endpoint;

    check(airdma_allocate(device, 4096, &region));
    airdma_result message = finish(airdma_recv(endpoint, &region, 0, 4096)); /* region is NULL now: the device has it */
    region = message.region;
    printf("the peer says: %.*s\n", (int)message.length, (char *)airdma_region_bytes(region) + message.offset);

    memcpy(airdma_region_bytes(region), "welcome", 7);
    region = finish(airdma_send(endpoint, &region, 0, 7)).region;
    finish(airdma_close(&endpoint));

    airdma_region_free(region);
    airdma_listener_free(listener);
    airdma_device_free(device);
}

static void greet(const char *peer)
{
    airdma_device *device;
    airdma_region *region;

    check(airdma_towards(peer, &device));
    airdma_endpoint *endpoint = finish(airdma_connect(device, peer)).endpoint;

    check(airdma_allocate(device, 4096, &region));
    memcpy(airdma_region_bytes(region), "hello", 5);
    region = finish(airdma_send(endpoint, &region, 0, 5)).region;

    airdma_result message = finish(airdma_recv(endpoint, &region, 0, 4096));
    printf("the peer says: %.*s\n", (int)message.length, (char *)airdma_region_bytes(message.region) + message.offset);

    airdma_region_free(message.region);
    airdma_endpoint_free(endpoint);
    airdma_device_free(device);
}

int main(int count, char **arguments)
{
    if (count == 3 && strcmp(arguments[1], "listen") == 0) {
        listen_for_one(arguments[2]);
    } else if (count == 3 && strcmp(arguments[1], "greet") == 0) {
        greet(arguments[2]);
    } else {
        fprintf(stderr, "usage: hello listen ADDRESS | hello greet ADDRESS:7471\n");
        return 2;
    }
    return 0;
}
