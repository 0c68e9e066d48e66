//! What a device reports of itself to a process that looks at it, as one line of JSON.
//!
//! All of it is there for the data path's own purposes: nothing is counted for a report. While the
//! worker lock is held it is copied, and nothing else; it becomes text afterwards. Names are fixed
//! and addresses are numbers, so that nothing in it needs an escape.
//!
//! | member | holds |
//! |---|---|
//! | `version` | 1 |
//! | `airdma` | version of airdma |
//! | `interface` | index of the interface |
//! | `now_ns` | time of the report, by a clock that only runs forwards |
//! | `counters` | those of this process that are not 0 |
//! | `send_queue` | `bytes` that the line has not taken yet, and `capacity` if known; `full`: packets wait for room |
//! | `peers` | `address`, `window_bytes` (null: no limit), `in_flight_bytes`, `waiting` queue pairs, `silent` |
//! | `queue_pairs` | `number`, `type`, `state`, `peer`, `peer_number`, what [`Activity`] has, `receives`, `shares_receives`, `waits_for` |
//! | `queue_pairs_total` | how many there are; a report has 1,024 at most |
//!
//! `receives` are those that are posted and that no message has taken, of the shared receive queue
//! if the queue pair has one (`shares_receives`); null where each message names its queue.
//!
//! A reader checks `version` before it reads anything but `airdma`.

use super::Core;
use crate::progress::worker_lock::NO_ROOM_WANTED;
use crate::tables::peers::{PeerState, Peers};
use crate::tables::qp_host::Receives;
use crate::tables::qp_table::QpSlot;
use crate::tables::srq_table::SrqTable;
use crate::worker::Worker;
use crate::{QpState, QpType};
use airdma_port::QueueFill;
use airdma_port::tap::Sink;
use airdma_transport::Activity;
use airdma_wire::{Gid, Neighbour};
use std::fmt::Write as _;
use std::sync::Arc;

const QUEUE_PAIRS_MAX: usize = 1024;
const PEERS_MAX: usize = 256;

/// Version of reports: another one when a member is gone, or means something else.
pub const VERSION: u32 = 1;

impl Core {
    /// What the device is doing.
    pub(crate) fn report(&self) -> String {
        let full = self.worker_lock.unsent() != NO_ROOM_WANTED;
        let now_ns = self.now().as_nanos();
        let interface = self.info.interface_index;
        let rows = self.visit(|worker| {
            self.count(worker);
            Rows::of(worker)
        });
        let airdma = env!("CARGO_PKG_VERSION");
        let mut out = format!(
            r#"{{"version":{VERSION},"airdma":"{airdma}","interface":{interface},"now_ns":{now_ns}"#
        );
        rows.write(&mut out, full);
        out.push('}');
        out
    }

    /// From now on the packets of the device are copied to `sink`. False if there are too many
    /// such, or there is no port.
    pub(crate) fn tap(&self, sink: &Arc<Sink>) -> bool {
        self.visit(|worker| worker.tap(sink))
    }

    /// From now on packets are not copied to `sink`.
    pub(crate) fn untap(&self, sink: &Arc<Sink>) {
        self.visit(|worker| worker.untap(sink));
    }
}

/// Copies of what the data path keeps for itself.
struct Rows {
    counters: Vec<(&'static str, u64)>,
    send_queue: QueueFill,
    peers: Vec<PeerState>,
    queue_pairs: Vec<QueuePairRow>,
    queue_pairs_total: usize,
}

struct QueuePairRow {
    number: u32,
    service: QpType,
    state: QpState,
    /// Address and queue pair number.
    peer: Option<(Neighbour, u32)>,
    activity: Activity,
    receives: Option<u32>,
    shares_receives: bool,
    waits_for: &'static str,
}

impl Rows {
    /// The worker lock is held meanwhile.
    fn of(worker: &mut Worker) -> Self {
        let send_queue = worker.send_queue().unwrap_or_default();
        let state = &mut worker.state;
        let peers = &state.scheduler.peers;
        let srqs = &mut state.device.srqs;
        let queue_pairs_total = state.qps.count();
        let slots = state.qps.all_mut().take(QUEUE_PAIRS_MAX);
        Rows {
            counters: state.counters.named(),
            send_queue,
            peers: peers.states().take(PEERS_MAX).collect(),
            queue_pairs: slots
                .map(|slot| QueuePairRow::of(slot, srqs, peers))
                .collect(),
            queue_pairs_total,
        }
    }

