//! The header of a frame: 64 bytes behind the payload, at the end of the block.
//!
//! ```text
//!  0 magic "aiSt"     8 device    16 sequence    32 deadline       48 format
//!  4 version          12 epoch    24 time        40 frame length   52 CRC-32
//!  5 kind                                        44 offset         56 turn
//!  6 flags
//! ```
//!
//! All numbers are little-endian. The payload ends where the header begins, apart from padding to a
//! multiple of 64 bytes, so a frame of any length is one write that ends with its turn, the number
//! of the frame on its connection: once that word is seen, the frame is there.

use bytes::{read_u16, read_u32, read_u64};
use std::ops::{BitOr, Range};
use std::time::{SystemTime, UNIX_EPOCH};

/// Length of the header, and what payloads are padded to.
pub(crate) const HEADER_BYTES: usize = 64;
/// Offset of the turn from the end of a block.
pub(crate) const TURN_BYTES: usize = 8;

const MAGIC: u32 = u32::from_le_bytes(*b"aiSt");
const VERSION: u8 = 1;
/// Bytes of the header that the checksum covers.
const SUMMED: usize = 52;

/// What a frame is, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// It can be decoded without those before.
    pub const KEY: Flags = Flags(1 << 2);
    /// Frames before it are missing at the source.
    pub const DISCONTINUITY: Flags = Flags(1 << 3);
    /// The device sends no more. It has no bytes.
    pub const END: Flags = Flags(1 << 4);
    /// The device has nothing to show from its time on, until the next frame. It has no bytes.
    pub const GAP: Flags = Flags(1 << 6);
    /// The checksum is there.
    pub(crate) const SUMMED: Flags = Flags(1 << 5);

    /// Whether all of `other` are set.
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there is a picture, or what else a frame is: not the end of a device, and no gap.
    pub(crate) fn are_of_data(self) -> bool {
        !self.contains(Flags::END) && !self.contains(Flags::GAP)
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// What the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A frame of the device.
    Frame,
    /// The text that describes the format with the number in the header.
    Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) flags: Flags,
    pub(crate) device: u32,
    /// Differs for each run of a sender.
    pub(crate) epoch: u32,
    /// Number of the frame among those of its device, dropped ones included.
    pub(crate) sequence: u64,
    /// When it was captured, in nanoseconds since 1970; 0 if unknown.
    pub(crate) time: u64,
    /// When it is worthless, likewise; 0 for never.
    pub(crate) deadline: u64,
    pub(crate) length: u32,
    pub(crate) format: u32,
    pub(crate) turn: u64,
}

/// Why a block holds no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Not a header of this version.
    Header,
    /// The length exceeds the block.
    Length,
    /// The checksum differs.
    Sum,
}

/// Nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Bytes of a block in which `length` bytes of payload fit.
pub(crate) fn block_bytes(length: usize) -> usize {
    length.next_multiple_of(HEADER_BYTES) + HEADER_BYTES
}

/// Where the payload lies in a block; `None` if it does not fit.
pub(crate) fn payload_range(block: usize, length: usize) -> Option<Range<usize>> {
    let padded = length.checked_next_multiple_of(HEADER_BYTES)?;
    let start = block.checked_sub(HEADER_BYTES)?.checked_sub(padded)?;
    Some(start..start + length)
}

impl Header {
    /// 1 for a frame; 0 for the end of a device, which is none.
    pub(crate) fn is_data(&self) -> u64 {
        u64::from(self.flags.are_of_data())
    }

