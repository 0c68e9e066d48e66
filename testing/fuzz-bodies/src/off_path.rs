//! Two hosts in air mode on a path that loses packets, and a third one that sees none of theirs and
//! forges what it likes: it is told their addresses, the numbers of their queue pairs, the next
//! PSNs, keys and addresses of memory, and nothing of what Hello has told the two.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use airdma_engine::simulated::{self, Simulated, interface};
use airdma_engine::{
    Access, Cq, GidEntry, Mr, Operation, Path, Pd, Qp, QpAttributes, QpCaps, QpInit, QpType, Qpn,
    RateControl, SendFlags, SendWr, Sge, Status,
};
use airdma_port::sim::{Carrier, Frame, carried};
use airdma_wire::air::{Hello, Report, ReportWriter, hello};
use airdma_wire::mad::GSI_QKEY;
use airdma_wire::{
    Aeth, Bth, Deth, Feth, Headers, IpPseudo, Opcode, PathMtu, Psn, ROCE_PORT, Reth, Transport,
    icrc,
};

use crate::input::Input;
use crate::values::near;

const ADDRESSES: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 2]];
const TICK: Duration = Duration::from_micros(100);
/// Most bytes of a WRITE; the second half of the memory is for what the peer writes.
const BYTES: usize = 32 * 1024;
/// Least number of packets for each lost one, so that no connection has a reason to end.
const LOST_MIN: usize = 4;
/// Ticks in which what was posted must be done once nothing is lost.
const DONE_TICKS: usize = 20_000;
const BTH_LEN: usize = 12;

/// Both ends do their work, whatever is forged.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut path = LossyPath::new(None);
    while !input.is_empty() {
        let victim = input.below(2);
        match input.below(8) {
            0 | 1 => path.post(victim, &mut input),
            2 => path.lost_bits = input.u32() & input.u32(),
            3 | 4 => path.forge_packet(victim, &mut input),
            5 => path.forge_hello(victim, &mut input),
            6 => path.forge_report(victim, &mut input),
            _ => path.pass(1 + input.below(20)),
        }
    }
    path.finish();
}

/// One host, its queue pair and memory.
pub(crate) struct Host {
    pub(crate) device: Simulated,
    pub(crate) carrier: Carrier,
    words: Box<[u64]>,
    mr: Arc<Mr>,
    cq: Arc<Cq>,
    pub(crate) qp: Arc<Qp>,
    _pd: Arc<Pd>,
    /// Bytes that the peer has written, and is writing.
    written: Vec<u8>,
    writing: Option<(usize, Vec<u8>)>,
    /// The last packet of its queue pair, which is the peer's to see.
    last: Option<Bth>,
}

impl Host {
    fn new(index: usize, secret: Option<&[u8]>) -> Self {
        let address = IpAddr::from(ADDRESSES[index]);
        let (port, carrier) = carried(&[address]).expect("a port");
        let info = interface("simulated", 1, address);
        let device = Simulated::open(info, Box::new(port), index as u64).expect("a device");
        device.offer_air(RateControl::Buffers);
        if let Some(secret) = secret {
            let shared = device.device().share_secret(secret);
            shared.expect("a secret");
        }
        let pd = device.device().alloc_pd().expect("a domain");
        let cq = device.device().create_cq(64, None).expect("a queue");
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            caps: QpCaps {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: false,
        };
        let qp = pd.create_qp(init).expect("a queue pair");
        let mut words = vec![0u64; BYTES / 4].into_boxed_slice();
        let va = words.as_mut_ptr().expose_provenance() as u64;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.reg_mr(va, 2 * BYTES, va, access).expect("a region");
        Host {
            device,
            carrier,
            words,
            mr,
            cq,
            qp,
            _pd: pd,
            written: vec![0; BYTES],
            writing: None,
            last: None,
        }
    }

    fn va(&self, offset: usize) -> u64 {
        self.words.as_ptr().expose_provenance() as u64 + offset as u64
    }

