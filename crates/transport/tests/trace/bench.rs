//! A queue pair on a bench: a host with one region of memory, and packets written as text.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use airdma_transport::*;
use airdma_wire::*;

pub const REGION_VA: u64 = 0x1000;
pub const REGION_LEN: usize = 0x4000;
pub const RKEY: Rkey = Rkey(7);
pub const QPN: u32 = 0x11;
pub const PEER_QPN: u32 = 0x22;
pub const QKEY: Qkey = Qkey(0x1111_1111);

#[derive(Default)]
pub struct BenchHost {
    pub memory: Vec<u8>,
    pub granted: bool,
    pub messages: BTreeMap<u32, Vec<u8>>,
    pub receives: VecDeque<Receive>,
    pub received: BTreeMap<u32, Vec<u8>>,
    pub log: Vec<String>,
    /// The last completion of a receive, whole.
    pub last: Option<Completion>,
    /// The last completion of a send request, whole.
    pub last_sent: Option<Completion>,
    pub counters: BTreeMap<&'static str, u32>,
    pub local_fault: bool,
    /// The memory of that one request is gone.
    pub faulty: Option<u32>,
    pub bind_fault: bool,
    /// All requests name the same memory.
    pub sharing: bool,
    /// How often it was asked whether two do.
    pub asked_for_sharing: u32,
    /// Each receive that is taken is posted again: what a program may do meanwhile.
    pub posts_again: bool,
}

impl BenchHost {
    fn range(&self, rkey: Rkey, va: u64, length: usize) -> Result<usize, RemoteFault> {
        let offset = va.checked_sub(REGION_VA).ok_or(RemoteFault::Access)? as usize;
        if !self.granted || rkey != RKEY || offset + length > REGION_LEN {
            return Err(RemoteFault::Access);
        }
        Ok(offset)
    }
}

impl Host for BenchHost {
    fn gather(&mut self, slot: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        if self.local_fault || self.faulty == Some(slot.0) {
            return Err(LocalFault);
        }
        let message = &self.messages[&slot.0];
        out.copy_from_slice(&message[offset as usize..][..out.len()]);
        Ok(())
    }

