//! Fuzz bodies: one module for each fuzz target, with a function `run(data)` that panics when an
//! invariant does not hold.
//!
//! The bytes are decoded into faults of a peer or program ([`input::Input`]), so that most of them
//! reach deep code. They come from libFuzzer (`fuzz/`), which searches for bytes that reach new
//! code, or from `tests/replay.rs`, which replays libFuzzer's findings and adds random bytes.

pub mod air_message;
pub mod cm_mad;
pub mod cm_manager;
pub mod control;
pub mod file_control;
pub mod file_journal;
pub mod file_manifest;
pub mod frame;
pub mod host;
pub mod icrc;
pub mod input;
pub mod known_peers;
pub mod local_ring;
pub mod off_path;
pub mod on_path;
pub mod packet;
pub mod program;
pub mod queue_journal;
pub mod queue_request;
pub mod requester;
pub mod responder;
pub mod selective;
pub mod siege;
pub mod stream_block;
pub mod values;
pub mod work_request;
pub mod world;

/// A target: its name in `fuzz/`, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("packet", packet::run),
    ("icrc", icrc::run),
    ("frame", frame::run),
    ("responder", responder::run),
    ("requester", requester::run),
    ("selective", selective::run),
    ("air_message", air_message::run),
    ("off_path", off_path::run),
    ("on_path", on_path::run),
    ("cm_mad", cm_mad::run),
    ("cm_manager", cm_manager::run),
    ("work_request", work_request::run),
    ("control", control::run),
    ("local_ring", local_ring::run),
    ("file_manifest", file_manifest::run),
    ("file_control", file_control::run),
    ("file_journal", file_journal::run),
    ("queue_request", queue_request::run),
    ("queue_journal", queue_journal::run),
    ("known_peers", known_peers::run),
    ("stream_block", stream_block::run),
    ("world", world::run),
];
