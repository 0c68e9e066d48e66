/* RDMA Write-Record beside plain verbs: a program writes into memory of a peer by unreliable
 * datagrams, without a connection and without a posted receive, and the peer learns which bytes
 * arrived. Both ends are airdma hosts.
 *
 * The functions are in libairdma.so and in the drop-in libibverbs.so.1. They are weak symbols: a
 * program that runs with another library finds NULL at their names, and can do without.
 *
 *     target                                           source
 *     mr = airdma_record_reg(pd, addr, length, NULL);
 *     airdma_record_enable(qp, NULL);
 *     (qp_num, mr->rkey and the address go to the source by other means)
 *                                                      airdma_record_post(qp, &wr);
 *     AIRDMA_WC_RECORD by ibv_poll_cq                  AIRDMA_WC_RECORD_SENT by ibv_poll_cq
 *     airdma_record_read(qp, wc.wr_id, &record);
 *     airdma_record_free(qp, wc.wr_id);
 *
 * Reliable datagrams (airdma_rd_enable()) are SENDs and records that are repeated until their
 * target has them.
 *
 * Functions that return int return 0 or an errno value, which they also store in errno.
 */
#ifndef AIRDMA_VERBS_RECORD_H
#define AIRDMA_VERBS_RECORD_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AIRDMA_RECORD_WEAK __attribute__((weak))

/* Completion opcodes: IBV_WC_DRIVER1 and IBV_WC_DRIVER2 of newer headers. A completion of a record
 * has byte_len (the valid bytes), imm_data, src_qp, and the handle of the record as wr_id; its
 * status is success, whatever arrived. */
enum {
	AIRDMA_WC_RECORD_SENT = 135,
	AIRDMA_WC_RECORD = 136,
};

/* Why a message was closed. */
enum airdma_record_ended {
	AIRDMA_RECORD_WHOLE = 0,      /* all of it arrived */
	AIRDMA_RECORD_IDLE = 1,       /* no packet arrived for idle_us */
	AIRDMA_RECORD_AGE = 2,        /* it was open for age_us */
	AIRDMA_RECORD_DISPLACED = 3,  /* others needed its entry */
	AIRDMA_RECORD_ASKED = 4,      /* airdma_record_close() */
	AIRDMA_RECORD_TAKEN_BACK = 5, /* the memory was deregistered */
	AIRDMA_RECORD_LAST = 6,       /* the packet at its end arrived (AIRDMA_RECORD_STRICT_LAST) */
	AIRDMA_RECORD_REFUSED = 7,    /* of a read: the peer does not allow it */
	AIRDMA_RECORD_FLUSHED = 8,    /* of a read: the queue pair, or its send queue, is in the error state */
	AIRDMA_RECORD_OPEN = 255,     /* it is open: airdma_record_peek() */
};

enum {
	/* The packet at the end closes a message, and one without it is lost. */
	AIRDMA_RECORD_STRICT_LAST = 1 << 0,
};

/* The table of a queue pair. 0 stands for the default of a field. */
struct airdma_record_attr {
	uint32_t open_max;    /* messages that arrive at once: 64, at most 4096 */
	uint32_t closed_max;  /* records that are not freed: 192, at most 65536 */
	uint32_t units_max;   /* packets of a message: 4096 (5.5 MiB at MTU 1500), at most 2097152 */
	uint32_t sources_max; /* sources whose numbers are remembered: 1024, at most 131072 */
	uint32_t idle_us;     /* 20,000 */
	uint32_t age_us;      /* 1,000,000 */
	uint32_t flags;
	uint32_t reserved;    /* 0 */
};

enum {
	/* imm_data is sent. */
	AIRDMA_RECORD_WITH_IMM = 1 << 0,
	/* The message is repeated until its target has it: see airdma_rd_enable(). */
	AIRDMA_RECORD_RELIABLE = 1 << 1,
	/* In struct airdma_record: the message was sent to a multicast group. */
	AIRDMA_RECORD_TO_GROUP = 1 << 2,
	/* There, too: memory of a peer was read, by airdma_record_read_from(). */
	AIRDMA_RECORD_WAS_READ = 1 << 3,
};

