//! Frames of many devices (cameras, mostly) over one connection, by one-sided writes.
//!
//! A [`Sender`] fills blocks of its memory in place and writes each into a block of the peer; a
//! [`Receiver`] lends the frames as they lie there. There are no receives, and no
//! acknowledgements: each side learns what the other did from words that only the other writes, and
//! a thread that waits for one is woken by the write itself
//! ([`Endpoint::written`](airdma::Endpoint::written)). `docs/design/033-streams.md` has the
//! reasons.
//!
//! | | written by | at |
//! |---|---|---|
//! | credit *n*: a free block and the key that opens it, then *n* | receiver | the sender's ring, entry *n* |
//! | frame *n*: payload, header, then *n* | sender | the block that credit *n* names |
//!
//! A key opens one block for one frame. It is gone before the frame is lent, so a frame does not
//! change while a program reads it, whatever the peer does. A frame that is kept keeps its block
//! and no other.
//!
//! ```
//! # fn main() -> Result<(), airdma_stream::Error> {
//! use airdma_stream::{Description, Incoming, Pool, Receiver, Sender, SenderConfig, Source};
//! use std::time::Duration;
//!
//! # let device = airdma::Device::open("127.0.0.1")?;
//! # let listener = device.listen(7480)?;
//! # let connecting = device.connect("127.0.0.1:7480");
//! # let (there, here) = (listener.accept().wait()?, connecting.wait()?);
//! # let its_device = device.clone();
//! // One program:
//! # let receiving = std::thread::spawn(move || -> Result<(), airdma_stream::Error> {
//! let pool = Pool::new(&its_device, 4, 64 << 10)?;
//! let mut receiver = Receiver::open(Incoming::hear(&its_device, there)?, &pool)?;
//! let frame = receiver.next(Duration::from_secs(10))?.expect("one was sent");
//! assert_eq!((frame.device(), &frame[..5]), (7, &b"hello"[..]));
//! # Ok(())
//! # });
//! // And the other:
//! let mut sender = Sender::new(&device, SenderConfig::default())?;
//! sender.open(here)?;
//! sender.add(7, Source::default())?;
//! let mut block = sender.wait_for_block(7, 5)?;
//! block.copy_from_slice(b"hello");
//! sender.send(block, Description::now());
//! sender.flush(Duration::from_secs(10))?;
//! # receiving.join().expect("it does not panic")?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod block;
mod credit;
mod error;
mod frame;
mod greeting;
mod header;
#[doc(hidden)]
pub mod hostile; // for the crate `fuzz-bodies`
mod judge;
mod parking;
mod pool;
mod receiver;
mod sender;
mod sequence;

pub use block::Block;
pub use error::{Error, Result};
pub use frame::Frame;
pub use header::{Flags, now_ns};
pub use judge::Refused;
pub use parking::waker as thread_waker;
pub use pool::Pool;
pub use receiver::{Incoming, Receiver};
pub use sender::{Counts, Description, Policy, Sender, SenderConfig, Source};
pub use sequence::{Received, Sequences};

/// Most devices of a sender.
pub const DEVICES_MAX: usize = 1024;
/// Most blocks of a receiver.
pub const BLOCKS_MAX: u32 = 4096;
/// Most bytes of a frame.
pub const FRAME_BYTES_MAX: usize = (1 << 30) - 64;
/// Most bytes of the description of a format.
pub const FORMAT_BYTES_MAX: usize = 1024;
