//! Communication ids: none repeats before all were used, and none can be predicted from another.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A counter behind a keyed permutation: a peer that is told one id learns nothing about the
/// others.
///
/// The permutation is a Feistel network (Luby and Rackoff, SIAM J. Comput. 1988) with SipHash as
/// its round function.
#[derive(Debug)]
pub(crate) struct Ids {
    key: [u64; 2],
    /// 16 for 32-bit ids, 12 where the top byte is a tag.
    half_bits: u32,
    tag: Option<u8>,
    next: u32,
}

/// Luby and Rackoff prove four rounds; two more are cheap.
const ROUNDS: u8 = 6;

impl Ids {
    pub(crate) fn new(key: [u64; 2], tag: Option<u8>) -> Self {
        Ids {
            key,
            half_bits: if tag.is_some() { 12 } else { 16 },
            tag,
            next: 0,
        }
    }

    /// The next id, which may be 0.
    pub(crate) fn take(&mut self) -> u32 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (self.next >> self.half_bits & mask, self.next & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (self.function(round, right) & mask));
        }
        self.next = self.next.wrapping_add(1);
        let tag = self.tag.map_or(0, |tag| u32::from(tag) << 24);
        tag | left << self.half_bits | right
    }

    /// The transaction id of a connection; its low half is the connection's id.
    ///
    /// A peer that is told one learns nothing about the key or another transaction, which an answer
    /// has to name.
    pub(crate) fn transaction(&self, id: u32) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.key, ROUNDS, id).hash(&mut hasher);
        hasher.finish() & 0xffff_ffff_0000_0000 | u64::from(id)
    }

    fn function(&self, round: u8, half: u32) -> u32 {
        let mut hasher = DefaultHasher::new();
        (self.key, round, half).hash(&mut hasher);
        hasher.finish() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_id_comes_once_and_carries_the_tag() {
        // Fewer bits, so that the test can try all ids.
        let mut ids = Ids {
            half_bits: 7,
            ..Ids::new([1, 2], Some(9))
        };
        let mut seen = BTreeSet::new();
        for _ in 0..1 << 14 {
            let id = ids.take();
            assert_eq!(id >> 14, 9 << 10);
            assert!(seen.insert(id));
        }
        assert!(seen.contains(&ids.take()));
    }

    #[test]
    fn an_id_does_not_tell_the_next() {
        let mut ids = Ids::new([1, 2], None);
        let all: Vec<_> = (0..1_000).map(|_| ids.take()).collect();
        let relations: BTreeSet<_> = all.windows(2).map(|pair| pair[0] ^ pair[1]).collect();
        let distances: BTreeSet<_> = all
            .windows(2)
            .map(|pair| pair[0].wrapping_sub(pair[1]))
            .collect();
        assert!(relations.len() > 995 && distances.len() > 995);
    }
}
