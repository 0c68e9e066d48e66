//! The C symbols. Each passes its call through where the descriptor is not a connection that the
//! shim knows, at the price of one load.

pub mod by_number;
pub mod data;
pub mod descriptors;
#[cfg(target_arch = "x86_64")]
pub mod images;
pub mod options;
pub mod processes;
pub mod waits;

use std::ffi::c_int;

use airdma_preload::errno;
use airdma_preload::{Uncancelled, contained};

/// Runs a body; a panic fails the call with `EIO`, and a cancellation of the thread waits.
pub fn guard<R>(failure: R, body: impl FnOnce() -> R) -> R {
    let _uncancelled = Uncancelled::new();
    contained(body, || {
        errno::set(libc::EIO);
        failure
    })
}

/// Defines C functions whose bodies are guarded. `where kernel(CONDITION => CALL)`: when the call
/// is passed on in place of that. `waits(SOCKET = OPTION => CALL)`: which call waits in place of
/// the body, if there is a socket. The thread may be cancelled in both: no Rust value is on its
/// stack.
macro_rules! hooks {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $(where kernel($passed_on:expr => $next:expr))? $(, waits($socket:ident = $of:expr => $wait:expr))? $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the man page demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
            $(
                // SAFETY: as above.
                #[allow(unused_unsafe, reason = "some conditions are safe")]
                if unsafe { $passed_on } {
                    // SAFETY: as above.
                    return unsafe { $next };
                }
            )?
            $(
                // SAFETY: as above.
                #[allow(unused_unsafe, reason = "some conditions are safe")]
                if let Some($socket) = unsafe { $of } {
                    // SAFETY: as above.
                    return unsafe { $wait };
                }
            )?
            $crate::entry::guard(-1, || {
                // SAFETY: what the man page demands of the caller is what the body demands.
                #[allow(unused_unsafe, reason = "some bodies are safe")]
                unsafe { $body }
            })
        }
    )*};
}
pub(crate) use hooks;

/// The socket of a descriptor, for a call of the program.
#[inline]
fn known(fd: c_int) -> Option<&'static crate::socket::Socket> {
    crate::socket::of(fd)
}
