//! Calls that block until an event, in threads that may be cancelled while they sleep: programs
//! fetch events in a thread of their own. [`airdma_preload::blocking`] says how; the C functions
//! are in [`crate::entry::blocking`].

use std::cell::RefCell;
use std::ffi::c_int;

use airdma_engine::{AsyncWait, ChannelWait, CmWait, EventWait};
use airdma_preload::blocking::{self, Sleep};

use crate::errno::{Answer, Errno};

/// The event that a thread waits for.
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

/// One attempt of a call that blocks, whose answer is 0 or -1.
pub type Attempt = blocking::Attempt<c_int>;

impl Answer for Attempt {
    type C = Attempt;

    fn panicked() -> Self {
        blocking::forget(&WAIT);
        Attempt::Done(Result::<c_int, Errno>::panicked().into_c())
    }

    fn into_c(self) -> Attempt {
        self
    }
}

/// One attempt to get a usable event: `used` returns whether it has used the event.
/// `slept` is what `ppoll(2)` returned, and `None` at first.
pub fn attempt<W: EventWait>(
    slept: Option<c_int>,
    new: impl FnOnce() -> Result<Wait, Errno>,
    of: impl FnOnce(&mut Wait) -> Option<&mut W>,
    mut used: impl FnMut(W::Event) -> bool,
) -> Attempt {
    let attempted = blocking::attempt(&WAIT, slept, new, |wait, ready| {
        let wait = of(wait).ok_or(Errno::INVALID)?;
        if let Some(ready) = ready {
            wait.woke(ready)?;
        }
        while let Some(event) = wait.step()? {
            if used(event) {
                return Ok(None);
            }
        }
        let (descriptors, timeout) = wait.descriptors();
        Ok(Some(Sleep {
            descriptors: descriptors.as_mut_ptr(),
            count: descriptors.len() as libc::nfds_t,
            timeout,
        }))
    });
    match attempted {
        Ok(Some(sleep)) => Attempt::Sleep(sleep),
        Ok(None) => Attempt::Done(0),
        Err(errno) => Attempt::Done(Err::<c_int, Errno>(errno).into_c()),
    }
}
