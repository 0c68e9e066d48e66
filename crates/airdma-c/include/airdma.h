/* RDMA for applications: connections, messages, and memory that peers read and write; and
 * messages by datagrams into memory of a target, which learns what arrived.
 *
 *   airdma_device     a network interface
 *   airdma_listener   a port that peers connect to
 *   airdma_endpoint   one end of a connection: messages both ways, each whole and in order
 *   airdma_region     memory that the device sends from and receives into
 *   airdma_shared     a region of yours that peers access directly
 *   airdma_remote     a region of the peer's: bytes that the peer sends you
 *   airdma_datagrams  an endpoint without a connection
 *   airdma_arrival    what arrived of a message that was written, or read, by datagrams
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
 * except a receive from a living peer that sends nothing, and a wait for records.
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
typedef struct airdma_datagrams airdma_datagrams;
typedef struct airdma_arrival airdma_arrival;
typedef struct airdma_operation airdma_operation;

/* Address, length and key of a peer's region: send the bytes as they are. */
typedef struct airdma_remote {
    uint8_t bytes[24];
} airdma_remote;

/* Address of an endpoint without a connection: send the bytes as they are. */
typedef struct airdma_address {
    uint8_t bytes[28];
} airdma_address;

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
 * "127.0.0.1"). It works as the variables of the environment say (AIRDMA_MTU, ...), and those must
 * not change while this process has it open: that is AIRDMA_YOU. */
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
    AIRDMA_RECORD = 8,       /* write records, by datagrams */
    AIRDMA_RECORD_READ = 16, /* read, by datagrams */
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
/* The key for sources of records: of all hosts (`from` is NULL), or of one ("192.0.2.2"). */
airdma_error *airdma_shared_remote_for_records(const airdma_shared *shared, const char *from, airdma_remote *remote);
/* The key for reads by datagrams, likewise (airdma_read_record). */
airdma_error *airdma_shared_remote_for_reads(const airdma_shared *shared, const char *from, airdma_remote *remote);
/* The key for records to a multicast group, for an endpoint that is a member. The first member
 * draws it (`agreed` is NULL), and sends it to the source and to the other members, which give it
 * as `agreed`. Offsets are those of each member's own region. A member knows the key that writes to
 * all the others: name the source, or trust the hosts of the network. */
airdma_error *airdma_shared_remote_for_group(const airdma_shared *shared, const airdma_address *group,
                                             const airdma_remote *agreed, const char *from, airdma_remote *remote);
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

/* ---- Messages by datagrams, and their records ---- */

/* An endpoint without a connection. It writes to any number of targets, and takes the records of
 * any number of sources. Any thread may use it. */
airdma_error *airdma_datagrams_open(const airdma_device *device, airdma_datagrams **endpoint);
/* Ends its operations at once. Arrivals stay valid. */
void airdma_datagrams_free(airdma_datagrams *endpoint);
/* Its address, which a source needs beside the key of a region. */
airdma_error *airdma_datagrams_address(const airdma_datagrams *endpoint, airdma_address *address);
/* Writes a message of 1 byte to 2 GiB - 1 into the target's region at `at`, and sends `*immediate`
 * along unless it is NULL. Gives the region back when the last packet has left: nothing is
 * repeated, and the source does not learn what arrives. Write to the same place again only when the
 * target has freed the arrival of the message there. */
airdma_operation *airdma_write_record(const airdma_datagrams *endpoint, airdma_region **region, size_t offset, size_t length,
                                      const airdma_address *to, const airdma_remote *remote, uint64_t at,
                                      const uint32_t *immediate);
/* A new address of a multicast group ("239.1.2.3"), for its members and sources. It holds a random
 * number, without which no message reaches a member. */
airdma_error *airdma_group_address(const char *group, airdma_address *address);
/* An endpoint that is a member of the group: it takes what is written to the group. Members answer
 * nothing, so a process writes 64 KiB each 10 ms to a group at most. */
airdma_error *airdma_group_open(const airdma_device *device, const airdma_address *group, airdma_datagrams **endpoint);
/* Reads `length` bytes at `at` of the peer's region into the region at `offset`, by datagrams, from
 * an endpoint of the device that the peer's region is of. What is lost is asked for again until the
 * deadline. Gives the region back, and an arrival that says which bytes came; an error if none
 * did. */
