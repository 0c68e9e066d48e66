//! A queue pair under siege: any service, any state, and whatever comes over the wire. The targets
//! that use it differ in what they do most, see [`crate::responder`], [`crate::requester`] and
//! [`crate::selective`].

use std::collections::VecDeque;
use std::time::Duration;

use airdma_transport::{
    Access, AttrMask, Bind, Datagram, Extent, Operation, Path, QpAttributes, QpConfig, QpState,
    QpType, QueuePair, ReorderMemory, SendRequest, Slot, Tags, Time,
};
use airdma_wire::{
    Bth, Feth, HEADERS_LEN_MAX, Headers, Lkey, NakCode, Opcode, Packet, PathMtu, Psn, Qkey, Qpn,
    Reth, Rkey, Syndrome, Transport, XrcEth,
};

use crate::host::{BASE, Machine, VAST};
use crate::input::Input;
use crate::values::{PEER, QKEY, address, attributes, buffer, key, mask_to, near};

mod agreed;
mod checks;
mod packets;

const QPN: Qpn = Qpn::new(0x11);

/// Send requests, and receives, that may be posted at a time, as a ring would have it.
const POSTED_MAX: usize = 64;

/// READs that a peer asks for at once, if it asks for many.
const ASKED: u32 = 80;

/// Packets of ours that are remembered, to be answered.
const SENT_MAX: usize = 128;

/// Packets of the attacker's that are on their way, and late.
const LATE_MAX: usize = 64;

/// Most bytes of packets buffered out of order.
const REORDER_BYTES: usize = 32 * 1024;

/// Most packets that a requester has in flight.
const AHEAD_MAX: i32 = 8192;

/// Most timer steps, each twice as long as the one before: after these, any timer has expired.
const PROBES_MAX: usize = 40;
/// Timers that a retry stands for at most (IBTA 9.7.6.1.3), and timers that spend none as they come
/// late.
const TIMERS_MAX: usize = 4;
/// The same for a peer with which selective repeat is agreed on.
const TIMERS_MAX_AGREED: usize = 16;
const LATE_TIMERS_MAX: usize = 32;

/// A queue pair, its host, and the attacker's view of them.
pub struct Siege {
    queue_pair: QueuePair,
    config: QpConfig,
    /// Its memory and rings.
    pub host: Machine,
    now: Time,
    out: Vec<u8>,
    /// PSN that the responder expects, in the attacker's view.
    psn: Psn,
    /// Unanswered packets of the requester, oldest first.
    sent: VecDeque<Headers>,
    last_packet: Vec<u8>,
    idle_polls: u32,
    /// If it repeats selectively.
    reorder: Option<ReorderMemory>,
    /// If both ends have agreed on them.
    tags: Option<Tags>,
    /// Largest payload of a packet that both ends ever agreed on, or 0.
    long: u32,
    /// Padding that packets of the attacker's state, if they can have any; 0 for none.
    padding: u16,
    /// The next packets, one for each bit: those that are set are late.
    late_bits: u32,
    late: VecDeque<Vec<u8>>,
}

impl Siege {
    /// A queue pair of that service, in a state of the input's choice.
    pub fn new(qp_type: QpType, input: &mut Input<'_>) -> Self {
        let config = QpConfig {
            qp_type,
            qpn: QPN,
            port_mtu: input.pick(&PathMtu::ALL),
            shared_receives: qp_type != QpType::XrcReceive && input.one_in(4),
        };
        let mut siege = Siege {
            queue_pair: QueuePair::new(config),
            config,
            host: Machine::new(QPN),
            now: Time::ZERO,
            out: vec![0; HEADERS_LEN_MAX + 4096 + 3],
            psn: Psn::new(0),
            sent: VecDeque::new(),
            last_packet: Vec::new(),
            idle_polls: 0,
            reorder: None,
            tags: None,
            long: 0,
            padding: 0,
            late_bits: 0,
            late: VecDeque::new(),
        };
        let states = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
        let attributes = attributes(input);
        let last = input.pick(&[3, 3, 3, 3, 3, 3, 2, 1, 0]);
        for state in &states[..last] {
            let to = QpAttributes {
                state: *state,
                ..attributes
            };
            siege
                .modify(&to, mask_to(qp_type, *state))
                .expect("all that it asks for");
        }
        siege.psn = attributes.rq_psn;
        siege
    }

