//! `dlsym(3)` and `dlvsym(3)`, by which programs that are built without libibverbs (NCCL, sideway, PyPI's ibverbs, Mooncake) ask for
//! its functions, and for those of librdmacm, in a library that they opened. What they have a handle of is rdma-core's: so an answer
//! that lies in rdma-core's libraries is exchanged for ours of that name. Another library's function of that name is what was meant: one
//! that wraps verbs, or opens libibverbs itself.
//!
//! For every other name the next function, of the C library or of a library that interposes it too, must see the caller:
//! `RTLD_NEXT` is meant from there. So these save their arguments, ask, restore them, and jump on, which takes a few instructions of
//! assembler. Written for x86-64; elsewhere such programs use the drop-in directory.

#![cfg(target_arch = "x86_64")]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::unknown_verbs;

mod objects;

/// Where these jump to, once [`exchange`] or [`exchange_versioned`] has run.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static NEXT_VERSIONED: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

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
        "2: jmp qword ptr [rip + {next}]",
        exchange = sym exchange,
        next = sym NEXT,
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
        "2: jmp qword ptr [rip + {next}]",
        exchange = sym exchange_versioned,
        next = sym NEXT_VERSIONED,
    )
}

/// Our function of that name, if the caller's handle has rdma-core's. Afterwards [`NEXT`] is set.
unsafe extern "C" fn exchange(handle: *mut c_void, symbol: *const c_char) -> *mut c_void {
    let nothing: Plain = no_plain;
    set_next(&NEXT, c"dlsym", nothing as *mut c_void);
    if symbol.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's string, which the C library is about to read too.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    if !may_be_ours(symbol) {
        return ptr::null_mut();
    }
    // SAFETY: the caller's handle.
    ours_instead_of(unsafe { real(handle, symbol) }, symbol)
}

/// Our function of that name, if the caller's handle has rdma-core's with that version. Afterwards [`NEXT_VERSIONED`] is set.
unsafe extern "C" fn exchange_versioned(
    handle: *mut c_void,
    symbol: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let nothing: Versioned = no_versioned;
    let nothing = nothing as *mut c_void;
    set_next(&NEXT_VERSIONED, c"dlvsym", nothing);
    if symbol.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's strings and handle, which the C library is about to read too; its function has this type.
    unsafe {
        let name = CStr::from_ptr(symbol);
        if !may_be_ours(name) {
            return ptr::null_mut();
        }
        let real = found(&REAL, || objects::in_c_library(c"dlvsym"), nothing);
        let real = std::mem::transmute::<*mut c_void, Versioned>(real);
        ours_instead_of(real(handle, symbol, version), name)
    }
}

/// Ours, or NULL where the caller has found nothing, or what is not rdma-core's.
fn ours_instead_of(found: *mut c_void, name: &CStr) -> *mut c_void {
    let Some(this) = objects::this().filter(|this| is_rdma_core(found, this.base())) else {
        return ptr::null_mut();
    };
    this.function(name).unwrap_or_else(|| {
        unknown_verbs::handed_out(name);
        ptr::null_mut()
    })
}

/// Whether a function lies in rdma-core's libibverbs or librdmacm, and not in this library, which may have that name.
fn is_rdma_core(function: *mut c_void, this: usize) -> bool {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked about; the struct is filled when the answer is not 0, and its strings live as long as the object.
    unsafe {
        if libc::dladdr(function, info.as_mut_ptr()) == 0 {
            return false;
        }
        let info = info.assume_init();
        if info.dli_fbase.addr() == this || info.dli_fname.is_null() {
            return false;
        }
        let object = objects::at(info.dli_fbase);
        let soname = object.and_then(objects::Object::soname);
        // Wheels of PyPI have it under a longer name.
        [Some(CStr::from_ptr(info.dli_fname)), soname]
            .into_iter()
            .flatten()
            .map(objects::file_name)
            .any(|name| name.starts_with(b"libibverbs") || name.starts_with(b"librdmacm"))
    }
}

/// The C library's `dlsym(3)`, as called from here.
///
/// # Safety
/// `handle` is one of the C library's.
pub unsafe fn real(handle: *mut c_void, symbol: &CStr) -> *mut c_void {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let nothing: Plain = no_plain;
    let nothing = nothing as *mut c_void;
    let real = found(&REAL, || objects::in_c_library(c"dlsym"), nothing);
    // SAFETY: the C library's function of that name, or the one in its place, has this type; the caller's promise.
    unsafe { std::mem::transmute::<*mut c_void, Plain>(real)(handle, symbol.as_ptr()) }
}

#[inline]
fn set_next(known: &AtomicPtr<c_void>, name: &CStr, nothing: *mut c_void) {
    found(known, || objects::next(name), nothing);
}

/// What is known, or is found now, or does nothing.
#[inline]
fn found(
    known: &AtomicPtr<c_void>,
    find: impl Fn() -> Option<*mut c_void>,
    nothing: *mut c_void,
) -> *mut c_void {
    let mut found = known.load(Ordering::Relaxed);
    if found.is_null() {
        found = find().unwrap_or(nothing);
        known.store(found, Ordering::Relaxed);
    }
    found
}

/// Whether the name may be one of libibverbs or of librdmacm.
fn may_be_ours(symbol: &CStr) -> bool {
    let name = symbol.to_bytes();
    let prefixes: [&[u8]; 5] = [b"ibv_", b"_ibv_", b"mult_to_ibv", b"mbps_to_ibv", b"rdma_"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
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
            let found = objects::in_c_library(name);
            assert!(found.is_some_and(|found| !found.is_null()), "{name:?}");
            // This test stands before the C library.
            assert_eq!(objects::next(name), found);
        }
        assert_eq!(objects::in_c_library(c"airdma_no_such_function"), None);
        assert_eq!(objects::next(c"airdma_no_such_function"), None);
    }
}
