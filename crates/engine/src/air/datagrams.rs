//! Datagrams to a process in air mode, and from one: SENDs of datagram queue pairs, and records.
//!
//! They share the queue of the radio with the connections to that process. So they take turns with
//! these at its pacer, and its reports count them.

use super::directory::Ends;
use super::{Air, AirIndex, Arrived};
use crate::sharing::steering::range_of;
use airdma_transport::Time;
use airdma_wire::Qpn;

impl Air {
    /// The process at the other end that has this queue pair, if the rate to it is controlled.
    pub(crate) fn pacer_of(&self, ends: Ends, number: Qpn) -> Option<AirIndex> {
        let process = self.directory.find(ends, Some(range_of(number)));
        let index = process.or_else(|| self.directory.find(ends, None))?;
        self.peers[index.place()].pace.as_ref().map(|_| index)
    }

    /// Whether only the path limits the rate to a peer, and no buffer of its program.
    pub(crate) fn is_limited_by_path(&self, index: AirIndex) -> bool {
        let pace = self.peers[index.place()].pace.as_ref();
        pace.is_some_and(|pace| !pace.is_limited_by_program())
    }

    /// A datagram from a queue pair of a peer was taken.
    #[inline(never)] // most peers of datagrams are in no air mode
    pub(crate) fn note_datagram(&mut self, ends: Ends, from: Qpn, arrived: Arrived, now: Time) {
        let Some(index) = self.directory.find(ends, Some(range_of(from))) else {
            return;
        };
        let peer = self.peer(index);
        if peer.gets_reports() {
            peer.arrivals.note(now, arrived, 0);
            let by = peer.report_soon(now);
            self.call_at(index, by);
        }
    }
}
