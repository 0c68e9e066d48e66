//! Every C symbol and every function slot, each through one macro: `extern "C"`, a boundary that
//! turns a panic into an error, and the trace. What a symbol does is in the function that it names;
//! a symbol marked `unsupported` answers EOPNOTSUPP as its man page says. The hooks in `files.rs`
//! have a macro of their own.

use std::ffi::c_int;
use std::ptr;

use airdma_preload::{Uncancelled, contained};

use crate::errno::{Answer, Errno};

pub mod blocking;
#[cfg(not(feature = "rlib"))]
pub mod files;
#[cfg(all(not(feature = "rlib"), target_arch = "x86_64"))]
pub mod loader;
#[cfg(not(feature = "rlib"))]
pub mod netlink;
pub mod polling;
pub mod rdma;
pub mod slots;
pub mod symbols;
pub mod work_requests;

/// Defines C functions. `export` makes a symbol, `slot` a function for a table, `fast` one of the
/// data path for a table.
macro_rules! entry {
    ($(export fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:tt $(:: $rest:ident)*;)*) => {$(
        #[allow(unused_unsafe, reason = "some bodies are safe functions")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
            crate::entry::entry!(@call $name($($arg),*) $body $(:: $rest)*)
        }
    )*};
    ($(slot fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:tt $(:: $rest:ident)*;)*) => {$(
        #[allow(unused_unsafe, reason = "some bodies are safe functions")]
        pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
            crate::entry::entry!(@call $name($($arg),*) $body $(:: $rest)*)
        }
    )*};
    ($(fast fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:tt $(:: $rest:ident)*;)*) => {$(
        #[allow(unused_unsafe, reason = "some bodies are safe functions")]
        pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: as below.
            let answer = crate::entry::guard_fast(|| unsafe { $body $(:: $rest)*($($arg),*) });
            crate::entry::entry!(@trace $name($($arg),*) answer);
            answer
        }
    )*};
    (@call $name:ident($($arg:ident),*) unsupported) => {{
        let answer = crate::entry::Refusal::unsupported();
        crate::entry::entry!(@trace $name($($arg),*) answer);
        answer
    }};
    (@call $name:ident($($arg:ident),*) $($body:tt)*) => {{
        // SAFETY: what the man page demands of the C caller is what the body demands.
        let answer = crate::entry::guard(|| unsafe { $($body)*($($arg),*) });
        crate::entry::entry!(@trace $name($($arg),*) answer);
        answer
    }};
    (@trace $name:ident($($arg:ident),*) $answer:ident) => {
        if crate::trace::enabled() {
            crate::trace::call(stringify!($name), &[$((stringify!($arg), &$arg)),*], &$answer);
        }
    };
}
use entry;

/// Runs a body; a panic is answered as an error and never unwinds into C, and a cancellation of the
/// thread waits until it is over.
#[inline]
fn guard<A: Answer>(body: impl FnOnce() -> A) -> A::C {
    let _whole = Uncancelled::new();
    guard_fast(body)
}

/// As [`guard`], for the data path, where the engine holds cancellations back around what few calls
/// of the system it makes.
#[inline]
fn guard_fast<A: Answer>(body: impl FnOnce() -> A) -> A::C {
    contained(body, A::panicked).into_c()
}

/// The answer of a verb that the device does not have.
trait Refusal {
    fn unsupported() -> Self;
}

impl Refusal for c_int {
    fn unsupported() -> c_int {
        Err::<(), _>(Errno::UNSUPPORTED).into_c()
    }
}

impl<T> Refusal for *mut T {
    fn unsupported() -> *mut T {
        Errno::UNSUPPORTED.set();
        ptr::null_mut()
    }
}

impl Refusal for u16 {
    fn unsupported() -> u16 {
        0
    }
}

impl Refusal for u32 {
    fn unsupported() -> u32 {
        0
    }
}

impl Refusal for () {
    fn unsupported() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_of_the_functions_convention() {
        // `abort` in the hook would hide it; the default hook only prints.
        assert_eq!(
            guard(|| -> Result<(), Errno> { panic!("on purpose") }),
            libc::EIO
        );
        assert!(guard(|| -> Result<*mut u8, Errno> { panic!("on purpose") }).is_null());
        assert_eq!(Errno::current(), Errno(libc::EIO));
    }

    #[test]
    fn refusals_say_eopnotsupp() {
        assert_eq!(<c_int as Refusal>::unsupported(), libc::EOPNOTSUPP);
        assert!(<*mut u8 as Refusal>::unsupported().is_null());
        assert_eq!(Errno::current(), Errno::UNSUPPORTED);
    }
}
