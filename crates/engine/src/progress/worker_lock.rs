//! Who runs the worker of a device, and how those are woken who should.
//!
//! Whoever wants something of the device and finds the worker free runs it: a thread that polls a completion queue, one that
//! posts while nothing is under way, one that waits on a completion channel. The helper thread ([`crate::progress::progress_thread`]) does when
//! nobody else comes.
//!
//! # Nothing is lost
//!
//! - A doorbell rung while somebody else has the worker: whoever had it, for whatever reason, looks at the doorbells after it
//!   has unlocked. Ringing and looking for the lock on one side, unlocking and looking for doorbells on the other, with a
//!   SeqCst fence between on both: one of them sees the other. The lock is not to be had in any other way.
//! - A doorbell rung while everybody sleeps: a sleeper announces itself (`sleepers`), fences, and looks at the doorbells
//!   once more. A poster that does not run the worker itself knows that packets are under way, whose answer (or timer)
//!   wakes a sleeper; or, for datagrams, it fences and finds no sleeper.
//! - A timer set for earlier than the sleepers know: who ran the worker compares it with `sleep_until`.
//! - A wake that the wrong one took: all sleepers share it, and the first that is up clears it. Whoever was up goes to bed again
//!   knowing what there is to know; or wakes the others when it does not come back ([`crate::progress::standby`]).
//!
//! Fences, not orderings of the flags, decide who sees whom; `tests/loom` goes through all ways that this can go.

use crate::progress::eventfd::EventFd;
use crate::sync::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, fence, yield_now,
};
use std::os::fd::RawFd;
use std::sync::{PoisonError, TryLockError};

/// Rounds that one caller runs at most before it goes back to its own business.
const ROUNDS_MAX: usize = 8;

/// Of [`Left::unsent`]: no packets wait for room.
pub(crate) const NO_ROOM_WANTED: RawFd = -1;
/// They wait for it at any descriptor.
pub(crate) const ROOM_ANYWHERE: RawFd = -2;
/// Of [`Left::due`]: never by itself.
pub(crate) const NEVER: u64 = u64::MAX;

/// What a round left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// When the worker wants to be run again: 0 for at once, or [`NEVER`].
    pub(crate) due: u64,
    /// The descriptor at which packets wait for room, [`NO_ROOM_WANTED`] or [`ROOM_ANYWHERE`].
    pub(crate) unsent: RawFd,
}

/// What is done with the worker of type `W`.
pub(crate) trait Rounds<W> {
    /// Runs one round.
    fn run(&mut self, worker: &mut W) -> Left;
    /// Draws consequences of it that need no worker.
    fn settle(&mut self);
    /// Whether a doorbell was rung.
    fn is_rung(&self) -> bool;
    /// Whether the caller goes to bed next: it knows then what this round left, and nobody need be woken for that. Two who did
    /// so nevertheless would wake each other again and again while a timer runs.
    fn goes_to_bed(&self) -> bool;
}

pub(crate) struct Relay<W> {
    worker: Mutex<W>,
    /// What those sleep on is about to change: nobody may sleep.
    changing: AtomicBool,
    /// Threads that sleep on the port's descriptors and `wake`.
    sleepers: AtomicU32,
    /// One of them wakes by itself no later than this, in nanoseconds, or is up and will know better when it goes to bed.
    sleep_until: AtomicU64,
    /// [`Left::due`] and [`Left::unsent`] of the last round.
    next_due: AtomicU64,
    unsent: AtomicI32,
    /// Wakes the sleepers.
    wake: EventFd,
}

impl<W> Relay<W> {
    pub(crate) fn new(worker: W, wake: EventFd) -> Self {
        Relay {
            worker: Mutex::new(worker),
            changing: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            sleep_until: AtomicU64::new(NEVER),
            next_due: AtomicU64::new(NEVER),
            unsent: AtomicI32::new(NO_ROOM_WANTED),
            wake,
        }
    }

    /// What all sleepers sleep on, among others.
    pub(crate) fn wake(&self) -> &EventFd {
        &self.wake
    }

    /// When the worker wants to be run again by itself, as of the last round.
    pub(crate) fn due(&self) -> u64 {
        self.next_due.load(Ordering::SeqCst)
    }

    /// Where packets wait for room, as of the last round.
    pub(crate) fn unsent(&self) -> RawFd {
        self.unsent.load(Ordering::SeqCst)
    }

    /// Runs the worker until no doorbell is rung, if nobody has it. Whoever has it will see to what was done before this call.
    pub(crate) fn try_run(&self, rounds: &mut impl Rounds<W>) {
        for _ in 0..ROUNDS_MAX {
            // Pairs with the fence in `round` and `give_back` of the thread that has the worker now.
            fence(Ordering::SeqCst);
            let Some(worker) = self.try_lock() else {
                return;
            };
            self.round(worker, rounds);
            if !rounds.is_rung() {
                return;
            }
        }
        // Others ring faster than we run: somebody else has to go on.
        self.wake_sleepers();
    }