    /// Writes the header at the end of a block whose payload is complete.
    pub(crate) fn put(&self, block: &mut [u8], sums: bool) {
        let length = self.length as usize;
        let Some(payload) = payload_range(block.len(), length) else {
            return;
        };
        let flags = if sums {
            self.flags | Flags::SUMMED
        } else {
            self.flags
        };
        let (data, header) = block.split_at_mut(block.len() - HEADER_BYTES);
        let mut write = |at: usize, bytes: &[u8]| {
            header[at..at + bytes.len()].copy_from_slice(bytes);
        };
        write(0, &MAGIC.to_le_bytes());
        let kind = match self.kind {
            Kind::Frame => 1,
            Kind::Format => 2,
        };
        write(4, &[VERSION, kind]);
        write(6, &flags.0.to_le_bytes());
        write(8, &self.device.to_le_bytes());
        write(12, &self.epoch.to_le_bytes());
        write(16, &self.sequence.to_le_bytes());
        write(24, &self.time.to_le_bytes());
        write(32, &self.deadline.to_le_bytes());
        write(40, &self.length.to_le_bytes());
        write(44, &0u32.to_le_bytes());
        write(48, &self.format.to_le_bytes());
        write(56, &self.turn.to_le_bytes());
        let sum = if sums {
            checksum(&data[payload], header)
        } else {
            0
        };
        header[52..56].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads the header of a block, which a peer wrote, and checks it against the block.
    pub(crate) fn of(block: &[u8]) -> Result<(Header, Range<usize>), Wrong> {
        let start = block.len().checked_sub(HEADER_BYTES).ok_or(Wrong::Header)?;
        let header = &block[start..];
        let kind = match header[5] {
            1 => Kind::Frame,
            2 => Kind::Format,
            _ => return Err(Wrong::Header),
        };
        if read_u32(header, 0) != MAGIC || header[4] != VERSION || read_u32(header, 44) != 0 {
            return Err(Wrong::Header);
        }
        let this = Header {
            kind,
            flags: Flags(read_u16(header, 6)),
            device: read_u32(header, 8),
            epoch: read_u32(header, 12),
            sequence: read_u64(header, 16),
            time: read_u64(header, 24),
            deadline: read_u64(header, 32),
            length: read_u32(header, 40),
            format: read_u32(header, 48),
            turn: read_u64(header, 56),
        };
        let payload = payload_range(block.len(), this.length as usize).ok_or(Wrong::Length)?;
        if this.flags.contains(Flags::SUMMED)
            && checksum(&block[payload.clone()], header) != read_u32(header, 52)
        {
            return Err(Wrong::Sum);
        }
        Ok((this, payload))
    }
}

fn checksum(payload: &[u8], header: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(payload);
    hasher.update(&header[..SUMMED]);
    hasher.finalize()
}

/// Numbers in bytes whose length was checked.
pub(crate) mod bytes {
    fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&bytes[at..at + N]);
        out
    }

    pub(crate) fn read_u16(bytes: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(array(bytes, at))
    }

    pub(crate) fn read_u32(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(array(bytes, at))
    }

    pub(crate) fn read_u64(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(array(bytes, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(length: u32) -> Header {
        Header {
            kind: Kind::Frame,
            flags: Flags::KEY | Flags::END,
            device: 7,
            epoch: 9,
            sequence: 1 << 40,
            time: 3,
            deadline: 4,
            length,
            format: 5,
            turn: 1 << 50,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for length in [0, 1, 63, 64, 65, 192] {
            for sums in [false, true] {
                let mut block = vec![0xee; 256];
                let payload = payload_range(256, length).unwrap();
                assert!(payload.start.is_multiple_of(64));
                let wrote = header(length as u32);
                wrote.put(&mut block, sums);
                let (mut read, at) = Header::of(&block).unwrap();
                assert_eq!(at, payload);
                read.flags = wrote.flags;
                assert_eq!(read, wrote);
                assert_eq!(read_u64(&block, 248), 1 << 50);
            }
        }
        assert_eq!(payload_range(256, 193), None);
        assert_eq!(payload_range(63, 0), None);
        assert_eq!(payload_range(256, usize::MAX), None);
    }

    #[test]
    fn no_byte_of_a_summed_frame_changes_unnoticed() {
        let mut block: Vec<u8> = (0..=255).collect();
        header(100).put(&mut block, true);
        let payload = payload_range(256, 100).unwrap();
        // The turn is compared with the expected one.
        let meant = payload.chain(192..248);
        for at in meant {
            let mut changed = block.clone();
            changed[at] ^= 1 << (at % 8);
            let flag_is_gone = at == 198;
            if let Ok((read, _)) = Header::of(&changed) {
                assert!(flag_is_gone && !read.flags.contains(Flags::SUMMED), "{at}");
            }
        }
    }

    #[test]
    fn no_bytes_make_a_frame_beyond_the_block() {
        let mut seed = 1u64;
        for round in 0..20_000u32 {
            let mut block = [0u8; 128];
            header(round % 80).put(&mut block, false);
            for _ in 0..3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                block[64 + (seed >> 33) as usize % 64] = (seed >> 40) as u8;
            }
            if let Ok((read, payload)) = Header::of(&block) {
                assert!(payload.end <= 64 && payload.len() == read.length as usize);
            }
        }
        assert_eq!(Header::of(&[0; 10]), Err(Wrong::Header));
    }
}
