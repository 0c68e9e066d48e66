//! Records: messages that datagrams write into memory that was registered for them.
// Lists of ranges with one range.
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

mod common;

use airdma_engine::*;
use airdma_port::impair::Impaired;
use airdma_port::sim;
use common::*;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const QKEY: Qkey = Qkey(0x1234);
const BYTES: usize = 1 << 20;

/// A queue pair that takes records, one that sends them, and the region that they go to.
struct Records {
    from: End,
    to: End,
    region: Arc<Mr>,
}

fn config() -> RecordConfig {
    RecordConfig::default()
}

fn ready(left: &Arc<Device>, right: &Arc<Device>, config: RecordConfig) -> Records {
    let from = End::new(left, QpType::Ud, BYTES);
    let to = End::new(right, QpType::Ud, BYTES);
    datagram_to_rts(&from.qp, QKEY);
    datagram_to_rts(&to.qp, QKEY);
    to.qp.enable_records(config).unwrap();
    let region = to
        .pd
        .reg_record_mr(to.memory.address(), BYTES, None)
        .unwrap();
    Records { from, to, region }
}

/// On a wire that loses this share of packets.
fn lossy(loss: &str, config: RecordConfig) -> Records {
    let addresses = [IpAddr::from(LEFT), IpAddr::from(RIGHT)];
    let (a, b) = sim::pair(&addresses[..1], &addresses[1..]).unwrap();
    let a = Impaired::new(a, format!("drop={loss},seed=7").parse().unwrap());
    let (left, right) = wired_on((addresses[0], Box::new(a)), (addresses[1], Box::new(b)));
    ready(&left, &right, config)
}

/// What an application keeps of a record.
#[derive(Debug, PartialEq)]
struct Seen {
    source: IpAddr,
    src_qpn: Qpn,
    id: u32,
    length: u32,
    valid: Vec<std::ops::Range<u32>>,
    ended: Ended,
}

