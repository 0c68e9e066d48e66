//! One capture with our queue pair at one end: the other end's packets come in when they were seen,
//! and what ours sends is held against what rxe sent there at the same place.

use std::collections::{BTreeMap, VecDeque};

use airdma_captures::Captured;
use airdma_transport::*;
use airdma_wire::*;

use crate::machine::Machine;
use crate::record::{End, Posted, Record, Recorded, is_atomic};
use crate::story::Story;

const QKEY: Qkey = Qkey(0x1111_1111);

/// A packet of ours that rxe has not sent yet.
struct Sent {
    headers: Headers,
    payload: Vec<u8>,
}

pub struct Replay<'a> {
    record: &'a Record,
    end: End,
    qp: QueuePair,
    machine: Machine,
    now: Time,
    /// What ours sent, oldest first, until rxe sent the same.
    ours: VecDeque<Sent>,
    /// What the program at our end posts, in order, and how many packets that took so far.
    unposted: VecDeque<&'a [Posted]>,
    posted_packets: u32,
    requests_arrived: usize,
    receives: VecDeque<Receive>,
    /// What the program at our end put where the peer's READs find it, in their order.
    puts: VecDeque<(u64, Vec<u8>)>,
    /// No request may leave earlier: the peer said that it is not ready.
    silent_until: Time,
    /// What ours did otherwise than rxe.
    differences: Vec<String>,
}

impl<'a> Replay<'a> {
    /// What ours does otherwise than rxe did at that end of the capture, a line each.
    pub fn run(record: &'a Record, end: End) -> Vec<String> {
        let story = Story::of(record);
        let mut replay = Replay::new(record, end, &story);
        for (sender, captured) in record.packets() {
            replay.step(sender, &captured);
        }
        replay.pass_over(replay.ours.len());
        replay.compare_completions();
        replay.compare_memory(&story);
        replay.differences
    }

