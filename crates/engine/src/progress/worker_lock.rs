//! The worker lock: which thread runs a device's worker, and how sleeping threads are woken.
//!
//! A thread that needs progress runs the worker if the lock is free: it polls a completion queue,
//! posts with nothing in flight, or waits on a completion channel. Otherwise the progress thread
//! ([`crate::progress::progress_thread`]) does.
//!
//! # Nothing is lost
//!
//! - A doorbell rung while the lock is held: every holder checks the doorbells after unlocking. The
//!   poster rings, fences (SeqCst), tries the lock; the holder unlocks, fences, checks: one sees
//!   the other. Only this type takes the lock.
//! - A doorbell rung while all threads sleep: a sleeper registers in `sleepers`, fences and checks
//!   again. A poster that does not run the worker has packets in flight, whose response or timer
//!   wakes a sleeper; for datagrams, it fences and finds no sleeper.
//! - A timer earlier than the sleepers expect: each round compares it with `sleep_until`.
//! - A wake-up taken by the wrong thread: sleepers share `wake`, and the first one up clears it. It
//!   sleeps again with the current state or, if it leaves, wakes the others
//!   ([`crate::progress::progress_thread::standby`]).
//!
//! Fences, not the flags' orderings, provide visibility; `tests/loom` runs every interleaving.

use crate::progress::eventfd::EventFd;
use crate::sync::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, fence, yield_now,
};
use std::os::fd::RawFd;
use std::sync::{PoisonError, TryLockError};

/// Most rounds that one caller runs before it continues with its own work.
const ROUNDS_MAX: usize = 8;

/// [`Left::unsent`]: no packets wait for room.
pub(crate) const NO_ROOM_WANTED: RawFd = -1;
/// [`Left::unsent`]: any descriptor.
pub(crate) const ROOM_ANYWHERE: RawFd = -2;
/// [`Left::due`]: no timer.
pub(crate) const NEVER: u64 = u64::MAX;

/// Work that a round left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// Time of the worker's next run: 0 for at once, or [`NEVER`].
    pub(crate) due: u64,
    /// Descriptor at which packets wait for room, [`NO_ROOM_WANTED`] or [`ROOM_ANYWHERE`].
    pub(crate) unsent: RawFd,
}

/// Actions on the worker of type `W`.
pub(crate) trait Rounds<W> {
    /// Runs one round.
    fn run(&mut self, worker: &mut W) -> Left;
    /// Applies its results that need no worker.
    fn settle(&mut self);
    /// Whether a doorbell was rung.
    fn is_rung(&self) -> bool;
    /// Whether the caller sleeps next: it knows what this round left, so no thread need be woken
    /// for that. Two such callers would otherwise wake each other again and again while a timer
    /// runs.
    fn sleeps_next(&self) -> bool;
}

pub(crate) struct WorkerLock<W> {
    worker: Mutex<W>,
    /// Set while the descriptors of a sleep change: no thread may sleep.
    changing: AtomicBool,
    /// Threads that sleep on the port's descriptors and `wake`.
    sleepers: AtomicU32,
    /// One of them wakes no later than this, in nanoseconds, or is awake and reads the current
    /// state before it sleeps.
    sleep_until: AtomicU64,
    /// [`Left::due`] and [`Left::unsent`] of the last round.
    next_due: AtomicU64,
    unsent: AtomicI32,
    /// Wakes the sleepers.
    wake: EventFd,
}

impl<W> WorkerLock<W> {
    pub(crate) fn new(worker: W, wake: EventFd) -> Self {
        WorkerLock {
            worker: Mutex::new(worker),
            changing: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            sleep_until: AtomicU64::new(NEVER),
            next_due: AtomicU64::new(NEVER),
            unsent: AtomicI32::new(NO_ROOM_WANTED),
            wake,
        }
    }

    /// The descriptor on which all sleepers sleep, among others.
    pub(crate) fn wake(&self) -> &EventFd {
        &self.wake
    }

    /// Time of the worker's next run, by the last round.
    pub(crate) fn due(&self) -> u64 {
        self.next_due.load(Ordering::SeqCst)
    }

    /// Descriptor at which packets wait for room, by the last round.
    pub(crate) fn unsent(&self) -> RawFd {
        self.unsent.load(Ordering::SeqCst)
    }

    /// Runs the worker until no doorbell is rung, if the lock is free. Its holder otherwise handles
    /// all that was done before this call.
    pub(crate) fn try_run(&self, rounds: &mut impl Rounds<W>) {
        for _ in 0..ROUNDS_MAX {
            // Pairs with the fence in `round` and `give_back` of the thread that holds the lock
            // now.
            fence(Ordering::SeqCst);
            let Some(worker) = self.try_lock() else {
                return;
            };
            self.round(worker, rounds);
            if !rounds.is_rung() {
                return;
            }
        }
        // Doorbells ring faster than this thread runs: another one must continue.
        self.wake_sleepers();
    }

    /// Waits for the lock, calls `call` on the worker, and runs a round.
    pub(crate) fn with<R>(&self, rounds: &mut impl Rounds<W>, call: impl FnOnce(&mut W) -> R) -> R {
        self.call(self.lock(), rounds, call)
    }

    /// As [`WorkerLock::with`], unless a thread holds the lock for as long as `pause` continues the
    /// wait.
    pub(crate) fn with_within<R>(
        &self,
        rounds: &mut impl Rounds<W>,
        mut pause: impl FnMut() -> bool,
        call: impl FnOnce(&mut W) -> R,
    ) -> Option<R> {
        loop {
            if let Some(worker) = self.try_lock() {
                return Some(self.call(worker, rounds, call));
            }
            if !pause() {
                return None;
            }
        }
    }