    fn write(&self, out: &mut String, full: bool) {
        let counters = self.counters.iter().filter(|(_, value)| *value > 0);
        let counters = counters.map(|(name, value)| format!(r#""{name}":{value}"#));
        push(out, "counters", &format!("{{{}}}", join(counters)));
        push(out, "send_queue", &send_queue(self.send_queue, full));
        push(out, "peers", &list(self.peers.iter().map(peer)));
        let queue_pairs = self.queue_pairs.iter().map(QueuePairRow::json);
        push(out, "queue_pairs", &list(queue_pairs));
        push(
            out,
            "queue_pairs_total",
            &self.queue_pairs_total.to_string(),
        );
    }
}

impl QueuePairRow {
    fn of(slot: &mut QpSlot, srqs: &mut SrqTable, peers: &Peers) -> Self {
        let activity = slot.qp.activity();
        let peer_number = slot.qp.attributes().dest_qpn.get();
        let connection = slot.connection.as_ref();
        let (receives, shares_receives) = match slot.side.receives {
            Receives::Own => (Some(slot.side.recv.available()), false),
            Receives::Shared(number) => {
                (srqs.slot(number).map(|queue| queue.ring.available()), true)
            }
            Receives::Domain(_) => (None, true),
        };
        QueuePairRow {
            number: slot.qp.qpn().get(),
            service: slot.qp.qp_type(),
            state: slot.qp.state(),
            peer: connection.map(|connection| (connection.remote, peer_number)),
            activity,
            receives,
            shares_receives,
            waits_for: waits_for(slot, &activity, peers),
        }
    }

    fn json(&self) -> String {
        let (service, state) = (service(self.service), state(self.state));
        let mut out = format!(
            r#"{{"number":{},"type":"{service}","state":"{state}""#,
            self.number
        );
        if let Some((address, peer_number)) = self.peer {
            push(&mut out, "peer", &format!(r#""{}""#, text(address)));
            push(&mut out, "peer_number", &peer_number.to_string());
        }
        let activity = &self.activity;
        let numbers = [
            ("sent", Some(activity.sent.into())),
            ("received", Some(activity.received.into())),
            ("messages_received", Some(activity.messages_received.into())),
            ("queued", Some(activity.queued as u64)),
            ("in_flight_bytes", Some(activity.in_flight_bytes.into())),
            ("receives", self.receives.map(u64::from)),
        ];
        for (name, value) in numbers {
            push(&mut out, name, &number(value));
        }
        push(
            &mut out,
            "shares_receives",
            &self.shares_receives.to_string(),
        );
        push(&mut out, "waits_for", &format!(r#""{}""#, self.waits_for));
        out.push('}');
        out
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

fn send_queue(fill: QueueFill, full: bool) -> String {
    let (bytes, capacity) = (fill.bytes, number(fill.capacity));
    format!(r#"{{"bytes":{bytes},"capacity":{capacity},"full":{full}}}"#)
}

fn peer(state: &PeerState) -> String {
    let (address, window) = (text(state.address), number(state.window));
    let (in_flight, waiting, silent) = (state.in_flight, state.waiting, state.is_silent);
    format!(
        r#"{{"address":"{address}","window_bytes":{window},"in_flight_bytes":{in_flight},"waiting":{waiting},"silent":{silent}}}"#
    )
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
