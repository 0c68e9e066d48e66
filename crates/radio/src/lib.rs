//! The kernel's view of a link, read only: bytes queued in front of an interface, memory that a
//! socket holds, and a wireless driver's stations and channel.
//!
//! A [`LinkView`] reads one interface, as often as needed; a value that cannot be read comes with a
//! reason ([`Unreadable`]). Nothing here needs a privilege, and nothing sends a packet.
//! `docs/design/019-what-the-kernel-tells.md` lists the readings and their cost.

#![deny(unsafe_code)]

mod link_view;
mod netlink;
mod network;
mod nl80211;
mod qdisc;
mod socket_memory;
mod unreadable;

pub use link_view::{Aged, LinkReading, LinkView, Pace};
pub use network::Network;
pub use nl80211::{
    Bitrate, Channel, InterfaceKind, Nl80211, Standard, Station, Survey, TxQueue, WirelessInterface,
};
pub use qdisc::{Backlog, Limit, Qdisc, QdiscKind, Queue, QueueReader};
pub use socket_memory::{SocketMemory, unsent_bytes};
pub use unreadable::Unreadable;
