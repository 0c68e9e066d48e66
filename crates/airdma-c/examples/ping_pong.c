/* Ping-pong: half the time until the answer to a message is here.
 *
 *     ping_pong listen 192.0.2.1
 *     ping_pong measure 192.0.2.1:7472 64 1000        bytes, and how often
 */
#include "check.h"
#include <string.h>
#include <time.h>

enum { BYTES_MAX = 1 << 20, WARM_UP = 100 };

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int by_time(const void *left, const void *right)
{
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static void answer(const char *address)
{
    airdma_device *device;
    airdma_listener *listener;
    airdma_region *region, *pong;
    airdma_result message;

    check(airdma_open(address, &device));
    check(airdma_listen(device, 7472, &listener));
    fprintf(stderr, "listening on %s, port 7472\n", address);
    airdma_endpoint *endpoint = finish(airdma_accept(listener)).endpoint;
    check(airdma_allocate(device, BYTES_MAX, &region));
    check(airdma_allocate(device, BYTES_MAX, &pong));
    /* The next receive is given before the answer is sent: no message finds us without one. */
    airdma_operation *ping = airdma_recv(endpoint, &region, 0, BYTES_MAX);
    for (;;) {
        airdma_error *error = airdma_wait(&ping, -1, &message);
        if (airdma_error_is_closed(error)) {
            airdma_error_free(error);
            break; /* they have seen enough */
        }
        check(error);
        ping = airdma_recv(endpoint, &message.region, 0, BYTES_MAX);
        pong = finish(airdma_send(endpoint, &pong, 0, message.length)).region;
    }
    airdma_region_free(message.region);
    airdma_region_free(pong);
    airdma_endpoint_free(endpoint);
    airdma_listener_free(listener);
    airdma_device_free(device);
}

static void measure(const char *peer, size_t bytes, int count)
{
    airdma_device *device;
    airdma_region *ping, *pong;
    double *times = calloc(count, sizeof *times);

    check(airdma_towards(peer, &device));
    airdma_endpoint *endpoint = finish(airdma_connect(device, peer)).endpoint;
    check(airdma_allocate(device, BYTES_MAX, &ping));
    check(airdma_allocate(device, BYTES_MAX, &pong));
    for (int round = -WARM_UP; round < count; round++) {
        double start = now_us();
        airdma_operation *receiving = airdma_recv(endpoint, &pong, 0, BYTES_MAX);
        airdma_operation *sending = airdma_send(endpoint, &ping, 0, bytes);
        pong = finish(receiving).region;
        ping = finish(sending).region;
        if (round >= 0)
            times[round] = (now_us() - start) / 2;
    }
    qsort(times, count, sizeof *times, by_time);
    printf("bytes count min_us median_us max_us\n");
    printf("%zu %d %.2f %.2f %.2f\n", bytes, count, times[0], times[count / 2], times[count - 1]);

    finish(airdma_close(&endpoint));
    free(times);
    airdma_region_free(ping);
    airdma_region_free(pong);
    airdma_device_free(device);
}

int main(int count, char **arguments)
{
    long bytes = count == 5 ? atol(arguments[3]) : -1;
    int times = count == 5 ? atoi(arguments[4]) : 0;
    if (count == 3 && strcmp(arguments[1], "listen") == 0) {
        answer(arguments[2]);
    } else if (count == 5 && strcmp(arguments[1], "measure") == 0 && bytes >= 0 && bytes <= BYTES_MAX && times > 0) {
        measure(arguments[2], bytes, times);
    } else {
        fprintf(stderr, "usage: ping_pong listen ADDRESS | ping_pong measure ADDRESS:7472 BYTES COUNT\n");
        return 2;
    }
    return 0;
}
