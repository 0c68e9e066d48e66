//! A minimal device: one doorbell, one timer, one socket.

use crate::eventfd::{EventFd, poll};
use crate::standby::{Standby, Watch};
use crate::worker_lock::{Left, NEVER, NO_ROOM_WANTED, ROOM_ANYWHERE, Rounds, WorkerLock};
use airdma_shm::doorbells::DoorbellWords;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Time until which a model lets time pass: a thread with an earlier end of sleep wakes by itself,
/// others must be woken.
pub const SOON: u64 = 50;
pub const LATER: u64 = 100;

pub struct World {
    pub worker_lock: WorkerLock<Worker>,
    pub standby: Standby,
    /// Wakes the progress thread.
    pub helper: EventFd,
    exit: AtomicBool,
    /// Readable when the socket has packets, or room.
    pub port: EventFd,
    pub room: EventFd,
    /// Whether the port is bound, so that sleepers know its descriptor. One thread at a time
    /// changes or reads it.
    bound: loom::sync::Mutex<bool>,
    /// Readable when all is done that the model expects.
    pub done: EventFd,
    summary: [AtomicU64; 1],
    words: [AtomicU64; 1],
    /// Number of posts.
    posted: AtomicU32,
    /// Number of sleeping threads.
    pub in_bed: AtomicU32,
    /// Time: it passes until SOON while a thread sleeps that wakes by itself.
    clock: AtomicU64,
}

/// State under the worker lock.
pub struct Worker {
    /// Number of posts taken.
    taken: u32,
    /// Time of the timer.
    pub timer: u64,
    /// Next time of the timer, once it fires.
    pub next_timer: u64,
    /// Whether packets wait for room in the port.
    pub unsent: bool,
    /// Number of posts taken, timers fired and packets received after which all is done.
    pub wanted: u32,
    /// Action before all others in a round.
    pub first: Option<Box<dyn FnOnce() + Send>>,
}

impl World {
    pub fn new(wanted: u32, prepare: impl FnOnce(&mut Worker)) -> Arc<World> {
        let mut worker = Worker {
            taken: 0,
            timer: NEVER,
            next_timer: NEVER,
            unsent: false,
            wanted,
            first: None,
        };
        prepare(&mut worker);
        Arc::new(World {
            worker_lock: WorkerLock::new(worker, EventFd::default()),
            standby: Standby::new(),
            helper: EventFd::default(),
            exit: AtomicBool::new(false),
            port: EventFd::default(),
            room: EventFd::default(),
            bound: loom::sync::Mutex::new(true),
            done: EventFd::default(),
            summary: [AtomicU64::new(0)],
            words: [AtomicU64::new(0)],
            posted: AtomicU32::new(0),
            in_bed: AtomicU32::new(0),
            clock: AtomicU64::new(0),
        })
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn bells(&self) -> DoorbellWords<'_> {
        DoorbellWords::new(64, &self.summary, &self.words)
    }

    /// Posts work, and rings.
    pub fn post(&self) {
        self.posted.fetch_add(1, Ordering::Relaxed);
        self.bells().ring(0);
    }

    pub fn posted(&self) -> u32 {
        self.posted.load(Ordering::Relaxed)
    }

    pub fn try_run(&self) {
        self.worker_lock.try_run(&mut self.rounds());
    }

