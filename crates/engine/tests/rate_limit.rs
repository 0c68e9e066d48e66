//! Rate limits of queue pairs, in virtual time.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::time::Duration;

/// Bytes behind each packet that do not count: the ICRC.
const ICRC: usize = 4;

struct Net {
    a: Host,
    b: Host,
    now: Duration,
    /// When how many bytes left the first host in one go.
    sent: Vec<(Duration, u64)>,
    /// Numbers of the first host's packets that are lost.
    lost: std::ops::Range<usize>,
    packets: usize,
}

impl Net {
    fn new() -> Self {
        Net {
            a: host("a", LEFT),
            b: host("b", RIGHT),
            now: Duration::ZERO,
            sent: Vec::new(),
            lost: 0..0,
            packets: 0,
        }
    }

    fn pair(&self, qp_type: QpType, bytes: usize) -> (End, End) {
        let left = End::new(self.a.device.device(), qp_type, bytes);
        let right = End::new(self.b.device.device(), qp_type, bytes);
        for (end, peer) in [(&left, &right), (&right, &left)] {
            match qp_type {
                QpType::Uc => connect_unreliable(&end.qp, peer.qp.number(), peer.path()),
                QpType::Rc
                | QpType::Ud
                | QpType::XrcSend
                | QpType::XrcReceive
                | QpType::RawPacket => end.connect(peer),
            }
        }
        (left, right)
    }

    /// Delivers everything without delay, until nothing moves at this moment.
    fn settle(&mut self) {
        loop {
            self.a.device.run(self.now);
            let mut bytes = 0;
            while let Some(frame) = self.a.carrier.take() {
                bytes += frame.bytes.len() - ICRC;
                if !self.lost.contains(&self.packets) {
                    self.b.carrier.give(frame);
                }
                self.packets += 1;
            }
            self.b.device.run(self.now);
            let mut answered = false;
            while let Some(frame) = self.b.carrier.take() {
                answered = true;
                self.a.carrier.give(frame);
            }
            if bytes > 0 {
                self.sent.push((self.now, bytes as u64));
            } else if !answered {
                return;
            }
        }
    }

    /// Passes from one deadline to the next until `end`, or until `done`.
    fn pass(&mut self, end: Duration, mut done: impl FnMut() -> bool) {
        self.settle();
        while !done() {
            let next = [self.a.device.deadline(), self.b.device.deadline()];
            let Some(next) = next.into_iter().flatten().min().filter(|&at| at <= end) else {
                self.now = end;
                return self.settle();
            };
            self.now = self.now.max(next);
            self.settle();
        }
    }

    fn bytes(&self) -> u64 {
        self.sent.iter().map(|&(_, bytes)| bytes).sum()
    }

    fn counter(&self, name: &str) -> u64 {
        counter(self.a.device.device(), name)
    }
}

fn write_all(left: &End, right: &End, count: usize, length: usize) {
    for _ in 0..count {
        left.qp.post_send(&left.write(right, 0, length)).unwrap();
    }
}

/// In each interval that begins with the first packet, no more leaves than the limit, a burst of a
/// millisecond, another millisecond that is made up for, and the end of a packet.
fn assert_within(sent: &[(Duration, u64)], kbps: u64) {
    let (mut total, first) = (0, sent[0].0);
    let in_a_millisecond = (kbps / 8).clamp(4200, 63_500);
    for &(at, bytes) in sent {
        total += bytes;
        let passed = (at - first).as_nanos() as u64;
        let most = passed * kbps / 8_000_000 + 2 * in_a_millisecond + 1100;
        assert!(total <= most, "{total} of {most} bytes after {passed} ns");
    }
}

#[test]
fn a_limited_connection_sends_exactly_at_its_limit() {
    for (qp_type, kbps) in [
        (QpType::Rc, 80_000),
        (QpType::Rc, 5_000_000),
        (QpType::Uc, 80_000),
    ] {
        let mut net = Net::new();
        let (left, right) = net.pair(qp_type, 1 << 20);
        left.qp.limit_rate(kbps, 0).unwrap();
        write_all(&left, &right, 32, 1 << 20);
        let second = Duration::from_secs(1);
        net.pass(second, || false);
        assert_within(&net.sent, u64::from(kbps));
        let expected = (u64::from(kbps) * 125).min(32 * (1024 * 1036 + 16));
        let burst = 2 * 63_500;
        let off = net.bytes().abs_diff(expected);
        assert!(off <= burst, "{qp_type:?}: {} of {expected}", net.bytes());
        assert_eq!(net.counter("retransmits"), 0);
    }
}

