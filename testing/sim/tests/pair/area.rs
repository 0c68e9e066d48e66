//! Bytes of memory with a model of them.

use core::ops::Range;

use airdma_sim::{Pair, Random, Region, Sge, Side};
use airdma_transport::Access;
use airdma_wire::Rkey;

/// Bytes of memory whose final content is known.
#[derive(Default)]
pub struct Area {
    initial: Vec<u8>,
    model: Vec<u8>,
    region: Option<Region>,
}

/// Ranges of a message.
pub type Pieces = Vec<Range<u32>>;

impl Area {
    pub fn grow(&mut self, random: &mut Random, len: usize) -> Range<u32> {
        let start = self.initial.len() as u32;
        self.initial.extend(random.bytes(len));
        start..self.initial.len() as u32
    }

    /// Space for a message in one to three pieces, with bytes around them that must stay.
    pub fn allocate(&mut self, random: &mut Random, len: u32) -> Pieces {
        let mut left = len;
        let mut pieces = Vec::new();
        for last in [false, false, true] {
            let gap = random.index(20);
            self.grow(random, gap);
            let part = if last || random.chance(0.5) {
                left
            } else {
                random.below(u64::from(left) + 1) as u32
            };
            if part > 0 {
                pieces.push(self.grow(random, part as usize));
            }
            left -= part;
        }
        self.grow(random, 8);
        pieces
    }

    /// `len` bytes that are there already, in one or two pieces from anywhere.
    pub fn choose(&self, random: &mut Random, len: u32) -> Pieces {
        let first = random.below(u64::from(len) + 1) as u32;
        [first, len - first]
            .into_iter()
            .filter(|part| *part > 0)
            .map(|part| {
                let start = random.index(self.initial.len() - part as usize + 1) as u32;
                start..start + part
            })
            .collect()
    }

    pub fn start_model(&mut self) {
        self.model = self.initial.clone();
    }

    pub fn read(&self, pieces: &[Range<u32>]) -> Vec<u8> {
        let bytes = pieces
            .iter()
            .flat_map(|piece| &self.model[piece.start as usize..piece.end as usize]);
        bytes.copied().collect()
    }

    pub fn write(&mut self, pieces: &[Range<u32>], mut data: &[u8]) {
        for piece in pieces {
            let target = &mut self.model[piece.start as usize..piece.end as usize];
            let (here, behind) = data.split_at(target.len().min(data.len()));
            target[..here.len()].copy_from_slice(here);
            data = behind;
        }
        assert!(data.is_empty());
    }

    pub fn register(&mut self, pair: &mut Pair, side: Side, access: Access) {
        self.region = Some(pair[side].register(&self.initial, access));
    }

    pub fn region(&self) -> Region {
        self.region.unwrap()
    }

    /// Address and key of the byte at `offset`, for a peer.
    pub fn address(&self, offset: u32) -> (u64, Rkey) {
        let region = self.region();
        (region.va + u64::from(offset), region.rkey())
    }

    pub fn sges(&self, pieces: &[Range<u32>]) -> Vec<Sge> {
        let pieces = pieces.iter();
        pieces
            .map(|piece| self.region().part(piece.clone()))
            .collect()
    }

    pub fn assert_as_modelled(&self, pair: &Pair, side: Side, what: &str) {
        let found = pair[side].bytes(&self.region());
        let wrong = found.iter().zip(&self.model).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{side:?} {what}: first wrong byte");
    }

    /// Writes to the front of a receive that may be longer than the message.
    pub fn write_front(&mut self, pieces: &[Range<u32>], data: &[u8]) {
        let mut left = data.len() as u32;
        let mut front = Vec::new();
        for piece in pieces {
            let here = left.min(piece.end - piece.start);
            front.push(piece.start..piece.start + here);
            left -= here;
        }
        self.write(&front, data);
    }
}
