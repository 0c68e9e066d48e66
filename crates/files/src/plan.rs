//! The plan of the stream: the content of all files in sequence, cut into chunks.
//!
//! Each wanted file, in the order of the manifest, has its data (without holes) and a trailer,
//! which tells whether the file was read completely, and its BLAKE3 hash. Chunks have
//! [`CHUNK_BYTES`] each, so small files share one and large ones have many; no file needs a message
//! of its own. A trailer never spans two chunks: zeros fill the rest of the first one instead.
//!
//! Both ends make the same plan from the manifest and the files that the receiver does not want
//! ([`Unwanted`]).

use crate::manifest::{Content, Entry, Kind, Manifest};
use std::ops::Range;

/// Bytes of every chunk except the last.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes of a trailer: result of reading, and hash of the data.
pub const TRAILER_BYTES: u64 = 33;

/// Files that the receiver does not want, as ascending ranges of entries that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwanted {
    ranges: Vec<Range<u32>>,
}

impl Unwanted {
    /// Adds entry `index`, which must be above all entries in the set.
    pub fn push(&mut self, index: u32) {
        match self.ranges.last_mut() {
            Some(last) if last.end == index => last.end += 1,
            Some(_) | None => self.ranges.push(index..index + 1),
        }
    }

    /// Adds a range from a peer; false if it is empty, too low, or touches a range in the set.
    pub fn push_range(&mut self, range: Range<u32>) -> bool {
        let sound =
            range.start < range.end && self.ranges.last().is_none_or(|last| last.end < range.start);
        if sound {
            self.ranges.push(range);
        }
        sound
    }

    /// The ranges.
    pub fn ranges(&self) -> &[Range<u32>] {
        &self.ranges
    }

    /// Whether entry `index` is in the set.
    pub fn contains(&self, index: u32) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= index);
        after > 0 && self.ranges[after - 1].contains(&index)
    }
}

/// Position of each file in the stream.
#[derive(Debug)]
pub struct Plan {
    files: Vec<Placed>,
    bytes: u64,
}

/// A file in the stream: its data begins at `start`, its trailer at `trailer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its entry in the manifest.
    pub entry: u32,
    /// Where its data begins.
    pub start: u64,
    /// Bytes of its data.
    pub data_bytes: u64,
    /// Where its trailer begins.
    pub trailer: u64,
}

/// A part of a chunk, which belongs to one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the file in the plan.
    pub file: usize,
    /// What it holds.
    pub part: Part,
    /// Its offset in the chunk.
    pub at: usize,
    /// Its length in bytes.
    pub length: usize,
}

/// What a piece holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Data of the file, from this byte of it on (holes not counted).
    Data(u64),
    /// Zeros.
    Padding,
    /// The trailer.
    Trailer,
}

impl Plan {
    /// The stream of the wanted files of `manifest`.
    pub fn new(manifest: &Manifest, unwanted: &Unwanted) -> Self {
        let mut files = Vec::new();
        let mut bytes = 0;
        for (index, entry) in manifest.iter() {
            let Some(content) = entry.content().filter(|_| !unwanted.contains(index)) else {
                continue;
            };
            let placed = Placed::at(bytes, index, content.data_bytes());
            bytes = placed.end();
            files.push(placed);
        }
        Self { files, bytes }
    }

    /// The files, in order.
    pub fn files(&self) -> &[Placed] {
        &self.files
    }

    /// Length of the stream in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u64 {
        self.bytes.div_ceil(CHUNK_BYTES)
    }

    /// Length of chunk `chunk`; 0 behind the end.
    pub fn chunk_bytes(&self, chunk: u64) -> usize {
        self.bytes
            .saturating_sub(chunk.saturating_mul(CHUNK_BYTES))
            .min(CHUNK_BYTES) as usize
    }

    /// Number of files that end before chunk `chunk`.
    pub fn files_before(&self, chunk: u64) -> usize {
        let position = chunk.saturating_mul(CHUNK_BYTES);
        self.files.partition_point(|file| file.end() <= position)
    }

    /// The pieces of chunk `chunk`, in order and without gaps.
    pub fn pieces(&self, chunk: u64) -> impl Iterator<Item = Piece> {
        let mut file = self.files_before(chunk);
        let begin = chunk.saturating_mul(CHUNK_BYTES);
        let end = begin + self.chunk_bytes(chunk) as u64;
        let mut position = begin;
        std::iter::from_fn(move || {
            if position >= end {
                return None;
            }
            let placed = &self.files[file];
            let (part, until) = placed.part_at(position);
            let length = until.min(end) - position;
            let piece = Piece {
                file,
                part,
                at: (position - begin) as usize,
                length: length as usize,
            };
            position += length;
            file += usize::from(position == placed.end());
            Some(piece)
        })
    }
}

