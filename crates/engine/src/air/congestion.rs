//! Congestion notification packets (CNPs, RoCEv2 annex A17.9.3), both ways.
//!
//! A host notifies the queue pair that sent packets with congestion marks, at most once in 50 us.
//! Peers that get the marks in reports get no CNPs. A host that gets CNPs sends to that peer, by
//! all queue pairs together, at the rate of DCQCN from then on. Before the first one nothing is
//! limited.

use super::pace::{ECT_0, Pace};
use super::{Air, AirIndex, AirView};
use crate::config::RateControl;
use crate::counter_names::EngineCounter;
use crate::index::QpIndex;
use crate::tables::destination::destination;
use crate::tables::qp_table::{Connection, QpTable};
use airdma_port::Destination;
use airdma_transport::{QueuePair, Time};
use airdma_wire::Bth;
use airdma_wire::cnp::{CNP_LEN, cnp};

/// Traffic class of a CNP: DSCP 48, the default of NICs, which passes the queue that packets wait
/// in.
const CNP_TRAFFIC_CLASS: u8 = 48 << 2 | ECT_0;

impl Air {
    /// Packets with congestion marks came for a queue pair.
    #[cold]
    pub(crate) fn note_marked(&mut self, qps: &mut QpTable, index: QpIndex, now: Time) {
        let Some(slot) = qps.slot(index) else {
            return;
        };
        let Some(connection) = slot.connection else {
            return;
        };
        let hears = |air| self.peer(air).tells_buffers();
        if connection.air.is_some_and(hears) || !slot.notification_point.handle_marked(now) {
            return;
        }
        if !self.notifies.contains(&index) {
            self.notifies.push_back(index);
        }
    }

    /// Writes the next CNP into `out`.
    pub(super) fn poll_cnp(
        &mut self,
        view: &mut AirView<'_>,
        out: &mut [u8],
    ) -> Option<(usize, Destination)> {
        while let Some(index) = self.notifies.pop_front() {
            let slot = view.qps.slot(index);
            let Some(slot) = slot.filter(|slot| slot.connection.is_some()) else {
                continue;
            };
            let attributes = *slot.qp.attributes();
            let mut notification = cnp(attributes.dest_qpn);
            if let Some(header) = notification.first_chunk_mut() {
                Bth::mark(header, slot.qp.tag());
            }
            out[..CNP_LEN].copy_from_slice(&notification);
            let len = match slot.seal.as_deref_mut() {
                None => Some(CNP_LEN),
                Some(seal) => seal
                    .session()
                    .and_then(|session| session.seal(out, CNP_LEN)),
            };
            let Some(len) = len else {
                continue;
            };
            let destination = Destination {
                tos: CNP_TRAFFIC_CLASS,
                ..destination(&attributes.path, view.rows)
            };
            view.counters.count(EngineCounter::CnpsSent);
            return Some((len, destination));
        }
        None
    }

    /// A queue pair received a CNP: the rate to its peer falls. A mark on the CNP itself does not
    /// concern this host's packets.
    #[cold]
    pub(crate) fn take_cnp(
        &mut self,
        view: &mut AirView<'_>,
        index: QpIndex,
        now: Time,
        bth: &Bth,
    ) {
        if self.rate_control == RateControl::Window {
            return;
        }
        let takes = |qp: &QueuePair| qp.state().sends() && qp.takes(bth);
        let slot = view.qps.slot(index).filter(|slot| takes(&slot.qp));
        let Some(connection) = slot.and_then(|slot| slot.connection) else {
            return;
        };
        let air = connection.air;
        let air = air.unwrap_or_else(|| self.control(view, index, &connection, now));
        let line_rate = self.line_rate;
        let peer = self.peer(air);
        if peer.pace.is_none() {
            peer.pace = Some(Pace::dcqcn(line_rate, now));
        }
        self.counts_datagrams = true;
        self.with_pace(view, air, |pace| pace.take_cnp(now));
    }

    /// Gives a host a rate, for all queue pairs connected to it that have none.
    fn control(
        &mut self,
        view: &mut AirView<'_>,
        index: QpIndex,
        connection: &Connection,
        now: Time,
    ) -> AirIndex {
        let air = self.add(connection, None, now);
        for other in self.directory.plain_between(connection.ends()) {
            let slot = view.qps.slot(other);
            if let Some(other_connection) = slot.and_then(|slot| slot.connection.as_mut())
                && other_connection.air.is_none()
            {
                other_connection.air = Some(air);
                self.peer(air).users.insert(other);
            }
        }
        debug_assert!(self.peer(air).users.contains(&index));
        air
    }
}
