/* RDMA for applications: connections, messages, and memory that peers read and write.
 *
 *   airdma_device     a network interface
 *   airdma_listener   a port that peers connect to
 *   airdma_endpoint   one end of a connection: messages both ways, each whole and in order
 *   airdma_region     memory that the device sends from and receives into
 *   airdma_shared     a region of yours that peers access directly
 *   airdma_remote     a region of the peer's: bytes that the peer sends you
 *   airdma_operation  an operation in progress
 *
 * Ownership: a call that takes a region takes `airdma_region **`, and sets your pointer to NULL:
 * while the device has the memory, you do not. airdma_wait gives it back, after errors too. The
 * memory of an operation that you cancel is kept until the device is done with it. Free each handle
 * once; freeing NULL does nothing.
 *
 * Errors: a call that can fail returns NULL, or an error that you free. Its text says what happened
 * and what to do, its blame which side has to act. Results are NULL or 0 after an error; only the
 * bytes of airdma_copy_out stay unchanged. No call ends the program, and none blocks for ever
 * except a receive from a living peer that sends nothing.
 *
 * Any thread may use devices, listeners and endpoints. A region, a shared region and an operation
 * belong to one thread at a time. After fork(2) the handles are the parent's.
 *
 * Compile and link with the flags of `pkg-config --cflags --libs airdma`. */
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

/* Address, length and key of a peer's region: send the bytes as they are. */
typedef struct airdma_remote {
    uint8_t bytes[24];
} airdma_remote;

/* ---- Errors ---- */

enum airdma_blame {
    AIRDMA_YOU = 1,     /* an argument that the call does not take */
    AIRDMA_PEER = 2,    /* the peer refused, closed, or died */
    AIRDMA_NETWORK = 3, /* no answer arrives */
    AIRDMA_SYSTEM = 4,  /* no memory or descriptors, a port in use */
};

/* What happened, and what to do. The text lives as long as the error. */
const char *airdma_error_text(const airdma_error *error);
enum airdma_blame airdma_error_blame(const airdma_error *error);
/* Whether the connection was simply closed: the equivalent of end of file. */
bool airdma_error_is_closed(const airdma_error *error);
void airdma_error_free(airdma_error *error);

/* ---- Devices and memory ---- */

/* Opens the device of an interface: by its name ("eth0") or an address ("192.0.2.1",
 * "127.0.0.1"). */
airdma_error *airdma_open(const char *name, airdma_device **device);
/* Opens the device that leads to a peer: "192.0.2.2:7471". */
airdma_error *airdma_towards(const char *peer, airdma_device **device);
/* Objects that were made with the device stay valid. */
void airdma_device_free(airdma_device *device);

/* Zeroed memory that the device can send from and receive into. */
airdma_error *airdma_allocate(const airdma_device *device, size_t length, airdma_region **region);
/* Its bytes, yours to read and write until an operation takes the region. */
void *airdma_region_bytes(airdma_region *region);
size_t airdma_region_length(const airdma_region *region);
void airdma_region_free(airdma_region *region);

/* ---- Shared regions ---- */

enum airdma_rights {
    AIRDMA_READ = 1,
    AIRDMA_WRITE = 2,
    AIRDMA_ATOMIC = 4,
};

/* Shares a region with peers, each of which needs its own key (airdma_shared_remote). A shared
 * region has no pointer to its bytes, since they may change at any time: they are copied out and
 * in. Takes the region, except after errors. */
airdma_error *airdma_share(airdma_region **region, unsigned rights, airdma_shared **shared);
/* Ends the sharing, and gives the region back: no peer accesses it any more. */
airdma_error *airdma_withdraw(airdma_shared **shared, airdma_region **region);
void airdma_shared_free(airdma_shared *shared);
/* The key for the peer of an endpoint. It is valid for that peer on that connection only; other
 * peers that learn it gain nothing. Each call gives the same. */
airdma_error *airdma_shared_remote(const airdma_shared *shared, const airdma_endpoint *to, airdma_remote *remote);
airdma_error *airdma_copy_out(const airdma_shared *shared, size_t offset, void *bytes, size_t length);
airdma_error *airdma_copy_in(const airdma_shared *shared, size_t offset, const void *bytes, size_t length);
/* Reads the word at a multiple of 8 atomically: for words that peers add to. */
airdma_error *airdma_word(const airdma_shared *shared, size_t offset, uint64_t *word);

