//! The contract of the verbs as a judge: it gets a program's calls and results, and reports
//! violations.
//!
//! It shares nothing with the transport, not even a type, so it does not repeat a mistake there. It
//! simulates no packets. It knows what was posted, granted and revoked, checks every byte of memory
//! after every step, and every completion, against the contract (IBTA volume 1, chapters 9 to 11;
//! `ibv_post_send(3)` and related pages):
//!
//! | module | rules |
//! |---|---|
//! | [`memory`] | a byte changes only by a write, a response or a message that is in flight and covers it; READs return what was there; atomics happen once, one after the other |
//! | [`grants`] | keys, what they open for which queue pairs, and when that is certain |
//! | [`contract`] | completions: order, number, status, contents; asynchronous events; every request ends |
//! | [`events`] | completion events |
//! | [`reads`] | reads by datagrams: what is declared valid is right, a read ends once and in time |
//! | [`records`] | Write-Records: what is declared valid is right and stays, a record ends once |
//! | [`reliable`] | reliable datagrams: a message arrives once, before its request succeeds |
//!
//! Time is counted in steps: the driver increments it with every action. If the moment of an event
//! is uncertain, the judge knows an earliest and a latest step, and permits what either order
//! permits.

#![forbid(unsafe_code)]
// A rule names the variants that it concerns; all others have the default.
#![allow(clippy::wildcard_enum_match_arm)]

pub mod contract;
pub mod events;
pub mod grants;
pub mod memory;
pub mod reads;
pub mod records;
pub mod reliable;
pub mod request;

pub use contract::{Contract, Life, QueuePair};
pub use events::Alarm;
pub use grants::{Asker, Grants, Owner, Region, Rights, Sge, Span, Standing};
pub use memory::{Memory, Placement};
pub use request::{Atomic, Bind, Done, Kind, Opcode, Path, Recv, Request, Service, Status};

/// The driver's count of its actions.
pub type Step = u64;

/// A violation of the contract, in words.
pub type Verdict = Result<(), String>;
