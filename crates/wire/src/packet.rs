//! A packet: its headers, in the order of the wire, and its payload (IBTA 9.1 and table 39).
//!
//! ```text
//! +---+----+------+----+----+---------+----+---------+-----+----+-------+---+
//! |BTH|DETH|XRCETH|FETH|RETH|AtomicETH|AETH|AtomicAck|ImmDt|IETH|payload|pad|
//! | 12| 8  |  4   | 4  | 16 |    28   | 4  |    8    |  4  | 4  |       |0-3|
//! +---+----+------+----+----+---------+----+---------+-----+----+-------+---+
//! ```
//!
//! The opcode determines which of the headers are present. The ICRC behind the pad is cut off
//! before parsing, and added after emitting.

use crate::opcode::UnknownOpcode;
use crate::padded::{self, PADDED_VERSION};
use crate::{
    ATOMIC_ACK_LEN, Aeth, AtomicEth, Bth, Deth, Feth, IETH_LEN, IMMEDIATE_LEN, Opcode, Reth, Rkey,
    XrcEth,
};

/// The most bytes that the headers of one packet take: BTH, XRCETH and AtomicETH.
pub const HEADERS_LEN_MAX: usize = Bth::LEN + XrcEth::LEN + AtomicEth::LEN;

/// Length of one header of each kind.
const ALL_LEN: usize = Bth::LEN
    + Deth::LEN
    + XrcEth::LEN
    + Feth::LEN
    + Reth::LEN
    + AtomicEth::LEN
    + Aeth::LEN
    + size_of::<u64>()
    + size_of::<[u8; 4]>()
    + size_of::<Rkey>();

/// The BTH and the payload of a packet from the middle of an RC SEND, WRITE or READ response.
///
/// Such a packet has no other header. `None` for all others; the pad and the payload's length are
/// not checked.
#[inline]
pub fn split_middle(bytes: &[u8]) -> Option<(Bth, &[u8])> {
    const SEND: u8 = Opcode::RcSendMiddle as u8;
    const WRITE: u8 = Opcode::RcWriteMiddle as u8;
    const READ_RESPONSE: u8 = Opcode::RcReadResponseMiddle as u8;
    let (header, payload) = bytes.split_first_chunk::<{ Bth::LEN }>()?;
    match header[0] {
        SEND | WRITE | READ_RESPONSE => Some((Bth::from_bytes(header).ok()?, payload)),
        _ => None,
    }
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The bytes end inside the headers that the opcode requires.
    #[error("the packet ends inside its headers")]
    Truncated,
    /// The first byte is not an opcode that this crate knows.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// The version is another one: of the transport header, not 0.
    #[error("unexpected version {0}")]
    BadVersion(u8),
    /// There are more pad bytes than bytes behind the headers, or a packet that says that it is
    /// padded is not.
    #[error("the padding does not fit the packet")]
    BadPad,
    /// The length of headers, payload and pad is not a multiple of four bytes.
    #[error("length is not a multiple of four")]
    BadLength,
}

impl From<UnknownOpcode> for ParseError {
    fn from(UnknownOpcode(opcode): UnknownOpcode) -> Self {
        ParseError::UnknownOpcode(opcode)
    }
}

/// The base transport header and the extended headers behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// Datagram extended header: UD.
    pub deth: Option<Deth>,
    /// XRC extended header: requests of an extended connection.
    pub xrceth: Option<XrcEth>,
    /// FLUSH extended header: FLUSH, which has a RETH behind it.
    pub feth: Option<Feth>,
    /// RDMA extended header: first packet of a WRITE, READ requests, FLUSH and ATOMIC WRITE.
    pub reth: Option<Reth>,
    /// Atomic extended header: atomic requests.
    pub atomic_eth: Option<AtomicEth>,
    /// ACK extended header: acknowledgements and READ responses, except middle ones.
    pub aeth: Option<Aeth>,
    /// Atomic ACK extended header: the value before the operation.
    pub atomic_ack: Option<u64>,
    /// Immediate data, in the order of the wire.
    pub imm: Option<[u8; 4]>,
    /// Invalidate extended header: the key to invalidate.
    pub ieth: Option<Rkey>,
}

