//! The progress thread: makes a device progress when the application does not.
//!
//! One-sided operations and timers must go on although the application never calls in. But a second
//! thread that fetches packets takes time from the one that polls, so the progress thread keeps
//! away while another thread polls:
//!
//! | it sees | it does |
//! |---|---|
//! | a thread blocked on a completion channel | stands by: that thread runs the worker. If packets wait or a timer is due for [`THEIR_TIME`], and no thread has run the worker, the progress thread does, until one of them gets its turn |
//! | the count of polls rose since the last check | backs off: sleeps 50 us, then twice as long each time, 1 ms at most |
//! | the count stands still | watches: runs the worker, then sleeps on the port's descriptors until there is something |
//!
//! A program that posts, polls for its completion, and then spins on memory (`ib_write_lat`) polls
//! often, yet no thread fetches what it waits for; with back-off alone each message would cost it
//! up to a millisecond. So the progress thread keeps a score. Each time a back-off ends with
//! packets in the port that no thread was about to fetch, it rises by [`SCORE_MISSED`]; from
//! [`SCORE_EAGER`] on the progress thread watches although there are polls. Each wake that finds
//! packets raises the score by [`SCORE_USEFUL`], each that comes too late because a poller was
//! faster lowers it by one, and below the threshold it backs off again. Memory spinning gives about
//! one useful wake per wasted one, so the score stays up; pure polling gives wasted ones only, and
//! ends after [`SCORE_MAX`] - [`SCORE_EAGER`] of them at most.
//!
//! Only the progress thread watches for a host that only serves one-sided operations. While packets
//! follow each other closely it does not sleep between them ([`LINGER`]), since each sleep costs
//! more than the packets it waits for.
//!
//! No thread is about to fetch if the count of polls stands still for [`GLANCE`], some times what a
//! polling loop takes.
//!
//! A device without packets, timers and polls for [`IDLE_AFTER`] has no progress thread: the
//! watcher sleeps for it ([`crate::progress::watcher`]).
//!
//! After `fork(2)` the child has no progress thread. Nothing hangs there: objects of the parent
//! refuse control calls ([`crate::Error::Forked`]), and dropping them does nothing. A child that
//! opens the device anew gets its own.

use super::{ACK_LATE_MAX, Core};
use crate::host::link_monitor::LinkMonitor;
use crate::progress::progress_thread::standby::Watch;
use crate::progress::wait::{Descriptors, Waited};
use crate::progress::watcher::{self, Monitor, roster::Token};
use crate::progress::worker_lock::{NEVER, NO_ROOM_WANTED};
use crate::worker::Work;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);
const GLANCE: Duration = Duration::from_micros(3);
/// Pause after a wake-up that finds the worker locked: its holder is about to fetch the packets.
const GIVE_WAY: Duration = Duration::from_micros(20);
/// A sleep shorter than this was not worth it: sleeping and waking cost tens of microseconds (on a
/// virtual machine more: the processor is given back to the host), and the sender of what wakes us
/// pays part of it.
const SLEEP_SHORT: Duration = Duration::from_micros(200);
/// If the last sleep was shorter, and no thread polls, the progress thread stays awake this long
/// after a packet.
const LINGER: Duration = Duration::from_micros(50);
/// Threads that are blocked on a completion channel see to what comes within this time, or do not
/// get their turn: short beside the timers of connections, and long enough that a progress thread
/// that stands by is not woken often.
const THEIR_TIME: Duration = Duration::from_millis(4);
/// A device without packets, timers and polls for this time is idle: the watcher sleeps for it.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Alarms are looked at in between, however fast packets come.
const STAY_MAX: Duration = Duration::from_millis(5);
const SCORE_MAX: u32 = 32;
const SCORE_EAGER: u32 = 8;
const SCORE_MISSED: u32 = 4;
const SCORE_USEFUL: u32 = 2;

/// The progress thread's own side.
pub(super) struct ProgressLoop<'a> {
    core: &'a Core,
    polls_seen: u64,
    pause: Duration,
    score: u32,
    descriptors: Descriptors,
    /// Version of [`Core::list_sockets`] that was seen.
    sockets_seen: u64,
    /// Whether the last sleep ended by [`IDLE_AFTER`].
    idle: bool,
}

impl<'a> ProgressLoop<'a> {
    pub(super) fn new(core: &'a Core) -> Self {
        ProgressLoop {
            core,
            polls_seen: core.polls.load(Ordering::Relaxed),
            pause: PAUSE_MIN,
            score: 0,
            descriptors: Descriptors::default(),
            sockets_seen: 0,
            idle: false,
        }
    }

