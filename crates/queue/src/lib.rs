//! A queue of files to be sent: what `airdma serve` keeps and `airdma queue` talks to.
//!
//! Programs ask by a Unix socket ([`socket`], [`protocol`]; `docs/queue-protocol.md` is for those who write one). One job runs at a
//! time, first come, first served among those of the same priority (SMUFF 3.2), and all are in a [`journal`] that survives what ends
//! the service. Who carries files is not decided here: that is a [`Carrier`].

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
