//! Buffers of programs, between the transport and a disk or other consumer: what a peer is told of
//! ours, and the use of what it reports.

use super::{Air, AirIndex};
use crate::index::QpIndex;
use crate::queues::application_buffer::Fill;
use crate::tables::qp_table::QpTable;
use airdma_transport::Time;

/// Bytes that a peer's program took out of its buffer: those that arrived and are not in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// Content of the buffer when the peer began to count received bytes.
    before: u64,
    total: u64,
}

impl Taken {
    /// State of a peer that has received `received` bytes since it began to count, with `left` in
    /// the buffer.
    pub(super) fn new(received: u64, left: u64) -> Self {
        Taken {
            before: left.saturating_sub(received),
            total: received.saturating_sub(left),
        }
    }

    /// Total until now. A program may count bytes only once a message is complete, so the total may
    /// be early, but never falls.
    pub(super) fn total(&mut self, received: u64, left: u64) -> u64 {
        let taken = self.before.saturating_add(received).saturating_sub(left);
        self.total = self.total.max(taken);
        self.total
    }
}

impl Air {
    /// A program has emptied its buffer: the peer may have stopped for it, and no packet of it
    /// would cause a report.
    pub(crate) fn note_application_buffer(&mut self, qps: &mut QpTable, index: QpIndex, now: Time) {
        let slot = qps.slot(index);
        let connection = slot.and_then(|slot| slot.connection);
        let Some(air) = connection.and_then(|connection| connection.air) else {
            return;
        };
        let peer = self.peer(air);
        if peer.tells_buffers() {
            let by = peer.report_soon(now);
            self.call_at(air, by);
        }
    }

    /// Buffers of the programs here, over all queue pairs connected to a peer, since it sends to
    /// all of them at one rate. Only a peer that requested it is told.
    pub(super) fn application_buffers(&mut self, qps: &mut QpTable, index: AirIndex) -> Fill {
        let peer = &self.peers[index.place()];
        let mut all = Fill::default();
        if !peer.tells_buffers() {
            return all;
        }
        for &user in &peer.users {
            if let Some(slot) = qps.slot(user) {
                let fill = slot.side.shared.application_buffer.tell();
                all.bytes = all.bytes.saturating_add(fill.bytes);
                all.capacity = all.capacity.saturating_add(fill.capacity);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_and_is_not_there_was_taken() {
        let mut taken = Taken::new(1_000, 400);
        assert_eq!(taken.total(1_000, 400), 600);
        assert_eq!(taken.total(3_000, 2_000), 1_000);
        assert_eq!(taken.total(3_000, 0), 3_000);
    }

    #[test]
    fn what_was_there_when_the_peer_began_to_count_is_taken_too() {
        let mut taken = Taken::new(100, 5_000);
        assert_eq!(taken.total(100, 5_000), 0);
        assert_eq!(taken.total(600, 1_000), 4_500);
    }

    #[test]
    fn a_message_that_counts_when_it_is_whole_takes_nothing_back() {
        let mut taken = Taken::new(0, 0);
        assert_eq!(taken.total(900, 0), 900);
        assert_eq!(taken.total(1_000, 1_000), 900);
        assert_eq!(taken.total(1_500, 1_000), 900);
        assert_eq!(taken.total(1_500, 0), 1_500);
    }
}
