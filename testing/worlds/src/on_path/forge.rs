//! Forgeries of the host on the path.

use super::{BURST_MAX, OnPath, Passing};
use crate::attacker::{emit, management, with_icrc};
use crate::host::{REGIONS, region};
use crate::plan::Service;
use crate::world::{QKEY, World};
use airdma_port::sim::Frame;
use airdma_wire::air::{self, KeyOffer, Message};
use airdma_wire::bundle::BUNDLE_OPCODE;
use airdma_wire::cnp::cnp;
use airdma_wire::mad::MAD_LEN;
use airdma_wire::sealed::{SEALED_OVERHEAD, is_sealed};
use airdma_wire::{
    Aeth, Bth, Deth, Headers, ICRC_LEN, NakCode, Opcode, Packet, Psn, Qpn, Reth, Rkey, Syndrome,
};

/// A kind of forgery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Flips bits of the packet.
    Flip,
    /// Cuts the end off.
    Cut,
    /// Appends bytes.
    Grow,
    /// Returns it to its sender, in its receiver's name.
    Reflect,
    /// Sends it from or to another host.
    Readdress,
    /// Repeats a recorded packet.
    Replay,
    /// Joins its header and the rest of another packet.
    Splice,
    /// Changes its counter, queue pair or opcode.
    Renumber,
    /// Sends an unsealed RoCEv2 packet with its numbers.
    Plain,
    /// Sends a key offer that passes or was recorded, with other contents.
    Offer,
}

/// Kinds, repeated by their frequency.
const KINDS: [Kind; 16] = [
    Kind::Flip,
    Kind::Flip,
    Kind::Flip,
    Kind::Cut,
    Kind::Grow,
    Kind::Reflect,
    Kind::Readdress,
    Kind::Replay,
    Kind::Replay,
    Kind::Replay,
    Kind::Splice,
    Kind::Renumber,
    Kind::Plain,
    Kind::Plain,
    Kind::Plain,
    Kind::Offer,
];

/// Packets of reliable connections.
const RC: [Opcode; 6] = [
    Opcode::RcSendOnly,
    Opcode::RcWriteOnly,
    Opcode::RcReadRequest,
    Opcode::RcAcknowledge,
    Opcode::RcReadResponseOnly,
    Opcode::Cnp,
];

/// Offset of the BTH byte that routers may change; neither authentication nor ICRC covers it.
const CONGESTION_AT: usize = 4;
/// Bytes of the shortest packet that a port examines.
const LEN_MIN: usize = Bth::LEN + 4;

impl OnPath {
    /// Forges a packet beside the passing one; returns it with its destination.
    pub(super) fn forge(&mut self, world: &mut World, passing: &Passing) -> Option<(usize, Frame)> {
        let kind = self.random.pick(&KINDS);
        if u64::from(self.left) < BURST_MAX || self.recorded.is_empty() {
            return None;
        }
        let earlier = self.random.index(self.recorded.len());
        let earlier = self.recorded[earlier].clone();
        let of = if kind == Kind::Replay || self.random.chance(0.3) {
            &earlier
        } else {
            passing
        };
        let mut to = of.to;
        let mut frame = of.frame.clone();
        if kind != Kind::Replay {
            let body = frame.bytes.len().checked_sub(ICRC_LEN)?;
            let mut packet = frame.bytes[..body].to_vec();
            if packet.len() < LEN_MIN || packet[0] == BUNDLE_OPCODE {
                return None;
            }
            match kind {
                Kind::Flip => self.flip(&mut packet),
                Kind::Cut => {
                    packet.truncate(self.random.between(LEN_MIN as u64, body as u64) as usize)
                }
                Kind::Grow => {
                    let more = 4 * self.random.between(1, 16) as usize;
                    packet.extend(self.random.bytes(more));
                }
                Kind::Reflect => {
                    std::mem::swap(&mut frame.source, &mut frame.destination);
                    to = of.from;
                }
                Kind::Readdress if self.random.chance(0.5) => {
                    frame.source = world.hosts[self.random.index(self.hosts)].address;
                }
                Kind::Readdress => {
                    to = self.random.index(self.hosts);
                    frame.destination = world.hosts[to].address;
                }
                Kind::Splice => {
                    let other = self.random.index(self.recorded.len());
                    let other = self.recorded[other].frame.bytes.get(Bth::LEN..)?;
                    packet.truncate(Bth::LEN);
                    packet.extend(other.get(..other.len() - ICRC_LEN)?);
                }
                Kind::Renumber => self.renumber(world, &mut packet),
                Kind::Plain => packet = self.plain(world, of.to, &packet),
                Kind::Offer => packet = self.offer(&packet)?,
                Kind::Replay => {}
            }
            // Such a packet would be unchanged, or be dropped by the port.
            if packet.len() < LEN_MIN || packet[0] == BUNDLE_OPCODE {
                return None;
            }
            frame.bytes = with_icrc(frame.source, frame.destination, frame.source_port, &packet);
            if (to, frame.source, &frame.bytes) == (of.to, of.frame.source, &of.frame.bytes) {
                return None;
            }
        }
        let (source, bytes) = (frame.source, frame.bytes.len());
        world.note(|_| {
            format!("the host on the path, as {source}, sends host {to} {kind:?}, {bytes} B")
        });
        Some((to, frame))
    }

