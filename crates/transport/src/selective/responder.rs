//! Packets that came before their turn: the responder's half of selective repeat.
//!
//! ```text
//!   expected
//!   |         early[0]  early[1]  early[2]  early[3]
//!  -+---------+---------+---------+---------+---------+--> PSN
//!   (missing)  Missing   Placed    Held      Missing
//! ```
//!
//! A middle packet of the WRITE that is arriving says by its PSN where its data belongs, and is
//! placed at once. All else is held whole until its turn. So is the last packet of every message:
//! a program that watches the last byte of a message sees it written last.
//!
//! What is held counts against [`ReorderMemory`], which the queue pairs of a worker share. A packet
//! for which nothing is left is dropped, and missed like any other.

use std::collections::VecDeque;
use std::mem;

use super::memory::HeldPacket;
use super::{AHEAD_MAX, Owed, PsnRange, ReorderMemory};
use airdma_wire::{Packet, Psn};

/// Bytes of an entry in the table of packets out of order: 131 KB for a queue pair at most.
const PLACE_BYTES: usize = mem::size_of::<Early>();

#[derive(Debug)]
enum Early {
    Missing,
    /// Its data was placed.
    Placed,
    /// It is handled in its turn as if it arrived then.
    Held(Box<HeldPacket>),
}

/// The next expected packet, when the one before it was executed.
#[derive(Debug)]
pub(crate) enum Next {
    /// It has not arrived.
    Missing,
    Placed,
    Held(Box<HeldPacket>),
}

#[derive(Debug)]
pub(crate) struct Reorder {
    memory: ReorderMemory,
    /// The packets after the expected one. The last is not missing.
    early: VecDeque<Early>,
    /// Entries of that table that count against the memory.
    places: usize,
    /// Distance of the furthest packet that could not be buffered; 0 if none.
    dropped: u32,
    /// Whether our progress has not been reported, and whether the peer waits for that.
    owed: bool,
    asked: bool,
    /// Whether packets are missing that the peer may not know of.
    gap: bool,
    /// Packets that were missing when a later one arrived, and were not counted yet.
    missed: u32,
    /// Whether ACK packets report to the peer.
    by_acks: bool,
}

impl Reorder {
    pub(crate) fn new(memory: ReorderMemory) -> Self {
        Reorder {
            memory,
            early: VecDeque::new(),
            places: 0,
            dropped: 0,
            owed: false,
            asked: false,
            gap: false,
            missed: 0,
            by_acks: false,
        }
    }

    /// Reports by ACK packets with a SETH, not by [`take_report`](crate::QueuePair::take_report).
    pub(crate) fn tell_by_acks(&mut self, by_acks: bool) {
        self.by_acks = by_acks;
    }

    pub(crate) fn tells_by_acks(&self) -> bool {
        self.by_acks
    }

    /// Whether a later packet than the expected one has arrived, buffered or not.
    pub(crate) fn waits(&self) -> bool {
        !self.early.is_empty() || self.dropped > 0
    }

    /// Whether our progress must be reported.
    #[inline]
    pub(crate) fn owe(&mut self, asked: bool) {
        self.owed = true;
        self.asked |= asked;
    }

    pub(crate) fn owed(&self) -> Option<Owed> {
        let owed = Owed {
            is_asked: self.asked,
            has_gap: self.gap,
        };
        (self.owed || owed != Owed::default()).then_some(owed)
    }

    /// Whether packets are missing that the peer may not know of.
    pub(crate) fn has_news(&self) -> bool {
        self.gap
    }

    pub(crate) fn told(&mut self) {
        self.owed = false;
        self.asked = false;
        self.gap = false;
    }

    /// Packets found missing since the last call.
    pub(crate) fn take_missed(&mut self) -> u32 {
        mem::take(&mut self.missed)
    }

    /// Whether the packet `ahead` positions after the expected one is there.
    pub(crate) fn has(&self, ahead: u32) -> bool {
        let early = self.early.get(ahead as usize - 1);
        early.is_some_and(|early| !matches!(early, Early::Missing))
    }

    /// Notes that the data of the packet `ahead` positions after the expected one was placed. False
    /// without memory for the note.
    pub(crate) fn note_placed(&mut self, ahead: u32) -> bool {
        let reached = self.reach(ahead);
        if reached {
            self.set(ahead, Early::Placed);
        }
        reached
    }

    /// Buffers a packet that takes `psns` PSNs. False if it is too far ahead, or without memory for
    /// it.
    pub(crate) fn hold(&mut self, ahead: u32, psns: u32, packet: &Packet<'_>) -> bool {
        let bytes = HeldPacket::bytes(packet);
        if !self.memory.take(bytes) {
            return false;
        }
        if !self.reach(ahead.saturating_add(psns - 1)) {
            self.memory.give(bytes);
            return false;
        }
        self.set(ahead, Early::Held(Box::new(HeldPacket::new(packet))));
        // The responses to a READ take PSNs for which no packet arrives.
        for more in 1..psns {
            self.set(ahead + more, Early::Placed);
        }
        true
    }