impl Placed {
    fn at(start: u64, entry: u32, data_bytes: u64) -> Self {
        let data_end = start + data_bytes;
        let room = CHUNK_BYTES - data_end % CHUNK_BYTES;
        let trailer = if room < TRAILER_BYTES {
            data_end + room
        } else {
            data_end
        };
        Self {
            entry,
            start,
            data_bytes,
            trailer,
        }
    }

    /// Where the next file begins.
    pub fn end(&self) -> u64 {
        self.trailer + TRAILER_BYTES
    }

    /// Whether any of its data lies before `position` of the stream: it may be padding only.
    pub(crate) fn has_data_before(&self, position: u64) -> bool {
        self.data_bytes > 0 && self.start < position
    }

    /// What lies at `position` of the stream, and where that ends.
    fn part_at(&self, position: u64) -> (Part, u64) {
        let data_end = self.start + self.data_bytes;
        if position < data_end {
            (Part::Data(position - self.start), data_end)
        } else if position < self.trailer {
            (Part::Padding, self.trailer)
        } else {
            (Part::Trailer, self.end())
        }
    }
}

impl Entry {
    /// Content of the entry, if it is a file.
    pub fn content(&self) -> Option<&Content> {
        match &self.kind {
            Kind::File(content) => Some(content),
            Kind::Directory | Kind::Symlink(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Builder, Limits, Modified};
    use proptest::prelude::*;

    fn manifest(sizes: &[u64]) -> Manifest {
        let mut builder = Builder::new(Limits::default());
        for (number, &size) in sizes.iter().enumerate() {
            let kind = Kind::File(Content {
                size,
                stamp: 0,
                extents: None,
            });
            let name = format!("{number:05}").into_bytes().into();
            let modified = Modified {
                seconds: 0,
                nanos: 0,
            };
            builder
                .push(Entry {
                    parent: None,
                    depth: 0,
                    name,
                    mode: 0,
                    modified,
                    kind,
                })
                .unwrap();
        }
        builder.finish()
    }

    #[test]
    fn small_files_share_a_chunk() {
        let plan = Plan::new(&manifest(&[100; 50]), &Unwanted::default());
        assert_eq!((plan.chunks(), plan.chunk_bytes(0)), (1, 50 * 133));
        assert_eq!(plan.pieces(0).count(), 100);
    }

    #[test]
    fn nothing_wanted_is_no_chunk() {
        let mut unwanted = Unwanted::default();
        (0..3).for_each(|index| unwanted.push(index));
        let plan = Plan::new(&manifest(&[5, 6, 7]), &unwanted);
        assert_eq!(
            (plan.chunks(), plan.chunk_bytes(0), plan.pieces(0).count()),
            (0, 0, 0)
        );
        assert_eq!(unwanted.ranges().first(), Some(&(0..3)));
    }

    #[test]
    fn ranges_of_a_peer_are_ascending_and_apart() {
        let mut unwanted = Unwanted::default();
        assert!(unwanted.push_range(3..5));
        for range in [5..6, 4..8, 0..1, 9..9, Range { start: 8, end: 7 }] {
            assert!(!unwanted.push_range(range));
        }
        assert!(unwanted.push_range(6..7));
        let found: Vec<u32> = (0..10).filter(|&index| unwanted.contains(index)).collect();
        assert_eq!(found, [3, 4, 6]);
    }

    proptest! {
        #[test]
        fn pieces_cover_each_file_once_and_trailers_are_not_cut(
            sizes in proptest::collection::vec(prop_oneof![
                0..200_u64, CHUNK_BYTES - 100..CHUNK_BYTES + 100, 0..CHUNK_BYTES * 4,
            ], 1..30),
        ) {
            let plan = Plan::new(&manifest(&sizes), &Unwanted::default());
            let mut data = vec![0; sizes.len()];
            let mut trailers = vec![0; sizes.len()];
            for chunk in 0..plan.chunks() {
                let mut at = 0;
                for piece in plan.pieces(chunk) {
                    prop_assert_eq!(piece.at, at);
                    at += piece.length;
                    match piece.part {
                        Part::Data(from) => {
                            prop_assert_eq!(from, data[piece.file]);
                            data[piece.file] += piece.length as u64;
                        }
                        Part::Padding => prop_assert!(piece.length < TRAILER_BYTES as usize),
                        Part::Trailer => {
                            prop_assert_eq!(piece.length as u64, TRAILER_BYTES);
                            prop_assert_eq!(data[piece.file], sizes[piece.file]);
                            trailers[piece.file] += 1;
                        }
                    }
                }
                prop_assert_eq!(at, plan.chunk_bytes(chunk));
                prop_assert!(chunk + 1 == plan.chunks() || at as u64 == CHUNK_BYTES);
            }
            prop_assert_eq!(data, sizes);
            prop_assert!(trailers.iter().all(|&count| count == 1));
        }
    }
}
