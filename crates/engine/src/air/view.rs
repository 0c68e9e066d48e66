//! The parts of a worker that air mode reads and changes in addition to its own state.

use crate::index::{AirIndex, PeerIndex, QpIndex};
use crate::tables::counters::Counters;
use crate::tables::peers::Peers;
use crate::tables::qp_table::QpTable;
use airdma_cm::Manager;
use airdma_wire::Neighbour;

/// The parts that a call into [`Air`](super::Air) may access. The caller adds `wakes` to the line
/// afterwards.
pub(crate) struct AirView<'a> {
    pub(crate) qps: &'a mut QpTable,
    pub(crate) peers: &'a mut Peers,
    pub(crate) counters: &'a mut Counters,
    /// The addresses of the GID table.
    pub(crate) rows: &'a [Option<Neighbour>],
    /// The connection manager, while queue pair 1 is open.
    pub(crate) manager: Option<&'a Manager>,
    /// Queue pairs that may send, in the order in which they join the line.
    pub(crate) wakes: &'a mut Vec<QpIndex>,
}

impl AirView<'_> {
    pub(super) fn wake(&mut self, index: QpIndex) {
        self.wakes.push(index);
    }

    /// It is the queue pair's turn to send to a peer whose rate is controlled.
    pub(super) fn give_turn(&mut self, index: QpIndex) {
        if let Some(slot) = self.qps.slot(index) {
            slot.waits = false;
        }
        self.wake(index);
    }

    /// Wakes the next queue pair that the window of a host held back, if there is room now.
    pub(super) fn unblock(&mut self, peer: PeerIndex) {
        if let Some(index) = self.peers.unblock(peer) {
            if let Some(slot) = self.qps.slot(index) {
                slot.blocked = false;
            }
            self.wake(index);
        }
    }

    /// The window of a connected queue pair is that of the rate controller `paced` from now on, or
    /// the one of all queue pairs without a controller.
    pub(super) fn change_window(&mut self, index: QpIndex, paced: Option<AirIndex>) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        let Some(connection) = &mut slot.connection else {
            return;
        };
        let before = connection.peer;
        self.peers.leave(before, index, slot.in_flight);
        connection.peer = self.peers.join(connection.remote, paced);
        let in_flight = slot.in_flight;
        self.peers.update(connection.peer, 0, in_flight, false, 0);
        if std::mem::take(&mut slot.blocked) {
            self.wakes.push(index);
        }
        // The bytes that it had in flight are room for the other queue pairs now.
        self.unblock(before);
    }
}
