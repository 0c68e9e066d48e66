//! The tables of a worker, and what a queue pair may touch during one call. No table knows the
//! worker.

pub(crate) mod counters;
pub(crate) mod cq_table;
pub(crate) mod destination;
pub(crate) mod device_tables;
pub(crate) mod multicast;
pub(crate) mod peers;
pub(crate) mod qp_host;
pub(crate) mod qp_table;
pub(crate) mod rate_limit;
pub(crate) mod record_peers;
pub(crate) mod record_targets;
pub(crate) mod round_robin;
pub(crate) mod srq_table;
pub(crate) mod timers;
