//! Messages between two processes of a host that arrange a ring, over a Unix socket. Numbers are in
//! network byte order.
//!
//! ```text
//! 0      4         6      8       24       40            56       64
//! | aLoc | version | kind | token |                               : request
//!                         | nonce | source | destination | offset |  grant
//! ```
//! A grant has two descriptors: the memory of the ring, which begins at *offset*, and the eventfd
//! that wakes its consumer.

use airdma_wire::Gid;

/// A random number that names a request, or proves that a probe arrived.
pub type Secret = [u8; 16];

const MARK: [u8; 4] = *b"aLoc";
const VERSION: [u8; 2] = [0, 1];
const KIND_REQUEST: [u8; 2] = [0, 1];
const KIND_GRANT: [u8; 2] = [0, 2];
const HEAD_LEN: usize = 8;
const REQUEST_LEN: usize = HEAD_LEN + 16;
const GRANT_LEN: usize = HEAD_LEN + 3 * 16 + 8;

/// Bytes of the longest message, and one.
pub(super) const ROOM: usize = GRANT_LEN + 1;

/// What a process that wants to send asks for, before it sends the probe that has the same token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The token of the probe.
    pub token: Secret,
}

/// What the process that got the probe answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The nonce of the probe.
    pub nonce: Secret,
    /// Where the probe came from.
    pub source: Gid,
    /// Where it came to.
    pub destination: Gid,
    /// Where the ring begins in its memory.
    pub offset: u64,
}

impl Request {
    /// The request as a message.
    pub fn to_bytes(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[..HEAD_LEN].copy_from_slice(&head(KIND_REQUEST));
        bytes[HEAD_LEN..].copy_from_slice(&self.token);
        bytes
    }

    /// Reads a request; `None` if the message is not one.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST_LEN] = message.try_into().ok()?;
        is_headed(bytes, KIND_REQUEST).then_some(())?;
        Some(Request {
            token: sixteen(bytes, HEAD_LEN)?,
        })
    }
}

impl Grant {
    /// The grant as a message.
    pub fn to_bytes(&self) -> [u8; GRANT_LEN] {
        let mut bytes = [0; GRANT_LEN];
        bytes[..8].copy_from_slice(&head(KIND_GRANT));
        bytes[8..24].copy_from_slice(&self.nonce);
        bytes[24..40].copy_from_slice(&self.source.0);
        bytes[40..56].copy_from_slice(&self.destination.0);
        bytes[56..64].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    /// Reads a grant; `None` if the message is not one.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let bytes: &[u8; GRANT_LEN] = message.try_into().ok()?;
        is_headed(bytes, KIND_GRANT).then_some(())?;
        Some(Grant {
            nonce: sixteen(bytes, 8)?,
            source: Gid(sixteen(bytes, 24)?),
            destination: Gid(sixteen(bytes, 40)?),
            offset: u64::from_be_bytes(bytes[56..64].try_into().ok()?),
        })
    }
}

fn head(kind: [u8; 2]) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..4].copy_from_slice(&MARK);
    head[4..6].copy_from_slice(&VERSION);
    head[6..].copy_from_slice(&kind);
    head
}

fn is_headed(bytes: &[u8], kind: [u8; 2]) -> bool {
    bytes.starts_with(&head(kind))
}

fn sixteen(bytes: &[u8], at: usize) -> Option<Secret> {
    bytes.get(at..at + 16)?.try_into().ok()
}
