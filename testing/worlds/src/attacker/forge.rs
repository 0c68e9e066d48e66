//! The datagrams that the attacker forges.

use super::own::{BYTES, VA};
use super::{Attacker, READ_PACKETS_MAX};
use crate::host::{REGIONS, region};
use crate::plan::Service;
use crate::world::{QKEY, World};
use airdma_port::sim::Frame;
use airdma_transport::Time;
use airdma_wire::air::{self, Hello, Report, ReportWriter, feature};
use airdma_wire::bundle::bundle_header;
use airdma_wire::cnp::cnp;
use airdma_wire::mad::GSI_QKEY;
use airdma_wire::{
    Aeth, AtomicEth, Bth, Deth, Feth, Headers, IpPseudo, NakCode, Opcode, Psn, Qkey, Qpn,
    ROCE_PORT, Reth, Rkey, SETH_LEN_MAX, SethRange, Syndrome, emit_seth, icrc,
};
use std::net::IpAddr;

/// A kind of datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A request on another host's reliable connection.
    Request,
    /// An acknowledgement, or a refusal.
    Acknowledgement,
    /// A response with data.
    Answer,
    /// A packet for a queue pair of another service, or without its key.
    WrongService,
    /// A packet for a queue pair that does not exist.
    Nobody,
    /// A congestion notification.
    Notification,
    /// Hello of airdma hosts.
    Hello,
    /// Report of received packets.
    Report,
    /// Requests in a bundle.
    Bundle,
    /// A datagram for the connection manager.
    Manager,
    /// A packet of a record, or of a reliable datagram.
    Record,
    /// An answer to a reliable datagram.
    RecordAck,
    /// An answer to a packet of a record.
    RecordEcho,
    /// A request to read by datagrams, or an answer to one.
    RecordRead,
    /// A packet of the attacker's own connection.
    Own,
    /// A valid packet of its own connection, in the name of another host.
    Replay,
}

/// Kinds, repeated by their frequency.
const KINDS: [Kind; 34] = [
    Kind::Request,
    Kind::Request,
    Kind::Request,
    Kind::Request,
    Kind::Request,
    Kind::Request,
    Kind::Acknowledgement,
    Kind::Acknowledgement,
    Kind::Acknowledgement,
    Kind::Acknowledgement,
    Kind::Answer,
    Kind::Answer,
    Kind::Answer,
    Kind::WrongService,
    Kind::WrongService,
    Kind::Nobody,
    Kind::Notification,
    Kind::Hello,
    Kind::Hello,
    Kind::Hello,
    Kind::Hello,
    Kind::Report,
    Kind::Report,
    Kind::Report,
    Kind::Report,
    Kind::Bundle,
    Kind::Manager,
    Kind::Manager,
    Kind::Manager,
    Kind::Manager,
    Kind::Manager,
    Kind::Manager,
    Kind::Own,
    Kind::Replay,
];

/// Kinds besides, in worlds with records.
const RECORD_KINDS: [Kind; 5] = [
    Kind::Record,
    Kind::Record,
    Kind::RecordAck,
    Kind::RecordEcho,
    Kind::RecordRead,
];

/// Requests of a reliable connection.
const REQUESTS: [Opcode; 15] = [
    Opcode::RcSendFirst,
    Opcode::RcSendMiddle,
    Opcode::RcSendLast,
    Opcode::RcSendOnly,
    Opcode::RcSendOnlyInvalidate,
    Opcode::RcWriteFirst,
    Opcode::RcWriteMiddle,
    Opcode::RcWriteLast,
    Opcode::RcWriteOnly,
    Opcode::RcWriteOnlyImm,
    Opcode::RcReadRequest,
    Opcode::RcCompareSwap,
    Opcode::RcFetchAdd,
    Opcode::RcAtomicWrite,
    Opcode::RcFlush,
];

const ANSWERS: [Opcode; 5] = [
    Opcode::RcReadResponseFirst,
    Opcode::RcReadResponseMiddle,
    Opcode::RcReadResponseLast,
    Opcode::RcReadResponseOnly,
    Opcode::RcAtomicAcknowledge,
];

/// Most notifications in a world: each may halve its victim's rate.
const NOTIFICATIONS_MAX: u64 = 4;

/// The target: an end, or a queue pair, of a host.
struct Victim {
    end: usize,
    host: usize,
    number: Qpn,
    service: Service,
}

