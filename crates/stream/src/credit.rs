//! Credits: entries of a ring at the sender, which the receiver writes.
//!
//! Credit *n* (from 1) lies at entry *n* modulo the ring: the [`Remote`] of a free block, then *n*.
//! An entry is written again only after the frame that used it has arrived, so the sender never
//! reads one that changes.

use crate::header::bytes::read_u64;
use airdma::Remote;

/// Bytes of an entry.
pub(crate) const CREDIT_BYTES: usize = 32;
/// Entries of the ring: one for each block that a receiver may have.
pub(crate) const CREDITS: usize = crate::BLOCKS_MAX as usize;
/// Offset of the number in an entry.
const NUMBER: usize = CREDIT_BYTES - 8;

const _: () = assert!(Remote::BYTES == NUMBER);

/// Offset of the entry of a credit.
pub(crate) fn offset(number: u64) -> usize {
    (number % CREDITS as u64) as usize * CREDIT_BYTES
}

/// Offset of the number of a credit.
pub(crate) fn number_offset(number: u64) -> usize {
    offset(number) + NUMBER
}

/// Writes an entry.
pub(crate) fn put(entry: &mut [u8], remote: &Remote, number: u64) {
    entry[..NUMBER].copy_from_slice(&remote.to_bytes());
    entry[NUMBER..CREDIT_BYTES].copy_from_slice(&number.to_le_bytes());
}

/// The block of an entry; `None` if it holds no credit with this number.
pub(crate) fn get(entry: &[u8; CREDIT_BYTES], number: u64) -> Option<Remote> {
    let is_it = read_u64(entry, NUMBER) == number;
    is_it.then(|| Remote::from_bytes(&entry[..NUMBER]).ok())?
}
