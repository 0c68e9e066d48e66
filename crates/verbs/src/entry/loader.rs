//! `dlsym(3)` and `dlvsym(3)`, by which programs that are built without libibverbs (NCCL, sideway, PyPI's ibverbs, Mooncake) ask for
//! its functions, and for those of librdmacm, in a library that they opened. What they have a handle of is rdma-core's: so an answer
//! for a function of ours is exchanged for ours.
//!
//! For every other name the C library's function must see who called: `RTLD_NEXT` is meant from there. So these save their
//! arguments, ask, restore them, and jump on, which takes a few instructions of assembler. Written for x86-64; elsewhere
//! such programs use the drop-in directory.

#![cfg(target_arch = "x86_64")]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

mod libc_symbol;

/// The C library's own, once [`exchange`] or [`exchange_versioned`] has run.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static REAL_VERSIONED: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

type Plain = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Versioned = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// `dlsym(3)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "push rdx", // keeps the stack aligned
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
        exchange = sym exchange_versioned,
        real = sym REAL_VERSIONED,
    )
}

/// Our function of that name, if the caller's handle has one. Afterwards [`REAL`] is set.
unsafe extern "C" fn exchange(handle: *mut c_void, symbol: *const c_char) -> *mut c_void {
    let real = real_plain();
    // SAFETY: the caller's string, which the C library is about to read too.
    unsafe {
        if symbol.is_null() || !may_be_ours(CStr::from_ptr(symbol)) {
            return ptr::null_mut();
        }
        ours_instead_of(real(handle, symbol), real, symbol)
    }
}

/// Our function of that name, if the caller's handle has one with that version. Afterwards [`REAL_VERSIONED`] is set.
unsafe extern "C" fn exchange_versioned(
    handle: *mut c_void,
    symbol: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    let nothing: Versioned = no_versioned;
    let real = find(&REAL_VERSIONED, c"dlvsym", nothing as *mut c_void);
    // SAFETY: the caller's strings, which the C library is about to read too; its function has this type.
    unsafe {
        if symbol.is_null() || !may_be_ours(CStr::from_ptr(symbol)) {
            return ptr::null_mut();
        }
        let real = std::mem::transmute::<*mut c_void, Versioned>(real);
        ours_instead_of(real(handle, symbol, version), real_plain(), symbol)
    }
}

/// Ours, or NULL where the caller has found nothing, or what is not ours.
///
/// # Safety
/// `symbol` is a string, `real` the C library's `dlsym`.
unsafe fn ours_instead_of(found: *mut c_void, real: Plain, symbol: *const c_char) -> *mut c_void {
    if found.is_null() {
        return found;
    }
    // SAFETY: the caller's promise.
    let first = unsafe { real(libc::RTLD_DEFAULT, symbol) };
    // SAFETY: it may be asked of any address.
    if unsafe { is_ours(first) } {
        first
    } else {
        ptr::null_mut()
    }
}

fn real_plain() -> Plain {
    let nothing: Plain = no_plain;
    let real = find(&REAL, c"dlsym", nothing as *mut c_void);
    // SAFETY: the C library's function of that name, or the one in its place, has this type.
    unsafe { std::mem::transmute::<*mut c_void, Plain>(real) }
}

/// The C library's function, which `dlsym(3)` cannot be asked for: that is this one.
fn find(known: &AtomicPtr<c_void>, name: &CStr, nothing: *mut c_void) -> *mut c_void {
    let mut real = known.load(Ordering::Relaxed);
    if real.is_null() {
        real = libc_symbol::find(name).unwrap_or(nothing);
        known.store(real, Ordering::Relaxed);
    }
    real
}

/// Whether the name may be one of libibverbs or of librdmacm.
fn may_be_ours(symbol: &CStr) -> bool {
    let name = symbol.to_bytes();
    let prefixes: [&[u8]; 5] = [b"ibv_", b"_ibv_", b"mult_to_ibv", b"mbps_to_ibv", b"rdma_"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a function lies in this library.
unsafe fn is_ours(function: *mut c_void) -> bool {
    let here: Versioned = exchange_versioned;
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

/// In place of functions that the C library does not have.
unsafe extern "C" fn no_plain(_handle: *mut c_void, _symbol: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

unsafe extern "C" fn no_versioned(
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

    #[test]
    fn the_c_librarys_own_functions_are_found_without_asking_it() {
        for name in [c"dlsym", c"dlvsym"] {
            let found = libc_symbol::find(name);
            assert!(found.is_some_and(|found| !found.is_null()), "{name:?}");
        }
        assert_eq!(libc_symbol::find(c"airdma_no_such_function"), None);
    }
}
