//! Messages of connection management: management datagrams of class 7 (IBTA 12.6 to 12.8 and
//! 12.11).
//!
//! ```text
//!  active side                     passive side
//!      | -------- REQ -------------->  |        connect
//!      | <------- MRA --------------   |          (I need time)
//!      | <------- REP --------------   |        accept, or REJ
//!      | -------- RTU -------------->  |        ready to use
//!      | -------- DREQ ------------->  |        disconnect: either side
//!      | <------- DREP --------------  |
//!      | -------- SIDR_REQ --------->  |        which queue pair of datagrams serves this?
//!      | <------- SIDR_REP ---------   |
//! ```
//!
//! Each message is a plain value with its private data in full length. Offsets in the files of the
//! messages count from the end of the header of the management datagram. Reserved bits are sent as
//! zero and ignored when received. Alternate paths of a live connection (LAP and APR) are not
//! supported.

mod drep;
mod dreq;
mod ip_addressing;
mod mra;
mod rej;
mod rep;
mod req;
mod rtu;
mod service_id;
mod sidr_rep;
mod sidr_req;

pub use drep::Drep;
pub use dreq::Dreq;
pub use ip_addressing::IpAddressing;
pub use mra::Mra;
pub use rej::{Rej, RejReason};
pub use rep::Rep;
pub use req::{PathRecord, Req, TransportService};
pub use rtu::Rtu;
pub use service_id::{PortSpace, ServiceId};
pub use sidr_rep::{SidrRep, SidrStatus};
pub use sidr_req::SidrReq;

use crate::field;
use crate::mad::{MAD_BODY_LEN, MAD_LEN, MadError, MadHeader};

/// A management datagram of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmMad {
    /// Transaction id, which an answer repeats.
    pub transaction: u64,
    /// The message that the datagram carries.
    pub message: CmMessage,
}

/// A message of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmMessage {
    /// Request for communication.
    Req(Req),
    /// Message receipt acknowledgement: more time is needed.
    Mra(Mra),
    /// Reject.
    Rej(Rej),
    /// Reply to a request.
    Rep(Rep),
    /// Ready to use.
    Rtu(Rtu),
    /// Request for disconnection.
    Dreq(Dreq),
    /// Reply to a request for disconnection.
    Drep(Drep),
    /// Service id resolution request.
    SidrReq(SidrReq),
    /// Service id resolution response.
    SidrRep(SidrRep),
}

impl CmMad {
    /// Management class of connection management.
    pub const CLASS: u8 = 0x07;
    /// Class version of connection management.
    pub const CLASS_VERSION: u8 = 2;

    /// Reads a datagram.
    ///
    /// # Errors
    /// What is wrong with it; the caller drops and counts it.
    pub fn parse(mad: &[u8]) -> Result<Self, MadError> {
        let (header, body) = MadHeader::parse(mad)?;
        if header.class != Self::CLASS {
            return Err(MadError::Class(header.class));
        }
        if header.class_version != Self::CLASS_VERSION {
            return Err(MadError::ClassVersion(header.class_version));
        }
        if header.method != METHOD_SEND {
            return Err(MadError::Method(header.method));
        }
        Ok(Self {
            transaction: header.transaction,
            message: CmMessage::parse(header.attribute, body)?,
        })
    }

    /// The datagram as it is sent.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let header = MadHeader {
            class: Self::CLASS,
            class_version: Self::CLASS_VERSION,
            method: METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction: self.transaction,
            attribute: self.message.attribute(),
            modifier: 0,
        };
        header.emit(&self.message.body())
    }
}

impl CmMessage {
    /// Attribute id of the message (IBTA 12.6).
    pub const fn attribute(&self) -> u16 {
        match self {
            CmMessage::Req(_) => REQ,
            CmMessage::Mra(_) => MRA,
            CmMessage::Rej(_) => REJ,
            CmMessage::Rep(_) => REP,
            CmMessage::Rtu(_) => RTU,
            CmMessage::Dreq(_) => DREQ,
            CmMessage::Drep(_) => DREP,
            CmMessage::SidrReq(_) => SIDR_REQ,
            CmMessage::SidrRep(_) => SIDR_REP,
        }
    }

