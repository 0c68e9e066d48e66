//! Proof that a peer is at its address.
//!
//! To an address without a proof this process sends no message of air mode on its own: a forged
//! connection request in another host's name would direct all of them there.
//!
//! | proof | |
//! |---|---|
//! | an answer of connection management | its RTU, or its REP if we asked |
//! | a packet for the queue pair that is accepted in order | whose PSN no other host knows |
//! | a message that names the instance that it was told | which no other host knows |
//! | a program that connects a queue pair by other means | it vouches for the peer |
//!
//! A question from there is answered, once, with as many bytes; questions to it are sent once it is
//! proven to be there.

use super::{Air, AirIndex, AirView};
use crate::index::QpIndex;
use crate::tables::qp_table::Connection;
use crate::tables::qp_table::QpTable;
use airdma_transport::Time;
use airdma_wire::{Gid, Neighbour, Qpn};

impl Air {
    /// Whether the peer of a queue pair is proven to be there when it is connected.
    pub(super) fn is_there(
        &self,
        view: &mut AirView<'_>,
        connection: &Connection,
        local: Qpn,
        number: Qpn,
    ) -> bool {
        // Without knowledge of the connection manager the program vouches for the peer.
        view.manager.is_none_or(|manager| {
            let remote = Gid::from(connection.remote);
            manager.has_answered(local, remote, number) != Some(false)
        })
    }

    /// Records a datagram of connection management from an address.
    #[cold]
    pub(crate) fn note_management(
        &mut self,
        view: &mut AirView<'_>,
        remote: Neighbour,
        local: Neighbour,
        now: Time,
    ) {
        if self.unproven == 0 {
            return;
        }
        for index in self.directory.between((remote, local)) {
            let peer = &self.peers[index.place()];
            if peer.is_proven {
                continue;
            }
            let users = peer.users.clone();
            let has_answered = users.iter().any(|&user| {
                let queue_pair = view.qps.slot(user).map(|slot| &slot.qp);
                view.manager.zip(queue_pair).is_some_and(|(manager, qp)| {
                    let (local, number) = (qp.qpn(), qp.attributes().dest_qpn);
                    let remote = Gid::from(remote);
                    manager.has_answered(local, remote, number) == Some(true)
                })
            });
            if has_answered {
                self.prove(index, now);
            }
        }
    }

    /// Packets have come for a queue pair from an address without a proof.
    #[cold]
    pub(super) fn note_unproven(
        &mut self,
        qps: &mut QpTable,
        queue_pair: QpIndex,
        index: AirIndex,
        now: Time,
    ) {
        let slot = qps.slot(queue_pair);
        if slot.is_some_and(|slot| slot.qp.has_heard_peer()) {
            self.prove(index, now);
        }
    }
}

impl Air {
    /// The peer is proven to be there: postponed questions are sent.
    pub(super) fn prove(&mut self, index: AirIndex, now: Time) {
        let peer = self.peer(index);
        if std::mem::replace(&mut peer.is_proven, true) {
            return;
        }
        let wants_asking = std::mem::take(&mut peer.wants_asking);
        self.unproven -= 1;
        if wants_asking {
            self.ask(index, now);
        }
    }
}
