//! Verbs of a newer libibverbs that this library does not have.
//!
//! Preloaded, this library stands in front of the host's libibverbs, whose function runs where it
//! has none of that name. Such a function calls a provider through the table that the private
//! pointer of the `verbs_context` leads to (`struct verbs_ex_private` of rdma-core: a bitmap, two
//! words, then only pointers to functions; their order and number differ between releases). So
//! every word of that table is a function here, which reports the name of the verb and answers that
//! it is not supported.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::errno::Errno;
use crate::{abi, trace};

/// Words of the table. rdma-core 65 uses about 90.
const WORDS_MAX: usize = 1024;

/// Verbs that are named once each; beyond that many, each time.
const NAMED_MAX: usize = 256;

/// The table that the private pointer of each `verbs_context` leads to.
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

/// `caller`: the instruction after the call, of the verb in libibverbs or of the program to the
/// verb.
unsafe extern "C" fn refuse(caller: *const u8) -> usize {
    // SAFETY: the call that led here was just carried out.
    let name = unsafe { verb_of(caller) };
    let (name, answer) = if let Some(name) = name {
        let answer = answer_of(&name);
        (name, answer)
    } else {
        let looked_up = LOOKED_UP.lock().unwrap_or_else(PoisonError::into_inner);
        (one_of(&looked_up), common_answer(&looked_up))
    };
    tell(&name);
    Errno::UNSUPPORTED.set();
    answer
}

/// Verbs that the program has looked up (`dlsym(3)`), and that are rdma-core's alone: which of them
/// it calls through its pointer is not to be seen.
static LOOKED_UP: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The program gets rdma-core's function of that name.
#[cfg_attr(
    any(feature = "rlib", not(target_arch = "x86_64")),
    allow(dead_code, reason = "only the preload has a `dlsym`")
)]
pub fn handed_out(name: &CStr) {
    let Ok(name) = name.to_str() else { return };
    if name.starts_with("rdma_") {
        once(name, || {
            format!(
                "{name} is not in airdma {}, which has the functions of rdma-core 65: the host's librdmacm does not know airdma's \
                 identifiers, and the program may fail where it calls that; a newer airdma may have it",
                env!("CARGO_PKG_VERSION")
            )
        });
        return;
    }
    let mut looked_up = LOOKED_UP.lock().unwrap_or_else(PoisonError::into_inner);
    if looked_up.len() < NAMED_MAX && !looked_up.iter().any(|one| one == name) {
        looked_up.push(name.to_owned());
    }
}

/// The text for a verb whose name is not known.
fn one_of(looked_up: &[String]) -> String {
    match looked_up {
        [] => "a function of libibverbs".to_owned(),
        [name] => name.clone(),
        names => format!("one of {}", names.join(", ")),
    }
}

/// The common answer of all of them, or an error number.
fn common_answer(looked_up: &[String]) -> usize {
    let mut answers = looked_up.iter().map(|name| answer_of(name));
    let first = answers.next().unwrap_or(Errno::UNSUPPORTED.0 as usize);
    if answers.all(|answer| answer == first) {
        first
    } else {
        Errno::UNSUPPORTED.0 as usize
    }
}

/// Once for each verb.
fn tell(name: &str) {
    once(name, || {
        format!(
            "{name} is not in airdma {}, which has the verbs of rdma-core 65: it answers \"Operation not supported\"; \
             a newer airdma may have it",
            env!("CARGO_PKG_VERSION")
        )
    });
}

fn once(name: &str, text: impl FnOnce() -> String) {
    static NAMED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    if named.iter().any(|one| one == name) {
        return;
    }
    if named.len() < NAMED_MAX {
        named.push(name.to_owned());
    }
    drop(named);
    trace::warn(&text());
}

/// The failure of a verb: one that makes an object returns NULL, one that returns a descriptor -1,
/// both beside `errno`; the others return an error number.
fn answer_of(name: &str) -> usize {
    if name.ends_with("_fd") {
        usize::MAX
    } else if returns_pointer(name) {
        0
    } else {
        Errno::UNSUPPORTED.0 as usize
    }
}

fn returns_pointer(name: &str) -> bool {
    let makes = ["create_", "alloc_", "open_", "import_", "reg_"];
    let verb = name.trim_start_matches('_').strip_prefix("ibv_");
    verb.is_some_and(|verb| makes.iter().any(|make| verb.starts_with(make)))
}

/// The verb that was called. Most verbs jump to the provider's function, so that what is on the
/// stack is the program's call of the verb, the target of which is decoded; others call it, and are
/// what is on the stack.
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

/// The target of the call before `after`: `call rel32`, to a function or to an entry of the
/// procedure linkage table, or `call *rel32(%rip)`. Where the call was another one these bytes may
/// mean anything: what they lead to is read only where a file is loaded.
///
/// # Safety
/// `after` is the address behind a call that was carried out.
unsafe fn called_before(after: *const u8) -> Option<*const c_void> {
    const LONGEST: usize = 6;
    if !cfg!(target_arch = "x86_64") || !is_loaded(after.wrapping_sub(LONGEST), LONGEST) {
        return None;
    }
    // SAFETY: code and tables of a loaded file are readable.
    unsafe {
        let relative = |end: *const u8| {
            let offset = end.wrapping_sub(4).cast::<i32>().read_unaligned();
            end.wrapping_offset(offset as isize)
        };
        if after.wrapping_sub(5).read() == CALL {
            let target = relative(after);
            if !is_loaded(target, ENTRY_LEN) {
                return None;
            }
            let entry: [u8; ENTRY_LEN] = target.cast::<[u8; ENTRY_LEN]>().read_unaligned();
            // `endbr64`, `bnd`: both may stand before the jump.
            let code = entry.strip_prefix(&ENDBR64).unwrap_or(&entry);
            let code = code.strip_prefix(&[BND]).unwrap_or(code);
            if !code.starts_with(&JUMP_THROUGH) {
                return Some(target.cast());
            }
            let jump = target.wrapping_add(entry.len() - code.len());
            return read_slot(relative(jump.wrapping_add(LONGEST)));
        }
        let code = after.wrapping_sub(LONGEST).cast::<[u8; 2]>();
        if code.read_unaligned() == CALL_THROUGH {
            read_slot(relative(after))
        } else {
            None
        }
    }
}

/// The address in a slot of a loaded file.
fn read_slot(slot: *const u8) -> Option<*const c_void> {
    // SAFETY: tables of a loaded file are readable.
    is_loaded(slot, size_of::<*const c_void>())
        .then(|| unsafe { slot.cast::<*const c_void>().read_unaligned() })
}

/// Whether the bytes from `start` on lie in a loaded file.
fn is_loaded(start: *const u8, length: usize) -> bool {
    [start, start.wrapping_add(length - 1)].iter().all(|at| {
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: any address may be asked about.
        unsafe { libc::dladdr(at.cast(), info.as_mut_ptr()) != 0 }
    })
}

/// `endbr64`, `bnd`, and the jump.
const ENTRY_LEN: usize = 11;

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
    fn each_kind_of_verb_fails_as_its_man_page_says() {
        let unsupported = libc::EOPNOTSUPP as usize;
        assert_eq!(answer_of("ibv_future_export_fd"), usize::MAX);
        assert_eq!(answer_of("ibv_create_future"), 0);
        assert_eq!(answer_of("ibv_query_future"), unsupported);
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(common_answer(&names(&["ibv_reg_a", "ibv_alloc_b"])), 0);
        assert_eq!(
            common_answer(&names(&["ibv_reg_a", "ibv_query_b"])),
            unsupported
        );
        assert_eq!(common_answer(&[]), unsupported);
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