impl Headers {
    /// A BTH with nothing behind it. Its opcode determines which of the other fields the caller
    /// must fill in.
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            deth: None,
            xrceth: None,
            feth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
        }
    }

    /// Bytes that [`emit`](Self::emit) writes, at most [`HEADERS_LEN_MAX`] when the headers fit the
    /// opcode.
    #[expect(
        clippy::len_without_is_empty,
        reason = "there is always a base transport header"
    )]
    #[inline]
    pub const fn len(&self) -> usize {
        let mut len = Bth::LEN;
        if self.deth.is_some() {
            len += Deth::LEN;
        }
        if self.xrceth.is_some() {
            len += XrcEth::LEN;
        }
        if self.reth.is_some() {
            len += Reth::LEN;
            if self.feth.is_some() {
                len += Feth::LEN;
            }
        }
        if self.atomic_eth.is_some() {
            len += AtomicEth::LEN;
        }
        if self.aeth.is_some() {
            len += Aeth::LEN;
        }
        if self.atomic_ack.is_some() {
            len += ATOMIC_ACK_LEN;
        }
        if self.imm.is_some() {
            len += IMMEDIATE_LEN;
        }
        if self.ieth.is_some() {
            len += IETH_LEN;
        }
        len
    }

    /// Whether exactly the headers that the opcode requires are present.
    pub const fn fit_opcode(&self) -> bool {
        let opcode = self.bth.opcode;
        self.deth.is_some() == opcode.has_deth()
            && self.xrceth.is_some() == opcode.has_xrceth()
            && self.feth.is_some() == opcode.has_feth()
            && self.reth.is_some() == opcode.has_reth()
            && self.atomic_eth.is_some() == opcode.has_atomic_eth()
            && self.aeth.is_some() == opcode.has_aeth()
            && self.atomic_ack.is_some() == opcode.has_atomic_ack()
            && self.imm.is_some() == opcode.has_imm()
            && self.ieth.is_some() == opcode.has_ieth()
    }

    /// Writes the headers to the start of `out` and returns their length, which is
    /// [`len`](Self::len).
    ///
    /// # Panics
    /// If `out` is shorter than that. Debug builds also check that the headers [fit the
    /// opcode](Self::fit_opcode).
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        debug_assert!(self.fit_opcode(), "{:?}", self);
        // In a buffer with room for any headers, the bounds are checked once, not for each.
        match out.first_chunk_mut::<ALL_LEN>() {
            Some(room) => self.write(room),
            None => self.write(out),
        }
    }

    #[inline(always)]
    fn write(&self, out: &mut [u8]) -> usize {
        let mut writer = Writer { out, at: 0 };
        writer.put(&self.bth.to_bytes());
        if let Some(deth) = self.deth {
            writer.put(&deth.to_bytes());
        }
        if let Some(xrceth) = self.xrceth {
            writer.put(&xrceth.to_bytes());
        }
        if let Some(reth) = self.reth {
            if let Some(feth) = self.feth {
                writer.put(&feth.to_bytes());
            }
            writer.put(&reth.to_bytes());
        }
        if let Some(atomic_eth) = self.atomic_eth {
            writer.put(&atomic_eth.to_bytes());
        }
        if let Some(aeth) = self.aeth {
            writer.put(&aeth.to_bytes());
        }
        if let Some(original) = self.atomic_ack {
            writer.put(&original.to_be_bytes());
        }
        if let Some(imm) = self.imm {
            writer.put(&imm);
        }
        if let Some(Rkey(rkey)) = self.ieth {
            writer.put(&rkey.to_be_bytes());
        }
        writer.at
    }

    #[inline(always)]
    fn read(bth: Bth, reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let mut headers = Headers::new(bth);
        let opcode = headers.bth.opcode;
        if opcode.has_deth_or_xrceth() {
            if opcode.has_deth() {
                headers.deth = Some(Deth::from_bytes(reader.take()?));
            } else {
                headers.xrceth = Some(XrcEth::from_bytes(reader.take()?));
            }
        }
        if opcode.has_reth() {
            if opcode.has_feth() {
                headers.feth = Some(Feth::from_bytes(reader.take()?));
            }
            headers.reth = Some(Reth::from_bytes(reader.take()?));
        }
        if opcode.has_atomic_eth() {
            headers.atomic_eth = Some(AtomicEth::from_bytes(reader.take()?));
        }
        if opcode.has_aeth() {
            headers.aeth = Some(Aeth::from_bytes(reader.take()?));
        }
        if opcode.has_atomic_ack() {
            headers.atomic_ack = Some(u64::from_be_bytes(*reader.take()?));
        }
        if opcode.has_imm() {
            headers.imm = Some(*reader.take()?);
        }
        if opcode.has_ieth() {
            headers.ieth = Some(Rkey(u32::from_be_bytes(*reader.take()?)));
        }
        Ok(headers)
    }
}

/// A received packet. The payload lies in the bytes it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The headers of the packet.
    pub headers: Headers,
    /// The payload, without the pad bytes.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet from the bytes between UDP header and ICRC.
    ///
    /// Only the format is checked: the transport decides whether a payload is allowed, and how long
    /// it must be. Pad bytes may have any value.
    ///
    /// # Errors
    /// Why the bytes are not a packet; the caller drops and counts them.
    #[inline(always)] // into the paths of packets in the clear and of sealed ones
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let mut reader = Reader { rest: bytes };
        let bth = Bth::from_bytes(reader.take()?)?;
        let headers = Headers::read(bth, &mut reader)?;
        if !bytes.len().is_multiple_of(4) {
            return Err(ParseError::BadLength);
        }
        let payload_len = reader
            .rest
            .len()
            .checked_sub(usize::from(headers.bth.pad))
            .ok_or(ParseError::BadPad)?;
        Ok(Packet {
            headers,
            payload: &reader.rest[..payload_len],
        })
    }

    /// Reads a [padded](crate::padded) packet; its padding is no part of the payload.
    ///
    /// # Errors
    /// Why the bytes are not a padded packet, [`ParseError::BadVersion`] for any other packet.
    pub fn parse_padded(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let mut reader = Reader { rest: bytes };
        let header = reader.take()?;
        match Bth::version(header) {
            PADDED_VERSION => {}
            version => return Err(ParseError::BadVersion(version)),
        }
        let headers = Headers::read(Bth::read(header)?, &mut reader)?;
        if !bytes.len().is_multiple_of(4) {
            return Err(ParseError::BadLength);
        }
        let payload = padded::payload(&headers.bth, reader.rest).ok_or(ParseError::BadPad)?;
        Ok(Packet { headers, payload })
    }

    /// Short for `headers.bth.opcode`.
    pub const fn opcode(&self) -> Opcode {
        self.headers.bth.opcode
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    #[inline(always)]
    fn put<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.out[self.at..self.at + N].copy_from_slice(bytes);
        self.at += N;
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline(always)]
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], ParseError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(ParseError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }
}

#[cfg(test)]
mod tests;
