//! Reliable datagrams: records and SENDs that are repeated until their target has them.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use airdma_port::impair::Impaired;
use airdma_port::sim;
use common::*;
use std::net::IpAddr;
use std::sync::Arc;

const QKEY: Qkey = Qkey(0x1234);
const BYTES: usize = 1 << 20;
/// Bytes of the GRH area of a receive.
const AREA: usize = 40;

struct Pair {
    from: End,
    to: End,
    region: Arc<Mr>,
}

fn ready(left: &Arc<Device>, right: &Arc<Device>) -> Pair {
    let from = End::new(left, QpType::Ud, BYTES);
    let to = End::new(right, QpType::Ud, BYTES);
    datagram_to_rts(&from.qp, QKEY);
    datagram_to_rts(&to.qp, QKEY);
    from.qp.enable_reliable(ReliableConfig::default()).unwrap();
    to.qp.enable_records(RecordConfig::default()).unwrap();
    let address = to.memory.address();
    let region = to.pd.reg_record_mr(address, BYTES, None).unwrap();
    Pair { from, to, region }
}

/// On a wire that loses one packet in ten in both directions.
fn lossy() -> Pair {
    let addresses = [IpAddr::from(LEFT), IpAddr::from(RIGHT)];
    let (a, b) = sim::pair(&addresses[..1], &addresses[1..]).unwrap();
    let impaired = |port, seed: u32| {
        let rules = format!("drop=10%,seed={seed}").parse().unwrap();
        Box::new(Impaired::new(port, rules))
    };
    let (left, right) = wired_on(
        (addresses[0], impaired(a, 7)),
        (addresses[1], impaired(b, 8)),
    );
    ready(&left, &right)
}