    /// Name of the message in the specification (IBTA 12.6).
    pub const fn name(&self) -> &'static str {
        match self {
            CmMessage::Req(_) => "REQ",
            CmMessage::Mra(_) => "MRA",
            CmMessage::Rej(_) => "REJ",
            CmMessage::Rep(_) => "REP",
            CmMessage::Rtu(_) => "RTU",
            CmMessage::Dreq(_) => "DREQ",
            CmMessage::Drep(_) => "DREP",
            CmMessage::SidrReq(_) => "SIDR_REQ",
            CmMessage::SidrRep(_) => "SIDR_REP",
        }
    }

    fn parse(attribute: u16, body: &[u8; MAD_BODY_LEN]) -> Result<Self, MadError> {
        Ok(match attribute {
            REQ => CmMessage::Req(Req::from_body(body)?),
            MRA => CmMessage::Mra(Mra::from_body(body)),
            REJ => CmMessage::Rej(Rej::from_body(body)?),
            REP => CmMessage::Rep(Rep::from_body(body)),
            RTU => CmMessage::Rtu(Rtu::from_body(body)),
            DREQ => CmMessage::Dreq(Dreq::from_body(body)),
            DREP => CmMessage::Drep(Drep::from_body(body)),
            SIDR_REQ => CmMessage::SidrReq(SidrReq::from_body(body)),
            SIDR_REP => CmMessage::SidrRep(SidrRep::from_body(body)?),
            unknown => return Err(MadError::Attribute(unknown)),
        })
    }

    fn body(&self) -> [u8; MAD_BODY_LEN] {
        match self {
            CmMessage::Req(req) => req.body(),
            CmMessage::Mra(mra) => mra.body(),
            CmMessage::Rej(rej) => rej.body(),
            CmMessage::Rep(rep) => rep.body(),
            CmMessage::Rtu(rtu) => rtu.body(),
            CmMessage::Dreq(dreq) => dreq.body(),
            CmMessage::Drep(drep) => drep.body(),
            CmMessage::SidrReq(request) => request.body(),
            CmMessage::SidrRep(response) => response.body(),
        }
    }
}

/// Which message an [`Mra`] or a [`Rej`] is about: two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// A request.
    Req,
    /// A reply.
    Rep,
    /// In a reject: no particular message. In an [`Mra`]: the load of an alternate path.
    Other,
    /// The value that the specification reserves.
    Reserved,
}

impl About {
    fn from_high_bits(byte: u8) -> Self {
        match byte >> 6 {
            0 => About::Req,
            1 => About::Rep,
            2 => About::Other,
            _ => About::Reserved,
        }
    }

    fn high_bits(self) -> u8 {
        (self as u8) << 6
    }
}

const METHOD_SEND: u8 = 0x03;

const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

type Body = [u8; MAD_BODY_LEN];

fn get_u16<const AT: usize>(body: &Body) -> u16 {
    u16::from_be_bytes(field::get::<AT, 2, _>(body))
}

fn get_u32<const AT: usize>(body: &Body) -> u32 {
    u32::from_be_bytes(field::get::<AT, 4, _>(body))
}

fn get_u64<const AT: usize>(body: &Body) -> u64 {
    u64::from_be_bytes(field::get::<AT, 8, _>(body))
}

/// A 24-bit number with one byte below it.
fn get_24_and_byte<const AT: usize>(body: &Body) -> (u32, u8) {
    let word = get_u32::<AT>(body);
    (word >> 8, word as u8)
}

fn set_u16<const AT: usize>(body: &mut Body, value: u16) {
    field::set::<AT, 2, _>(body, value.to_be_bytes());
}

fn set_u32<const AT: usize>(body: &mut Body, value: u32) {
    field::set::<AT, 4, _>(body, value.to_be_bytes());
}

fn set_u64<const AT: usize>(body: &mut Body, value: u64) {
    field::set::<AT, 8, _>(body, value.to_be_bytes());
}

fn set_24_and_byte<const AT: usize>(body: &mut Body, high: u32, byte: u8) {
    set_u32::<AT>(body, high << 8 | u32::from(byte));
}

#[cfg(test)]
mod tests;