    fn connect(&self, peer: Qpn, address: [u8; 4]) {
        let attributes = QpAttributes {
            port: 1,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            path: Path {
                gid: GidEntry::from(IpAddr::from(address)).gid,
                hop_limit: 64,
                ..Path::default()
            },
            path_mtu: PathMtu::M1024,
            dest_qpn: peer,
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: 1,
            retry_count: 7,
            rnr_retry: 7,
            timeout: 14,
            ..QpAttributes::default()
        };
        simulated::connect(&self.qp, &attributes);
    }

    /// Writes into its own memory, which nothing else touches meanwhile: the devices run in this
    /// thread.
    fn fill(&mut self, offset: usize, bytes: &[u8]) {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(self.va(offset) as usize);
        assert!(offset + bytes.len() <= 2 * BYTES);
        // SAFETY: in bounds, and alive with `self`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let at = std::ptr::with_exposed_provenance::<u8>(self.va(offset) as usize);
        assert!(offset + len <= 2 * BYTES);
        // SAFETY: in bounds, and alive with `self`.
        unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
    }
}

/// Two hosts, and the path between them.
pub(crate) struct LossyPath {
    pub(crate) hosts: [Host; 2],
    ticks: u32,
    posted: u8,
    /// The next packets, one for each bit: those that are set are lost, but for those that come too
    /// soon after another.
    pub(crate) lost_bits: u32,
    since_lost: usize,
    /// Every packet is kept here, if any is.
    pub(crate) seen: Option<Vec<Seen>>,
}

/// A packet that passed.
pub(crate) struct Seen {
    pub(crate) to: usize,
    pub(crate) frame: Frame,
    /// It came, and does no more when it comes again.
    pub(crate) arrived: bool,
}

impl LossyPath {
    /// Both are in air mode, and have heard each other. If they share a secret, every packet is
    /// kept.
    pub(crate) fn new(secret: Option<&[u8]>) -> Self {
        let hosts = [0, 1].map(|index| Host::new(index, secret));
        let mut path = LossyPath {
            hosts,
            ticks: 0,
            posted: 0,
            lost_bits: 0,
            since_lost: 0,
            seen: secret.map(|_| Vec::new()),
        };
        path.connect();
        for _ in 0..2 {
            for from in [0, 1] {
                path.write(from, 0, 4096);
            }
            path.pass(500);
        }
        path
    }

    /// Both ends get ready.
    pub(crate) fn connect(&mut self) {
        for host in [0, 1] {
            let peer = self.hosts[1 - host].qp.number();
            self.hosts[host].connect(peer, ADDRESSES[1 - host]);
        }
        self.pass(50);
    }

    /// Present virtual time.
    pub(crate) fn now(&self) -> Duration {
        TICK * self.ticks
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, ticks: usize) {
        for _ in 0..ticks {
            self.ticks += 1;
            for from in [0, 1] {
                self.hosts[from].device.run(TICK * self.ticks);
                while let Some(frame) = self.hosts[from].carrier.take() {
                    self.carry(from, frame);
                    self.hosts[from].device.run(TICK * self.ticks);
                }
            }
            self.complete();
        }
    }

    pub(crate) fn carry(&mut self, from: usize, frame: Frame) {
        let header = frame.bytes.first_chunk::<BTH_LEN>();
        let bth = header.and_then(|header| Bth::from_bytes(header).ok());
        self.hosts[from].last = bth
            .filter(|bth| bth.dest_qpn != Qpn::GSI)
            .or(self.hosts[from].last);
        let is_lost = self.lost_bits & 1 != 0 && self.since_lost >= LOST_MIN;
        self.lost_bits >>= 1;
        self.since_lost = if is_lost { 0 } else { self.since_lost + 1 };
        if let Some(seen) = &mut self.seen {
            let frame = frame.clone();
            seen.push(Seen {
                to: 1 - from,
                frame,
                arrived: !is_lost,
            });
        }
        if !is_lost {
            self.hosts[1 - from].carrier.give(frame);
        }
    }