impl Attacker {
    /// Sends one datagram, if there is a host to send it to.
    pub(super) fn send(&mut self, world: &mut World) {
        self.left = self.left.saturating_sub(1);
        let kind = if !world.records.is_empty() && self.random.chance(0.3) {
            self.random.pick(&RECORD_KINDS)
        } else {
            self.random.pick(&KINDS)
        };
        let forged = if kind == Kind::Manager {
            Some(self.at_manager(world))
        } else if RECORD_KINDS.contains(&kind) {
            self.at_records(world, kind)
        } else {
            self.at_end(world, kind)
        };
        if let Some((host, source, packet)) = forged
            && world.hosts[host].alive
        {
            self.deliver(world, kind, host, source, packet);
        }
    }

    fn at_end(&mut self, world: &World, kind: Kind) -> Option<(usize, IpAddr, Vec<u8>)> {
        let end = self.random.index(world.ends.len());
        let of = &world.ends[end];
        let victim = Victim {
            end,
            host: of.host,
            number: of.number,
            service: world.plan.connections[end / 2].service,
        };
        // Mostly in the name of the peer.
        let peer = world.hosts[world.ends[end ^ 1].host].address;
        let source = if self.random.chance(0.05) {
            self.bystander
        } else {
            peer
        };
        let is_there = world.hosts[victim.host].alive;
        let (source, packet) = is_there.then(|| self.forge(world, kind, &victim, source))??;
        Some((victim.host, source, packet))
    }

    fn forge(
        &mut self,
        world: &World,
        kind: Kind,
        victim: &Victim,
        source: IpAddr,
    ) -> Option<(IpAddr, Vec<u8>)> {
        let reliable = victim.service == Service::Rc;
        let bytes = match kind {
            Kind::Request | Kind::Bundle if reliable => self.request(world, victim),
            Kind::Acknowledgement if reliable => self.acknowledgement(victim),
            Kind::Answer if reliable => self.answer(victim),
            Kind::Notification if self.notifications < NOTIFICATIONS_MAX => {
                self.notifications += 1;
                self.disturbances += u64::from(!world.is_sealed(victim.end));
                cnp(victim.number).to_vec()
            }
            Kind::WrongService => self.wrong_service(victim),
            Kind::Nobody => self.nobody(world, victim)?,
            Kind::Hello => self.hello(world, victim),
            Kind::Report => self.report(world, victim),
            Kind::Own => return self.own_request(world, victim),
            Kind::Replay => {
                let (_, bytes) = self.own_write(victim, self.own[victim.host].key, VA);
                bytes
            }
            Kind::Request
            | Kind::Bundle
            | Kind::Acknowledgement
            | Kind::Answer
            | Kind::Manager
            | Kind::Record
            | Kind::RecordAck
            | Kind::RecordEcho
            | Kind::RecordRead
            | Kind::Notification => return None,
        };
        Some((source, bytes))
    }

    fn payload(&mut self, most: u64) -> Vec<u8> {
        let length = 4 * self.random.below(most / 4 + 1) as usize;
        self.random.bytes(length)
    }

    /// Picks a key: any, or the right one of a host's region, which is worthless without the PSN.
    fn key(&mut self, world: &World, host: usize) -> u32 {
        let regions = &world.hosts[host].regions;
        if self.random.chance(0.5) {
            regions[self.random.index(regions.len())].key
        } else {
            self.random.next_u64() as u32
        }
    }

    fn reth(&mut self, world: &World, host: usize, length: u32) -> Reth {
        let at = REGIONS[region::TARGETS].area.at;
        Reth {
            va: world.hosts[host].va(region::TARGETS, at) + self.random.below(4096),
            rkey: Rkey(self.key(world, host)),
            length,
        }
    }

