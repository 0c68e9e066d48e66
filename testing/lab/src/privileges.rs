//! Privileges for network namespaces: root, or a user namespace of the process.

use std::fs;
use std::io;

use crate::error::{LabError, checked};

/// Moves the process into a new, empty network namespace, with all capabilities in it.
///
/// With root (CAP_SYS_ADMIN) that is all; without, the process first becomes root of a new user
/// namespace, which the kernel permits only to a process with one thread. Must be called before any
/// other thread is started. Changes of the process's network afterwards do not affect the host's.
pub fn enter() -> Result<(), LabError> {
    // SAFETY: takes only flags, and changes nothing in memory.
    if checked(unsafe { libc::unshare(libc::CLONE_NEWNET) }).is_ok() {
        return Ok(());
    }
    become_root().map_err(LabError::NoNamespaces)
}

fn become_root() -> io::Result<()> {
    // SAFETY: both only read ids.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: takes only flags. With another thread the kernel returns EINVAL.
    checked(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) })?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    // AppArmor of Ubuntu permits the namespace and then refuses everything in it.
    // SAFETY: as above.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    Ok(())
}
