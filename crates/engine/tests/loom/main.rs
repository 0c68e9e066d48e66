//! The engine's protocols between threads under loom: every interleaving, and every value the
//! memory model lets a load return.
//!
//! The modules are the engine's own files; [`eventfd`] models their calls of the kernel.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p airdma-engine --release --test loom`, or `make loom`.
//! Models of three threads have a bound on preemptions; `LOOM_MAX_PREEMPTIONS=3` raises it.
#![cfg(loom)]
#![allow(dead_code, clippy::unwrap_used)]

#[path = "../../src/queues/alarm.rs"]
mod alarm;
#[path = "../../src/queues/application_buffer.rs"]
mod application_buffer;
#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/queues/event_queue.rs"]
mod event_queue;
#[path = "../../src/queues/qp_state.rs"]
mod qp_state;
#[path = "../../src/progress/watcher/roster.rs"]
mod roster;
#[path = "../../src/sharing/steering/rows.rs"]
mod rows;
#[path = "../../src/progress/progress_thread/standby.rs"]
mod standby;
#[path = "../../src/sync.rs"]
mod sync;
#[path = "../../src/queues/urgency.rs"]
mod urgency;
#[path = "../../src/queues/use_count.rs"]
mod use_count;
#[path = "../../src/progress/worker_lock.rs"]
mod worker_lock;
#[path = "../../src/queues/write_watch.rs"]
mod write_watch;

/// The engine's files name each other by their paths in the engine.
mod progress {
    pub(crate) use crate::{eventfd, worker_lock};
}

mod arming;
mod counts;
mod emptying;
mod eventfd;
mod events;
mod handing_over;
mod posting;
mod sharing;
mod sleeping;
mod taking_over;
mod world;
mod writing;

use airdma_transport::QpState;
use error::Error;

/// Explores a model with at most `preemptions` preemptions, or `LOOM_MAX_PREEMPTIONS`.
fn bounded(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(model);
}