    fn scatter(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        if self.local_fault {
            return Err(LocalFault);
        }
        let message = self.messages.get_mut(&slot.0).unwrap();
        message[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn share_memory(&mut self, one: Slot, other: Slot) -> bool {
        self.asked_for_sharing += 1;
        self.sharing && one != other
    }

    fn take_receive(&mut self) -> Option<Receive> {
        let receive = self.receives.pop_front()?;
        if self.posts_again {
            assert!(self.log.len() < 1 << 17, "it takes them without end");
            self.receives.push_back(receive);
        }
        Some(receive)
    }

    fn take_shared_receive(&mut self, srqn: u32) -> Result<Option<Receive>, RemoteFault> {
        self.log.push(format!("take from shared queue {srqn}"));
        if !self.granted {
            return Err(RemoteFault::Access);
        }
        Ok(self.receives.pop_front())
    }

    fn scatter_receive(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        if self.local_fault {
            return Err(LocalFault);
        }
        let buffer = self.received.entry(slot.0).or_default();
        buffer.resize(buffer.len().max(offset as usize + data.len()), 0);
        buffer[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), RemoteFault> {
        let RemoteAccess::Flush { needs, whole } = access else {
            return self.range(rkey, va, length as usize).map(|_| ());
        };
        let (va, length, of) = if whole {
            (REGION_VA, 0, "the region".to_owned())
        } else {
            (va, length, format!("{length} bytes"))
        };
        self.range(rkey, va, length as usize)?;
        let names: Vec<_> = needs.iter_names().map(|(name, _)| name).collect();
        self.log
            .push(format!("flush {} of {of}", names.join(" | ")));
        Ok(())
    }

    fn read_remote(&mut self, rkey: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteFault> {
        let offset = self.range(rkey, va, out.len())?;
        out.copy_from_slice(&self.memory[offset..][..out.len()]);
        Ok(())
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteFault> {
        let offset = self.range(rkey, va, data.len())?;
        self.memory[offset..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn atomic(&mut self, rkey: Rkey, va: u64, op: AtomicOperation) -> Result<u64, RemoteFault> {
        let offset = self.range(rkey, va, 8)?;
        let cell = &mut self.memory[offset..][..8];
        let original = u64::from_ne_bytes(cell.try_into().unwrap());
        let value = match op {
            AtomicOperation::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOperation::CompareSwap { .. } => original,
            AtomicOperation::FetchAdd { add } => original.wrapping_add(add),
        };
        cell.copy_from_slice(&value.to_ne_bytes());
        Ok(original)
    }

    fn write_atomic(&mut self, rkey: Rkey, va: u64, data: [u8; 8]) -> Result<(), RemoteFault> {
        self.write_remote(rkey, va, &data)
    }

    fn invalidate_local(&mut self, rkey: Rkey) -> Result<(), LocalFault> {
        self.log.push(format!("invalidate own {}", rkey.0));
        if self.bind_fault {
            return Err(LocalFault);
        }
        Ok(())
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), LocalFault> {
        self.log
            .push(format!("bind {} as {}", bind.window.0, bind.new_key.0));
        if self.bind_fault {
            return Err(LocalFault);
        }
        Ok(())
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), RemoteFault> {
        self.log.push(format!("invalidate {}", rkey.0));
        Ok(())
    }

    fn complete_send(&mut self, slot: Slot, completion: Option<Completion>) {
        self.last_sent = completion.or(self.last_sent);
        let line = match completion {
            Some(c) => format!("send {} {:?}", c.wr_id, c.status),
            None => format!("retire slot {}", slot.0),
        };
        self.log.push(line);
    }

    fn complete_receive(&mut self, _: Slot, c: Completion) {
        self.last = Some(c);
        let mut line = format!("recv {} {:?} {}", c.wr_id, c.status, c.byte_len);
        if let Some(imm) = c.imm {
            line += &format!(" imm={}", u32::from_be_bytes(imm));
        }
        if c.solicited {
            line += " solicited";
        }
        self.log.push(line);
    }

    fn event(&mut self, event: QpEvent) {
        self.log.push(format!("event {event:?}"));
    }

    fn count(&mut self, counter: Counter) {
        *self.counters.entry(counter.name()).or_default() += 1;
    }
}

pub struct Bench {
    pub qp: QueuePair,
    pub host: BenchHost,
    pub now: Time,
    pub credit: u32,
    /// What the IP headers of packets from the peer say.
    pub arrival: Arrival,
    posted: u32,
}

pub fn attributes() -> QpAttributes {
    QpAttributes {
        path_mtu: PathMtu::M256,
        dest_qpn: Qpn::new(PEER_QPN),
        rq_psn: Psn::new(100),
        sq_psn: Psn::new(0xff_fffe),
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        min_rnr_timer: 12,
        timeout: 14,
        retry_count: 2,
        rnr_retry: 1,
        qkey: QKEY,
        port: 1,
        ..QpAttributes::default()
    }
}

fn when(condition: bool, mask: AttrMask) -> AttrMask {
    if condition { mask } else { AttrMask::empty() }
}

fn walk(
    qp: &mut QueuePair,
    host: &mut BenchHost,
    with: QpAttributes,
    steps: &[(QpState, AttrMask)],
) {
    for (state, mask) in steps {
        let new = QpAttributes {
            state: *state,
            ..with
        };
        qp.modify(&new, *mask | AttrMask::STATE, host).unwrap();
    }
}

impl Bench {
    /// A connected queue pair, ready to send; its PSNs start at 0xfffffe, the peer's at 100.
    pub fn connected() -> Self {
        Self::connected_with(attributes())
    }

    /// The same with other attributes.
    pub fn connected_with(attributes: QpAttributes) -> Self {
        Self::connect_with(Self::reset(QpType::Rc), attributes)
    }

    /// One half of an extended connection, ready to send.
    pub fn extended(qp_type: QpType) -> Self {
        Self::connect(Self::reset(qp_type))
    }

    fn connect(bench: Self) -> Self {
        Self::connect_with(bench, attributes())
    }

    fn connect_with(mut bench: Self, attributes: QpAttributes) -> Self {
        let (receives, sends) = match bench.qp.qp_type() {
            QpType::XrcSend => (false, true),
            QpType::XrcReceive => (true, false),
            QpType::Rc | QpType::Uc | QpType::Ud | QpType::RawPacket => (true, true),
        };
        let answers = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        let retries = AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY;
        walk(
            &mut bench.qp,
            &mut bench.host,
            attributes,
            &[
                (
                    QpState::Init,
                    AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
                ),
                (
                    QpState::ReadyToReceive,
                    AttrMask::AV
                        | AttrMask::PATH_MTU
                        | AttrMask::DEST_QPN
                        | AttrMask::RQ_PSN
                        | when(receives, answers),
                ),
                (
                    QpState::ReadyToSend,
                    AttrMask::SQ_PSN | AttrMask::TIMEOUT | when(sends, retries),
                ),
            ],
        );
        bench
    }

    /// An unreliable connection, ready to send, with the PSNs of [`connected`](Self::connected).
    pub fn unreliable() -> Self {
        Self::connect_unreliably(Self::reset(QpType::Uc))
    }

    fn connect_unreliably(mut bench: Self) -> Self {
        walk(
            &mut bench.qp,
            &mut bench.host,
            attributes(),
            &[
                (
                    QpState::Init,
                    AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
                ),
                (
                    QpState::ReadyToReceive,
                    AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN,
                ),
                (QpState::ReadyToSend, AttrMask::SQ_PSN),
            ],
        );
        bench
    }

    /// A datagram queue pair, ready to send.
    pub fn datagram() -> Self {
        Self::start_datagrams(Self::reset(QpType::Ud))
    }

    fn start_datagrams(mut bench: Self) -> Self {
        walk(
            &mut bench.qp,
            &mut bench.host,
            attributes(),
            &[
                (
                    QpState::Init,
                    AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
                ),
                (QpState::ReadyToReceive, AttrMask::empty()),
                (QpState::ReadyToSend, AttrMask::SQ_PSN),
            ],
        );
        bench
    }

    /// A queue pair ready to send that takes its receives from a shared queue.
    pub fn sharing(qp_type: QpType) -> Self {
        let bench = Self::created(qp_type, true);
        match qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcReceive => Self::connect(bench),
            QpType::Uc => Self::connect_unreliably(bench),
            QpType::Ud | QpType::RawPacket => Self::start_datagrams(bench),
        }
    }

    pub fn reset(qp_type: QpType) -> Self {
        Self::created(qp_type, false)
    }

    fn created(qp_type: QpType, shared_receives: bool) -> Self {
        let config = QpConfig {
            shared_receives,
            qp_type,
            qpn: Qpn::new(QPN),
            port_mtu: PathMtu::M256,
        };
        let memory = (0..REGION_LEN).map(|i| (i % 251) as u8).collect();
        let host = BenchHost {
            memory,
            granted: true,
            ..BenchHost::default()
        };
        Bench {
            qp: QueuePair::new(config),
            host,
            now: Time::ZERO,
            credit: u32::MAX,
            arrival: Arrival {
                source: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)).into(),
                destination: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)).into(),
                tos: 2,
                ttl: 64,
                flow_label: 0,
            },
            posted: 0,
        }
    }

    pub fn modify(&mut self, state: QpState) {
        let new = QpAttributes {
            state,
            ..attributes()
        };
        self.qp
            .modify(&new, AttrMask::STATE, &mut self.host)
            .unwrap();
    }

    /// Posts a signalled request of `length` bytes.
    pub fn post(&mut self, operation: Operation, length: u32) {
        self.post_with(operation, length, |_| {});
    }

    pub fn post_with(
        &mut self,
        operation: Operation,
        length: u32,
        change: impl FnOnce(&mut SendRequest),
    ) {
        let slot = self.posted;
        self.posted += 1;
        self.host
            .messages
            .insert(slot, (0..length).map(|i| (i % 249) as u8).collect());
        let mut request = SendRequest {
            reliable: false,
            srqn: 0,
            slot: Slot(slot),
            wr_id: u64::from(slot),
            operation,
            length,
            signalled: true,
            solicited: false,
            fence: false,
            datagram: None,
        };
        change(&mut request);
        self.qp.post_send(request, &mut self.host);
    }

    pub fn post_receive(&mut self, wr_id: u64, length: u32) {
        self.host.receives.push_back(Receive {
            slot: Slot(wr_id as u32),
            wr_id,
            length,
        });
    }

    /// One packet from the peer. `change` completes the headers.
    pub fn arrives(
        &mut self,
        opcode: Opcode,
        psn: u32,
        payload: &[u8],
        change: impl FnOnce(&mut Headers),
    ) {
        let mut bytes = vec![0; 4096];
        let mut headers = Headers::new(Bth::new(opcode, Qpn::new(QPN), Psn::new(psn)));
        headers.bth.pad = (payload.len().wrapping_neg() & 3) as u8;
        headers.bth.ack_request = opcode.is_last() || opcode.is_only();
        change(&mut headers);
        let start = headers.emit(&mut bytes);
        Bth::mark(bytes.first_chunk_mut().unwrap(), headers.bth.tag);
        bytes[start..][..payload.len()].copy_from_slice(payload);
        bytes.truncate(start + payload.len() + usize::from(headers.bth.pad));
        let packet = Packet::parse(&bytes).unwrap();
        self.qp
            .handle_packet(self.now, &self.arrival, &packet, &mut self.host);
    }

    /// A packet as it was sent.
    pub fn bytes_arrive(&mut self, bytes: &[u8]) {
        let packet = parse(bytes);
        self.qp
            .handle_packet(self.now, &self.arrival, &packet, &mut self.host);
    }

    pub fn acknowledged(&mut self, psn: u32, syndrome: Syndrome) {
        self.arrives(Opcode::RcAcknowledge, psn, &[], |headers| {
            headers.aeth = Some(Aeth { syndrome, msn: 0 });
        });
    }

    pub fn write_arrives(&mut self, opcode: Opcode, psn: u32, payload: &[u8], reth: Option<Reth>) {
        self.arrives(opcode, psn, payload, |headers| headers.reth = reth);
    }

    pub fn read_arrives(&mut self, psn: u32, va: u64, length: u32) {
        self.read_arrives_with(psn, va, length, &[]);
    }

    /// The same with something behind its RETH.
    pub fn read_arrives_with(&mut self, psn: u32, va: u64, length: u32, lreth: &[u8]) {
        self.arrives(Opcode::RcReadRequest, psn, lreth, |headers| {
            headers.reth = Some(Reth {
                va,
                rkey: RKEY,
                length,
            });
        });
    }

    /// Everything the queue pair wants to send now, a line a packet.
    pub fn sends(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = self.sends_one() {
            lines.push(line);
        }
        lines
    }

    pub fn sends_one(&mut self) -> Option<String> {
        let mut out = [0; 5000];
        let sent = self
            .qp
            .poll_transmit(self.now, self.credit, &mut self.host, &mut out)?;
        let packet = parse(&out[..sent.len]);
        let expected_peer = if self.qp.qp_type().is_connected() {
            PEER_QPN
        } else {
            0x33
        };
        assert_eq!(packet.headers.bth.dest_qpn, Qpn::new(expected_peer));
        let bytes = packet.headers.len() + packet.payload.len();
        let padding = sent.len - bytes - usize::from(packet.headers.bth.pad);
        let mut line = line(&packet);
        if padding > 0 {
            line += &format!(" pad={padding}");
        }
        Some(line)
    }

    /// The next packet whole.
    pub fn sends_bytes(&mut self) -> Option<Vec<u8>> {
        let mut out = [0; 5000];
        let sent = self
            .qp
            .poll_transmit(self.now, self.credit, &mut self.host, &mut out)?;
        Some(out[..sent.len].to_vec())
    }

    pub fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.host.log)
    }