struct airdma_record_wr {
	uint64_t wr_id;
	struct ibv_sge *sg_list;
	int num_sge;
	unsigned int send_flags; /* enum ibv_send_flags */
	struct ibv_ah *ah;
	uint32_t remote_qpn;
	uint32_t remote_qkey;
	uint64_t remote_addr;
	uint32_t rkey;
	__be32 imm_data;
	uint32_t flags;
	uint32_t reserved; /* 0 */
};

struct airdma_record {
	uint64_t addr;
	uint32_t rkey;
	uint32_t length;      /* of the whole message */
	uint32_t unit;        /* bytes of a bit of the map; the last unit may have less */
	uint32_t valid;       /* bytes that arrived */
	uint32_t id;          /* number of the message; its queue pair counts them from 0 */
	uint32_t src_qp;
	union ibv_gid source; /* address of the host that sent it */
	__be32 imm_data;
	uint32_t flags;       /* AIRDMA_RECORD_WITH_IMM, AIRDMA_RECORD_TO_GROUP, AIRDMA_RECORD_WAS_READ */
	uint32_t ended;       /* enum airdma_record_ended */
	uint32_t words;       /* 64-bit words of the map */
};

/* Lets a UD queue pair take records from now on, once; attr may be NULL. Its receive completion
 * queue should hold open_max + closed_max entries for records: without room they wait.
 * EINVAL: another type of queue pair, one that takes records, a field out of range. */
int airdma_record_enable(struct ibv_qp *qp, const struct airdma_record_attr *attr) AIRDMA_RECORD_WEAK;

/* Registers memory for records. Its key opens nothing else, and no other key opens memory for
 * records. With a source only that host may write. The region is deregistered by ibv_dereg_mr. */
struct ibv_mr *airdma_record_reg(struct ibv_pd *pd, void *addr, size_t length,
				 const union ibv_gid *source) AIRDMA_RECORD_WEAK;

/* As airdma_record_reg(), for messages to a multicast group that the queue pair is attached to
 * (ibv_attach_mcast()). Such messages name the region by `key` and by addresses from 0 on, so that
 * all members can register the same; 0 draws a key at random, and mr->rkey is the key. It opens
 * nothing but this region, for nothing but messages to this group at queue pairs of this domain.
 * Any host that knows the key can write: draw it at random, or name the source. Nothing answers
 * messages to a group: 64 KiB leave each 10 ms.
 * EINVAL: no group. EEXIST: the domain has a region with this key of the group. */
struct ibv_mr *airdma_record_reg_group(struct ibv_pd *pd, void *addr, size_t length,
				       const union ibv_gid *group, uint32_t key,
				       const union ibv_gid *source) AIRDMA_RECORD_WEAK;

/* Posts one message of 1 byte to 2 GiB - 1. It completes (AIRDMA_WC_RECORD_SENT, if
 * IBV_SEND_SIGNALED) when its last packet was handed over: nothing is promised beyond. */
int airdma_record_post(struct ibv_qp *qp, const struct airdma_record_wr *wr) AIRDMA_RECORD_WEAK;

/* Registers memory that peers may read by datagrams from queue pairs of the domain that take
 * records. Its key opens it for nothing else. With a source only that host may read. */
struct ibv_mr *airdma_record_reg_read(struct ibv_pd *pd, void *addr, size_t length,
				      const union ibv_gid *source) AIRDMA_RECORD_WEAK;

struct airdma_record_read_wr {
	struct ibv_ah *ah;
	uint32_t remote_qpn;
	uint32_t remote_qkey;
	uint64_t remote_addr;
	uint32_t rkey;
	uint32_t length;
	uint64_t addr;        /* the memory to write, which is registered for local writes */
	uint32_t lkey;
	uint32_t deadline_us; /* the read ends then at the latest: 0 is 1,000,000 */
	uint32_t tries;       /* requests without an answer, after which it ends: 0 is 8 */
	uint32_t reserved;    /* 0 */
};

