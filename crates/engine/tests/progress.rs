//! The device makes progress whatever the application does or does not do.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use airdma_port::Port;
use airdma_port::sim::{self, SimPort};
use airdma_wire::{Opcode, Packet};
use common::*;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A connection whose other end is under the test's control.
fn against_a_port() -> (End, SimPort) {
    let (left, right) = (IpAddr::from(LEFT), IpAddr::from(RIGHT));
    let (a, b) = sim::pair(&[left], &[right]).unwrap();
    let device = Device::plain_with_port(info("left", left), Box::new(a)).unwrap();
    let end = End::new(&device, QpType::Rc, 256);
    to_rtr(
        &end.qp,
        Qpn::new(0x1234),
        Path {
            gid: Gid::from(right),
            ..Path::default()
        },
    );
    (end, b)
}

/// Opcodes of the packets that reach the port until `count` have, without a call into the library.
fn packets(port: &mut SimPort, count: usize) -> Vec<Opcode> {
    let mut opcodes = Vec::new();
    wait_until("packets", || {
        port.receive(64, &mut |received| {
            opcodes.push(Packet::parse(received.bytes).unwrap().headers.bth.opcode)
        })
        .unwrap();
        opcodes.len() >= count
    });
    opcodes
}

fn readable(fd: RawFd, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut poll, 1, timeout_ms) == 1 }
}

#[test]
fn timers_fire_although_nobody_calls_the_library() {
    let (end, mut port) = against_a_port();
    to_rts(&end.qp, 8);
    end.cq.arm(false).unwrap();
    end.send(Operation::Send, 0, 8);
    // The first and its repetitions, four for each of eight tries (more, if this host sleeps), then
    // the failure.
    let sent = packets(&mut port, 32);
    assert!(sent.iter().all(|&opcode| opcode == Opcode::RcSendOnly));
    assert!(readable(end.channel.fd(), 20_000));
    assert_eq!(end.complete().status, Status::RetryExceeded);
}

#[test]
fn an_earlier_timer_reaches_a_thread_that_sleeps_already() {
    let (end, mut port) = against_a_port();
    // Half an hour for the first one: the sleeper would not wake for the second by itself.
    to_rts(&end.qp, 29);
    end.send(Operation::Send, 0, 8);
    packets(&mut port, 1);
    let quick = create_qp(&end.pd, &end.cq, QpType::Rc, CAPS);
    to_rtr(&quick, Qpn::new(0x1235), end.path().clone_to(RIGHT));
    to_rts(&quick, 8);
    quick
        .post_send(&signalled(Operation::Send, end.memory.sge(0, 8)))
        .unwrap();
    packets(&mut port, 8);
}

/// A thread blocked in `ibv_get_cq_event` on a starved machine: it was woken, and is not scheduled.
#[test]
fn a_waiting_thread_that_is_not_scheduled_delays_nothing() {
    let (left, right) = pair(1 << 16);
    right.cq.arm(false).unwrap();
    let mut wait = ChannelWait::new(&right.channel);
    assert!(wait.step().unwrap().is_none(), "it sleeps from here on");
    let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
    for round in 0..50u8 {
        left.memory.fill(0, &pattern(1000, round));
        left.qp.post_send(&left.write(&right, 0, 1000)).unwrap();
        left.ok();
        left.send(Operation::Read { va, rkey }, 2000, 1000);
        left.ok();
        assert_eq!(left.memory.bytes(2000, 1000), pattern(1000, round));
        // A pause in which the progress thread may fall asleep.
        std::thread::sleep(Duration::from_millis(u64::from(round % 8)));
    }
    // Its event is there when it is scheduled.
    right.recv(1, 0, 8);
    left.send(Operation::Send, 0, 8);
    left.ok();
    wait.woke(Ok(1)).unwrap();
    assert!(wait.step().unwrap().is_some());
    right.ok();
}

trait CloneTo {
    fn clone_to(&self, address: [u8; 4]) -> Path;
}

impl CloneTo for Path {
    fn clone_to(&self, address: [u8; 4]) -> Path {
        Path {
            gid: Gid::from(IpAddr::from(address)),
            ..*self
        }
    }
}

#[test]
fn a_passive_host_serves_requests_without_a_call() {
    let (left, right) = pair(1 << 20);
    let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
    for round in 0..50u64 {
        left.memory.fill(0, &pattern(1 << 16, round as u8));
        left.qp.post_send(&left.write(&right, 0, 1 << 16)).unwrap();
        left.ok();
        left.send(Operation::Read { va, rkey }, 1 << 17, 1 << 16);
        left.ok();
        assert_eq!(
            left.memory.bytes(1 << 17, 1 << 16),
            pattern(1 << 16, round as u8)
        );
        left.send(
            Operation::FetchAdd {
                va: va + (1 << 17),
                rkey,
                add: 1,
            },
            0,
            8,
        );
        left.ok();
        assert_eq!(left.memory.word(0), round);
    }
}