    fn modify(&mut self, to: &QpAttributes, mask: AttrMask) -> Result<(), ()> {
        let before = *self.queue_pair.attributes();
        let outcome = self.queue_pair.modify(to, mask, &mut self.host);
        let after = *self.queue_pair.attributes();
        if outcome.is_err() {
            assert_eq!(after, before, "a refused modify changed something");
        } else if after.state == QpState::Reset {
            self.host.forget_rings();
            self.sent.clear();
        } else if after.state == QpState::ReadyToReceive && before.state == QpState::Init {
            self.queue_pair.set_selective(self.reorder.as_ref());
            if let Some(tags) = self.tags {
                self.queue_pair.set_tags(tags);
            }
        }
        self.host.granted = after.access;
        outcome.map_err(|_| ())
    }

    /// Tries another state or other attributes: mostly what a transition asks for, sometimes
    /// anything.
    pub fn modify_somehow(&mut self, input: &mut Input<'_>) {
        let state = QpState::from_number(input.below(7) as u32).expect("a state");
        let mut to = QpAttributes {
            state,
            ..attributes(input)
        };
        let mut mask = mask_to(self.config.qp_type, state);
        if input.one_in(4) {
            mask ^= AttrMask::from_bits_truncate(1 << input.below(26));
            to.timeout = input.byte();
            to.retry_count = input.byte();
            to.max_rd_atomic = input.byte();
        }
        if self.modify(&to, mask).is_ok() && state == QpState::ReadyToReceive {
            self.psn = to.rq_psn;
        }
    }

