//! ACK extended transport header, 4 bytes (IBTA 9.3.5, tables 43 to 45).
//!
//! ```text
//!   0                   1                   2                   3
//!   0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!  +-+---+---------+-----------------------------------------------+
//!  |0|typ|  value  |            message sequence number            |
//!  +-+---+---------+-----------------------------------------------+
//!   type 00 ACK, value = credit code (31: credits are not used)
//!        01 RNR NAK, value = timer code
//!        11 NAK, value = reason
//! ```

use crate::field;

/// ACK extended header: how far the responder got, or why it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What is acknowledged or refused.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, modulo 2^24.
    pub msn: u32,
}

impl Aeth {
    /// First byte of the ACK extended header.
    ///
    /// Every byte is one syndrome, and every syndrome read from a byte encodes to that byte.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let (syndrome, msn) = field::split_24(*bytes);
        Self {
            syndrome: syndrome.into(),
            msn,
        }
    }

    /// The header as it is sent; the low 24 bits of `msn` count.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        field::byte_and_24(self.syndrome.into(), self.msn)
    }
}

/// First byte of the ACK extended header. Every byte is one syndrome, and every syndrome read from
/// a byte gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Positive acknowledgement.
    Ack {
        /// Credit code (0..=31) of end-to-end flow control; see [`Syndrome::CREDITS_UNUSED`].
        credits: u8,
    },
    /// The responder had no receive posted: try again after a time.
    RnrNak {
        /// Code (0..=31) of [`rnr_timer`](crate::rnr_timer).
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// A byte that the specification reserves, as it was received.
    Reserved(u8),
}

impl Syndrome {
    /// Credit code of a responder that does not use end-to-end flow control.
    pub const CREDITS_UNUSED: u8 = 0x1f;
}

impl From<u8> for Syndrome {
    #[inline]
    fn from(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0b000 => Syndrome::Ack { credits: value },
            0b001 => Syndrome::RnrNak { timer: value },
            0b011 => Syndrome::Nak(value.into()),
            _ => Syndrome::Reserved(byte),
        }
    }
}

impl From<Syndrome> for u8 {
    /// The byte as it is sent; the low five bits of a credit or timer code count.
    #[inline]
    fn from(syndrome: Syndrome) -> u8 {
        match syndrome {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 0b001 << 5 | timer & 0x1f,
            Syndrome::Nak(code) => 0b011 << 5 | u8::from(code),
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// Why a request was refused (IBTA table 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet before this one is missing: send again from the sequence number of the NAK.
    PsnSequenceError,
    /// The request is malformed, too long, or not supported.
    InvalidRequest,
    /// The key, the bounds or the rights of the remote memory do not allow it.
    RemoteAccessError,
    /// The responder could not complete the request for a reason on its own side.
    RemoteOperationalError,
    /// Reliable datagram only: the request does not fit its end-to-end context.
    InvalidRdRequest,
    /// A code that the specification reserves (5..=31), as it was received.
    Reserved(u8),
}

impl From<u8> for NakCode {
    /// The code of the low five bits.
    #[inline]
    fn from(code: u8) -> Self {
        match code & 0x1f {
            0 => NakCode::PsnSequenceError,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccessError,
            3 => NakCode::RemoteOperationalError,
            4 => NakCode::InvalidRdRequest,
            reserved => NakCode::Reserved(reserved),
        }
    }
}

impl From<NakCode> for u8 {
    #[inline]
    fn from(code: NakCode) -> u8 {
        match code {
            NakCode::PsnSequenceError => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccessError => 2,
            NakCode::RemoteOperationalError => 3,
            NakCode::InvalidRdRequest => 4,
            NakCode::Reserved(code) => code & 0x1f,
        }
    }
}