    /// Runs until the device is closed, or the watcher sleeps for it.
    pub(super) fn run(&mut self, token: Token) {
        while !self.core.progress_thread.exit.load(Ordering::SeqCst) {
            if self.core.wants_repair() {
                self.core.repair();
            }
            if std::mem::take(&mut self.idle) && watcher::hand_over(token) {
                return;
            }
            let polls = self.core.polls.load(Ordering::Relaxed);
            let polled = polls != self.polls_seen;
            self.polls_seen = polls;
            if self.core.progress_thread.standby.has_waiters() {
                self.stand_by();
            } else if polled && self.score < SCORE_EAGER {
                self.back_off();
            } else {
                self.watch(polled);
            }
        }
    }

    /// Sleeps until no thread is blocked on a completion channel, or something else calls.
    fn stand_by(&mut self) {
        let core = self.core;
        core.stand_by(self);
    }

    /// Leaves the worker to the threads that poll, and checks whether they fetch everything.
    fn back_off(&mut self) {
        self.nap(Some(self.pause));
        if self.is_polled() {
            self.score = self.score.saturating_sub(1);
        } else if self
            .core
            .try_progress(Work::All)
            .is_some_and(|round| round.received > 0)
        {
            self.raise(SCORE_MISSED);
            self.pause = PAUSE_MIN;
            return;
        }
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    fn is_polled(&self) -> bool {
        let before = self.core.polls.load(Ordering::Relaxed);
        let start = Instant::now();
        while start.elapsed() < GLANCE {
            std::hint::spin_loop();
        }
        self.core.polls.load(Ordering::Relaxed) != before
    }

    /// Sleeps on the port and runs the worker while something comes.
    fn watch(&mut self, polled: bool) {
        // Where polls begin again, back-off begins with its shortest pause.
        self.pause = PAUSE_MIN;
        let alarm = self.core.progress_thread.alarm.fd();
        let start = Instant::now();
        // A signal cannot end it: they are blocked in this thread.
        // A thread that polls need not wake this one for an ACK that waits ([`ACK_LATE_MAX`]).
        let at_most = polled.then_some(ACK_LATE_MAX);
        match self
            .core
            .sleep_within(IDLE_AFTER, at_most, &mut self.descriptors, alarm)
        {
            Ok(true) => self.alarmed(),
            Ok(false) => {}
            // The program has closed descriptors that are not its own, say.
            Err(_) => std::thread::sleep(PAUSE_MAX),
        }
        let slept = start.elapsed();
        let round = self.core.progress_before_sleep();
        if round.is_none() {
            self.nap(Some(GIVE_WAY));
        }
        let useful = round.is_some_and(|round| round.received > 0);
        self.idle = !useful && slept >= IDLE_AFTER;
        if useful {
            self.stay(if !polled && slept < SLEEP_SHORT {
                LINGER
            } else {
                Duration::ZERO
            });
        }
        if polled && useful {
            self.raise(SCORE_USEFUL);
        } else if polled {
            self.score = self.score.saturating_sub(1);
        }
    }

    /// Goes on without sleeping while packets come, and for `linger` after the last, until others
    /// take over.
    fn stay(&self, linger: Duration) {
        let start = Instant::now();
        let mut last = start;
        while self.core.polls.load(Ordering::Relaxed) == self.polls_seen
            && !self.core.progress_thread.standby.has_waiters()
            && !self.core.progress_thread.exit.load(Ordering::SeqCst)
            && !self.core.wants_repair()
            && start.elapsed() < STAY_MAX
        {
            match self.core.progress_before_sleep() {
                Some(round) if round.received > 0 => last = Instant::now(),
                Some(_) if last.elapsed() < linger => {}
                Some(_) | None => return,
            }
        }
    }

    fn raise(&mut self, by: u32) {
        self.score = (self.score + by).min(SCORE_MAX);
    }

    /// Sleeps without watching the port; the end of the progress thread, and of the
    /// last wait on a channel, end it early: then it is true.
    fn nap(&mut self, timeout: Option<Duration>) -> bool {
        self.descriptors.clear();
        self.descriptors.add(self.core.progress_thread.alarm.fd());
        self.wait(timeout)
    }

    /// Sleeps on descriptors of which the first is the alarm's.
    fn wait(&mut self, timeout: Option<Duration>) -> bool {
        let called = self.descriptors.wait(timeout).is_ok() && self.descriptors.is_ready(0);
        if called {
            self.alarmed();
        }
        called
    }

    /// Names the alarm and, if there are any, packets.
    fn list(&mut self) {
        self.core.list_packets(&mut self.sockets_seen);
        self.descriptors.clear();
        self.descriptors.add(self.core.progress_thread.alarm.fd());
        if !self.core.is_broken() {
            self.descriptors.add(self.core.progress_thread.packets.fd());
        }
    }

    /// How long it is until a timer is due.
    fn until_due(&self) -> Option<Duration> {
        let due = self.core.deadline()?;
        Some(due.duration_since(self.core.now()))
    }

    /// Handles a wake-up, a change of the interface, or of the processes that share the addresses.
    fn alarmed(&self) {
        self.core.progress_thread.wake.clear();
        self.core.apply_changes();
    }
}

impl watcher::Device for Core {
    fn fall_asleep(&self) -> bool {
        if self.is_broken() || self.is_gone() {
            return false;
        }
        let is_rung = || !self.doorbells.is_empty();
        let now = || self.now().as_nanos();
        let Some(due) = self.worker_lock.fall_asleep(is_rung, now, NEVER) else {
            return false;
        };
        let is_idle = due == NEVER && self.worker_lock.unsent() == NO_ROOM_WANTED;
        if is_idle {
            self.list_packets(&mut 0);
            self.will_sleep();
        } else {
            self.worker_lock.cancel_sleep();
        }
        is_idle
    }

