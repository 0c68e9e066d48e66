//! The connection manager tested datagram by datagram: each test reads as a trace of what came in
//! and what went out. `bench.rs` holds the manager under test and plays its peer.

#![allow(clippy::unwrap_used, missing_docs)]

mod active;
mod bench;
mod bounds;
mod passive;
mod sidr;
mod strangers;
mod teardown;
