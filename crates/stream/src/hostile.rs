//! A sender and a receiver that have only bytes of a peer.

use crate::credit;
use crate::greeting::{Hello, Welcome};
use crate::judge::{Judge, Judged};
use crate::sequence::Sequences;
use std::ops::Range;

/// Bytes of a credit.
pub const CREDIT_BYTES: usize = credit::CREDIT_BYTES;

/// A frame that was accepted.
#[derive(Debug)]
pub struct Accepted {
    pub device: u32,
    pub sequence: u64,
    pub missing: u64,
    pub payload: Range<usize>,
}

/// A receiver without a connection.
#[derive(Debug)]
pub struct Blocks(Judge);

impl Blocks {
    /// A receiver of this run of a sender. With `sums` it refuses frames without a checksum.
    pub fn new(epoch: u32, sums: bool) -> Blocks {
        Blocks(Judge::new(epoch, sums))
    }

    /// A connection of another run.
    pub fn begin(&mut self, epoch: u32, sums: bool) {
        self.0.begin(epoch, sums);
    }

    /// What a block is.
    pub fn judge(&mut self, block: &[u8]) -> Option<Accepted> {
        match self.0.block(block, 1) {
            Judged::Nothing => None,
            Judged::Frame(frame) => {
                // As the program reads it.
                let _ = self.0.format_of(&frame.header);
                Some(Accepted {
                    device: frame.header.device,
                    sequence: frame.header.sequence,
                    missing: frame.missing,
                    payload: frame.payload,
                })
            }
        }
    }

    /// What arrived.
    pub fn sequences(&self) -> &Sequences {
        self.0.sequences()
    }
}

/// The first messages of a connection, encoded again; `None` if they are refused.
pub fn greetings(bytes: &[u8]) -> [Option<Vec<u8>>; 2] {
    let hello = Hello::decode(bytes).ok().map(|it| it.encode());
    let welcome = Welcome::decode(bytes).ok().map(|it| it.encode());
    [hello, welcome]
}

/// A credit with this number, encoded again.
pub fn credit(entry: &[u8; CREDIT_BYTES], number: u64) -> Option<[u8; CREDIT_BYTES]> {
    let remote = credit::get(entry, number)?;
    let mut again = [0; CREDIT_BYTES];
    credit::put(&mut again, &remote, number);
    Some(again)
}