    /// As [`WorkerLock::with`], while no thread sleeps; waits for that for as long as `pause`
    /// continues the wait.
    pub(crate) fn while_none_sleeps<R>(
        &self,
        rounds: &mut impl Rounds<W>,
        mut pause: impl FnMut() -> bool,
        call: impl FnOnce(&mut W) -> R,
    ) -> R {
        let worker = self.lock();
        self.changing.store(true, Ordering::SeqCst);
        // Pairs with the fence in `fall_asleep`: a thread that falls asleep has seen the flag, or
        // is seen here.
        fence(Ordering::SeqCst);
        while self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake_sleepers();
            if !pause() {
                break;
            }
        }
        let changed = |worker: &mut W| {
            let result = call(worker);
            self.changing.store(false, Ordering::SeqCst);
            result
        };
        self.call(worker, rounds, changed)
    }

    /// Calls `call` on the worker, which must leave no work.
    pub(crate) fn visit<R>(
        &self,
        rounds: &mut impl Rounds<W>,
        call: impl FnOnce(&mut W) -> R,
    ) -> R {
        let mut worker = self.lock();
        let result = call(&mut worker);
        self.give_back(worker, rounds);
        result
    }

    /// As [`WorkerLock::visit`], if the lock is free.
    pub(crate) fn try_visit<R>(
        &self,
        rounds: &mut impl Rounds<W>,
        call: impl FnOnce(&mut W) -> R,
    ) -> Option<R> {
        let mut worker = self.try_lock()?;
        let result = call(&mut worker);
        self.give_back(worker, rounds);
        Some(result)
    }

    /// Reads the worker if the lock is free, in the child of a fork, where no other thread exists.
    pub(crate) fn peek(&self, call: impl FnOnce(&W)) {
        if let Some(worker) = self.try_lock() {
            call(&worker);
        }
    }

    fn call<R>(
        &self,
        mut worker: MutexGuard<'_, W>,
        rounds: &mut impl Rounds<W>,
        call: impl FnOnce(&mut W) -> R,
    ) -> R {
        let result = call(&mut worker);
        self.round(worker, rounds);
        if rounds.is_rung() {
            self.try_run(rounds);
        }
        result
    }

    /// Unlocks after a visit.
    fn give_back(&self, worker: MutexGuard<'_, W>, rounds: &mut impl Rounds<W>) {
        drop(worker);
        // A thread that rang meanwhile has found the lock taken, and left.
        fence(Ordering::SeqCst);
        if rounds.is_rung() {
            self.try_run(rounds);
        }
    }

    /// Runs one round, and publishes what it left to threads about to sleep. The caller checks the
    /// doorbells afterwards.
    fn round(&self, mut worker: MutexGuard<'_, W>, rounds: &mut impl Rounds<W>) {
        let left = rounds.run(&mut worker);
        self.next_due.store(left.due, Ordering::SeqCst);
        self.unsent.store(left.unsent, Ordering::SeqCst);
        drop(worker);
        rounds.settle();
        // Its fence stands between the unlocking and the check of the doorbells, too.
        if !self.has_sleepers() || rounds.sleeps_next() {
            return;
        }
        // Not this round's result, but the last one's, which may be another thread's by now.
        let due = self.next_due.load(Ordering::SeqCst);
        if left.unsent != NO_ROOM_WANTED || self.all_sleep_beyond(due) {
            self.wake_sleepers();
        }
    }

    /// Whether the threads that sleep, if any do, would sleep at this time.
    pub(crate) fn would_oversleep(&self, time: u64) -> bool {
        self.has_sleepers() && self.all_sleep_beyond(time)
    }

    fn all_sleep_beyond(&self, time: u64) -> bool {
        time < self.sleep_until.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, W> {
        // A panic in a round is a bug, and was reported; its state is still better than none.
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, W>> {
        match self.worker.try_lock() {
            Ok(worker) => Some(worker),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether a thread sleeps until there is work. If not, one about to sleep sees what was done
    /// before this call.
    pub(crate) fn has_sleepers(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleepers.load(Ordering::SeqCst) > 0
    }

    /// Makes the sleepers check for work. What they sleep on was changed before this call.
    pub(crate) fn wake_sleepers(&self) {
        self.wake.signal();
    }

    /// Sleeps until the returned time ([`NEVER`]: until woken), which is `at_most` or earlier,
    /// unless there is work: then `None`.
    /// After a time the caller collects the descriptors of the sleep, [`WorkerLock::wake`] among
    /// them, and must call [`WorkerLock::wake_up`] or [`WorkerLock::cancel_sleep`].
    pub(crate) fn fall_asleep(
        &self,
        is_rung: impl FnOnce() -> bool,
        now: impl FnOnce() -> u64,
        at_most: u64,
    ) -> Option<u64> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fences in `has_sleepers`: what was done before the registration is seen
        // here, and a thread that does something later sees the registration.
        fence(Ordering::SeqCst);
        let due = self.next_due.load(Ordering::SeqCst).min(at_most);
        self.sleep_until.fetch_min(due, Ordering::SeqCst);
        if is_rung() || due <= now() {
            self.cancel_sleep();
            return None;
        }
        if self.changing.load(Ordering::SeqCst) {
            self.cancel_sleep();
            yield_now();
            return None;
        }
        Some(due)
    }

    /// Ends a sleep; `called` tells whether [`WorkerLock::wake`] was ready.
    pub(crate) fn wake_up(&self, called: bool) {
        if called {
            self.wake.clear();
        }
        self.cancel_sleep();
    }

    /// A thread sleeps no more.
    pub(crate) fn cancel_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        // A late time is safe: it only wakes sleepers without need. An exchange costs as much as
        // this store, and loom knows its place among the others' `fetch_min`.
        self.sleep_until.swap(NEVER, Ordering::SeqCst);
    }
}