/// `ib_write_lat`: both sides write, poll for a completion, and spin on their memory.
#[test]
fn two_programs_that_spin_on_memory_make_progress() {
    const ROUNDS: u8 = 200;
    let (left, right) = pair(64);
    let play = |end: &End, peer: &End, begins: bool| {
        for round in 1..=ROUNDS {
            if !begins {
                wait_until("the peer's write", || end.memory.byte(0) == round);
            }
            end.memory.fill(8, &[round]);
            let (va, rkey) = (peer.memory.address(), peer.memory.mr.rkey());
            end.send(Operation::Write { va, rkey }, 8, 1);
            end.ok();
            if begins {
                wait_until("the peer's write", || end.memory.byte(0) == round);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(&right, &left, false));
        play(&left, &right, true);
    });
}

#[test]
fn many_threads_post_to_one_queue_pair_and_nothing_is_lost() {
    const THREADS: u32 = 4;
    const EACH: u32 = 2000;
    let (left, right) = pair(64);
    let (left, right) = (&left, &right);
    let (posted, completed) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
                    let sges = [left.memory.sge(8, 8)];
                    let operation = Operation::FetchAdd { va, rkey, add: 1 };
                    let flags = SendFlags::SIGNALLED;
                    let wr = SendWr {
                        wr_id: 1,
                        operation,
                        sges: &sges,
                        flags,
                        datagram: None,
                        srqn: 0,
                    };
                    // Completions must fit their queue too.
                    let ahead = || posted.load(Ordering::SeqCst) - completed.load(Ordering::SeqCst);
                    wait_until("room in the queues", || {
                        if ahead() >= 400 {
                            return false;
                        }
                        let result = left.qp.post_send(&wr);
                        if let Err(error) = &result {
                            assert_eq!(error.errno(), libc::ENOMEM);
                        }
                        result.is_ok()
                    });
                    posted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // Two threads poll, one of them from the beginning, so that they fetch completions in
        // parallel.
        let poll = || {
            wait_until("all completions", || {
                let count = left
                    .cq
                    .poll(8, |completion| {
                        assert_eq!(completion.status, Status::Success)
                    })
                    .unwrap();
                completed.fetch_add(count as u32, Ordering::SeqCst);
                completed.load(Ordering::SeqCst) == THREADS * EACH
            });
        };
        std::thread::scope(|pollers| {
            pollers.spawn(poll);
            poll();
        });
    });
    assert_eq!(posted.load(Ordering::Relaxed), THREADS * EACH);
    assert_eq!(right.memory.word(0), u64::from(THREADS * EACH));
}

#[test]
fn a_list_of_small_messages_leaves_although_nobody_polls() {
    let (left, right) = pair(1024);
    for wr_id in 0..64 {
        right.recv(wr_id, 0, 8);
    }
    for _ in 0..63 {
        let sges = [left.memory.sge(0, 8)];
        let flags = SendFlags::empty();
        left.qp
            .post_send(&SendWr {
                wr_id: 0,
                operation: Operation::Send,
                sges: &sges,
                flags,
                datagram: None,
                srqn: 0,
            })
            .unwrap();
    }
    // Only the receiver polls.
    for wr_id in 0..63 {
        assert_eq!(right.ok().wr_id, wr_id);
    }
}

#[test]
fn datagrams_leave_although_nobody_polls() {
    let (left, right) = wired();
    let (left, right) = (
        End::new(&left, QpType::Ud, 256),
        End::new(&right, QpType::Ud, 256),
    );
    datagram_to_rts(&left.qp, Qkey(1));
    datagram_to_rts(&right.qp, Qkey(1));
    for wr_id in 0..60 {
        right.recv(wr_id, 0, 100);
    }
    let datagram = Some(Datagram {
        path: right.path(),
        qpn: right.qp.number(),
        qkey: Qkey(1),
    });
    for _ in 0..60 {
        let wr = SendWr {
            flags: SendFlags::empty(),
            datagram,
            ..signalled(Operation::Send, left.memory.sge(0, 8))
        };
        left.qp.post_send(&wr).unwrap();
    }
    for wr_id in 0..60 {
        assert_eq!(right.ok().wr_id, wr_id);
    }
}