    /// Notes that the packet `ahead` positions after the expected one could not be buffered, and is
    /// missing.
    pub(crate) fn note_dropped(&mut self, ahead: u32) {
        if ahead < AHEAD_MAX {
            self.gap |= self.dropped == 0;
            self.dropped = self.dropped.max(ahead);
        }
    }

    /// Drops everything buffered: nothing more will be executed.
    pub(crate) fn clear(&mut self) {
        while self.pop().is_some() {}
        self.dropped = 0;
    }

    /// Extends the table to `ahead` positions after the expected packet.
    fn reach(&mut self, ahead: u32) -> bool {
        if ahead >= AHEAD_MAX || !self.has_places(ahead as usize) {
            return false;
        }
        let more = (ahead as usize).saturating_sub(self.early.len());
        // The expected packet is missing, too, when the first one after it arrives.
        let missing = (more as u32 + u32::from(self.early.is_empty())).saturating_sub(1);
        self.gap |= missing > 0;
        self.missed = self.missed.saturating_add(missing);
        self.early
            .resize_with(self.early.len() + more, || Early::Missing);
        true
    }

    /// Grows the table if necessary; false without memory for that.
    fn has_places(&mut self, wanted: usize) -> bool {
        if wanted <= self.places {
            return true;
        }
        let places = wanted.next_power_of_two();
        if !self.memory.take((places - self.places) * PLACE_BYTES) {
            return false;
        }
        self.places = places;
        self.early.reserve_exact(places - self.early.len());
        true
    }

    /// Shrinks a table of which a quarter or less is used.
    fn give_places(&mut self) {
        let places = match self.early.len() {
            0 => 0,
            len if len <= self.places / 4 => self.places / 2,
            _ => return,
        };
        self.early.shrink_to(places);
        self.memory.give((self.places - places) * PLACE_BYTES);
        self.places = places;
    }

    fn set(&mut self, ahead: u32, early: Early) {
        let before = mem::replace(&mut self.early[ahead as usize - 1], early);
        self.give_back(&before);
    }

    fn give_back(&self, early: &Early) {
        if let Early::Held(held) = early {
            self.memory.give(HeldPacket::bytes(&held.packet()));
        }
    }

    /// Moves past the expected packet, which took `psns` PSNs, and returns what follows.
    pub(crate) fn advance(&mut self, psns: u32) -> Next {
        self.dropped = self.dropped.saturating_sub(psns);
        for _ in 1..psns {
            self.pop();
        }
        match self.pop() {
            None | Some(Early::Missing) => Next::Missing,
            Some(Early::Placed) => Next::Placed,
            Some(Early::Held(held)) => Next::Held(held),
        }
    }

    fn pop(&mut self) -> Option<Early> {
        let early = self.early.pop_front()?;
        self.give_back(&early);
        self.give_places();
        Some(early)
    }

    /// The missing ranges, in PSN order.
    ///
    /// The expected packet is in the first one if a later packet is there, unless it arrived and
    /// was `refused`, which a NAK reports.
    pub(crate) fn missing(
        &self,
        expected: Psn,
        refused: bool,
    ) -> impl Iterator<Item = PsnRange> + '_ {
        let mut at = u32::from(refused);
        let len = (self.early.len() as u32).max(self.dropped);
        std::iter::from_fn(move || {
            while at > 0 && at <= len && self.has(at) {
                at += 1;
            }
            if at > len || len == 0 {
                return None;
            }
            let first = at;
            at += 1;
            while at <= len && !self.has(at) {
                at += 1;
            }
            Some(PsnRange {
                first: expected.add(first),
                packets: at - first,
            })
        })
    }
}

impl Drop for Reorder {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use airdma_wire::{Bth, Headers, Opcode, Qpn};

    use super::*;

