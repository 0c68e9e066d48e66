//! Calls of the program that wait for descriptors: `poll(2)`, `select(2)`, `epoll_wait(2)` and
//! their like.
//!
//! The kernel answers them. While there are lanes, a call that finds nothing takes the
//! [turn](crate::turn) and sleeps on the devices as well as on its own descriptors. What a lane
//! brings opens the gate of its descriptor, so the kernel's answer, to the same question without
//! time to wait, is the right one.
//!
//! The sleep is a cancellation point (`pthread_cancel(3)`), from which the C library unwinds the
//! stack. So it lies in [`answer`], where no Rust value has a destructor, and what a call needs in
//! between is a value of the thread.

use std::cell::RefCell;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use airdma_preload::errno;
use libc::{pollfd, sigset_t, timespec};

use crate::entry::guard;
use crate::inside::is_inside;
use crate::next;
use crate::turn::{self, Turn};

pub mod questions;

/// A call that waits. It has no destructor.
pub trait Question: Copy {
    /// The call itself.
    ///
    /// # Safety
    /// The program's arguments are what the man page demands; so below.
    unsafe fn ask_kernel(&self) -> c_int;
    /// The call with no time to wait: what it finds, 0 for nothing, -1 for an error.
    unsafe fn ask_now(&self) -> c_int;
    /// As [`Question::ask_now`], before anything has happened.
    unsafe fn ask_first(&self) -> c_int {
        // SAFETY: as below.
        unsafe { self.ask_now() }
    }
    /// Whether this thread runs the devices for the call, from now on or no longer.
    fn set_turn(&self, _has_turn: bool) {}
    /// Adds the descriptors that it waits for.
    unsafe fn descriptors(&self, to: &mut Vec<pollfd>);
    /// How long it waits, if not for ever.
    ///
    /// # Errors
    /// It is the kernel's alone: what it would not take, or too much to repeat.
    unsafe fn limit(&self) -> Result<Option<Duration>, Refused>;
    /// Signals that are blocked while it waits; null if it does not say so.
    fn mask(&self) -> *const sigset_t;
    /// What is left of its time, when it ends.
    unsafe fn tell_left(&self, _left: Duration) {}
    /// Undoes what [`Question::ask_now`] has overwritten without finding anything.
    unsafe fn restore(&self) {}
    /// Whether `poll(2)` of its descriptors finds nothing that it does not ask for.
    fn is_exact(&self) -> bool {
        true
    }
}

/// A call that is the kernel's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// What comes next in a call.
#[derive(Clone, Copy)]
enum Next {
    Done(c_int),
    Kernel,
    Sleep(*mut pollfd, libc::nfds_t, Option<timespec>, *const sigset_t),
}

/// The state of a call between its sleeps.
struct Waiting {
    turn: Turn,
    /// Those of the call, then those of the devices.
    descriptors: Vec<pollfd>,
    own: usize,
    until: Option<Instant>,
}

thread_local! {
    static WAITING: RefCell<Option<Waiting>> = const { RefCell::new(None) };
}

/// Answers a call.
///
/// # Safety
/// As [`Question::ask_kernel`].
pub unsafe fn answer(question: impl Question) -> c_int {
    // A handler of a signal may wait, too.
    if !turn::has_lanes() || is_inside() {
        // SAFETY: the caller's promise.
        return unsafe { question.ask_kernel() };
    }
    let mut slept = None;
    loop {
        // SAFETY: the caller's promise.
        match guard(Next::Done(-1), || unsafe { step(&question, slept) }) {
            Next::Done(count) => return count,
            // SAFETY: the caller's promise.
            Next::Kernel => return unsafe { question.ask_kernel() },
            Next::Sleep(descriptors, count, limit, mask) => {
                let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                // SAFETY: the thread's state, which stays until the next step.
                slept = Some(unsafe { next::ppoll(descriptors, count, limit, mask) });
            }
        }
    }
}

