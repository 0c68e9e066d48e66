//! A frame as it lies in its block.

use crate::header::{Flags, Header};
use crate::pool::Blocks;
use airdma::Region;
use std::fmt;
use std::ops::{Deref, Range};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A frame that arrived: its bytes, where the sender wrote them. Dropping it frees the block.
///
/// It may be kept as long as needed, by any thread: nothing else waits for it but its block.
pub struct Frame {
    blocks: Arc<Blocks>,
    /// `None` for the end of a device, and once it is dropped.
    block: Option<Region>,
    payload: Range<usize>,
    header: Header,
    format: Option<Arc<str>>,
    missing: u64,
    arrived: u64,
}

impl Frame {
    pub(crate) fn new(
        blocks: &Arc<Blocks>,
        block: Option<Region>,
        (header, payload): (Header, Range<usize>),
        format: Option<Arc<str>>,
        missing: u64,
        arrived: u64,
    ) -> Frame {
        Frame {
            blocks: Arc::clone(blocks),
            block,
            payload,
            header,
            format,
            missing,
            arrived,
        }
    }

    /// Number of its device. A sender may give any number: it authenticates nothing.
    pub fn device(&self) -> u32 {
        self.header.device
    }

    /// Its number among the frames of the device.
    pub fn sequence(&self) -> u64 {
        self.header.sequence
    }

    /// Frames of the device that did not arrive, or were dropped by its quota, between the one
    /// before and this one.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// When it was captured, in nanoseconds since 1970 by the sender's clock; 0 if unknown.
    pub fn time(&self) -> u64 {
        self.header.time
    }

    /// When it is worthless, likewise; 0 for never.
    pub fn deadline(&self) -> u64 {
        self.header.deadline
    }

    /// When it was found here, in nanoseconds since 1970 by this host's clock.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// What it is.
    pub fn flags(&self) -> Flags {
        self.header.flags
    }

    /// Description of its format, if the sender gave one.
    pub fn format(&self) -> Option<&Arc<str>> {
        self.format.as_ref()
    }

    /// The memory file in which it lies, and where: for another process of this host. The end of a
    /// device lies in none.
    ///
    /// That process can read all blocks, and write them: give it to none that is not trusted. The
    /// frame must be kept until the other process is done.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let (file, start) = self.block.as_ref()?.file()?;
        Some((file, start + self.payload.start as u64))
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let block = self.block.as_deref();
        block.map_or(&[], |block| &block[self.payload.clone()])
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.blocks.take_back_from(self.header.device, block);
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header {
            device, sequence, ..
        } = self.header;
        let length = self.payload.len();
        write!(out, "Frame({sequence} of device {device}, {length} bytes)")
    }
}
