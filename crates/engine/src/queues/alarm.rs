//! Whether a completion queue owes its channel an event.
//!
//! The program arms the queue, and looks into it afterwards; the worker adds a completion, and
//! looks whether the queue is armed afterwards. With a SeqCst fence between on both sides, one of
//! them sees the other.
//!
//! Completions that are in the queue when it is armed raise no event if the program has not polled
//! since it fetched the last one: it arms first and polls then, as `ibv_get_cq_event(3)` says. A
//! program that has polled may wait without a further poll (UCX does): they raise the event at
//! once, as they do on hardware that learns with each arm how far the program has polled.
//!
//! A poll between the completion and the fetch does not count. `ib_send_lat -e` has one channel for
//! two queues, polls one of them after an event of the other, and takes one completion for each
//! event: with one event too many it would send before its turn, and find none at the end.

use crate::sync::{AtomicBool, AtomicU8, Ordering, fence};

pub(crate) struct Alarm {
    /// One of the values below.
    armed: AtomicU8,
    /// The program has polled since the last event was raised and fetched.
    polled: AtomicBool,
}

const NOT: u8 = 0;
const SOLICITED: u8 = 1;
const ANY: u8 = 2;

impl Alarm {
    pub(crate) fn new() -> Self {
        Alarm {
            armed: AtomicU8::new(NOT),
            polled: AtomicBool::new(false),
        }
    }

    /// Asks for an event at the next completion. Asking for any outlasts asking for solicited ones
    /// (IBTA 11.4.2.2). `holds_any` looks into the queue for a completion of that kind. Returns
    /// whether the event is due now: the caller raises it.
    pub(crate) fn arm(&self, solicited_only: bool, holds_any: impl FnOnce() -> bool) -> bool {
        let wanted = if solicited_only { SOLICITED } else { ANY };
        self.armed.fetch_max(wanted, Ordering::SeqCst);
        // Pairs with the fence in `completed`.
        fence(Ordering::SeqCst);
        self.polled.load(Ordering::Relaxed) && holds_any() && self.take()
    }

    /// Whether the program waits for an event, or will without a further poll.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != NOT
    }

    /// The program polls.
    #[inline]
    pub(crate) fn note_poll(&self) {
        // Mostly it is set already, and this cache line is the worker's as well.
        if !self.polled.load(Ordering::Relaxed) {
            self.polled.store(true, Ordering::Relaxed);
        }
    }

    /// A completion was added before this call. Returns whether an event is due: the caller raises
    /// it.
    #[inline]
    pub(crate) fn completed(&self, solicited: bool) -> bool {
        // Pairs with the fence in `arm`.
        fence(Ordering::SeqCst);
        let armed = self.armed.load(Ordering::Relaxed);
        (armed == ANY || (armed == SOLICITED && solicited)) && self.take()
    }

    /// Takes the right to raise the requested event, unless another thread has just done so.
    fn take(&self) -> bool {
        if self.armed.swap(NOT, Ordering::SeqCst) == NOT {
            return false;
        }
        // Before the event: a poll in answer to it is one after it.
        self.polled.store(false, Ordering::Relaxed);
        true
    }

    /// The program has fetched an event.
    pub(crate) fn fetched(&self) {
        self.polled.store(false, Ordering::Relaxed);
    }
}
