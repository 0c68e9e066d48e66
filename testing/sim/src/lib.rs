//! The real protocol in virtual time, over networks made of sentences.
//!
//! A [`Link`] is one direction of a cable, a queue or a bad path: the stages that packets pass, in
//! order. A [`Topology`] joins hosts and switches by links, or by a medium that they share
//! ([`wifi`]), and becomes a [`Network`], which carries datagrams from host to host and knows what
//! became of each. A [`Pair`] is a network of two, with a transport endpoint at each end:
//!
//! ```
//! use airdma_sim::{Link, Pair, SendWr, Setup, Side, gbit};
//! use airdma_transport::{Access, Operation};
//! use core::time::Duration;
//!
//! let link = || Link::new().delay(Duration::from_micros(10)).rate(gbit(10)).drop(0.05);
//! let mut pair = Pair::new(7, link(), link());
//! let qp = pair.connect(&Setup::default());
//!
//! let source = pair[Side::A].register(b"sixteen bytes ok", Access::empty());
//! let target = pair[Side::B].register(&[0; 16], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
//! let write = Operation::Write { va: target.va, rkey: target.rkey() };
//! pair[Side::A].post_send(qp, SendWr::new(1, write, vec![source.all()]));
//!
//! pair.run_until_idle();
//! assert_eq!(pair[Side::B].bytes(&target), b"sixteen bytes ok");
//! ```
//!
//! Everything that happens follows from one seed: the same seed replays the same packets at the
//! same nanoseconds. Packets are the real bytes, IP header to ICRC, so damage on the way is
//! detected as on a real network: by the IP layer of the receiver ([`IpDrop`]) or by the ICRC. A
//! [`Pair`] that is dropped by a failing test prints its seed and its packets.

#![forbid(unsafe_code)]

mod capture;
mod endpoint;
mod frame;
mod host;
mod ip;
mod link;
mod medium;
mod memory;
mod network;
mod pair;
mod pcapng;
mod random;
mod rings;
mod setup;
mod topology;
mod trace;
pub mod wifi;

pub use endpoint::{Endpoint, PortCounters};
pub use frame::Frame;
pub use host::SimHost;
pub use ip::IpDrop;
pub use link::{GilbertElliott, Link, LinkCounters, Marking, gbit, mbit};
pub use medium::{Medium, Passed};
pub use memory::{Memory, Region, Sge};
pub use network::{Delivery, Network, PathCounters};
pub use pair::{Pair, Side};
pub use random::Random;
pub use rings::{Rings, SendWr};
pub use setup::Setup;
pub use topology::{Node, Topology};
pub use trace::{Fate, Passage, Record, Trace};

pub use airdma_transport::Time;