    fn request(&mut self, world: &World, victim: &Victim) -> Vec<u8> {
        let connection = &world.plan.connections[victim.end / 2];
        // RoCEv2 refuses a packet from the future, and a requester without retries fails on a
        // refusal.
        let behind = connection.retry_count == 0 || self.random.chance(0.3);
        let psn = self.unused_psn(victim.end ^ 1, behind);
        self.disturbances += u64::from(!behind && !world.is_sealed(victim.end));
        let opcode = self.random.pick(&REQUESTS);
        let payload = if opcode.is_send() || opcode.is_write() {
            let full = opcode.is_first() || opcode.is_middle();
            if full {
                self.random.bytes(128 << connection.mtu)
            } else {
                self.payload(256)
            }
        } else if opcode == Opcode::RcAtomicWrite {
            self.random.bytes(8)
        } else {
            Vec::new()
        };
        let mut headers = Headers::new(Bth::new(opcode, victim.number, psn));
        headers.bth.ack_request = self.random.chance(0.5);
        let tag = self.tag(victim.end ^ 1);
        headers.feth = opcode.has_feth().then_some(Feth {
            placement: Feth::GLOBAL,
            selectivity: Feth::RANGE,
        });
        if opcode.has_reth() {
            let length = if opcode == Opcode::RcReadRequest {
                256 * self.random.below(READ_PACKETS_MAX.into()) as u32
            } else {
                payload.len() as u32 * if opcode.is_first() { 2 } else { 1 }
            };
            headers.reth = Some(self.reth(world, victim.host, length));
        }
        if opcode.has_atomic_eth() {
            let at = REGIONS[region::CELLS].area.at;
            headers.atomic_eth = Some(AtomicEth {
                va: world.hosts[victim.host].va(region::CELLS, at),
                rkey: Rkey(self.key(world, victim.host)),
                swap_add: self.random.next_u64(),
                compare: 0,
            });
        }
        headers.imm = opcode.has_imm().then_some([1, 2, 3, 4]);
        if opcode.has_ieth() {
            headers.ieth = Some(Rkey(self.key(world, victim.host)));
        }
        tagged(emit(&headers, &payload), tag)
    }

    fn acknowledgement(&mut self, victim: &Victim) -> Vec<u8> {
        let psn = self.unused_psn(victim.end, false);
        let bth = Bth::new(Opcode::RcAcknowledge, victim.number, psn);
        let syndrome = self.random.pick(&[
            Syndrome::Ack { credits: 31 },
            Syndrome::Ack { credits: 0 },
            Syndrome::RnrNak { timer: 31 },
            Syndrome::Nak(NakCode::PsnSequenceError),
            Syndrome::Nak(NakCode::InvalidRequest),
            Syndrome::Nak(NakCode::RemoteAccessError),
            Syndrome::Nak(NakCode::RemoteOperationalError),
            Syndrome::Reserved(0x7f),
        ]);
        let mut headers = Headers::new(bth);
        headers.aeth = Some(Aeth {
            syndrome,
            msn: self.random.below(1 << 24) as u32,
        });
        let mut ranges = [0; SETH_LEN_MAX];
        let mut length = 0;
        if self.random.chance(0.3) {
            let range = SethRange {
                first: self.random.below(9000) as u16,
                packets: self.random.below(9000) as u16,
            };
            length = emit_seth([range].into_iter(), &mut ranges);
        }
        let tag = self.tag(victim.end ^ 1);
        tagged(emit(&headers, &ranges[..length]), tag)
    }

    fn answer(&mut self, victim: &Victim) -> Vec<u8> {
        let psn = self.unused_psn(victim.end, false);
        let opcode = self.random.pick(&ANSWERS);
        let mut headers = Headers::new(Bth::new(opcode, victim.number, psn));
        headers.aeth = opcode.has_aeth().then_some(Aeth {
            syndrome: Syndrome::Ack { credits: 31 },
            msn: 1,
        });
        headers.atomic_ack = opcode.has_atomic_ack().then_some(7);
        let payload = if opcode.has_atomic_ack() {
            Vec::new()
        } else {
            self.payload(1024)
        };
        let tag = self.tag(victim.end ^ 1);
        tagged(emit(&headers, &payload), tag)
    }

    /// A packet of a service that the queue pair does not have, or a datagram without its key.
    fn wrong_service(&mut self, victim: &Victim) -> Vec<u8> {
        let psn = Psn::new(self.random.below(1 << 24) as u32);
        let payload = self.payload(256);
        let opcode = match victim.service {
            Service::Rc => self.random.pick(&[
                Opcode::UcSendOnly,
                Opcode::UcSendFirst,
                Opcode::UdSendOnly,
                Opcode::XrcSendOnly,
            ]),
            Service::Uc => self.random.pick(&[
                Opcode::RcSendOnly,
                Opcode::RcAcknowledge,
                Opcode::UdSendOnly,
            ]),
            Service::Ud => self.random.pick(&[
                Opcode::RcSendOnly,
                Opcode::UcSendOnly,
                Opcode::UdSendOnly,
                Opcode::UdSendOnly,
            ]),
        };
        let mut headers = Headers::new(Bth::new(opcode, victim.number, psn));
        let key = self.random.next_u64() as u32;
        headers.deth = opcode.has_deth().then_some(Deth {
            qkey: Qkey(if key == QKEY.0 { !key } else { key }),
            src_qpn: Qpn::new(self.random.below(1 << 24) as u32),
        });
        headers.xrceth = opcode
            .has_xrceth()
            .then_some(airdma_wire::XrcEth { srqn: 1 });
        headers.aeth = opcode.has_aeth().then_some(Aeth {
            syndrome: Syndrome::Ack { credits: 31 },
            msn: 1,
        });
        emit(&headers, &payload)
    }

