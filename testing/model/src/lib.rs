//! The contract of the verbs, as a judge: what a program did and what it was told go in, and what may not be comes out.
//!
//! It shares nothing with the transport, not even a type: a mistake there has no twin here. It simulates no packets. It
//! knows what was posted, granted and taken back, looks at every byte of memory after every step, and at every completion,
//! and asks whether the contract (IBTA volume 1, chapters 9 to 11; `ibv_post_send(3)` and its neighbours) allows it:
//!
//! | module | rules |
//! |---|---|
//! | [`memory`] | a byte changes only by a write, a response or a message that is under way and covers it; READs return what was there; atomics happen once, one after the other |
//! | [`grants`] | which key opens what to whom, and when that is certain |
//! | [`contract`] | completions: order, number, status, contents; asynchronous events; that everything ends |
//! | [`events`] | completion events |
//!
//! Time is counted in steps: the driver counts on by one with everything that it does. Where packets make the moment of
//! something uncertain, the judge knows an earliest and a latest step, and allows what either order allows.

#![forbid(unsafe_code)]
// A rule names the cases that it speaks of; all others are as they are.
#![allow(clippy::wildcard_enum_match_arm)]

pub mod contract;
pub mod events;
pub mod grants;
pub mod memory;
pub mod request;

pub use contract::{Contract, Life, QueuePair};
pub use events::Alarm;
pub use grants::{Asker, Grants, Owner, Region, Rights, Sge, Span, Standing};
pub use memory::{Memory, Placement};
pub use request::{Atomic, Bind, Done, Kind, Opcode, Path, Recv, Request, Service, Status};

/// The driver's count of what it did.
pub type Step = u64;

/// What the contract does not allow, in words.
pub type Verdict = Result<(), String>;
