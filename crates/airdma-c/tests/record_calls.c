/* Reads by datagrams, groups, and records that still arrive. */
#include "expect.h"

enum { LENGTH = 20000 };

static airdma_shared *shared_bytes(airdma_device *device, int byte, unsigned rights)
{
    airdma_region *region;
    airdma_shared *shared;
    FINE(airdma_allocate(device, LENGTH, &region));
    memset(airdma_region_bytes(region), byte, LENGTH);
    FINE(airdma_share(&region, rights, &shared));
    return shared;
}

static void reads(airdma_device *device, airdma_datagrams *owner, airdma_datagrams *reader)
{
    airdma_shared *shared = shared_bytes(device, 9, AIRDMA_RECORD_READ);
    airdma_region *region;
    airdma_remote remote;
    airdma_address from;
    airdma_result result;
    airdma_arrived arrived;
    char byte;

    FINE(airdma_datagrams_address(owner, &from));
    FINE(airdma_shared_remote_for_reads(shared, NULL, &remote));
    FINE(airdma_allocate(device, LENGTH, &region));
    FINE(wait_for(airdma_read_record(reader, &region, 100, LENGTH - 100, &from, &remote, 50, 5000), &result));
    assert(result.offset == 100 && result.length == LENGTH - 100);
    FINE(airdma_arrival_read(result.arrival, &arrived));
    assert(arrived.ended == AIRDMA_WHOLE && arrived.valid == LENGTH - 100 && arrived.offset == 100);
    assert(airdma_arrival_has(result.arrival, 0, LENGTH - 100));
    const char *bytes = airdma_region_bytes(result.region);
    assert(bytes[99] == 0 && bytes[100] == 9 && bytes[LENGTH - 1] == 9);
    BLAMED(airdma_arrival_copy_out(result.arrival, 0, &byte, 1), AIRDMA_YOU, "in its region");
    airdma_arrival_free(result.arrival);

    BLAMED(airdma_shared_remote_for_records(shared, NULL, &remote), AIRDMA_YOU, "not shared for records");
    FINE(airdma_shared_remote_for_reads(shared, "127.0.0.9", &remote));
    region = result.region;
    BLAMED(wait_for(airdma_read_record(reader, &region, 0, 1, &from, &remote, 0, 5000), &result), AIRDMA_PEER, "refused");
    assert(result.arrival == NULL);
    airdma_region_free(result.region);
    airdma_shared_free(shared);
}

static void groups(airdma_device *device, airdma_datagrams *source)
{
    airdma_shared *shared = shared_bytes(device, 0, AIRDMA_RECORD);
    airdma_datagrams *member;
    airdma_address group;
    airdma_remote remote, other;
    airdma_region *region;
    airdma_result result;
    airdma_arrived arrived;

    BLAMED(airdma_group_address("10.0.0.1", &group), AIRDMA_YOU, "no multicast group");
    FINE(airdma_group_address("239.1.2.3", &group));
    FINE(airdma_group_open(device, &group, &member));
    FINE(airdma_shared_remote_for_group(shared, &group, NULL, NULL, &remote));
    other = remote;
    FINE(airdma_shared_remote_for_group(shared, &group, &other, NULL, &other));
    assert(memcmp(&other, &remote, sizeof(remote)) == 0);
    FINE(airdma_allocate(device, 5000, &region));
    memset(airdma_region_bytes(region), 3, 5000);
    FINE(wait_for(airdma_write_record(source, &region, 0, 5000, &group, &remote, 1000, NULL), &result));
    airdma_region_free(result.region);
    FINE(wait_for(airdma_next_record(member), &result));
    FINE(airdma_arrival_read(result.arrival, &arrived));
    assert(arrived.ended == AIRDMA_WHOLE && arrived.offset == 1000 && strcmp(arrived.group, "239.1.2.3") == 0);
    airdma_arrival_free(result.arrival);
    airdma_datagrams_free(member);
    airdma_shared_free(shared);
}

/* Packets are lost (AIRDMA_IMPAIR), so no message is whole. It stays open for 20 ms after its last
 * packet. */
static void arrivals(airdma_device *device, airdma_datagrams *target, airdma_datagrams *source)
{
    enum { LONG = 512 << 10 };
    airdma_shared *shared;
    airdma_region *region;
    airdma_remote remote;
    airdma_address to;
    airdma_result result;
    airdma_arrived arrived = { 0 };
    airdma_arrival *arrival = NULL;
    bool closed = true;

    FINE(airdma_allocate(device, LONG, &region));
    FINE(airdma_share(&region, AIRDMA_RECORD, &shared));
    FINE(airdma_shared_remote_for_records(shared, NULL, &remote));
    FINE(airdma_datagrams_address(target, &to));
    FINE(airdma_peek_record(target, shared, 0, &arrival));
    FINE(airdma_close_record(target, shared, 0, &closed));
    assert(arrival == NULL && !closed);
    FINE(airdma_allocate(device, LONG, &region));
    airdma_operation *writing = NULL, *next = NULL;
    while (arrival == NULL) {
        if (next == NULL) {
            /* The first message, or the one before ended unseen: this process was preempted. */
            writing = airdma_write_record(source, &region, 0, LONG, &to, &remote, 0, NULL);
            next = airdma_next_record(target);
        }
        FINE(airdma_wait(&next, 0, &result));
        FINE(airdma_peek_record(target, shared, 100, &arrival));
        if (arrival == NULL && next == NULL) {
            airdma_arrival_free(result.arrival);
            FINE(wait_for(writing, &result));
            region = result.region;
        }
    }
    FINE(airdma_arrival_read(arrival, &arrived));
    assert(arrived.ended == AIRDMA_OPEN && arrived.length == LONG && arrived.valid < LONG);
    airdma_arrival_free(arrival);
    FINE(airdma_close_record(target, shared, 100, &closed));
    assert(closed);
    FINE(wait_for(next, &result));
    FINE(airdma_arrival_read(result.arrival, &arrived));
    assert(arrived.ended == AIRDMA_ASKED);
    airdma_arrival_free(result.arrival);
    FINE(wait_for(writing, &result));
    airdma_region_free(result.region);
    airdma_shared_free(shared);
}

/* With an argument, packets are lost. */
int main(int argc, char **argv)
{
    (void)argv;
    airdma_device *device;
    airdma_datagrams *one, *two;
    FINE(airdma_open("127.0.0.1", &device));
    FINE(airdma_datagrams_open(device, &one));
    FINE(airdma_datagrams_open(device, &two));
    if (argc > 1) {
        arrivals(device, one, two);
    } else {
        reads(device, one, two);
        groups(device, two);
    }
    airdma_datagrams_free(one);
    airdma_datagrams_free(two);
    airdma_device_free(device);
    return 0;
}
