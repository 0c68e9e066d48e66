//! Messages on a lane: a header of 16 bytes, then the payload.

/// Length of the header.
pub const HEADER_BYTES: usize = 16;
/// Longest message.
pub const MESSAGE_BYTES: usize = 32 * 1024;
/// Version of this protocol, in the first message of each end.
pub const VERSION: u8 = 3;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of the stream; takes a credit.
    Data = 1,
    /// Nothing but the header's credits and tokens.
    Credits = 2,
    /// The sender hands the connection back to the kernel: it writes no more to the lane, and takes
    /// the peer's stream from the kernel from byte `value` of what was sent on the lane on.
    Back = 3,
    /// First message of each end: an element of the proof, and of the second end its confirmation.
    Hello = 4,
    /// The confirmation of the first end.
    Confirm = 5,
    /// The sender writes to the lane from byte `value` of the stream on.
    Ready = 6,
    /// The sender knows from which byte on the peer writes to the lane.
    Go = 7,
    /// The sender's program has read all of the peer's stream that went by the kernel before.
    Drained = 8,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Messages of data that the sender's program has read since the last header.
    pub credits: u16,
    /// Tokens that the sender has written to the kernel connection, all in all.
    pub tokens: u32,
    /// By kind; 0 for most.
    pub value: u64,
}

impl Header {
    /// Writes it to the beginning of a message.
    pub fn write(&self, to: &mut [u8]) {
        to[0] = self.kind as u8;
        to[1] = VERSION;
        to[2..4].copy_from_slice(&self.credits.to_be_bytes());
        to[4..8].copy_from_slice(&self.tokens.to_be_bytes());
        to[8..16].copy_from_slice(&self.value.to_be_bytes());
    }

    /// The header of a message; `None` if it has none of this version.
    pub fn read(message: &[u8]) -> Option<Header> {
        let header: &[u8; HEADER_BYTES] = message.first_chunk()?;
        let kind = match header[0] {
            1 => Kind::Data,
            2 => Kind::Credits,
            3 => Kind::Back,
            4 => Kind::Hello,
            5 => Kind::Confirm,
            6 => Kind::Ready,
            7 => Kind::Go,
            8 => Kind::Drained,
            _ => return None,
        };
        (header[1] == VERSION).then_some(())?;
        Some(Header {
            kind,
            credits: u16::from_be_bytes([header[2], header[3]]),
            tokens: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            value: u64::from_be_bytes(*header.last_chunk()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = Header {
            kind: Kind::Ready,
            credits: 513,
            tokens: 70_000,
            value: u64::MAX - 1,
        };
        let mut bytes = [0; HEADER_BYTES + 1];
        header.write(&mut bytes);
        assert_eq!(Header::read(&bytes), Some(header));
        assert_eq!(Header::read(&bytes[..HEADER_BYTES - 1]), None);
        bytes[1] = VERSION + 1;
        assert_eq!(Header::read(&bytes), None);
        bytes[..2].copy_from_slice(&[99, VERSION]);
        assert_eq!(Header::read(&bytes), None);
    }
}
