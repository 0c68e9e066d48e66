//! Reliable datagrams: packets, answers and completions of one sender and its targets.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use airdma_transport::*;
use airdma_wire::*;

use super::record_target::Memory;

mod attacks;
mod room;

const QKEY: Qkey = Qkey(0x1357);
const KEY: Rkey = Rkey(7);
const VA: u64 = 0x1000;
const UNIT: usize = 256;
const SENDER: [u8; 4] = [10, 0, 0, 1];
const MS: Duration = Duration::from_millis(1);

/// The host of the sender: messages by their slots.
#[derive(Default)]
struct Sends {
    messages: Vec<Vec<u8>>,
    completed: Vec<(u64, Status)>,
    counters: BTreeMap<&'static str, u32>,
}

impl Host for Sends {
    fn gather(&mut self, slot: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        let message = &self.messages[slot.0 as usize];
        let data = message.get(offset as usize..).ok_or(LocalFault)?;
        out.copy_from_slice(data.get(..out.len()).ok_or(LocalFault)?);
        Ok(())
    }
    #[rustfmt::skip]
    fn scatter(&mut self, _: Slot, _: u32, _: &[u8]) -> Result<(), LocalFault> { Err(LocalFault) }
    fn share_memory(&mut self, _: Slot, _: Slot) -> bool {
        false
    }
    fn take_receive(&mut self) -> Option<Receive> {
        None
    }
    #[rustfmt::skip]
    fn take_shared_receive(&mut self, _: u32) -> Result<Option<Receive>, RemoteFault> { Ok(None) }
    #[rustfmt::skip]
    fn scatter_receive(&mut self, _: Slot, _: u32, _: &[u8]) -> Result<(), LocalFault> { Err(LocalFault) }
    #[rustfmt::skip]
    fn check_remote(&mut self, _: Rkey, _: u64, _: u32, _: RemoteAccess) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    #[rustfmt::skip]
    fn read_remote(&mut self, _: Rkey, _: u64, _: &mut [u8]) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    #[rustfmt::skip]
    fn write_remote(&mut self, _: Rkey, _: u64, _: &[u8]) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    #[rustfmt::skip]
    fn atomic(&mut self, _: Rkey, _: u64, _: AtomicOperation) -> Result<u64, RemoteFault> { Err(RemoteFault::Access) }
    #[rustfmt::skip]
    fn write_atomic(&mut self, _: Rkey, _: u64, _: [u8; 8]) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    #[rustfmt::skip]
    fn invalidate(&mut self, _: Rkey) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    fn invalidate_local(&mut self, _: Rkey) -> Result<(), LocalFault> {
        Err(LocalFault)
    }
    fn bind(&mut self, _: &Bind) -> Result<(), LocalFault> {
        Err(LocalFault)
    }
    fn complete_send(&mut self, _: Slot, completion: Option<Completion>) {
        let completion = completion.expect("every request is signalled");
        self.completed.push((completion.wr_id, completion.status));
    }
    fn complete_receive(&mut self, _: Slot, _: Completion) {}
    fn event(&mut self, _: QpEvent) {}
    fn count(&mut self, counter: Counter) {
        *self.counters.entry(counter.name()).or_default() += 1;
    }
}

/// The host of a target: memory for records, and posted receives.
#[derive(Default)]
struct Receives {
    memory: Memory,
    posted: VecDeque<Receive>,
    buffers: Vec<Vec<u8>>,
    completed: Vec<Completion>,
}

impl Receives {
    fn post(&mut self, length: usize) {
        let slot = Slot(self.buffers.len() as u32);
        self.buffers.push(vec![0; length + GRH_LEN]);
        self.posted.push_back(Receive {
            slot,
            wr_id: 100 + u64::from(slot.0),
            length: (length + GRH_LEN) as u32,
        });
    }

    fn message(&self, at: usize) -> &[u8] {
        let completion = &self.completed[at];
        assert_eq!(completion.status, Status::Success);
        let buffer = &self.buffers[completion.wr_id as usize - 100];
        &buffer[GRH_LEN..completion.byte_len as usize]
    }
}

