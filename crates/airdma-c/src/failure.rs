//! Errors for C.

use std::ffi::CString;

use airdma::{Blame, Error};

/// `airdma_error`.
pub struct Failure {
    pub text: CString,
    pub blame: Blame,
    pub is_closed: bool,
}

impl Failure {
    /// An error of the caller.
    pub fn you(text: &str) -> Failure {
        Failure {
            text: without_zeros(text),
            blame: Blame::You,
            is_closed: false,
        }
    }

    /// An error for a panic in this library.
    pub fn panicked() -> Failure {
        Failure {
            blame: Blame::System,
            ..Self::you(
                "airdma panicked: this is a mistake in airdma; what it said is on standard error",
            )
        }
    }

    /// A pointer for C, which frees it.
    pub fn into_raw(self) -> *mut Failure {
        Box::into_raw(Box::new(self))
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Failure {
        Failure {
            text: without_zeros(&error.to_string()),
            blame: error.blame(),
            is_closed: error.is_closed(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::from(&error)
    }
}

fn without_zeros(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}
