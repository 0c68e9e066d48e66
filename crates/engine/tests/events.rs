//! Completion channels and asynchronous events: exactly the requested events, and none lost.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn set_nonblocking(fd: RawFd) {
    // SAFETY: plain integers.
    let result = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(result, 0);
}

/// Whether the descriptor is readable within this time, without a call of the library.
fn readable(fd: RawFd, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut poll, 1, timeout_ms) == 1 }
}

const LONG_MS: i32 = 20_000;

#[test]
fn only_a_completion_after_arming_raises_an_event_and_only_one() {
    let (left, right) = pair(256);
    set_nonblocking(right.channel.fd());
    let again = || right.channel.wait_event().unwrap_err().raw_os_error();
    for wr_id in 0..4 {
        right.recv(wr_id, 0, 8);
    }
    left.send(Operation::Send, 0, 8);
    left.ok();
    assert_eq!(again(), Some(libc::EAGAIN), "not armed");

    right.cq.arm(false).unwrap();
    assert_eq!(
        again(),
        Some(libc::EAGAIN),
        "the completion was there before"
    );
    left.send(Operation::Send, 0, 8);
    left.send(Operation::Send, 0, 8);
    left.ok();
    left.ok();
    assert_eq!(right.channel.wait_event().unwrap(), 42);
    assert_eq!(again(), Some(libc::EAGAIN), "armed once");
    assert!(!readable(right.channel.fd(), 0));
    for _ in 0..3 {
        right.ok();
    }
}

#[test]
fn an_arm_for_solicited_completions_lets_others_pass() {
    let (left, right) = pair(256);
    set_nonblocking(right.channel.fd());
    for wr_id in 0..4 {
        right.recv(wr_id, 0, 8);
    }
    right.cq.set_cookie(77);
    right.cq.arm(true).unwrap();
    left.send(Operation::Send, 0, 8);
    left.ok();
    assert!(right.channel.wait_event().is_err());
    let mut wr = signalled(Operation::Send, left.memory.sge(0, 8));
    wr.flags |= SendFlags::SOLICITED;
    left.qp.post_send(&wr).unwrap();
    left.ok();
    assert_eq!(right.channel.wait_event().unwrap(), 77);
    // A failure counts as solicited: the rest of the receives is flushed.
    right.cq.arm(true).unwrap();
    let error = QpAttributes {
        state: QpState::Error,
        ..QpAttributes::default()
    };
    right.qp.modify(&error, AttrMask::STATE).unwrap();
    assert_eq!(right.channel.wait_event().unwrap(), 77);
}

/// UCX polls until the queue is empty, arms it, and waits without another poll.
#[test]
fn who_polls_before_arming_hears_of_what_came_between() {
    let (left, right) = pair(256);
    set_nonblocking(right.channel.fd());
    for wr_id in 0..5 {
        right.recv(wr_id, 0, 8);
    }
    let poll = || right.cq.poll(8, |_| ()).unwrap();
    let arrives = |flags| {
        let mut wr = signalled(Operation::Send, left.memory.sge(0, 8));
        wr.flags |= flags;
        left.qp.post_send(&wr).unwrap();
        left.ok();
    };
    assert_eq!(poll(), 0);
    arrives(SendFlags::empty());
    right.cq.arm(true).unwrap();
    assert!(right.channel.wait_event().is_err(), "it is not solicited");
    right.cq.arm(false).unwrap();
    assert_eq!(right.channel.wait_event().unwrap(), 42);
    right.cq.arm(false).unwrap();
    let again = right.channel.wait_event();
    assert!(again.is_err(), "who has not polled since the event will");
    assert_eq!(poll(), 1);

    // The arm's event is raised once, not twice.
    arrives(SendFlags::SOLICITED);
    assert_eq!(right.channel.wait_event().unwrap(), 42);
    assert_eq!(poll(), 1);
    arrives(SendFlags::empty());
    arrives(SendFlags::SOLICITED);
    right.cq.arm(true).unwrap();
    assert_eq!(right.channel.wait_event().unwrap(), 42);
    assert!(right.channel.wait_event().is_err());
    assert_eq!(poll(), 2);
    right.cq.arm(false).unwrap();
    assert!(right.channel.wait_event().is_err(), "nothing is there");
}

/// `ib_send_lat -e` polls one queue after an event of another, arms each queue when it has fetched
/// its event, and takes one completion for each event.
#[test]
fn a_poll_before_the_event_is_fetched_brings_no_second_event() {
    let (left, right) = pair(256);
    set_nonblocking(right.channel.fd());
    for wr_id in 0..3 {
        right.recv(wr_id, 0, 8);
    }
    let arrives = || {
        left.send(Operation::Send, 0, 8);
        left.ok();
    };
    right.cq.arm(false).unwrap();
    arrives();
    arrives();
    right.ok();
    assert_eq!(right.channel.wait_event().unwrap(), 42);
    right.cq.arm(false).unwrap();
    assert!(right.channel.wait_event().is_err(), "of the second one");
    right.ok();
    arrives();
    assert_eq!(right.channel.wait_event().unwrap(), 42);
    right.ok();
}

