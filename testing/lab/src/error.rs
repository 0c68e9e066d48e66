//! Errors of setting up hosts and running programs.

use std::io;

/// Reason why a lab cannot be set up or used. The text names the step and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Neither root nor a user namespace is available.
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
        /// The kernel's error.
        error: io::Error,
    },
    /// The cable has no carrier after ten seconds.
    #[error("the interface of host {0} does not come up")]
    Down(char),
    /// The user stopped it by the signal of this number.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

/// Adds the attempted step to an error of the kernel.
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

/// Result of a system call that returns -1 on failure.
pub(crate) fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
