//! Files in memory, without a name.

use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Makes a memory file that can be sealed and never executed (`memfd_create(2)`). `name` is shown
/// in `/proc`.
///
/// # Errors
/// The system's.
pub fn memory_file(name: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Systems may require it (vm.memfd_noexec); kernels before 6.3 do not know the flag.
    match with_flags(name, flags | libc::MFD_NOEXEC_SEAL) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => with_flags(name, flags),
        outcome => outcome,
    }
}

fn with_flags(name: &CStr, flags: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: a string with its end, and an integer.
    let file = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the new descriptor has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_in_memory_is_no_program_and_becomes_none() {
        if with_flags(c"airdma-test", libc::MFD_NOEXEC_SEAL).is_err() {
            eprintln!("skipped: the kernel has no memory files that cannot be executed");
            return;
        }
        let file = File::from(memory_file(c"airdma-test").unwrap());
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0, "{mode:o}");
        assert!(file.set_permissions(Permissions::from_mode(0o755)).is_err());
    }
}