    pub fn counted(&self, counter: Counter) -> u32 {
        self.host.counters.get(counter.name()).copied().unwrap_or(0)
    }

    /// Moves to the next timer and lets it fire.
    pub fn next_timer(&mut self) -> Duration {
        self.next_timer_late(Duration::ZERO)
    }

    /// As [`Self::next_timer`], when the host handles it this much later.
    pub fn next_timer_late(&mut self, late: Duration) -> Duration {
        let due = self.qp.poll_timeout().expect("a timer runs");
        let waited = due.duration_since(self.now);
        self.now = due + late;
        self.qp.handle_timeout(self.now, &mut self.host);
        waited
    }
}

/// A packet, padded or not.
pub fn parse(bytes: &[u8]) -> Packet<'_> {
    match Packet::parse(bytes) {
        Err(ParseError::BadVersion(1)) => Packet::parse_padded(bytes).unwrap(),
        parsed => parsed.unwrap(),
    }
}

fn line(packet: &Packet<'_>) -> String {
    let headers = &packet.headers;
    let bth = &headers.bth;
    let name = format!("{:?}", bth.opcode);
    let mut line = format!("{} {}", name.trim_start_matches("Rc"), bth.psn.get());
    if bth.ack_request {
        line += " A";
    }
    if let Some(eth) = headers.xrceth {
        line += &format!(" srq={}", eth.srqn);
    }
    if let Some(reth) = headers.reth {
        line += &format!(" va={:#x}+{}", reth.va, reth.length);
    }
    if let Some(aeth) = headers.aeth {
        line += &match aeth.syndrome {
            Syndrome::Ack { .. } => format!(" msn={}", aeth.msn),
            Syndrome::RnrNak { timer } => format!(" RNR timer={timer}"),
            Syndrome::Nak(code) => format!(" NAK {code:?}"),
            Syndrome::Reserved(code) => format!(" reserved {code}"),
        };
    }
    if let Some(original) = headers.atomic_ack {
        line += &format!(" original={original}");
    }
    let seth = Seth::parse(packet.payload).ok();
    if let Some(seth) = seth.filter(|_| bth.opcode == Opcode::RcAcknowledge) {
        let ranges = seth.ranges();
        let ranges: Vec<_> = ranges
            .map(|range| format!("{}x{}", range.first, range.packets))
            .collect();
        line += &format!(" missing={ranges:?}");
    } else if bth.opcode == Opcode::RcReadRequest
        && let Ok(lreth) = Lreth::parse(packet.payload)
    {
        let name = if lreth.is_equal { "equal" } else { "each" };
        line += &format!(" {name}={}", lreth.payload);
    } else if !packet.payload.is_empty() {
        line += &format!(" [{}]", packet.payload.len());
    }
    line
}
