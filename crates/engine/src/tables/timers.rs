//! When which queue pair, or which peer, wants to be called: a binary heap with at most one entry
//! for each.
//!
//! A deadline that moves later (every acknowledgement does that) costs nothing: the entry stays,
//! comes up early, and is put back at the deadline that then holds. One that moves earlier is moved
//! within the heap, which therefore knows where each entry is. One that ends costs as little: its
//! entry stays and comes up too, but its queue pair, which is one of thousands and in no cache, is
//! not called.

use crate::index::{Place, QpIndex};
use airdma_transport::Time;

/// The deadlines of all queue pairs, or of others, by their index in their table.
pub(crate) struct Timers<I = QpIndex> {
    /// A binary heap, earliest first: the children of `n` are `2n + 1` and `2n + 2`.
    heap: Vec<(Time, I)>,
    /// Where in the heap the entry of each is, or [`NOWHERE`].
    positions: Vec<u32>,
}

const NOWHERE: u32 = !ENDED;
/// Bit of a position: the deadline has ended.
const ENDED: u32 = 1 << 31;

impl<I> Default for Timers<I> {
    fn default() -> Self {
        Timers {
            heap: Vec::new(),
            positions: Vec::new(),
        }
    }
}

impl<I: Place> Timers<I> {
    /// Takes note of the deadline that `index` has now.
    pub(crate) fn set(&mut self, index: I, deadline: Option<Time>) {
        let Some(deadline) = deadline else {
            return;
        };
        let at = match self.position(index) {
            Some(at) => {
                self.positions[index.place()] &= !ENDED;
                if self.heap[at].0 <= deadline {
                    return;
                }
                at
            }
            None => self.push(index, deadline),
        };
        self.heap[at].0 = deadline;
        self.sift_up(at);
    }

    /// The next one whose entry is due at `now`; the entry is gone. Its deadline may have
    /// moved since.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<I> {
        loop {
            let &(time, index) = self.heap.first()?;
            if time > now {
                return None;
            }
            let has_ended = self.positions[index.place()] & ENDED != 0;
            self.remove(index);
            if !has_ended {
                return Some(index);
            }
        }
    }

    /// Takes note that `index` has no deadline any more.
    #[inline]
    pub(crate) fn end(&mut self, index: I) {
        if let Some(position) = self.positions.get_mut(index.place())
            && *position != NOWHERE
        {
            *position |= ENDED;
        }
    }

    /// Forgets one.
    pub(crate) fn remove(&mut self, index: I) {
        let Some(at) = self.position(index) else {
            return;
        };
        self.positions[index.place()] = NOWHERE;
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            self.place(at);
            self.sift_up(at);
            self.sift_down(at);
        }
    }

    /// How many are set.
    pub(crate) fn count(&self) -> usize {
        self.heap.len()
    }

    /// When to look again at the latest; [`Time::NEVER`] if none is set.
    #[inline]
    pub(crate) fn next(&self) -> Time {
        self.heap.first().map_or(Time::NEVER, |&(time, _)| time)
    }

    fn position(&self, index: I) -> Option<usize> {
        let &at = self.positions.get(index.place())?;
        (at != NOWHERE).then_some((at & !ENDED) as usize)
    }

    fn push(&mut self, index: I, deadline: Time) -> usize {
        if self.positions.len() <= index.place() {
            self.positions.resize(index.place() + 1, NOWHERE);
        }
        self.heap.push((deadline, index));
        let at = self.heap.len() - 1;
        self.place(at);
        at
    }

    /// Remembers where the entry at `at` is.
    fn place(&mut self, at: usize) {
        let (_, index) = self.heap[at];
        let position = &mut self.positions[index.place()];
        *position = at as u32 | *position & ENDED;
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.place(one);
        self.place(other);
    }

    fn sift_up(&mut self, mut at: usize) {
        while at > 0 && self.heap[at].0 < self.heap[(at - 1) / 2].0 {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let children = 2 * at + 1..self.heap.len().min(2 * at + 3);
            let Some(least) = children.min_by_key(|&child| self.heap[child].0) else {
                return;
            };
            if self.heap[at].0 <= self.heap[least].0 {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qp(place: u32) -> QpIndex {
        QpIndex::new(place)
    }

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn later_deadlines_come_up_early_and_earlier_ones_in_time() {
        let mut timers = Timers::<QpIndex>::default();
        for nanos in 10..1000 {
            timers.set(qp(4), Some(at(nanos)));
        }
        assert_eq!(timers.pop_due(at(9)), None);
        assert_eq!(timers.pop_due(at(10)), Some(qp(4)));
        assert_eq!(timers.next(), Time::NEVER);
        timers.set(qp(4), Some(at(100)));
        timers.set(qp(4), None);
        timers.set(qp(4), Some(at(50)));
        assert_eq!(timers.next(), at(50));
        assert_eq!(
            (timers.pop_due(at(100)), timers.pop_due(at(100))),
            (Some(qp(4)), None)
        );
    }

    #[test]
    fn a_deadline_that_ended_comes_up_no_more() {
        let mut timers = Timers::<QpIndex>::default();
        for place in 0..100 {
            timers.set(qp(place), Some(at(10)));
            timers.end(qp(place));
        }
        // It has another one, and the entry comes up early as ever.
        timers.set(qp(7), Some(at(20)));
        timers.end(qp(200));
        assert_eq!(timers.pop_due(at(10)), Some(qp(7)));
        assert_eq!(timers.pop_due(at(30)), None);
        assert_eq!(timers.count(), 0);
    }

    /// Against a table that is searched from end to end.
    #[test]
    fn any_sequence_of_calls_keeps_one_entry_each_and_their_order() {
        let mut timers = Timers::<QpIndex>::default();
        let mut model = [None::<u64>; 40];
        let mut ended = [false; 40];
        let mut seed = 7u64;
        let mut random = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % bound
        };
        for _ in 0..100_000 {
            let index = random(40) as usize;
            // No two have the same.
            let time = random(1000) * 64 + index as u64;
            match random(5) {
                0 => {
                    timers.remove(QpIndex::from_place(index));
                    model[index] = None;
                }
                1 => {
                    timers.end(QpIndex::from_place(index));
                    ended[index] = model[index].is_some();
                }
                2 => {
                    let due = timers.pop_due(at(time));
                    // Those that have ended and come before it are gone.
                    let end = due.map_or(time + 1, |due| model[due.place()].expect("an entry"));
                    for (entry, ended) in model.iter_mut().zip(&ended) {
                        entry.take_if(|of| *ended && *of < end);
                    }
                    let earliest = model.iter().flatten().min().copied();
                    let Some(due) = due.map(QpIndex::place) else {
                        assert!(earliest.is_none_or(|earliest| earliest > time));
                        continue;
                    };
                    assert_eq!(model[due], earliest);
                    assert!(earliest <= Some(time));
                    model[due] = None;
                }
                _ => {
                    timers.set(QpIndex::from_place(index), Some(at(time)));
                    ended[index] = false;
                    model[index] = Some(model[index].map_or(time, |old| old.min(time)));
                }
            }
            assert_eq!(timers.heap.len(), model.iter().flatten().count());
            assert_eq!(
                timers.next(),
                model
                    .iter()
                    .flatten()
                    .min()
                    .map_or(Time::NEVER, |&time| at(time))
            );
        }
    }
}
