//! Blocks, greetings and credits of a peer that streams frames.

use crate::input::Input;
use airdma_stream::DEVICES_MAX;
use airdma_stream::hostile::{Blocks, CREDIT_BYTES, credit, greetings};
use std::collections::BTreeMap;

const BLOCK: usize = 256;
const HEADER: usize = BLOCK - 64;
const SUMMED: u16 = 1 << 5;

/// The first byte chooses what the rest is.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 8 {
        0 => greeting(input.rest()),
        1 => one_credit(&mut input),
        _ => blocks(&mut input),
    }
}

fn greeting(bytes: &[u8]) {
    for again in greetings(bytes).into_iter().flatten() {
        assert_eq!(again, bytes);
    }
    let hello = [b"aiSH\x01\0\0\0".as_slice(), bytes].concat();
    let welcome = [b"aiSW\x01".as_slice(), bytes].concat();
    for whole in [hello, welcome] {
        for again in greetings(&whole).into_iter().flatten() {
            assert_eq!(again, whole);
        }
    }
}

fn one_credit(input: &mut Input<'_>) {
    let number = u64::from(input.byte());
    let mut entry: [u8; CREDIT_BYTES] = input.bytes();
    if input.byte().is_multiple_of(2) {
        entry[CREDIT_BYTES - 8..].copy_from_slice(&number.to_le_bytes());
    }
    if let Some(again) = credit(&entry, number) {
        assert_eq!(again, entry);
    }
}

/// A receiver takes each frame of a device once, in their order, and counts what is missing.
fn blocks(input: &mut Input<'_>) {
    let mut epoch = 1;
    let mut sums = false;
    let mut receiver = Blocks::new(epoch, sums);
    let mut last: BTreeMap<u32, u64> = BTreeMap::new();
    let mut lent = 0;
    announce(&mut receiver, epoch);
    while !input.is_empty() {
        if input.byte().is_multiple_of(16) {
            let next = u32::from(input.byte() % 2);
            if next != epoch {
                // Numbers of another run begin again.
                last.clear();
            }
            epoch = next;
            sums = !sums;
            receiver.begin(epoch, sums);
            announce(&mut receiver, epoch);
        }
        let block = block(input, epoch);
        let Some(frame) = receiver.judge(&block) else {
            continue;
        };
        lent += 1;
        assert!(frame.payload.end <= HEADER);
        let length = u32::from_le_bytes([0, 1, 2, 3].map(|at| block[HEADER + 40 + at]));
        assert_eq!(frame.payload.len(), length as usize);
        let flags = u16::from_le_bytes([block[HEADER + 6], block[HEADER + 7]]);
        assert!(!sums || flags & SUMMED != 0);
        if flags & SUMMED != 0 {
            let sum = checksum(&block, frame.payload.clone());
            assert_eq!(sum.to_le_bytes(), block[HEADER + 52..HEADER + 56]);
        }
        if let Some(before) = last.insert(frame.device, frame.sequence) {
            assert!(frame.sequence > before);
            assert_eq!(frame.missing, frame.sequence - before - 1);
        }
    }
    let known: Vec<_> = receiver.sequences().iter().map(|(_, it)| it).collect();
    assert!(known.len() <= DEVICES_MAX);
    assert!(known.iter().map(|it| it.frames).sum::<u64>() <= lent);
}

/// Announces two devices of four, as a sender does first.
fn announce(receiver: &mut Blocks, epoch: u32) {
    for device in 0..2 {
        let mut block = [0; BLOCK];
        put(&mut block, 5, &[2]);
        put(&mut block, 6, &SUMMED.to_le_bytes());
        put(&mut block, 8, &u32::to_le_bytes(device));
        put(&mut block, 12, &epoch.to_le_bytes());
        finish(&mut block, HEADER..HEADER);
        assert!(receiver.judge(&block).is_none());
    }
}

/// A block as a sender fills it, or nearly.
fn block(input: &mut Input<'_>, epoch: u32) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let choice = input.byte();
    let length = match choice & 3 {
        0 => u32::from(input.byte()),
        1 => u32::from_le_bytes(input.bytes()),
        _ => u32::from(input.byte() % 64),
    };
    let sequence = match choice & 4 {
        0 => u64::from(input.byte()),
        _ => u64::from_le_bytes(input.bytes()),
    };
    let start = HEADER.saturating_sub((length as usize).next_multiple_of(64));
    if choice & 64 != 0 {
        block[start..HEADER].fill(input.byte());
    }
    let flags = u16::from_le_bytes(input.bytes());
    let kind = 1 + u8::from(choice & 8 != 0);
    put(&mut block, 5, &[kind]);
    put(&mut block, 6, &flags.to_le_bytes());
    put(&mut block, 8, &u32::from(input.byte() % 4).to_le_bytes());
    put(&mut block, 12, &epoch.to_le_bytes());
    put(&mut block, 16, &sequence.to_le_bytes());
    put(&mut block, 32, &input.bytes::<8>());
    put(&mut block, 40, &length.to_le_bytes());
    put(&mut block, 48, &[input.byte()]);
    let is_summed = choice & 16 == 0 && length as usize <= HEADER;
    let payload = if is_summed {
        start..start + length as usize
    } else {
        0..0
    };
    finish(&mut block, payload);
    if choice & 32 != 0 {
        let at = usize::from(input.byte());
        block[at] ^= input.byte();
    }
    block
}

/// Writes a field of the header.
fn put(block: &mut [u8; BLOCK], at: usize, bytes: &[u8]) {
    block[HEADER + at..HEADER + at + bytes.len()].copy_from_slice(bytes);
}

/// Writes what the header begins with, and the checksum of a payload.
fn finish(block: &mut [u8; BLOCK], payload: std::ops::Range<usize>) {
    put(block, 0, b"aiSt\x01");
    let sum = checksum(block, payload);
    put(block, 52, &sum.to_le_bytes());
}

fn checksum(block: &[u8], payload: std::ops::Range<usize>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&block[payload]);
    hasher.update(&block[HEADER..HEADER + 52]);
    hasher.finalize()
}