impl Pair {
    fn post(&self, operation: Operation, length: usize, change: impl FnOnce(&mut SendWr<'static>)) {
        let mut wr = signalled(operation, self.from.memory.sge(0, length));
        wr.flags |= SendFlags::RELIABLE;
        wr.datagram = Some(Datagram {
            path: self.to.path(),
            qpn: self.to.qp.number(),
            qkey: QKEY,
        });
        change(&mut wr);
        self.from.qp.post_send(&wr).unwrap();
    }

    fn record(&self) -> Operation {
        Operation::Record {
            va: self.to.memory.address(),
            rkey: self.region.rkey(),
        }
    }

    /// The next record at the target, which is freed: its length, and why it ended.
    fn next_record(&self) -> (u32, Ended) {
        let completion = self.to.ok();
        assert_eq!(completion.opcode, CompletionOpcode::ReceiveRecord);
        let handle = RecordHandle(completion.wr_id);
        let seen = |record: &Record<'_>| (record.valid_bytes, record.ended.unwrap());
        let seen = self.to.qp.record(handle, seen).unwrap();
        assert!(self.to.qp.free_record(handle));
        seen
    }
}

fn records_of_many_sizes(pair: &Pair) {
    for (seed, length) in [1, 1000, 1408, 1409, 4096, 65_536, 300_001]
        .into_iter()
        .enumerate()
    {
        let data = pattern(length, seed as u8);
        pair.from.memory.fill(0, &data);
        pair.post(pair.record(), length, |_| {});
        let sent = pair.from.ok();
        assert_eq!(sent.opcode, CompletionOpcode::Record);
        assert_eq!((sent.wr_id, sent.byte_len as usize), (7, length));
        assert_eq!(pair.next_record(), (length as u32, Ended::Whole));
        assert_eq!(pair.to.memory.bytes(0, length), data);
    }
}

#[test]
fn records_arrive_whole_in_spite_of_loss() {
    let pair = lossy();
    records_of_many_sizes(&pair);
    assert!(counter(&pair.from.device, "retransmits") > 20);
    assert_eq!(counter(&pair.to.device, "records_partial"), 0);
}

#[test]
fn records_go_through_sockets() {
    let (left, right) = sockets("127.0.8.7", "127.0.8.8");
    let pair = ready(&left, &right);
    records_of_many_sizes(&pair);
    assert_eq!(counter(&left, "drop_ghost"), 0);
}

#[test]
fn they_are_sealed_where_datagrams_are() {
    let (left, right) = wired();
    for device in [&left, &right] {
        device.share_secret(b"sixteen bytes or more").unwrap();
    }
    records_of_many_sizes(&ready(&left, &right));
}

#[test]
fn sends_fill_receives_once_in_spite_of_loss() {
    let pair = lossy();
    let length = 20_000;
    let room = AREA + length;
    for wr_id in 0..4 {
        pair.to.recv(wr_id, wr_id as usize * room, room);
    }
    let mut seen = Vec::new();
    for seed in 0..4 {
        pair.from.memory.fill(0, &pattern(length, seed));
        let imm = [seed; 4];
        pair.post(Operation::SendImm(imm), length, |_| {});
        let sent = pair.from.ok();
        assert_eq!(sent.opcode, CompletionOpcode::Send);
        let received = pair.to.ok();
        assert_eq!(received.opcode, CompletionOpcode::Receive);
        assert_eq!(received.byte_len as usize, room);
        assert_eq!(received.imm, Some(imm));
        assert_eq!(received.src_qpn, pair.from.qp.number());
        assert_eq!(received.grh, Some(GrhHeader::Ipv4));
        let at = received.wr_id as usize * room + AREA;
        assert_eq!(pair.to.memory.bytes(at, length), pattern(length, seed));
        seen.push(received.wr_id);
    }
    assert_eq!(seen, [0, 1, 2, 3]);
    assert_eq!(pair.to.try_complete(), None);
}

#[test]
fn receives_of_messages_give_their_places_back() {
    let (left, right) = wired();
    let pair = ready(&left, &right);
    let room = AREA + 100;
    for round in 0..3 * u64::from(CAPS.max_recv_wr) {
        pair.to.recv(round, 0, room);
        pair.from.memory.fill(0, &pattern(100, round as u8));
        pair.post(Operation::Send, 100, |_| {});
        pair.from.ok();
        let received = pair.to.ok();
        assert_eq!(received.wr_id, round);
        assert_eq!(pair.to.memory.bytes(AREA, 100), pattern(100, round as u8));
    }
}

#[test]
fn a_message_waits_for_a_receive() {
    let (left, right) = wired();
    let pair = ready(&left, &right);
    pair.post(Operation::Send, 100, |_| {});
    wait_until("an answer", || {
        pair.to.try_complete();
        assert_eq!(pair.from.try_complete(), None);
        counter(&left, "rnr_naks_received") > 1
    });
    pair.to.recv(1, 0, 200);
    pair.from.ok();
    assert_eq!(pair.to.ok().wr_id, 1);
}

#[test]
fn a_dead_destination_fails_its_requests_and_no_others() {
    let (left, right) = wired();
    let pair = ready(&left, &right);
    let gone = Qpn::new(pair.to.qp.number().get() ^ 1);
    pair.post(pair.record(), 3000, |wr| {
        wr.wr_id = 1;
        wr.datagram.as_mut().unwrap().qpn = gone;
    });
    // More than the queue has slots: the dead one holds none.
    for _ in 0..3 * CAPS.max_send_wr {
        pair.post(pair.record(), 3000, |_| {});
        assert_eq!(pair.from.ok().wr_id, 7);
        assert_eq!(pair.next_record(), (3000, Ended::Whole));
    }
    let failed = pair.from.complete();
    assert_eq!((failed.wr_id, failed.status), (1, Status::RetryExceeded));
    pair.post(pair.record(), 10, |_| {});
    assert_eq!(pair.from.ok().wr_id, 7);
}

#[test]
fn a_program_that_sleeps_learns_of_a_dead_destination() {
    let (left, right) = wired();
    let pair = ready(&left, &right);
    pair.from.cq.arm(false).unwrap();
    pair.post(Operation::Send, 10, |wr| {
        wr.datagram.as_mut().unwrap().qpn = Qpn::new(0x77_7777);
    });
    pair.from.channel.wait_event().unwrap();
    assert_eq!(pair.from.complete().status, Status::RetryExceeded);
}

#[test]
fn what_is_wrong_is_refused() {
    let (left, right) = wired();
    let pair = ready(&left, &right);
    let again = pair.from.qp.enable_reliable(ReliableConfig::default());
    assert!(again.is_err());
    let none = ReliableConfig {
        messages_max: 0,
        ..ReliableConfig::default()
    };
    assert!(pair.to.qp.enable_reliable(none).is_err());
    let connected = End::new(&left, QpType::Rc, 64);
    let config = ReliableConfig::default();
    assert!(connected.qp.enable_reliable(config).is_err());
    let mut wr = signalled(Operation::Send, pair.to.memory.sge(0, 8));
    wr.flags |= SendFlags::RELIABLE;
    wr.datagram = Some(Datagram {
        path: pair.from.path(),
        qpn: pair.from.qp.number(),
        qkey: QKEY,
    });
    let not_enabled = pair.to.qp.post_send(&wr);
    assert!(not_enabled.is_err());
    let group = Gid::from("224.0.7.7".parse::<IpAddr>().unwrap());
    wr.datagram.as_mut().unwrap().path.gid = group;
    assert!(pair.from.qp.post_send(&wr).is_err());
}

#[test]
fn a_reset_forgets_what_is_under_way() {
    let (left, right) = wired();
    let pair = ready(&left, &right);
    for _ in 0..3 {
        pair.post(Operation::Send, 10, |wr| {
            wr.datagram.as_mut().unwrap().qpn = Qpn::new(0x77_7777);
        });
    }
    let reset = QpAttributes {
        state: QpState::Reset,
        ..QpAttributes::default()
    };
    pair.from.qp.modify(&reset, AttrMask::STATE).unwrap();
    datagram_to_rts(&pair.from.qp, QKEY);
    pair.post(pair.record(), 100, |_| {});
    assert_eq!(pair.from.ok().wr_id, 7);
    assert_eq!(pair.next_record(), (100, Ended::Whole));
    assert_eq!(pair.from.try_complete(), None);
}

#[test]
fn an_error_flushes_requests_and_receives() {
    let (left, right) = wired();
    let pair = ready(&left, &right);
    pair.to.recv(1, 0, 5);
    pair.post(Operation::Send, 10, |_| {});
    assert_eq!(pair.from.complete().status, Status::RemoteInvalidRequest);
    let error = QpAttributes {
        state: QpState::Error,
        ..QpAttributes::default()
    };
    pair.to.qp.modify(&error, AttrMask::STATE).unwrap();
    let flushed = pair.to.complete();
    assert_eq!((flushed.wr_id, flushed.status), (1, Status::WrFlushError));
    pair.post(Operation::Send, 10, |_| {});
    pair.from.qp.modify(&error, AttrMask::STATE).unwrap();
    assert_eq!(pair.from.complete().status, Status::WrFlushError);
}

/// A target whose completion queue has four places.
fn with_small_queue() -> Pair {
    let (left, right) = wired();
    let mut pair = ready(&left, &right);
    let small = right.create_cq(4, None).unwrap();
    pair.to.qp = create_qp(&pair.to.pd, &small, QpType::Ud, CAPS);
    pair.to.cq = small;
    datagram_to_rts(&pair.to.qp, QKEY);
    pair.to.qp.enable_records(RecordConfig::default()).unwrap();
    pair
}

#[test]
fn sends_wait_for_room_in_the_completion_queue() {
    let pair = with_small_queue();
    let (length, sends) = (20_000, 12);
    for wr_id in 0..sends {
        pair.to.recv(wr_id, wr_id as usize * 30_000, 30_000);
        pair.post(Operation::Send, length, |_| {});
    }
    for _ in 0..4 {
        pair.from.ok();
    }
    wait_until("an answer", || {
        assert_eq!(pair.from.try_complete(), None);
        counter(&pair.from.device, "rnr_naks_received") > 1
    });
    // With each completion that the program takes, one more arrives.
    let mut seen: Vec<u64> = (0..sends).map(|_| pair.to.ok().wr_id).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..sends).collect::<Vec<_>>());
    for _ in 4..sends {
        pair.from.ok();
    }
    assert_eq!(counter(&pair.to.device, "cq_overruns"), 0);
}

#[test]
fn sends_to_a_queue_that_stays_full_fail_alone() {
    let pair = with_small_queue();
    for wr_id in 0..6 {
        pair.to.recv(wr_id, 0, 200);
        pair.post(Operation::Send, 100, |_| {});
    }
    for _ in 0..4 {
        pair.from.ok();
    }
    for _ in 4..6 {
        assert_eq!(pair.from.complete().status, Status::RnrRetryExceeded);
    }
    assert_eq!(counter(&pair.to.device, "cq_overruns"), 0);
    assert_eq!(pair.to.qp.state(), QpState::ReadyToSend);
    for _ in 0..4 {
        pair.to.ok();
    }
    pair.post(Operation::Send, 100, |_| {});
    pair.from.ok();
    pair.to.ok();
}
