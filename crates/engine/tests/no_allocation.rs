//! After warm-up no message allocates, whatever service it uses, and whatever the network does to
//! it.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::simulated::Simulated;
use airdma_engine::*;
use airdma_port::Port;
use airdma_port::impair::Impaired;
use airdma_port::sim::{self, SimPort};
use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::time::Duration;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A single test: another one's allocations would count too, as those of the progress threads do.
#[test]
fn nothing_allocates_after_warm_up() {
    // The counter works at all.
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(vec![0_u8; 100]));
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > before);

    reliable_connections();
    unreliable_connections();
    datagrams();
    records();
    reliable_datagrams();
    shared_receives();
    receivers_that_are_late();
    completion_events();
    losses();
}

/// Series of rounds, one of which must pass without an allocation: each length of a packet takes
/// memory once, when it is first not the head of a burst (`IdSpaces`), at a time that depends on
/// the scheduler.
const SERIES: usize = 4;

fn measure(name: &str, mut round: impl FnMut()) {
    let mut series = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..200 {
            round();
        }
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    let warm_up = series();
    let mut counts = [u64::MAX; SERIES];
    for count in &mut counts {
        *count = series();
        if *count == 0 {
            return;
        }
    }
    panic!("{name}: {warm_up}, then {counts:?} allocations in 200 rounds each");
}

fn post(end: &End, operation: Operation, length: usize, datagram: Option<Datagram>) {
    let sges = [end.memory.sge(0, length)];
    let wr = SendWr {
        wr_id: 1,
        operation,
        sges: &sges,
        flags: SendFlags::SIGNALLED,
        datagram,
        srqn: 0,
    };
    end.qp.post_send(&wr).unwrap();
}

fn takes_a_receive(operation: &Operation) -> bool {
    use Operation::{Send, SendImm, WriteImm};
    matches!(operation, Send | SendImm(_) | WriteImm { .. })
}

/// About 330 packets a round.
fn reliable_connections() {
    let (left, right) = sockets("127.0.0.27", "127.0.0.28");
    let (left, right) = pair_on(&left, &right, 1 << 16);
    let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
    let (imm, write) = ([1, 2, 3, 4], Operation::Write { va, rkey });
    let (compare, swap) = (1, 2);
    let operations = [
        (Operation::Send, 3000),
        (Operation::SendImm(imm), 3000),
        (write, 1 << 16),
        (Operation::WriteImm { va, rkey, imm }, 3000),
        (Operation::Read { va, rkey }, 1 << 16),
        (Operation::FetchAdd { va, rkey, add: 1 }, 8),
        (
            Operation::CompareSwap {
                va,
                rkey,
                compare,
                swap,
            },
            8,
        ),
    ];
    // A write behind two atomics gets into their burst only if both lists leave at once, which is
    // done here on purpose.
    let mut batch = left.qp.begin_batch();
    for add in [1, 2] {
        let add = Operation::FetchAdd { va, rkey, add };
        batch.begin(1, add, SendFlags::SIGNALLED);
        batch.set_sges(&[left.memory.sge(0, 8)]);
    }
    batch.begin(1, write, SendFlags::empty());
    batch.set_sges(&[left.memory.sge(0, 8)]);
    batch.commit().unwrap();
    left.ok();
    left.ok();
    measure("reliable connections", || {
        for (operation, length) in operations {
            let is_received = takes_a_receive(&operation);
            if is_received {
                right.recv(1, 0, length);
            } else {
                post(&left, operation, length, None);
            }
            post(&left, operation, length, None);
            let mut batch = left.qp.begin_batch();
            batch.begin(1, write, SendFlags::empty());
            batch.set_sges(&[left.memory.sge(0, length)]);
            batch.begin(1, write, SendFlags::empty());
            batch.set_inline([&[1; 8][..], &[2; 8][..]]);
            batch.commit().unwrap();
            left.ok();
            if is_received {
                right.ok();
            } else {
                left.ok();
            }
        }
    });
}

/// About 12 packets a round.
fn unreliable_connections() {
    let (left, right) = sockets("127.0.0.27", "127.0.0.28");
    let ends = [&left, &right].map(|device| End::new(device, QpType::Uc, 1 << 16));
    for (end, peer) in [(0, 1), (1, 0)] {
        connect_unreliable(&ends[end].qp, ends[peer].qp.number(), ends[peer].path());
    }
    let [left, right] = ends;
    let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
    measure("unreliable connections", || {
        right.recv(1, 0, 3000);
        right.recv(1, 0, 3000);
        post(&left, Operation::Write { va, rkey }, 6000, None);
        post(&left, Operation::Send, 3000, None);
        post(&left, Operation::SendImm([0; 4]), 3000, None);
        for end in [&left, &left, &left, &right, &right] {
            end.ok();
        }
    });
}

