//! The target of Write-Records: what packets of messages do to its memory and to its records.

use std::collections::BTreeMap;
use std::time::Duration;

use airdma_transport::*;
use airdma_wire::*;

mod sources;

const RKEY: Rkey = Rkey(7);
const VA: u64 = 0x1000;
const LEN: usize = 0x1000;

/// Memory that records may be written to, between guards.
pub struct Memory {
    bytes: Vec<u8>,
    granted: bool,
    writes: u32,
    counters: BTreeMap<&'static str, u32>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory {
            bytes: vec![0; LEN],
            granted: true,
            writes: 0,
            counters: BTreeMap::new(),
        }
    }
}

impl Memory {
    pub fn counted(&self, counter: Counter) -> u32 {
        self.counters.get(counter.name()).copied().unwrap_or(0)
    }

    fn range(&self, rkey: Rkey, va: u64, length: usize) -> Result<usize, RemoteFault> {
        let at = va.checked_sub(VA).ok_or(RemoteFault::Access)? as usize;
        if !self.granted || rkey != RKEY || at + length > LEN {
            return Err(RemoteFault::Access);
        }
        Ok(at)
    }
}

impl RecordHost for Memory {
    fn check_record(
        &mut self,
        _: RecordOrigin,
        rkey: Rkey,
        va: u64,
        length: u32,
    ) -> Result<(), RemoteFault> {
        self.range(rkey, va, length as usize).map(|_| ())
    }

    fn write_record(
        &mut self,
        _: RecordOrigin,
        rkey: Rkey,
        va: u64,
        data: &[u8],
    ) -> Result<(), RemoteFault> {
        let at = self.range(rkey, va, data.len())?;
        self.bytes[at..][..data.len()].copy_from_slice(data);
        self.writes += 1;
        Ok(())
    }

    fn count_record(&mut self, counter: Counter) {
        *self.counters.entry(counter.name()).or_default() += 1;
    }
}

/// A message of four units of four bytes, of which the last one has two, unless a test says
/// otherwise.
#[derive(Clone, Copy)]
struct Message {
    host: u8,
    /// The address that it is for.
    to: [u8; 4],
    qpn: u32,
    instance: u32,
    id: u32,
    va: u64,
    rkey: Rkey,
    length: u32,
    unit: u16,
    imm: Option<[u8; 4]>,
    fill: u8,
}

fn message(id: u32) -> Message {
    Message {
        host: 2,
        to: [10, 0, 0, 1],
        qpn: 0x22,
        instance: 1,
        id,
        va: VA + 16 * u64::from(id % 64),
        rkey: RKEY,
        length: 14,
        unit: 4,
        imm: None,
        fill: (id as u8).wrapping_add(1),
    }
}

struct Target {
    records: RecordTarget,
    memory: Memory,
    now: Time,
}

impl Target {
    fn new(config: RecordConfig) -> Self {
        Target {
            records: RecordTarget::new(config, [1, 2]).unwrap(),
            memory: Memory::default(),
            now: Time::ZERO,
        }
    }

    fn small() -> Self {
        Target::new(Target::small_config())
    }

    fn small_config() -> RecordConfig {
        RecordConfig {
            open_max: 4,
            closed_max: 4,
            units_max: 64,
            sources_max: 16,
            ..RecordConfig::default()
        }
    }

    /// A unit of a message arrives.
    fn takes(&mut self, message: &Message, unit: u32) {
        let offset = unit * u32::from(message.unit);
        let len = message
            .length
            .saturating_sub(offset)
            .min(message.unit.into());
        self.takes_bytes(message, offset, &vec![message.fill; len as usize]);
    }

    fn takes_bytes(&mut self, message: &Message, offset: u32, payload: &[u8]) {
        let reply = self.replies(message, offset, payload, None);
        assert_eq!(reply, None, "nothing is acknowledged");
    }

