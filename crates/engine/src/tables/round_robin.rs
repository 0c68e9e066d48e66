//! Turns to transmit: deficit round robin by bytes (Shreedhar and Varghese, SIGCOMM 1995).
//!
//! A queue pair with packets to send waits in line. In its turn it may send [`QUANTUM_BYTES`] more
//! than it has left; what it overdraws with its last packet is subtracted next time. So queue pairs
//! get equal bytes, whatever their packet sizes.

use crate::index::QpIndex;
use std::collections::VecDeque;

/// Bytes per turn: one segmented send, so that a turn costs one entry in a batch.
pub(crate) const QUANTUM_BYTES: i64 = 64 * 1024;

/// The line, by index in the table of queue pairs.
#[derive(Default)]
pub(crate) struct RoundRobin {
    line: VecDeque<QpIndex>,
}

/// What a queue pair knows of its place in the line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    queued: bool,
    /// Bytes it may still send in this turn. Zero or less ends the turn.
    deficit: i64,
}

impl Turn {
    /// Bytes that it may still send, at least one while it stands in line.
    pub(crate) fn deficit(&self) -> i64 {
        self.deficit
    }
}

impl RoundRobin {
    /// Puts a queue pair at the end of the line, unless it stands there already.
    pub(crate) fn join(&mut self, index: QpIndex, turn: &mut Turn) {
        if !turn.queued {
            turn.queued = true;
            turn.deficit = QUANTUM_BYTES;
            self.line.push_back(index);
        }
    }

    /// The queue pair that may transmit now.
    pub(crate) fn first(&self) -> Option<QpIndex> {
        self.line.front().copied()
    }

    /// The first one sent `bytes`. When its turn is over it goes to the end of the line.
    pub(crate) fn charge(&mut self, turn: &mut Turn, bytes: i64) {
        turn.deficit -= bytes;
        if turn.deficit <= 0 {
            turn.deficit += QUANTUM_BYTES;
            self.line.rotate_left(1);
        }
    }

    /// The first one has nothing more to send (or is gone, and has no turn to hand back).
    pub(crate) fn leave(&mut self, turn: Option<&mut Turn>) {
        self.line.pop_front();
        if let Some(turn) = turn {
            *turn = Turn::default();
        }
    }

    /// Takes a queue pair out that is destroyed.
    pub(crate) fn remove(&mut self, index: QpIndex) {
        self.line.retain(|&other| other != index);
    }

    pub(crate) fn count(&self) -> usize {
        self.line.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qp(place: u32) -> QpIndex {
        QpIndex::new(place)
    }

    #[test]
    fn big_and_small_packets_get_equal_bytes() {
        let mut active = RoundRobin::default();
        let mut turns = [Turn::default(); 2];
        let packet = [4096, 100];
        let mut sent = [0usize; 2];
        for (index, turn) in turns.iter_mut().enumerate() {
            active.join(QpIndex::from_place(index), turn);
            active.join(QpIndex::from_place(index), turn);
        }
        while sent.iter().sum::<usize>() < 100 * QUANTUM_BYTES as usize {
            let first = active.first().map_or(0, QpIndex::place);
            sent[first] += packet[first];
            active.charge(&mut turns[first], packet[first] as i64);
        }
        assert!(
            sent[0].abs_diff(sent[1]) <= QUANTUM_BYTES as usize + 4096,
            "{sent:?}"
        );
    }

    #[test]
    fn who_has_nothing_to_send_leaves_and_may_come_back() {
        let mut active = RoundRobin::default();
        let mut turns = [Turn::default(); 2];
        active.join(qp(0), &mut turns[0]);
        active.join(qp(1), &mut turns[1]);
        active.leave(Some(&mut turns[0]));
        assert_eq!(active.first(), Some(qp(1)));
        active.join(qp(0), &mut turns[0]);
        active.remove(qp(1));
        assert_eq!(active.first(), Some(qp(0)));
        active.leave(None);
        assert!(active.is_empty());
    }
}
