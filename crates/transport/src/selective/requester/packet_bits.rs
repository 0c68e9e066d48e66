//! One bit for each packet in flight.

use super::{AHEAD_MAX, slot};

const WORDS: usize = (AHEAD_MAX / u64::BITS) as usize;

/// A bit for each packet in flight, at its sequence modulo [`AHEAD_MAX`].
///
/// Most connections lose nothing and set none: the kilobyte of all bits is allocated for the first
/// one that is set.
#[derive(Debug, Default)]
pub(super) struct PacketBits(Option<Box<[u64; WORDS]>>);

impl PacketBits {
    pub(super) fn is_set(&self, sequence: u64) -> bool {
        let (word, bit) = place(sequence);
        self.0.as_ref().is_some_and(|words| words[word] & bit != 0)
    }

    /// Sets a bit; returns whether it was clear.
    pub(super) fn set(&mut self, sequence: u64) -> bool {
        let (word, bit) = place(sequence);
        let words = self.0.get_or_insert_with(|| Box::new([0; WORDS]));
        let is_new = words[word] & bit == 0;
        words[word] |= bit;
        is_new
    }

    /// Clears a bit; returns whether it was set.
    pub(super) fn clear(&mut self, sequence: u64) -> bool {
        let is_set = self.is_set(sequence);
        if let Some(words) = self.0.as_mut().filter(|_| is_set) {
            let (word, bit) = place(sequence);
            words[word] &= !bit;
        }
        is_set
    }

    /// The first sequence of a window of [`AHEAD_MAX`] that begins at `from` whose bit is set.
    pub(super) fn first_from(&self, from: u64) -> Option<u64> {
        let words = self.0.as_ref()?;
        let end = from + u64::from(AHEAD_MAX);
        let mut sequence = from;
        while sequence < end {
            let (word, bit) = place(sequence);
            let rest = words[word] & !(bit - 1);
            if rest != 0 {
                let found =
                    sequence - u64::from(bit.trailing_zeros()) + u64::from(rest.trailing_zeros());
                return (found < end).then_some(found);
            }
            // The word of `from` comes twice: its lower bits are the end of the window.
            sequence += u64::from(u64::BITS - bit.trailing_zeros());
        }
        None
    }
}

fn place(sequence: u64) -> (usize, u64) {
    let slot = slot(sequence);
    (slot / u64::BITS as usize, 1 << (slot % u64::BITS as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_for_the_first_bit_and_no_sooner() {
        let mut bits = PacketBits::default();
        assert!(!bits.is_set(5) && !bits.clear(5));
        assert_eq!((bits.first_from(0), bits.0.is_some()), (None, false));
        assert!(bits.set(5) && !bits.set(5));
        assert!(bits.is_set(5) && bits.0.is_some());
        assert!(bits.clear(5) && !bits.clear(5));
        assert_eq!(bits.first_from(0), None);
    }

    #[test]
    fn the_first_bit_of_a_window_is_found_wherever_it_begins() {
        let all = u64::from(AHEAD_MAX);
        for from in [0, 1, 63, 64, all - 1, 3 * all + 70] {
            for ahead in [0, 1, 62, 63, 64, 130, all - 64, all - 1] {
                let mut bits = PacketBits::default();
                bits.set(from + ahead);
                assert_eq!(bits.first_from(from), Some(from + ahead), "{from}, {ahead}");
                if ahead < all - 1 {
                    bits.set(from + ahead + 1);
                    assert_eq!(bits.first_from(from), Some(from + ahead));
                    assert_eq!(bits.first_from(from + ahead + 1), Some(from + ahead + 1));
                }
            }
        }
    }
}