    /// What the sender of a packet is told, which asks if it has a token.
    fn replies(
        &mut self,
        message: &Message,
        offset: u32,
        payload: &[u8],
        token: Option<u64>,
    ) -> Option<RecordReply> {
        let mut bth = Bth::new(Opcode::UdSendOnly, Qpn::new(1), Psn::new(message.instance));
        bth.pad = (payload.len().wrapping_neg() % 4) as u8;
        bth.ack_request = token.is_some();
        let packet = RecordPacket {
            headers: RecordHeaders {
                bth,
                deth: Deth {
                    qkey: Qkey(0),
                    src_qpn: Qpn::new(message.qpn),
                },
                reth: Reth {
                    va: message.va,
                    rkey: message.rkey,
                    length: message.length,
                },
                rceth: Rceth {
                    id: message.id,
                    offset,
                    unit: message.unit,
                    round: 0,
                },
                is_send: false,
                token,
                read: None,
                imm: message.imm,
            },
            payload,
        };
        let source = [10, 0, 0, message.host].into();
        let arrival = Arrival {
            source,
            destination: message.to.into(),
            tos: 0,
            ttl: 64,
            flow_label: 0,
        };
        self.records
            .handle_packet(self.now, &arrival, &packet, &mut self.memory)
    }

    fn takes_all(&mut self, message: &Message) {
        for unit in 0..message.length.div_ceil(message.unit.into()) {
            self.takes(message, unit);
        }
    }

    fn waits(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.records.handle_timeout(self.now, &mut self.memory);
    }

    fn room_for(&self, address: Neighbour) -> u32 {
        self.records.room_for(address, self.now)
    }

    fn next(&mut self) -> Option<RecordHandle> {
        self.records.poll_record()
    }

    /// The new records as text, which are freed.
    fn told(&mut self) -> Vec<String> {
        let handles: Vec<_> = std::iter::from_fn(|| self.next()).collect();
        let text = |handle: &RecordHandle| {
            let record = self.records.record(*handle).unwrap();
            let ranges: Vec<_> = record.ranges().collect();
            let (id, ended, valid) = (record.id, record.ended.unwrap(), record.valid_bytes);
            format!("{id} {ended:?} {valid} {ranges:?}")
        };
        let told = handles.iter().map(text).collect();
        assert!(handles.into_iter().all(|handle| self.records.free(handle)));
        told
    }

    fn counted(&self, counter: Counter) -> u32 {
        self.memory.counted(counter)
    }

    fn bytes(&self, message: &Message) -> &[u8] {
        &self.memory.bytes[(message.va - VA) as usize..][..message.length as usize]
    }
}

#[test]
fn a_whole_message_is_one_record_in_whatever_order_it_came() {
    let mut t = Target::small();
    let one = message(5);
    for unit in [2, 0, 3, 1] {
        assert_eq!(t.told(), [""; 0]);
        t.takes(&one, unit);
    }
    assert_eq!(t.bytes(&one), [6; 14]);
    assert_eq!(t.told(), ["5 Whole 14 [0..14]"]);
    assert_eq!(t.records.poll_timeout(), None);
    assert_eq!(t.counted(Counter::RecordsWhole), 1);
}

#[test]
fn a_record_says_from_whom_and_where() {
    let mut t = Target::small();
    let imm = Some([1, 2, 3, 4]);
    let one = Message { imm, ..message(3) };
    t.takes_all(&one);
    let handle = t.next().unwrap();
    let record = t.records.record(handle).unwrap();
    assert_eq!(record.source, [10, 0, 0, 2].into());
    assert_eq!(record.src_qpn, Qpn::new(0x22));
    assert_eq!((record.va, record.rkey), (one.va, RKEY));
    assert_eq!((record.length, record.unit, record.imm), (14, 4, imm));
    assert_eq!(record.map, [0b1111]);
}

#[test]
fn a_silent_message_ends_with_what_arrived() {
    let mut t = Target::small();
    let one = message(0);
    t.takes(&one, 1);
    t.waits(10);
    t.takes(&one, 3);
    assert_eq!(
        t.records.poll_timeout(),
        Some(Time::ZERO + Duration::from_millis(30))
    );
    t.waits(19);
    assert_eq!(t.told(), [""; 0]);
    t.waits(1);
    assert_eq!(t.told(), ["0 Idle 6 [4..8, 12..14]"]);
    assert_eq!(t.counted(Counter::RecordsPartial), 1);
}

#[test]
fn each_message_has_an_idle_time_of_its_own() {
    let mut t = Target::small();
    t.takes(&message(0), 0);
    t.takes(&message(1), 0);
    t.waits(10);
    t.takes(&message(0), 1);
    t.waits(10);
    assert_eq!(t.told(), ["1 Idle 4 [0..4]"]);
    t.waits(10);
    assert_eq!(t.told(), ["0 Idle 8 [0..8]"]);
}

