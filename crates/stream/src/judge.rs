//! What a block is that a peer has written: a frame, the announcement of a device, or nothing that
//! may be lent.

use crate::FORMAT_BYTES_MAX;
use crate::header::{Flags, Header, Kind, Wrong};
use crate::sequence::{Sequences, Verdict};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Blocks that held no frame of the protocol, by reason. They were freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// No header of this version, or one of another run of the sender.
    pub header: u64,
    /// A length beyond the block, or the end of a device with bytes.
    pub length: u64,
    /// A checksum that differs.
    pub checksum: u64,
    /// A device that was not announced, or one too many.
    pub device: u64,
    /// A format that is no text, or too long.
    pub format: u64,
}

/// Judges the blocks of one sender after the other.
#[derive(Debug)]
pub(crate) struct Judge {
    epoch: u32,
    /// Whether a frame without a checksum is refused.
    sums: bool,
    formats: BTreeMap<u32, (u32, Arc<str>)>,
    sequences: Sequences,
    refused: Refused,
}

/// What a block is.
#[derive(Debug)]
pub(crate) enum Judged {
    Frame(Judgement),
    /// An announcement, a frame that was lent before, or one that is refused: the block is free.
    Nothing,
}

/// A frame that may be lent.
#[derive(Debug)]
pub(crate) struct Judgement {
    pub(crate) header: Header,
    /// Where its payload lies in the block.
    pub(crate) payload: Range<usize>,
    /// Frames of its device that are missing before it.
    pub(crate) missing: u64,
}

impl Judge {
    pub(crate) fn new(epoch: u32, sums: bool) -> Judge {
        Judge {
            epoch,
            sums,
            formats: BTreeMap::new(),
            sequences: Sequences::default(),
            refused: Refused::default(),
        }
    }

    /// A connection begins, of this run of a sender.
    pub(crate) fn begin(&mut self, epoch: u32, sums: bool) {
        (self.epoch, self.sums) = (epoch, sums);
        self.formats.clear();
    }

    pub(crate) fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// The frame that was accepted last is not lent.
    pub(crate) fn drop_last(&mut self, frame: &Judgement) {
        let (device, bytes) = (frame.header.device, frame.payload.len());
        self.sequences.drop_last(device, bytes, frame.missing);
    }

    pub(crate) fn refused(&self) -> Refused {
        self.refused
    }

    /// Description of the format of a frame, if its device has announced it.
    pub(crate) fn format_of(&self, header: &Header) -> Option<Arc<str>> {
        let (number, text) = self.formats.get(&header.device)?;
        (*number == header.format).then(|| Arc::clone(text))
    }

    /// Judges a block that was seen at the time `arrived`, in nanoseconds since 1970.
    pub(crate) fn block(&mut self, block: &[u8], arrived: u64) -> Judged {
        let count = match Header::of(block) {
            Err(Wrong::Header) => &mut self.refused.header,
            Err(Wrong::Length) => &mut self.refused.length,
            Err(Wrong::Sum) => &mut self.refused.checksum,
            Ok((header, _)) if header.epoch != self.epoch => &mut self.refused.header,
            Ok((header, _)) if self.sums && !header.flags.contains(Flags::SUMMED) => {
                &mut self.refused.checksum
            }
            Ok((header, payload)) if header.is_data() == 0 && !payload.is_empty() => {
                &mut self.refused.length
            }
            Ok((header, payload)) => match header.kind {
                Kind::Format => {
                    self.take_format(&header, &block[payload]);
                    return Judged::Nothing;
                }
                Kind::Frame => {
                    let is_late = header.deadline != 0 && header.deadline < arrived;
                    let about = (header.is_data(), payload.len(), is_late);
                    let (device, epoch) = (header.device, header.epoch);
                    match (self.sequences).arrived(device, epoch, header.sequence, about) {
                        Verdict::Next(missing) => {
                            return Judged::Frame(Judgement {
                                header,
                                payload,
                                missing,
                            });
                        }
                        Verdict::Repeated => return Judged::Nothing,
                        Verdict::Unknown => &mut self.refused.device,
                    }
                }
            },
        };
        *count += 1;
        Judged::Nothing
    }

    /// A device is announced, with its format.
    fn take_format(&mut self, header: &Header, text: &[u8]) {
        let text = match str::from_utf8(text) {
            Ok(text) if text.len() <= FORMAT_BYTES_MAX => text,
            Ok(_) | Err(_) => {
                self.refused.format += 1;
                return;
            }
        };
        let (device, epoch) = (header.device, header.epoch);
        if !(self.sequences).announce(device, epoch, header.sequence) {
            self.refused.device += 1;
            return;
        }
        self.formats.insert(device, (header.format, text.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: Kind, sequence: u64, sums: bool) -> [u8; 128] {
        block_with(kind, Flags::default(), sequence, sums)
    }

    fn block_with(kind: Kind, flags: Flags, sequence: u64, sums: bool) -> [u8; 128] {
        let mut block = [b'x'; 128];
        let header = Header {
            kind,
            flags,
            device: 7,
            epoch: 1,
            sequence,
            time: 0,
            deadline: 0,
            length: 3,
            format: 5,
            turn: 1,
        };
        header.put(&mut block, sums);
        block
    }

    #[test]
    fn the_end_of_a_device_with_bytes_is_refused() {
        let mut judge = Judge::new(1, false);
        judge.block(&block(Kind::Format, 0, false), 0);
        let end = block_with(Kind::Frame, Flags::END, 0, false);
        assert!(matches!(judge.block(&end, 0), Judged::Nothing));
        assert_eq!(judge.refused().length, 1);
    }

    #[test]
    fn a_frame_without_the_wanted_checksum_is_refused() {
        let mut judge = Judge::new(1, true);
        for sums in [false, true] {
            judge.block(&block(Kind::Format, 0, sums), 0);
        }
        assert!(matches!(
            judge.block(&block(Kind::Frame, 0, false), 0),
            Judged::Nothing
        ));
        assert!(matches!(
            judge.block(&block(Kind::Frame, 0, true), 0),
            Judged::Frame(_)
        ));
        assert_eq!(judge.refused().checksum, 2);
        judge.begin(1, false);
        assert!(matches!(
            judge.block(&block(Kind::Frame, 1, false), 0),
            Judged::Frame(_)
        ));
    }
}
