//! Datagram extended transport header, 8 bytes (IBTA 9.3.2).
//!
//! ```text
//!   0                   1                   2                   3
//!   0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!  +---------------------------------------------------------------+
//!  |                           queue key                           |
//!  +---------------+-----------------------------------------------+
//!  |   reserved    |               source queue pair               |
//!  +---------------+-----------------------------------------------+
//! ```

use crate::{Qkey, Qpn, field};

/// Datagram extended header: source queue pair of a datagram, and the key to its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Deth {
    /// Must equal the queue key of the receiving queue pair.
    pub qkey: Qkey,
    /// Queue pair that sent the datagram, and that an answer goes to.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let (_reserved, src_qpn) = field::split_24(field::get::<4, 4, _>(bytes));
        Self {
            qkey: Qkey(u32::from_be_bytes(field::get::<0, 4, _>(bytes))),
            src_qpn: Qpn::new(src_qpn),
        }
    }

    /// The header as it is sent.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        field::set::<0, 4, _>(&mut bytes, self.qkey.0.to_be_bytes());
        field::set::<4, 4, _>(&mut bytes, field::byte_and_24(0, self.src_qpn.get()));
        bytes
    }
}
