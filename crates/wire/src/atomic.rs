//! Atomic extended transport headers: the request, 28 bytes (IBTA 9.3.4), and the answer, 8 bytes
//! (IBTA 9.5.3).
//!
//! ```text
//!  AtomicETH
//!   0                   1                   2                   3
//!   0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!  +---------------------------------------------------------------+
//!  |                        virtual address                        |
//!  |                                                               |
//!  +---------------------------------------------------------------+
//!  |                          remote key                           |
//!  +---------------------------------------------------------------+
//!  |              value to swap in, or value to add                |
//!  |                                                               |
//!  +---------------------------------------------------------------+
//!  |                       value to compare                        |
//!  |                                                               |
//!  +---------------------------------------------------------------+
//!
//!  AtomicAckETH
//!  +---------------------------------------------------------------+
//!  |                    value before the operation                 |
//!  |                                                               |
//!  +---------------------------------------------------------------+
//! ```
//!
//! Values are numbers, sent most significant byte first; memory holds them in the order of the
//! responder's host.

use crate::{Rkey, field};

/// Length of the atomic ACK extended header in bytes: the value before the operation, big-endian.
pub const ATOMIC_ACK_LEN: usize = 8;

/// Atomic extended header: a fetch-and-add or a compare-and-swap on eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AtomicEth {
    /// Address in the responder's process, a multiple of eight.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: Rkey,
    /// Value to store if the comparison holds, or value to add.
    pub swap_add: u64,
    /// Value to compare with; a fetch-and-add ignores it.
    pub compare: u64,
}

impl AtomicEth {
    /// Length in bytes.
    pub const LEN: usize = 28;

    /// Reads the header.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            va: u64::from_be_bytes(field::get::<0, 8, _>(bytes)),
            rkey: Rkey(u32::from_be_bytes(field::get::<8, 4, _>(bytes))),
            swap_add: u64::from_be_bytes(field::get::<12, 8, _>(bytes)),
            compare: u64::from_be_bytes(field::get::<20, 8, _>(bytes)),
        }
    }

    /// The header as it is sent.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        field::set::<0, 8, _>(&mut bytes, self.va.to_be_bytes());
        field::set::<8, 4, _>(&mut bytes, self.rkey.0.to_be_bytes());
        field::set::<12, 8, _>(&mut bytes, self.swap_add.to_be_bytes());
        field::set::<20, 8, _>(&mut bytes, self.compare.to_be_bytes());
        bytes
    }
}
