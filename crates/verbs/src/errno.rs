//! The error numbers that C callers get, and how each kind of answer carries them.

use std::ffi::{CStr, c_int};
use std::io;
use std::ptr;
use std::sync::Once;

use airdma_engine as engine;
use airdma_preload::errno;

use crate::trace;

/// A failure as C sees it: a positive `errno` value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl Errno {
    /// The caller's misuse: a bad pointer, index, state or combination.
    pub const INVALID: Errno = Errno(libc::EINVAL);
    /// The verb is not implemented by this device.
    pub const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    /// No memory, or a limit of ours.
    pub const NO_MEMORY: Errno = Errno(libc::ENOMEM);

    /// Stores the number in the calling thread's `errno`, where pointer-returning verbs leave it.
    pub fn set(self) {
        errno::set(self.0);
    }

    /// Prints once, on standard error, how to raise a limit that was reached: a program names the
    /// limit at most.
    fn advise(self) {
        static TOLD: Once = Once::new();
        let advice = match self.0 {
            libc::EMFILE => too_many_open(&descriptors_max()),
            libc::ENFILE => {
                "this host has as many files open as it may: `sysctl fs.file-max` says how many"
                    .to_owned()
            }
            _ => return,
        };
        TOLD.call_once(|| trace::warn(&advice));
    }

    /// The calling thread's `errno`.
    pub fn current() -> Errno {
        Errno(errno::current())
    }
}

/// Descriptors that most programs need at most.
const DESCRIPTORS_PLENTY: u64 = 1024;

/// The limits of descriptors of this process, soft and hard.
fn descriptors_max() -> libc::rlimit {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the struct may be written.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit
}

/// How to raise the limit: the soft limit goes up to the hard one without privileges.
fn too_many_open(limit: &libc::rlimit) -> String {
    let libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    } = *limit;
    let enough = soft.saturating_mul(4).max(DESCRIPTORS_PLENTY);
    let fact = format!("this process has as many files open as it may, {soft}");
    let by_root = format!(
        "`nofile {enough}` in /etc/security/limits.conf, or LimitNOFILE={enough} of its service"
    );
    if hard >= enough {
        format!(
            "{fact}: `ulimit -n {enough}` in front of it, or LimitNOFILE= of its service, allows more"
        )
    } else if hard > soft {
        format!(
            "{fact}: `ulimit -n {hard}` in front of it allows as many as the hard limit does; more takes root, to raise that: {by_root}"
        )
    } else {
        format!("{fact}, and that is its hard limit, which takes root to raise: {by_root}")
    }
}

impl From<engine::Error> for Errno {
    /// Reasons outside the program are also told on standard error: programs print "failed" at
    /// most.
    fn from(error: engine::Error) -> Self {
        let errno = Errno(error.errno());
        errno.advise();
        match error {
            engine::Error::System { .. } => trace::warn(&error),
            // A program may repeat the call in a loop: the first message is enough.
            engine::Error::Forked => {
                static TOLD: Once = Once::new();
                TOLD.call_once(|| trace::warn(&error));
            }
            engine::Error::Invalid(_)
            | engine::Error::NoMemory(_)
            | engine::Error::Busy(_)
            | engine::Error::Gone(_)
            | engine::Error::Unsupported(_)
            | engine::Error::Attribute(_)
            | engine::Error::CqOverrun => {
                if trace::enabled() {
                    trace::warn(&error);
                }
            }
        }
        errno
    }
}

impl From<io::Error> for Errno {
    /// An error with words but without a number is printed on standard error, as above.
    fn from(error: io::Error) -> Self {
        if let Some(number) = error.raw_os_error() {
            Errno(number).advise();
            return Errno(number);
        }
        trace::warn(&error);
        if let Some(number) = engine::errno_of(&error) {
            return Errno(number);
        }
        let kinds = [
            (io::ErrorKind::AddrInUse, libc::EADDRINUSE),
            (io::ErrorKind::AddrNotAvailable, libc::EADDRNOTAVAIL),
            (io::ErrorKind::InvalidInput, libc::EINVAL),
            (io::ErrorKind::NotFound, libc::ENODEV),
            (io::ErrorKind::OutOfMemory, libc::ENOMEM),
            (io::ErrorKind::PermissionDenied, libc::EACCES),
            (io::ErrorKind::Unsupported, libc::EOPNOTSUPP),
        ];
        let known = kinds.iter().find(|(kind, _)| *kind == error.kind());
        Errno(known.map_or(libc::EIO, |(_, number)| *number))
    }
}

/// A value that the body of a C function returns, and its form in C.
///
/// The type of the body picks the convention of the man page: `Result<(), Errno>` is 0 or the
/// number, `Result<c_int, Errno>` a value or -1, `Result<*mut T, Errno>` a pointer or NULL,
/// `Result<usize, Errno>` a count or the negated number. All of them set `errno`.
pub trait Answer {
    /// The C return type.
    type C;
    /// The answer when the body panicked.
    fn panicked() -> Self;
    /// The C value; sets `errno` on failure.
    fn into_c(self) -> Self::C;
}

