//! The C symbols. Each passes its call through where the descriptor is not a connection that the
//! shim knows, at the price of one load.

pub mod data;
pub mod descriptors;
#[cfg(target_arch = "x86_64")]
pub mod images;
pub mod options;
pub mod processes;

use std::ffi::c_int;

use airdma_preload::contained;
use airdma_preload::errno;

/// Runs a body; a panic fails the call with `EIO`.
pub fn guard<R>(failure: R, body: impl FnOnce() -> R) -> R {
    contained(body, || {
        errno::set(libc::EIO);
        failure
    })
}

/// Defines C functions whose bodies are guarded.
macro_rules! hooks {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the man page demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
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
