//! Copies of slots whose place in the ring was given back.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::slot::SlotRef;

/// A table of copied slots. It never grows.
#[derive(Debug)]
pub struct HeldSlots {
    words: Box<[AtomicU64]>,
    stride: u32,
    free: Vec<u32>,
    count: u32,
}

impl HeldSlots {
    /// For `count` slots of `stride` bytes, a multiple of 8.
    #[must_use]
    pub fn new(count: u32, stride: u32) -> Self {
        let words = count as usize * (stride as usize / size_of::<u64>());
        HeldSlots {
            words: std::iter::repeat_with(|| AtomicU64::new(0))
                .take(words)
                .collect(),
            stride,
            free: (0..count).rev().collect(),
            count,
        }
    }

    /// Copies a slot; `None` if there is no room for it, or if it is longer than these.
    pub fn hold(&mut self, slot: SlotRef<'_>) -> Option<u32> {
        if slot.stride() > self.stride {
            return None;
        }
        let index = self.free.pop()?;
        let words = self.stride as usize / size_of::<u64>();
        let copy = &self.words[index as usize * words..][..words];
        for (at, word) in copy.iter().enumerate() {
            word.store(slot.word_at(at).unwrap_or(0), Ordering::Relaxed);
        }
        Some(index)
    }

    /// A copy.
    ///
    /// # Panics
    /// If there is no such place.
    #[must_use]
    pub fn slot(&self, index: u32) -> SlotRef<'_> {
        let words = self.stride as usize / size_of::<u64>();
        let copy = &self.words[index as usize * words..][..words];
        let base = NonNull::from(copy).cast::<u64>();
        // SAFETY: `copy` has `stride` bytes, is aligned to 8, and is touched through atomics only;
        // the slot borrows the table, so the memory stays.
        unsafe { SlotRef::new(base, self.stride) }
    }

    /// Gives a copy's place back.
    pub fn release(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Gives all places back.
    pub fn clear(&mut self) {
        self.free.clear();
        self.free.extend((0..self.count).rev());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{Arena, SendWqe, Sge, ring};

    #[test]
    fn a_copy_outlives_its_slot() {
        let stride = SendWqe::stride(2, 40);
        let (mut producer, mut consumer) = ring(&Arena::new(), 2, stride).unwrap();
        let mut held = HeldSlots::new(2, stride);
        let mut indices = Vec::new();
        for wr_id in 1..=3 {
            let mut slot = producer.slot(0).unwrap();
            slot.write_header(&SendWqe {
                wr_id,
                sge_count: 1,
                ..SendWqe::default()
            });
            let sge = Sge {
                addr: wr_id,
                length: 5,
                lkey: 6,
            };
            slot.write_sge::<SendWqe>(0, &sge);
            producer.publish(1);
            let number = consumer.take().unwrap();
            indices.push(held.hold(consumer.slot(number)));
            consumer.release(1);
        }
        assert_eq!(indices[2], None, "there is room for two");
        for (at, index) in indices[..2].iter().enumerate() {
            let slot = held.slot(index.unwrap());
            let header: SendWqe = slot.read_header();
            assert_eq!(header.wr_id, at as u64 + 1);
            assert_eq!(slot.sge::<SendWqe>(0).unwrap().addr, at as u64 + 1);
            assert_eq!(
                slot.inline_max::<SendWqe>(),
                stride - size_of::<SendWqe>() as u32
            );
        }
        held.release(indices[0].unwrap());
        let (mut producer, mut consumer) = ring(&Arena::new(), 2, stride + 16).unwrap();
        producer.publish(1);
        let number = consumer.take().unwrap();
        assert_eq!(held.hold(consumer.slot(number)), None, "it is longer");
    }
}