impl Answer for Result<(), Errno> {
    type C = c_int;
    fn panicked() -> Self {
        Err(Errno(libc::EIO))
    }
    fn into_c(self) -> c_int {
        match self {
            Ok(()) => 0,
            Err(errno) => {
                errno.set();
                errno.0
            }
        }
    }
}

impl Answer for Result<c_int, Errno> {
    type C = c_int;
    fn panicked() -> Self {
        Err(Errno(libc::EIO))
    }
    fn into_c(self) -> c_int {
        self.unwrap_or_else(|errno| {
            errno.set();
            -1
        })
    }
}

impl Answer for Result<usize, Errno> {
    type C = isize;
    fn panicked() -> Self {
        Err(Errno(libc::EIO))
    }
    fn into_c(self) -> isize {
        match self {
            Ok(count) => isize::try_from(count).unwrap_or(isize::MAX),
            Err(errno) => {
                errno.set();
                -(errno.0 as isize)
            }
        }
    }
}

impl<T> Answer for Result<*mut T, Errno> {
    type C = *mut T;
    fn panicked() -> Self {
        Err(Errno(libc::EIO))
    }
    fn into_c(self) -> *mut T {
        self.unwrap_or_else(|errno| {
            errno.set();
            ptr::null_mut()
        })
    }
}

impl Answer for &'static CStr {
    type C = *const std::ffi::c_char;
    fn panicked() -> Self {
        c"unknown"
    }
    fn into_c(self) -> Self::C {
        self.as_ptr()
    }
}

/// Answers that cannot fail.
macro_rules! plain_answer {
    ($($ty:ty => $panicked:expr),* $(,)?) => {$(
        impl Answer for $ty {
            type C = $ty;
            fn panicked() -> Self {
                $panicked
            }
            fn into_c(self) -> $ty {
                self
            }
        }
    )*};
}

plain_answer! {
    () => (),
    c_int => -1,
    u8 => 0,
    u16 => 0,
    u32 => 0,
    u64 => 0,
    *const std::ffi::c_char => ptr::null(),
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Errno = Errno(libc::EBUSY);

    #[test]
    fn each_convention_reports_the_number_its_way() {
        assert_eq!(Err::<(), _>(BUSY).into_c(), libc::EBUSY);
        assert_eq!(Errno::current(), BUSY);
        assert_eq!(Err::<c_int, _>(Errno::INVALID).into_c(), -1);
        assert_eq!(Errno::current(), Errno::INVALID);
        assert_eq!(
            Err::<usize, _>(Errno::NO_MEMORY).into_c(),
            -(libc::ENOMEM as isize)
        );
        assert!(Err::<*mut u8, _>(Errno::UNSUPPORTED).into_c().is_null());
        assert_eq!(Errno::current(), Errno::UNSUPPORTED);
    }

    #[test]
    fn a_system_error_keeps_its_number_or_gets_that_of_its_kind() {
        let numbered = io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(Errno::from(numbered), Errno(libc::ENOSPC));
        let worded = io::Error::new(io::ErrorKind::PermissionDenied, "on purpose");
        assert_eq!(Errno::from(worded), Errno(libc::EACCES));
        let ours = engine::Error::System {
            message: "on purpose".to_owned(),
            errno: libc::EPROTO,
        };
        assert_eq!(Errno::from(io::Error::from(ours)), Errno(libc::EPROTO));
        assert_eq!(
            Errno::from(io::Error::other("on purpose")),
            Errno(libc::EIO)
        );
    }

    #[test]
    fn advice_about_descriptors_can_be_followed() {
        let told = |soft, hard| {
            too_many_open(&libc::rlimit {
                rlim_cur: soft,
                rlim_max: hard,
            })
        };
        let soft = told(1024, 1 << 20);
        assert!(soft.contains("`ulimit -n 4096` in front of it"), "{soft}");
        let both = told(1024, 2048);
        assert!(both.contains("`ulimit -n 2048` in front of it"), "{both}");
        assert!(both.contains("LimitNOFILE=4096"), "{both}");
        let hard = told(4096, 4096);
        assert!(!hard.contains("ulimit"), "{hard}");
        assert!(
            hard.contains("takes root") && hard.contains("LimitNOFILE=16384"),
            "{hard}"
        );
    }

    #[test]
    fn success_leaves_errno_alone() {
        BUSY.set();
        assert_eq!(Ok::<(), Errno>(()).into_c(), 0);
        assert_eq!(Ok::<c_int, Errno>(7).into_c(), 7);
        assert_eq!(Ok::<usize, Errno>(7).into_c(), 7);
        assert_eq!(Errno::current(), BUSY);
    }
}