/* Reads memory of a peer by datagrams, on a UD queue pair in RTS that takes records, from one that
 * takes records as well. What is lost is asked for again until all is there, the deadline has
 * passed, or `tries` requests were in vain. Then a record with the number that is stored in
 * `handle` is told (AIRDMA_WC_RECORD): AIRDMA_RECORD_WHOLE, AIRDMA_RECORD_AGE (the deadline),
 * AIRDMA_RECORD_IDLE (no answer), AIRDMA_RECORD_REFUSED (key or range), AIRDMA_RECORD_FLUSHED
 * (the queue pair is in the error state). It is read, mapped and freed as the others, and shown by
 * airdma_record_peek() with `lkey` and `addr` meanwhile. A queue pair has at most 64 reads at once,
 * and at most half of open_max.
 * EINVAL: a queue pair that cannot, a group, a field out of range. ENOMEM: no free entry. */
int airdma_record_read_from(struct ibv_qp *qp, const struct airdma_record_read_wr *wr,
			    uint64_t *handle) AIRDMA_RECORD_WEAK;

/* What a queue pair may repeat. 0 stands for the default of a field. */
struct airdma_rd_attr {
	uint32_t messages_max;     /* posted and not completed: 1024, at most 65536; others wait */
	uint32_t share_max;        /* of those, to one destination: 128, or messages_max; beyond, all later
	                              requests wait */
	uint32_t destinations_max; /* with such messages: 256, at most 16384 */
	uint32_t silence_us;       /* after that long without an answer a destination is given up: 1,000,000, at
	                              most 4,000,000 */
	uint32_t not_ready_us;     /* a message is repeated that long to a target without a receive, or without
	                              room: 1,000,000 */
	uint32_t reserved[3];      /* 0 */
};

/* Lets a UD queue pair repeat messages from now on, once: those of airdma_rd_send(), and records
 * with AIRDMA_RECORD_RELIABLE; attr may be NULL. The target's queue pair is in RTS and has called
 * airdma_record_enable(), also for SENDs. A message arrives there once, or not at all, and messages
 * arrive and complete in any order. A completion with success says that the target's process has
 * all of the message; the others concern one message each, and the queue pair stays usable:
 *     IBV_WC_RETRY_EXC_ERR      the destination does not answer; the message may have arrived
 *     IBV_WC_RNR_RETRY_EXC_ERR  it has no receive posted, or no room (for records or completions)
 *     IBV_WC_REM_INV_REQ_ERR    the receive is too short; it serves the next message
 *     IBV_WC_REM_ACCESS_ERR     key or range of a record is not allowed, or it has too many packets
 *     IBV_WC_REM_OP_ERR         the target ended the message, or its memory is gone
 *     IBV_WC_LOC_PROT_ERR       the memory of the message is not registered any more
 * EINVAL: another type of queue pair, one that repeats messages, a field out of range. */
int airdma_rd_enable(struct ibv_qp *qp, const struct airdma_rd_attr *attr) AIRDMA_RECORD_WEAK;

/* As ibv_post_send(), for SENDs of up to 2 GiB - 1 that are repeated. The receive has 40 bytes for
 * the header in front of the message, as for any datagram. */
int airdma_rd_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr) AIRDMA_RECORD_WEAK;

/* Reads a record that a completion named. ENOENT: there is none, or it was freed. */
int airdma_record_read(struct ibv_qp *qp, uint64_t handle, struct airdma_record *record) AIRDMA_RECORD_WEAK;

/* Copies the map of a record, at most `words` words: bit k % 64 of word k / 64 says whether unit k
 * arrived. ENOENT as above. */
int airdma_record_map(struct ibv_qp *qp, uint64_t handle, uint64_t *bits, size_t words) AIRDMA_RECORD_WEAK;

/* Gives the entry of a record back. ENOENT as above. */
int airdma_record_free(struct ibv_qp *qp, uint64_t handle) AIRDMA_RECORD_WEAK;

/* Reads the oldest open message that writes the byte at `addr`, and copies its map, at most `words`
 * words. ENOENT: there is none. */
int airdma_record_peek(struct ibv_qp *qp, uint32_t rkey, uint64_t addr, struct airdma_record *record,
		       uint64_t *bits, size_t words) AIRDMA_RECORD_WEAK;

/* Closes that message: its record follows. ENOENT: there is none. */
int airdma_record_close(struct ibv_qp *qp, uint32_t rkey, uint64_t addr) AIRDMA_RECORD_WEAK;

#ifdef __cplusplus
}
#endif

#endif
