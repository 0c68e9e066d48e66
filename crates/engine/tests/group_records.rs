//! Records of multicast groups: one sender, and members that agreed on a key.
// Lists of ranges with one range.
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

mod common;

use airdma_engine::*;
use airdma_port::{UdpConfig, UdpPort};
use common::*;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const QKEY: Qkey = Qkey(0x1111);
const KEY: Rkey = Rkey(0x0a11_cafe);
const BYTES: usize = 1 << 19;

fn device(address: &str) -> Arc<Device> {
    let address: IpAddr = address.parse().unwrap();
    let config = UdpConfig {
        port: 24_793,
        ..UdpConfig::default()
    };
    let port = UdpPort::bind(&[address], 1, config).unwrap();
    Device::with_port(info("group", address), Box::new(port)).unwrap()
}

fn gid(address: &str) -> Gid {
    Gid::from(address.parse::<IpAddr>().unwrap())
}

fn end_of(device: &Arc<Device>) -> End {
    let end = End::new(device, QpType::Ud, BYTES);
    datagram_to_rts(&end.qp, QKEY);
    end
}

/// A queue pair that is attached to the group, and its region.
struct Member {
    end: End,
    region: Arc<Mr>,
}

impl Member {
    fn new(device: &Arc<Device>, group: &str, source: Option<&str>) -> Member {
        let end = end_of(device);
        // The thread that sends may be preempted in the middle of a message.
        let config = RecordConfig {
            idle: Duration::from_secs(10),
            age: Duration::from_secs(20),
            ..RecordConfig::default()
        };
        end.qp.enable_records(config).unwrap();
        end.qp.attach_multicast(gid(group)).unwrap();
        let name = (gid(group), KEY);
        let region = end
            .pd
            .reg_group_record_mr(end.memory.address(), BYTES, name, source.map(gid))
            .unwrap();
        assert_eq!(region.rkey(), KEY);
        Member { end, region }
    }

    /// The next record: its address, length, and whether it is whole.
    fn next(&self) -> (u64, u32, bool) {
        let completion = self.end.ok();
        assert_eq!(completion.opcode, CompletionOpcode::ReceiveRecord);
        let handle = RecordHandle(completion.wr_id);
        let seen = self.end.qp.record(handle, |record| {
            assert!(record.group.is_some() && record.rkey == KEY);
            let is_whole = record.ended == Some(Ended::Whole);
            (record.va, record.length, is_whole)
        });
        assert!(self.end.qp.free_record(handle));
        seen.unwrap()
    }

    fn stays_empty(&self) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            let none = |completion| panic!("{completion:?}");
            self.end.cq.poll(1, none).unwrap();
        }
        let bytes = self.end.memory.bytes(0, BYTES);
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
}

fn post(from: &End, to: (&str, Qpn), operation: Operation, length: usize) {
    let path = Path {
        gid: gid(to.0),
        hop_limit: 1,
        ..Path::default()
    };
    let (qpn, qkey) = (to.1, QKEY);
    let wr = SendWr {
        datagram: Some(Datagram { path, qpn, qkey }),
        ..signalled(operation, from.memory.sge(0, length))
    };
    from.qp.post_send(&wr).unwrap();
    assert_eq!(from.ok().opcode, CompletionOpcode::Record);
}

fn send(from: &End, group: &str, at: u64, length: usize, seed: u8) -> Vec<u8> {
    let data = pattern(length, seed);
    from.memory.fill(0, &data);
    let operation = Operation::Record { va: at, rkey: KEY };
    post(from, (group, Qpn::MULTICAST), operation, length);
    data
}

