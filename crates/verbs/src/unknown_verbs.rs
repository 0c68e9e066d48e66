//! Verbs that a newer libibverbs has and this library has not.
//!
//! Preloaded, this library stands in front of the host's libibverbs, whose function runs where it has none of that name. Such a
//! function calls a provider through the table that the private pointer of the `verbs_context` leads to (`struct verbs_ex_private`
//! of rdma-core: a bitmap, two words, then only pointers to functions; their order and number differ between releases). So every word
//! of what that pointer leads to is a function here, which says the name of the verb and answers that it is not supported.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::errno::Errno;
use crate::{abi, trace};

/// Words of the table. rdma-core 65 uses about 90.
const WORDS_MAX: usize = 1024;

/// Verbs that are named once each; beyond that many, each time.
const NAMED_MAX: usize = 256;

/// What the private pointer of each `verbs_context` is.
pub fn table() -> *mut abi::verbs_ex_private {
    static TABLE: OnceLock<Box<[usize]>> = OnceLock::new();
    let entry: unsafe extern "C" fn() -> usize = unknown_verb;
    let table = TABLE.get_or_init(|| vec![entry as usize; WORDS_MAX].into_boxed_slice());
    table.as_ptr().cast_mut().cast()
}

/// Answers for a verb; where it was called from is on the stack.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn unknown_verb() -> usize {
    std::arch::naked_asm!(
        "endbr64",
        "mov rdi, [rsp]",
        "jmp {refuse}",
        refuse = sym refuse,
    )
}

/// Answers for a verb, whose name is not known here.
#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" fn unknown_verb() -> usize {
    // SAFETY: NULL is nowhere.
    unsafe { refuse(std::ptr::null()) }
}

/// `caller`: the instruction after the call, of the verb in libibverbs or of the program to the verb.
unsafe extern "C" fn refuse(caller: *const u8) -> usize {
    // SAFETY: the call that led here was just carried out.
    let name = unsafe { verb_of(caller) };
    tell(name.as_deref());
    Errno::UNSUPPORTED.set();
    if name.is_some_and(|name| returns_pointer(&name)) {
        0
    } else {
        Errno::UNSUPPORTED.0 as usize
    }
}

/// Once for each verb.
fn tell(name: Option<&str>) {
    static NAMED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let name = name.unwrap_or("a function of libibverbs");
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    if named.iter().any(|one| one == name) {
        return;
    }
    if named.len() < NAMED_MAX {
        named.push(name.to_owned());
    }
    drop(named);
    trace::complain(&format!(
        "{name} is not in airdma {}, which has the verbs of rdma-core 65: it answers \"Operation not supported\"; \
         a newer airdma may have it",
        env!("CARGO_PKG_VERSION")
    ));
}

/// Verbs that make something return it, or NULL and `errno`; the others an error number.
fn returns_pointer(name: &str) -> bool {
    let makes = ["create_", "alloc_", "open_", "import_", "reg_"];
    let verb = name.trim_start_matches('_').strip_prefix("ibv_");
    verb.is_some_and(|verb| makes.iter().any(|make| verb.starts_with(make)))
}

/// The verb that was called. Most verbs jump to the provider's function, so that what is on the stack is the program's call of the verb,
/// the target of which is decoded; others call it, and are what is on the stack.
unsafe fn verb_of(caller: *const u8) -> Option<String> {
    if caller.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let called = unsafe { called_before(caller) };
    [called, Some(caller.cast())]
        .into_iter()
        .flatten()
        .find_map(verb_at)
}

/// The name of the verb that an address lies in.
fn verb_at(address: *const c_void) -> Option<String> {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked about; the struct is filled when the answer is not 0.
    let name = unsafe {
        if libc::dladdr(address, info.as_mut_ptr()) == 0 || (*info.as_ptr()).dli_sname.is_null() {
            return None;
        }
        CStr::from_ptr((*info.as_ptr()).dli_sname)
    };
    let name = name.to_str().ok()?;
    (name.starts_with("ibv_") || name.starts_with("_ibv_")).then(|| name.to_owned())
}

/// What the call before `after` called: `call rel32`, to a function or to an entry of the procedure linkage table, or
/// `call *rel32(%rip)`.
///
/// # Safety
/// The call was carried out, so that what it read can be read.
unsafe fn called_before(after: *const u8) -> Option<*const c_void> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    // SAFETY: code is readable; one instruction lies before its successor, and an entry of the table has sixteen bytes.
    unsafe {
        let relative = |end: *const u8| {
            let offset = end.wrapping_sub(4).cast::<i32>().read_unaligned();
            end.wrapping_offset(offset as isize)
        };
        if after.wrapping_sub(5).read() == CALL {
            let target = relative(after);
            let entry: [u8; 11] = target.cast::<[u8; 11]>().read_unaligned();
            // `endbr64`, `bnd`: both may stand before the jump.
            let code = entry.strip_prefix(&ENDBR64).unwrap_or(&entry);
            let code = code.strip_prefix(&[BND]).unwrap_or(code);
            if !code.starts_with(&JUMP_THROUGH) {
                return Some(target.cast());
            }
            let jump = target.wrapping_add(entry.len() - code.len());
            let slot = relative(jump.wrapping_add(6));
            return Some(slot.cast::<*const c_void>().read_unaligned());
        }
        let code: [u8; 2] = after.wrapping_sub(6).cast::<[u8; 2]>().read_unaligned();
        (code == CALL_THROUGH).then(|| relative(after).cast::<*const c_void>().read_unaligned())
    }
}

const CALL: u8 = 0xe8;
const CALL_THROUGH: [u8; 2] = [0xff, 0x15];
const JUMP_THROUGH: [u8; 2] = [0xff, 0x25];
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const BND: u8 = 0xf2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_that_make_something_return_pointers() {
        for name in [
            "ibv_create_cq",
            "_ibv_alloc_pd",
            "ibv_reg_mr",
            "ibv_import_dm",
        ] {
            assert!(returns_pointer(name), "{name}");
        }
        for name in [
            "ibv_query_port",
            "ibv_dealloc_pd",
            "ibv_created",
            "create_cq",
        ] {
            assert!(!returns_pointer(name), "{name}");
        }
    }

    #[test]
    fn every_word_of_the_table_refuses() {
        let table = table().cast::<unsafe extern "C" fn() -> usize>();
        // SAFETY: the table has that many functions, which take nothing.
        unsafe {
            for index in [0, 1, WORDS_MAX - 1] {
                let answer = (*table.add(index))();
                assert_eq!(answer, libc::EOPNOTSUPP as usize);
            }
        }
        assert_eq!(Errno::current(), Errno::UNSUPPORTED);
    }
}
