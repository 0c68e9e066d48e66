//! Many threads use the same objects, as `ibv_post_send(3)` and its kin permit.
//!
//! Shared queue pairs, completion queues and receive queues are posted to, polled, armed and waited
//! for, while memory is registered and deregistered, queue pairs are made, fail and are destroyed,
//! queues are resized, counters are read, and processes are forked.
//!
//! Each request completes exactly once, with its bytes in place. `AIRDMA_THREADS_SECONDS` is the
//! duration (one second); `make tsan` runs it under ThreadSanitizer, for which the application
//! accesses its own memory as the manual permits: before the post, and after the completion. So a
//! completion that does not publish its data is reported as a race.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// Connections that share one completion queue on each side, and one receive queue on the right.
const PAIRS: usize = 3;
/// Most messages in flight: each has its part of the memory on both sides.
const SLOTS: usize = 48;
const SLOT: usize = 1536;
const RECEIVES: usize = 64;
const POSTERS: usize = 2;

/// States of a slot.
const FREE: u8 = 0;
const POSTED: u8 = 1;

struct Hosts {
    left: End,
    right: End,
    senders: Vec<Arc<Qp>>,
    receivers: Vec<Arc<Qp>>,
    srq: Arc<Srq>,
    slots: Vec<AtomicU8>,
    stop: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
    messages: AtomicU64,
    /// Threads that block at times.
    blocked: AtomicU32,
}

fn qp_on(end: &End, srq: Option<&Arc<Srq>>) -> Arc<Qp> {
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: Arc::clone(&end.cq),
        recv_cq: Arc::clone(&end.cq),
        srq: srq.cloned(),
        caps: CAPS,
        signal_all: false,
    };
    end.pd.create_qp(init).unwrap()
}

