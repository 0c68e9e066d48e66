/* RDMA for applications: connections, messages, and memory that peers read and write.
 *
 *   airdma_device     a network interface
 *   airdma_listener   a port that peers connect to
 *   airdma_endpoint   one end of a connection: messages both ways, each whole and in order
 *   airdma_region     memory that the device sends from and receives into
 *   airdma_shared     a region of yours that peers reach by themselves
 *   airdma_remote     a region of the peer's: bytes that the peer sends you
 *   airdma_operation  something under way
 *
 * Who owns what: a call that takes a region takes `airdma_region **`, and sets your pointer to NULL: while the device has the memory,
 * you do not. airdma_wait gives it back, after errors too. The memory of an operation that you give up is kept until
 * the device is done with it. Free each handle once; freeing NULL does nothing.
 *
 * Errors: a call that can fail returns NULL, or an error that you free. Its text says what happened and what to do, its blame
 * whose fault it is. What a call fills in is NULL or 0 after an error; only the bytes of airdma_copy_out are as they were. No call ends
 * the program, and none hangs for ever but a receive from a peer that lives and says nothing.
 *
 * Any thread may use devices, listeners and endpoints. A region, a shared region and an operation belong to one thread at a time. After
 * fork(2) the handles are the parent's.
 *
 * Link with what `pkg-config --cflags --libs airdma` says. */
#ifndef AIRDMA_H
#define AIRDMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct airdma_error airdma_error;
typedef struct airdma_device airdma_device;
typedef struct airdma_listener airdma_listener;
typedef struct airdma_endpoint airdma_endpoint;
typedef struct airdma_region airdma_region;
typedef struct airdma_shared airdma_shared;
typedef struct airdma_operation airdma_operation;

/* Where a peer's region is, how long it is, and its key: send it as it is, byte order and all. */
typedef struct airdma_remote {
    uint8_t bytes[24];
} airdma_remote;

/* ---- Errors ---- */

enum airdma_blame {
    AIRDMA_YOU = 1,     /* an argument that the call does not take */
    AIRDMA_PEER = 2,    /* it refused, closed, or died */
    AIRDMA_NETWORK = 3, /* nobody answers */
    AIRDMA_SYSTEM = 4,  /* no memory, no descriptors, a port that is taken */
};

/* What happened, and what to do. The text lives as long as the error. */
const char *airdma_error_text(const airdma_error *error);
enum airdma_blame airdma_error_blame(const airdma_error *error);
/* Nothing is wrong but that the connection was closed: to a receiver what the end of a file is to a reader. */
bool airdma_error_is_closed(const airdma_error *error);
void airdma_error_free(airdma_error *error);

/* ---- Devices and memory ---- */

/* Opens the device on an interface: by its name ("eth0") or one of its addresses ("192.0.2.1", "127.0.0.1"). */
airdma_error *airdma_open(const char *name, airdma_device **device);
/* Opens the device that leads to a peer: "192.0.2.2:7471". */
airdma_error *airdma_towards(const char *peer, airdma_device **device);
/* What was made with it stays. */
void airdma_device_free(airdma_device *device);

/* Zeroed memory that the device can send from and receive into. */
airdma_error *airdma_allocate(const airdma_device *device, size_t length, airdma_region **region);
/* Its bytes, yours to read and write until an operation takes the region. */
void *airdma_region_bytes(airdma_region *region);
size_t airdma_region_length(const airdma_region *region);
void airdma_region_free(airdma_region *region);

/* ---- Regions that peers reach ---- */

enum airdma_rights {
    AIRDMA_READ = 1,
    AIRDMA_WRITE = 2,
    AIRDMA_ATOMIC = 4,
};

/* Lets peers reach a region, each by a key of its own (airdma_shared_remote). It has no pointer to its bytes, since they may change at any time: they are copied out and in. Takes the
 * region, but for errors. */
airdma_error *airdma_share(airdma_region **region, unsigned rights, airdma_shared **shared);
/* Closes it again, and gives the region back: no peer touches it any more. */
airdma_error *airdma_withdraw(airdma_shared **shared, airdma_region **region);
void airdma_shared_free(airdma_shared *shared);
/* What the peer of an endpoint must know of it. It opens the region to that peer on that connection: to others, that hear of it somehow,
 * it opens nothing. It is the same each time. */