    fn rounds(&self) -> Run<'_> {
        Run {
            world: self,
            ran: false,
            sleeps_next: false,
        }
    }

    /// Runs the worker as the progress thread and threads waiting on a channel do.
    pub fn run_before_sleep(&self) -> bool {
        let mut run = self.rounds();
        run.sleeps_next = true;
        self.worker_lock.try_run(&mut run);
        if !run.ran {
            // Another thread holds the worker, and must run first.
            loom::thread::yield_now();
        }
        run.ran
    }

    /// Whether the progress thread was called; resets the call.
    fn is_called(&self) -> bool {
        let called = self.helper.is_ready();
        if called {
            self.helper.clear();
        }
        called
    }

    pub fn control(&self, call: impl FnOnce(&mut Worker)) {
        self.worker_lock.with(&mut self.rounds(), call);
    }

    pub fn visit(&self, call: impl FnOnce(&mut Worker)) {
        self.worker_lock.visit(&mut self.rounds(), call);
    }

    pub fn change_sockets(&self, call: impl FnOnce()) {
        let pause = || {
            loom::thread::yield_now();
            true
        };
        self.worker_lock
            .while_none_sleeps(&mut self.rounds(), pause, |_| call());
    }

    pub fn set_bound(&self, bound: bool) {
        *self.bound.lock().unwrap() = bound;
    }

    /// Uses [`crate::worker_lock::WorkerLock::fall_asleep`]: sleeps once, if there is no work.
    pub fn sleep(&self, also: &EventFd) {
        let is_rung = || !self.bells().is_empty();
        let Some(due) = self.worker_lock.fall_asleep(is_rung, || self.now(), NEVER) else {
            return;
        };
        let mut descriptors = vec![self.worker_lock.wake(), also];
        if *self.bound.lock().unwrap() {
            descriptors.push(&self.port);
            if self.worker_lock.unsent() != NO_ROOM_WANTED {
                descriptors.push(&self.room);
            }
        }
        self.in_bed.fetch_add(1, Ordering::Relaxed);
        if due > SOON {
            poll(&descriptors);
        } else {
            self.clock.store(SOON, Ordering::Relaxed);
        }
        self.in_bed.fetch_sub(1, Ordering::Relaxed);
        self.worker_lock.wake_up(self.worker_lock.wake().is_ready());
    }

    /// The progress thread: stands by while other threads run the worker, and runs it otherwise.
    pub fn help(&self) {
        while !self.exit.load(Ordering::SeqCst) {
            if self.standby.has_waiters() {
                self.standby
                    .stand_by(&self.worker_lock, &mut Watching(self));
            } else {
                self.sleep(&self.helper);
                self.helper.clear();
                self.run_before_sleep();
            }
        }
    }

    /// Falls asleep as [`World::sleep`] does, if there is no work and no timer, for a thread that
    /// sleeps instead of this one.
    pub fn fall_asleep_idle(&self) -> bool {
        let is_rung = || !self.bells().is_empty();
        let Some(due) = self.worker_lock.fall_asleep(is_rung, || self.now(), NEVER) else {
            return false;
        };
        let is_idle = due == NEVER && self.worker_lock.unsent() == NO_ROOM_WANTED;
        if !is_idle {
            self.worker_lock.cancel_sleep();
        }
        is_idle
    }

    /// Whether the progress thread must end.
    pub fn is_stopped(&self) -> bool {
        self.exit.load(Ordering::SeqCst)
    }

    /// Ends [`World::help`].
    pub fn stop_helper(&self) {
        self.exit.store(true, Ordering::SeqCst);
        self.helper.signal();
    }

    /// Runs the worker until `event` is there, which it takes.
    pub fn wait(&self, event: &EventFd) {
        self.standby.enter();
        loop {
            if self.run_before_sleep() {
                self.standby.note_round();
            }
            if event.is_ready() {
                break;
            }
            self.sleep(event);
        }
        self.standby.leave(&self.worker_lock, &self.helper);
    }
}

/// The progress thread while it stands by.
struct Watching<'a>(&'a World);

impl Watch for Watching<'_> {
    fn give_time(&mut self) -> bool {
        loom::thread::yield_now();
        self.0.is_called() || !self.0.standby.has_waiters()
    }

    fn sleep(&mut self) -> bool {
        poll(&[&self.0.helper, &self.0.port]);
        self.0.is_called()
    }

    fn run(&mut self) -> bool {
        let mut run = self.0.rounds();
        self.0.worker_lock.try_run(&mut run);
        if !run.ran {
            loom::thread::yield_now();
        }
        self.0.is_called()
    }

    fn has_work(&mut self) -> bool {
        self.0.port.is_ready()
    }

    fn rounds_of_others(&self) -> u64 {
        0
    }
}

/// Rounds of one caller, and whether there were any.
struct Run<'a> {
    world: &'a World,
    ran: bool,
    sleeps_next: bool,
}

impl Rounds<Worker> for Run<'_> {
    fn run(&mut self, worker: &mut Worker) -> Left {
        let world = self.world;
        self.ran = true;
        if let Some(first) = worker.first.take() {
            first();
        }
        let mut did = 0;
        world.bells().drain(|_| {
            let posted = world.posted.load(Ordering::Relaxed);
            did += posted - worker.taken;
            worker.taken = posted;
        });
        if worker.timer <= world.now() {
            worker.timer = std::mem::replace(&mut worker.next_timer, NEVER);
            did += 1;
        }
        if world.port.is_ready() {
            world.port.clear();
            did += 1;
        }
        if worker.unsent && world.room.is_ready() {
            worker.unsent = false;
            did += 1;
        }
        if did > 0 {
            assert!(worker.wanted >= did, "done twice");
            worker.wanted -= did;
            if worker.wanted == 0 {
                world.done.signal();
            }
        }
        Left {
            due: worker.timer,
            unsent: if worker.unsent {
                ROOM_ANYWHERE
            } else {
                NO_ROOM_WANTED
            },
        }
    }

    fn settle(&mut self) {}

    fn is_rung(&self) -> bool {
        !self.world.bells().is_empty()
    }

    fn sleeps_next(&self) -> bool {
        self.sleeps_next
    }
}
