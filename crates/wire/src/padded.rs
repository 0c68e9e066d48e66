//! A padded packet: as long as the other packets of its message, so that they leave in one
//! segmented send with those of other messages. It is used only between airdma hosts that have
//! agreed on it (`docs/protocol.md`, "Equal lengths").
//!
//! ```text
//!   +-----+---------------+---------+-----------------+-----------+------+
//!   | BTH | other headers | payload |      zero       |  padding  | ICRC |
//!   |     |               |         | padding - 2     |  2 bytes  |      |
//!   +-----+---------------+---------+-----------------+-----------+------+
//!    transport version 1, pad 0       `padding` bytes in all
//! ```
//!
//! Up to three bytes are the pad of the BTH, in an ordinary packet.

use crate::{Bth, Opcode};

/// Transport version of a padded packet.
pub const PADDED_VERSION: u8 = 1;
/// Least bytes of padding.
pub const PADDING_MIN: usize = 4;
const LENGTH_LEN: usize = size_of::<u16>();

/// Whether a packet may be padded: it ends a SEND or a WRITE, or is a READ response without AETH.
pub const fn may_be_padded(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::RcSendLast
            | Opcode::RcSendLastImm
            | Opcode::RcSendLastInvalidate
            | Opcode::RcWriteLast
            | Opcode::RcWriteLastImm
            | Opcode::RcReadResponseMiddle
    )
}

/// Makes `packet` (BTH to payload, then room for the padding) a padded one.
///
/// # Panics
/// If `padding` is less than [`PADDING_MIN`] or exceeds the packet.
pub fn pad_packet(packet: &mut [u8], padding: u16) {
    assert!(usize::from(padding) >= PADDING_MIN, "padding of {padding}");
    packet[1] |= PADDED_VERSION;
    let end = packet.len() - LENGTH_LEN;
    let start = packet.len() - usize::from(padding);
    packet[start..end].fill(0);
    packet[end..].copy_from_slice(&padding.to_be_bytes());
}

/// The payload of a padded packet, of what is behind its headers. `None` if it is not padded as it
/// should be: padding leaves some payload, and is zero.
pub(crate) fn payload<'a>(bth: &Bth, body: &'a [u8]) -> Option<&'a [u8]> {
    let (_, length) = body.split_last_chunk::<LENGTH_LEN>()?;
    let padding = usize::from(u16::from_be_bytes(*length));
    let payload_len = body.len().checked_sub(padding).filter(|&len| len > 0)?;
    let is_allowed = may_be_padded(bth.opcode) && bth.pad == 0 && padding >= PADDING_MIN;
    let zero = body.get(payload_len..body.len() - LENGTH_LEN)?;
    (is_allowed && zero.iter().all(|&byte| byte == 0)).then_some(&body[..payload_len])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::{Headers, Packet, ParseError, Psn, Qpn, split_middle};

    fn packet(opcode: Opcode, payload: &[u8], padding: u16) -> Vec<u8> {
        let mut headers = Headers::new(Bth::new(opcode, Qpn::new(7), Psn::new(9)));
        headers.imm = opcode.has_imm().then_some([1, 2, 3, 4]);
        headers.ieth = opcode.has_ieth().then_some(crate::Rkey(5));
        headers.aeth = opcode.has_aeth().then_some(crate::Aeth {
            syndrome: crate::Syndrome::Ack { credits: 31 },
            msn: 1,
        });
        headers.feth = opcode
            .has_feth()
            .then_some(crate::Feth::from_bytes(&[0; 4]));
        headers.reth = opcode.has_reth().then_some(crate::Reth::default());
        let mut bytes = vec![0xee; headers.len()];
        headers.emit(&mut bytes);
        bytes.extend(payload);
        bytes.resize(bytes.len() + usize::from(padding), 0xee);
        pad_packet(&mut bytes, padding);
        bytes
    }

    proptest! {
        #[test]
        fn padding_goes_as_it_came(payload in prop::collection::vec(any::<u8>(), 1..1500), words in 1_u16..300) {
            let fill = (payload.len().wrapping_neg() & 3) as u16;
            let padding = 4 * words + fill;
            for &opcode in Opcode::ALL.iter().filter(|&&opcode| may_be_padded(opcode)) {
                let bytes = packet(opcode, &payload, padding);
                let parsed = Packet::parse_padded(&bytes).unwrap();
                prop_assert_eq!(parsed.payload, &payload[..]);
                prop_assert_eq!(parsed.opcode(), opcode);
                // To all others it is a packet of another version.
                prop_assert_eq!(Packet::parse(&bytes), Err(ParseError::BadVersion(1)));
                prop_assert_eq!(split_middle(&bytes), None);
            }
        }
    }

    #[test]
    fn the_layout_is_that_of_the_picture() {
        let bytes = packet(Opcode::RcWriteLast, &[1, 2, 3], 5);
        let header = [0x08, 0x41, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 9];
        assert_eq!(bytes[..Bth::LEN], header);
        assert_eq!(bytes[Bth::LEN..], [1, 2, 3, 0, 0, 0, 0, 5]);
    }

    #[test]
    fn padding_that_is_wrong_is_refused() {
        let good = packet(Opcode::RcSendLast, &[1, 2, 3, 4, 5, 6], 6);
        assert!(Packet::parse_padded(&good).is_ok());
        let end = good.len();
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            Packet::parse_padded(&bytes).unwrap_err()
        };
        for padding in [0, 1, 3, 12, 13, 0xff, 0x0106, 0xffff_u16] {
            let error = with(&|bytes| bytes[end - 2..].copy_from_slice(&padding.to_be_bytes()));
            assert_eq!(error, ParseError::BadPad, "{padding}");
        }
        // A payload of zeros looks like padding.
        for padding in [12, 13, 0xff, 0xffff_u16] {
            let error = with(&|bytes| {
                bytes[Bth::LEN..].fill(0);
                bytes[end - 2..].copy_from_slice(&padding.to_be_bytes());
            });
            assert_eq!(error, ParseError::BadPad, "{padding}");
        }
        assert_eq!(with(&|bytes| bytes[end - 3] = 1), ParseError::BadPad);
        assert_eq!(with(&|bytes| bytes[end - 6] = 1), ParseError::BadPad);
        assert_eq!(with(&|bytes| bytes[1] |= 0x10), ParseError::BadPad);
        assert_eq!(
            with(&|bytes| bytes.truncate(end - 1)),
            ParseError::BadLength
        );
        assert_eq!(with(&|bytes| bytes.truncate(Bth::LEN)), ParseError::BadPad);
        assert_eq!(with(&|bytes| bytes.truncate(8)), ParseError::Truncated);
        assert_eq!(with(&|bytes| bytes[1] ^= 1), ParseError::BadVersion(0));
        assert_eq!(with(&|bytes| bytes[1] ^= 3), ParseError::BadVersion(2));
        assert_eq!(
            with(&|bytes| bytes[0] = 0x1f),
            ParseError::UnknownOpcode(0x1f)
        );
    }

    #[test]
    fn other_packets_are_not_padded() {
        for &opcode in Opcode::ALL {
            let is_connected = opcode.transport() == crate::Transport::Rc;
            if !is_connected
                || may_be_padded(opcode)
                || opcode.has_atomic_eth()
                || opcode.has_atomic_ack()
            {
                continue;
            }
            let bytes = packet(opcode, &[1; 8], 8);
            assert_eq!(
                Packet::parse_padded(&bytes),
                Err(ParseError::BadPad),
                "{opcode}"
            );
        }
    }
}