    /// Posts a send request of any kind, where the verbs would let it through.
    pub fn post_send(&mut self, input: &mut Input<'_>) {
        let state = self.queue_pair.state();
        let takes = state.sends() || matches!(state, QpState::SendQueueError | QpState::Error);
        if !takes
            || self.config.qp_type == QpType::XrcReceive
            || self.host.sends_outstanding() >= POSTED_MAX
        {
            return;
        }
        let (va, rkey) = (address(input), Rkey(key(input)));
        let imm = [1, 2, 3, 4];
        let operation = match input.below(14) {
            0 | 1 => Operation::Send,
            2 => Operation::SendImm(imm),
            3 => Operation::SendInvalidate(rkey),
            4 | 5 => Operation::Write { va, rkey },
            6 => Operation::WriteImm { va, rkey, imm },
            7 | 8 => Operation::Read { va, rkey },
            9 => Operation::CompareSwap {
                va,
                rkey,
                compare: 1,
                swap: 2,
            },
            10 => Operation::FetchAdd { va, rkey, add: 3 },
            11 if va & 1 != 0 => Operation::Flush {
                va,
                rkey,
                length: va as u32,
                what: Feth {
                    placement: va as u8 >> 1 & 0xf,
                    selectivity: va as u8 >> 5 & 3,
                },
            },
            11 => Operation::AtomicWrite { va, rkey },
            12 => Operation::LocalInvalidate(rkey),
            _ => Operation::BindWindow(Bind {
                window: rkey,
                new_key: rkey,
                region: Lkey(rkey.0),
                va,
                length: va,
                access: Access::REMOTE_READ,
            }),
        };
        let mut buffer = buffer(input, self.mtu());
        if matches!(
            operation,
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. }
        ) {
            buffer.length = 8;
        }
        if operation.extent() == Extent::Empty {
            buffer.length = 0;
        }
        let flags = input.byte();
        let datagram = Datagram {
            path: Path::default(),
            qpn: PEER,
            qkey: input.pick(&[QKEY, Qkey(1 << 31)]),
        };
        let request = SendRequest {
            slot: Slot(0),
            wr_id: 0,
            operation,
            length: buffer.length,
            signalled: flags & 1 != 0,
            solicited: flags & 2 != 0,
            fence: flags & 4 != 0,
            datagram: (self.config.qp_type == QpType::Ud).then_some(datagram),
            reliable: false,
            srqn: 1,
        };
        let request = self.host.post_send(request, buffer);
        self.queue_pair.post_send(request, &mut self.host);
        if state == QpState::Error || state == QpState::SendQueueError {
            assert_eq!(self.host.sends_outstanding(), 0, "not flushed in {state:?}");
        }
    }

    /// Posts a receive, where the verbs would let it through.
    pub fn post_receive(&mut self, input: &mut Input<'_>) {
        let buffer = buffer(input, self.mtu());
        if self.config.qp_type == QpType::XrcReceive {
            return self.host.post_receive(buffer, Some(input.below(2)));
        }
        if self.queue_pair.state() != QpState::Reset
            && self.host.receives_outstanding() < POSTED_MAX
        {
            self.host.post_receive(buffer, None);
            self.queue_pair.flush_receives(&mut self.host);
        }
    }

    /// A request of the peer: mostly the next one, in any way wrong.
    pub fn attack_responder(&mut self, input: &mut Input<'_>) {
        let opcode = self.opcode(input, Opcode::is_request);
        let psn = near(self.psn, input);
        let (headers, payload_len) = self.packet(opcode, psn, input);
        let follows = psn == self.psn;
        self.deliver(headers, payload_len);
        if follows {
            let bytes = headers.reth.map_or(0, |reth| reth.length);
            let asks = opcode.on(Transport::Rc) == Some(Opcode::RcReadRequest);
            let packets = if asks {
                bytes.div_ceil(self.mtu()).max(1)
            } else {
                1
            };
            self.psn = psn.add(packets);
        }
    }

    /// A whole message as it should be, but for where it goes and how long it is.
    pub fn message(&mut self, input: &mut Input<'_>) {
        let write = input.one_in(2);
        let middles = input.below(4) as u32;
        let opcodes = if write {
            [
                Opcode::RcWriteFirst,
                Opcode::RcWriteMiddle,
                Opcode::RcWriteLast,
                Opcode::RcWriteLastImm,
            ]
        } else {
            [
                Opcode::RcSendFirst,
                Opcode::RcSendMiddle,
                Opcode::RcSendLast,
                Opcode::RcSendLastInvalidate,
            ]
        };
        let last = opcodes[2 + input.below(2)];
        let (mut first, mut full) = (self.mtu(), self.mtu());
        let tail = 1 + u32::from(input.byte()) % self.mtu();
        if self.long > 0 && input.one_in(2) {
            full = input.pick(&[self.long, full / 2 + 4, full / 2, full + 16, full - 4]);
            first = full - if write { Reth::LEN as u32 } else { 0 };
        }
        let reth = Reth {
            va: address(input),
            rkey: Rkey(key(input)),
            length: first + middles * full + tail,
        };
        for index in 0..middles + 2 {
            let (opcode, len) = match index {
                0 => (opcodes[0], first),
                _ if index <= middles => (opcodes[1], full),
                _ => (last, tail),
            };
            let Some(opcode) = opcode.on(self.transport()) else {
                return;
            };
            let (mut headers, _) = self.packet(opcode, self.psn, input);
            headers.bth.pad = (len.wrapping_neg() & 3) as u8;
            headers.reth = headers.reth.and(Some(reth));
            self.deliver(headers, len);
            self.psn = self.psn.add(1);
        }
    }

    /// An answer of the peer: to something that was sent, in any way wrong.
    pub fn attack_requester(&mut self, input: &mut Input<'_>) {
        let opcode = self.opcode(input, |opcode| !opcode.is_request());
        let about = input.below(SENT_MAX);
        let sent = self.sent.get(about % self.sent.len().max(1));
        let psn = sent.map_or(Psn::new(0), |sent| sent.bth.psn);
        let (headers, payload_len) = self.packet(opcode, near(psn, input), input);
        self.deliver(headers, payload_len);
    }

    /// The right answer to the oldest request that has none.
    pub fn answer(&mut self, input: &mut Input<'_>) {
        let Some(sent) = self.sent.pop_front() else {
            return;
        };
        let plain = sent
            .bth
            .opcode
            .on(Transport::Rc)
            .expect("a request of ours");
        let mut psn = sent.bth.psn;
        let mtu = self.mtu();
        let mut left = sent.reth.map_or(0, |reth| reth.length);
        // A long READ is answered in part.
        for index in 0..24 {
            let (opcode, len) = if plain == Opcode::RcReadRequest {
                let opcode = match (index == 0, left <= mtu) {
                    (true, true) => Opcode::RcReadResponseOnly,
                    (true, false) => Opcode::RcReadResponseFirst,
                    (false, false) => Opcode::RcReadResponseMiddle,
                    (false, true) => Opcode::RcReadResponseLast,
                };
                (opcode, left.min(mtu))
            } else if matches!(plain, Opcode::RcAtomicWrite | Opcode::RcFlush) {
                (Opcode::RcReadResponseOnly, 0)
            } else if plain.is_send() || plain.is_write() {
                (Opcode::RcAcknowledge, 0)
            } else {
                (Opcode::RcAtomicAcknowledge, 0)
            };
            let Some(opcode) = opcode.on(self.transport()) else {
                return;
            };
            let (mut headers, _) = self.packet(opcode, psn, input);
            headers.bth.pad = (len.wrapping_neg() & 3) as u8;
            if let Some(aeth) = &mut headers.aeth {
                aeth.syndrome = Syndrome::Ack { credits: 31 };
            }
            self.deliver(headers, len);
            if plain != Opcode::RcReadRequest || left <= mtu {
                return;
            }
            left -= mtu;
            psn = psn.add(1);
        }
    }

    /// Delivers the last packet again and again: state must not grow with it.
    pub fn flood(&mut self) {
        let bytes = std::mem::take(&mut self.last_packet);
        for _ in 0..100 {
            self.deliver_bytes(&bytes);
        }
        self.last_packet = bytes;
        self.check_size();
    }

    /// Lets the queue pair send up to `packets` packets.
    pub fn poll(&mut self, packets: usize, credit: u32) {
        for _ in 0..packets {
            if self.poll_once(credit).is_none() {
                break;
            }
        }
    }

    fn poll_once(&mut self, credit: u32) -> Option<()> {
        let wanted = self.queue_pair.wants_transmit();
        let qp = &mut self.queue_pair;
        let transmit = qp.poll_transmit(self.now, credit, &mut self.host, &mut self.out);
        let Some(transmit) = transmit else {
            let stays = credit == u32::MAX && self.queue_pair.wants_transmit();
            self.idle_polls = if stays { self.idle_polls + 1 } else { 0 };
            assert!(
                self.idle_polls < 3,
                "wants to transmit for ever, and does not"
            );
            return None;
        };
        assert!(wanted, "wants_transmit was false, yet there was a packet");
        self.idle_polls = 0;
        let bytes = &self.out[..transmit.len];
        let packet = Packet::parse(bytes).or_else(|_| Packet::parse_padded(bytes));
        let packet = packet.expect("a packet of ours");
        let (headers, payload_len) = (packet.headers, packet.payload.len());
        self.check_sent(&headers, payload_len);
        Some(())
    }

    fn check_sent(&mut self, headers: &Headers, payload_len: usize) {
        let bth = &headers.bth;
        let attributes = self.queue_pair.attributes();
        assert_eq!(bth.opcode.transport(), self.transport());
        assert_eq!(bth.pkey, Bth::PKEY_DEFAULT);
        assert_eq!(bth.tag, self.queue_pair.tag());
        if self.config.qp_type.is_connected() {
            assert_eq!(bth.dest_qpn, attributes.dest_qpn);
            assert!(payload_len <= attributes.path_mtu.bytes().max(self.long) as usize);
        } else {
            assert!(payload_len <= self.config.port_mtu.bytes() as usize);
        }
        if bth.opcode.is_request() {
            assert!(
                attributes.state.sends(),
                "a request in {:?}",
                attributes.state
            );
            if self.config.qp_type != QpType::Ud && self.config.qp_type != QpType::Uc {
                self.sent.push_back(*headers);
                self.sent.truncate(SENT_MAX);
            }
        } else if let Some(aeth) = headers.aeth
            && aeth.syndrome == Syndrome::Nak(NakCode::PsnSequenceError)
        {
            self.psn = bth.psn;
        }
    }

    /// Lets time pass: to the next timer, or by any amount.
    pub fn wait(&mut self, input: &mut Input<'_>) {
        let due = self.queue_pair.poll_timeout();
        let nanos = match input.below(4) {
            0 | 1 => due.map_or(1, |due| due.duration_since(self.now).as_nanos() as u64),
            2 => u64::from(input.u32()),
            _ => 1 << input.below(44),
        };
        self.now = self.now + Duration::from_nanos(nanos);
        if due.is_some_and(|due| due <= self.now) {
            self.queue_pair.handle_timeout(self.now, &mut self.host);
        } else {
            let before = format!("{:?}", self.queue_pair);
            self.queue_pair.handle_timeout(self.now, &mut self.host);
            assert_eq!(
                format!("{:?}", self.queue_pair),
                before,
                "acted on a timer that is not due"
            );
        }
        let next = self.queue_pair.poll_timeout();
        assert!(
            next.is_none_or(|at| at > self.now),
            "a timer that is due stays due"
        );
    }

    /// READs in sequence, or parts of one again, as fast as they can be asked for.
    pub fn ask_much(&mut self, input: &mut Input<'_>) {
        let Some(opcode) = Opcode::RcReadRequest.on(self.transport()) else {
            return;
        };
        let mtu = self.mtu();
        let [parts, served] = [input.one_in(2), input.one_in(2)];
        let read = |psn: Psn, index: u32, length: u32| {
            let mut headers = Headers::new(Bth::new(opcode, QPN, psn.add(index)));
            let va = BASE + u64::from(index * mtu);
            headers.xrceth = opcode.has_xrceth().then_some(XrcEth { srqn: 0 });
            headers.reth = Some(Reth {
                va,
                rkey: Rkey(VAST),
                length,
            });
            headers
        };
        let first = self.psn;
        if parts {
            self.deliver(read(first, 0, ASKED * mtu), 0);
            self.poll(100, u32::MAX);
        }
        for index in 0..ASKED {
            // From the end, so that none covers another.
            let at = if parts { ASKED - 1 - index } else { index };
            self.deliver(read(first, at, 1), 0);
            if served {
                self.poll(1, u32::MAX);
            }
        }
        self.psn = first.add(ASKED);
        self.check_size();
    }

    /// A region vanishes, now or in the middle of something, or comes back.
    pub fn toggle_region(&mut self, input: &mut Input<'_>) {
        if input.one_in(2) {
            self.host.vanishes_after = Some(1 + input.byte() % 8);
            return;
        }
        let region = &mut self.host.regions[input.below(3)];
        region.valid = !region.valid;
    }

    /// Owes the last acknowledgement once more.
    pub fn repeat_last_ack(&mut self) {
        self.queue_pair.repeat_last_ack();
    }

    fn mtu(&self) -> u32 {
        self.queue_pair.attributes().path_mtu.bytes()
    }

    fn transport(&self) -> Transport {
        match self.config.qp_type {
            QpType::Rc => Transport::Rc,
            QpType::Uc => Transport::Uc,
            QpType::Ud | QpType::RawPacket => Transport::Ud,
            QpType::XrcSend | QpType::XrcReceive => Transport::Xrc,
        }
    }
}