    /// A packet for a queue pair number near that of the attacker's, which no host has.
    fn nobody(&mut self, world: &World, victim: &Victim) -> Option<Vec<u8>> {
        let own = self.own[victim.host].number.get();
        let near = own.wrapping_add(1 + self.random.below(8) as u32);
        let any = self.random.next_u64() as u32;
        let number = Qpn::new(self.random.pick(&[near, any]));
        let is_somebodys = world.ends.iter().any(|end| end.number == number)
            || self.own.iter().any(|own| own.number == number)
            || number.get() < 2;
        let psn = Psn::new(self.random.below(1 << 24) as u32);
        let bth = Bth::new(Opcode::UcSendOnly, number, psn);
        let payload = self.payload(256);
        (!is_somebodys).then(|| emit(&Headers::new(bth), &payload))
    }

    /// The instance that the host shows to the attacker, or a random one.
    fn instance(&mut self, host: usize) -> u64 {
        let learned = self.own[host].instance;
        match learned.filter(|_| self.random.chance(0.8)) {
            Some(instance) => instance,
            None => self.random.next_u64(),
        }
    }

    fn hello(&mut self, world: &World, victim: &Victim) -> Vec<u8> {
        let peer = world.ends[victim.end ^ 1].number;
        let all = feature::SELECTIVE
            | feature::BUFFERS
            | feature::BUNDLES
            | feature::LONG_READS
            | feature::EQUAL_LENGTHS;
        let hello = Hello {
            asks: self.random.chance(0.5),
            long_payload: self.random.pick(&[0, 256, 1452, 4096, u16::MAX]),
            features: self
                .random
                .pick(&[0, feature::SELECTIVE, feature::SACK, all, u64::MAX]),
            sender: id_of(peer),
            instance: self.random.next_u64(),
            answers: self.random.chance(0.6).then(|| self.instance(victim.host)),
            nonce: self.random.next_u64(),
            echo: self.own[victim.host].nonce,
            number: self.random.next_u64() as u32,
        };
        management(&air::hello(&hello, id_of(victim.number)))
    }

    /// A report that acknowledges all or no packets, or misses some that were never sent, and
    /// grants no credit.
    fn report(&mut self, world: &World, victim: &Victim) -> Vec<u8> {
        let (first, next) = self.used[victim.end];
        let other = self.random.below(self.own.len() as u64) as usize;
        let full = self.random.below(2) as u32 * 4096;
        let mut writer = ReportWriter::new(&Report {
            instance: self.instance(victim.host),
            from: self.instance(other),
            sender: id_of(world.ends[victim.end ^ 1].number),
            number: self
                .random
                .pick(&[1, 100, 1 << 20, i32::MAX as u32, u32::MAX]),
            ping: self.random.below(3) as u32,
            pong: self.random.below(40) as u32,
            received_bytes: self.random.next_u64() >> self.random.below(64),
            socket_bytes: full,
            socket_bytes_max: 4096,
            application_bytes: full,
            application_bytes_max: 4096,
            ..Report::default()
        });
        let expected = self.random.pick(&[first, next, next.add(5000)]);
        let missing = [(first.add(1), 1), (next, 9000)];
        let ranges = self.random.below(3) as usize;
        writer.add(victim.number, expected, missing[..ranges].iter().copied());
        management(&writer.finish(id_of(victim.number)))
    }

    /// A WRITE on the attacker's connection, and whether the host accepts it.
    fn own_write(&mut self, victim: &Victim, key: u32, va: u64) -> (bool, Vec<u8>) {
        let own = &self.own[victim.host];
        let payload = [0xa7; BYTES / 4];
        let mut headers = Headers::new(Bth::new(Opcode::RcWriteOnly, own.number, own.psn));
        headers.bth.ack_request = true;
        headers.reth = Some(Reth {
            va,
            rkey: Rkey(key),
            length: payload.len() as u32,
        });
        (key == own.key, emit(&headers, &payload))
    }

