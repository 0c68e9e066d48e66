//! What the two ends of a lane of datagrams say: notes by the kernel's sockets, and messages by the
//! lane. Numbers are big-endian.

use std::mem::MaybeUninit;

/// Length of a note.
pub const NOTE_BYTES: usize = 32;
/// Length of a proof.
pub const PROOF_BYTES: usize = 8 + NONCE_BYTES;
/// Bytes of a datagram's message before its payload.
pub const HEADER_BYTES: usize = 8;
/// Length of regions for messages without payload.
pub const CONTROL_BYTES: usize = 64;

const NONCE_BYTES: usize = 16;
/// First bytes of each kind, which include the version of this protocol.
const NOTE: [u8; 8] = *b"\xb3\x1fnote\x0a\x01";
const PROOF: [u8; 8] = *b"\xb3\x1fproof\x01";
const HELLO: [u8; 8] = *b"\xb3\x1fhello\x01";
const WELCOME: [u8; 8] = *b"\xb3\x1fwelco\x01";
const CONSUMED: [u8; 8] = *b"\xb3\x1fcount\x01";

/// A random number that a proof repeats.
pub type Nonce = [u8; NONCE_BYTES];

/// The kernel's datagram in place of one whose payload goes by a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The lane, by a random number.
    pub lane: u64,
    /// Which datagram of the lane, from 0.
    pub sequence: u64,
    /// Length of the datagram.
    pub length: u32,
}

impl Note {
    /// The bytes of the datagram.
    pub fn bytes(&self) -> [u8; NOTE_BYTES] {
        let mut bytes = [0; NOTE_BYTES];
        bytes[..8].copy_from_slice(&NOTE);
        bytes[8..16].copy_from_slice(&self.lane.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// The note that a datagram is; `None` if it is the program's.
    pub fn read(bytes: &[u8]) -> Option<Note> {
        let bytes: &[u8; NOTE_BYTES] = bytes.try_into().ok()?;
        let is_note = bytes.starts_with(&NOTE) && bytes.ends_with(&[0; 4]);
        is_note.then_some(Note {
            lane: number(bytes, 8)?,
            sequence: number(bytes, 16)?,
            length: u32::from_be_bytes(*bytes.get(24..)?.first_chunk()?),
        })
    }
}

/// First message of the sender of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the proof must repeat.
    pub nonce: Nonce,
    /// UDP port of the sender's host to which the proof goes.
    pub proof_port: u16,
    /// The receiver's UDP port, which the lane is for.
    pub port: u16,
}

impl Hello {
    /// The message.
    pub fn bytes(&self) -> Vec<u8> {
        let ports = [self.proof_port.to_be_bytes(), self.port.to_be_bytes()];
        [&HELLO[..], &self.nonce, &ports.concat()].concat()
    }

    /// Reads it.
    pub fn read(bytes: &[u8]) -> Option<Hello> {
        let rest = bytes.strip_prefix(&HELLO)?;
        let (nonce, ports) = rest.split_first_chunk()?;
        let &[a, b, c, d] = ports else { return None };
        Some(Hello {
            nonce: *nonce,
            proof_port: u16::from_be_bytes([a, b]),
            port: u16::from_be_bytes([c, d]),
        })
    }
}

/// The receiver's answer: the number of the lane, and how many datagrams it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The number in notes.
    pub lane: u64,
    /// Datagrams that the receiver's program need not have read.
    pub window: u64,
}

impl Welcome {
    /// The message.
    pub fn bytes(&self) -> Vec<u8> {
        [WELCOME, self.lane.to_be_bytes(), self.window.to_be_bytes()].concat()
    }

    /// Reads it.
    pub fn read(bytes: &[u8]) -> Option<Welcome> {
        (bytes.len() == 24 && bytes.starts_with(&WELCOME)).then_some(())?;
        Some(Welcome {
            lane: number(bytes, 8)?,
            window: number(bytes, 16)?,
        })
    }
}

/// What the receiver tells the sender from time to time, both counted from the first datagram on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumed {
    /// Datagrams that are read or lost.
    pub all: u64,
    /// Datagrams that the program has read.
    pub read: u64,
}

impl Consumed {
    /// The message.
    pub fn bytes(&self) -> Vec<u8> {
        [CONSUMED, self.all.to_be_bytes(), self.read.to_be_bytes()].concat()
    }

    /// Reads it.
    pub fn read(bytes: &[u8]) -> Option<Consumed> {
        (bytes.len() == 24 && bytes.starts_with(&CONSUMED)).then_some(())?;
        Some(Consumed {
            all: number(bytes, 8)?,
            read: number(bytes, 16)?,
        })
    }
}

/// The datagram by which the receiver shows that it has the socket.
pub fn proof(nonce: &Nonce) -> [u8; PROOF_BYTES] {
    let mut bytes = [0; PROOF_BYTES];
    bytes[..8].copy_from_slice(&PROOF);
    bytes[8..].copy_from_slice(nonce);
    bytes
}

/// A big-endian number in a message.
pub fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Random bytes of the kernel.
pub fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = MaybeUninit::<[u8; N]>::uninit();
    // SAFETY: as many bytes, all written if the call says so.
    unsafe {
        let got = libc::getrandom(bytes.as_mut_ptr().cast(), N, 0);
        (usize::try_from(got) == Ok(N)).then(|| bytes.assume_init())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let note = Note {
            lane: u64::MAX - 1,
            sequence: 1 << 40,
            length: 65_507,
        };
        let bytes = note.bytes();
        assert_eq!(Note::read(&bytes), Some(note));
        assert_eq!(Note::read(&bytes[..31]), None);
        assert_eq!(Note::read(&[&bytes[..], b"x"].concat()), None);
        for at in [0, 7, 31] {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Note::read(&other), None, "{at}");
        }
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let hello = Hello {
            nonce: random().unwrap(),
            proof_port: 513,
            port: 65_535,
        };
        assert_eq!(Hello::read(&hello.bytes()), Some(hello));
        let welcome = Welcome {
            lane: 7,
            window: 16,
        };
        assert_eq!(Welcome::read(&welcome.bytes()), Some(welcome));
        let consumed = Consumed { all: 9, read: 8 };
        assert_eq!(Consumed::read(&consumed.bytes()), Some(consumed));
        for bytes in [hello.bytes(), welcome.bytes(), consumed.bytes()] {
            assert!(bytes.len() <= CONTROL_BYTES);
            for short in 0..bytes.len() {
                let short = &bytes[..short];
                assert_eq!(Hello::read(short), None);
                assert_eq!(Welcome::read(short), None);
                assert_eq!(Consumed::read(short), None);
            }
        }
    }
}
