//! Base transport header, 12 bytes (IBTA 9.2).
//!
//! ```text
//!   0                   1                   2                   3
//!   0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!  +---------------+-+-+---+-------+-------------------------------+
//!  |    opcode     |S|M|pad| TVer  |        partition key          |
//!  +-+-+-----------+-+-+---+-------+-------------------------------+
//!  |F|B| reserved  |        destination queue pair                 |
//!  +-+-+-----------+-----------------------------------------------+
//!  |A|  reserved   |        packet sequence number                 |
//!  +-+-------------+-----------------------------------------------+
//!   S solicited event   M migration state   F FECN   B BECN   A acknowledge request
//! ```
//!
//! Reserved bits are sent as zero and ignored when received, except between hosts that have agreed
//! on a [`tag`](Bth::tag), which uses them. The transport version (TVer) is 0, and 1 in a
//! [padded](crate::padded) packet.

use crate::field;
use crate::{Opcode, ParseError, Psn, Qpn};

/// Base transport header: starts every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet does, and which headers follow.
    pub opcode: Opcode,
    /// The responder raises a solicited event when the message completes.
    pub solicited: bool,
    /// Path migration state: hardware sends true (migrated), rxe false. Receivers accept both.
    pub migreq: bool,
    /// Bytes (0..=3) between payload and ICRC that fill the payload up to a multiple of four.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification: set in a CNP.
    pub becn: bool,
    /// Queue pair that the packet is for.
    pub dest_qpn: Qpn,
    /// The requester wants an acknowledgement of this packet.
    pub ack_request: bool,
    /// Place of the packet in the stream of its queue pair.
    pub psn: Psn,
    /// The 13 reserved bits as received: 6 of byte 4 above 7 of byte 8.
    ///
    /// Zero and without meaning in standard RoCEv2. [`mark`](Self::mark) writes them.
    pub tag: u16,
}

impl Bth {
    /// Length in bytes.
    pub const LEN: usize = 12;

    /// Partition key of the default partition, full member: the only one that RoCEv2 peers are sure
    /// to share.
    pub const PKEY_DEFAULT: u16 = 0xffff;

    /// A header with no flags but `migreq` (as hardware sends it), no pad, and the default
    /// partition.
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migreq: true,
            pad: 0,
            pkey: Self::PKEY_DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_request: false,
            psn,
            tag: 0,
        }
    }

    /// Reads the header.
    ///
    /// # Errors
    /// [`ParseError::BadVersion`] when the transport version is not 0,
    /// [`ParseError::UnknownOpcode`].
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        match Self::version(bytes) {
            0 => Self::read(bytes),
            version => Err(ParseError::BadVersion(version)),
        }
    }

    /// The transport version of a header.
    #[inline]
    pub(crate) fn version(bytes: &[u8; Self::LEN]) -> u8 {
        bytes[1] & 0x0f
    }

    /// Reads a header of any version.
    #[inline(always)]
    pub(crate) fn read(bytes: &[u8; Self::LEN]) -> Result<Self, ParseError> {
        let [opcode, flags] = field::get::<0, 2, _>(bytes);
        let (congestion, dest_qpn) = field::split_24(field::get::<4, 4, _>(bytes));
        let (ack, psn) = field::split_24(field::get::<8, 4, _>(bytes));
        Ok(Self {
            opcode: Opcode::try_from(opcode)?,
            solicited: flags & 0x80 != 0,
            migreq: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            pkey: u16::from_be_bytes(field::get::<2, 2, _>(bytes)),
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            dest_qpn: Qpn::new(dest_qpn),
            ack_request: ack & 0x80 != 0,
            psn: Psn::new(psn),
            tag: u16::from(congestion & 0x3f) << 7 | u16::from(ack & 0x7f),
        })
    }

    /// Writes a tag into a header without one.
    #[inline]
    pub fn mark(header: &mut [u8; Self::LEN], tag: u16) {
        header[4] |= (tag >> 7) as u8 & 0x3f;
        header[8] |= tag as u8 & 0x7f;
    }

    /// Changes the PSN and the acknowledge request bit of a header.
    #[inline]
    pub fn set_place(header: &mut [u8; Self::LEN], psn: Psn, ack_request: bool) {
        let ack = u8::from(ack_request) << 7 | header[8] & 0x7f;
        field::set::<8, 4, _>(header, field::byte_and_24(ack, psn.get()));
    }

    /// The header as it is sent without a tag; the low two bits of `pad` count.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.with_reserved(0, 0)
    }

    /// The header as it is sent with a tag.
    #[inline]
    pub fn to_bytes_with(&self, tag: u16) -> [u8; Self::LEN] {
        self.with_reserved((tag >> 7) as u8 & 0x3f, tag as u8 & 0x7f)
    }

    #[inline]
    fn with_reserved(&self, high: u8, low: u8) -> [u8; Self::LEN] {
        let flags =
            u8::from(self.solicited) << 7 | u8::from(self.migreq) << 6 | (self.pad & 3) << 4;
        let congestion = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6 | high;
        let ack = u8::from(self.ack_request) << 7 | low;

        let mut bytes = [0; Self::LEN];
        field::set::<0, 2, _>(&mut bytes, [self.opcode as u8, flags]);
        field::set::<2, 2, _>(&mut bytes, self.pkey.to_be_bytes());
        field::set::<4, 4, _>(
            &mut bytes,
            field::byte_and_24(congestion, self.dest_qpn.get()),
        );
        field::set::<8, 4, _>(&mut bytes, field::byte_and_24(ack, self.psn.get()));
        bytes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_tag_uses_the_reserved_bits_and_changes_no_others() {
        let mut bth = Bth::new(Opcode::RcSendOnly, Qpn::new(0xff_ffff), Psn::new(0));
        bth.becn = true;
        bth.ack_request = true;
        for tag in [0, 1, 0x7f, 0x80, 0x1555, 0x1fff] {
            let mut bytes = bth.to_bytes();
            Bth::mark(&mut bytes, tag);
            assert_eq!(bth.to_bytes_with(tag), bytes);
            assert_eq!(Bth::from_bytes(&bytes).unwrap(), Bth { tag, ..bth });
            let (psn, ack_request) = (Psn::new(0xab_cdef), false);
            let placed = Bth {
                tag,
                psn,
                ack_request,
                ..bth
            };
            Bth::set_place(&mut bytes, psn, ack_request);
            assert_eq!(Bth::from_bytes(&bytes).unwrap(), placed);
        }
    }
}