#[test]
fn a_channels_descriptor_becomes_readable_without_a_call() {
    let (left, right) = pair(256);
    for wr_id in 0..50 {
        right.recv(wr_id, 0, 8);
        right.cq.arm(false).unwrap();
        left.send(Operation::Send, 0, 8);
        assert!(readable(right.channel.fd(), LONG_MS));
        assert_eq!(right.channel.wait_event().unwrap(), 42);
        assert_eq!(right.ok().wr_id, wr_id);
        left.ok();
    }
}

/// Arm, poll, wait: the order of the manual. A completion between any two of these steps must end
/// the wait.
fn wait_for_completion(end: &End) -> Completion {
    loop {
        let mut found = None;
        end.cq
            .poll(1, |completion| found = Some(completion))
            .unwrap();
        if let Some(found) = found {
            return found;
        }
        end.cq.arm(false).unwrap();
        end.cq
            .poll(1, |completion| found = Some(completion))
            .unwrap();
        if let Some(found) = found {
            return found;
        }
        end.channel.wait_event().unwrap();
    }
}

#[test]
fn no_wake_up_is_lost_in_thousands_of_round_trips() {
    const ROUNDS: u64 = 5000;
    let (left, right) = pair(256);
    let echo = |end: &End, starts: bool| {
        let sge = [end.memory.sge(0, 8)];
        let send = SendWr {
            wr_id: u64::MAX,
            operation: Operation::Send,
            sges: &sge,
            flags: SendFlags::empty(),
            datagram: None,
            srqn: 0,
        };
        end.recv(0, 8, 8);
        if starts {
            end.qp.post_send(&send).unwrap();
        }
        for round in 0..ROUNDS {
            assert_eq!(wait_for_completion(end).wr_id, round);
            end.recv(round + 1, 8, 8);
            // The starting end posts the last one, without a reply.
            if !starts || round + 1 < ROUNDS {
                let mut send = send;
                if round % 32 == 31 {
                    // Frees the slots of the unsignalled ones; its completion is not told from the
                    // others.
                    send.flags = SendFlags::empty();
                }
                end.qp.post_send(&send).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&right, false));
        echo(&left, true);
    });
}

/// The order of `ib_send_lat -e`: two queues on one channel, one event taken, and one completion
/// polled, for each completion. A missing event stops it, a superfluous one shows as an empty poll.
#[test]
fn there_is_one_event_for_each_completion_that_is_waited_for() {
    const ROUNDS: u32 = 3000;
    let (left, right) = wired();
    let (left, right) = (Counted::new(&left, "left"), Counted::new(&right, "right"));
    left.connect(&right);
    right.connect(&left);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                right.wait(true);
                right.send();
                right.wait(false);
            }
        });
        for _ in 0..ROUNDS {
            left.send();
            left.wait(false);
            left.wait(true);
        }
    });
}

struct Counted {
    end: End,
    qp: Arc<Qp>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    /// Events taken for one queue during a wait for the other's.
    early: std::cell::Cell<[u32; 2]>,
    name: &'static str,
}

// SAFETY: each is used by one thread after it was set up.
unsafe impl Sync for Counted {}

impl Counted {
    fn new(device: &Arc<Device>, name: &'static str) -> Self {
        let end = End::new(device, QpType::Rc, 64);
        let cq = |cookie| {
            let channel = Some((Arc::clone(&end.channel), cookie));
            device.create_cq(16, channel).unwrap()
        };
        let (send_cq, recv_cq) = (cq(0), cq(1));
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&send_cq),
            recv_cq: Arc::clone(&recv_cq),
            srq: None,
            caps: CAPS,
            signal_all: true,
        };
        let qp = end.pd.create_qp(init).unwrap();
        for cq in [&send_cq, &recv_cq] {
            cq.arm(false).unwrap();
        }
        let early = std::cell::Cell::new([0; 2]);
        Counted {
            end,
            qp,
            send_cq,
            recv_cq,
            early,
            name,
        }
    }

    fn connect(&self, peer: &Counted) {
        connect(&self.qp, peer.qp.number(), peer.end.path());
        for _ in 0..2 {
            self.post_recv();
        }
    }

    fn post_recv(&self) {
        let sges = [self.end.memory.sge(0, 8)];
        self.qp
            .post_recv(&RecvWr {
                wr_id: 0,
                sges: &sges,
            })
            .unwrap();
    }

    fn send(&self) {
        self.qp
            .post_send(&signalled(Operation::Send, self.end.memory.sge(8, 8)))
            .unwrap();
    }

    /// Takes the event of a queue, arms it again, and takes its one completion.
    fn wait(&self, receive: bool) {
        let wanted = usize::from(receive);
        let mut early = self.early.get();
        while early[wanted] == 0 {
            let cookie = self.end.channel.wait_event().unwrap() as usize;
            early[cookie] += 1;
            [&self.send_cq, &self.recv_cq][cookie].arm(false).unwrap();
        }
        early[wanted] -= 1;
        self.early.set(early);
        let cq = [&self.send_cq, &self.recv_cq][wanted];
        let count = cq
            .poll(1, |completion| {
                assert_eq!(completion.status, Status::Success)
            })
            .unwrap();
        assert_eq!(count, 1, "{}: an event without a completion", self.name);
        if receive {
            self.post_recv();
        }
    }
}

