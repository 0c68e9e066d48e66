//! A packet of a Write-Record: part of a message that an unreliable datagram writes into memory of
//! its receiver, which logs what arrived (`docs/protocol.md`, "Records"). Only airdma hosts know
//! it; to other implementations it is a packet with an unknown opcode.
//!
//! ```text
//!    0            1            2            3
//!   +------------+------------+------------+------------+
//!   |   BTH with the opcode 0xc0                        |  0
//!   |   DETH                                            | 12
//!   |   RETH: address and length of the whole message   | 20
//!   +---------------------------------------------------+
//!   |                     message id                    | 36
//!   +---------------------------------------------------+
//!   |           offset of the payload: k units          | 40
//!   +-------------------------+------------+------------+
//!   |          unit           |version|NSRI|   round    | 44
//!   +-------------------------+------------+------------+
//!   |           token, 8 bytes, if R is set             | 48    R: the message is acknowledged
//!   |           nonce, 8 bytes, if N is set             |       N: the record was asked for
//!   |           immediate data, if I is set             |       I: immediate data follow
//!   |   payload, pad                                    |       S: a SEND, not a record
//!   |   ICRC                                            |
//! ```
//!
//! Each packet describes the whole message, so any of them suffices to begin it. All but the one at
//! the end of the message carry one unit. The target answers packets of an acknowledged message
//! with a [`RecordAck`].

mod ack;
mod echo;
mod read;

use std::net::IpAddr;

use crate::ip::{IPV4_LEN, IPV6_LEN};
use crate::udp::UDP_LEN;
use crate::{
    Bth, Deth, GRH_LEN, HEADERS_LEN_MAX, ICRC_LEN, IMMEDIATE_LEN, Neighbour, Opcode, ParseError,
    PathMtu, Reth, field,
};

pub use ack::{RECORD_ACK_LEN, RECORD_ACK_OPCODE, RecordAck, RecordAnswer};
pub use echo::{RECORD_ECHO_LEN, RECORD_ECHO_OPCODE, RecordEcho};
pub use read::{
    READ_RANGES_MAX, RECORD_READ_LEN, RECORD_READ_LEN_MAX, RECORD_READ_OPCODE, ReadRanges,
    RecordRead, RecordReadKind, UnitRange,
};

/// First byte of a packet of a Write-Record: the first of the opcodes left to manufacturers (IBTA
/// table 39).
pub const RECORD_OPCODE: u8 = 0xc0;
/// Version of the header.
pub const RECORD_VERSION: u8 = 1;
/// Bytes of the headers, BTH to RCETH.
pub const RECORD_HEADERS_LEN: usize = Bth::LEN + Deth::LEN + Reth::LEN + Rceth::LEN;
/// Most bytes of payload: such a packet, with immediate data, is no longer than a packet of RoCEv2
/// can be.
pub const RECORD_PAYLOAD_MAX: u32 =
    PathMtu::M4096.bytes() - (RECORD_HEADERS_LEN + IMMEDIATE_LEN - HEADERS_LEN_MAX) as u32;

/// Bytes of the token of an acknowledged message, and of the nonce of one that was asked for.
pub const RECORD_TOKEN_LEN: usize = 8;

const IMMEDIATE: u8 = 1;
const RELIABLE: u8 = 2;
const SEND: u8 = 4;
const READ: u8 = 8;

/// Record extended header, 12 bytes: which part of which message the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rceth {
    /// Number of the message. A queue pair numbers its messages in the order of posting.
    pub id: u32,
    /// Bytes of the message before the payload.
    pub offset: u32,
    /// Payload of each packet of the message but the one at its end.
    pub unit: u16,
    /// In an acknowledged message, how many of its packets before this one had the AckReq bit,
    /// modulo 256: the answer to this packet has it, too. 0 in others.
    pub round: u8,
}

impl Rceth {
    /// Length in bytes.
    pub const LEN: usize = 12;

    fn from_bytes(bytes: &[u8; Self::LEN]) -> (Self, u8) {
        let header = Rceth {
            id: u32::from_be_bytes(field::get::<0, 4, _>(bytes)),
            offset: u32::from_be_bytes(field::get::<4, 4, _>(bytes)),
            unit: u16::from_be_bytes(field::get::<8, 2, _>(bytes)),
            round: bytes[11],
        };
        (header, bytes[10])
    }

    fn to_bytes(self, flags: u8) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        field::set::<0, 4, _>(&mut bytes, self.id.to_be_bytes());
        field::set::<4, 4, _>(&mut bytes, self.offset.to_be_bytes());
        field::set::<8, 2, _>(&mut bytes, self.unit.to_be_bytes());
        bytes[10] = RECORD_VERSION << 4 | flags;
        bytes[11] = self.round;
        bytes
    }
}

/// All headers of a packet of a Write-Record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeaders {
    /// Base transport header. Its opcode is that of a UD SEND, and is not sent.
    pub bth: Bth,
    /// Queue key, and the queue pair that sends the message.
    pub deth: Deth,
    /// The memory of the whole message.
    pub reth: Reth,
    /// The part of it.
    pub rceth: Rceth,
    /// The message is a SEND: it goes to a posted receive, and address and key are 0.
    pub is_send: bool,
    /// A number that the answers to an acknowledged message repeat. Only hosts on the path know it.
    pub token: Option<u64>,
    /// The nonce of the request for the message ([`RecordRead`]), if it was asked for. Address and
    /// key are 0.
    pub read: Option<u64>,
    /// Immediate data, the same in all packets of a message.
    pub imm: Option<[u8; 4]>,
}

