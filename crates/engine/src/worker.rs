//! The worker of a device: whoever holds it makes the device progress.

mod air_messages;
mod connections;
pub(crate) mod gsi;
mod handle;
mod keying;
mod posted;
mod rate_limit;
mod raw_frames;
mod receive;
mod record_echoes;
mod record_rate;
mod record_reads;
mod records;
mod scheduler;
pub(crate) mod source_port;
pub(crate) mod state;
mod transmit;
pub(crate) mod withheld;

use crate::config::Window;
use crate::counter_names::EngineCounter;
use crate::host::presence::Presence;
use crate::index::{Doorbell, QpIndex};
use crate::limits::PACKET_LEN_MAX;
use crate::random::Random;
use crate::remote::Found;
use crate::sharing::steering::{Ground, Steering};
use crate::worker::gsi::Gsi;
pub(crate) use crate::worker::state::Unanswered;
use crate::worker::state::WorkerState;
use crate::worker::transmit::{ROUND_BYTES, ROUND_REST_BYTES_MAX};
use crate::{Error, PathMtu};
use airdma_cm::Config;
use airdma_port::tap::{self, Sink};
use airdma_port::{Port, QueueFill, TransmitBatch};
use airdma_preload::Uncancelled;
use airdma_shm::Doorbells;
use airdma_transport::Time;
use airdma_wire::Qpn;
use airdma_wire::{Gid, Neighbour};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// Packets that one round receives, about: one coalesced buffer of full packets, so that answers
/// leave soon.
const RECEIVE_PACKETS: usize = 64;

/// Rounds in which timers wait for packets: a few milliseconds on a host that has more to take in
/// than it can.
const POSTPONED_MAX: u32 = 64;

/// Packets of one batch: what a round may send if all are small.
const BATCH_PACKETS: usize = 1024;

/// Asking a port for its counters costs system calls, and the shared file cache lines, so in a busy
/// time it is done this often at most.
const COUNTERS_INTERVAL: Duration = Duration::from_millis(10);

/// Everything that makes progress, behind the device's one lock.
pub(crate) struct Worker {
    link: Option<Link>,
    pub(crate) state: WorkerState,
    /// When the port is counted again, whatever happens.
    count_at: Time,
    /// Whether packets arrived or left since the port was counted.
    port_moved: bool,
    /// Rounds since timers were last checked.
    postponed: u32,
    /// Whether the port failed: it is not used any more.
    broken: bool,
    /// Whether it failed outside a round, and the next one is to report that.
    broke: bool,
}

/// The way to the network, once there is one.
struct Link {
    port: Box<dyn Port>,
    batch: TransmitBatch,
    /// Queue pairs that listen at each address of the GID table.
    listeners: Vec<u32>,
    /// Queue pairs that listen at every address.
    everywhere: u32,
}

/// What a round does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Everything.
    All,
    /// Takes what was posted and transmits; the network is not asked for packets. For a poster, who
    /// wants its own request to leave and nothing else.
    Transmit,
}

/// What a round did, and what is left.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    /// Packets received.
    pub(crate) received: usize,
    /// There is more to do at once.
    pub(crate) more: bool,
    /// Packets wait until the port can take them.
    pub(crate) unsent: bool,
    /// At which descriptor, if not at any.
    pub(crate) stopped_at: Option<RawFd>,
    /// When to come again at the latest; [`Time::NEVER`] without a timer.
    pub(crate) deadline: Time,
    /// Until when an ACK waits for a reply; [`Time::NEVER`] if none does.
    pub(crate) ack_due: Time,
    /// The port broke in this round.
    pub(crate) broke: bool,
    /// [`Worker::repair`] should be called.
    pub(crate) misrouted: bool,
    /// There is a [`WorkerState::unanswered`].
    pub(crate) unanswered: bool,
}

impl Worker {
    pub(crate) fn new(random: Random, window: Window) -> Self {
        Worker {
            link: None,
            state: WorkerState::new(random, window),
            count_at: Time::ZERO,
            port_moved: false,
            postponed: 0,
            broken: false,
            broke: false,
        }
    }

    pub(crate) fn is_bound(&self) -> bool {
        self.link.is_some()
    }

    /// Takes a port for the addresses of the GID table, none of which has listeners yet.
    pub(crate) fn bind(
        &mut self,
        mut port: Box<dyn Port>,
        rows: Vec<Option<Neighbour>>,
        steering: Option<Arc<Steering>>,
    ) {
        self.state.device.steering = steering;
        let addresses = rows.len();
        for index in 0..addresses.min(usize::from(u8::MAX) + 1) {
            port.set_active(index as u8, false);
        }
        self.state.device.rows = rows;
        let bytes = (ROUND_BYTES + ROUND_REST_BYTES_MAX) as usize + 2 * PACKET_LEN_MAX;
        let batch = port.lend_batch(bytes, BATCH_PACKETS);
        self.link = Some(Link {
            port,
            batch,
            listeners: vec![0; addresses],
            everywhere: 0,
        });
    }

