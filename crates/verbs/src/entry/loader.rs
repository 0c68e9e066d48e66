//! `dlvsym(3)`, by which programs that are built without libibverbs (NCCL) ask for its functions, and for those of librdmacm, with
//! the version that each had when it was introduced. The symbols here have no version, and what the caller has a handle of is
//! rdma-core's library: so an answer for a function of ours is exchanged for ours.
//!
//! For every other name the C library's function must see who called: `RTLD_NEXT` is meant from there. So this one saves its
//! arguments, asks, restores them, and jumps on, which takes a few instructions of assembler. Written for x86-64; elsewhere
//! such programs use the drop-in directory.

#![cfg(target_arch = "x86_64")]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The C library's `dlvsym`, once [`exchange`] has run.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

type Function = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// `dlvsym(3)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    symbol: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "push rdx",
        "call {exchange}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2: jmp qword ptr [rip + {real}]",
        exchange = sym exchange,
        real = sym REAL,
    )
}

/// Our function of that name, if the caller's handle has one with that version. Afterwards [`REAL`] is set.
unsafe extern "C" fn exchange(
    handle: *mut c_void,
    symbol: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    let mut real = REAL.load(Ordering::Relaxed);
    if real.is_null() {
        // SAFETY: a string with its end.
        real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlvsym".as_ptr()) };
        if real.is_null() {
            let none: Function = nothing;
            real = none as *mut c_void;
        }
        REAL.store(real, Ordering::Relaxed);
    }
    // SAFETY: the caller's strings, which the C library is about to read too; its function has this type.
    unsafe {
        if symbol.is_null() || !may_be_ours(CStr::from_ptr(symbol)) {
            return ptr::null_mut();
        }
        let real = std::mem::transmute::<*mut c_void, Function>(real);
        if real(handle, symbol, version).is_null() {
            return ptr::null_mut();
        }
        let found = libc::dlsym(libc::RTLD_DEFAULT, symbol);
        if is_ours(found) {
            found
        } else {
            ptr::null_mut()
        }
    }
}

/// Whether the name may be one of libibverbs or of librdmacm.
fn may_be_ours(symbol: &CStr) -> bool {
    let name = symbol.to_bytes();
    let prefixes: [&[u8]; 5] = [b"ibv_", b"_ibv_", b"mult_to_ibv", b"mbps_to_ibv", b"rdma_"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a function lies in this library.
unsafe fn is_ours(function: *mut c_void) -> bool {
    let here: Function = dlvsym;
    match (base(function), base(here as *mut c_void)) {
        (Some(of), Some(ours)) => of == ours,
        _ => false,
    }
}

fn base(address: *mut c_void) -> Option<*mut c_void> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked about; the struct is filled when the answer is not 0.
    unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init().dli_fbase) }
}

/// In place of a `dlvsym` that the C library does not have.
unsafe extern "C" fn nothing(
    _handle: *mut c_void,
    _symbol: *const c_char,
    _version: *const c_char,
) -> *mut c_void {
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_libraries_are_known_and_others_are_left_alone() {
        for name in [
            c"ibv_open_device",
            c"_ibv_query_gid_ex",
            c"mult_to_ibv_rate",
            c"rdma_create_id",
        ] {
            assert!(may_be_ours(name), "{name:?}");
        }
        for name in [c"malloc", c"ibverbs", c"", c"rsocket", c"rdmacm"] {
            assert!(!may_be_ours(name), "{name:?}");
        }
    }
}
