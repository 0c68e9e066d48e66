//! A probe for a process of the same host: it proves over the network that a queue pair's packets
//! reach the process with which a shared ring was arranged (`docs/design/028-one-host.md`). Only
//! peers that are known to have a process on this host are sent one; to other implementations it is
//! a packet with an unknown opcode.
//!
//! ```text
//!    0            1            2            3
//!   +------------+------------+------------+------------+
//!   |   BTH with the opcode 0xdc, all else as in packets|  0
//!   |   to the queue pair that it is for                |
//!   |                                                   |
//!   +---------------------------------------------------+
//!   |   token: which request of the sender's it is      | 12
//!   |   (16 bytes)                                      |
//!   +---------------------------------------------------+
//!   |   nonce: what the receiver must return            | 28
//!   |   (16 bytes)                                      |
//!   +---------------------------------------------------+
//! ```
//!
//! The queue pair lies where a BTH has it, so one rule selects among several processes at an
//! address.

use crate::{Bth, Qpn, field};

/// First byte of a probe: one of the opcodes left to manufacturers (IBTA table 39).
pub const LOCAL_PROBE_OPCODE: u8 = 0xdc;
/// Bytes of a probe, BTH to pad.
pub const LOCAL_PROBE_LEN: usize = Bth::LEN + 2 * SECRET_LEN;

const SECRET_LEN: usize = 16;

/// A probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalProbe {
    /// The queue pair whose packets it stands for.
    pub to: Qpn,
    /// Names the request that the sender has made over a Unix socket.
    pub token: [u8; SECRET_LEN],
    /// Random bytes, which only a receiver of the probe knows.
    pub nonce: [u8; SECRET_LEN],
}

/// Whether a packet (BTH to pad) claims to be a probe.
#[inline]
pub fn is_local_probe(packet: &[u8]) -> bool {
    packet.first() == Some(&LOCAL_PROBE_OPCODE)
}

impl LocalProbe {
    /// The probe as a packet, BTH to pad.
    pub fn to_bytes(&self) -> [u8; LOCAL_PROBE_LEN] {
        let mut bytes = [0; LOCAL_PROBE_LEN];
        bytes[0] = LOCAL_PROBE_OPCODE;
        field::set::<2, 2, _>(&mut bytes, Bth::PKEY_DEFAULT.to_be_bytes());
        field::set::<4, 4, _>(&mut bytes, field::byte_and_24(0, self.to.get()));
        field::set::<12, 16, _>(&mut bytes, self.token);
        field::set::<28, 16, _>(&mut bytes, self.nonce);
        bytes
    }

    /// Reads a probe; `None` if the packet is not one.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let bytes: &[u8; LOCAL_PROBE_LEN] = packet.try_into().ok()?;
        if !is_local_probe(packet) {
            return None;
        }
        let (_, to) = field::split_24(field::get::<4, 4, _>(bytes));
        Some(LocalProbe {
            to: Qpn::new(to),
            token: field::get::<12, 16, _>(bytes),
            nonce: field::get::<28, 16, _>(bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_read_as_it_was_written() {
        let probe = LocalProbe {
            to: Qpn::new(0x51_2345),
            token: [7; 16],
            nonce: std::array::from_fn(|at| at as u8),
        };
        let bytes = probe.to_bytes();
        assert_eq!(bytes[..8], [0xdc, 0, 0xff, 0xff, 0, 0x51, 0x23, 0x45]);
        assert_eq!(LocalProbe::parse(&bytes), Some(probe));
    }

    #[test]
    fn nothing_else_is_a_probe() {
        let bytes = LocalProbe {
            to: Qpn::new(5),
            token: [0; 16],
            nonce: [0; 16],
        }
        .to_bytes();
        for len in 0..LOCAL_PROBE_LEN {
            assert_eq!(LocalProbe::parse(&bytes[..len]), None);
        }
        for longer in [&[0][..], &[0; 16], &bytes] {
            assert_eq!(LocalProbe::parse(&[&bytes, longer].concat()), None);
        }
        let mut other = bytes;
        other[0] = 0xda;
        assert_eq!(LocalProbe::parse(&other), None);
    }
}
