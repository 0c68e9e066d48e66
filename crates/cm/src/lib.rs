//! The connection manager as a pure state machine: management datagrams and calls come in,
//! management datagrams and events go out (IBTA volume 1, chapter 12, and annex A11).
//!
//! Nothing here reads a clock, does I/O, takes a lock or spawns a thread. See [`Manager`] for the
//! order of calls and the bounds.

#![forbid(unsafe_code)]

mod active;
mod calls;
mod config;
mod connection;
mod counter;
mod event;
mod half_open;
mod ids;
mod listener;
mod manager;
mod passive;
mod peer_proof;
mod sidr;
mod teardown;

pub use airdma_transport::Time;
pub use calls::{Accept, CmError, Connect, Resolve, SidrAnswer};
pub use config::Config;
pub use connection::{ConnectionId, Route, SidrId};
pub use counter::Counter;
pub use event::{ConnectRequest, ConnectResponse, Event, SidrRequest, SidrResponse};
pub use half_open::Evicted;
pub use listener::{ListenerId, Takes};
pub use manager::Manager;
pub use teardown::OrphanNotice;