    fn flip(&mut self, packet: &mut [u8]) {
        for _ in 0..=self.random.below(3) {
            let at = self.random.index(packet.len());
            if at != CONGESTION_AT {
                packet[at] ^= 1 << self.random.below(8);
            }
        }
    }

    fn renumber(&mut self, world: &World, packet: &mut [u8]) {
        let end = packet.len();
        let number = world.ends[self.random.index(world.ends.len())].number;
        match self.random.below(4) {
            0 if is_sealed(packet) && end > Bth::LEN + SEALED_OVERHEAD => {
                let counter = self.random.next_u64() >> self.random.below(64);
                packet[end - 24..end - 16].copy_from_slice(&counter.to_be_bytes());
            }
            1 => packet[5..8].copy_from_slice(&number.get().to_be_bytes()[1..]),
            2 => packet[0] = self.random.next_u64() as u8,
            _ => packet[9..12].copy_from_slice(&self.random.next_u64().to_be_bytes()[..3]),
        }
    }

    /// A packet that an unsealed connection would accept: it has the queue pair, the PSN and the
    /// keys.
    fn plain(&mut self, world: &World, to: usize, seen: &[u8]) -> Vec<u8> {
        let number = |at: usize| u32::from_be_bytes([0, seen[at], seen[at + 1], seen[at + 2]]);
        let (qpn, psn) = (Qpn::new(number(5)), Psn::new(number(9)));
        let end = world.ends.iter().position(|end| end.number == qpn);
        let service = end.map(|end| world.plan.connections[end / 2].service);
        let opcodes: &[Opcode] = match service {
            Some(Service::Rc) => &RC,
            Some(Service::Uc) => &[Opcode::UcSendOnly, Opcode::UcWriteOnly, Opcode::Cnp],
            Some(Service::Ud) | None => &[Opcode::UdSendOnly],
        };
        let opcode = self.random.pick(opcodes);
        if opcode == Opcode::Cnp {
            return cnp(qpn).to_vec();
        }
        let mut headers = Headers::new(Bth::new(opcode, qpn, psn.add(self.random.below(2) as u32)));
        headers.bth.ack_request = true;
        headers.reth = opcode.has_reth().then(|| {
            let at = REGIONS[region::TARGETS].area.at;
            Reth {
                va: world.hosts[to].va(region::TARGETS, at),
                rkey: Rkey(world.hosts[to].regions[region::TARGETS].key),
                length: 64,
            }
        });
        headers.aeth = opcode.has_aeth().then(|| Aeth {
            syndrome: self.random.pick(&[
                Syndrome::Ack { credits: 31 },
                Syndrome::Nak(NakCode::PsnSequenceError),
                Syndrome::Nak(NakCode::RemoteAccessError),
                Syndrome::RnrNak { timer: 31 },
            ]),
            msn: self.random.below(1 << 24) as u32,
        });
        headers.deth = opcode.has_deth().then_some(Deth {
            qkey: QKEY,
            src_qpn: qpn,
        });
        let has_payload = !matches!(opcode, Opcode::RcReadRequest | Opcode::RcAcknowledge);
        emit(&headers, &[0xa7; 64][..if has_payload { 64 } else { 0 }])
    }

    /// A key offer with other contents, under its old authentication.
    fn offer(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let Ok(parsed) = Packet::parse(packet) else {
            return None;
        };
        let (mad, tag) = parsed.payload.split_at_checked(MAD_LEN)?;
        let Ok(Message::Key(offer)) = air::parse(mad) else {
            return None;
        };
        let key = || -> [u8; 32] { std::array::from_fn(|at| packet[at % packet.len()] ^ 0x5a) };
        let altered = match self.random.below(5) {
            0 => KeyOffer {
                public_key: key(),
                ..offer
            },
            1 => KeyOffer {
                seen: Some(key()),
                ..offer
            },
            2 => KeyOffer {
                asks: !offer.asks,
                ..offer
            },
            3 => KeyOffer {
                has_keys: !offer.has_keys,
                ..offer
            },
            _ => KeyOffer {
                public_key: offer.seen.unwrap_or_default(),
                seen: Some(offer.public_key),
                ..offer
            },
        };
        let mad = air::key(&altered);
        Some(management(&[&mad[..], tag].concat()))
    }
}
