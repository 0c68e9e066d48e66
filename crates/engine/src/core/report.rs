//! What a device reports of itself to a process that looks at it, as one line of JSON.
//!
//! All of it is there for the data path's own purposes, and read while the worker lock is held:
//! nothing is counted for a report. Names are fixed and addresses are numbers, so that nothing in
//! it needs an escape.
//!
//! | member | holds |
//! |---|---|
//! | `version` | 1 |
//! | `interface` | index of the interface |
//! | `now_ns` | time of the report, by a clock that only runs forwards |
//! | `counters` | those of this process that are not 0 |
//! | `send_queue` | `bytes` that the line has not taken yet, and `capacity` if known; `full`: packets wait for room |
//! | `peers` | `address`, `window_bytes` (null: no limit), `in_flight_bytes`, `waiting` queue pairs, `silent` |
//! | `queue_pairs` | `number`, `type`, `state`, `peer`, `peer_number`, what [`Activity`] has, `waits_for` |
//! | `queue_pairs_total` | how many there are; a report has 1,024 at most |

use super::Core;
use crate::progress::worker_lock::NO_ROOM_WANTED;
use crate::tables::peers::{PeerState, Peers};
use crate::tables::qp_table::QpSlot;
use crate::{QpState, QpType};
use airdma_port::QueueFill;
use airdma_port::tap::Sink;
use airdma_transport::Activity;
use airdma_wire::{Gid, Neighbour};
use std::fmt::Write as _;
use std::sync::Arc;

const QUEUE_PAIRS_MAX: usize = 1024;
const PEERS_MAX: usize = 256;

impl Core {
    /// What the device is doing.
    pub(crate) fn report(&self) -> String {
        let full = self.worker_lock.unsent() != NO_ROOM_WANTED;
        let now_ns = self.now().as_nanos();
        let interface = self.info.interface_index;
        let mut out = format!(r#"{{"version":1,"interface":{interface},"now_ns":{now_ns}"#);
        self.visit(|worker| {
            self.count(worker);
            let counters = worker.state.counters.named();
            let counters = counters.into_iter().filter(|(_, value)| *value > 0);
            let counters = counters.map(|(name, value)| format!(r#""{name}":{value}"#));
            push(&mut out, "counters", &format!("{{{}}}", join(counters)));
            push(
                &mut out,
                "send_queue",
                &send_queue(worker.send_queue(), full),
            );
            let peers = &worker.state.scheduler.peers;
            push(
                &mut out,
                "peers",
                &list(peers.states().take(PEERS_MAX).map(peer)),
            );
            let slots = worker.state.qps.all();
            let slots = slots
                .take(QUEUE_PAIRS_MAX)
                .map(|slot| queue_pair(slot, peers));
            push(&mut out, "queue_pairs", &list(slots));
            let total = worker.state.qps.count();
            push(&mut out, "queue_pairs_total", &total.to_string());
        });
        out.push('}');
        out
    }

    /// From now on the packets of the device are copied to `sink`. False if there are too many
    /// such, or there is no port.
    pub(crate) fn tap(&self, sink: &Arc<Sink>) -> bool {
        self.visit(|worker| worker.tap(sink))
    }

    /// Ends that.
    pub(crate) fn untap(&self, sink: &Arc<Sink>) {
        self.visit(|worker| worker.untap(sink));
    }
}

fn push(out: &mut String, name: &str, value: &str) {
    // Writing to a string does not fail.
    let _ = write!(out, r#","{name}":{value}"#);
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(",")
}

fn list(parts: impl Iterator<Item = String>) -> String {
    format!("[{}]", join(parts))
}

fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "null".into(), |value| value.to_string())
}

fn text(address: Neighbour) -> String {
    (address.ip()).map_or_else(|| Gid::from(address).to_string(), |ip| ip.to_string())
}

fn send_queue(fill: Option<QueueFill>, full: bool) -> String {
    let fill = fill.unwrap_or_default();
    let (bytes, capacity) = (fill.bytes, number(fill.capacity));
    format!(r#"{{"bytes":{bytes},"capacity":{capacity},"full":{full}}}"#)
}

fn peer(state: PeerState) -> String {
    let (address, window) = (text(state.address), number(state.window));
    let (in_flight, waiting, silent) = (state.in_flight, state.waiting, state.is_silent);
    format!(
        r#"{{"address":"{address}","window_bytes":{window},"in_flight_bytes":{in_flight},"waiting":{waiting},"silent":{silent}}}"#
    )
}

fn queue_pair(slot: &QpSlot, peers: &Peers) -> String {
    let activity = slot.qp.activity();
    let (service, state) = (service(slot.qp.qp_type()), state(slot.qp.state()));
    let mut out = format!(
        r#"{{"number":{},"type":"{service}","state":"{state}""#,
        slot.qp.qpn().get()
    );
    if let Some(connection) = &slot.connection {
        let address = text(connection.remote);
        push(&mut out, "peer", &format!(r#""{address}""#));
        let peer_number = slot.qp.attributes().dest_qpn.get();
        push(&mut out, "peer_number", &peer_number.to_string());
    }
    push(&mut out, "sent", &activity.sent.to_string());
    push(&mut out, "received", &activity.received.to_string());
    push(
        &mut out,
        "messages_received",
        &activity.messages_received.to_string(),
    );
    push(&mut out, "queued", &activity.queued.to_string());
    push(
        &mut out,
        "in_flight_bytes",
        &activity.in_flight_bytes.to_string(),
    );
    push(
        &mut out,
        "waits_for",
        &format!(r#""{}""#, waits_for(slot, &activity, peers)),
    );
    out.push('}');
    out
}

/// Why a queue pair does not send more: the first reason that holds.
fn waits_for(slot: &QpSlot, activity: &Activity, peers: &Peers) -> &'static str {
    let is_silent = || {
        let connection = slot.connection.as_ref();
        connection.is_some_and(|connection| peers.is_silent(connection.peer))
    };
    if activity.queued == 0 {
        return "program";
    }
    if slot.qp.state() != QpState::ReadyToSend {
        return "state";
    }
    if slot.seal.as_ref().is_some_and(|seal| seal.holds()) {
        return "keys";
    }
    if activity.receiver_not_ready {
        return "receiver";
    }
    if activity.in_flight_bytes > 0 && is_silent() {
        return "silent peer";
    }
    if slot.limit.as_ref().is_some_and(|limit| limit.is_held()) {
        return "rate limit";
    }
    if slot.blocked {
        return "window";
    }
    if slot.waits {
        return "rate control";
    }
    if activity.in_flight_bytes > 0 {
        return "answers";
    }
    "turn"
}

fn service(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcSend => "XRC send",
        QpType::XrcReceive => "XRC receive",
        QpType::RawPacket => "raw packet",
    }
}

fn state(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "reset",
        QpState::Init => "init",
        QpState::ReadyToReceive => "rtr",
        QpState::ReadyToSend => "rts",
        QpState::SendQueueDrain => "sqd",
        QpState::SendQueueError => "sqe",
        QpState::Error => "error",
    }
}