    /// The same for a responder that gets all requests before it can answer the first. Of the
    /// acknowledgements that stood one behind the other in the capture, the last alone counts: it
    /// says what the others said.
    pub fn run_at_once(record: &'a Record) -> Vec<String> {
        let story = Story::of(record);
        let mut replay = Replay::new(record, End::B, &story);
        let captures = record.packets();
        let mut theirs: Vec<Packet<'_>> = Vec::new();
        for (sender, captured) in &captures {
            let packet = Packet::parse(captured.transport()).unwrap();
            if *sender == End::A {
                replay.deliver(captured, &packet);
                continue;
            }
            let joins = |before: &Packet<'_>| {
                (before.opcode(), packet.opcode()) == (Opcode::RcAcknowledge, Opcode::RcAcknowledge)
            };
            theirs.pop_if(|before| joins(before));
            theirs.push(packet);
        }
        replay.collect();
        for packet in &theirs {
            replay.rxe_sends(packet);
        }
        replay.pass_over(replay.ours.len());
        replay.compare_completions();
        replay.compare_memory(&story);
        replay.differences
    }

    fn new(record: &'a Record, end: End, story: &Story) -> Self {
        let own = record.side(end);
        let batches = record.batches.iter().map(|batch| batch.posted.as_slice());
        let incoming = record
            .posted()
            .filter(|posted| posted.from != end && posted.has_receive);
        let receives: VecDeque<_> = incoming
            .filter(|posted| takes_receive(&posted.operation))
            .map(|posted| Receive {
                slot: Slot(posted.wr_id as u32),
                wr_id: posted.wr_id,
                length: record.setup.receive_len,
            })
            .collect();
        let of_peer = record.posted().filter(|posted| posted.from != end);
        let puts = of_peer.filter_map(|posted| posted.put.clone());
        let place = |receive: &Receive| record.receive_va(end, receive.wr_id);
        let mut machine = Machine {
            memory: story.before(end).clone(),
            regions: own.regions.clone(),
            messages: BTreeMap::new(),
            receives: VecDeque::new(),
            receive_at: receives
                .iter()
                .map(|receive| (receive.slot.0, place(receive)))
                .collect(),
            sent: Vec::new(),
            received: Vec::new(),
        };
        let mut qp = QueuePair::new(QpConfig {
            qp_type: record.service,
            qpn: own.qpn,
            port_mtu: record.path_mtu,
            shared_receives: false,
        });
        make_ready(&mut qp, record, end, &mut machine);
        let mut replay = Replay {
            record,
            end,
            qp,
            machine,
            now: Time::ZERO,
            ours: VecDeque::new(),
            unposted: batches.filter(|posted| posted[0].from == end).collect(),
            posted_packets: 0,
            requests_arrived: 0,
            receives,
            puts: puts.collect(),
            silent_until: Time::ZERO,
            differences: Vec::new(),
        };
        replay.post_receives();
        replay
    }

    fn post_receives(&mut self) {
        if self.requests_arrived >= self.record.setup.receives_follow {
            self.machine.receives.extend(self.receives.drain(..));
        }
    }

    fn step(&mut self, sender: End, captured: &Captured) {
        let at = Time::ZERO + captured.at;
        while let Some(due) = self.qp.poll_timeout().filter(|due| *due <= at) {
            self.now = due;
            self.qp.handle_timeout(due, &mut self.machine);
            self.collect();
        }
        self.now = at;
        let packet = Packet::parse(captured.transport()).unwrap();
        if sender == self.end {
            self.rxe_sends(&packet);
        } else {
            self.peer_sends(captured, &packet);
        }
    }

    /// rxe answered one packet before the next came, so that what ours answered and rxe did not is
    /// known by now.
    fn peer_sends(&mut self, captured: &Captured, packet: &Packet<'_>) {
        let answers = self
            .ours
            .iter()
            .take_while(|sent| !sent.headers.bth.opcode.is_request());
        self.pass_over(answers.count());
        self.deliver(captured, packet);
        self.collect();
        if self.record.service == QpType::Ud {
            self.compare_grh(captured);
        }
    }

    fn deliver(&mut self, captured: &Captured, packet: &Packet<'_>) {
        let headers = &packet.headers;
        if headers.bth.opcode == Opcode::RcReadRequest
            && let Some((va, bytes)) = self.puts.pop_front()
        {
            self.machine.memory.write(va, &bytes);
        }
        if headers.bth.opcode.is_request() {
            self.post_receives();
            self.requests_arrived += 1;
        }
        if let Some(Aeth {
            syndrome: Syndrome::RnrNak { timer },
            ..
        }) = headers.aeth
        {
            self.silent_until = self.now + rnr_timer(timer);
        }
        let ip = &captured.ip_packet;
        let (tos, ttl, flow_label) = match captured.ip {
            IpPseudo::V4 { .. } => (ip[1], ip[8], 0),
            IpPseudo::V6 { .. } => {
                let word = u32::from_be_bytes(ip[..4].try_into().unwrap());
                ((word >> 20) as u8, ip[7], word & 0x000f_ffff)
            }
        };
        let arrival = Arrival {
            source: captured.source().into(),
            destination: captured.destination().into(),
            tos,
            ttl,
            flow_label,
        };
        self.qp
            .handle_packet(self.now, &arrival, packet, &mut self.machine);
    }

    /// Takes all that our queue pair wants to send.
    fn collect(&mut self) {
        let mut out = vec![0; HEADERS_LEN_MAX + 4096 + 3];
        let (now, machine) = (self.now, &mut self.machine);
        while let Some(transmit) = self.qp.poll_transmit(now, u32::MAX, machine, &mut out) {
            let packet = Packet::parse(&out[..transmit.len]).unwrap();
            if packet.opcode().is_request() {
                assert!(
                    now >= self.silent_until,
                    "a request while the peer is not ready"
                );
            }
            self.ours.push_back(Sent {
                headers: packet.headers,
                payload: packet.payload.to_vec(),
            });
        }
    }

    /// rxe sends at our end: ours has to have sent the same.
    fn rxe_sends(&mut self, theirs: &Packet<'_>) {
        let bth = &theirs.headers.bth;
        if bth.opcode.is_request() {
            self.post_until(bth.psn);
        }
        let same = |sent: &Sent| {
            let ours = &sent.headers.bth;
            ours.psn == bth.psn && ours.opcode.is_request() == bth.opcode.is_request()
        };
        match self.ours.iter().position(same) {
            None => self
                .differences
                .push(format!("{}: only rxe's", name_of(bth))),
            Some(at) => {
                self.pass_over(at);
                let sent = self.ours.pop_front().unwrap();
                self.differences.extend(packet_differences(&sent, theirs));
            }
        }
    }

    /// The program posts when its first packet shows that it has.
    fn post_until(&mut self, psn: Psn) {
        let first = self.record.side(self.end).psn;
        while psn.distance_from(first.add(self.posted_packets)) >= 0 {
            let Some(batch) = self.unposted.pop_front() else {
                return;
            };
            for posted in batch {
                self.post(posted);
            }
            self.collect();
        }
    }

    fn post(&mut self, posted: &Posted) {
        let slot = Slot(posted.wr_id as u32);
        self.machine.messages.insert(slot.0, posted.message.clone());
        let takes_psns = if is_atomic(&posted.operation) {
            1
        } else {
            posted.length.div_ceil(self.record.path_mtu.bytes()).max(1)
        };
        self.posted_packets += takes_psns;
        let datagram = Datagram {
            path: Path::default(),
            qpn: self.record.side(self.end.peer()).qpn,
            qkey: QKEY,
        };
        let request = SendRequest {
            slot,
            wr_id: posted.wr_id,
            operation: posted.operation,
            length: posted.length,
            signalled: posted.signalled,
            solicited: posted.solicited,
            fence: false,
            datagram: (self.record.service == QpType::Ud).then_some(datagram),
            reliable: false,
            srqn: 0,
        };
        self.qp.post_send(request, &mut self.machine);
    }

    /// The first `count` packets of ours have no counterpart.
    fn pass_over(&mut self, count: usize) {
        for sent in self.ours.drain(..count) {
            self.differences
                .push(format!("{}: only ours", name_of(&sent.headers.bth)));
        }
    }

    /// A datagram's receive begins with its IP header, but for the identification, which sockets do
    /// not tell, and with it the checksum. Compared, it is wiped, so that it is not in the way of
    /// the rest.
    fn compare_grh(&mut self, captured: &Captured) {
        let receive = self.machine.received.last().unwrap();
        let at = self.machine.receive_at[&(receive.wr_id as u32)];
        let mut ours = self.machine.memory.read(at, GRH_LEN);
        let mut theirs = vec![0; GRH_LEN];
        let header_len = captured.transport_at - 8;
        theirs[GRH_LEN - header_len..].copy_from_slice(&captured.ip_packet[..header_len]);
        if matches!(captured.ip, IpPseudo::V4 { .. }) {
            for at in [24, 25, 30, 31] {
                (ours[at], theirs[at]) = (0, 0);
            }
        }
        if ours != theirs {
            self.differences
                .push(format!("header of receive {}", receive.wr_id));
        }
        self.machine.memory.write(at, &[0; GRH_LEN]);
    }

    fn compare_completions(&mut self) {
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for batch in &self.record.batches {
            if batch.posted[0].from == self.end {
                sent.extend(batch.sent.iter().copied().map(Some));
            } else {
                received.extend(batch.received.iter().copied());
            }
        }
        let lines = completion_differences("send", &self.machine.sent, &sent);
        self.differences.extend(lines);
        let lines = completion_differences("receive", &self.machine.received, &received);
        self.differences.extend(lines);
    }

    fn compare_memory(&mut self, story: &Story) {
        if self.machine.memory != *story.after(self.end) {
            self.differences.push("memory".to_owned());
        }
        for posted in self
            .record
            .posted()
            .filter(|posted| posted.from == self.end)
        {
            let Some(result) = story.results.get(&posted.wr_id) else {
                continue;
            };
            if self.machine.messages[&(posted.wr_id as u32)] != *result {
                self.differences
                    .push(format!("result of request {}", posted.wr_id));
            }
        }
        assert!(self.unposted.is_empty(), "requests that were never seen");
    }
}

