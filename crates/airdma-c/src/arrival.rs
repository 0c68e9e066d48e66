//! What arrived of a message, in the form of the header.

use airdma::{Arrived as Seen, Record};
use std::ffi::{c_char, c_uint};
use std::net::IpAddr;
use std::ops::Range;

/// Bytes for the text of an address, with its end.
const ADDRESS_BYTES: usize = 48;

/// `airdma_arrival`.
pub enum Arrival {
    /// The record of a message that was written, which holds the place of the message.
    Record(Record),
    /// What arrived of a read, or so far of a message that is arriving.
    Seen(Seen),
}

impl Arrival {
    pub fn seen(&self) -> &Seen {
        match self {
            Arrival::Record(record) => record,
            Arrival::Seen(seen) => seen,
        }
    }
}

/// `AIRDMA_OPEN`.
const OPEN: c_uint = 255;

/// `airdma_arrived`.
#[repr(C)]
pub struct Arrived {
    pub offset: usize,
    pub length: usize,
    pub valid: usize,
    pub ranges: usize,
    pub unit: usize,
    pub source: [c_char; ADDRESS_BYTES],
    pub group: [c_char; ADDRESS_BYTES],
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
            group: [0; ADDRESS_BYTES],
            source_number: 0,
            number: 0,
            immediate: 0,
            has_immediate: false,
            ended: 0,
        }
    }
}

impl Arrived {
    pub fn of(seen: &Seen) -> Arrived {
        Arrived {
            offset: seen.range().start,
            length: seen.len(),
            valid: seen.valid_bytes(),
            ranges: seen.valid().len(),
            unit: seen.unit(),
            source: text(Some(seen.source())),
            group: text(seen.group()),
            source_number: seen.source_number(),
            number: seen.number(),
            immediate: seen.immediate().unwrap_or(0),
            has_immediate: seen.immediate().is_some(),
            ended: seen.end().map_or(OPEN, |ended| ended as c_uint),
        }
    }
}

fn text(address: Option<IpAddr>) -> [c_char; ADDRESS_BYTES] {
    let mut place = [0; ADDRESS_BYTES];
    let text = address.map_or_else(String::new, |address| address.to_string());
    for (place, byte) in place[..ADDRESS_BYTES - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    place
}
