//! The state of a worker: its queue pairs, their peers, air mode, queue pair 1, and the scheduler.
//!
//! | to change | look at |
//! |---|---|
//! | which queue pair sends next, and what follows from a change | [`super::scheduler`] |
//! | how packets are sent, and how many | [`super::transmit`] |
//! | what happens to a packet that arrives | [`super::receive`] |
//! | how posted requests are taken | [`super::posted`] |
//! | states and connections | [`super::connections`] |

use super::gsi::Gsi;
use super::raw_frames::RawFrames;
use super::record_echoes::Answer;
use super::scheduler::Scheduler;
use super::source_port::Candidate;
use crate::air::Air;
use crate::config::Window;
use crate::host::presence::Presence;
use crate::index::{PeerIndex, QpIndex};
use crate::inventory::Inventory;
use crate::memory::RunSums;
use crate::random::Random;
use crate::remote::Remote;
use crate::seal::OPENED_LEN_MAX;
use crate::tables::counters::Counters;
use crate::tables::device_tables::DeviceTables;
use crate::tables::multicast::Multicast;
use crate::tables::qp_host::QpHost;
use crate::tables::qp_table::{QpSlot, QpTable};
use crate::tables::record_peers::{Query, RecordPeers};
use airdma_port::CopySum;
use airdma_transport::{QueuePair, Time};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// A peer that stopped answering.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unanswered {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    /// Bytes of the IP packets of the path MTU.
    pub(crate) packet_bytes: u32,
}

/// The state of a worker.
pub(crate) struct WorkerState {
    /// What other workers of the device would share.
    pub(crate) device: DeviceTables,
    pub(crate) qps: QpTable,
    /// The daemon that runs the queue pairs, in place of this worker.
    pub(crate) remote: Option<Arc<Remote>>,
    /// Sockets of queue pairs for raw packets.
    pub(super) raw_frames: BTreeMap<QpIndex, RawFrames>,
    pub(crate) scheduler: Scheduler,
    pub(crate) air: Air,
    /// Queue pairs that air mode has woken; empty but for the time of a call.
    pub(super) wakes: Vec<QpIndex>,
    /// Queue pair 1, while it is open.
    pub(crate) gsi: Option<Gsi>,
    pub(crate) multicast: Multicast,
    /// Queue pairs that take records.
    pub(super) record_takers: Vec<QpIndex>,
    /// Hosts that records go to.
    pub(super) record_peers: RecordPeers,
    /// Answers to packets of records; empty but for the time of a round.
    pub(super) record_answers: Vec<Answer>,
    /// Questions to targets without entries; empty but for the time of a call.
    pub(super) record_queries: Vec<Query>,
    /// Windows that hosts left which others took the place of; empty but for the time of a call.
    pub(super) crowded_out: Vec<PeerIndex>,
    /// Added to the counters of the device.
    pub(crate) counters: Counters,
    /// A packet came that is for another process, and the reason must be found.
    pub(super) misrouted: bool,
    /// The last peer that stopped answering while packets of the path MTU were in flight to it.
    pub(crate) unanswered: Option<Unanswered>,
    /// Which silent peers are stopped; none in a simulation, or if peers are offered nothing.
    pub(crate) presence: Option<Presence>,
    /// The source of the packet in hand, if it is not the connection's yet.
    pub(super) candidate: Option<Candidate>,
    /// Room for a packet that was sealed.
    pub(super) opened: Box<[u8]>,
    /// Sums runs of packets while it copies their payloads, where the CPU can.
    pub(super) copy_sum: Option<CopySum>,
    /// For nonces and seeds.
    pub(super) random: Random,
}

impl WorkerState {
    /// `window`: the ceiling of the window to one peer.
    pub(crate) fn new(mut random: Random, window: Window) -> Self {
        WorkerState {
            qps: QpTable::new(random.fork()),
            remote: None,
            device: DeviceTables::new(random.fork()),
            raw_frames: BTreeMap::new(),
            scheduler: Scheduler::new(window),
            air: Air::new(),
            wakes: Vec::new(),
            gsi: None,
            multicast: Multicast::default(),
            record_takers: Vec::new(),
            record_peers: RecordPeers::default(),
            record_answers: Vec::new(),
            record_queries: Vec::new(),
            crowded_out: Vec::new(),
            counters: Counters::new(),
            misrouted: false,
            unanswered: None,
            presence: None,
            candidate: None,
            opened: vec![0; OPENED_LEN_MAX].into_boxed_slice(),
            copy_sum: CopySum::new(),
            random,
        }
    }

    /// From now on peers are offered these features beyond RoCEv2.
    pub(crate) fn offer(&mut self, features: u64) {
        self.air.offer(features, &mut self.random);
    }

    /// The MTU of the interface.
    pub(crate) fn note_interface_mtu(&mut self, mtu: u32, now: Time) {
        self.air.note_interface_mtu(&mut self.qps, mtu, now);
    }

    /// Tells of connections what has happened to them.
    #[inline]
    pub(crate) fn deliver_cm_events(&mut self, now: Time) {
        if let Some(gsi) = &mut self.gsi {
            gsi.deliver_cm_events(now, &mut self.qps, &mut self.device.cqs);
        }
    }

    /// What is held on to, but for memory of rings.
    pub(crate) fn inventory(&self) -> Inventory {
        Inventory {
            queue_pairs: self.qps.count(),
            regions: self.device.memory.count(),
            completion_queues: self.device.cqs.count(),
            shared_queues: self.device.srqs.count(),
            timers: self.scheduler.timers(),
            waiting: self.scheduler.line.count()
                + self.air.waiting()
                + self.qps.wait_for_keys()
                + self.qps.wait_for_their_rate(),
            peers: self.scheduler.peers.count(),
            air_peers: self.air.count(),
            ring_bytes: 0,
        }
    }

    /// Calls a queue pair with what it may touch.
    #[inline(always)] // a call for each packet that arrives
    pub(crate) fn with<R>(
        &mut self,
        index: QpIndex,
        call: impl FnOnce(&mut QueuePair, &mut QpHost<'_>) -> R,
    ) -> Option<R> {
        let QpSlot { qp, side, .. } = self.qps.slot(index)?;
        let mut host = QpHost {
            side,
            device: &mut self.device,
            counters: &mut self.counters,
            sums: RunSums::default(),
        };
        Some(call(qp, &mut host))
    }
}