    pub(crate) fn complete(&mut self) {
        for from in [0, 1] {
            let mut done = Vec::new();
            let polled = self.hosts[from].cq.poll(4, |completion| {
                done.push(completion.status);
            });
            polled.expect("the queue is there");
            for status in done {
                assert_eq!(status, Status::Success, "a connection failed");
                let peer = &mut self.hosts[1 - from];
                let (offset, data) = peer.writing.take().expect("one was posted");
                peer.written[offset..offset + data.len()].copy_from_slice(&data);
                assert!(
                    peer.bytes(BYTES, BYTES) == peer.written,
                    "bytes that nobody sent"
                );
            }
        }
    }

    pub(crate) fn post(&mut self, from: usize, input: &mut Input<'_>) {
        let offset = usize::from(input.u16()) % BYTES;
        let len = 1 + usize::from(input.u16()) % (BYTES - offset);
        self.write(from, offset, len);
    }

    /// One WRITE at a time, so that what is in the memory is known.
    fn write(&mut self, from: usize, offset: usize, len: usize) {
        let peer = &self.hosts[1 - from];
        if peer.writing.is_some() {
            return;
        }
        self.posted = self.posted.wrapping_add(1);
        let data: Vec<u8> = (0..len).map(|at| at as u8 ^ self.posted).collect();
        let operation = Operation::Write {
            va: peer.va(BYTES + offset),
            rkey: peer.mr.rkey(),
        };
        let host = &mut self.hosts[from];
        host.fill(0, &data);
        let sges = [Sge {
            addr: host.va(0),
            length: len as u32,
            lkey: host.mr.lkey().0,
        }];
        let request = SendWr {
            wr_id: 0,
            operation,
            sges: &sges,
            flags: SendFlags::SIGNALLED,
            datagram: None,
            srqn: 0,
        };
        host.qp.post_send(&request).expect("there is room");
        self.hosts[1 - from].writing = Some((offset, data));
    }

    /// Gives a host a packet in the name of the other one.
    fn forge(&mut self, victim: usize, bytes: Vec<u8>) {
        self.hosts[victim]
            .carrier
            .give(frame(1 - victim, victim, bytes));
    }

    /// Any packet of a reliable connection, with any tag but that of the peer.
    fn forge_packet(&mut self, victim: usize, input: &mut Input<'_>) {
        if let Some(bytes) = self.plain_packet(victim, input) {
            self.forge(victim, bytes);
        }
    }

    /// The same as bytes, if the peer has sent something.
    pub(crate) fn plain_packet(&self, victim: usize, input: &mut Input<'_>) -> Option<Vec<u8>> {
        let last = self.hosts[1 - victim].last?;
        let all = Opcode::ALL.iter().copied();
        let fitting: Vec<_> = all
            .filter(|opcode| matches!(opcode.transport(), Transport::Rc | Transport::Cnp))
            .collect();
        let opcode = input.pick(&fitting);
        let own = self.hosts[victim].last.map_or(last.psn, |own| own.psn);
        let psn = if opcode.is_request() { last.psn } else { own };
        let host = &self.hosts[victim];
        let mut bth = Bth::new(opcode, host.qp.number(), near(psn.add(1), input));
        let tag = last.tag ^ (1 + input.u16() % 0x1fff);
        bth.ack_request = input.one_in(2);
        let mut headers = Headers::new(bth);
        headers.feth = opcode.has_feth().then_some(Feth {
            placement: Feth::GLOBAL,
            selectivity: Feth::RANGE,
        });
        headers.reth = opcode.has_reth().then(|| Reth {
            va: host.va(BYTES),
            rkey: host.mr.rkey(),
            length: 4096,
        });
        headers.aeth = opcode.has_aeth().then(|| Aeth {
            syndrome: input.byte().into(),
            msn: input.byte().into(),
        });
        headers.atomic_eth = opcode.has_atomic_eth().then(Default::default);
        headers.atomic_ack = opcode.has_atomic_ack().then_some(9);
        headers.imm = opcode.has_imm().then_some([1, 2, 3, 4]);
        headers.ieth = opcode.has_ieth().then_some(host.mr.rkey());
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        Bth::mark(bytes.first_chunk_mut().expect("a BTH"), tag);
        bytes.resize(bytes.len() + 4 * input.below(364), 0xee);
        Some(bytes)
    }

