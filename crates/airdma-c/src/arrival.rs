//! What arrived of a message, in the form of the header.

use airdma::Record;
use std::ffi::{c_char, c_uint};
use std::ops::Range;

/// Bytes for the text of an address, with its end.
const ADDRESS_BYTES: usize = 48;

/// `airdma_arrived`.
#[repr(C)]
pub struct Arrived {
    pub offset: usize,
    pub length: usize,
    pub valid: usize,
    pub ranges: usize,
    pub unit: usize,
    pub source: [c_char; ADDRESS_BYTES],
    pub source_number: u32,
    pub number: u32,
    pub immediate: u32,
    pub has_immediate: bool,
    pub ended: c_uint,
}

/// `airdma_range`.
#[repr(C)]
pub struct ByteRange {
    pub start: usize,
    pub end: usize,
}

impl ByteRange {
    pub fn of(range: &Range<usize>) -> ByteRange {
        ByteRange {
            start: range.start,
            end: range.end,
        }
    }
}

impl Default for Arrived {
    fn default() -> Arrived {
        Arrived {
            offset: 0,
            length: 0,
            valid: 0,
            ranges: 0,
            unit: 0,
            source: [0; ADDRESS_BYTES],
            source_number: 0,
            number: 0,
            immediate: 0,
            has_immediate: false,
            ended: 0,
        }
    }
}

impl Arrived {
    pub fn of(record: &Record) -> Arrived {
        let mut source = [0; ADDRESS_BYTES];
        let text = record.source().to_string();
        for (place, byte) in source[..ADDRESS_BYTES - 1].iter_mut().zip(text.bytes()) {
            *place = byte as c_char;
        }
        Arrived {
            offset: record.range().start,
            length: record.len(),
            valid: record.valid_bytes(),
            ranges: record.valid().len(),
            unit: record.unit(),
            source,
            source_number: record.source_number(),
            number: record.number(),
            immediate: record.immediate().unwrap_or(0),
            has_immediate: record.immediate().is_some(),
            ended: record.ended() as c_uint,
        }
    }
}