fn connect_unreliable(qp: &Qp, peer: Qpn, path: Path) {
    let to_init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let to_receive = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    for (state, mask) in [
        (QpState::Init, to_init),
        (QpState::ReadyToReceive, to_receive),
        (QpState::ReadyToSend, AttrMask::SQ_PSN),
    ] {
        let attributes = QpAttributes {
            state,
            port: 1,
            access: ALL,
            path,
            path_mtu: PathMtu::M1024,
            dest_qpn: peer,
            ..QpAttributes::default()
        };
        qp.modify(&attributes, mask | AttrMask::STATE).unwrap();
    }
}

fn datagrams() {
    let (left, right) = sockets("127.0.0.27", "127.0.0.28");
    let [left, right] = [&left, &right].map(|device| End::new(device, QpType::Ud, 1 << 16));
    for end in [&left, &right] {
        datagram_to_rts(&end.qp, Qkey(5));
    }
    let ah = left.pd.create_ah(right.path()).unwrap();
    let datagram = Datagram {
        path: *ah.path(),
        qpn: right.qp.number(),
        qkey: Qkey(5),
    };
    measure("datagrams", || {
        for length in [8, 64, 1024] {
            for operation in [Operation::Send, Operation::SendImm([0; 4])] {
                right.recv(1, 0, 40 + length);
                post(&left, operation, length, Some(datagram));
                left.ok();
                right.ok();
            }
        }
    });
}

fn records() {
    let (left, right) = sockets("127.0.0.27", "127.0.0.28");
    let [left, right] = [&left, &right].map(|device| End::new(device, QpType::Ud, 1 << 16));
    for end in [&left, &right] {
        datagram_to_rts(&end.qp, Qkey(5));
    }
    right.qp.enable_records(RecordConfig::default()).unwrap();
    let va = right.memory.address();
    let region = right.pd.reg_record_mr(va, 1 << 16, None).unwrap();
    let rkey = region.rkey();
    let ah = left.pd.create_ah(right.path()).unwrap();
    let datagram = Datagram {
        path: *ah.path(),
        qpn: right.qp.number(),
        qkey: Qkey(5),
    };
    measure("records", || {
        for length in [8, 1024, 50_000] {
            post(
                &left,
                Operation::Record { va, rkey },
                length,
                Some(datagram),
            );
            left.ok();
            let record = RecordHandle(right.ok().wr_id);
            assert!(right.qp.free_record(record));
        }
    });
}

fn reliable_datagrams() {
    let (left, right) = sockets("127.0.0.27", "127.0.0.28");
    let [left, right] = [&left, &right].map(|device| End::new(device, QpType::Ud, 1 << 16));
    for end in [&left, &right] {
        datagram_to_rts(&end.qp, Qkey(5));
    }
    left.qp.enable_reliable(ReliableConfig::default()).unwrap();
    right.qp.enable_records(RecordConfig::default()).unwrap();
    let va = right.memory.address();
    let region = right.pd.reg_record_mr(va, 1 << 16, None).unwrap();
    let record = Operation::Record {
        va,
        rkey: region.rkey(),
    };
    let datagram = Datagram {
        path: right.path(),
        qpn: right.qp.number(),
        qkey: Qkey(5),
    };
    let post = |operation, length| {
        let sges = [left.memory.sge(0, length)];
        let wr = SendWr {
            wr_id: 7,
            operation,
            sges: &sges,
            flags: SendFlags::SIGNALLED | SendFlags::RELIABLE,
            datagram: Some(datagram),
            srqn: 0,
        };
        left.qp.post_send(&wr).unwrap();
        left.ok();
    };
    measure("reliable datagrams", || {
        for length in [8, 1024, 20_000] {
            post(record, length);
            let record = RecordHandle(right.ok().wr_id);
            assert!(right.qp.free_record(record));
            right.recv(1, 0, 40 + length);
            post(Operation::Send, length);
            right.ok();
        }
    });
}

fn shared_receives() {
    let (left, right) = sockets("127.0.0.27", "127.0.0.28");
    let senders = [(); 2].map(|()| End::new(&left, QpType::Rc, 4096));
    let right = End::new(&right, QpType::Rc, 4096);
    let attributes = SrqAttributes {
        max_wr: 16,
        max_sge: 2,
        limit: 0,
    };
    let srq = right.pd.create_srq(attributes, None).unwrap();
    let qps = senders.each_ref().map(|sender| {
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&right.cq),
            recv_cq: Arc::clone(&right.cq),
            srq: Some(Arc::clone(&srq)),
            caps: CAPS,
            signal_all: false,
        };
        let qp = right.pd.create_qp(init).unwrap();
        connect(&qp, sender.qp.number(), sender.path());
        connect(&sender.qp, qp.number(), right.path());
        qp
    });
    measure("shared receives", || {
        let sges = [right.memory.sge(0, 3000)];
        let mut receives = srq.begin_post();
        for wr_id in 0..4 {
            receives.push(&RecvWr { wr_id, sges: &sges }).unwrap();
        }
        drop(receives);
        for sender in &senders {
            post(sender, Operation::Send, 3000, None);
            post(sender, Operation::SendImm([0; 4]), 64, None);
        }
        for sender in &senders {
            sender.ok();
            sender.ok();
        }
        for _ in 0..4 {
            right.ok();
        }
    });
    drop(qps);
}