impl RecordHost for Receives {
    fn check_record(
        &mut self,
        origin: RecordOrigin,
        rkey: Rkey,
        va: u64,
        length: u32,
    ) -> Result<(), RemoteFault> {
        self.memory.check_record(origin, rkey, va, length)
    }
    fn write_record(
        &mut self,
        origin: RecordOrigin,
        rkey: Rkey,
        va: u64,
        data: &[u8],
    ) -> Result<(), RemoteFault> {
        self.memory.write_record(origin, rkey, va, data)
    }
    fn count_record(&mut self, counter: Counter) {
        self.memory.count_record(counter);
    }
    fn take_message(&mut self) -> Option<Receive> {
        self.posted.pop_front()
    }
    fn place_header(&mut self, receive: Slot, header: &[u8]) {
        self.buffers[receive.0 as usize][..GRH_LEN].copy_from_slice(header);
    }
    fn place_message(&mut self, receive: Slot, offset: u32, data: &[u8]) -> bool {
        let at = GRH_LEN + offset as usize;
        self.buffers[receive.0 as usize][at..][..data.len()].copy_from_slice(data);
        true
    }
    fn complete_message(&mut self, _: Slot, completion: Completion) {
        self.completed.push(completion);
    }
    fn flush_message(&mut self, receive: Receive) {
        self.completed.push(Completion::with_status(
            receive.wr_id,
            CompletionOpcode::Receive,
            Status::WrFlushError,
            Qpn::new(1),
        ));
    }
}

struct Target {
    qp: QueuePair,
    records: RecordTarget,
    host: Receives,
}

struct World {
    now: Time,
    qp: QueuePair,
    host: Sends,
    targets: Vec<Target>,
}

fn queue_pair(number: u32) -> QueuePair {
    let mut qp = QueuePair::new(QpConfig {
        qp_type: QpType::Ud,
        qpn: Qpn::new(number),
        port_mtu: PathMtu::M256,
        shared_receives: false,
    });
    let steps = [
        (
            QpState::Init,
            AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
        ),
        (QpState::ReadyToReceive, AttrMask::empty()),
        (QpState::ReadyToSend, AttrMask::SQ_PSN),
    ];
    for (state, mask) in steps {
        let attributes = QpAttributes {
            state,
            qkey: QKEY,
            port: 1,
            ..QpAttributes::default()
        };
        qp.modify(&attributes, AttrMask::STATE | mask, &mut Sends::default())
            .unwrap();
    }
    // 256 bytes of payload, and a token.
    qp.set_record_requester(Psn::new(number), 340 + RECORD_TOKEN_LEN as u32);
    qp
}

fn address(target: usize) -> Neighbour {
    [10, 0, 1, target as u8].into()
}

/// A packet on its way.
#[derive(Clone, Debug)]
struct Flying {
    to: usize,
    bytes: Vec<u8>,
}

impl Flying {
    fn record(&self) -> RecordPacket<'_> {
        RecordPacket::parse(&self.bytes).unwrap()
    }

    /// Number, unit, and whether it asks.
    fn told(&self) -> (u32, u32, bool) {
        let headers = self.record().headers;
        let unit = headers.rceth.offset / u32::from(headers.rceth.unit).max(1);
        (headers.rceth.id, unit, headers.bth.ack_request)
    }
}

impl World {
    fn new(targets: usize) -> Self {
        World::with(targets, ReliableConfig::default(), RecordConfig::default())
    }

    fn with(targets: usize, config: ReliableConfig, records: RecordConfig) -> Self {
        let mut qp = queue_pair(0x100);
        qp.enable_reliable(config, [5, 6]).unwrap();
        let target = |number: usize| Target {
            qp: queue_pair(1 + number as u32),
            records: RecordTarget::new(records, [1, 2]).unwrap(),
            host: Receives::default(),
        };
        World {
            now: Time::from_nanos(1_000_000_000),
            qp,
            host: Sends::default(),
            targets: (0..targets).map(target).collect(),
        }
    }

    fn post(&mut self, to: usize, operation: Operation, message: &[u8]) {
        self.post_with(QKEY, to, operation, message);
    }

