//! Queue pairs tested packet by packet: each test reads as a trace of what came in and what went
//! out. `bench.rs` holds the queue pair under test and its host.

#![allow(clippy::unwrap_used, missing_docs)]

mod atomic_write;
mod bench;
mod datagram;
mod early_answers;
mod equal_lengths;
mod extended;
mod flush;
mod local;
mod long_payload;
mod long_reads;
mod record_target;
mod records;
mod reliable;
mod requester;
mod responder;
mod run;
mod sack;
mod selective;
mod shared_receives;
mod silence;
mod tags;
mod unreliable;
