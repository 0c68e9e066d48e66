//! XRC extended transport header, 4 bytes (IBTA A14.3.2).
//!
//! ```text
//!   0                   1                   2                   3
//!   0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!  +---------------+-----------------------------------------------+
//!  |   reserved    |            shared receive queue               |
//!  +---------------+-----------------------------------------------+
//! ```

use crate::field;

/// XRC extended header: the shared receive queue of the responder that a message goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct XrcEth {
    /// Number of the shared receive queue, 24 bits.
    pub srqn: u32,
}

impl XrcEth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let (_reserved, srqn) = field::split_24(*bytes);
        Self { srqn }
    }

    /// The header as it is sent; the low 24 bits of the number count.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        field::byte_and_24(0, self.srqn)
    }
}