    fn post_with(&mut self, qkey: Qkey, to: usize, operation: Operation, message: &[u8]) {
        let slot = Slot(self.host.messages.len() as u32);
        self.host.messages.push(message.to_vec());
        let gid = Gid::from(address(to));
        let request = SendRequest {
            slot,
            wr_id: slot.0.into(),
            operation,
            length: message.len() as u32,
            signalled: true,
            solicited: false,
            fence: false,
            datagram: Some(Datagram {
                path: Path {
                    gid,
                    ..Path::default()
                },
                qpn: Qpn::new(1 + to as u32),
                qkey,
            }),
            reliable: true,
            srqn: 0,
        };
        self.qp.post_send(request, &mut self.host);
    }

    fn post_record(&mut self, to: usize, length: usize) {
        let message: Vec<u8> = (0..length).map(|at| at as u8).collect();
        self.post(to, Operation::Record { va: VA, rkey: KEY }, &message);
    }

    fn post_send(&mut self, to: usize, message: &[u8]) {
        self.post(to, Operation::Send, message);
    }

    /// What the sender sends now.
    fn sends(&mut self) -> Vec<Flying> {
        let mut out = vec![0; 5000];
        let mut packets = Vec::new();
        while let Some(sent) = self.qp.poll_transmit(self.now, 0, &mut self.host, &mut out) {
            let ip = sent.path.gid.to_ip();
            let to = (0..self.targets.len()).find(|&to| address(to).ip() == Some(ip));
            packets.push(Flying {
                to: to.unwrap_or(usize::MAX),
                bytes: out[..sent.len].to_vec(),
            });
        }
        assert!(!self.qp.wants_transmit());
        packets
    }

    /// A packet arrives; returns the answer.
    fn arrives(&mut self, packet: &Flying) -> Option<RecordAck> {
        let Target { qp, records, host } = &mut self.targets[packet.to];
        let arrival = arrival(SENDER.into(), address(packet.to));
        let owed = qp.handle_record(self.now, &arrival, &packet.record(), records, host)?;
        let RecordAnswerOwed::Ack(answer) = owed else {
            panic!("{owed:?}");
        };
        let mut bytes = [0; RECORD_ACK_LEN];
        answer.emit(&mut bytes);
        assert!(bytes.len() <= packet.bytes.len(), "no amplification");
        Some(RecordAck::parse(&bytes).unwrap())
    }

    fn answered(&mut self, from: usize, answer: &RecordAck) {
        let arrival = arrival(address(from), SENDER.into());
        self.qp
            .handle_answer(self.now, &arrival, answer, &mut self.host);
    }

    /// All packets arrive, and their answers, until nothing more is sent.
    fn settle(&mut self) {
        loop {
            let packets = self.sends();
            if packets.is_empty() {
                return;
            }
            for packet in &packets {
                if let Some(answer) = self.arrives(packet) {
                    self.answered(packet.to, &answer);
                }
            }
        }
    }

    /// The next timer of the sender fires.
    fn times_out(&mut self) {
        let due = self.qp.poll_timeout().expect("a timer");
        self.now = self.now.max(due);
        self.qp.handle_timeout(self.now, &mut self.host);
    }

    fn counted(&self, counter: Counter) -> u32 {
        self.host.counters.get(counter.name()).copied().unwrap_or(0)
    }
}

fn arrival(source: Neighbour, destination: Neighbour) -> Arrival {
    Arrival {
        source,
        destination,
        tos: 0,
        ttl: 64,
        flow_label: 0,
    }
}

fn told(packets: &[Flying]) -> Vec<(u32, u32, bool)> {
    packets.iter().map(Flying::told).collect()
}

#[test]
fn a_record_completes_when_all_of_it_is_acknowledged() {
    let mut world = World::new(1);
    world.post_record(0, 3 * UNIT);
    let packets = world.sends();
    assert_eq!(told(&packets), [(0, 0, false), (0, 1, false), (0, 2, true)]);
    assert_eq!(world.arrives(&packets[0]), None);
    assert_eq!(world.arrives(&packets[1]), None);
    let answer = world.arrives(&packets[2]).unwrap();
    assert_eq!(answer.answer, RecordAnswer::Whole);
    assert!(world.host.completed.is_empty());
    world.answered(0, &answer);
    assert_eq!(world.host.completed, [(0, Status::Success)]);
    assert_eq!(
        world.qp.poll_timeout().map(|due| due > world.now),
        Some(true)
    );
    world.times_out();
    assert!(world.sends().is_empty());
    assert_eq!(world.qp.poll_timeout(), None);
}

