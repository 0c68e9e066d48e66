//! Frames of a byte stream, and messages in frames.
//!
//! A frame is two bytes of length and that many bytes. After the handshake each frame holds one
//! message, encrypted with a counter: one that is forged, repeated, omitted or reordered is an
//! error and ends the session.

use super::PublicKey;

/// Most bytes of a message in a record.
const RECORD_BYTES_MAX: usize = 32 << 10;
/// Bytes that encryption adds.
const TAG_BYTES: usize = 16;
const FRAME_BYTES_MAX: usize = RECORD_BYTES_MAX + TAG_BYTES;

/// Why a stream is not a valid session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A frame is too long.
    #[error("the peer does not speak the airdma file protocol; check the address")]
    TooLong,
    /// The peer did not send this record, or not at this position.
    #[error("a record was changed on its way; try again, and check the network if it recurs")]
    Forged,
}

/// Splits a stream of bytes into frames. Holds at most one frame and the bytes received with it.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete frame. Call it until it returns `None` before adding more.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, RecordError> {
        let Some((length, rest)) = self.bytes.split_first_chunk() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes(*length));
        if length > FRAME_BYTES_MAX {
            return Err(RecordError::TooLong);
        }
        let Some(frame) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = frame.to_vec();
        self.bytes.drain(..2 + length);
        Ok(Some(frame))
    }
}

/// A frame of `bytes`, which must fit one.
pub fn frame(bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() <= FRAME_BYTES_MAX, "a frame has an end");
    let length = bytes.len() as u16;
    [&length.to_be_bytes(), bytes].concat()
}

/// The session after a handshake: records in both directions, in order.
#[derive(Debug)]
pub struct Session {
    noise: snow::TransportState,
    peer: PublicKey,
}

impl Session {
    pub(super) fn new(noise: snow::TransportState, peer: PublicKey) -> Self {
        Self { noise, peer }
    }

    /// The peer's key.
    pub fn peer(&self) -> PublicKey {
        self.peer
    }

    /// A frame with the next record to the peer.
    pub fn seal(&mut self, message: &[u8]) -> Vec<u8> {
        frame(&self.seal_record(message))
    }

    pub(super) fn seal_record(&mut self, message: &[u8]) -> Vec<u8> {
        assert!(message.len() <= RECORD_BYTES_MAX, "a message has an end");
        let mut sealed = vec![0; message.len() + TAG_BYTES];
        let written = self.noise.write_message(message, &mut sealed);
        written.expect("there is room, and 2^64 records are never reached");
        sealed
    }

    /// The message in the next frame of the peer.
    pub fn open(&mut self, frame: &[u8]) -> Result<Vec<u8>, RecordError> {
        let mut message = vec![0; frame.len()];
        let length = self
            .noise
            .read_message(frame, &mut message)
            .map_err(|_| RecordError::Forged)?;
        message.truncate(length);
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_of_pieces_of_any_size() {
        let stream = [frame(b"one"), frame(b""), frame(&[7; 1000])].concat();
        for piece in [1, 2, 3, 5, stream.len()] {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for bytes in stream.chunks(piece) {
                frames.push(bytes);
                while let Some(frame) = frames.take().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, [b"one".to_vec(), Vec::new(), vec![7; 1000]]);
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_it_is_there() {
        let mut frames = Frames::default();
        frames.push(&[0xff; 3]);
        assert_eq!(frames.take(), Err(RecordError::TooLong));
    }
}
