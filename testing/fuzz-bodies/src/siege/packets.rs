//! The packets of the attacker: how they look, and how they come.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use airdma_transport::Arrival;
use airdma_wire::padded::{may_be_padded, pad_packet};
use airdma_wire::{
    Aeth, AtomicEth, Bth, Deth, Feth, Headers, Opcode, Packet, Psn, Qkey, Reth, Rkey, Syndrome,
    Transport, XrcEth,
};

use super::{LATE_MAX, QPN, Siege};
use crate::input::Input;
use crate::values::{PEER, QKEY, address, key, length};

/// Padding of a packet that is padded as it should be.
const PADDING: u16 = 8;

impl Siege {
    /// An opcode of this service and kind, now and then any.
    pub(super) fn opcode(&self, input: &mut Input<'_>, kind: impl Fn(Opcode) -> bool) -> Opcode {
        if input.one_in(16) {
            return input.pick(Opcode::ALL);
        }
        let transport = self.transport();
        let fits = |opcode: &&Opcode| opcode.transport() == transport && kind(**opcode);
        let fitting: Vec<&Opcode> = Opcode::ALL.iter().filter(fits).collect();
        if fitting.is_empty() {
            Opcode::Cnp
        } else {
            *input.pick(&fitting)
        }
    }

    /// Headers as the opcode wants them, with values that are near what is right, and the length of
    /// a payload.
    pub(super) fn packet(&self, opcode: Opcode, psn: Psn, input: &mut Input<'_>) -> (Headers, u32) {
        let mtu = self.mtu();
        let payload_len = match input.below(8) {
            7 => input.pick(&[0, 1, 8, mtu - 1, mtu, mtu + 1, mtu + 4]),
            _ if opcode.is_first() || opcode.is_middle() => mtu,
            _ if opcode.is_send() || opcode.is_write() || opcode.is_read_response() => {
                1 + u32::from(input.byte()) % mtu
            }
            _ if opcode.on(Transport::Rc) == Some(Opcode::RcAtomicWrite) => 8,
            _ => 0,
        };
        let mut bth = Bth::new(opcode, QPN, psn);
        bth.pad = (payload_len.wrapping_neg() & 3) as u8;
        let flags = input.byte();
        bth.ack_request = flags & 1 != 0;
        bth.solicited = flags & 2 != 0;
        if flags >> 4 == 0xf {
            (bth.pad, bth.fecn, bth.becn) = (flags & 3, true, true);
            bth.pkey = input.pick(&[0, 0x7fff, 0x1234]);
        }
        if flags >> 2 & 3 == 3 {
            // Forged, by a host that guesses.
            bth.tag = 1 << (flags >> 4 & 7);
        }
        let mut headers = Headers::new(bth);
        let (rkey, va) = (Rkey(key(input)), address(input));
        headers.deth = opcode.has_deth().then(|| Deth {
            qkey: input.pick(&[QKEY, QKEY, QKEY, Qkey(0)]),
            src_qpn: PEER,
        });
        headers.xrceth = opcode.has_xrceth().then(|| XrcEth {
            srqn: input.pick(&[0, 0, 1, 1, 2, 0xff_ffff]),
        });
        headers.feth = opcode.has_feth().then(|| Feth {
            placement: input.pick(&[1, 1, 2, 3, 0, 4]),
            selectivity: input.pick(&[0, 0, 1, 2]),
        });
        headers.reth = opcode.has_reth().then(|| Reth {
            va,
            rkey,
            length: match input.below(4) {
                0 | 1 => payload_len,
                2 => u32::from(input.u16()) % (4 * mtu),
                _ => length(input, mtu),
            },
        });
        headers.atomic_eth = opcode.has_atomic_eth().then_some(AtomicEth {
            va,
            rkey,
            swap_add: 5,
            compare: 7,
        });
        headers.aeth = opcode.has_aeth().then(|| Aeth {
            syndrome: match input.below(8) {
                0..=3 => Syndrome::Ack { credits: 31 },
                _ => input
                    .pick(&[
                        0x20, 0x2c, 0x3f, 0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x40, 0x80, 0xff, 0,
                    ])
                    .into(),
            },
            msn: input.byte().into(),
        });
        headers.atomic_ack = opcode.has_atomic_ack().then_some(9);
        headers.imm = opcode.has_imm().then_some([1, 2, 3, 4]);
        headers.ieth = opcode.has_ieth().then_some(rkey);
        (headers, payload_len)
    }

    /// Sends a packet through the parser, as it would come from the port.
    pub(super) fn deliver(&mut self, headers: Headers, payload_len: u32) {
        let mut bytes = vec![0; headers.len()];
        let tag = headers.bth.tag ^ self.tags.map_or(0, |tags| tags.taken);
        headers.emit(&mut bytes);
        Bth::mark(bytes.first_chunk_mut().expect("a BTH"), tag);
        bytes.resize(bytes.len() + payload_len as usize, 0xc3);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        if self.padding > 0 && may_be_padded(headers.bth.opcode) {
            let pad = u16::from(std::mem::take(&mut bytes[1]) >> 4 & 3);
            bytes[1] = 0x40;
            bytes.resize(bytes.len() + usize::from(PADDING), 0);
            pad_packet(&mut bytes, PADDING + pad);
            if self.padding != PADDING {
                let end = bytes.len() - 2;
                bytes[end..].copy_from_slice(&self.padding.to_be_bytes());
            }
        }
        let is_late = self.late_bits & 1 != 0;
        self.late_bits >>= 1;
        if is_late && self.late.len() < LATE_MAX {
            return self.late.push_back(bytes);
        }
        self.deliver_bytes(&bytes);
        self.last_packet = bytes;
    }

    pub(super) fn deliver_bytes(&mut self, bytes: &[u8]) {
        let packet = match Packet::parse(bytes) {
            Err(_) if self.queue_pair.takes_padded() => Packet::parse_padded(bytes),
            parsed => parsed,
        };
        let Ok(packet) = packet else {
            return;
        };
        let addresses = [
            IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)),
            IpAddr::from(Ipv6Addr::LOCALHOST),
        ];
        let arrival = Arrival {
            source: addresses[usize::from(self.psn.get() as u8 & 1)].into(),
            destination: addresses[usize::from(self.psn.get() as u8 >> 1 & 1)].into(),
            tos: 0xff,
            ttl: 1,
            flow_label: u32::MAX,
        };
        let is_forged = !self.queue_pair.takes(&packet.headers.bth);
        let before = is_forged.then(|| format!("{:?}", self.queue_pair));
        self.queue_pair
            .handle_packet(self.now, &arrival, &packet, &mut self.host);
        if let Some(before) = before {
            assert_eq!(format!("{:?}", self.queue_pair), before, "forged");
        }
        self.host.granted = self.queue_pair.attributes().access;
    }
}
