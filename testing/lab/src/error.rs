//! What can go wrong while hosts are made and programs run.

use std::io;

/// Why a lab cannot be set up or used. The text says what was tried and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Neither root nor a user namespace is to be had.
    #[error(
        "this needs root or unprivileged user namespaces, and has neither ({0}).\n\
         Run it with sudo, or allow them: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), \
         sysctl -w kernel.unprivileged_userns_clone=1 (older Debian)"
    )]
    NoNamespaces(io::Error),
    /// A step of setting up was refused.
    #[error("{what}: {error}")]
    Refused {
        /// The step.
        what: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// The cable has no carrier after ten seconds.
    #[error("the interface of host {0} does not come up")]
    Down(char),
    /// The user wants to stop: the number of the signal.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

/// Gives an error of the kernel the name of what was tried.
pub(crate) trait Tried<T> {
    fn tried(self, what: impl Into<String>) -> Result<T, LabError>;
}

impl<T> Tried<T> for io::Result<T> {
    fn tried(self, what: impl Into<String>) -> Result<T, LabError> {
        self.map_err(|error| LabError::Refused {
            what: what.into(),
            error,
        })
    }
}

/// The result of a system call that says -1 for failure.
pub(crate) fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
