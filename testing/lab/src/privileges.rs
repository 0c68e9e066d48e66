//! What it takes to make network namespaces: root, or a user namespace of our own.

use std::fs;
use std::io;

use crate::error::{LabError, checked};

/// Moves the process into a new, empty network namespace, in which it may do everything.
///
/// With root (CAP_SYS_ADMIN) that is all; without, the process becomes root of a new user namespace first, which the
/// kernel allows only while it has one thread: call this before any other is started. Whatever the process does to its
/// network afterwards, the host's own is out of its reach.
pub fn enter() -> Result<(), LabError> {
    // SAFETY: takes flags alone, and changes nothing in memory.
    if checked(unsafe { libc::unshare(libc::CLONE_NEWNET) }).is_ok() {
        return Ok(());
    }
    become_root().map_err(LabError::NoNamespaces)
}

fn become_root() -> io::Result<()> {
    // SAFETY: these only read who we are.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: takes flags alone. With another thread the kernel says EINVAL.
    checked(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) })?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    // AppArmor of Ubuntu lets the namespace be made and then refuses everything in it.
    // SAFETY: as above.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    Ok(())
}
