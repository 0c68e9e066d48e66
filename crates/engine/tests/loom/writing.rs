//! A peer's WRITEs are placed while a program waits for them: it misses none, and sees what they
//! placed.

use crate::alarm::Alarm;
use crate::event_queue::EventQueue;
use crate::eventfd::poll;
use crate::write_watch::WriteWatch;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// What the worker and the program share of a queue pair.
struct Target {
    /// The worker's.
    lock: Mutex<()>,
    memory: UnsafeCell<u8>,
    writes: WriteWatch,
    alarm: Alarm,
    channel: EventQueue<()>,
}

// SAFETY: loom's cell panics where two threads access it without order.
unsafe impl Sync for Target {}

#[test]
fn a_program_that_awaits_a_write_sees_it() {
    loom::model(|| {
        let target = Arc::new(Target {
            lock: Mutex::new(()),
            memory: UnsafeCell::new(0),
            writes: WriteWatch::new(),
            alarm: Alarm::new(),
            channel: EventQueue::new().unwrap(),
        });
        let worker = Arc::clone(&target);
        let worker = thread::spawn(move || {
            let _round = worker.lock.lock().unwrap();
            // SAFETY: the program reads it once the WRITE is counted.
            worker.memory.with_mut(|byte| unsafe { *byte = 7 });
            if worker.writes.count() && worker.alarm.completed(true) {
                worker.channel.push(());
            }
        });
        assert!(!target.writes.is_watched());
        {
            let _control = target.lock.lock().unwrap();
            target.writes.watch();
        }
        target.writes.wait();
        assert!(!target.alarm.arm(false, || false));
        while target.writes.placed() == 0 {
            while target.channel.pop().is_none() {
                poll(&[target.channel.descriptor()]);
            }
            target.alarm.fetched();
        }
        // SAFETY: the WRITE is counted.
        assert_eq!(target.memory.with(|byte| unsafe { *byte }), 7);
        worker.join().unwrap();
    });
}
