//! Long READ extended transport header (LRETH), behind the RETH of a READ request: the payload of
//! each response packet except the last, if that is more than the path MTU. It is used only between
//! airdma hosts that have agreed on it (`docs/protocol.md`).
//!
//! ```text
//!   +------------+------------+-------------------------+
//!   | version 1  |  reserved  |         payload         |
//!   +------------+------------+-------------------------+
//! ```

use crate::packet::ParseError;

/// Version of this format.
pub const LRETH_VERSION: u8 = 1;

/// How the responder must segment a READ response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lreth {
    /// Payload of each response packet except the last, in bytes.
    pub payload: u16,
}

impl Lreth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads what follows the RETH, to the end of the packet.
    ///
    /// # Errors
    /// If it is too short or too long, or has another version.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let (&[version, _, a, b], rest) = bytes
            .split_first_chunk::<{ Self::LEN }>()
            .ok_or(ParseError::Truncated)?;
        if version != LRETH_VERSION {
            return Err(ParseError::BadVersion(version));
        }
        if !rest.is_empty() {
            return Err(ParseError::BadLength);
        }
        Ok(Lreth {
            payload: u16::from_be_bytes([a, b]),
        })
    }

    /// The header as it is sent.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let [a, b] = self.payload.to_be_bytes();
        [LRETH_VERSION, 0, a, b]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_written_is_read(payload in any::<u16>()) {
            let header = Lreth { payload };
            prop_assert_eq!(Lreth::parse(&header.to_bytes()), Ok(header));
        }
    }

    #[test]
    fn the_layout_is_that_of_the_picture() {
        assert_eq!(Lreth { payload: 1452 }.to_bytes(), [1, 0, 0x05, 0xac]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(Lreth::parse(&[1, 0, 5]), Err(ParseError::Truncated));
        assert_eq!(Lreth::parse(&[2, 0, 5, 0]), Err(ParseError::BadVersion(2)));
        assert_eq!(Lreth::parse(&[1, 0, 5, 0, 0]), Err(ParseError::BadLength));
        let later = Lreth::parse(&[1, 9, 5, 0]).unwrap();
        assert_eq!(later.payload, 0x500, "what is reserved is not looked at");
    }
}