/// One step of a call; `slept`: what `ppoll(2)` said since the last.
unsafe fn step(question: &impl Question, slept: Option<c_int>) -> Next {
    let error = errno::current();
    let done = WAITING.try_with(|place| {
        let mut place = place.try_borrow_mut().ok()?;
        let next = match slept {
            None => {
                // What a cancelled call left.
                *place = None;
                // SAFETY: the caller's promise.
                match unsafe { begin(question) } {
                    // SAFETY: as above.
                    Ok(waiting) => unsafe { place.insert(waiting).step(question) },
                    Err(next) => next,
                }
            }
            // SAFETY: as above.
            Some(slept) => unsafe { place.as_mut()?.woke(question, slept, error) },
        };
        if !matches!(next, Next::Sleep(..)) && place.take().is_some() {
            question.set_turn(false);
        }
        Some(next)
    });
    if let Ok(Some(Next::Done(0..) | Next::Sleep(..))) = done {
        errno::set(error);
    }
    // A thread that ends.
    done.ok().flatten().unwrap_or(Next::Kernel)
}

/// The first step: what the kernel has comes first.
unsafe fn begin(question: &impl Question) -> Result<Waiting, Next> {
    turn::flush();
    // SAFETY: the caller's promise.
    let Ok(limit) = (unsafe { question.limit() }) else {
        return Err(Next::Kernel);
    };
    // SAFETY: as above.
    let found = unsafe { question.ask_first() };
    if found != 0 {
        return Err(Next::Done(found));
    }
    let Some(turn) = Turn::take() else {
        // SAFETY: as above.
        unsafe { question.restore() };
        return Err(Next::Kernel);
    };
    question.set_turn(true);
    Ok(Waiting {
        turn,
        descriptors: Vec::new(),
        own: 0,
        until: limit.and_then(|limit| Instant::now().checked_add(limit)),
    })
}

impl Waiting {
    /// Runs the devices until there is an answer, or nothing to do.
    unsafe fn step(&mut self, question: &impl Question) -> Next {
        let left = loop {
            let woken = self.turn.run();
            let left = self.left();
            let is_over = left == Some(Duration::ZERO);
            if woken || is_over {
                // SAFETY: the caller's promise.
                let found = unsafe { question.ask_now() };
                if found != 0 || is_over {
                    // SAFETY: as above.
                    unsafe { question.tell_left(left.unwrap_or_default()) };
                    return Next::Done(found);
                }
            }
            if !woken {
                break left;
            }
        };
        self.descriptors.clear();
        // SAFETY: as above.
        unsafe { question.descriptors(&mut self.descriptors) };
        self.own = self.descriptors.len();
        let due = self.turn.descriptors(&mut self.descriptors);
        let limit = [left, due].into_iter().flatten().min();
        let mask = question.mask();
        let mask = if mask.is_null() {
            self.turn.mask()
        } else {
            mask
        };
        let count = self.descriptors.len() as libc::nfds_t;
        let descriptors = self.descriptors.as_mut_ptr();
        Next::Sleep(descriptors, count, limit.map(timespec_of), mask)
    }

    unsafe fn woke(&mut self, question: &impl Question, slept: c_int, error: c_int) -> Next {
        let (own, of_devices) = self.descriptors.split_at(self.own);
        self.turn.woke(of_devices);
        let is_ready = |entry: &pollfd| entry.revents != 0;
        if slept < 0 {
            // SAFETY: the caller's promise.
            unsafe {
                question.restore();
                question.tell_left(self.left().unwrap_or_default());
            }
            errno::set(error);
            return Next::Done(-1);
        }
        if own.iter().any(is_ready) {
            // SAFETY: as above.
            let found = unsafe { question.ask_now() };
            if found != 0 {
                // SAFETY: as above.
                unsafe { question.tell_left(self.left().unwrap_or_default()) };
                return Next::Done(found);
            }
            if !question.is_exact() {
                // SAFETY: as above.
                unsafe {
                    question.restore();
                    question.tell_left(self.left().unwrap_or_default());
                }
                return Next::Kernel;
            }
        }
        // SAFETY: as above.
        unsafe { self.step(question) }
    }

    fn left(&self) -> Option<Duration> {
        self.until
            .map(|until| until.saturating_duration_since(Instant::now()))
    }
}

/// A duration for the kernel.
pub fn timespec_of(time: Duration) -> timespec {
    timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}