    /// A valid request on its own connection, or as the last one a request for memory granted to
    /// others.
    fn own_request(&mut self, world: &World, victim: &Victim) -> Option<(IpAddr, Vec<u8>)> {
        // With a shared secret between hosts, its own connection has no keys.
        if self.own[victim.host].is_over || world.plan.on_path.is_some() {
            return None;
        }
        let at = REGIONS[region::TARGETS].area.at;
        let theirs = world.hosts[victim.host].va(region::TARGETS, at);
        let key = self.key(world, victim.host);
        let (key, va) = if self.random.chance(0.2) {
            (key, theirs)
        } else {
            (self.own[victim.host].key, VA)
        };
        let (good, bytes) = self.own_write(victim, key, va);
        let own = &mut self.own[victim.host];
        own.psn = own.psn.add(1);
        own.is_over = !good;
        Some((self.address, bytes))
    }

    fn deliver(
        &mut self,
        world: &mut World,
        kind: Kind,
        host: usize,
        source: IpAddr,
        packet: Vec<u8>,
    ) {
        let destination = world.hosts[host].address;
        let source_port = match self.random.below(4) {
            0 if kind != Kind::Own => 0xc000 | self.random.below(1 << 14) as u16,
            _ => ROCE_PORT,
        };
        let sealed = |id: u16, packet: &[u8]| seal(source, destination, source_port, id, packet);
        let bytes = if kind == Kind::Bundle {
            let segment = packet.len() as u16 + 4;
            let first = Qpn::new(u32::from_be_bytes([0, packet[5], packet[6], packet[7]]));
            let mut bytes = bundle_header(segment, 2, first).to_vec();
            bytes.extend(sealed(0, &packet));
            bytes.extend(sealed(1, &packet));
            bytes
        } else {
            sealed(0, &packet)
        };
        world.note(|_| {
            let words = describe(&packet);
            format!(
                "the attacker, as {source}:{source_port}, sends host {host} {kind:?}: {words}, {} B",
                bytes.len()
            )
        });
        self.sent += 1;
        self.sent_records += u64::from(RECORD_KINDS.contains(&kind));
        self.reflected.1 += bytes.len() as u64 * u64::from(source == self.bystander);
        let frame = Frame {
            source,
            destination,
            source_port,
            tos: 0,
            ttl: 64,
            flow_label: 0,
            bytes,
        };
        let at = Time::from_nanos(world.now.as_nanos() as u64);
        let frame = crate::world::to_network(frame);
        // Injected behind all links: the path of the attacker is not tested.
        world.network.inject(at, host, host, &frame);
    }
}

/// Process id in the number of a queue pair.
fn id_of(number: Qpn) -> u32 {
    (number.get() >> 12 & 0xff) << 24
}

pub(crate) fn emit(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

/// Writes the tag of air mode into a packet.
fn tagged(mut packet: Vec<u8>, tag: u16) -> Vec<u8> {
    if let Some(header) = packet.first_chunk_mut() {
        Bth::mark(header, tag);
    }
    packet
}

/// Packet with a management datagram.
pub(crate) fn management(mad: &[u8]) -> Vec<u8> {
    let mut headers = Headers::new(Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0)));
    headers.deth = Some(Deth {
        qkey: GSI_QKEY,
        src_qpn: Qpn::GSI,
    });
    emit(&headers, mad)
}

/// Appends the ICRC, which any host can compute.
pub(crate) fn with_icrc(from: IpAddr, to: IpAddr, source_port: u16, packet: &[u8]) -> Vec<u8> {
    seal(from, to, source_port, 0, packet)
}

fn seal(from: IpAddr, to: IpAddr, source_port: u16, id: u16, packet: &[u8]) -> Vec<u8> {
    let ip = match (from, to) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => IpPseudo::V4 {
            src,
            dst,
            id,
            dont_fragment: true,
        },
        (IpAddr::V6(src), IpAddr::V6(dst)) => IpPseudo::V6 { src, dst },
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
            unreachable!("hosts of a world have addresses of one family")
        }
    };
    let sum = icrc(&ip, source_port, ROCE_PORT, packet);
    [packet, &sum.to_le_bytes()].concat()
}

fn describe(packet: &[u8]) -> String {
    let header = packet.first_chunk().map(Bth::from_bytes);
    match header {
        Some(Ok(bth)) => format!(
            "{} to {:#08x}, PSN {}",
            bth.opcode.name(),
            bth.dest_qpn.get(),
            bth.psn.get()
        ),
        Some(Err(_)) | None => "no packet".to_owned(),
    }
}
