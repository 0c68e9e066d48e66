/* A market data feed: quotes with a sequence, to a subscriber that never waits for what is lost.
 *
 *     feed subscribe 192.0.2.1                 an address or the name of an interface here
 *     feed publish 192.0.2.1:7476 1000         that many quotes, from anywhere
 *
 * A connection carries what must arrive: where the quotes go, and how many they were. The quotes
 * are datagrams, each into a slot of its own: one that is late is worthless. */
#include "check.h"
#include <inttypes.h>
#include <string.h>
#include <time.h>

enum { PORT = 7476, SLOTS = 64, PATIENCE_MS = 200 };

/* As it is on the wire, between hosts of one byte order. */
typedef struct quote {
    uint64_t number;
    char symbol[8];
    uint32_t bid;
    uint32_t ask;
} quote;

/* What a publisher needs. */
typedef struct invitation {
    airdma_address address;
    airdma_remote remote;
} invitation;

static void send_bytes(const airdma_device *device, const airdma_endpoint *endpoint, const void *bytes, size_t length)
{
    airdma_region *region;
    check(airdma_allocate(device, length, &region));
    memcpy(airdma_region_bytes(region), bytes, length);
    airdma_region_free(finish(airdma_send(endpoint, &region, 0, length)).region);
}

static void receive_bytes(const airdma_device *device, const airdma_endpoint *endpoint, void *bytes, size_t length)
{
    airdma_region *region;
    check(airdma_allocate(device, length, &region));
    region = finish(airdma_recv(endpoint, &region, 0, length)).region;
    memcpy(bytes, airdma_region_bytes(region), length);
    airdma_region_free(region);
}

/* Prints the numbers from `next` on that were lost, and returns the one after `end`. */
static uint64_t lost(uint64_t next, uint64_t end)
{
    for (; next < end; next++)
        printf("lost %" PRIu64 "\n", next);
    return next;
}

/* Prints a quote, and the numbers that are missing before it. Returns the next number. */
static uint64_t take(const airdma_arrival *arrival, uint64_t next)
{
    airdma_arrived arrived;
    quote seen;

    check(airdma_arrival_read(arrival, &arrived));
    /* A quote has one packet: it is here, or there is no record. */
    if (arrived.length != sizeof seen || arrived.valid != sizeof seen)
        return next;
    check(airdma_arrival_copy_out(arrival, 0, &seen, sizeof seen));
    if (seen.number < next)
        return next; /* told as lost: too late */
    next = lost(next, seen.number);
    printf("%" PRIu64 " %.8s %" PRIu32 " %" PRIu32 "\n", seen.number, seen.symbol, seen.bid, seen.ask);
    return next + 1;
}

static void subscribe(const char *address)
{
    airdma_device *device;
    airdma_listener *listener;
    airdma_datagrams *target;
    airdma_region *region, *end;
    airdma_shared *slots;
    invitation there;
    airdma_result result;
    uint64_t next = 0, published = UINT64_MAX;

    check(airdma_open(address, &device));
    check(airdma_datagrams_open(device, &target));
    check(airdma_allocate(device, SLOTS * sizeof(quote), &region));
    check(airdma_share(&region, AIRDMA_RECORD, &slots));
    check(airdma_listen(device, PORT, &listener));
    fprintf(stderr, "listening on %s, port %d\n", address, PORT);
    airdma_endpoint *publisher = finish(airdma_accept(listener)).endpoint;

    check(airdma_datagrams_address(target, &there.address));
    check(airdma_shared_remote_for_records(slots, NULL, &there.remote));
    send_bytes(device, publisher, &there, sizeof there);
    check(airdma_allocate(device, sizeof published, &end));
    airdma_operation *ending = airdma_recv(publisher, &end, 0, sizeof published);
    airdma_operation *reading = airdma_next_record(target);
    for (;;) {
        check(airdma_wait(&reading, PATIENCE_MS, &result));
        if (reading == NULL) {
            next = take(result.arrival, next);
            airdma_arrival_free(result.arrival);
            reading = airdma_next_record(target);
        } else if (ending == NULL) {
            break; /* the last quote was sent before, and none comes any more */
        }
        if (ending != NULL) {
            check(airdma_wait(&ending, 0, &result));
            if (ending == NULL) {
                memcpy(&published, airdma_region_bytes(result.region), sizeof published);
                airdma_region_free(result.region);
            }
        }
    }
    lost(next, published);

    airdma_give_up(reading);
    airdma_endpoint_free(publisher);
    airdma_listener_free(listener);
    airdma_datagrams_free(target);
    airdma_shared_free(slots);
    airdma_device_free(device);
}

static void publish(const char *peer, uint64_t count)
{
    static const char symbols[][8] = { "AAA", "BBB", "CCC" };
    airdma_device *device;
    airdma_datagrams *source;
    airdma_region *region;
    invitation there;

    check(airdma_towards(peer, &device));
    check(airdma_datagrams_open(device, &source));
    airdma_endpoint *subscriber = finish(airdma_connect(device, peer)).endpoint;
    receive_bytes(device, subscriber, &there, sizeof there);
    check(airdma_allocate(device, sizeof(quote), &region));
    for (uint64_t number = 0; number < count; number++) {
        quote now = { .number = number, .bid = 1000 + (uint32_t)(number % 50), .ask = 1001 + (uint32_t)(number % 50) };
        memcpy(now.symbol, symbols[number % 3], sizeof now.symbol);
        memcpy(airdma_region_bytes(region), &now, sizeof now);
        uint64_t at = number % SLOTS * sizeof now;
        region = finish(airdma_write_record(source, &region, 0, sizeof now, &there.address, &there.remote, at, NULL)).region;
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL); /* a market that trades */
    }
    send_bytes(device, subscriber, &count, sizeof count);
    printf("%" PRIu64 " quotes published\n", count);

    finish(airdma_close(&subscriber));
    airdma_region_free(region);
    airdma_datagrams_free(source);
    airdma_device_free(device);
}

int main(int count, char **arguments)
{
    if (count == 3 && strcmp(arguments[1], "subscribe") == 0) {
        subscribe(arguments[2]);
    } else if (count == 4 && strcmp(arguments[1], "publish") == 0) {
        publish(arguments[2], strtoull(arguments[3], NULL, 10));
    } else {
        fprintf(stderr, "usage: feed subscribe ADDRESS | feed publish ADDRESS:7476 COUNT\n");
        return 2;
    }
    return 0;
}