/// Two ends on devices in virtual time: each run is the same.
struct Moved {
    hosts: [Simulated; 2],
    left: End,
    right: End,
    now: Duration,
}

impl Moved {
    /// `port` decides on the fate of each end's packets.
    fn new(port: impl Fn(SimPort, u64) -> Box<dyn Port>) -> Self {
        let addresses = [LEFT, RIGHT].map(IpAddr::from);
        let (a, b) = sim::pair(&addresses[..1], &addresses[1..]).unwrap();
        let host = |end, address, seed| {
            Simulated::open(info("host", address), port(end, seed), seed).unwrap()
        };
        let hosts = [host(a, addresses[0], 3), host(b, addresses[1], 4)];
        let [left, right] = hosts
            .each_ref()
            .map(|host| End::new(host.device(), QpType::Rc, 1 << 16));
        left.connect(&right);
        right.connect(&left);
        let now = Duration::ZERO;
        Moved {
            hosts,
            left,
            right,
            now,
        }
    }

    fn run(&self) {
        self.hosts.iter().for_each(|host| host.run(self.now));
    }

    /// Lets time pass until a request has completed there successfully.
    fn complete(&mut self, end: fn(&Self) -> &End) {
        let mut count = 0;
        while count == 0 {
            // A timer takes 67 ms.
            self.now += Duration::from_millis(1);
            self.run();
            let check = |completion: Completion| assert_eq!(completion.status, Status::Success);
            count = end(self).cq.poll(1, check).unwrap();
        }
    }
}

/// Each message is refused, and sent again.
fn receivers_that_are_late() {
    let mut ends = Moved::new(|port, _| Box::new(port));
    let mut messages = 0;
    measure("late receives", || {
        post(&ends.left, Operation::Send, 3000, None);
        ends.run();
        ends.right.recv(1, 0, 3000);
        ends.complete(|ends| &ends.left);
        ends.complete(|ends| &ends.right);
        messages += 1;
    });
    assert_eq!(
        counter(ends.hosts[0].device(), "rnr_naks_received"),
        messages
    );
}

/// The receiver sleeps until a completion comes: the sender, another thread, gives it the time to
/// fall asleep.
fn completion_events() {
    let (left, right) = sockets("127.0.0.27", "127.0.0.28");
    let (left, right) = pair_on(&left, &right, 4096);
    let wanted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        let (left, wanted) = (&left, &wanted);
        scope.spawn(move || {
            let mut sent = 0;
            // Ends with the other thread, however that ends.
            while ended.try_recv() == Err(TryRecvError::Empty) {
                std::thread::sleep(Duration::from_micros(300));
                if sent < wanted.load(Ordering::Acquire) {
                    sent += 1;
                    post(left, Operation::Send, 3000, None);
                    left.ok();
                }
            }
        });
        let _end = end;
        measure("completion events", || {
            right.recv(1, 0, 3000);
            right.cq.arm(false).unwrap();
            wanted.fetch_add(1, Ordering::Release);
            right.channel.wait_event().unwrap();
            right.ok();
        });
    });
}

/// Packets are lost, duplicated, damaged and reordered, both ways.
fn losses() {
    let mut ends = Moved::new(|port, seed| {
        let spec = format!("drop=2%,dup=2%,reorder=2%,corrupt=2%,seed={seed}");
        Box::new(Impaired::new(port, spec.parse().unwrap()))
    });
    let (va, rkey) = (ends.right.memory.address(), ends.right.memory.mr.rkey());
    let operations = [
        (Operation::Write { va, rkey }, 50_000),
        (Operation::Read { va, rkey }, 50_000),
        (Operation::Send, 3000),
        (Operation::FetchAdd { va, rkey, add: 1 }, 8),
    ];
    let mut round = || {
        for (operation, length) in operations {
            let is_received = takes_a_receive(&operation);
            if is_received {
                ends.right.recv(1, 0, length);
            }
            post(&ends.left, operation, length, None);
            ends.complete(|ends| &ends.left);
            if is_received {
                ends.complete(|ends| &ends.right);
            }
        }
    };
    // Until packets of every length were damaged once, which is when their explanation is computed
    // (`IdSpaces`).
    for _ in 0..300 {
        round();
    }
    measure("a bad network", round);
    let device = ends.hosts[0].device();
    assert!(counter(device, "retransmits") > 1000);
    assert!(counter(device, "timeouts") > 10);
}
