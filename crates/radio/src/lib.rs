//! What the kernel knows about a link, read only: how much waits in the queue in front of an interface, how much memory
//! a socket holds, and what a wireless driver says about its stations and its channel.
//!
//! A [`LinkView`] answers for one interface, as often as it is asked; what cannot be read is an answer with a reason
//! ([`Unreadable`]). Nothing here needs a privilege, and nothing sends a packet. Which reading exists where, and what each
//! costs: `docs/design/019-what-the-kernel-tells.md`.

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