#[test]
fn what_is_missing_is_repeated_and_nothing_else() {
    let mut world = World::new(1);
    world.post_record(0, 5 * UNIT);
    let packets = world.sends();
    world.arrives(&packets[0]);
    world.arrives(&packets[2]);
    let answer = world.arrives(&packets[4]).unwrap();
    assert_eq!((answer.answer, answer.base), (RecordAnswer::Arrives, 1));
    assert_eq!(answer.map, 0b1010);
    world.answered(0, &answer);
    let again = world.sends();
    assert_eq!(told(&again), [(0, 1, false), (0, 3, true)]);
    world.arrives(&again[0]);
    let answer = world.arrives(&again[1]).unwrap();
    world.answered(0, &answer);
    assert_eq!(world.host.completed, [(0, Status::Success)]);
    assert_eq!(world.counted(Counter::Retransmits), 2);
}

#[test]
fn without_an_answer_the_timer_repeats() {
    let mut world = World::new(1);
    world.post_record(0, UNIT);
    assert_eq!(told(&world.sends()), [(0, 0, true)]);
    for _ in 0..3 {
        world.times_out();
        assert_eq!(told(&world.sends()), [(0, 0, true)]);
    }
    world.times_out();
    world.settle();
    assert_eq!(world.host.completed, [(0, Status::Success)]);
}

#[test]
fn a_destination_that_is_dead_fails_its_requests_only() {
    let mut world = World::new(3);
    let start = world.now;
    for to in [0, 2, 1, 2] {
        world.post_record(to, 2 * UNIT);
    }
    while world.host.completed.len() < 4 {
        for packet in world.sends() {
            if packet.to != 2
                && let Some(answer) = world.arrives(&packet)
            {
                world.answered(packet.to, &answer);
            }
        }
        if world.host.completed.len() < 4 {
            world.times_out();
        }
    }
    let expected = [
        (0, Status::Success),
        (2, Status::Success),
        (1, Status::RetryExceeded),
        (3, Status::RetryExceeded),
    ];
    assert_eq!(world.host.completed, expected);
    let waited = world.now.duration_since(start);
    assert_eq!(waited, ReliableConfig::default().silence);
    assert_eq!(world.qp.state(), QpState::ReadyToSend);
    world.post_record(2, UNIT);
    world.settle();
    assert_eq!(world.host.completed[4..], [(4, Status::Success)]);
}

#[test]
fn a_wrong_qkey_fails_its_own_message_only() {
    let mut world = World::new(1);
    let record = Operation::Record { va: VA, rkey: KEY };
    let message = [7; 40 * UNIT];
    world.post_with(Qkey(QKEY.0 + 1), 0, record, &message);
    let (mut right, mut rounds) = (0, 0);
    while world.host.completed.len() < 31 {
        rounds += 1;
        assert!(rounds < 300, "{:?}", world.host.completed);
        if right < 30 {
            // One at a time, for longer than the wrong one takes to fail.
            world.post(0, Operation::Record { va: VA, rkey: KEY }, &message[..UNIT]);
            right += 1;
        }
        for packet in world.sends() {
            if let Some(answer) = world.arrives(&packet) {
                world.answered(packet.to, &answer);
            }
        }
        while let Some(handle) = world.targets[0].records.poll_record() {
            assert!(world.targets[0].records.free(handle));
        }
        world.times_out();
    }
    let mut completed = world.host.completed.clone();
    completed.sort_unstable_by_key(|&(wr_id, _)| wr_id);
    assert_eq!(completed[0], (0, Status::RetryExceeded));
    for (wr_id, status) in &completed[1..] {
        assert_eq!(*status, Status::Success, "{wr_id}");
    }
}