#[test]
fn a_message_that_does_not_end_is_closed_by_age() {
    let mut t = Target::small();
    let slow = Message {
        length: 64 * 4,
        ..message(0)
    };
    for unit in 0..60 {
        t.takes(&slow, unit);
        t.waits(19);
    }
    let told = t.told();
    assert_eq!(told, ["0 Age 212 [0..212]"], "after 53 packets in a second");
    assert_eq!(t.counted(Counter::DropRecordLate), 7);
}

#[test]
fn a_duplicate_changes_nothing() {
    let mut t = Target::small();
    let one = message(0);
    t.takes(&one, 1);
    t.takes(&Message { fill: 0xff, ..one }, 1);
    assert_eq!(t.counted(Counter::Duplicates), 1);
    assert_eq!(t.bytes(&one)[4..8], [1; 4]);
    assert_eq!(t.memory.writes, 1);
}

#[test]
fn late_packets_do_not_change_what_a_record_declared() {
    let mut t = Target::small();
    let one = message(0);
    let forged = Message { fill: 0xff, ..one };
    t.takes(&one, 0);
    t.waits(20);
    let handle = t.next().unwrap();
    t.takes(&forged, 0);
    t.takes(&forged, 1);
    assert!(t.records.free(handle));
    t.takes(&forged, 0);
    t.takes(&forged, 1);
    assert_eq!(t.counted(Counter::DropRecordLate), 4);
    assert_eq!(t.bytes(&one), [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(t.told(), [""; 0]);
}

#[test]
fn key_and_bounds_are_those_of_the_whole_message() {
    let mut t = Target::small();
    let bad = [
        Message {
            rkey: Rkey(8),
            ..message(0)
        },
        Message {
            va: VA - 4,
            ..message(1)
        },
        Message {
            va: VA + LEN as u64 - 12,
            ..message(2)
        },
        Message {
            length: 4 * 65,
            ..message(3)
        },
    ];
    for one in &bad {
        t.takes(one, 0);
    }
    assert_eq!(t.counted(Counter::DropRecordRefused), 4);
    assert_eq!(t.memory.writes, 0);
    assert_eq!(t.records.poll_timeout(), None, "nothing is open");
    for id in 0..4 {
        t.takes_all(&message(id));
    }
    assert_eq!(t.told().len(), 4, "nor is a number used");
}

#[test]
fn packets_that_contradict_their_message_are_dropped() {
    let mut t = Target::small();
    let one = message(0);
    t.takes(&one, 0);
    let lies = [
        Message { length: 18, ..one },
        Message { unit: 8, ..one },
        Message {
            va: one.va + 64,
            ..one
        },
        Message {
            rkey: Rkey(8),
            ..one
        },
        Message {
            imm: Some([0; 4]),
            ..one
        },
    ];
    for lie in &lies {
        t.takes(lie, 1);
    }
    assert_eq!(t.counted(Counter::DropMalformed), 5);
    t.waits(20);
    assert_eq!(t.told(), ["0 Idle 4 [0..4]"]);
}

#[test]
fn offsets_and_lengths_must_fit_each_other() {
    let mut t = Target::small();
    let one = message(0);
    t.takes_bytes(&one, 2, &[9; 4]);
    t.takes_bytes(&one, 0, &[9; 3]);
    t.takes_bytes(&one, 12, &[9; 3]);
    t.takes_bytes(&one, 16, &[9; 4]);
    t.takes_bytes(&one, 16, &[]);
    t.takes_bytes(&Message { unit: 0, ..one }, 0, &[]);
    t.takes_bytes(&Message { length: 0, ..one }, 0, &[]);
    let huge = Message {
        length: 1 << 31,
        ..one
    };
    t.takes_bytes(&huge, 0, &[9; 4]);
    let wraps = Message {
        va: u64::MAX - 3,
        ..one
    };
    t.takes_bytes(&wraps, 0, &[9; 4]);
    assert_eq!(t.counted(Counter::DropMalformed), 9);
    assert_eq!(t.memory.writes, 0);
}

#[test]
fn zeros_may_fill_the_last_packet_and_are_not_written() {
    let mut t = Target::small();
    let one = message(0);
    let behind = (one.va - VA) as usize + 14;
    t.memory.bytes[behind..][..2].fill(0xaa);
    for wrong in [&[one.fill, one.fill, 0, 0xee][..], &[one.fill; 3], &[0; 8]] {
        t.takes_bytes(&one, 12, wrong);
    }
    assert_eq!(t.counted(Counter::DropMalformed), 3);
    t.takes_bytes(&one, 12, &[one.fill, one.fill, 0, 0]);
    for unit in 0..3 {
        t.takes(&one, unit);
    }
    assert_eq!(t.told(), ["0 Whole 14 [0..14]"]);
    assert_eq!(t.bytes(&one), [one.fill; 14]);
    assert_eq!(t.memory.bytes[behind..][..2], [0xaa; 2]);
}

#[test]
fn an_address_is_told_what_it_may_open() {
    let mut t = Target::small();
    let (mine, other) = ([10, 0, 0, 2].into(), [10, 0, 0, 3].into());
    // Half of eight.
    assert_eq!(t.room_for(mine), 4);
    for id in 0..3 {
        t.takes_all(&message(id));
    }
    assert_eq!((t.room_for(mine), t.room_for(other)), (1, 3));
    t.takes_all(&Message {
        host: 3,
        ..message(3)
    });
    // Four are free, for two.
    assert_eq!((t.room_for(mine), t.room_for(other)), (1, 2));
    t.told();
    assert_eq!((t.room_for(mine), t.room_for(other)), (4, 4));
}

#[test]
fn messages_with_losses_give_way_to_later_ones_of_their_source() {
    let mut t = Target::new(RecordConfig {
        closed_max: 12,
        ..Target::small_config()
    });
    let (mine, other) = ([10, 0, 0, 2].into(), [10, 0, 0, 3].into());
    for id in 0..4 {
        t.takes(&message(id), 0);
    }
    assert_eq!(t.room_for(mine), 0);
    t.waits(1);
    t.takes(&message(3), 1);
    // An eighth of 20 ms after the first packets.
    t.waits(2);
    assert_eq!((t.room_for(mine), t.room_for(other)), (4, 0));
    t.takes(&message(4), 0);
    assert_eq!(t.told(), ["0 Displaced 4 [0..4]"]);
}

#[test]
fn memory_that_is_taken_back_ends_its_messages() {
    let mut t = Target::small();
    t.takes(&message(0), 0);
    t.takes(&message(1), 0);
    t.memory.granted = false;
    t.takes(&message(0), 1);
    assert_eq!(t.told(), ["0 TakenBack 4 [0..4]"]);
    t.records.close_key(RKEY, None, &mut t.memory);
    assert_eq!(t.told(), ["1 TakenBack 4 [0..4]"]);
    assert_eq!(t.records.poll_timeout(), None);
}

#[test]
fn a_message_is_of_the_group_that_its_first_packet_was_for() {
    let mut t = Target::small();
    let plain = message(0);
    let [one, two] = [1, 2].map(|last| Message {
        to: [239, 0, 0, last],
        ..message(1)
    });
    t.takes(&plain, 0);
    t.takes(
        &Message {
            to: one.to,
            ..plain
        },
        1,
    );
    t.takes(&one, 0);
    t.takes(&two, 1);
    t.takes(
        &Message {
            to: plain.to,
            ..one
        },
        2,
    );
    assert_eq!(t.counted(Counter::DropMalformed), 3);
    assert_eq!(t.memory.writes, 2);
    let group = |t: &Target, va| t.records.peek(RKEY, va).unwrap().group;
    assert_eq!(group(&t, plain.va), None);
    assert_eq!(group(&t, one.va), Some(one.to.into()));
    // The key of a group is another one.
    t.records
        .close_key(RKEY, Some(two.to.into()), &mut t.memory);
    assert!(t.told().is_empty());
    t.records
        .close_key(RKEY, Some(one.to.into()), &mut t.memory);
    assert_eq!(t.told(), ["1 TakenBack 4 [0..4]"]);
    t.takes_all(&plain);
    assert_eq!(t.told(), ["0 Whole 14 [0..14]"]);
}

#[test]
fn an_open_message_can_be_looked_at_and_closed() {
    let mut t = Target::small();
    let one = message(0);
    assert!(t.records.peek(RKEY, one.va).is_none());
    t.takes(&one, 2);
    let open = t.records.peek(RKEY, one.va + 13).unwrap();
    assert_eq!((open.ended, open.map), (None, &[0b100][..]));
    assert!(t.records.peek(RKEY, one.va + 14).is_none());
    assert!(t.records.peek(Rkey(8), one.va).is_none());
    assert!(t.records.close_at(RKEY, one.va, &mut t.memory));
    assert!(!t.records.close_at(RKEY, one.va, &mut t.memory));
    assert_eq!(t.told(), ["0 Asked 4 [8..12]"]);
}

#[test]
fn a_handle_is_good_from_its_record_until_it_is_freed() {
    let mut t = Target::small();
    t.takes_all(&message(0));
    assert!(!t.records.free(RecordHandle(0)), "not told yet");
    let handle = t.next().unwrap();
    assert!(t.records.free(handle));
    assert!(!t.records.free(handle));
    t.takes_all(&message(1));
    let next = t.next().unwrap();
    assert_ne!(handle, next);
    assert!(t.records.record(handle).is_none());
    assert!(t.records.record(RecordHandle(u64::MAX)).is_none());
    assert!(t.records.record(next).is_some());
}

#[test]
fn a_reset_forgets_all_and_reuses_no_handle() {
    let mut t = Target::small();
    t.takes_all(&message(0));
    let handle = t.next().unwrap();
    t.takes_all(&message(1));
    t.takes(&message(2), 0);
    t.records.reset();
    assert_eq!(t.told(), [""; 0]);
    assert_eq!(t.records.poll_timeout(), None);
    assert!(t.records.record(handle).is_none());
    for host in 3..5 {
        for id in 0..4 {
            t.takes_all(&Message {
                host,
                ..message(id)
            });
        }
    }
    assert_eq!(t.told().len(), 8, "every entry is free again");
}

#[test]
fn by_the_rule_of_the_paper_the_last_packet_declares() {
    let mut t = Target::new(RecordConfig {
        strict_last: true,
        ..RecordConfig::default()
    });
    t.takes(&message(0), 0);
    t.takes(&message(0), 3);
    t.takes(&message(0), 1);
    t.takes(&message(1), 0);
    t.waits(20);
    assert_eq!(t.told(), ["0 Last 6 [0..4, 12..14]"]);
    assert_eq!(t.counted(Counter::RecordsLost), 1);
    assert_eq!(t.counted(Counter::DropRecordLate), 1);
    t.takes(&message(1), 3);
    assert_eq!(t.told(), [""; 0], "lost is lost");
}

#[test]
fn limits_that_do_not_fit_are_refused() {
    let good = RecordConfig::default();
    let bad = [
        RecordConfig {
            open_max: 0,
            ..good
        },
        RecordConfig {
            open_max: RECORD_OPEN_MAX + 1,
            ..good
        },
        RecordConfig {
            closed_max: 0,
            ..good
        },
        RecordConfig {
            units_max: RECORD_UNITS_MAX,
            open_max: RECORD_OPEN_MAX,
            sources_max: RECORD_SOURCES_MAX,
            ..good
        },
        RecordConfig {
            sources_max: 255,
            ..good
        },
        RecordConfig {
            idle: Duration::ZERO,
            ..good
        },
        RecordConfig {
            age: Duration::ZERO,
            ..good
        },
    ];
    assert_eq!(good.check(), Ok(()));
    for config in bad {
        assert!(RecordTarget::new(config, [0; 2]).is_err(), "{config:?}");
    }
}

/// A message of 256 units: its map has four words.
fn long(id: u32) -> Message {
    Message {
        va: VA,
        length: 1024,
        ..message(id)
    }
}

fn roomy() -> Target {
    Target::new(RecordConfig::default())
}

#[test]
fn each_unit_of_a_long_message_has_its_own_bit() {
    for missing in [0, 1, 62, 63, 64, 127, 128, 191, 192, 255] {
        let (mut target, message) = (roomy(), long(0));
        for unit in (0..256).filter(|&unit| unit != missing) {
            target.takes(&message, unit);
        }
        assert_eq!(target.told(), [""; 0], "unit {missing}");
        target.takes(&message, missing);
        assert_eq!(target.told(), ["0 Whole 1024 [0..1024]"]);
        assert_eq!(target.memory.writes, 256);
    }
}

#[test]
fn an_answer_covers_128_units_behind_the_first_missing_one() {
    for base in [0, 1, 63, 64, 65, 100, 127] {
        let (mut target, message) = (roomy(), long(0));
        let mut replies = |unit: u32| {
            let reply = target.replies(&message, unit * 4, &[1; 4], Some(5));
            reply.map(|reply| (reply.base, reply.map))
        };
        for unit in 0..base {
            replies(unit);
        }
        for behind in [1, 62, 63, 64, 65, 126, 127] {
            let (from, map) = replies(base + behind).unwrap();
            assert_eq!(from, base);
            assert_eq!(map >> behind, 1, "{behind} behind {base}");
        }
        // Beyond the map.
        let (from, map) = replies(base + 128).unwrap();
        assert_eq!((from, map.count_ones()), (base, 7));
    }
}