airdma_operation *airdma_read_record(const airdma_datagrams *endpoint, airdma_region **region, size_t offset, size_t length,
                                     const airdma_address *from, const airdma_remote *remote, uint64_t at,
                                     uint32_t deadline_ms);
/* What has arrived so far of the message that writes the byte at `offset` of the shared region; no
 * arrival if there is none. Its bytes are in the shared region (airdma_copy_out). */
airdma_error *airdma_peek_record(const airdma_datagrams *endpoint, const airdma_shared *shared, size_t offset,
                                 airdma_arrival **arrival);
/* Ends that message: its record comes at once (AIRDMA_ASKED). `*closed` is false if there is
 * none. */
airdma_error *airdma_close_record(const airdma_datagrams *endpoint, const airdma_shared *shared, size_t offset,
                                  bool *closed);
/* The next record: gives an arrival. */
airdma_operation *airdma_next_record(const airdma_datagrams *endpoint);

/* Why no more of a message is awaited. */
enum airdma_ended {
    AIRDMA_WHOLE = 0,      /* all of it arrived */
    AIRDMA_IDLE = 1,       /* nothing arrived for 20 ms */
    AIRDMA_AGE = 2,        /* it was open for a second */
    AIRDMA_DISPLACED = 3,  /* other messages needed its place in the table */
    AIRDMA_ASKED = 4,      /* the program asked */
    AIRDMA_TAKEN_BACK = 5, /* the region was withdrawn */
    AIRDMA_LAST = 6,       /* the packet at its end arrived (a mode for measurements) */
    AIRDMA_REFUSED = 7,    /* of a read: the peer does not allow it */
    AIRDMA_FLUSHED = 8,    /* of a read: the endpoint ended */
    AIRDMA_OPEN = 255,     /* it is arriving: airdma_peek_record */
};

typedef struct airdma_arrived {
    size_t offset;          /* where in the shared region the message begins */
    size_t length;          /* of the whole message */
    size_t valid;           /* bytes that arrived */
    size_t ranges;          /* ranges of bytes that arrived */
    size_t unit;            /* bytes that are lost or arrive together */
    char source[48];        /* address of the host that sent it */
    char group[48];         /* the multicast group that it was sent to, or "" */
    uint32_t source_number; /* which endpoint of that host */
    uint32_t number;        /* of the message: its source counts them from 0 */
    uint32_t immediate;     /* as sent along, 0 if none was */
    bool has_immediate;
    enum airdma_ended ended;
} airdma_arrived;

/* Bytes `start` to `end` (not included) of a message. */
typedef struct airdma_range {
    size_t start;
    size_t end;
} airdma_range;

airdma_error *airdma_arrival_read(const airdma_arrival *arrival, airdma_arrived *arrived);
/* Copies the first `room` ranges that arrived, in order. */
airdma_error *airdma_arrival_ranges(const airdma_arrival *arrival, airdma_range *ranges, size_t room);
/* Whether all of these bytes of the message arrived. */
bool airdma_arrival_has(const airdma_arrival *arrival, size_t offset, size_t length);
/* Copies bytes of the message of a record. Where nothing arrived, the region has what it had
 * before. */
airdma_error *airdma_arrival_copy_out(const airdma_arrival *arrival, size_t offset, void *bytes, size_t length);
/* From now on other messages may change the bytes. Free arrivals soon: an endpoint has room for 192
 * of them, of one host for half of that. */
void airdma_arrival_free(airdma_arrival *arrival);

/* ---- Waiting ---- */

/* Result of an operation; unused fields are NULL or 0. airdma_wait always fills it in, also if it
 * fails, or if the operation is not done. */
typedef struct airdma_result {
    airdma_endpoint *endpoint; /* accept, connect: yours to free */
    airdma_region *region;     /* the operation's region, after errors too: yours to free, or to use again */
    size_t offset;             /* recv, read_record: where in the region the bytes begin */
    size_t length;             /* recv, read_record: how many they are */
    uint64_t value;            /* fetch_add, compare_swap: the old value */
    airdma_arrival *arrival;   /* next_record, read_record: yours to free */
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