#[test]
fn each_member_has_its_own_copy_and_record() {
    const GROUP: &str = "239.7.9.1";
    let (left, right) = (device("127.0.0.51"), device("127.0.0.52"));
    let sender = end_of(&left);
    // One on the sender's own host, two in one process.
    let members = [&left, &right, &right].map(|device| Member::new(device, GROUP, None));
    let stranger = Member::new(&right, "239.7.9.2", None);
    for (length, at) in [(1, 0), (5000, 1000), (60_000, 4096), (60_000, 70_000)] {
        let data = send(&sender, GROUP, at, length, length as u8);
        for member in &members {
            assert_eq!(member.next(), (at, length as u32, true));
            assert_eq!(member.end.memory.bytes(at as usize, length), data);
        }
    }
    stranger.stays_empty();
    assert_eq!(counter(&right, "records_whole"), 8);
    assert_eq!(counter(&left, "drop_ghost"), 0, "a member has answered");
}

#[test]
fn a_group_gets_a_window_each_ten_milliseconds() {
    const GROUP: &str = "239.7.9.3";
    let (left, right) = (device("127.0.0.53"), device("127.0.0.54"));
    let (sender, member) = (end_of(&left), Member::new(&right, GROUP, None));
    let begun = Instant::now();
    let data = send(&sender, GROUP, 0, BYTES, 9);
    // Each packet counts as 768 bytes more: 524,288 bytes are twelve windows of 64 KiB.
    assert!(begun.elapsed() >= Duration::from_millis(100));
    assert_eq!(member.next(), (0, BYTES as u32, true));
    assert_eq!(member.end.memory.bytes(0, BYTES), data);
}

#[test]
fn a_key_of_a_group_opens_nothing_else() {
    const GROUP: &str = "239.7.9.4";
    let (left, right) = (device("127.0.0.55"), device("127.0.0.56"));
    let (sender, member) = (end_of(&left), Member::new(&right, GROUP, None));
    let other = Member::new(&right, "239.7.9.5", None);
    let plain = end_of(&right);
    plain.qp.enable_records(RecordConfig::default()).unwrap();
    let address = plain.memory.address();
    let unicast = plain.pd.reg_record_mr(address, BYTES, None).unwrap();
    let at = |rkey, va| Operation::Record { va, rkey };
    let group = (GROUP, Qpn::MULTICAST);
    let host = ("127.0.0.56", member.end.qp.number());
    let refused = [
        // By a message to the host alone, with its name or its local key.
        (host, at(KEY, 0)),
        (host, at(Rkey(member.region.lkey().0), 0)),
        // To the group, with a key that is not the group's.
        (group, at(Rkey(member.region.lkey().0), 0)),
        (group, at(unicast.rkey(), address)),
        (
            group,
            at(member.end.memory.mr.rkey(), member.end.memory.address()),
        ),
        (group, at(Rkey(KEY.0 ^ 1), 0)),
        (group, at(Rkey(0), 0)),
        // Beyond its end; the members' addresses begin at 0.
        (group, at(KEY, BYTES as u64 - 63)),
        (group, at(KEY, member.end.memory.address())),
    ];
    for (times, (to, operation)) in (1..).zip(refused) {
        sender.memory.fill(0, &[0xee; 64]);
        post(&sender, to, operation, 64);
        wait_until("a refusal", || {
            member.end.cq.poll(0, |_| ()).unwrap();
            counter(&right, "drop_record_refused") == times
        });
    }
    member.stays_empty();
    other.stays_empty();
    send(&sender, GROUP, 0, 64, 3);
    assert_eq!(member.next(), (0, 64, true));
    other.stays_empty();
    // A group is no host, and its packets are for no queue pair in particular.
    let number = member.end.qp.number();
    post(&sender, (GROUP, number), at(KEY, 0), 64);
    wait_until("no such queue pair", || {
        member.end.cq.poll(0, |_| ()).unwrap();
        counter(&right, "drop_unknown_qp") == 1
    });
}

#[test]
fn a_region_may_be_for_one_source_alone() {
    const GROUP: &str = "239.7.9.6";
    let (left, right) = (device("127.0.0.57"), device("127.0.0.58"));
    let chosen = Member::new(&right, GROUP, Some("127.0.0.57"));
    let (good, bad) = (end_of(&left), end_of(&right));
    send(&bad, GROUP, 0, 64, 1);
    wait_until("a refusal", || {
        chosen.end.cq.poll(0, |_| ()).unwrap();
        counter(&right, "drop_record_refused") == 1
    });
    chosen.stays_empty();
    let data = send(&good, GROUP, 128, 64, 2);
    assert_eq!(chosen.next(), (128, 64, true));
    assert_eq!(chosen.end.memory.bytes(128, 64), data);
}