    fn packet(psn: u32) -> Packet<'static> {
        let bth = Bth::new(Opcode::RcSendOnly, Qpn::new(1), Psn::new(psn));
        Packet {
            headers: Headers::new(bth),
            payload: &[7; 100],
        }
    }

    fn ranges(reorder: &Reorder) -> Vec<(u32, u32)> {
        let missing = reorder.missing(Psn::new(0xff_ffff), false);
        missing
            .map(|range| (range.first.get(), range.packets))
            .collect()
    }

    #[test]
    fn what_is_missing_is_said_in_ranges_and_psns_wrap_around() {
        let mut reorder = Reorder::new(ReorderMemory::new(10_000));
        assert!(ranges(&reorder).is_empty());
        assert!(reorder.note_placed(2));
        assert!(reorder.hold(3, 1, &packet(2)));
        assert!(reorder.note_placed(6));
        assert_eq!(ranges(&reorder), [(0xff_ffff, 2), (3, 2)]);
        assert!(reorder.has(2) && reorder.has(3) && !reorder.has(4) && !reorder.has(7));
        // The first gap is filled.
        assert!(matches!(reorder.advance(1), Next::Missing));
        assert!(matches!(reorder.advance(1), Next::Placed));
        assert!(matches!(reorder.advance(1), Next::Held(held) if held.packet() == packet(2)));
        assert!(matches!(reorder.advance(1), Next::Missing));
        assert!(reorder.waits());
    }

    #[test]
    fn a_gap_is_news_until_it_is_told() {
        let mut reorder = Reorder::new(ReorderMemory::new(10_000));
        assert!(reorder.note_placed(1));
        assert!(reorder.has_news());
        reorder.told();
        assert!(reorder.note_placed(2));
        assert!(!reorder.has_news(), "the same gap");
        assert!(reorder.note_placed(4));
        assert!(reorder.has_news(), "3 is missing as well");
    }

    #[test]
    fn a_read_that_is_held_stands_for_the_psns_of_its_answers() {
        let mut reorder = Reorder::new(ReorderMemory::new(10_000));
        assert!(reorder.hold(1, 3, &packet(0)));
        assert!(reorder.note_placed(5));
        assert_eq!(ranges(&reorder), [(0xff_ffff, 1), (3, 1)]);
        assert!(matches!(reorder.advance(1), Next::Held(_)));
        assert!(matches!(reorder.advance(3), Next::Missing));
        assert!(matches!(reorder.advance(1), Next::Placed));
    }

    #[test]
    fn memory_is_bounded_and_given_back() {
        let memory = ReorderMemory::new(2_000);
        let mut reorder = Reorder::new(memory.clone());
        let mut held = 0;
        while reorder.hold(held + 1, 1, &packet(held)) {
            held += 1;
        }
        assert!((3..20).contains(&held), "{held} packets of 100 bytes");
        assert!(
            !reorder.hold(4_000, 1, &packet(0)),
            "no memory for so large a gap"
        );
        for _ in 0..held {
            assert!(matches!(reorder.advance(1), Next::Held(_)));
        }
        assert_eq!(memory.left(), 2_000);
        assert!(reorder.hold(2, 1, &packet(1)));
        assert_ne!(memory.left(), 2_000);
        drop(reorder);
        assert_eq!(memory.left(), 2_000);
    }

    /// A peer leaves one packet missing, and keeps the table as long as it was.
    #[test]
    fn a_table_counts_as_long_as_it_is() {
        let memory = ReorderMemory::new(1 << 20);
        let mut reorder = Reorder::new(memory.clone());
        assert!(reorder.note_placed(AHEAD_MAX - 1));
        for _ in 0..AHEAD_MAX {
            let used = (1 << 20) - memory.left();
            let table = reorder.early.capacity() * PLACE_BYTES;
            assert!(used >= table, "{used} of {table} bytes");
            reorder.advance(1);
        }
        assert_eq!((memory.left(), reorder.early.capacity()), (1 << 20, 0));
    }

    #[test]
    fn a_peer_has_no_more_of_the_memory_than_it_leaves_to_others() {
        const ALL: usize = 90_000;
        let memory = ReorderMemory::new(ALL);
        let fill = |memory: &ReorderMemory| {
            let before = memory.left();
            let mut pairs: Vec<_> = (0..4).map(|_| Reorder::new(memory.clone())).collect();
            for ahead in 1..200 {
                for reorder in &mut pairs {
                    reorder.hold(ahead, 1, &packet(ahead));
                }
            }
            (pairs, before - memory.left())
        };
        let (first, used) = fill(&memory.for_peer());
        assert!(used.abs_diff(ALL / 2) < 600, "{used} by four queue pairs");
        let (_second, used) = fill(&memory.for_peer());
        assert!(used.abs_diff(ALL / 4) < 600, "{used} of what is left");
        drop(first);
        let (_third, used) = fill(&memory.for_peer());
        assert!(used.abs_diff(ALL * 3 / 8) < 600, "{used} once one is gone");
    }

    #[test]
    fn a_packet_without_memory_is_missing_like_those_before() {
        let mut reorder = Reorder::new(ReorderMemory::new(0));
        assert!(!reorder.hold(3, 1, &packet(2)));
        reorder.note_dropped(3);
        assert!(reorder.has_news());
        assert_eq!(ranges(&reorder), [(0xff_ffff, 4)]);
        reorder.told();
        reorder.note_dropped(4);
        assert!(!reorder.has_news(), "the same gap");
        assert_eq!(ranges(&reorder), [(0xff_ffff, 5)]);
        for _ in 0..5 {
            assert!(matches!(reorder.advance(1), Next::Missing));
        }
        assert!(ranges(&reorder).is_empty());
    }

    #[test]
    fn nothing_is_kept_that_no_requester_can_have_sent() {
        let mut reorder = Reorder::new(ReorderMemory::new(1 << 20));
        assert!(!reorder.note_placed(AHEAD_MAX));
        assert!(!reorder.hold(AHEAD_MAX - 1, 2, &packet(0)));
        assert!(!reorder.hold(1, u32::MAX, &packet(0)));
        assert!(!reorder.waits());
        assert!(reorder.note_placed(AHEAD_MAX - 1));
    }
}