    fn wake_up(&self) {
        self.cancel_sleep();
    }

    fn descriptors(&self) -> [RawFd; 3] {
        let thread = &self.progress_thread;
        let everyone = self.worker_lock.wake();
        [everyone.fd(), thread.alarm.fd(), thread.packets.fd()]
    }

    fn monitor(&self) -> std::io::Result<Option<Box<dyn Monitor>>> {
        let monitor = LinkMonitor::unless_forbidden(LinkMonitor::of_all())?;
        Ok(monitor.map(|monitor| Box::new(monitor) as Box<dyn Monitor>))
    }

    fn interface(&self) -> Option<u32> {
        self.link_monitor
            .as_ref()
            .map(|_| self.info.interface_index)
    }

    fn note_change(&self) {
        self.progress_thread.changed.store(true, Ordering::SeqCst);
        self.progress_thread.wake();
    }

    fn serve(&self, token: Token) {
        ProgressLoop::new(self).run(token);
    }

    fn serve_once(&self) {
        self.progress_thread.wake.clear();
        self.apply_changes();
        self.try_progress(Work::All);
    }
}

impl Monitor for LinkMonitor {
    fn fd(&self) -> RawFd {
        self.fd()
    }

    fn drain(&self, changed: &mut dyn FnMut(u32)) -> bool {
        self.drain_by_interface(changed)
    }
}

impl Watch for ProgressLoop<'_> {
    fn give_time(&mut self) -> bool {
        let standby = &self.core.progress_thread.standby;
        let mut seen = standby.rounds_of_waiters();
        for _ in 0..THEIR_TIME.as_nanos() / PAUSE_MAX.as_nanos() {
            let is_called = self.nap(Some(PAUSE_MAX));
            let rounds = standby.rounds_of_waiters();
            let are_gone = !standby.has_waiters() && rounds == seen;
            if is_called || are_gone {
                return true;
            }
            seen = rounds;
        }
        false
    }

    fn sleep(&mut self) -> bool {
        self.list();
        let until = self.until_due();
        self.core.will_sleep();
        let waited = self.descriptors.wait(until.or(Some(IDLE_AFTER)));
        self.core.woke();
        self.idle = until.is_none() && matches!(waited, Ok(Waited::TimedOut));
        let called = matches!(waited, Ok(Waited::Ready)) && self.descriptors.is_ready(0);
        if called {
            self.alarmed();
        }
        called || self.idle
    }

    fn run(&mut self) -> bool {
        let ran = self.core.try_progress(Work::All).is_some();
        // A thread that has the worker, and not its turn, is waited for.
        self.nap(Some(if ran { Duration::ZERO } else { PAUSE_MAX }))
    }

    fn has_work(&mut self) -> bool {
        if self.until_due().is_some_and(|until| until.is_zero()) {
            return true;
        }
        self.list();
        self.core.will_sleep();
        let waited = self.descriptors.wait(Some(Duration::ZERO));
        self.core.woke();
        matches!(waited, Ok(Waited::Ready))
            && !self.core.is_broken()
            && self.descriptors.is_ready(1)
    }

    fn rounds_of_others(&self) -> u64 {
        self.core.polls.load(Ordering::Relaxed)
    }
}