#[test]
fn threads_that_wait_on_two_channels_of_a_device_both_wake() {
    let (left, right) = wired();
    let (a_left, a_right) = pair_on(&left, &right, 256);
    let (b_left, b_right) = pair_on(&left, &right, 256);
    std::thread::scope(|scope| {
        for (end, peer) in [(&a_right, &a_left), (&b_right, &b_left)] {
            scope.spawn(move || {
                for round in 0..500 {
                    end.recv(round, 0, 8);
                    peer.send(Operation::Send, 0, 8);
                    assert_eq!(wait_for_completion(end).wr_id, round);
                    peer.ok();
                }
            });
        }
    });
}

static HANDLED: AtomicBool = AtomicBool::new(false);

extern "C" fn handle(_signal: libc::c_int) {
    HANDLED.store(true, Ordering::SeqCst);
}

fn install(flags: libc::c_int) {
    // SAFETY: zeroed is a valid sigaction with an empty mask; the handler only stores an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
    }
}

#[test]
fn a_signal_ends_a_wait_unless_its_handler_restarts() {
    let (left, right) = pair(256);
    let (left, right) = (&left, &right);
    right.recv(0, 0, 8);
    for (flags, restarts) in [(libc::SA_RESTART, true), (0, false)] {
        install(flags);
        std::thread::scope(|scope| {
            right.cq.arm(false).unwrap();
            let (tell, thread) = std::sync::mpsc::channel();
            let done = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&done);
            scope.spawn(move || {
                // SAFETY: no arguments.
                tell.send(unsafe { libc::pthread_self() }).unwrap();
                let result = right.channel.wait_event();
                seen.store(true, Ordering::SeqCst);
                match restarts {
                    true => assert_eq!(result.unwrap(), 42),
                    false => assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINTR)),
                }
            });
            let thread = thread.recv().unwrap();
            let signal = || {
                HANDLED.store(false, Ordering::SeqCst);
                // SAFETY: the thread is in this scope, and has not ended: it waits.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                wait_until("the handler", || HANDLED.load(Ordering::SeqCst));
            };
            if restarts {
                for _ in 0..20 {
                    signal();
                }
                assert!(!done.load(Ordering::SeqCst));
                left.send(Operation::Send, 0, 8);
            } else {
                // It may come before the thread sleeps, so more than once.
                wait_until("the end of the wait", || {
                    if !done.load(Ordering::SeqCst) {
                        signal();
                    }
                    done.load(Ordering::SeqCst)
                });
            }
        });
    }
    install(libc::SA_RESTART);
}

#[test]
fn a_refused_access_raises_an_event_that_dies_with_the_pair() {
    let (left, right) = pair(256);
    set_nonblocking(right.device.async_fd());
    right.qp.set_cookie(0xc0ffee);
    let rkey = Rkey(right.memory.mr.rkey().0 ^ 1);
    left.send(
        Operation::Write {
            va: right.memory.address(),
            rkey,
        },
        0,
        8,
    );
    assert_eq!(left.complete().status, Status::RemoteAccessError);
    assert!(readable(right.device.async_fd(), LONG_MS));
    let event = right.device.wait_async_event().unwrap();
    let AsyncEvent::Qp {
        number,
        cookie,
        event,
    } = event
    else {
        panic!("{event:?}");
    };
    assert_eq!(
        (number, cookie, event),
        (right.qp.number(), 0xc0ffee, QpEvent::AccessError)
    );
    assert_eq!(
        right.device.wait_async_event().unwrap_err().raw_os_error(),
        Some(libc::EAGAIN)
    );

    let (left, right) = pair_on(&left.device, &right.device, 256);
    left.send(
        Operation::Write {
            va: right.memory.address(),
            rkey,
        },
        0,
        8,
    );
    left.complete();
    assert!(readable(right.device.async_fd(), LONG_MS));
    right.qp.destroy().unwrap();
    assert!(!readable(right.device.async_fd(), 0));
}