    /// A row of the GID table has another address, or none any more.
    ///
    /// # Errors
    /// Why the address cannot be used.
    pub(crate) fn set_address(
        &mut self,
        now: Time,
        row: u8,
        address: Option<Neighbour>,
    ) -> io::Result<()> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let index = usize::from(row);
        if link.listeners.len() <= index {
            link.listeners.resize(index + 1, link.everywhere);
        }
        let rows = &mut self.state.device.rows;
        rows.resize(rows.len().max(index + 1), None);
        rows[index] = None;
        let set = self.with_steering(now, |steering, ground| {
            steering.set_address(row, address, ground)
        });
        match (set, &mut self.link) {
            (Some(set), _) => set?,
            (None, Some(link)) if !self.broken => link.port.set_address(row, address)?,
            (None, _) => {}
        }
        self.state.device.rows[index] = address;
        if let Some(link) = &mut self.link {
            link.port.set_active(row, link.listeners[index] > 0);
        }
        Ok(())
    }

    /// Calls `call` with what decides which process gets which packet; packets that come meanwhile
    /// are taken in. `None` without a port that other processes can share.
    fn with_steering<R>(
        &mut self,
        now: Time,
        call: impl FnOnce(&Steering, &mut Ground<'_>) -> R,
    ) -> Option<R> {
        let link = self.link.as_mut().filter(|_| !self.broken)?;
        let steering = self.state.device.steering.clone()?;
        let mut receiving = self.state.receiving(now);
        let mut ground = Ground {
            port: link.port.shared()?,
            receive: &mut |received| receiving.receive(&received),
        };
        let result = call(&steering, &mut ground);
        Some(result)
    }

    /// Takes a position for a queue pair, and gives it its number.
    ///
    /// # Errors
    /// `ENOMEM` when all are taken, by this process or together with others.
    pub(crate) fn reserve(&mut self, now: Time) -> Result<(QpIndex, Qpn), Error> {
        if self.state.qps.wants_range() {
            self.add_range(now);
        }
        self.state.qps.reserve()
    }

    fn add_range(&mut self, now: Time) {
        let leased = self.with_steering(now, |steering, ground| steering.lease(ground));
        match leased {
            Some(Some(range)) => self.state.qps.add_range(range),
            // There is none any more.
            Some(None) => {}
            None => self.state.qps.add_any_range(),
        }
    }

    /// Makes queue pair 1, if that was not done.
    pub(crate) fn open_gsi(
        &mut self,
        now: Time,
        guid: u64,
        path_mtu_max: PathMtu,
        interface_index: u32,
    ) {
        if self.state.gsi.is_some() {
            return;
        }
        if self.state.qps.first_range().is_none() {
            self.add_range(now);
        }
        let random = &mut self.state.random;
        let seed = random.secret_u64();
        let id_tag = self.state.qps.first_range();
        let config = Config {
            id_tag,
            path_mtu_max,
            ..Config::new(seed, guid)
        };
        self.state.gsi = Some(Gsi::new(config, interface_index));
        self.listen(None, true);
        self.with_steering(now, |steering, ground| steering.manage(ground));
    }

    /// Claims the requests for a service for this process, at one address or (`None`) at all.
    ///
    /// # Errors
    /// `EADDRINUSE` when another process has it.
    pub(crate) fn claim_service(
        &mut self,
        now: Time,
        service: u64,
        address: Option<Gid>,
    ) -> Result<(), Error> {
        self.with_steering(now, |steering, ground| {
            steering.listen(service, address, ground)
        })
        .unwrap_or(Ok(()))
    }

    /// Ends a claim of [`claim_service`](Self::claim_service).
    pub(crate) fn give_back_service(&mut self, service: u64, address: Option<Gid>) {
        if let Some(steering) = &self.state.device.steering {
            steering.close_listener(service, address);
        }
    }

    /// Takes no more requests, for whatever service.
    pub(crate) fn close_listeners(&mut self, now: Time) {
        let Some(gsi) = &mut self.state.gsi else {
            return;
        };
        let listeners: Vec<_> = gsi.services.keys().copied().collect();
        let closed = listeners
            .into_iter()
            .filter_map(|listener| gsi.close(now, listener));
        for (service, address) in closed.collect::<Vec<_>>() {
            self.give_back_service(service.0, address);
        }
    }

    /// Finds out why packets of other processes come to this one.
    pub(crate) fn repair(&mut self, now: Time) {
        self.with_steering(now, |steering, ground| steering.repair(now, ground));
    }

    /// Puts right what a process that is gone left behind; false if there was nothing.
    pub(crate) fn remove_departed(&mut self, now: Time) -> bool {
        let done = self.with_steering(now, |steering, ground| steering.remove_departed(ground));
        done.unwrap_or(true)
    }

    /// Leaves those with whom the addresses are shared. The port is of no use after that.
    pub(crate) fn leave(&mut self, now: Time) {
        if let Some(link) = &mut self.link {
            link.port.withdraw();
        }
        self.with_steering(now, |steering, ground| steering.leave(ground));
    }

    /// One round: doorbells, then packets, then timers, then transmissions. Its work is bounded.
    /// `keeps_acks`: whether an ACK may wait, without a thread that has to be woken for it; its
    /// argument is whether the round raised an event.
    pub(crate) fn progress(
        &mut self,
        doorbells: &Doorbells,
        now: Time,
        work: Work,
        keeps_acks: impl FnOnce(bool) -> bool,
    ) -> Round {
        let mut round = Round {
            broke: std::mem::take(&mut self.broke),
            ..Round::default()
        };
        doorbells.drain(|doorbell| self.state.answer(Doorbell::new(doorbell), now));
        if work == Work::All {
            round.received = self.receive(now, &mut round);
            // What a timer waits for may be among the packets that still wait.
            if round.received < RECEIVE_PACKETS || self.postponed >= POSTPONED_MAX {
                self.postponed = 0;
                self.state.expire(now);
            } else {
                self.postponed += 1;
            }
        }
        let raised = self.state.device.cqs.take_raised();
        if self.state.ack_due() != Time::NEVER && !keeps_acks(raised) {
            self.state.release_ack();
        }
        // What is lost is not acknowledged.
        if self.state.device.cqs.has_overrun() {
            self.state.fail_overrun(now);
        }
        self.transmit(now, &mut round);
        if self.state.device.cqs.has_overrun() {
            self.state.fail_overrun(now);
        }
        self.state.deliver_cm_events(now);
        if round.broke {
            self.state.fail_all(now);
        }
        round.misrouted = std::mem::take(&mut self.state.misrouted);
        round.unanswered = self.state.unanswered.is_some();
        round.more = self.state.has_active() && !round.unsent && !self.broken;
        round.deadline = self.state.deadline(!round.unsent);
        round.ack_due = self.state.ack_due();
        self.port_moved |= round.received > 0;
        // The first quiet round may be the last of all: a thread that sleeps then, or a process
        // that ends abruptly, has counted everything. One that did not ask the network, with a
        // timer set, is followed by one that does.
        let may_be_last = work == Work::All || round.deadline == Time::NEVER;
        if now >= self.count_at {
            self.count_port(now);
            self.state.counters.flush();
        } else if round.received == 0 && may_be_last {
            if self.port_moved {
                self.take_counters();
            }
            self.state.counters.flush();
        }
        round
    }

    /// Sends the ACK that waits for a reply, if one does: before a call that may end its
    /// connection, and at the end of the process.
    pub(crate) fn send_delayed_ack(&mut self, now: Time) {
        if self.state.ack_due() == Time::NEVER {
            return;
        }
        // Sending is a cancellation point.
        let _whole = Uncancelled::new();
        self.state.release_ack();
        let mut round = Round::default();
        self.transmit(now, &mut round);
        self.broke |= round.broke;
    }

    fn receive(&mut self, now: Time, round: &mut Round) -> usize {
        let Some(link) = self.link.as_mut().filter(|_| !self.broken) else {
            return self.look_at_daemon(now, round);
        };
        let mut receiving = self.state.receiving(now);
        let result = (link.port).receive(RECEIVE_PACKETS, &mut |received| {
            receiving.receive(&received)
        });
        drop(receiving);
        let received = self.check(result, round).unwrap_or(0);
        let more_waits = received >= RECEIVE_PACKETS;
        self.state.air.note_waiting(more_waits.then_some(now));
        received
    }

    /// Where a daemon has the port, and the queue pairs: looks for what it did.
    #[cold]
    fn look_at_daemon(&mut self, now: Time, round: &mut Round) -> usize {
        let found = (self.state.remote.as_ref()).map_or_else(Found::default, |it| it.look(now));
        round.broke |= found.ended;
        found.news
    }

    fn transmit(&mut self, now: Time, round: &mut Round) {
        let Some(link) = self.link.as_mut().filter(|_| !self.broken) else {
            return;
        };
        self.state.fill(now, &mut *link.port, &mut link.batch);
        if link.batch.is_empty() {
            return;
        }
        self.port_moved = true;
        let result = link.port.transmit(&mut link.batch);
        round.unsent = !link.batch.is_empty();
        round.stopped_at = link.port.stopped_at();
        if self.check(result, round).is_none() {
            round.unsent = false;
        }
    }

    fn check<T>(&mut self, result: io::Result<T>, round: &mut Round) -> Option<T> {
        if result.is_err() {
            self.broken = true;
            round.broke = true;
            self.state.counters.count(EngineCounter::PortFailures);
        }
        result.ok()
    }

    /// Takes over the counters of the port, with what the kernel dropped, and of queue pair 1.
    pub(crate) fn count_port(&mut self, now: Time) {
        self.count_at = now + COUNTERS_INTERVAL;
        if let Some(link) = &mut self.link {
            link.port.look_for_drops();
        }
        self.take_counters();
    }

    fn take_counters(&mut self) {
        self.port_moved = false;
        if let Some(link) = &self.link {
            self.state.counters.take_port(link.port.counters());
        }
        if let Some(gsi) = &self.state.gsi {
            self.state.counters.take_cm(&gsi.manager);
        }
    }

    /// Adds the descriptors to wait for; none while there is no port.
    pub(crate) fn descriptors(&self, out: &mut Vec<RawFd>) {
        if let Some(link) = &self.link {
            link.port.wait_descriptors(out);
        } else if let Some(remote) = &self.state.remote {
            remote.descriptors(out);
        }
    }

    /// What this host has sent and the line has not taken yet; `None` if unknown.
    pub(crate) fn send_queue(&mut self) -> Option<QueueFill> {
        self.link.as_mut()?.port.send_queue()
    }

    /// Copies all packets to `sink` from now on. False without a port, or if too many copy.
    pub(crate) fn tap(&mut self, sink: &Arc<Sink>) -> bool {
        let rows = &self.state.device.rows;
        (self.link.as_mut()).is_some_and(|link| tap::add(&mut link.port, rows, Arc::clone(sink)))
    }

    /// Copies no packets to `sink` from now on.
    pub(crate) fn untap(&mut self, sink: &Arc<Sink>) {
        if let Some(link) = &mut self.link {
            tap::remove(&mut link.port, sink);
        }
    }

    /// The descriptors by which other processes of the host know that this one lives.
    pub(crate) fn lifelines(&self) -> Vec<RawFd> {
        let mut descriptors = Vec::new();
        if let Some(link) = &self.link {
            link.port.lifelines(&mut descriptors);
        }
        let presence = self.state.presence.iter();
        descriptors.extend(presence.flat_map(Presence::lifelines));
        descriptors
    }

    /// Attaches a queue pair to a multicast group.
    ///
    /// # Errors
    /// `ENOMEM` at the limits; those of the system.
    pub(crate) fn attach(&mut self, group: Neighbour, index: QpIndex) -> Result<(), Error> {
        let link = &mut self.link;
        self.state.multicast.attach(group, index, || {
            let link = link.as_mut().ok_or(Error::Gone("the port"))?;
            link.port
                .join(group)
                .map_err(|error| Error::system("joining the multicast group", &error))
        })
    }

    /// Detaches a queue pair from a multicast group, and leaves the group with the last one.
    ///
    /// # Errors
    /// `EINVAL` when it is not attached.
    pub(crate) fn detach(&mut self, group: Neighbour, index: QpIndex) -> Result<(), Error> {
        match self.state.multicast.detach(group, index) {
            None => Err(Error::Invalid(
                "the queue pair is not attached to that multicast group",
            )),
            Some(is_empty) => {
                if let Some(link) = self.link.as_mut().filter(|_| is_empty) {
                    link.port.leave(group);
                }
                Ok(())
            }
        }
    }

    /// A queue pair begins or ends to listen at one address, or (`None`) at all.
    pub(crate) fn listen(&mut self, source_index: Option<u8>, begin: bool) {
        let Some(Link {
            port,
            listeners,
            everywhere,
            ..
        }) = &mut self.link
        else {
            return;
        };
        if source_index.is_none() {
            *everywhere = if begin {
                *everywhere + 1
            } else {
                everywhere.saturating_sub(1)
            };
        }
        for (index, count) in listeners.iter_mut().enumerate() {
            if source_index.is_none_or(|wanted| usize::from(wanted) == index) {
                let before = *count;
                *count = if begin {
                    before + 1
                } else {
                    before.saturating_sub(1)
                };
                if (before == 0) != (*count == 0) {
                    port.set_active(index as u8, begin);
                }
            }
        }
    }
}
