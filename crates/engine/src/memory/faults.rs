//! Registered memory that a program unmaps: a copy from or to there would end the program
//! (`SIGSEGV`). With a NIC, which has pinned the pages, the program would go on.
//!
//! Each copy says where it copies ([`Copying`]). A handler of `SIGSEGV` lends a missing page of it
//! to the copy, which then ends and takes the page back. What was written there is lost: with a NIC
//! it would be in pages that nothing has mapped. What was read there is void, so reads and atomics
//! are refused, as with on-demand regions. A copy without a fault has four instructions more.
//!
//! A page that the program itself maps there with `MAP_FIXED` while one is lent, which takes a
//! microsecond, is taken back in its place: the kernel has no call that unmaps a certain mapping.
//!
//! All other faults are the program's: its own handler is called, or the program ends as it would
//! have. Memory that is mapped but protected is the program's, too: its handler may permit the
//! access. A handler that the program sets up after its first registration replaces this one.

use super::Refused;
use libc::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Once, OnceLock};

/// Pages of one copy that can be lent: one bit each of [`State::lent`]. A copy is at most one
/// segmented send.
const PAGES_MAX: usize = u64::BITS as usize;

/// Where the worker that has this copies registered memory at this moment.
pub(super) struct Copying(&'static State);

/// It is never freed, since a handler may look at it at any time, but used again.
struct State {
    is_taken: AtomicBool,
    start: AtomicUsize,
    /// Not beyond `start` while nothing is copied.
    end: AtomicUsize,
    /// The pages from that of `start` on which were lent.
    lent: AtomicU64,
    next: *const State,
}

// SAFETY: the pointer is never written after the value is shared, and leads to a value that lives
// as long as the process.
unsafe impl Sync for State {}

/// All states.
static STATES: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());

impl Copying {
    /// Runs `copy`, which touches `length` bytes of registered memory at `at`.
    ///
    /// # Errors
    /// If some of them are not mapped: what it read is void, what it wrote there is lost.
    #[inline]
    pub(super) fn guard<R>(
        &self,
        at: *mut u8,
        length: usize,
        copy: impl FnOnce() -> R,
    ) -> Result<R, Refused> {
        let state = self.0;
        state.start.store(at.addr(), Ordering::Relaxed);
        state.end.store(at.addr() + length, Ordering::Relaxed);
        // The handler runs in this thread.
        compiler_fence(Ordering::SeqCst);
        let result = copy();
        compiler_fence(Ordering::SeqCst);
        state.end.store(0, Ordering::Relaxed);
        if state.lent.load(Ordering::Relaxed) != 0 {
            state.take_back();
            return Err(Refused);
        }
        Ok(result)
    }
}

impl Default for Copying {
    fn default() -> Self {
        let free = states().find(|state| !state.is_taken.swap(true, Ordering::SeqCst));
        Copying(free.unwrap_or_else(State::add))
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::SeqCst);
    }
}

impl State {
    fn add() -> &'static State {
        let state = Box::leak(Box::new(State {
            is_taken: AtomicBool::new(true),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lent: AtomicU64::new(0),
            next: ptr::null(),
        }));
        let mut first = STATES.load(Ordering::SeqCst);
        loop {
            state.next = first;
            let here = ptr::from_mut(state);
            match STATES.compare_exchange(first, here, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return state,
                Err(other) => first = other,
            }
        }
    }

    /// Maps the missing page of an address, if a copy touches it at this moment.
    fn lend(&self, at: usize) -> bool {
        let start = self.start.load(Ordering::Relaxed);
        if !(start..self.end.load(Ordering::Relaxed)).contains(&at) {
            return false;
        }
        let (page, first) = (page_of(at), page_of(start));
        let index = (page - first) / page_bytes();
        if index >= PAGES_MAX || !map(page) {
            return false;
        }
        self.lent.fetch_or(1 << index, Ordering::Relaxed);
        true
    }

    #[cold]
    #[inline(never)]
    fn take_back(&self) {
        let lent = self.lent.swap(0, Ordering::Relaxed);
        let first = page_of(self.start.load(Ordering::Relaxed));
        for index in (0..PAGES_MAX).filter(|index| lent & (1 << index) != 0) {
            let page = first + index * page_bytes();
            // SAFETY: a page that `map` has mapped where no other was.
            unsafe { libc::syscall(libc::SYS_munmap, page, page_bytes()) };
        }
    }
}

