/* Messages by datagrams from C: what arrived is told, and misuse is an error. */
#include "expect.h"

enum { LENGTH = 20000 };

int main(void)
{
    airdma_device *device;
    airdma_datagrams *target, *source;
    airdma_region *region;
    airdma_shared *shared, *other;
    airdma_remote remote, rubbish = { { 0 } };
    airdma_address to, nowhere = { { 0 } };
    airdma_result result;
    airdma_arrived arrived;
    airdma_range ranges[2] = { { 7, 7 }, { 7, 7 } };
    uint32_t immediate = 0x01020304;
    char bytes[16];

    FINE(airdma_open("127.0.0.1", &device));
    FINE(airdma_datagrams_open(device, &target));
    FINE(airdma_datagrams_open(device, &source));
    FINE(airdma_datagrams_address(target, &to));
    FINE(airdma_allocate(device, LENGTH + 100, &region));
    FINE(airdma_share(&region, AIRDMA_RECORD, &shared));
    FINE(airdma_shared_remote_for_records(shared, NULL, &remote));

    FINE(airdma_allocate(device, LENGTH, &region));
    memset(airdma_region_bytes(region), 7, LENGTH);
    FINE(wait_for(airdma_write_record(source, &region, 0, LENGTH, &to, &remote, 100, &immediate), &result));
    region = result.region;
    FINE(wait_for(airdma_next_record(target), &result));
    FINE(airdma_arrival_read(result.arrival, &arrived));
    assert(arrived.offset == 100 && arrived.length == LENGTH && arrived.valid == LENGTH && arrived.ranges == 1);
    assert(strcmp(arrived.source, "127.0.0.1") == 0 && arrived.number == 0 && arrived.unit > 0);
    assert(arrived.has_immediate && arrived.immediate == immediate && arrived.ended == AIRDMA_WHOLE);
    FINE(airdma_arrival_ranges(result.arrival, ranges, 2));
    assert(ranges[0].start == 0 && ranges[0].end == LENGTH && ranges[1].start == 7);
    FINE(airdma_arrival_ranges(result.arrival, NULL, 0));
    assert(airdma_arrival_has(result.arrival, 0, LENGTH) && !airdma_arrival_has(result.arrival, 1, LENGTH));
    FINE(airdma_arrival_copy_out(result.arrival, LENGTH - 16, bytes, 16));
    assert(memchr(bytes, 0, 16) == NULL);

    /* A wait that ends without a record goes on. */
    airdma_operation *waiting = airdma_next_record(target);
    airdma_result none;
    FINE(airdma_wait(&waiting, 10, &none));
    assert(waiting != NULL && none.arrival == NULL);

    BLAMED(airdma_arrival_copy_out(result.arrival, LENGTH - 15, bytes, 16), AIRDMA_YOU, "stay within it");
    BLAMED(airdma_arrival_copy_out(result.arrival, 1, bytes, (size_t)-1), AIRDMA_YOU, "stay within it");
    BLAMED(airdma_arrival_ranges(result.arrival, NULL, 1), AIRDMA_YOU, "place for the ranges");
    BLAMED(airdma_arrival_read(result.arrival, NULL), AIRDMA_YOU, "place for the result");
    airdma_arrival_free(result.arrival);
    BLAMED(airdma_datagrams_address(target, NULL), AIRDMA_YOU, "place for the result");
    BLAMED(airdma_shared_remote_for_records(shared, "nonsense", &remote), AIRDMA_YOU, "no address");
    FINE(airdma_shared_remote_for_records(shared, NULL, &remote));
    BLAMED(wait_for(airdma_next_record(NULL), NULL), AIRDMA_YOU, "no endpoint");
    BLAMED(wait_for(airdma_write_record(source, &region, 0, 8, &nowhere, &remote, 0, NULL), NULL), AIRDMA_YOU,
           "not a `DatagramAddress`");
    BLAMED(wait_for(airdma_write_record(source, &region, 0, 8, &to, &rubbish, 0, NULL), NULL), AIRDMA_YOU,
           "not a `Remote`");
    BLAMED(wait_for(airdma_write_record(source, &region, 0, 8, &to, NULL, 0, NULL), NULL), AIRDMA_YOU, "NULL");
    assert(region != NULL);
    BLAMED(wait_for(airdma_write_record(source, &region, 0, 0, &to, &remote, 0, NULL), &result), AIRDMA_YOU, "0 bytes");
    region = result.region;

    FINE(airdma_share(&region, AIRDMA_READ, &other));
    BLAMED(airdma_shared_remote_for_records(other, NULL, &remote), AIRDMA_YOU, "not shared for records");
    airdma_shared_free(other);

    /* The record that is still held reads a region that is withdrawn no more. */
    FINE(airdma_shared_remote_for_records(shared, NULL, &remote));
    FINE(airdma_allocate(device, 1, &region));
    FINE(wait_for(airdma_write_record(source, &region, 0, 1, &to, &remote, 0, NULL), &result));
    airdma_region_free(result.region);
    FINE(wait_for(waiting, &result));
    FINE(airdma_withdraw(&shared, &region));
    BLAMED(airdma_arrival_copy_out(result.arrival, 0, bytes, 1), AIRDMA_YOU, "withdrawn");

    waiting = airdma_next_record(target);
    airdma_datagrams_free(target);
    airdma_error *ended = wait_for(waiting, NULL);
    assert(airdma_error_is_closed(ended));
    airdma_error_free(ended);
    airdma_arrival_free(result.arrival);
    airdma_arrival_free(NULL);
    airdma_datagrams_free(source);
    airdma_region_free(region);
    airdma_device_free(device);
    return 0;
}