fn takes_receive(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Send | Operation::SendImm(_) | Operation::WriteImm { .. }
    )
}

fn make_ready(qp: &mut QueuePair, record: &Record, end: End, machine: &mut Machine) {
    let (own, peer) = (record.side(end), record.side(end.peer()));
    let attributes = QpAttributes {
        path_mtu: record.path_mtu,
        qkey: QKEY,
        rq_psn: peer.psn,
        sq_psn: own.psn,
        dest_qpn: peer.qpn,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        port: 1,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        min_rnr_timer: record.setup.min_rnr_timer,
        timeout: record.setup.timeout,
        retry_count: 7,
        rnr_retry: record.setup.rnr_retry,
        ..QpAttributes::default()
    };
    let init = AttrMask::PKEY_INDEX | AttrMask::PORT;
    let receive = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let answers = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let retries =
        AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    let masks = match record.service {
        QpType::Ud => [init | AttrMask::QKEY, AttrMask::empty(), AttrMask::SQ_PSN],
        QpType::Uc => [init | AttrMask::ACCESS_FLAGS, receive, AttrMask::SQ_PSN],
        QpType::Rc | QpType::XrcSend | QpType::XrcReceive | QpType::RawPacket => [
            init | AttrMask::ACCESS_FLAGS,
            receive | answers,
            AttrMask::SQ_PSN | retries,
        ],
    };
    let states = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
    for (state, mask) in states.into_iter().zip(masks) {
        let attributes = QpAttributes {
            state,
            ..attributes
        };
        qp.modify(&attributes, mask | AttrMask::STATE, machine)
            .unwrap();
    }
}

