//! What two processes share: memory, rings, doorbells, and the layout of what goes through them.
//!
//! | module | holds |
//! |---|---|
//! | [`arena`] | [`Arena`] and [`Block`]: zeroed memory in sealed memfds |
//! | [`mod@ring`] | [`ring()`], [`RingProducer`], [`RingConsumer`]: one producer, one consumer, slots of a fixed stride |
//! | [`slot`] | [`SlotMut`] and [`SlotRef`]: copies into and out of one slot |
//! | [`packet_ring`] | [`PacketProducer`], [`PacketConsumer`]: packets of any length, for one producer and one consumer |
//! | [`sleep_flag`] | [`SleepFlag`]: whether the consumer of a ring sleeps, and must be woken |
//! | [`wqe`], [`cqe`] | the `#[repr(C)]` layouts of work requests and completions |
//! | [`doorbells`] | [`Doorbells`]: one bit per queue pair, "has new work" |
//! | [`doorbell_queue`] | [`DoorbellQueue`], [`DoorbellProducer`]: many producers, one consumer, and a producer that dies stops no other |
//! | [`producers`] | [`Producers`]: which processes those are, and which of them live |
//! | [`indices`] | the index protocol of the ring, apart from its storage, as loom checks it |
//!
//! Three rules hold everywhere:
//!
//! 1. **Offsets, not pointers.** Two processes map the same bytes at different addresses.
//! 2. **Nothing is trusted that the other side wrote.** Indices are masked and counts clamped; what
//!    cannot be is reported as [`Corrupt`] and never leads out of bounds. Slots are copied out word
//!    by word with atomic loads, so a concurrent write by a hostile process gives a torn value,
//!    never undefined behaviour; no reference to such bytes exists.
//! 3. **Orderings are stated** where the atomics are used, and the protocols run under loom
//!    (`tests/loom`).
//!
//! ```
//! use airdma_shm::{Arena, SendWqe, Sge, ring};
//!
//! let (mut producer, mut consumer) = ring(&Arena::new(), 64, SendWqe::stride(4, 0))?;
//!
//! let mut slot = producer.slot(0).expect("a new ring is empty");
//! slot.write_header(&SendWqe { wr_id: 7, sge_count: 1, ..SendWqe::default() });
//! slot.write_sge::<SendWqe>(0, &Sge { addr: 0x1000, length: 64, lkey: 3 });
//! producer.publish(1);
//!
//! let number = consumer.take().expect("one was published");
//! let request: SendWqe = consumer.slot(number).read_header();
//! assert_eq!(request.wr_id, 7);
//! // Later, as often as needed, until the request completes:
//! assert_eq!(consumer.slot(number).sge::<SendWqe>(0)?.length, 64);
//! consumer.release(1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With `--cfg loom` only [`indices`], [`sleep_flag`], the protocols of [`doorbells`] and
//! [`doorbell_queue`], and the layouts are built: loom's atomics have no fixed layout and cannot
//! lie in shared memory.

#[cfg(not(loom))]
pub mod arena;
pub mod corrupt;
pub mod cqe;
pub mod doorbell_queue;
pub mod doorbells;
#[cfg(not(loom))]
pub mod held;
pub mod indices;
#[cfg(not(loom))]
mod memory_file;
#[cfg(not(loom))]
pub mod packet_ring;
pub mod pod;
#[cfg(not(loom))]
pub mod producers;
#[cfg(not(loom))]
pub mod ring;
pub mod sleep_flag;
#[cfg(not(loom))]
pub mod slot;
mod sync;
pub mod wqe;

#[cfg(not(loom))]
pub use arena::{Arena, Block};
pub use corrupt::Corrupt;
pub use cqe::Cqe;
#[cfg(not(loom))]
pub use doorbell_queue::{DoorbellProducer, DoorbellQueue};
#[cfg(not(loom))]
pub use doorbells::{DOORBELLS_MAX, Doorbells};
#[cfg(not(loom))]
pub use held::HeldSlots;
#[cfg(not(loom))]
pub use memory_file::memory_file;
#[cfg(not(loom))]
pub use packet_ring::{
    PACKET_RING_BYTES, PacketConsumer, PacketProducer, PacketTag, PacketWatch, packet_ring,
};
pub use pod::Pod;
#[cfg(not(loom))]
pub use producers::Producers;
#[cfg(not(loom))]
pub use ring::{RingConsumer, RingProducer, RingWatch, ring};
pub use sleep_flag::SleepFlag;
#[cfg(not(loom))]
pub use slot::{SlotMut, SlotRef};
pub use wqe::{RecvWqe, SendWqe, Sge, Wqe};