#[test]
fn a_slow_limit_causes_no_retransmission() {
    let mut net = Net::new();
    let (left, right) = net.pair(QpType::Rc, 1 << 16);
    // A kilobyte each second; the timeout is 67 ms.
    left.qp.limit_rate(8, 0).unwrap();
    write_all(&left, &right, 1, 40_000);
    net.pass(Duration::from_secs(100), || left.try_complete().is_some());
    let took = net.now.as_secs();
    assert!((30..=40).contains(&took), "{took} s");
    assert_eq!(net.counter("retransmits"), 0);
    assert_eq!(net.counter("timeouts"), 0);
}

/// Each ACK says what is missing, so all of it is repaired at once.
#[test]
fn repairs_of_many_lost_packets_keep_to_the_limit() {
    for kbps in [20_000, 80_000] {
        let mut net = Net::new();
        for host in [&net.a, &net.b] {
            host.device.offer_sack();
        }
        let (left, right) = net.pair(QpType::Rc, 1 << 18);
        net.settle();
        assert_eq!(net.counter("air_agreed"), 1);
        write_all(&left, &right, 1, 60 * 1024);
        net.a.device.run(net.now);
        let mut frames = Vec::new();
        while let Some(frame) = net.a.carrier.take() {
            frames.push(frame);
        }
        assert!(frames.len() > 40, "{}", frames.len());
        left.qp.limit_rate(kbps, 0).unwrap();
        for frame in frames.drain(frames.len() - 2..) {
            net.b.carrier.give(frame);
        }
        net.b.device.run(net.now);
        while let Some(frame) = net.b.carrier.take() {
            net.a.carrier.give(frame);
        }
        net.sent.clear();
        net.pass(Duration::from_secs(2), || left.try_complete().is_some());
        assert_within(&net.sent, u64::from(kbps));
        assert!(net.counter("retransmits") >= 38);
        assert!(net.now < Duration::from_millis(u64::from(1_000_000 / kbps)));
    }
}

#[test]
fn a_slow_limit_repairs_without_giving_up() {
    for offers in [false, true] {
        let mut net = Net::new();
        for host in [&net.a, &net.b] {
            if offers {
                host.device.offer_sack();
            }
        }
        let (left, right) = net.pair(QpType::Rc, 1 << 16);
        net.settle();
        net.lost = net.packets + 10..net.packets + 16;
        left.qp.limit_rate(8, 0).unwrap();
        write_all(&left, &right, 1, 40_000);
        let mut completion = None;
        net.pass(Duration::from_secs(400), || {
            completion = left.try_complete();
            completion.is_some()
        });
        assert_eq!(completion.unwrap().status, Status::Success, "{offers}");
    }
}

#[test]
fn responses_and_other_queue_pairs_are_not_limited() {
    let mut net = Net::new();
    let (left, right) = net.pair(QpType::Rc, 1 << 20);
    let (other, peer) = net.pair(QpType::Rc, 1 << 20);
    left.qp.limit_rate(8, 0).unwrap();
    write_all(&left, &right, 1, 1 << 20);
    net.settle();
    let held = net.bytes();
    assert!(held < 12_000, "{held} bytes");
    // The peer reads through the limited queue pair, and another one writes, in no time.
    let read = Operation::Read {
        va: left.memory.address(),
        rkey: left.memory.mr.rkey(),
    };
    right.send(read, 0, 1 << 19);
    write_all(&other, &peer, 1, 1 << 20);
    net.settle();
    assert_eq!(right.ok().opcode, CompletionOpcode::Read);
    assert_eq!(other.ok().opcode, CompletionOpcode::Write);
    assert!(left.try_complete().is_none());
    // Without its limit all the rest leaves.
    left.qp.limit_rate(0, 0).unwrap();
    net.settle();
    assert_eq!(left.ok().opcode, CompletionOpcode::Write);
}