airdma_error *airdma_shared_remote(const airdma_shared *shared, const airdma_endpoint *to, airdma_remote *remote);
airdma_error *airdma_copy_out(const airdma_shared *shared, size_t offset, void *bytes, size_t length);
airdma_error *airdma_copy_in(const airdma_shared *shared, size_t offset, const void *bytes, size_t length);
/* The word at a multiple of 8, all of it at once: what peers add to. */
airdma_error *airdma_word(const airdma_shared *shared, size_t offset, uint64_t *word);

/* ---- Connections ---- */

airdma_error *airdma_listen(const airdma_device *device, uint16_t port, airdma_listener **listener);
void airdma_listener_free(airdma_listener *listener);
/* Gives an endpoint. */
airdma_operation *airdma_accept(const airdma_listener *listener);
/* To "HOST:PORT". Gives an endpoint. */
airdma_operation *airdma_connect(const airdma_device *device, const char *peer);
/* Ends the connection once what was asked for is done. Takes the endpoint. */
airdma_operation *airdma_close(airdma_endpoint **endpoint);
/* Ends the connection at once. */
void airdma_endpoint_free(airdma_endpoint *endpoint);

/* ---- What an endpoint does: all begin at once, and airdma_wait tells how they ended ---- */

/* One message of `length` bytes at `offset` of the region. Done when the peer has received it. Gives the region back. */
airdma_operation *airdma_send(const airdma_endpoint *endpoint, airdma_region **region, size_t offset, size_t length);
/* One message, into at most `length` bytes at `offset`. Gives a region back, and where in it the message lies. */
airdma_operation *airdma_recv(const airdma_endpoint *endpoint, airdma_region **region, size_t offset, size_t length);
/* Writes into the peer's region at `at`, and reads from it. They give the region back. */
airdma_operation *airdma_write(const airdma_endpoint *endpoint, airdma_region **region, size_t offset, size_t length,
                               const airdma_remote *to, uint64_t at);
airdma_operation *airdma_read(const airdma_endpoint *endpoint, airdma_region **region, size_t offset, size_t length,
                              const airdma_remote *from, uint64_t at);
/* In one step, on the word at `at` of the peer's region, a multiple of 8. They give what was there before. */
airdma_operation *airdma_fetch_add(const airdma_endpoint *endpoint, const airdma_remote *on, uint64_t at, uint64_t add);
airdma_operation *airdma_compare_swap(const airdma_endpoint *endpoint, const airdma_remote *on, uint64_t at, uint64_t compare,
                                      uint64_t swap);

/* Says how many bytes wait in a buffer of yours that the peer fills, for a disk say, and how many fit; 0 of 0: there is none (any more). It
 * should hold many times what you take out of it at once. Cheap: say it each time that it changes. In air mode (by itself on Wi-Fi,
 * else AIRDMA_AIR=1) the peer sends no faster than the buffer empties. It is advice: what keeps the buffer from overflowing is still
 * up to you. */
airdma_error *airdma_tell_buffer(const airdma_endpoint *endpoint, uint64_t bytes, uint64_t capacity);

/* ---- Waiting ---- */

/* What an operation gave; what it does not give is NULL or 0. airdma_wait fills it in each time: also when it fails, and when the
 * operation is not over. */
typedef struct airdma_result {
    airdma_endpoint *endpoint; /* accept, connect: yours to free */
    airdma_region *region;     /* what was given to it, after errors too: yours to free, or to use again */
    size_t offset;             /* recv: where in the region the message begins */
    size_t length;             /* recv: how long it is */
    uint64_t value;            /* fetch_add, compare_swap: what was there before */
} airdma_result;

/* Waits for at most `timeout_ms` milliseconds, or for as long as it takes (-1). When the operation is over, it is freed and your pointer
 * set to NULL. If it is not NULL then, there was no error and the time is over: wait again, or give it up. `result` may be
 * NULL: then what the operation gives is freed. */
airdma_error *airdma_wait(airdma_operation **operation, int timeout_ms, airdma_result *result);
/* For event loops, in place of a thread that waits: adds 1 to the eventfd(2) when it is worth to ask again by airdma_wait with a limit of 0,
 * which is once, and now if the operation is over already. If airdma_wait then says that it is not, ask to be notified again.
 * One eventfd may be for any number of operations. The library keeps a duplicate of it until it has rung, or the operation is freed; the last
 * one that you gave counts. */
airdma_error *airdma_notify(airdma_operation *operation, int eventfd);
/* Gives it up. What is on its way still arrives. */
void airdma_give_up(airdma_operation *operation);

#ifdef __cplusplus
}
#endif

#endif