fn name_of(bth: &Bth) -> String {
    format!("{} {:06x}", bth.opcode.name(), bth.psn.get())
}

/// Field by field what a packet of ours has otherwise than rxe's at its place.
fn packet_differences(sent: &Sent, theirs: &Packet<'_>) -> Vec<String> {
    let (ours, rxes) = (&sent.headers, &theirs.headers);
    let mut lines = Vec::new();
    let mut differ = |field: &str, ours: String, rxes: String| {
        if ours != rxes {
            let name = name_of(&sent.headers.bth);
            lines.push(format!("{name}: {field} {ours}, rxe's {rxes}"));
        }
    };
    macro_rules! compare {
        ($($field:literal $get:expr;)*) => {$({
            let get: fn(&Headers) -> String = $get;
            differ($field, get(ours), get(rxes));
        })*};
    }
    compare! {
        "opcode" |h| h.bth.opcode.name().to_owned();
        "solicited" |h| h.bth.solicited.to_string();
        "migreq" |h| h.bth.migreq.to_string();
        "pad" |h| h.bth.pad.to_string();
        "pkey" |h| format!("{:04x}", h.bth.pkey);
        "fecn" |h| h.bth.fecn.to_string();
        "becn" |h| h.bth.becn.to_string();
        "destination" |h| h.bth.dest_qpn.to_string();
        "ack request" |h| h.bth.ack_request.to_string();
        "deth" |h| format!("{:?}", h.deth);
        "reth" |h| format!("{:?}", h.reth);
        "atomic" |h| format!("{:?}", h.atomic_eth);
        "original" |h| format!("{:?}", h.atomic_ack);
        "immediate" |h| format!("{:?}", h.imm);
        "key" |h| format!("{:?}", h.ieth);
    }
    // Whether there is one follows from the opcode.
    if let (Some(ours), Some(rxes)) = (ours.aeth, rxes.aeth) {
        differ(
            "syndrome",
            format!("{:?}", ours.syndrome),
            format!("{:?}", rxes.syndrome),
        );
        differ("msn", ours.msn.to_string(), rxes.msn.to_string());
    }
    differ(
        "length",
        sent.payload.len().to_string(),
        theirs.payload.len().to_string(),
    );
    if sent.payload.len() == theirs.payload.len() && sent.payload != theirs.payload {
        differ("payload", "one".to_owned(), "another".to_owned());
    }
    lines
}

/// What is recorded of a failed request is its id and its status: the rest means nothing (IBTA
/// 11.4.2.1).
fn completion_differences(
    kind: &str,
    ours: &[Completion],
    recorded: &[Option<Recorded>],
) -> Vec<String> {
    let mut lines = Vec::new();
    if ours.len() != recorded.len() {
        let (ours, rxes) = (ours.len(), recorded.len());
        lines.push(format!("{ours} {kind} completions, rxe's {rxes}"));
    }
    for (ours, rxes) in ours.iter().zip(recorded) {
        let Some(rxes) = rxes else {
            continue;
        };
        let mut differ = |field: &str, of_ours: String, of_rxe: String| {
            if of_ours != of_rxe {
                let which = format!("completion of {kind} {}", ours.wr_id);
                lines.push(format!("{which}: {field} {of_ours}, rxe's {of_rxe}"));
            }
        };
        differ("id", ours.wr_id.to_string(), rxes.wr_id.to_string());
        differ(
            "status",
            format!("{:?}", ours.status),
            format!("{:?}", rxes.status),
        );
        if (ours.status, rxes.status) == (Status::Success, Status::Success) {
            let imm = ours.imm.map(u32::from_be_bytes);
            differ(
                "opcode",
                (ours.opcode as u8).to_string(),
                rxes.opcode.to_string(),
            );
            differ(
                "length",
                ours.byte_len.to_string(),
                rxes.byte_len.to_string(),
            );
            differ("immediate", format!("{imm:?}"), format!("{:?}", rxes.imm));
        }
    }
    lines
}
