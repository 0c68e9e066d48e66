//! FLUSH extended transport header (FETH), before the RETH of a FLUSH (IBTA A19.4.3).
//!
//! ```text
//!   0                                  25 26  27 28            31
//!  +-------------------------------------+------+----------------+
//!  |              reserved               | SEL  |      PLT       |
//!  +-------------------------------------+------+----------------+
//! ```

/// What a FLUSH waits for, and how much of the region it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement type, 4 bits: [`Feth::GLOBAL`], [`Feth::PERSISTENT`].
    pub placement: u8,
    /// Selectivity level, 2 bits: [`Feth::RANGE`] or [`Feth::REGION`].
    pub selectivity: u8,
}

impl Feth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Placement type: everything in the host sees the data.
    pub const GLOBAL: u8 = 1 << 0;
    /// Placement type: the data survives a loss of power.
    pub const PERSISTENT: u8 = 1 << 1;
    /// Selectivity level: the bytes that the RETH names.
    pub const RANGE: u8 = 0;
    /// Selectivity level: the whole region of the key.
    pub const REGION: u8 = 1;

    /// Reads the header from the start of a packet's rest. Reserved bits may have any value.
    #[inline]
    pub const fn from_bytes(&[.., last]: &[u8; Self::LEN]) -> Self {
        Feth {
            placement: last & 0xf,
            selectivity: last >> 4 & 0b11,
        }
    }

    /// The header as it is sent.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        [0, 0, 0, self.selectivity << 4 & 0x30 | self.placement & 0xf]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        for bits in 0..64 {
            let header = Feth {
                placement: bits & 0xf,
                selectivity: bits >> 4,
            };
            assert_eq!(Feth::from_bytes(&header.to_bytes()), header);
        }
    }

    #[test]
    fn the_layout_is_that_of_the_picture() {
        let header = Feth {
            placement: Feth::PERSISTENT,
            selectivity: Feth::REGION,
        };
        assert_eq!(header.to_bytes(), [0, 0, 0, 0x12]);
        assert_eq!(Feth::from_bytes(&[0xff, 0xff, 0xff, 0xd2]), header);
    }
}
