//! Processes at one address: the registry, steering of packets, forwarding, and notices for the peers of a process that ended.

pub(crate) mod counters_file;
pub(crate) mod orphan_notices;
pub mod runtime_dir;
pub(crate) mod steering;

/// Tests that fork, and those that a child of another test would disturb, run one at a time: a child has a copy of every descriptor.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
