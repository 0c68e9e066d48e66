//! From which UDP port the packets of a reliable connection come: from the one that its first good
//! packet came from.
//!
//! RoCEv2 leaves the port to the sender, for entropy (IBTA annex A17.9), and senders keep one for
//! each queue pair: rxe and NICs derive it from the numbers of both, airdma sends all from 4791. A
//! program without privileges at the peer's host has the peer's address, and that port only by way
//! of `IP_PKTINFO` and another address of the host: a hurdle, no proof. As the ICRC covers it,
//! nothing on the way changes it.
//!
//! A peer that sends from 4791 is held to that. Another may have its reasons to change: where it is
//! not heard from any more, another port is tried, and is the new one if what comes from there is
//! good.

use super::state::WorkerState;
use crate::index::QpIndex;
use crate::tables::qp_table::{QpSlot, Silence};
use airdma_port::Received;
use airdma_transport::{Progress, Time};
use airdma_wire::{Opcode, ROCE_PORT};
use std::time::Duration;

/// All packets of airdma's come from there.
const AIRDMA_PORT: u32 = ROCE_PORT as u32;
/// Without a good packet from the old port for this long, another source port is accepted. A peer
/// repeats its packets for longer before it gives up.
const SILENCE: Duration = Duration::from_millis(500);

/// A port that is the connection's if what comes from there is good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) index: QpIndex,
    port: u32,
    before: Progress,
}

impl WorkerState {
    /// Whether a queue pair takes a packet that is not from its peer's address and port.
    #[cold]
    pub(crate) fn takes_from(
        &mut self,
        index: QpIndex,
        now: Time,
        received: &Received<'_>,
    ) -> bool {
        let Some(slot) = self.qps.slot(index) else {
            return false;
        };
        if slot.seal.is_some() || !slot.accepts(received.source, received.destination) {
            return false;
        }
        let port = u32::from(received.source_port);
        // NICs send congestion notifications from port 0.
        let is_notification = received.bytes.first() == Some(&(Opcode::Cnp as u8));
        let Some(connection) = slot.connection.as_mut().filter(|_| !is_notification) else {
            return true;
        };
        let Some(before) = slot.qp.progress() else {
            // Whatever comes is good to an unreliable connection.
            connection.source_port = port;
            return true;
        };
        let is_open = match connection.source_port {
            // As is known by now.
            known if known == port => return true,
            0 => true,
            AIRDMA_PORT => false,
            _ => is_silent(slot, now, before),
        };
        if is_open {
            self.candidate = Some(Candidate {
                index,
                port,
                before,
            });
        }
        is_open
    }

    /// A packet that came from a port is done with, and no other since: if it was good, the port is
    /// the connection's.
    pub(crate) fn resolve_candidate(&mut self, now: Time) {
        let Some(Candidate {
            index,
            port,
            before,
        }) = self.candidate.take()
        else {
            return;
        };
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        if slot.qp.progress().is_none_or(|after| after == before) {
            return;
        }
        slot.silence = None;
        if let Some(connection) = &mut slot.connection {
            connection.source_port = port;
        }
        let number = slot.qp.qpn();
        // Good data shows that the peer is there, as its last word of connection management would
        // (IBTA 12.9.7.2).
        if let Some(gsi) = &mut self.gsi {
            gsi.data_arrived(now, number);
        }
    }
}

fn is_silent(slot: &mut QpSlot, now: Time, progress: Progress) -> bool {
    let known = slot.silence.filter(|silence| silence.progress == progress);
    let silence = known.unwrap_or(Silence {
        since: now,
        progress,
    });
    slot.silence = Some(silence);
    now.duration_since(silence.since) >= SILENCE
}
