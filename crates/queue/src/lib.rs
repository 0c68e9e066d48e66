//! A queue of files to be sent: what `airdma serve` keeps and `airdma queue` talks to.
//!
//! Programs use a Unix socket ([`socket`], [`protocol`]; `docs/queue-protocol.md` describes it for
//! their authors). One job runs at a time, first come, first served within a priority (SMUFF 3.2).
//! All jobs are in a [`journal`] that survives the service. A [`Carrier`] transfers the files.

#![forbid(unsafe_code)]

mod carrier;
mod client;
mod job;
mod journal;
mod lines;
mod own;
pub mod protocol;
mod queue;
mod service;
pub mod socket;

pub use carrier::{Arrived, Carrier, News, Outcome, Progress, Stop};
pub use client::{Client, ClientError};
pub use job::{FilePath, Flaw, Job, Order, PATHS_MAX, PRIORITIES, PRIORITY, State, Trouble};
pub use queue::{ATTEMPTS_MAX, HISTORY_MAX, JOBS_MAX};
pub use service::{Service, ServiceError};