#[test]
fn a_send_fills_one_receive_once() {
    let mut world = World::new(1);
    let message: Vec<u8> = (0..600).map(|at| (at % 251) as u8).collect();
    world.targets[0].host.post(600);
    world.targets[0].host.post(600);
    world.post(0, Operation::SendImm([1, 2, 3, 4]), &message);
    let packets = world.sends();
    for at in [2, 0, 2] {
        world.arrives(&packets[at]);
    }
    assert!(world.targets[0].host.completed.is_empty());
    let answer = world.arrives(&packets[1]).expect("it is whole");
    assert_eq!(answer.answer, RecordAnswer::Whole);
    // The answer is lost, and the message is repeated.
    world.times_out();
    for packet in world.sends() {
        let answer = world.arrives(&packet);
        assert!(answer.is_none_or(|answer| answer.answer == RecordAnswer::Whole));
    }
    world.answered(0, &answer);
    let host = &world.targets[0].host;
    assert_eq!(host.completed.len(), 1);
    assert_eq!(host.message(0), message);
    let completion = &host.completed[0];
    assert_eq!(completion.imm, Some([1, 2, 3, 4]));
    assert_eq!(completion.src_qpn, Qpn::new(0x100));
    assert_eq!(completion.grh, Some(GrhHeader::Ipv4));
    assert_eq!(world.host.completed, [(0, Status::Success)]);
    assert_eq!(host.posted.len(), 1);
}

#[test]
fn an_empty_send_is_a_message_too() {
    let mut world = World::new(1);
    world.targets[0].host.post(0);
    world.post_send(0, &[]);
    world.settle();
    assert_eq!(world.targets[0].host.message(0), []);
    assert_eq!(world.host.completed, [(0, Status::Success)]);
}

#[test]
fn a_send_waits_for_a_receive_and_gives_up_in_time() {
    let mut world = World::new(1);
    world.post_send(0, b"first");
    world.settle();
    for _ in 0..3 {
        world.times_out();
        world.settle();
    }
    assert!(world.counted(Counter::RnrNaksReceived) > 2);
    world.targets[0].host.post(100);
    while world.host.completed.is_empty() {
        world.times_out();
        world.settle();
    }
    assert_eq!(world.host.completed, [(0, Status::Success)]);
    let start = world.now;
    world.post_send(0, b"second");
    world.settle();
    while world.host.completed.len() < 2 {
        world.times_out();
        world.settle();
    }
    assert_eq!(world.host.completed[1], (1, Status::RnrRetryExceeded));
    let waited = world.now.duration_since(start);
    let most = ReliableConfig::default().not_ready;
    assert!((most..most + 100 * MS).contains(&waited), "{waited:?}");
    assert_eq!(world.qp.state(), QpState::ReadyToSend);
}

#[test]
fn a_receive_too_short_serves_the_next_message() {
    let mut world = World::new(1);
    world.targets[0].host.post(600);
    world.post_send(0, &[1; 700]);
    let packets = world.sends();
    world.arrives(&packets[0]);
    world.targets[0].host.post(700);
    let answer = world.arrives(&packets[2]).unwrap();
    assert_eq!(answer.answer, RecordAnswer::TooLong);
    world.answered(0, &answer);
    world.post_send(0, &[2; 600]);
    world.settle();
    let expected = [(0, Status::RemoteInvalidRequest), (1, Status::Success)];
    assert_eq!(world.host.completed, expected);
    assert_eq!(world.targets[0].host.message(0), [2; 600]);
    // What is late of the first message takes no receive.
    for packet in &packets {
        world.arrives(packet);
    }
    assert_eq!(world.targets[0].host.completed.len(), 1);
}

#[test]
fn a_wrong_key_is_refused() {
    let mut world = World::new(1);
    let operation = Operation::Record {
        va: VA,
        rkey: Rkey(8),
    };
    world.post(0, operation, &[1; 8]);
    world.settle();
    assert_eq!(world.host.completed, [(0, Status::RemoteAccessError)]);
    assert_eq!(world.qp.state(), QpState::ReadyToSend);
}