#[test]
fn a_full_completion_queue_keeps_its_content_and_reports_once() {
    let (left, right) = wired();
    let (left, right) = (
        End::new(&left, QpType::Rc, 256),
        End::new(&right, QpType::Rc, 256),
    );
    let small = left.device.create_cq(4, None).unwrap();
    small.set_cookie(99);
    let qp = create_qp(&left.pd, &small, QpType::Rc, CAPS);
    connect(&qp, right.qp.number(), right.path());
    connect(&right.qp, qp.number(), left.path());
    for wr_id in 0..8 {
        right.recv(wr_id, 0, 8);
    }
    for wr_id in 0..6 {
        let wr = SendWr {
            wr_id,
            ..signalled(Operation::Send, left.memory.sge(0, 8))
        };
        qp.post_send(&wr).unwrap();
    }
    for _ in 0..6 {
        right.ok();
    }
    wait_until("the overruns", || counter(&left.device, "cq_overruns") == 2);
    assert!(matches!(
        left.device.wait_async_event().unwrap(),
        AsyncEvent::CqError { cookie: 99 }
    ));
    let number = qp.number();
    assert!(matches!(
        left.device.wait_async_event().unwrap(),
        AsyncEvent::Qp { number: whose, event: QpEvent::Fatal, .. } if whose == number
    ));
    assert!(!readable(left.device.async_fd(), 0));
    assert_eq!(qp.state(), QpState::Error);
    let mut kept = Vec::new();
    assert_eq!(
        small
            .poll(9, |completion| kept.push(completion.wr_id))
            .unwrap(),
        4
    );
    assert_eq!(kept, [0, 1, 2, 3]);
    assert_eq!(
        small.poll(9, |_| panic!()).unwrap_err().errno(),
        libc::EOVERFLOW
    );
}

#[test]
fn all_queue_pairs_of_a_queue_that_overflows_end_and_no_others() {
    let (left, right) = wired();
    let (left, right) = (
        End::new(&left, QpType::Rc, 256),
        End::new(&right, QpType::Rc, 256),
    );
    let small = left.device.create_cq(4, None).unwrap();
    let make = |send: &Arc<Cq>, recv: &Arc<Cq>| {
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(send),
            recv_cq: Arc::clone(recv),
            srq: None,
            caps: CAPS,
            signal_all: false,
        };
        left.pd.create_qp(init).unwrap()
    };
    let sender = make(&small, &left.cq);
    let receiver = make(&left.cq, &small);
    let (idle, other) = (make(&small, &small), make(&left.cq, &left.cq));
    for qp in [&sender, &receiver, &other] {
        connect(qp, right.qp.number(), right.path());
    }
    connect(&right.qp, sender.number(), left.path());
    let sges = [left.memory.sge(0, 8)];
    receiver
        .post_recv(&RecvWr {
            wr_id: 77,
            sges: &sges,
        })
        .unwrap();
    for wr_id in 0..6 {
        let wr = SendWr {
            wr_id,
            sges: &[],
            ..left.write(&right, 0, 0)
        };
        sender.post_send(&wr).unwrap();
    }
    wait_until("the overrun", || receiver.state() == QpState::Error);
    assert_eq!(sender.state(), QpState::Error);
    assert_eq!(other.state(), QpState::ReadyToSend);
    // In RESET no request is left to complete.
    assert_eq!(idle.state(), QpState::Reset);
    // No completion follows a lost one.
    let mut seen = Vec::new();
    small.poll(2, |done| seen.push(done.wr_id)).unwrap();
    other
        .modify(
            &QpAttributes {
                state: QpState::Error,
                ..QpAttributes::default()
            },
            AttrMask::STATE,
        )
        .unwrap();
    small.poll(9, |done| seen.push(done.wr_id)).unwrap();
    assert_eq!(seen, [0, 1, 2, 3]);
    assert_eq!(
        small.poll(9, |_| panic!()).unwrap_err().errno(),
        libc::EOVERFLOW
    );
    let wr = RecvWr {
        wr_id: 78,
        sges: &sges,
    };
    receiver.post_recv(&wr).unwrap();
    assert_eq!(
        small.poll(9, |_| panic!()).unwrap_err().errno(),
        libc::EOVERFLOW
    );
}

#[test]
fn events_of_a_destroyed_completion_queue_vanish() {
    let (left, right) = pair(256);
    right.recv(0, 0, 8);
    right.cq.arm(false).unwrap();
    left.send(Operation::Send, 0, 8);
    assert!(readable(right.channel.fd(), LONG_MS));
    right.qp.destroy().unwrap();
    right.cq.destroy().unwrap();
    assert!(!readable(right.channel.fd(), 0));
    right.channel.destroy().unwrap();
}
