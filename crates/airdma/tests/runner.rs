//! Event loops that run a device themselves.
#![allow(clippy::unwrap_used)]

mod common;

use airdma::{Endpoint, Message, Operation, Runner};
use common::*;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Woken {
    /// Whether it is woken within that time.
    fn comes_within(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while !self.0.load(Ordering::SeqCst) && start.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.load(Ordering::SeqCst)
    }
}

/// The outcome, if there is one; later ones wake.
fn look(endpoint: &Endpoint, operation: &mut Operation<Message>, waker: &Waker) -> Poll<Message> {
    loop {
        match operation.look(waker) {
            Poll::Ready(message) => return Poll::Ready(message.unwrap()),
            Poll::Pending if endpoint.attend() => {}
            Poll::Pending => return Poll::Pending,
        }
    }
}

/// One wait of an event loop. Whether the device woke something.
fn wait(runner: &mut Runner) -> bool {
    if runner.run().unwrap() {
        return true;
    }
    let (descriptors, limit) = runner.descriptors();
    let limit = limit.unwrap_or(Duration::from_millis(100)).as_millis();
    let (entries, count) = (descriptors.as_mut_ptr(), descriptors.len());
    // SAFETY: that many entries.
    let ready = unsafe { libc::poll(entries, count as libc::nfds_t, limit.min(100) as i32) };
    runner.woke(ready.try_into().unwrap());
    runner.run().unwrap()
}

/// How often threads of a name went to sleep.
fn sleeps(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let read = |at: &std::path::Path, file| fs::read_to_string(at.join(file)).unwrap_or_default();
    let mut all = 0;
    for task in tasks.flatten().map(|task| task.path()) {
        if read(&task, "comm").trim() == name {
            let status = read(&task, "status");
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            all += line.unwrap().trim().parse::<u64>().unwrap();
        }
    }
    all
}

#[test]
fn a_message_wakes_the_event_loop_alone() {
    isolated("a_message_wakes_the_event_loop_alone", "", || {
        const ROUNDS: u64 = 200;
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut before = 0;
        for round in 0..ROUNDS {
            if round == 20 {
                before = sleeps("airdma-driver");
            }
            let mut receiving = right.recv(there.allocate(8).unwrap(), ..);
            let sent = left.send(filled(&here, &round.to_le_bytes()), ..);
            let mut runner = there.runner();
            let start = Instant::now();
            let message = loop {
                woken.0.store(false, Ordering::SeqCst);
                if let Poll::Ready(message) = look(&right, &mut receiving, &waker) {
                    break message;
                }
                while !wait(&mut runner) && !woken.0.load(Ordering::SeqCst) {
                    assert!(start.elapsed() < PATIENCE, "round {round}");
                }
            };
            drop(runner);
            assert_eq!(message[..], round.to_le_bytes());
            sent.wait().unwrap();
        }
        let slept = sleeps("airdma-driver") - before;
        assert!(slept < ROUNDS / 10, "the other thread woke {slept} times");
    });
}

#[test]
fn an_event_loop_keeps_its_turn_between_waits() {
    isolated("an_event_loop_keeps_its_turn_between_waits", "", || {
        const ROUNDS: u32 = 2000;
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        let sender = std::thread::spawn(move || {
            for _ in 0..ROUNDS {
                let sent = left.send(filled(&here, b"8 bytes!"), ..);
                std::thread::sleep(Duration::from_micros(200));
                sent.wait().unwrap();
            }
        });
        let waker = Waker::from(Arc::new(Woken::default()));
        let (mut displaced, mut last) = (0, 0);
        for round in 0..ROUNDS {
            let start = Instant::now();
            let mut receiving = right.recv(there.allocate(8).unwrap(), ..);
            let mut runner = there.runner();
            while look(&right, &mut receiving, &waker).is_pending() {
                wait(&mut runner);
            }
            drop(runner);
            let now = sleeps("airdma-helper");
            // On standby it looks once in a millisecond.
            let is_often = now > last + 1 && start.elapsed() < Duration::from_millis(1);
            displaced += u32::from(round > 0 && is_often);
            last = now;
        }
        sender.join().unwrap();
        assert!(displaced < ROUNDS / 20, "in {displaced} of {ROUNDS} waits");
    });
}

