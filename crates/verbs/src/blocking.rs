//! Calls that block, of threads that may be cancelled in their sleep (`pthread_cancel(3)`), as those of programs are that fetch
//! events in a thread of their own.
//!
//! A cancellation is acted upon in `ppoll(2)`, and unwinds the stack from there: no Rust value may live on it. So the C function
//! ([`crate::entry::blocking`]) sleeps by itself, between attempts that return here what they wait for. That is kept as a value
//! of the thread, which the C library drops when the thread ends, cancelled or not.

use std::cell::RefCell;
use std::ffi::c_int;
use std::io;

use airdma_engine::{AsyncWait, ChannelWait, CmWait, EventWait};

use crate::errno::{Answer, Errno};

/// What a thread waits for.
pub enum Wait {
    /// An event of a completion channel.
    Channel(ChannelWait),
    /// An asynchronous event.
    Async(AsyncWait),
    /// An event of a connection.
    Connection(CmWait),
}

impl Wait {
    /// For a completion channel.
    pub fn channel(&mut self) -> Option<&mut ChannelWait> {
        match self {
            Wait::Channel(wait) => Some(wait),
            Wait::Async(_) | Wait::Connection(_) => None,
        }
    }

    /// For asynchronous events.
    pub fn asynchronous(&mut self) -> Option<&mut AsyncWait> {
        match self {
            Wait::Async(wait) => Some(wait),
            Wait::Channel(_) | Wait::Connection(_) => None,
        }
    }

    /// For events of connections.
    pub fn connection(&mut self) -> Option<&mut CmWait> {
        match self {
            Wait::Connection(wait) => Some(wait),
            Wait::Channel(_) | Wait::Async(_) => None,
        }
    }
}

thread_local! {
    static WAIT: RefCell<Option<Wait>> = const { RefCell::new(None) };
}

/// How an attempt ended.
#[derive(Clone, Copy)]
pub enum Attempt {
    /// With this answer.
    Done(c_int),
    /// There is nothing yet.
    Sleep(Bed),
}

/// The arguments of `ppoll(2)`. They stay what they are until the thread's next attempt.
#[derive(Clone, Copy)]
pub struct Bed {
    /// What to sleep on.
    pub descriptors: *mut libc::pollfd,
    /// How many.
    pub count: libc::nfds_t,
    /// For how long, if not for ever.
    pub timeout: Option<libc::timespec>,
}

impl Answer for Attempt {
    type C = Attempt;

    fn panicked() -> Self {
        forget();
        Attempt::Done(Result::<c_int, Errno>::panicked().into_c())
    }

    fn into_c(self) -> Attempt {
        self
    }
}

/// One attempt to get an event that is of use: `fetch` takes events from `step` and returns `true` once it has used one.
/// `slept` is what `ppoll(2)` returned, and `None` at first.
pub fn attempt<W: EventWait>(
    slept: Option<c_int>,
    new: impl FnOnce() -> Result<Wait, Errno>,
    of: impl FnOnce(&mut Wait) -> Option<&mut W>,
    mut used: impl FnMut(W::Event) -> bool,
) -> Attempt {
    // Before anything else touches it.
    let errno = io::Error::last_os_error();
    let result = WAIT.try_with(|place| -> Result<Option<Bed>, Errno> {
        let mut place = place.try_borrow_mut().map_err(|_| Errno::INVALID)?;
        if slept.is_none() {
            // What a cancelled call left is not ours.
            *place = None;
            *place = Some(new()?);
        }
        let wait = place.as_mut().and_then(of).ok_or(Errno::INVALID)?;
        if let Some(ready) = slept {
            wait.woke(usize::try_from(ready).map_err(|_| errno))?;
        }
        while let Some(event) = wait.step()? {
            if used(event) {
                return Ok(None);
            }
        }
        let (descriptors, timeout) = wait.bed();
        Ok(Some(Bed {
            descriptors: descriptors.as_mut_ptr(),
            count: descriptors.len() as libc::nfds_t,
            timeout,
        }))
    });
    match result {
        Ok(Ok(Some(bed))) => Attempt::Sleep(bed),
        Ok(Ok(None)) => {
            forget();
            Attempt::Done(0)
        }
        Ok(Err(errno)) => {
            forget();
            Attempt::Done(Err::<c_int, Errno>(errno).into_c())
        }
        // A destructor of a thread that is already gone calls.
        Err(_) => Attempt::Done(Err::<c_int, Errno>(Errno(libc::EIO)).into_c()),
    }
}

/// The thread waits for nothing any more.
fn forget() {
    // Dropped outside of the borrow: it wakes others.
    let wait = WAIT.try_with(|place| place.try_borrow_mut().ok().and_then(|mut wait| wait.take()));
    drop(wait);
}