impl Hosts {
    fn new() -> Hosts {
        let (a, b) = wired();
        let left = End::new(&a, QpType::Ud, SLOTS * SLOT);
        let right = End::new(&b, QpType::Ud, (SLOTS + RECEIVES) * SLOT);
        let attributes = SrqAttributes {
            max_wr: RECEIVES as u32,
            max_sge: 1,
            limit: 0,
        };
        let srq = right.pd.create_srq(attributes, None).unwrap();
        let senders: Vec<_> = (0..PAIRS).map(|_| qp_on(&left, None)).collect();
        let receivers: Vec<_> = (0..PAIRS).map(|_| qp_on(&right, Some(&srq))).collect();
        for (sender, receiver) in senders.iter().zip(&receivers) {
            connect(sender, receiver.number(), right.path());
            connect(receiver, sender.number(), left.path());
        }
        Hosts {
            left,
            right,
            senders,
            receivers,
            srq,
            slots: (0..SLOTS).map(|_| AtomicU8::new(FREE)).collect(),
            stop: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            blocked: AtomicU32::new(0),
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Posts a receive into the `number`-th buffer.
    fn receive(&self, number: usize) {
        let sges = [self.right.memory.sge((SLOTS + number) * SLOT, SLOT)];
        let wr = RecvWr {
            wr_id: number as u64,
            sges: &sges,
        };
        self.srq.begin_post().push(&wr).unwrap();
    }

    /// Posts the message of a free slot to one of the queue pairs, which all posters use.
    fn send(&self, slot: usize, number: u64) {
        let qp = &self.senders[number as usize % PAIRS];
        let length = 16 + number as usize * 37 % (SLOT - 16);
        let is_send = number.is_multiple_of(2);
        self.left
            .memory
            .fill(slot * SLOT, &pattern(length, number as u8));
        let va = self.right.memory.address() + (slot * SLOT) as u64;
        let rkey = self.right.memory.mr.rkey();
        let imm = [number as u8, slot as u8, (length >> 8) as u8, length as u8];
        let operation = if is_send {
            Operation::SendImm(imm)
        } else {
            Operation::Write { va, rkey }
        };
        let sges = [self.left.memory.sge(slot * SLOT, length)];
        let wr = SendWr {
            wr_id: slot as u64,
            operation,
            sges: &sges,
            flags: SendFlags::SIGNALLED | SendFlags::SOLICITED,
            datagram: None,
            srqn: 0,
        };
        self.messages
            .fetch_add(u64::from(is_send), Ordering::Relaxed);
        loop {
            match qp.post_send(&wr) {
                Ok(()) => return,
                // Full: polling threads make room.
                Err(Error::NoMemory(_)) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Posts a message if there is a slot.
    fn post(&self, number: u64) -> bool {
        let is_free = |slot: &AtomicU8| {
            let exchanged =
                slot.compare_exchange(FREE, POSTED, Ordering::Acquire, Ordering::Relaxed);
            exchanged.is_ok()
        };
        let slot = self.slots.iter().position(is_free);
        slot.inspect(|&slot| self.send(slot, number)).is_some()
    }

    /// One poll of the senders' queue.
    fn poll_left(&self) {
        let slot_done = |completion: Completion| {
            assert_eq!(completion.status, Status::Success);
            let before = self.slots[completion.wr_id as usize].swap(FREE, Ordering::Release);
            assert_eq!(before, POSTED, "completed twice");
            self.sent.fetch_add(1, Ordering::Relaxed);
        };
        self.left.cq.poll(4, slot_done).unwrap();
    }

    /// One poll of the receivers' queue: checks the messages, and posts their buffers again.
    fn poll_right(&self) {
        let mut buffers = Vec::new();
        self.right
            .cq
            .poll(4, |completion| {
                assert_eq!(completion.status, Status::Success);
                let [number, _, high, low] = completion.imm.unwrap();
                let length = usize::from(high) << 8 | usize::from(low);
                assert_eq!(completion.byte_len as usize, length);
                let at = (SLOTS + completion.wr_id as usize) * SLOT;
                assert_eq!(self.right.memory.bytes(at, length), pattern(length, number));
                buffers.push(completion.wr_id as usize);
            })
            .unwrap();
        let count = buffers.len() as u64;
        buffers.into_iter().for_each(|buffer| self.receive(buffer));
        self.received.fetch_add(count, Ordering::Relaxed);
    }

    /// Waits for completions of the senders' queue, again and again.
    fn wait_left(&self) {
        self.blocked.fetch_add(1, Ordering::Relaxed);
        while self.goes_on() {
            self.left.cq.arm(false).unwrap();
            self.poll_left();
            assert_eq!(self.left.channel.wait_event().unwrap(), 42);
        }
        self.blocked.fetch_sub(1, Ordering::Relaxed);
    }

    /// Polls for events of the receivers' queue, again and again.
    fn wait_right(&self) {
        while self.goes_on() {
            self.right.cq.arm(true).unwrap();
            self.poll_right();
            match self.right.channel.wait_event() {
                Ok(_) => self.poll_right(),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EAGAIN)),
            }
        }
    }

    fn make_nonblocking(&self) {
        // SAFETY: no pointers; the descriptor lives as long as the channel.
        let set = unsafe { libc::fcntl(self.right.channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(set, 0);
    }

    fn is_drained(&self) -> bool {
        let all_free = self
            .slots
            .iter()
            .all(|slot| slot.load(Ordering::Acquire) == FREE);
        all_free && self.received.load(Ordering::Relaxed) == self.messages.load(Ordering::Relaxed)
    }
}

/// Registers and deregisters memory, and changes its rights.
fn register(hosts: &Hosts, end: &End) {
    while hosts.goes_on() {
        let memory = Memory::new(&end.pd, 4096, ALL);
        let change = RegionChange {
            access: Some(Access::LOCAL_WRITE),
            ..RegionChange::default()
        };
        memory.mr.reregister(None, &change).unwrap();
        memory.mr.deregister().unwrap();
    }
}

/// Makes queue pairs to an absent peer, posts to them in one thread, fails them in another, and
/// destroys them.
fn come_and_go(hosts: &Hosts, device: &Arc<Device>) {
    let end = End::new(device, QpType::Ud, 64);
    while hosts.goes_on() {
        let qp = create_qp(&end.pd, &end.cq, QpType::Rc, CAPS);
        connect(&qp, Qpn::new(0xff_fff0), end.path());
        let posted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let sges = [end.memory.sge(0, 8)];
                for _ in 0..20 {
                    let wr = RecvWr {
                        wr_id: 1,
                        sges: &sges,
                    };
                    let sent = qp.post_send(&signalled(Operation::Send, sges[0]));
                    let received = qp.post_recv(&wr);
                    let count = u64::from(sent.is_ok()) + u64::from(received.is_ok());
                    posted.fetch_add(count, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                let error = QpAttributes {
                    state: QpState::Error,
                    ..QpAttributes::default()
                };
                qp.modify(&error, AttrMask::STATE).unwrap();
                qp.query().unwrap();
            });
        });
        // All requests are flushed.
        let mut flushed = 0;
        wait_until("flushed requests", || {
            let flush = |completion: Completion| {
                // The first may run out of retries before the other thread is scheduled.
                let status = completion.status;
                assert!(matches!(
                    status,
                    Status::WrFlushError | Status::RetryExceeded
                ));
                flushed += 1;
            };
            end.cq.poll(16, flush).unwrap();
            flushed >= posted.load(Ordering::Relaxed)
        });
        assert_eq!(flushed, posted.load(Ordering::Relaxed));
        qp.destroy().unwrap();
    }
}

/// Resizes, watches and queries the queues that others use.
fn look_around(hosts: &Hosts) {
    let mut entries = 512;
    while hosts.goes_on() {
        for end in [&hosts.left, &hosts.right] {
            entries = 1536 - entries;
            end.cq.resize(entries).unwrap();
            assert!(!end.device.counters().is_empty());
        }
        hosts.srq.set_limit(1).unwrap();
        hosts.srq.resize(RECEIVES as u32 * 2).unwrap();
        hosts.srq.query();
        for qp in hosts.senders.iter().chain(&hosts.receivers) {
            assert_eq!(qp.query().unwrap().state, QpState::ReadyToSend);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends datagrams from several threads on one queue pair, to an absent peer.
fn scatter(hosts: &Hosts) {
    let end = End::new(&hosts.left.device, QpType::Ud, 256);
    datagram_to_rts(&end.qp, Qkey(7));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while hosts.goes_on() {
                    let wr = SendWr {
                        datagram: Some(Datagram {
                            path: hosts.right.path(),
                            qpn: Qpn::new(0xff_ff00),
                            qkey: Qkey(7),
                        }),
                        ..signalled(Operation::Send, end.memory.sge(0, 64))
                    };
                    // The queue is full at times.
                    end.qp.post_send(&wr).ok();
                    end.cq.poll(2, |_| ()).unwrap();
                }
            });
        }
    });
}

/// A child that becomes another program leaves the devices alone.
fn fork_and_exec(hosts: &Hosts) {
    while hosts.goes_on() {
        // SAFETY: the child only calls `execv` and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let arguments = [c"/bin/true".as_ptr(), std::ptr::null()];
            // SAFETY: strings that end, and a list that does.
            unsafe {
                libc::execv(arguments[0], arguments.as_ptr());
                libc::_exit(127);
            }
        }
        let mut status = -1;
        // SAFETY: a child of this process, and a local integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn spawn_all<'scope>(scope: &'scope Scope<'scope, '_>, hosts: &'scope Hosts) {
    for first in 0..POSTERS as u64 {
        scope.spawn(move || {
            let mut number = first;
            while hosts.goes_on() {
                if hosts.post(number) {
                    number += POSTERS as u64;
                } else {
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(move || hosts.wait_left());
    }
    for _ in 0..2 {
        scope.spawn(move || {
            while hosts.goes_on() {
                hosts.poll_left();
            }
        });
        scope.spawn(move || hosts.wait_right());
    }
    for end in [&hosts.left, &hosts.right] {
        scope.spawn(move || register(hosts, end));
    }
    scope.spawn(move || come_and_go(hosts, &hosts.left.device));
    scope.spawn(move || look_around(hosts));
    scope.spawn(move || scatter(hosts));
    scope.spawn(move || fork_and_exec(hosts));
}

#[test]
fn threads_share_everything() {
    let seconds = std::env::var("AIRDMA_THREADS_SECONDS");
    let seconds = seconds.map_or(1, |seconds| seconds.parse().unwrap());
    // A blocked thread would delay the report of the others' failures.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::abort();
    }));
    let hosts = Hosts::new();
    hosts.make_nonblocking();
    (0..RECEIVES).for_each(|buffer| hosts.receive(buffer));
    let start = Instant::now();
    std::thread::scope(|scope| {
        spawn_all(scope, &hosts);
        while start.elapsed() < Duration::from_secs(seconds) {
            std::thread::sleep(Duration::from_millis(10));
        }
        hosts.stop.store(true, Ordering::Relaxed);
        // Each blocked thread gets an event: one is raised each time that the queue is armed.
        wait_until("blocked threads", || {
            hosts.left.cq.arm(false).unwrap();
            hosts.post(0);
            hosts.poll_left();
            std::thread::sleep(Duration::from_millis(1));
            hosts.blocked.load(Ordering::Relaxed) == 0
        });
    });
    wait_until("the last completions", || {
        hosts.poll_left();
        hosts.poll_right();
        hosts.is_drained()
    });
    let sent = hosts.sent.load(Ordering::Relaxed);
    let received = hosts.received.load(Ordering::Relaxed);
    eprintln!(
        "{sent} requests, {received} messages in {:?}",
        start.elapsed()
    );
    assert!(sent > 0 && received > 0);
}