/* ---- Connections ---- */

airdma_error *airdma_listen(const airdma_device *device, uint16_t port, airdma_listener **listener);
void airdma_listener_free(airdma_listener *listener);
/* Gives an endpoint. */
airdma_operation *airdma_accept(const airdma_listener *listener);
/* To "HOST:PORT". Gives an endpoint. */
airdma_operation *airdma_connect(const airdma_device *device, const char *peer);
/* Closes the connection after the operations before it. Takes the endpoint. */
airdma_operation *airdma_close(airdma_endpoint **endpoint);
/* Ends the connection at once. */
void airdma_endpoint_free(airdma_endpoint *endpoint);

/* ---- Operations of an endpoint: each starts at once, and airdma_wait gives its result ---- */

/* Sends `length` bytes at `offset` of the region as one message. Done when the peer has received
 * it. Gives the region back. */
airdma_operation *airdma_send(const airdma_endpoint *endpoint, airdma_region **region, size_t offset, size_t length);
/* Receives one message into at most `length` bytes at `offset`. Gives a region back, and the
 * position of the message in it. */
airdma_operation *airdma_recv(const airdma_endpoint *endpoint, airdma_region **region, size_t offset, size_t length);
/* Writes into the peer's region at `at`, and reads from it. They give the region back. */
airdma_operation *airdma_write(const airdma_endpoint *endpoint, airdma_region **region, size_t offset, size_t length,
                               const airdma_remote *to, uint64_t at);
airdma_operation *airdma_read(const airdma_endpoint *endpoint, airdma_region **region, size_t offset, size_t length,
                              const airdma_remote *from, uint64_t at);
/* Atomics on the word at `at` of the peer's region, a multiple of 8. They give the old value. */
airdma_operation *airdma_fetch_add(const airdma_endpoint *endpoint, const airdma_remote *on, uint64_t at, uint64_t add);
airdma_operation *airdma_compare_swap(const airdma_endpoint *endpoint, const airdma_remote *on, uint64_t at, uint64_t compare,
                                      uint64_t swap);

/* Reports how many bytes wait in a buffer that the peer fills (for a disk, for example), and how
 * many fit; 0 of 0 ends the reports. The buffer should hold many times what is taken out at once.
 * The call is cheap: make it at each change. In air mode (automatic on Wi-Fi, else AIRDMA_AIR=1)
 * the peer sends no faster than the buffer empties. This is advisory: you must still keep the
 * buffer from overflowing. */
airdma_error *airdma_tell_buffer(const airdma_endpoint *endpoint, uint64_t bytes, uint64_t capacity);

/* ---- Waiting ---- */

/* Result of an operation; unused fields are NULL or 0. airdma_wait always fills it in, also if it
 * fails, or if the operation is not done. */
typedef struct airdma_result {
    airdma_endpoint *endpoint; /* accept, connect: yours to free */
    airdma_region *region;     /* the operation's region, after errors too: yours to free, or to use again */
    size_t offset;             /* recv: where in the region the message begins */
    size_t length;             /* recv: how long it is */
    uint64_t value;            /* fetch_add, compare_swap: the old value */
} airdma_result;

/* Waits at most `timeout_ms` milliseconds, or without limit (-1). When the operation is done, it is
 * freed and your pointer set to NULL. If the pointer is not NULL then, the time is over without an
 * error: wait again, or cancel the operation. `result` may be NULL: then the result is freed. */
airdma_error *airdma_wait(airdma_operation **operation, int timeout_ms, airdma_result *result);
/* For event loops: adds 1 to the eventfd(2) once when the operation may be done, or now if it is.
 * Call airdma_wait with a limit of 0 then; if the operation is not done, call airdma_notify again.
 * One eventfd may serve any number of operations. The library keeps a duplicate of it until it is
 * signalled, or the operation is freed; the last eventfd given counts. */
airdma_error *airdma_notify(airdma_operation *operation, int eventfd);
/* Cancels an operation. Data in flight still arrives. */
void airdma_give_up(airdma_operation *operation);

#ifdef __cplusplus
}
#endif

#endif
