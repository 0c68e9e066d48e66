//! Processes at one address: the registry, steering of packets, forwarding, and notices for the peers of a process that ended.

pub(crate) mod counters_file;
pub(crate) mod orphan_notices;
pub(crate) mod process;
pub mod runtime_dir;
pub(crate) mod steering;
