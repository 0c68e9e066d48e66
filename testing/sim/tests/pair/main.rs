//! The transport over simulated links: topologies as sentences, then random programs.

#![allow(clippy::unwrap_used)]

mod area;
mod atomics;
mod connecting;
mod datagrams;
mod determinism;
mod drain;
mod efficiency;
mod errors;
mod hostile;
mod loss;
mod not_ready;
mod operations;
mod program;
mod random_programs;
mod reads;
mod scene;
mod timeouts;
mod unreliable;
mod window;
mod windows;
