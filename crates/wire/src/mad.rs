//! Management datagram, 256 bytes: what queue pair 1 receives (IBTA 13.4.2 and 13.4.3).
//!
//! ```text
//!    0            1            2            3
//!   +------------+------------+------------+------------+
//!   | base ver 1 |   class    | class ver  |   method   |  0
//!   +------------+------------+------------+------------+
//!   |          status         |     class-specific      |  4
//!   +-------------------------+-------------------------+
//!   |                                                   |  8
//!   |                  transaction id                   |
//!   +-------------------------+-------------------------+
//!   |       attribute id      |        reserved         | 16
//!   +-------------------------+-------------------------+
//!   |                attribute modifier                 | 20
//!   +---------------------------------------------------+
//!   |           232 bytes, as the class says            | 24
//! ```

use crate::{Qkey, field};

/// Length of every management datagram in bytes.
pub const MAD_LEN: usize = 256;

/// Bytes behind the header.
pub const MAD_BODY_LEN: usize = MAD_LEN - MadHeader::LEN;

/// Q_Key of queue pair 1: every management datagram carries it (IBTA 10.2.5).
pub const GSI_QKEY: Qkey = Qkey(0x8001_0000);

/// Why bytes are not a management datagram, or not one of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// The datagram does not have [`MAD_LEN`] bytes.
    #[error("{0} bytes instead of 256")]
    Length(usize),
    /// The base version is not 1.
    #[error("base version {0} instead of 1")]
    BaseVersion(u8),
    /// The management class is not the expected one.
    #[error("management class {0:#04x}")]
    Class(u8),
    /// The version of the class is not the expected one.
    #[error("class version {0}")]
    ClassVersion(u8),
    /// The method is not Send: connection management has no other.
    #[error("method {0:#04x}")]
    Method(u8),
    /// The attribute id is not one of this crate's messages.
    #[error("attribute id {0:#06x}")]
    Attribute(u16),
    /// The path MTU code is not in 1..=5.
    #[error("path MTU code {0}")]
    PathMtu(u8),
    /// There is more additional information than its field holds.
    #[error("{0} bytes of additional information")]
    InfoLength(u8),
    /// The version of the IP addressing in the private data is not 0.
    #[error("version {0:#04x} of the IP addressing")]
    AddressingVersion(u8),
    /// The IP version in the private data is neither 4 nor 6.
    #[error("IP version {0}")]
    IpVersion(u8),
}

/// The header of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method, and in the high bit whether it is a response.
    pub method: u8,
    /// Status of a response.
    pub status: u16,
    /// Field whose meaning the class defines.
    pub class_specific: u16,
    /// Transaction id, which an answer repeats.
    pub transaction: u64,
    /// Attribute: the kind of the body.
    pub attribute: u16,
    /// Attribute modifier.
    pub modifier: u32,
}

impl MadHeader {
    /// Length in bytes.
    pub const LEN: usize = 24;

    /// Reads the header; reserved bits are ignored.
    ///
    /// # Errors
    /// [`MadError::Length`] and [`MadError::BaseVersion`].
    pub fn parse(mad: &[u8]) -> Result<(Self, &[u8; MAD_BODY_LEN]), MadError> {
        let mad: &[u8; MAD_LEN] = mad.try_into().map_err(|_| MadError::Length(mad.len()))?;
        let (header, body) = split(mad);
        let [base_version, class, class_version, method] = field::get::<0, 4, _>(header);
        if base_version != BASE_VERSION {
            return Err(MadError::BaseVersion(base_version));
        }
        let header = Self {
            class,
            class_version,
            method,
            status: u16::from_be_bytes(field::get::<4, 2, _>(header)),
            class_specific: u16::from_be_bytes(field::get::<6, 2, _>(header)),
            transaction: u64::from_be_bytes(field::get::<8, 8, _>(header)),
            attribute: u16::from_be_bytes(field::get::<16, 2, _>(header)),
            modifier: u32::from_be_bytes(field::get::<20, 4, _>(header)),
        };
        Ok((header, body))
    }

    /// The datagram of this header and `body`.
    pub fn emit(&self, body: &[u8; MAD_BODY_LEN]) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        let start = [BASE_VERSION, self.class, self.class_version, self.method];
        field::set::<0, 4, _>(&mut mad, start);
        field::set::<4, 2, _>(&mut mad, self.status.to_be_bytes());
        field::set::<6, 2, _>(&mut mad, self.class_specific.to_be_bytes());
        field::set::<8, 8, _>(&mut mad, self.transaction.to_be_bytes());
        field::set::<16, 2, _>(&mut mad, self.attribute.to_be_bytes());
        field::set::<20, 4, _>(&mut mad, self.modifier.to_be_bytes());
        field::set::<{ Self::LEN }, MAD_BODY_LEN, _>(&mut mad, *body);
        mad
    }
}

const BASE_VERSION: u8 = 1;

fn split(mad: &[u8; MAD_LEN]) -> (&[u8; MadHeader::LEN], &[u8; MAD_BODY_LEN]) {
    let (header, body) = mad
        .split_first_chunk()
        .expect("24 bytes are fewer than 256");
    let body = body.try_into().expect("256 without 24 bytes are 232");
    (header, body)
}