impl RecordHeaders {
    /// Bytes that [`emit`](Self::emit) writes.
    #[expect(clippy::len_without_is_empty, reason = "there are always headers")]
    #[inline]
    pub const fn len(&self) -> usize {
        let numbers = self.token.is_some() as usize + self.read.is_some() as usize;
        let token = numbers * RECORD_TOKEN_LEN;
        let imm = if self.imm.is_some() { IMMEDIATE_LEN } else { 0 };
        RECORD_HEADERS_LEN + token + imm
    }

    /// Writes the headers to the start of `out` and returns their length.
    ///
    /// # Panics
    /// If `out` is shorter than that.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let (fixed, rest) = out
            .split_first_chunk_mut::<RECORD_HEADERS_LEN>()
            .expect("a buffer for the longest packet");
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.imm.is_some(), IMMEDIATE)
            | flag(self.token.is_some(), RELIABLE)
            | flag(self.is_send, SEND)
            | flag(self.read.is_some(), READ);
        let mut bth = self.bth.to_bytes();
        bth[0] = RECORD_OPCODE;
        field::set::<0, { Bth::LEN }, _>(fixed, bth);
        field::set::<DETH_AT, { Deth::LEN }, _>(fixed, self.deth.to_bytes());
        field::set::<RETH_AT, { Reth::LEN }, _>(fixed, self.reth.to_bytes());
        field::set::<RCETH_AT, { Rceth::LEN }, _>(fixed, self.rceth.to_bytes(flags));
        let mut at = 0;
        for number in [self.token, self.read].into_iter().flatten() {
            rest[at..][..RECORD_TOKEN_LEN].copy_from_slice(&number.to_be_bytes());
            at += RECORD_TOKEN_LEN;
        }
        if let Some(imm) = self.imm {
            rest[at..][..IMMEDIATE_LEN].copy_from_slice(&imm);
        }
        self.len()
    }
}

const DETH_AT: usize = Bth::LEN;
const RETH_AT: usize = DETH_AT + Deth::LEN;
const RCETH_AT: usize = RETH_AT + Reth::LEN;

/// A received packet of a Write-Record. The payload lies in the bytes it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPacket<'a> {
    /// The headers of the packet.
    pub headers: RecordHeaders,
    /// The payload, without the pad bytes.
    pub payload: &'a [u8],
}

impl<'a> RecordPacket<'a> {
    /// Reads a packet from the bytes between UDP header and ICRC. Only the format is checked.
    ///
    /// # Errors
    /// Why the bytes are no such packet; [`ParseError::UnknownOpcode`] for any other packet.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        match bytes.first() {
            Some(&RECORD_OPCODE) => {}
            Some(&other) => return Err(ParseError::UnknownOpcode(other)),
            None => return Err(ParseError::Truncated),
        }
        let (fixed, mut rest) = bytes
            .split_first_chunk::<RECORD_HEADERS_LEN>()
            .ok_or(ParseError::Truncated)?;
        let mut bth: [u8; Bth::LEN] = field::get::<0, { Bth::LEN }, _>(fixed);
        bth[0] = Opcode::UdSendOnly as u8;
        let bth = Bth::from_bytes(&bth)?;
        let (rceth, flags) = Rceth::from_bytes(&field::get::<RCETH_AT, { Rceth::LEN }, _>(fixed));
        if flags >> 4 != RECORD_VERSION {
            return Err(ParseError::BadVersion(flags >> 4));
        }
        let (mut token, mut read, mut imm) = (None, None, None);
        if flags & RELIABLE != 0 {
            let (data, behind) = rest.split_first_chunk().ok_or(ParseError::Truncated)?;
            (token, rest) = (Some(u64::from_be_bytes(*data)), behind);
        }
        if flags & READ != 0 {
            let (data, behind) = rest.split_first_chunk().ok_or(ParseError::Truncated)?;
            (read, rest) = (Some(u64::from_be_bytes(*data)), behind);
        }
        if flags & IMMEDIATE != 0 {
            let (data, behind) = rest.split_first_chunk().ok_or(ParseError::Truncated)?;
            (imm, rest) = (Some(*data), behind);
        }
        if !bytes.len().is_multiple_of(4) {
            return Err(ParseError::BadLength);
        }
        let len = rest.len().checked_sub(usize::from(bth.pad));
        let payload = &rest[..len.ok_or(ParseError::BadPad)?];
        let headers = RecordHeaders {
            bth,
            deth: Deth::from_bytes(&field::get::<DETH_AT, { Deth::LEN }, _>(fixed)),
            reth: Reth::from_bytes(&field::get::<RETH_AT, { Reth::LEN }, _>(fixed)),
            rceth,
            is_send: flags & SEND != 0,
            token,
            read,
            imm,
        };
        Ok(RecordPacket { headers, payload })
    }
}

/// Largest payload of a packet of a Write-Record, with immediate data, to `to` through an interface
/// with this MTU: a whole number of words. The packets of an acknowledged message have room for
/// [`RECORD_TOKEN_LEN`] bytes less.
pub fn record_payload(interface_mtu: u32, to: Neighbour) -> u32 {
    let network = match to.ip() {
        Some(IpAddr::V4(_)) => IPV4_LEN + UDP_LEN,
        Some(IpAddr::V6(_)) => IPV6_LEN + UDP_LEN,
        None => GRH_LEN,
    };
    let headers = network + RECORD_HEADERS_LEN + IMMEDIATE_LEN + ICRC_LEN;
    let room = interface_mtu.saturating_sub(headers as u32);
    room.min(RECORD_PAYLOAD_MAX) & !3
}

#[cfg(test)]
mod tests;