    /// Does something with the worker, whoever has it now, and draws the consequences at once.
    pub(crate) fn with<R>(&self, rounds: &mut impl Rounds<W>, call: impl FnOnce(&mut W) -> R) -> R {
        self.call(self.lock(), rounds, call)
    }

    /// As [`Relay::with`], unless somebody keeps the worker for as long as `pause` says to go on waiting.
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

    /// As [`Relay::with`], while nobody sleeps; at least, for as long as `pause` says to go on waiting for that.
    pub(crate) fn with_nobody_asleep<R>(
        &self,
        rounds: &mut impl Rounds<W>,
        mut pause: impl FnMut() -> bool,
        call: impl FnOnce(&mut W) -> R,
    ) -> R {
        let worker = self.lock();
        self.changing.store(true, Ordering::SeqCst);
        // Pairs with the fence in `fall_asleep`: who falls asleep has seen the flag, or is seen here.
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

    /// Looks at the worker, or does something with it that leaves nothing to do.
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

    /// As [`Relay::visit`], if nobody has the worker.
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

    /// Looks at the worker if nobody has it, in the child of a fork, where nobody else ever will.
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

    /// Gives the worker back that was only looked at.
    fn give_back(&self, worker: MutexGuard<'_, W>, rounds: &mut impl Rounds<W>) {
        drop(worker);
        // Who rang meanwhile has found the worker taken, and gone.
        fence(Ordering::SeqCst);
        if rounds.is_rung() {
            self.try_run(rounds);
        }
    }

    /// One round, and a note of what it left for those who are about to sleep. The caller looks at the doorbells afterwards.
    fn round(&self, mut worker: MutexGuard<'_, W>, rounds: &mut impl Rounds<W>) {
        let left = rounds.run(&mut worker);
        self.next_due.store(left.due, Ordering::SeqCst);
        self.unsent.store(left.unsent, Ordering::SeqCst);
        drop(worker);
        rounds.settle();
        // Its fence stands between the unlocking and the look at the doorbells, too.
        if !self.has_sleepers() || rounds.goes_to_bed() {
            return;
        }
        // Not what this round left, but the last one: it may be another thread's by now.
        let due = self.next_due.load(Ordering::SeqCst);
        if left.unsent != NO_ROOM_WANTED || due < self.sleep_until.load(Ordering::SeqCst) {
            self.wake_sleepers();
        }
    }

    fn lock(&self) -> MutexGuard<'_, W> {
        // A panic in a round is a bug of ours, and was reported; what it left is still better than none.
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, W>> {
        match self.worker.try_lock() {
            Ok(worker) => Some(worker),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether somebody sleeps until there is work. If not, whoever is about to will see what was done before this call.
    pub(crate) fn has_sleepers(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleepers.load(Ordering::SeqCst) > 0
    }

    /// Makes the sleepers look for themselves. What they sleep on was changed before this call.
    pub(crate) fn wake_sleepers(&self) {
        self.wake.signal();
    }

    /// Goes to bed until the time that is returned ([`NEVER`]: until woken), unless there is something to do: then `None`. Whoever
    /// gets a time looks now for what to sleep on, [`Relay::wake`] among it, and owes a [`Relay::wake_up`] or a
    /// [`Relay::leave_bed`].
    pub(crate) fn fall_asleep(
        &self,
        is_rung: impl FnOnce() -> bool,
        now: impl FnOnce() -> u64,
    ) -> Option<u64> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fences in `has_sleepers`: what was done before we announced ourselves is seen here, and who does
        // something later sees us.
        fence(Ordering::SeqCst);
        let due = self.next_due.load(Ordering::SeqCst);
        self.sleep_until.fetch_min(due, Ordering::SeqCst);
        if is_rung() || due <= now() {
            self.leave_bed();
            return None;
        }
        if self.changing.load(Ordering::SeqCst) {
            self.leave_bed();
            yield_now();
            return None;
        }
        Some(due)
    }

    /// A sleep is over; `called` says whether [`Relay::wake`] was ready.
    pub(crate) fn wake_up(&self, called: bool) {
        if called {
            self.wake.clear();
        }
        self.leave_bed();
    }

    /// A thread sleeps no more.
    pub(crate) fn leave_bed(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        // Later than it is true is safe: it only makes sleepers wake who need not wake.
        // An exchange costs what this store costs, and loom knows where it stands among the others' `fetch_min`.
        self.sleep_until.swap(NEVER, Ordering::SeqCst);
    }
}
