//! Processes at one address: registry, steering, forwarding, and notices to the peers of a process
//! that ended.

pub(crate) mod counters_file;
pub(crate) mod orphan_notices;
pub mod runtime_dir;
pub(crate) mod steering;

/// Makes tests that fork, and those that another test's child would disturb, run one at a time.
///
/// A child has a copy of every descriptor.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