    fn range(&self, host: usize) -> u32 {
        (self.hosts[host].qp.number().get() >> 12 & 0xff) << 24
    }

    fn forge_hello(&mut self, victim: usize, input: &mut Input<'_>) {
        let sender = self.range(1 - victim) ^ u32::from(input.one_in(8)) << 24;
        let forged = Hello {
            asks: input.one_in(2),
            long_payload: input.u16(),
            features: u64::from(input.byte()),
            sender,
            instance: input.u64(),
            answers: input.one_in(2).then(|| input.u64()),
            nonce: input.u64(),
            echo: input.u64(),
            number: input.u32(),
        };
        let receiver = self.range(victim);
        self.forge_management(victim, &hello(&forged, receiver));
    }

    fn forge_report(&mut self, victim: usize, input: &mut Input<'_>) {
        let mut writer = ReportWriter::new(&Report {
            instance: input.u64(),
            from: input.u64(),
            sender: self.range(1 - victim),
            number: input.u32(),
            ping: input.u32(),
            pong: input.u32(),
            ..Report::default()
        });
        let host = &self.hosts[victim];
        let sent = host.last.map_or(Psn::new(0), |last| last.psn);
        while let Some(room) = writer.room()
            && !input.is_empty()
        {
            let ranges = input.below(room.min(3) + 1);
            let missing: Vec<_> = (0..ranges)
                .map(|_| (near(sent, input), u32::from(input.byte())))
                .collect();
            writer.add(host.qp.number(), near(sent, input), missing.into_iter());
        }
        let mad = writer.finish(self.range(victim));
        self.forge_management(victim, &mad);
    }

    fn forge_management(&mut self, victim: usize, mad: &[u8]) {
        self.forge(victim, management(mad));
    }

    /// All that was posted is done, and nothing else.
    pub(crate) fn finish(&mut self) {
        self.lost_bits = 0;
        for _ in 0..DONE_TICKS / 100 {
            if self.hosts.iter().all(|host| host.writing.is_none()) {
                break;
            }
            self.pass(100);
        }
        for host in &self.hosts {
            assert!(host.writing.is_none(), "a WRITE is never done");
            assert!(host.bytes(BYTES, BYTES) == host.written, "a byte is wrong");
        }
    }
}

/// A datagram to queue pair 1.
pub(crate) fn management(mad: &[u8]) -> Vec<u8> {
    let mut headers = Headers::new(Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(1)));
    headers.deth = Some(Deth {
        qkey: GSI_QKEY,
        src_qpn: Qpn::GSI,
    });
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    bytes.extend_from_slice(mad);
    bytes
}

/// A packet from one host to the other (2: a third one), with its ICRC.
pub(crate) fn frame(from: usize, to: usize, mut bytes: Vec<u8>) -> Frame {
    let of = |host: usize| ADDRESSES.get(host).copied().unwrap_or([192, 0, 2, 3]);
    let [source, destination] = [of(from), of(to)];
    let ip = IpPseudo::V4 {
        src: source.into(),
        dst: destination.into(),
        id: 0,
        dont_fragment: true,
    };
    let sum = icrc(&ip, ROCE_PORT, ROCE_PORT, &bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    Frame {
        source: source.into(),
        destination: destination.into(),
        source_port: ROCE_PORT,
        tos: 0,
        ttl: 64,
        flow_label: 0,
        bytes,
    }
}