#[test]
fn a_forged_answer_completes_nothing() {
    let mut world = World::new(2);
    world.post_record(0, UNIT);
    world.post_record(1, UNIT);
    let packets = world.sends();
    let answer = world.arrives(&packets[0]).unwrap();
    let forged = [
        RecordAck {
            token: answer.token ^ 1,
            ..answer
        },
        RecordAck { id: 1, ..answer },
        RecordAck {
            bth: Bth {
                psn: answer.bth.psn.add(1),
                ..answer.bth
            },
            ..answer
        },
        RecordAck {
            deth: Deth {
                src_qpn: Qpn::new(77),
                ..answer.deth
            },
            ..answer
        },
    ];
    for answer in &forged {
        world.answered(0, answer);
    }
    // Another destination has tokens of its own only.
    let mut other = answer;
    other.deth.src_qpn = Qpn::new(2);
    world.answered(1, &other);
    assert!(world.host.completed.is_empty());
    assert_eq!(world.counted(Counter::DropGhost), 5);
    world.answered(0, &answer);
    world.answered(0, &answer);
    assert_eq!(world.host.completed, [(0, Status::Success)]);
    assert_eq!(world.counted(Counter::DropGhost), 6);
}

#[test]
fn a_map_that_lies_moves_nothing() {
    let mut world = World::new(1);
    world.post_record(0, 4 * UNIT);
    let packets = world.sends();
    let answer = world.arrives(&packets[3]).unwrap();
    for (base, map) in [
        (4, 0),
        (u32::MAX, u128::MAX),
        (3, u128::MAX),
        (0, u128::MAX),
    ] {
        world.answered(
            0,
            &RecordAck {
                base,
                map,
                ..answer
            },
        );
    }
    assert!(world.host.completed.is_empty());
    // What it claimed to have is its own loss; the first missing unit is repeated anyway.
    assert_eq!(told(&world.sends()), [(0, 3, true)]);
}

#[test]
fn a_message_that_was_read_and_freed_is_not_taken_again() {
    let mut world = World::new(1);
    world.post_record(0, UNIT);
    let packets = world.sends();
    world.arrives(&packets[0]).unwrap();
    let records = &mut world.targets[0].records;
    let handle = records.poll_record().unwrap();
    assert_eq!(records.record(handle).unwrap().ended, Some(Ended::Whole));
    records.free(handle);
    let answer = world.arrives(&packets[0]).unwrap();
    assert_eq!(answer.answer, RecordAnswer::Whole);
    assert!(!world.targets[0].records.has_record());
    assert_eq!(world.targets[0].host.memory.counted(Counter::Duplicates), 1);
}

impl World {
    fn settle_and_free(&mut self) {
        loop {
            let packets = self.sends();
            if packets.is_empty() {
                return;
            }
            for packet in &packets {
                if let Some(answer) = self.arrives(packet) {
                    self.answered(packet.to, &answer);
                }
                let records = &mut self.targets[packet.to].records;
                while let Some(handle) = records.poll_record() {
                    records.free(handle);
                }
            }
        }
    }
}

#[test]
fn an_error_flushes_all_and_a_reset_forgets_all() {
    let mut world = World::new(2);
    world.targets[0].host.post(1000);
    for to in [0, 1] {
        world.post_send(to, &[7; 900]);
    }
    let packets = world.sends();
    world.arrives(&packets[0]);
    let Target { records, host, .. } = &mut world.targets[0];
    records.flush_receives(host);
    assert_eq!(host.completed.len(), 1);
    assert_eq!(host.completed[0].status, Status::WrFlushError);
    let to = |state| QpAttributes {
        state,
        ..QpAttributes::default()
    };
    world
        .qp
        .modify(&to(QpState::Error), AttrMask::STATE, &mut world.host)
        .unwrap();
    let expected = [(0, Status::WrFlushError), (1, Status::WrFlushError)];
    assert_eq!(world.host.completed, expected);
    world
        .qp
        .modify(&to(QpState::Reset), AttrMask::STATE, &mut world.host)
        .unwrap();
    assert!(world.qp.is_reliable() && world.qp.poll_timeout().is_none());
}

#[test]
fn a_request_to_be_repeated_by_a_queue_pair_that_does_not_fails() {
    let mut world = World::new(1);
    world.qp = queue_pair(0x100);
    world.post_record(0, 8);
    assert!(world.sends().is_empty());
    assert_eq!(world.host.completed, [(0, Status::LocalQpOperationError)]);
}
