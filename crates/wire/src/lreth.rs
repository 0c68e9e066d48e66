//! Long READ extended transport header (LRETH), behind the RETH of a READ request: the payload of
//! each response packet except the last, if that is more than the path MTU. It is used only between
//! airdma hosts that have agreed on it (`docs/protocol.md`).
//!
//! ```text
//!   +------------+------------+-------------------------+
//!   |  version   |  reserved  |         payload         |
//!   +------------+------------+-------------------------+
//! ```
//!
//! In version 1 the response has the packets of RoCEv2, in version 2 middle ones of one length, of
//! which the last may be [padded](crate::padded).

use crate::packet::ParseError;

/// Version of a request for the packets of RoCEv2.
pub const LRETH_VERSION: u8 = 1;
/// Version of a request for packets of one length.
pub const LRETH_VERSION_EQUAL: u8 = 2;

/// How the responder must segment a READ response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lreth {
    /// Payload of each response packet except the last, in bytes.
    pub payload: u16,
    /// Whether all packets are middle ones, of one length.
    pub is_equal: bool,
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
        let is_equal = match version {
            LRETH_VERSION => false,
            LRETH_VERSION_EQUAL => true,
            _ => return Err(ParseError::BadVersion(version)),
        };
        if !rest.is_empty() {
            return Err(ParseError::BadLength);
        }
        Ok(Lreth {
            payload: u16::from_be_bytes([a, b]),
            is_equal,
        })
    }

    /// The header as it is sent.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let [a, b] = self.payload.to_be_bytes();
        let version = if self.is_equal {
            LRETH_VERSION_EQUAL
        } else {
            LRETH_VERSION
        };
        [version, 0, a, b]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_written_is_read(payload in any::<u16>(), is_equal in any::<bool>()) {
            let header = Lreth { payload, is_equal };
            prop_assert_eq!(Lreth::parse(&header.to_bytes()), Ok(header));
        }
    }

    #[test]
    fn the_layout_is_that_of_the_picture() {
        let header = |is_equal| {
            Lreth {
                payload: 1452,
                is_equal,
            }
            .to_bytes()
        };
        assert_eq!(header(false), [1, 0, 0x05, 0xac]);
        assert_eq!(header(true), [2, 0, 0x05, 0xac]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(Lreth::parse(&[1, 0, 5]), Err(ParseError::Truncated));
        assert_eq!(Lreth::parse(&[3, 0, 5, 0]), Err(ParseError::BadVersion(3)));
        assert_eq!(Lreth::parse(&[1, 0, 5, 0, 0]), Err(ParseError::BadLength));
        let later = Lreth::parse(&[1, 9, 5, 0]).unwrap();
        assert_eq!(later.payload, 0x500, "what is reserved is not looked at");
    }
}
