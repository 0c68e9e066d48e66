//! File transfer over RDMA: [`send()`] and [`receive()`], each a call that blocks until all has
//! arrived.
//!
//! `airdma-files` defines transfers without moving data; `airdma` moves bytes without knowing
//! files. This crate joins them: frames and messages use send and receive, chunks use one-sided
//! writes into memory that the receiver shares. `docs/file-protocol.md` has the order of calls.
//! Other protocols use the connections to authenticated peers alone: [`call()`] and [`Entrance`].
//!
//! | thread | does |
//! |---|---|
//! | the caller's, or one for each connection | waits for everything at once: messages, writes, disks, time ([`Parking`](parking)) |
//! | reader, writer | what blocks on a disk: reads and seals chunks; opens and writes them, and asks whether to accept |
//! | the device's | packets |

#![forbid(unsafe_code)]

mod cancel;
mod channel;
mod code_tries;
mod discovery;
mod doors;
mod error;
mod handshake;
mod home;
#[cfg(test)]
#[path = "../../engine/tests/common/isolated.rs"]
mod isolated;
mod lobby;
mod meeting;
mod parking;
mod peer;
mod place;
mod progress;
mod reader;
mod receive;
mod receiving;
mod send;
mod sending;
mod target;
mod writer;

pub use airdma::Device;
pub use cancel::Cancel;
pub use code_tries::{CODE_TRIES_MAX, CodeTries};
pub use discovery::{Neighbour, NoMulticast, Service, neighbours};
pub use doors::{DoorConfig, Doors};
pub use error::{Error, Kind};
pub use home::Home;
pub use meeting::{Call, Entrance, Met, call};
pub use peer::{Expected, NoPeer, Peer};
pub use progress::{Event, Offered, Progress, Shut, Waits};
pub use receive::{Ask, Destination, ReceiveJob, Received, Watch, receive, receive_at};
pub use send::{SendJob, Sent, contact, send};
pub use target::Stream;

/// Default port of receivers of files, in the port space of RDMA CM.
pub const PORT: u16 = Service::Files.port();

/// Bytes of a slot in the staging memory: a chunk, and what sealing adds.
const SLOT_BYTES: usize = airdma_files::CHUNK_BYTES as usize + airdma_files::session::TAG_BYTES;
