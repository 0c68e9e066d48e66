//! The two messages before a stream.
//!
//! The sender's says where its credits are: `aiSH`, version, 3 bytes of 0, epoch, bytes of its
//! longest frame (4 bytes each), the [`Remote`] of the ring. The receiver's answer says which
//! frames it takes: `aiSW`, version, 3 bytes of flags, number of blocks, bytes of a block (4 bytes
//! each).

use crate::error::{Error, Result};
use crate::header::bytes::read_u32;
use crate::{BLOCKS_MAX, credit};
use airdma::{Device, Endpoint, Remote};
use std::time::Duration;

/// Time in which the peer must answer.
const LIMIT: Duration = Duration::from_secs(10);
const VERSION: u8 = 1;
const HELLO: [u8; 4] = *b"aiSH";
const WELCOME: [u8; 4] = *b"aiSW";
const HELLO_BYTES: usize = 16 + Remote::BYTES;
const WELCOME_BYTES: usize = 16;
/// Flag of the welcome: frames carry checksums.
const SUMS: u8 = 1;
/// Room for a message of a peer that speaks something else, which then is no error of memory.
const ROOM: usize = 64 << 10;

/// What the sender says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) epoch: u32,
    pub(crate) frame_bytes: u32,
    pub(crate) credits: Remote,
}

/// What the receiver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// Whether frames carry checksums.
    pub(crate) sums: bool,
    pub(crate) blocks: u32,
    pub(crate) block_bytes: u32,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = HELLO.to_vec();
        bytes.extend([VERSION, 0, 0, 0]);
        bytes.extend(self.epoch.to_le_bytes());
        bytes.extend(self.frame_bytes.to_le_bytes());
        bytes.extend(self.credits.to_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Hello> {
        check(bytes, HELLO, HELLO_BYTES, 0)?;
        let credits = Remote::from_bytes(&bytes[16..]);
        let credits = credits.map_err(|_| Error::Protocol("the key of its credits is none"))?;
        if credits.len() < (credit::CREDITS * credit::CREDIT_BYTES) as u64 {
            return Err(Error::Protocol("its ring of credits is too small"));
        }
        Ok(Hello {
            epoch: read_u32(bytes, 8),
            frame_bytes: read_u32(bytes, 12),
            credits,
        })
    }
}

impl Welcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = WELCOME.to_vec();
        bytes.extend([VERSION, self.sums.into(), 0, 0]);
        bytes.extend(self.blocks.to_le_bytes());
        bytes.extend(self.block_bytes.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Welcome> {
        check(bytes, WELCOME, WELCOME_BYTES, SUMS)?;
        let this = Welcome {
            sums: bytes[5] & SUMS != 0,
            blocks: read_u32(bytes, 8),
            block_bytes: read_u32(bytes, 12),
        };
        let are_blocks = (1..=BLOCKS_MAX).contains(&this.blocks)
            && (128..=1 << 30).contains(&this.block_bytes)
            && this.block_bytes.is_multiple_of(64);
        match are_blocks {
            true => Ok(this),
            false => Err(Error::Protocol("its blocks have an impossible size")),
        }
    }
}

/// Checks what both messages begin with. `flags` are those that are known.
fn check(bytes: &[u8], magic: [u8; 4], length: usize, flags: u8) -> Result<()> {
    if bytes.len() < 5 || bytes[..4] != magic {
        return Err(Error::Protocol("its first message is not one of a stream"));
    }
    let is_known = |bytes: &[u8]| bytes[5] & !flags == 0 && bytes[6..8] == [0; 2];
    match bytes[4] == VERSION && bytes.len() == length && is_known(bytes) {
        true => Ok(()),
        false => Err(Error::Protocol("it has another version: update both ends")),
    }
}

/// Sends a message.
pub(crate) fn say(device: &Device, endpoint: &Endpoint, bytes: &[u8]) -> Result<()> {
    let mut region = device.allocate_private(bytes.len())?;
    region.copy_from_slice(bytes);
    match endpoint.send(region, ..).wait_timeout(LIMIT) {
        Some(sent) => {
            sent?;
            Ok(())
        }
        None => Err(Error::NoAnswer),
    }
}

/// Receives a message.
pub(crate) fn hear(device: &Device, endpoint: &Endpoint) -> Result<Vec<u8>> {
    let region = device.allocate_private(ROOM)?;
    match endpoint.recv(region, ..).wait_timeout(LIMIT) {
        Some(message) => Ok(message?.to_vec()),
        None => Err(Error::NoAnswer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_peer_are_checked() {
        let welcome = Welcome {
            sums: true,
            blocks: 3,
            block_bytes: 4096,
        };
        let bytes = welcome.encode();
        assert_eq!(Welcome::decode(&bytes).unwrap(), welcome);
        for wrong in [
            Welcome {
                blocks: 0,
                ..welcome
            },
            Welcome {
                blocks: BLOCKS_MAX + 1,
                ..welcome
            },
            Welcome {
                block_bytes: 64,
                ..welcome
            },
            Welcome {
                block_bytes: 4097,
                ..welcome
            },
            Welcome {
                block_bytes: u32::MAX,
                ..welcome
            },
        ] {
            assert!(Welcome::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
        for at in 5..8 {
            let mut unknown = bytes.clone();
            unknown[at] |= 2;
            assert!(Welcome::decode(&unknown).is_err());
        }
        for length in 0..bytes.len() {
            assert!(Welcome::decode(&bytes[..length]).is_err());
            assert!(Hello::decode(&bytes[..length]).is_err());
        }
        assert!(Hello::decode(&[HELLO.to_vec(), vec![VERSION; 40]].concat()).is_err());
    }
}
