//! A block of the sender, which a program fills.

use crate::header::payload_range;
use airdma::Region;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};

/// Memory for one frame: fill it, and give it to [`Sender::send`](crate::Sender::send).
///
/// It can be filled by any thread. One that is dropped is lost to its sender; give it to
/// [`Sender::discard`](crate::Sender::discard) instead.
pub struct Block {
    pub(crate) region: Region,
    pub(crate) device: u32,
    pub(crate) payload: Range<usize>,
}

impl Block {
    /// `None` if `length` bytes do not fit the region.
    pub(crate) fn new(region: Region, device: u32, length: usize) -> Result<Block, Region> {
        match payload_range(region.len(), length) {
            Some(payload) => Ok(Block {
                region,
                device,
                payload,
            }),
            None => Err(region),
        }
    }

    /// Number of the device that it is for.
    pub fn device(&self) -> u32 {
        self.device
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.region[self.payload.clone()]
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        let payload = self.payload.clone();
        &mut self.region[payload]
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.payload.len();
        write!(out, "Block({length} bytes for device {})", self.device)
    }
}