fn states() -> impl Iterator<Item = &'static State> {
    // SAFETY: states are never freed.
    let at = |state: *const State| unsafe { state.as_ref() };
    std::iter::successors(at(STATES.load(Ordering::SeqCst)), move |state| {
        at(state.next)
    })
}

/// Maps a page where none is. The system call itself: a program may have replaced the function.
fn map(page: usize) -> bool {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping; it replaces none.
    let at = unsafe { libc::syscall(libc::SYS_mmap, page, page_bytes(), rights, how, -1, 0) };
    if at as usize == page {
        return true;
    }
    if at > 0 {
        // SAFETY: just mapped elsewhere, by a kernel before 4.17, to which the address is a hint.
        unsafe { libc::syscall(libc::SYS_munmap, at, page_bytes()) };
    }
    false
}

fn page_of(at: usize) -> usize {
    at & !(page_bytes() - 1)
}

fn page_bytes() -> usize {
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    match BYTES.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: no arguments but a number; it may be called in a handler.
            let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            let bytes = usize::try_from(bytes).unwrap_or(4096);
            BYTES.store(bytes, Ordering::Relaxed);
            bytes
        }
        bytes => bytes,
    }
}

/// How the program handled faults before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Sets the handler up, once.
pub(crate) fn catch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut before = zeroed();
        // SAFETY: the call only asks, and fills `before`.
        if unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut before) } != 0 {
            return;
        }
        let before = BEFORE.get_or_init(|| before);
        let mut ours = zeroed();
        ours.sa_sigaction = on_fault as *const () as usize;
        ours.sa_mask = before.sa_mask;
        ours.sa_flags = libc::SA_SIGINFO | before.sa_flags & KEPT;
        if is_no_function(before) {
            ours.sa_flags |= libc::SA_ONSTACK;
        }
        stay_loaded();
        // SAFETY: `on_fault` is a handler of this form, and does what a handler may.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const ours, ptr::null_mut()) };
    });
}

/// The program's flags that say how a handler is called.
const KEPT: libc::c_int = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;

fn is_no_function(action: &libc::sigaction) -> bool {
    matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
}

/// The handler must not vanish with a library that the program unloads.
fn stay_loaded() {
    // SAFETY: zeroed is a valid Dl_info; the name that the call fills in lives as long as the
    // library, which is loaded. Without one, as in a program of Rust alone, nothing is done.
    unsafe {
        let mut library: libc::Dl_info = MaybeUninit::zeroed().assume_init();
        if libc::dladdr(on_fault as *const libc::c_void, &raw mut library) != 0 {
            let how = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            libc::dlopen(library.dli_fname, how);
        }
    }
}

/// An action: the default one.
fn zeroed() -> libc::sigaction {
    // SAFETY: numbers, a set of signals, and a pointer that may be null.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel, or the program's handler that calls this one, passes a valid structure.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // SAFETY: the thread's own `errno`, which the interrupted code must find as it was.
    let errno = unsafe { &mut *libc::__errno_location() };
    let found = *errno;
    if code == SEGV_MAPERR && states().any(|state| state.lend(at)) {
        *errno = found;
        return;
    }
    *errno = found;
    forward(signal, info, context);
}

/// `SEGV_MAPERR`: no memory is mapped at the address.
const SEGV_MAPERR: c_int = 1;

/// Lets the program handle a fault as if this handler were not there.
fn forward(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let action = BEFORE.get().copied().unwrap_or_else(zeroed);
    // SAFETY: as in `on_fault`.
    let is_sent = unsafe { (*info).si_code } <= 0;
    if is_sent && action.sa_sigaction == libc::SIG_IGN {
        return;
    }
    if is_no_function(&action) || action.sa_flags & libc::SA_RESETHAND != 0 {
        let default = zeroed();
        // SAFETY: the default action.
        unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
    }
    if is_no_function(&action) {
        // A fault comes again, and ends the program where it happened; a signal must be sent again.
        if is_sent {
            // SAFETY: no pointers.
            unsafe { libc::raise(signal) };
        }
        return;
    }
    // SAFETY: the program's own handler, which has this form by its flags.
    unsafe {
        if action.sa_flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(action.sa_sigaction);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(c_int) = std::mem::transmute(action.sa_sigaction);
            handler(signal);
        }
    }
}
