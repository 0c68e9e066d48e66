//! A device that becomes idle is left to the watcher, and gets its own thread back: nothing that
//! happens meanwhile is lost.

use crate::bounded;
use crate::eventfd::{EventFd, poll};
use crate::roster::{Idle, NotStarted, Roster, Token};
use crate::world::{SOON, World};
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread::{self, JoinHandle};
use std::io;

/// A process with one device.
struct Process {
    world: Arc<World>,
    roster: Mutex<Roster<Device>>,
    /// Ready while the device's descriptors are among the watcher's.
    watched: EventFd,
    exit: EventFd,
    /// Threads that the device has had: loom has few, so that the second one does not hand over.
    starts: AtomicU32,
}

struct Device(Arc<Process>);

impl Idle for Device {
    type Thread = JoinHandle<()>;

    fn fall_asleep(&self) -> bool {
        self.0.world.fall_asleep_idle()
    }

    fn wake_up(&self) {
        self.0.world.worker_lock.cancel_sleep();
    }

    fn watch(&self, _: Token) -> io::Result<()> {
        self.0.watched.signal();
        Ok(())
    }

    fn unwatch(&self) {
        self.0.watched.clear();
    }

    fn start(
        &self,
        token: Token,
        former: Option<JoinHandle<()>>,
    ) -> Result<JoinHandle<()>, NotStarted<JoinHandle<()>>> {
        let hands_over = self.0.starts.fetch_add(1, Ordering::Relaxed) == 0;
        let process = Arc::clone(&self.0);
        Ok(thread::spawn(move || {
            if let Some(former) = former {
                former.join().unwrap();
            }
            process.serve(token, hands_over);
        }))
    }
}

impl Process {
    /// The device's own thread, which finds it idle whenever there is no work.
    fn serve(&self, token: Token, hands_over: bool) {
        loop {
            // A call that comes after this is taken by the next round.
            self.world.helper.clear();
            if self.world.is_stopped() {
                return;
            }
            self.world.run_before_sleep();
            if hands_over && self.roster.lock().unwrap().hand_over(token) {
                return;
            }
            self.world.sleep(&self.world.helper);
        }
    }

    /// The watcher's thread.
    fn watch(&self) {
        loop {
            poll(&[&self.watched, &self.exit]);
            let world = &self.world;
            poll(&[
                world.worker_lock.wake(),
                &world.helper,
                &world.port,
                &self.exit,
            ]);
            if self.exit.is_ready() {
                return;
            }
            assert!(self.roster.lock().unwrap().wake(1).is_ok());
            thread::yield_now();
        }
    }

    /// Starts a device for which that many things are done, lets `happen` happen, and closes it
    /// when `done` returns.
    fn run(wanted: u32, happen: impl FnOnce(&Process), done: impl FnOnce(&World)) {
        let process = Arc::new(Process {
            world: World::new(wanted, |_| {}),
            roster: Mutex::new(Roster::default()),
            watched: EventFd::default(),
            exit: EventFd::default(),
            starts: AtomicU32::new(0),
        });
        let watcher = Arc::clone(&process);
        let watcher = thread::spawn(move || watcher.watch());
        let device = Device(Arc::clone(&process));
        let token = process.roster.lock().unwrap().enter(device).unwrap();
        happen(&process);
        done(&process.world);
        process.world.stop_helper();
        let removed = process.roster.lock().unwrap().remove(token);
        if let Some((_, Some(thread))) = removed {
            thread.join().unwrap();
        }
        process.exit.signal();
        watcher.join().unwrap();
    }
}

fn all_is_done(world: &World) {
    poll(&[&world.done]);
}

#[test]
fn packets_reach_a_device_that_becomes_idle() {
    bounded(2, || {
        Process::run(1, |process| process.world.port.signal(), all_is_done)
    });
}

#[test]
fn a_timer_of_another_thread_ends_the_idle_time() {
    bounded(2, || {
        let happen = |process: &Process| process.world.control(|worker| worker.timer = SOON);
        Process::run(1, happen, all_is_done);
    });
}

/// The device's first thread may have handed it over before the second event.
#[test]
fn what_comes_after_the_first_idle_time_gets_another_thread() {
    bounded(2, || {
        let happen = |process: &Process| {
            process.world.port.signal();
            process.world.control(|worker| worker.timer = SOON);
        };
        Process::run(2, happen, all_is_done);
    });
}

#[test]
fn sockets_change_while_the_watcher_sleeps_on_none() {
    bounded(2, || {
        let happen = |process: &Process| {
            process.world.change_sockets(|| {
                assert!(!process.watched.is_ready(), "the watcher sleeps on them");
                assert_eq!(process.world.in_bed.load(Ordering::Relaxed), 0);
            });
        };
        Process::run(0, happen, |_| {});
    });
}

#[test]
fn a_device_is_closed_while_it_becomes_idle() {
    bounded(3, || {
        Process::run(0, |process| process.world.helper.signal(), |_| {});
    });
}