#[test]
fn a_key_is_a_groups_in_a_domain_once() {
    let device = device("127.0.0.59");
    let end = end_of(&device);
    let address = end.memory.address();
    let register = |group: &str, key: u32| {
        let name = (gid(group), Rkey(key));
        end.pd.reg_group_record_mr(address, 4096, name, None)
    };
    let errno = |result: Result<Arc<Mr>, Error>| result.map(|_| ()).unwrap_err().errno();
    let first = register("239.7.9.7", 5).unwrap();
    assert_eq!(errno(register("239.7.9.7", 5)), libc::EEXIST);
    assert_eq!(errno(register("10.0.0.1", 5)), libc::EINVAL);
    let other_group = register("239.7.9.8", 5).unwrap();
    let drawn = [0, 0].map(|key| register("239.7.9.7", key).unwrap());
    assert_ne!(drawn[0].rkey(), drawn[1].rkey());
    assert!(drawn.iter().all(|mr| mr.rkey().0 >> 8 != 0));
    // A key of a group is no key of a connection, and its region stays as it is.
    assert_eq!(
        first
            .reregister(None, &RegionChange::default())
            .unwrap_err()
            .errno(),
        libc::EINVAL
    );
    first.deregister().unwrap();
    let again = register("239.7.9.7", 5).unwrap();
    for mr in [&other_group, &again, &drawn[0], &drawn[1]] {
        mr.deregister().unwrap();
    }
}

#[test]
fn reliable_datagrams_are_not_for_groups() {
    const GROUP: &str = "239.7.9.9";
    let device = device("127.0.0.60");
    let end = end_of(&device);
    end.qp.enable_reliable(ReliableConfig::default()).unwrap();
    let path = Path {
        gid: gid(GROUP),
        hop_limit: 1,
        ..Path::default()
    };
    let (qpn, qkey) = (Qpn::MULTICAST, QKEY);
    let mut wr = SendWr {
        datagram: Some(Datagram { path, qpn, qkey }),
        ..signalled(
            Operation::Record { va: 0, rkey: KEY },
            end.memory.sge(0, 64),
        )
    };
    wr.flags |= SendFlags::RELIABLE;
    assert_eq!(end.qp.post_send(&wr).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn memory_that_is_taken_back_ends_the_messages_of_its_domain() {
    const GROUP: &str = "239.7.9.10";
    let (left, right) = (device("127.0.0.61"), device("127.0.0.62"));
    let sender = end_of(&left);
    let (first, second) = (
        Member::new(&right, GROUP, None),
        Member::new(&right, GROUP, None),
    );
    let data = pattern(BYTES, 4);
    sender.memory.fill(0, &data);
    let operation = Operation::Record { va: 0, rkey: KEY };
    let path = Path {
        gid: gid(GROUP),
        hop_limit: 1,
        ..Path::default()
    };
    let (qpn, qkey) = (Qpn::MULTICAST, QKEY);
    let wr = SendWr {
        datagram: Some(Datagram { path, qpn, qkey }),
        ..signalled(operation, sender.memory.sge(0, BYTES))
    };
    sender.qp.post_send(&wr).unwrap();
    wait_until("an open message", || {
        sender.cq.poll(0, |_| ()).unwrap();
        first.end.cq.poll(0, |_| ()).unwrap();
        first.end.qp.peek_record(KEY, 0, |_| ()).is_some()
    });
    first.region.deregister().unwrap();
    let (at, length, is_whole) = first.next();
    assert_eq!((at, length, is_whole), (0, BYTES as u32, false));
    assert_eq!(sender.ok().opcode, CompletionOpcode::Record);
    assert_eq!(second.next(), (0, BYTES as u32, true));
    assert_eq!(second.end.memory.bytes(0, BYTES), data);
}