#[test]
fn a_task_is_woken_when_the_event_loop_has_ended() {
    isolated("a_task_is_woken_when_the_event_loop_has_ended", "", || {
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        for round in 0..3 {
            let mut receiving = right.recv(there.allocate(8).unwrap(), ..);
            woken.0.store(false, Ordering::SeqCst);
            assert!(look(&right, &mut receiving, &waker).is_pending());
            let mut runner = there.runner();
            assert!(!wait(&mut runner) || !woken.0.load(Ordering::SeqCst));
            drop(runner);
            left.send(filled(&here, b"one more"), ..).wait().unwrap();
            let start = Instant::now();
            while !woken.0.load(Ordering::SeqCst) {
                assert!(start.elapsed() < PATIENCE, "round {round}");
                std::thread::sleep(Duration::from_millis(1));
            }
            let Poll::Ready(message) = look(&right, &mut receiving, &waker) else {
                panic!("woken for nothing");
            };
            assert_eq!(message[..], *b"one more");
        }
    });
}

#[test]
fn a_send_wakes_no_program_that_waits_for_messages_only() {
    let name = "a_send_wakes_no_program_that_waits_for_messages_only";
    isolated(name, "", || {
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        for messages_only in [false, true, false] {
            left.wake_for_messages_only(messages_only);
            woken.0.store(false, Ordering::SeqCst);
            let mut answer = left.recv(here.allocate(8).unwrap(), ..);
            let question = right.recv(there.allocate(8).unwrap(), ..);
            let mut sent = left.send(filled(&here, b"question"), ..);
            assert!(look(&left, &mut answer, &waker).is_pending());
            let mut is_sent = sent.look(&waker).is_ready();
            assert_eq!(question.wait().unwrap()[..], *b"question");
            // An acknowledgement comes within a few milliseconds.
            let limit = if messages_only { 100 } else { 10_000 };
            let wakes = woken.comes_within(Duration::from_millis(limit));
            assert_eq!(wakes, !messages_only && !is_sent, "{messages_only}");
            if wakes {
                woken.0.store(false, Ordering::SeqCst);
                assert!(look(&left, &mut answer, &waker).is_pending());
            }
            right.send(filled(&there, b"answer!!"), ..).wait().unwrap();
            assert!(woken.comes_within(PATIENCE));
            // With the message the earlier completions are entered.
            is_sent |= sent.look(&waker).is_ready();
            assert!(is_sent);
            let Poll::Ready(message) = look(&left, &mut answer, &waker) else {
                panic!("woken without a message");
            };
            assert_eq!(message[..], *b"answer!!");
        }
    });
}

#[test]
fn sends_beyond_the_room_leave_though_messages_alone_wake() {
    let name = "sends_beyond_the_room_leave_though_messages_alone_wake";
    isolated(name, "", || {
        // Many times what a queue pair holds; without events that would be a second's work.
        const SENDS: u32 = 2000;
        let pair = pair();
        pair.left.wake_for_messages_only(true);
        assert!(!pair.left.attend());
        let receive = |_| pair.right.recv(pair.there.allocate(8).unwrap(), ..);
        let receives: Vec<_> = (0..SENDS).map(receive).collect();
        let send = |number: u32| {
            let bytes = u64::from(number).to_le_bytes();
            pair.left.send(filled(&pair.here, &bytes), ..)
        };
        let start = Instant::now();
        let _sends: Vec<_> = (0..SENDS).map(send).collect();
        for (number, mut receive) in (0..).zip(receives) {
            let message = receive.wait_timeout(PATIENCE).expect("it waits").unwrap();
            assert_eq!(message[..], u64::to_le_bytes(number));
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
    });
}

#[test]
fn a_network_that_is_gone_wakes_an_end_that_awaits_messages() {
    let name = "a_network_that_is_gone_wakes_an_end_that_awaits_messages";
    isolated(name, "", || {
        let pair = pair();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        pair.left.wake_for_messages_only(true);
        let mut message = pair.left.recv(pair.here.allocate(8).unwrap(), ..);
        assert!(look(&pair.left, &mut message, &waker).is_pending());
        // Time for some signs of life, of which none wakes.
        assert!(!woken.comes_within(Duration::from_secs(3)));
        let mut ip = std::process::Command::new("ip");
        assert!(
            ip.args(["link", "set", "lo", "down"])
                .status()
                .unwrap()
                .success()
        );
        assert!(woken.comes_within(PATIENCE), "nothing noticed it");
        assert!(matches!(message.look(&waker), Poll::Ready(Err(_))));
    });
}