impl Records {
    fn post_with(&self, rkey: Rkey, length: usize, change: impl FnOnce(&mut SendWr<'static>)) {
        let va = self.to.memory.address();
        let mut wr = signalled(
            Operation::Record { va, rkey },
            self.from.memory.sge(0, length),
        );
        wr.datagram = Some(Datagram {
            path: self.to.path(),
            qpn: self.to.qp.number(),
            qkey: QKEY,
        });
        change(&mut wr);
        self.from.qp.post_send(&wr).unwrap();
    }

    fn post(&self, length: usize) {
        self.post_with(self.region.rkey(), length, |_| {});
        let sent = self.from.ok();
        assert_eq!(sent.opcode, CompletionOpcode::Record);
        assert_eq!((sent.wr_id, sent.byte_len as usize), (7, length));
    }

    /// The next record, which is freed.
    fn next(&self) -> Seen {
        let completion = self.to.ok();
        assert_eq!(completion.opcode, CompletionOpcode::ReceiveRecord);
        let handle = RecordHandle(completion.wr_id);
        let seen = self.to.qp.record(handle, |record| {
            assert_eq!(record.valid_bytes, completion.byte_len);
            assert_eq!(record.src_qpn, completion.src_qpn);
            Seen {
                source: Gid::from(record.source).to_ip(),
                src_qpn: record.src_qpn,
                id: record.id,
                length: record.length,
                valid: record.ranges().collect(),
                ended: record.ended.unwrap(),
            }
        });
        assert!(self.to.qp.free_record(handle));
        assert!(!self.to.qp.free_record(handle));
        seen.unwrap()
    }

    fn counted(&self, name: &str) -> u64 {
        counter(&self.to.device, name)
    }
}

fn messages_of_many_sizes(records: &Records) {
    let source = records.from.path().gid.to_ip();
    let sizes = [1, 2, 3, 1000, 1396, 1397, 1416, 1417, 4096, 65_536, 100_001];
    for (id, length) in (0..).zip(sizes) {
        let data = pattern(length, id as u8);
        records.from.memory.fill(0, &data);
        records.post(length);
        let seen = records.next();
        let whole = Seen {
            source,
            src_qpn: records.from.qp.number(),
            id,
            length: length as u32,
            valid: vec![0..length as u32],
            ended: Ended::Whole,
        };
        assert_eq!(seen, whole);
        assert_eq!(records.to.memory.bytes(0, length), data);
        assert_eq!(records.to.memory.byte(length), 0, "behind the message");
    }
    assert_eq!(records.counted("records_whole"), sizes.len() as u64);
}

/// The thread that sends may be preempted in the middle of a message.
fn patient() -> RecordConfig {
    RecordConfig {
        idle: Duration::from_secs(10),
        age: Duration::from_secs(20),
        ..config()
    }
}

#[test]
fn a_message_of_any_size_arrives_without_a_receive() {
    let (left, right) = wired();
    messages_of_many_sizes(&ready(&left, &right, patient()));
}

#[test]
fn messages_go_through_sockets() {
    let (left, right) = sockets("127.0.0.61", "127.0.0.62");
    messages_of_many_sizes(&ready(&left, &right, patient()));
    assert!(counter(&left, "tx_segmented_sends") > 0, "in few sends");
}

#[test]
fn records_are_sealed_where_datagrams_are() {
    let (left, right) = wired();
    for device in [&left, &right] {
        device.share_secret(b"sixteen bytes or more").unwrap();
    }
    messages_of_many_sizes(&ready(&left, &right, patient()));
    assert_eq!(counter(&left, "seals_agreed"), 1);
}

#[test]
fn immediate_data_and_the_solicited_bit_arrive() {
    let (left, right) = wired();
    let records = ready(&left, &right, config());
    let (va, rkey) = (records.to.memory.address(), records.region.rkey());
    records.to.cq.arm(true).unwrap();
    records.post_with(rkey, 5000, |wr| {
        let imm = [1, 2, 3, 4];
        wr.operation = Operation::RecordImm { va, rkey, imm };
        wr.flags |= SendFlags::SOLICITED;
    });
    records.to.channel.wait_event().unwrap();
    let completion = records.to.ok();
    assert_eq!(completion.imm, Some([1, 2, 3, 4]));
    assert!(completion.solicited && completion.grh.is_none());
}

#[test]
fn of_a_message_that_lost_packets_the_rest_is_valid() {
    let records = lossy("20%", config());
    let data = pattern(200_000, 3);
    records.from.memory.fill(0, &data);
    records.post(data.len());
    let seen = records.next();
    assert_eq!((seen.ended, seen.length), (Ended::Idle, 200_000));
    let valid: u32 = seen.valid.iter().map(|range| range.len() as u32).sum();
    assert!((130_000..190_000).contains(&valid), "{valid}");
    let mut expected = vec![0; data.len()];
    for range in seen.valid {
        let range = range.start as usize..range.end as usize;
        expected[range.clone()].copy_from_slice(&data[range]);
    }
    assert_eq!(records.to.memory.bytes(0, data.len()), expected);
}

#[test]
fn a_program_that_sleeps_is_woken_when_a_message_times_out() {
    let records = lossy("20%", config());
    records.to.cq.arm(false).unwrap();
    records.post(200_000);
    records.to.channel.wait_event().unwrap();
    assert_eq!(records.next().ended, Ended::Idle);
}

/// A message that is open, because it lost packets and has much time.
fn open() -> Records {
    let records = lossy(
        "20%",
        RecordConfig {
            idle: Duration::from_secs(600),
            age: Duration::from_secs(600),
            ..config()
        },
    );
    records.post(200_000);
    let (rkey, va) = (records.region.rkey(), records.to.memory.address());
    wait_until("an open message", || {
        let peeked = records.to.qp.peek_record(rkey, va, |record| {
            assert_eq!(record.ended, None);
            record.valid_bytes
        });
        // A poll lets the device make progress.
        records.to.try_complete().is_none() && peeked > Some(130_000)
    });
    records
}

#[test]
fn an_application_closes_an_open_message() {
    let records = open();
    let (rkey, va) = (records.region.rkey(), records.to.memory.address());
    assert!(records.to.qp.close_record(rkey, va).unwrap());
    assert!(!records.to.qp.close_record(rkey, va).unwrap());
    assert_eq!(records.next().ended, Ended::Asked);
}

#[test]
fn memory_that_is_deregistered_ends_its_messages() {
    let records = open();
    records.region.deregister().unwrap();
    assert_eq!(records.next().ended, Ended::TakenBack);
    records.post(1000);
    wait_until("a refusal", || {
        records.to.try_complete();
        records.counted("drop_record_refused") > 0
    });
}

#[test]
fn a_queue_pair_in_reset_forgets_its_records() {
    let records = open();
    let reset = QpAttributes {
        state: QpState::Reset,
        ..QpAttributes::default()
    };
    records.to.qp.modify(&reset, AttrMask::STATE).unwrap();
    let (rkey, va) = (records.region.rkey(), records.to.memory.address());
    assert!(records.to.qp.peek_record(rkey, va, |_| ()).is_none());
    assert!(records.to.try_complete().is_none());
}

#[test]
fn a_key_for_records_opens_nothing_else() {
    let (left, right) = wired();
    let records = ready(&left, &right, config());
    let (a, b) = (
        End::new(&left, QpType::Rc, 64),
        End::new(&right, QpType::Rc, 64),
    );
    a.connect(&b);
    b.connect(&a);
    // In the domain of the queue pair that is written to.
    let region = b.pd.reg_record_mr(b.memory.address(), 64, None).unwrap();
    let (va, rkey) = (b.memory.address(), region.rkey());
    a.send(Operation::Write { va, rkey }, 0, 8);
    assert_eq!(a.complete().status, Status::RemoteAccessError);
    assert!(region.reregister(None, &RegionChange::default()).is_err());
    // No other key opens memory for records.
    records.post_with(records.to.memory.mr.rkey(), 8, |_| {});
    wait_until("a refusal", || {
        records.to.try_complete();
        records.counted("drop_record_refused") == 1
    });
}

#[test]
fn a_key_may_be_of_one_source() {
    let (left, right) = wired();
    let records = ready(&left, &right, config());
    let reg = |source| {
        let address = records.to.memory.address();
        records
            .to
            .pd
            .reg_record_mr(address, 64, Some(source))
            .unwrap()
    };
    let other = reg(records.to.path().gid);
    records.post_with(other.rkey(), 8, |_| {});
    let its_own = reg(records.from.path().gid);
    records.post_with(its_own.rkey(), 8, |_| {});
    assert_eq!(records.next().id, 1);
    assert_eq!(records.counted("drop_record_refused"), 1);
}

#[test]
fn a_queue_pair_that_did_not_ask_takes_none() {
    let (left, right) = wired();
    let records = ready(&left, &right, config());
    let other = End::new(&right, QpType::Ud, 64);
    datagram_to_rts(&other.qp, QKEY);
    records.post_with(records.region.rkey(), 8, |wr| {
        wr.datagram.as_mut().unwrap().qpn = other.qp.number();
    });
    wait_until("a drop", || {
        records.to.try_complete();
        records.counted("drop_unknown_opcode") == 1
    });
    let connected = End::new(&right, QpType::Rc, 64);
    assert!(connected.qp.enable_records(config()).is_err());
    assert!(records.to.qp.enable_records(config()).is_err(), "twice");
    let no_table = RecordConfig {
        open_max: 0,
        ..config()
    };
    assert!(other.qp.enable_records(no_table).is_err());
}

#[test]
fn records_wait_for_room_in_the_completion_queue() {
    let (left, right) = wired();
    let records = ready(&left, &right, config());
    let cq = right.create_cq(1, None).unwrap();
    let room = cq.capacity();
    let qp = create_qp(&records.to.pd, &cq, QpType::Ud, CAPS);
    datagram_to_rts(&qp, QKEY);
    qp.enable_records(config()).unwrap();
    let messages = room as u64 + 20;
    for _ in 0..messages {
        records.post_with(records.region.rkey(), 100, |wr| {
            wr.datagram.as_mut().unwrap().qpn = qp.number();
        });
        records.from.ok();
    }
    wait_until("all messages", || {
        records.to.try_complete();
        records.counted("records_whole") == messages
    });
    for id in 0..messages {
        let completion = next(&cq);
        let handle = RecordHandle(completion.wr_id);
        let number = qp.record(handle, |record| record.id);
        assert_eq!(number, Some(id as u32));
        assert!(qp.free_record(handle));
    }
    assert_eq!(records.counted("cq_overruns"), 0);
}

#[test]
fn records_and_sends_share_a_queue_pair() {
    let (left, right) = wired();
    let records = ready(&left, &right, config());
    records.to.recv(3, 4096, 100);
    records.post_with(records.region.rkey(), 3000, |_| {});
    records.post_with(records.region.rkey(), 60, |wr| {
        wr.operation = Operation::Send
    });
    records.post_with(records.region.rkey(), 3000, |_| {});
    let opcodes = [(); 3].map(|()| records.to.ok().opcode);
    let record = CompletionOpcode::ReceiveRecord;
    assert_eq!(opcodes, [record, CompletionOpcode::Receive, record]);
}

/// Messages of `length` bytes, at different places, 16 at once. Returns those that arrived whole.
fn back_to_back(records: &Records, length: usize, messages: usize) -> usize {
    // The table of the target has room for them.
    let places = (BYTES / length).min(64);
    let (mut posted, mut sent, mut ended, mut whole) = (0, 0, 0, 0);
    let begun = std::time::Instant::now();
    while ended < messages || sent < messages {
        if posted < messages && posted - sent < 16 && posted - ended < places {
            let va = records.to.memory.address() + (posted % places * length) as u64;
            records.post_with(records.region.rkey(), length, |wr| {
                let rkey = records.region.rkey();
                wr.operation = Operation::Record { va, rkey };
            });
            posted += 1;
        }
        sent += usize::from(records.from.try_complete().is_some());
        if let Some(completion) = records.to.try_complete() {
            let handle = RecordHandle(completion.wr_id);
            let is_whole = records.to.qp.record(handle, |record| {
                record.ended == Some(Ended::Whole) && record.length == length as u32
            });
            whole += usize::from(is_whole == Some(true));
            assert!(records.to.qp.free_record(handle));
            ended += 1;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{whole} of {ended}"
        );
    }
    whole
}

#[test]
fn no_message_is_longer_than_a_socket_takes() {
    let (left, right) = sockets("127.0.0.63", "127.0.0.64");
    // A busy machine must not look like loss.
    let patient = RecordConfig {
        idle: Duration::from_secs(5),
        age: Duration::from_secs(60),
        ..config()
    };
    let records = ready(&left, &right, patient);
    for (length, messages) in [(1, 3000), (1000, 3000), (200_000, 50), (1 << 20, 16)] {
        let whole = back_to_back(&records, length, messages);
        assert_eq!(whole, messages, "of {length} bytes");
    }
    assert_eq!(records.counted("drop_overflow"), 0);
}

#[test]
fn a_destination_that_is_silent_delays_its_own_messages() {
    let (left, right) = sockets("127.0.0.65", "127.0.0.66");
    // A busy machine must not look like loss.
    let patient = RecordConfig {
        idle: Duration::from_secs(5),
        age: Duration::from_secs(60),
        ..config()
    };
    let records = ready(&left, &right, patient);
    let absent: Gid = IpAddr::from([127, 0, 0, 67]).into();
    // They take a second, since they wait for answers that never come.
    for _ in 0..4 {
        records.post_with(records.region.rkey(), BYTES, |wr| {
            wr.datagram.as_mut().unwrap().path.gid = absent;
        });
    }
    for _ in 0..3 {
        records.post_with(records.region.rkey(), 100_000, |_| {});
        assert_eq!(records.next().ended, Ended::Whole);
    }
    assert!(
        records.from.try_complete().is_none(),
        "completions are in order"
    );
    for length in [BYTES, BYTES, BYTES, BYTES, 100_000, 100_000, 100_000] {
        assert_eq!(records.from.ok().byte_len as usize, length);
    }
}
