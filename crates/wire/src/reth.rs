//! RDMA extended transport header, 16 bytes (IBTA 9.3.3).
//!
//! ```text
//!   0                   1                   2                   3
//!   0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!  +---------------------------------------------------------------+
//!  |                        virtual address                        |
//!  |                                                               |
//!  +---------------------------------------------------------------+
//!  |                          remote key                           |
//!  +---------------------------------------------------------------+
//!  |                          DMA length                           |
//!  +---------------------------------------------------------------+
//! ```

use crate::{Rkey, field};

/// RDMA extended header: the remote memory of a WRITE or READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reth {
    /// Address in the responder's process.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: Rkey,
    /// Bytes of the whole message, over all its packets.
    pub length: u32,
}

impl Reth {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Reads the header.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            va: u64::from_be_bytes(field::get::<0, 8, _>(bytes)),
            rkey: Rkey(u32::from_be_bytes(field::get::<8, 4, _>(bytes))),
            length: u32::from_be_bytes(field::get::<12, 4, _>(bytes)),
        }
    }

    /// The header as it is sent.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        field::set::<0, 8, _>(&mut bytes, self.va.to_be_bytes());
        field::set::<8, 4, _>(&mut bytes, self.rkey.0.to_be_bytes());
        field::set::<12, 4, _>(&mut bytes, self.length.to_be_bytes());
        bytes
    }
}