#[test]
fn a_burst_is_as_long_as_it_may_be() {
    let mut net = Net::new();
    let (left, right) = net.pair(QpType::Rc, 1 << 20);
    left.qp.limit_rate(800_000, 2080).unwrap();
    net.now = Duration::from_secs(1);
    net.settle();
    write_all(&left, &right, 1, 1 << 20);
    net.pass(Duration::from_secs(2), || left.try_complete().is_some());
    // After what a late call makes up for: two packets of 1,036 bytes at a time.
    let late = Duration::from_secs(1);
    let bursts: Vec<_> = net.sent.iter().filter(|&&(at, _)| at > late).collect();
    assert!(bursts.len() > 400, "{} bursts", bursts.len());
    let longest = bursts.iter().map(|&&(_, bytes)| bytes).max().unwrap();
    assert!((1036..=2088).contains(&longest), "{longest} bytes");
    assert_within(&net.sent, 800_000);
}

#[test]
fn a_limit_that_is_set_again_permits_no_other_burst() {
    let mut net = Net::new();
    let (left, right) = net.pair(QpType::Rc, 1 << 20);
    left.qp.limit_rate(8, 0).unwrap();
    write_all(&left, &right, 1, 1 << 20);
    // As a program does that adapts its rate all the time.
    for kbps in [16, 8].into_iter().cycle().take(100) {
        net.pass(net.now + Duration::from_millis(10), || false);
        left.qp.limit_rate(kbps, 0).unwrap();
    }
    assert_within(&net.sent, 16);
    // A higher limit applies to what the lower one held back, from now on.
    net.pass(net.now + Duration::from_millis(500), || false);
    let before = net.bytes();
    left.qp.limit_rate(80_000, 0).unwrap();
    net.settle();
    assert_eq!(net.bytes(), before);
    let end = net.now + Duration::from_millis(200);
    net.pass(end, || left.try_complete().is_some());
    assert!(net.now < end);
}

#[test]
fn what_waits_for_its_limit_is_flushed_with_the_rest() {
    let mut net = Net::new();
    let (left, right) = net.pair(QpType::Rc, 1 << 20);
    left.qp.limit_rate(8, 0).unwrap();
    write_all(&left, &right, 2, 1 << 20);
    net.settle();
    let to = |state| {
        let attributes = QpAttributes {
            state,
            ..QpAttributes::default()
        };
        left.qp.modify(&attributes, AttrMask::STATE).unwrap();
    };
    to(QpState::Error);
    let statuses = [left.complete().status, left.complete().status];
    assert_eq!(statuses, [Status::WrFlushError; 2]);
    assert_eq!(left.qp.query().unwrap().rate_limit_kbps, 8);
    to(QpState::Reset);
    assert_eq!(left.qp.query().unwrap().rate_limit_kbps, 0);
    left.connect(&right);
    // The limit went with the state.
    write_all(&left, &right, 1, 1 << 20);
    net.now += Duration::from_secs(1);
    let before = net.bytes();
    net.a.device.run(net.now);
    while let Some(frame) = net.a.carrier.take() {
        net.sent.push((net.now, frame.bytes.len() as u64));
    }
    assert!(net.bytes() - before > 30_000);
}

#[test]
fn a_limit_is_an_attribute_of_a_sending_queue_pair() {
    let net = Net::new();
    let (left, _right) = net.pair(QpType::Rc, 4096);
    let limit = |qp: &Qp, kbps| {
        let attributes = QpAttributes {
            state: QpState::ReadyToSend,
            rate_limit_kbps: kbps,
            ..QpAttributes::default()
        };
        qp.modify(&attributes, AttrMask::STATE | AttrMask::RATE_LIMIT)
            .map_err(|error| error.errno())
    };
    limit(&left.qp, 77).unwrap();
    assert_eq!(left.qp.query().unwrap().rate_limit_kbps, 77);
    left.qp.limit_rate(RATE_LIMIT_KBPS_MAX, 1).unwrap();
    let most = left.qp.query().unwrap().rate_limit_kbps;
    assert_eq!(most, RATE_LIMIT_KBPS_MAX);
    assert_eq!(limit(&left.qp, RATE_LIMIT_KBPS_MAX + 1), Err(libc::EINVAL));
    // Not before RTS, and not for datagrams.
    let fresh = End::new(net.a.device.device(), QpType::Rc, 64);
    let refused = fresh.qp.limit_rate(5, 0).unwrap_err();
    assert_eq!(refused.errno(), libc::EINVAL);
    let datagrams = End::new(net.a.device.device(), QpType::Ud, 64);
    datagram_to_rts(&datagrams.qp, Qkey(1));
    assert_eq!(limit(&datagrams.qp, 5), Err(libc::EINVAL));
}
