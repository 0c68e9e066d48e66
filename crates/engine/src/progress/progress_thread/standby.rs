//! Threads blocked on a completion channel run the worker.
//!
//! The progress thread stands by until the last of them leaves, or until packets wait and none of
//! them is scheduled: a starved machine may run a thread half a second late.
//!
//! A program that waits for each of many events leaves and comes back as often, so while there are
//! rounds nothing is told to the progress thread: it looks now and then whether any thread waits,
//! or has waited since the last look. A leaving thread wakes it only from the sleep after a time
//! without rounds.

use crate::progress::eventfd::EventFd;
use crate::progress::worker_lock::WorkerLock;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

pub(crate) struct Standby {
    /// Blocked threads.
    waiters: AtomicU32,
    /// Whether the progress thread sleeps until there is work, or no thread is blocked.
    asleep: AtomicBool,
    /// Rounds that the blocked threads ran.
    rounds: AtomicU64,
}

/// Actions of the progress thread while it stands by. The first three return whether it was called,
/// which ends the standby.
pub(crate) trait Watch {
    /// Gives the waiters the time that they need to handle events; returns early, and true, if
    /// there are none any more. One that left a moment ago is about to come back.
    fn give_time(&mut self) -> bool;
    /// Sleeps until there is work.
    fn sleep(&mut self) -> bool;
    /// Runs the worker, if no other thread does.
    fn run(&mut self) -> bool;
    /// Whether packets wait, or a timer is due.
    fn has_work(&mut self) -> bool;
    /// A count that rises while threads other than waiters run the worker.
    fn rounds_of_others(&self) -> u64;
}

impl Standby {
    pub(crate) fn new() -> Self {
        Standby {
            waiters: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
        }
    }

    /// A thread starts to run the worker, until it leaves.
    pub(crate) fn enter(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a round. If the progress thread reads it too late, it runs the worker once more than
    /// necessary.
    pub(crate) fn note_round(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread leaves: the others, or the progress thread, which `helper` wakes, continue.
    pub(crate) fn leave<W>(&self, worker_lock: &WorkerLock<W>, progress_thread: &EventFd) {
        let is_last = self.waiters.fetch_sub(1, Ordering::Relaxed) == 1;
        // The wake-up may have been meant for all sleepers: the others check for work themselves.
        // The progress thread may be one of them. The fence in here pairs with the one in `sleep`,
        // too.
        if worker_lock.has_sleepers() {
            worker_lock.wake_sleepers();
        }
        if is_last && self.asleep.load(Ordering::Relaxed) {
            progress_thread.signal();
        }
    }

    /// Whether threads are blocked.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Stands by until called, or until no thread is blocked.
    pub(crate) fn stand_by<W>(&self, worker_lock: &WorkerLock<W>, watch: &mut impl Watch) {
        if !self.has_waiters() {
            return;
        }
        // The wake-up of the progress thread may have been meant for them.
        if worker_lock.has_sleepers() {
            worker_lock.wake_sleepers();
        }
        self.watch_over(watch);
    }

    fn watch_over(&self, watch: &mut impl Watch) {
        'standby: loop {
            let seen = self.rounds(watch);
            if watch.give_time() {
                return;
            }
            let mut runs = false;
            while self.rounds(watch) == seen {
                let (called, goes_on) = if watch.has_work() {
                    // They had their time.
                    runs = true;
                    (watch.run(), true)
                } else {
                    (self.sleep(watch), runs)
                };
                if called && !self.has_waiters() {
                    continue 'standby;
                }
                if called {
                    return;
                }
                if !goes_on {
                    break;
                }
            }
        }
    }

    /// Sleeps until there is work, unless the last of the threads has left.
    fn sleep(&self, watch: &mut impl Watch) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence of `leave`: a leaving thread sees the flag, or is seen here.
        fence(Ordering::SeqCst);
        let called = !self.has_waiters() || watch.sleep();
        self.asleep.store(false, Ordering::Relaxed);
        called
    }

    /// Rounds of the blocked threads so far.
    pub(crate) fn rounds_of_waiters(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    fn rounds(&self, watch: &impl Watch) -> u64 {
        let rounds = self.rounds_of_waiters();
        rounds.wrapping_add(watch.rounds_of_others())
    }
}
