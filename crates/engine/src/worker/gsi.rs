//! Queue pair 1, the general services interface of connection managers (IBTA 13.5.1).
//!
//! It exists as soon as a program listens or connects.

use crate::queues::cm_channel::Subject;
use crate::queues::cm_owners::{CmOwners, Owner, subject_of};
use crate::sharing::orphan_notices::NoticeFile;
use crate::tables::cq_table::CqTable;
use crate::tables::qp_table::QpTable;
use crate::worker::withheld::Withheld;
use airdma_cm::{Config, ConnectionId, Event, Evicted, ListenerId, Manager, OrphanNotice, Route};
use airdma_port::Destination;
use airdma_transport::{Arrival, Time};
use airdma_wire::cm::ServiceId;
use airdma_wire::mad::{GSI_QKEY, MAD_LEN};
use airdma_wire::{Bth, Deth, Gid, Headers, Neighbour, Opcode, Packet, Psn, Qpn};
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;

pub(crate) struct Gsi {
    pub(crate) manager: Manager,
    pub(crate) owners: CmOwners,
    /// What listeners listen for: a service, at one address or at all.
    pub(crate) services: HashMap<ListenerId, (ServiceId, Option<Gid>)>,
    /// What the manager wants to send.
    outbox: VecDeque<(Route, [u8; MAD_LEN])>,
    next_psn: Psn,
    /// Ends of connections that come after the last data.
    withheld: Withheld,
    /// What is said to the peers if the process dies, once there are any.
    notice_file: Option<NoticeFile>,
    interface_index: u32,
}

impl Gsi {
    pub(crate) fn new(config: Config, interface_index: u32) -> Self {
        Gsi {
            manager: Manager::new(config),
            owners: CmOwners::default(),
            services: HashMap::new(),
            outbox: VecDeque::new(),
            next_psn: Psn::default(),
            withheld: Withheld::default(),
            notice_file: None,
            interface_index,
        }
    }

    /// Ends a listener, and refuses the requests that were not fetched. Returns what it listened
    /// for.
    pub(crate) fn close(
        &mut self,
        now: Time,
        listener: ListenerId,
    ) -> Option<(ServiceId, Option<Gid>)> {
        let (connections, resolutions) = self.manager.close(now, listener);
        for id in connections {
            self.owners.disown(Subject::Connection(id));
        }
        for id in resolutions {
            self.owners.disown(Subject::Resolution(id));
        }
        self.owners.disown(Subject::Listener(listener));
        self.fill_outbox();
        self.services.remove(&listener)
    }

    /// There is a connection, or will be soon: if the process dies, the peer is to hear of it.
    pub(crate) fn note_connection(&mut self, id: ConnectionId) {
        if let Some(notice) = self.manager.orphan_notice(id) {
            if self.notice_file.is_none() {
                // Where there can be none, peers find out by themselves.
                self.notice_file = NoticeFile::new(self.interface_index).ok();
            }
            if let Some(notice_file) = &mut self.notice_file {
                notice_file.write(id, &notice);
            }
        }
    }

    /// The connection is over.
    pub(crate) fn forget_connection(&mut self, id: ConnectionId) {
        if let Some(notice_file) = &mut self.notice_file {
            notice_file.erase(id);
        }
    }

    /// Descriptor of the lock that shows other processes that this process is alive; a child after
    /// fork must close it.
    pub(crate) fn notice_file_fd(&self) -> Option<RawFd> {
        self.notice_file.as_ref().map(NoticeFile::fd)
    }

    /// Says what others wanted to have said.
    pub(crate) fn send_orphan_notices(&mut self, now: Time, all: &[OrphanNotice]) {
        for notice in all {
            self.manager.send_orphan_notice(now, notice);
        }
        self.fill_outbox();
    }

    /// Takes a packet to queue pair 1; false if it is none that managers send.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        arrival: &Arrival,
        source_port: u16,
        packet: &Packet<'_>,
    ) -> bool {
        let is_ours = packet.headers.bth.opcode == Opcode::UdSendOnly
            && packet
                .headers
                .deth
                .is_some_and(|deth| deth.qkey == GSI_QKEY);
        if !is_ours {
            return false;
        }
        let route = Route {
            local: Gid::from(arrival.destination),
            remote: Gid::from(arrival.source),
            traffic_class: arrival.tos & !ECN,
        };
        self.manager
            .handle_mad(now, route, source_port, packet.payload);
        if let Some(evicted) = self.manager.poll_evicted() {
            self.take_back(evicted);
        }
        self.fill_outbox();
        true
    }

    /// Good data of the peer has come on a queue pair.
    pub(crate) fn data_arrived(&mut self, now: Time, local: Qpn) {
        self.manager.data_arrived_at(now, local);
        self.fill_outbox();
    }

    /// Acts on timers that are due.
    pub(crate) fn expire(&mut self, now: Time) {
        if self.manager.poll_timeout().is_some_and(|due| due <= now) {
            self.manager.handle_timeout(now);
            self.fill_outbox();
        }
    }

    /// Whether peers may not know yet that their connections are over.
    pub(crate) fn is_ending(&self) -> bool {
        self.has_transmits() || self.manager.is_ending()
    }

    /// Repeats the DREQs that peers have not answered.
    pub(crate) fn end_again(&mut self) {
        self.manager.end_again();
        self.fill_outbox();
    }

    /// The connections that have an owner.
    pub(crate) fn connections(&self) -> Vec<ConnectionId> {
        let subjects = self.owners.subjects();
        subjects
            .filter_map(|subject| match subject {
                Subject::Connection(id) => Some(id),
                Subject::Listener(_) | Subject::Resolution(_) => None,
            })
            .collect()
    }

    /// Reports events to their owners, after everything to send has left.
    ///
    /// So a program that exits at the end of a connection has answered its peer. It also comes
    /// after the last data ([`crate::worker::withheld`]).
    pub(crate) fn deliver_cm_events(&mut self, now: Time, qps: &mut QpTable, cqs: &mut CqTable) {
        while let Some(event) = self.manager.poll_event() {
            self.tell_withheld_before(&event);
            let subject = subject_of(&event);
            let told = if let Event::Disconnected { id, .. } = &event
                && !self.is_awaited(subject)
            {
                let qpn = self.manager.local_qpn(*id);
                self.withheld.take(now, subject, qpn, event, (qps, cqs))
            } else {
                Some(event)
            };
            if let Some(event) = told {
                self.tell(event);
            }
        }
        let mut withheld = std::mem::take(&mut self.withheld);
        let due = withheld.take_due(now, (qps, cqs), |subject| self.is_awaited(subject));
        self.withheld = withheld;
        for event in due {
            self.tell(event);
        }
    }

    /// Whether a thread sleeps until an event of this owner's channel comes: it does not look at
    /// its completions meanwhile.
    fn is_awaited(&self, subject: Subject) -> bool {
        (self.owners.get(subject)).is_some_and(|owner| owner.channel.is_awaited())
    }

    /// Nothing overtakes the end of its own connection; and but for other ends nothing overtakes
    /// one on its channel: a peer that has ended a connection may ask for the next.
    fn tell_withheld_before(&mut self, event: &Event) {
        if self.withheld.is_empty() {
            return;
        }
        let subject = subject_of(event);
        let of = match event {
            Event::ConnectRequest(request) => Subject::Listener(request.listener),
            Event::SidrRequest(request) => Subject::Listener(request.listener),
            Event::ConnectResponse(_)
            | Event::SidrResponse(_)
            | Event::Established { .. }
            | Event::Disconnected { .. }
            | Event::Rejected { .. }
            | Event::Unreachable { .. }
            | Event::TimewaitExit { .. }
            | Event::SidrUnreachable { .. }
            | Event::SidrWithdrawn { .. } => subject,
        };
        let is_end = matches!(event, Event::Disconnected { .. });
        let owners = &self.owners;
        let channel = owners.get(of).filter(|_| !is_end);
        let before = self.withheld.take_of(|one| {
            let shares = |channel: &Owner| {
                let owner = owners.get(one);
                owner.is_some_and(|owner| Arc::ptr_eq(&owner.channel, &channel.channel))
            };
            one == subject || channel.is_some_and(shares)
        });
        for event in before {
            self.tell(event);
        }
    }

    /// When something is due; [`Time::NEVER`] if nothing is.
    pub(crate) fn next(&self) -> Time {
        let manager = self.manager.poll_timeout().unwrap_or(Time::NEVER);
        manager.min(self.withheld.next_look().unwrap_or(Time::NEVER))
    }

    /// Moves the manager's datagrams to the outbox, as far as it has room. The others wait in the
    /// manager, which drops those beyond its bound.
    pub(crate) fn fill_outbox(&mut self) {
        while self.outbox.len() < OUTBOX_MAX
            && let Some(datagram) = self.manager.poll_transmit()
        {
            self.outbox.push_back(datagram);
        }
    }

    fn tell(&mut self, event: Event) {
        match &event {
            // From now on its peer is known to be there.
            Event::Established { id, .. } => self.note_connection(*id),
            Event::Disconnected { id, .. }
            | Event::Rejected { id, .. }
            | Event::Unreachable { id }
            | Event::TimewaitExit { id } => self.forget_connection(*id),
            Event::ConnectRequest(_)
            | Event::SidrRequest(_)
            | Event::ConnectResponse(_)
            | Event::SidrResponse(_)
            | Event::SidrUnreachable { .. }
            | Event::SidrWithdrawn { .. } => {}
        }
        self.owners.tell(event);
    }

    /// A request was evicted: it ends, unless the program has fetched it.
    #[cold]
    fn take_back(&mut self, evicted: Evicted) {
        let subject = match evicted {
            Evicted::Connection(id) => Subject::Connection(id),
            Evicted::Resolution(id) => Subject::Resolution(id),
        };
        let owner = self.owners.get(subject);
        if owner.is_none_or(|owner| owner.channel.take_back(subject)) {
            // Nothing is told about what was not fetched.
            self.owners.disown(subject);
            self.manager.withdraw(evicted);
        }
    }

    pub(crate) fn has_transmits(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Writes the next datagram into `out`; what would leave from an address that is gone leads to
    /// nothing.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Time,
        rows: &[Option<Neighbour>],
        out: &mut [u8],
    ) -> Option<(usize, Destination)> {
        while let Some((route, mad)) = self.outbox.pop_front() {
            self.fill_outbox();
            let is_it =
                |row: &Option<Neighbour>| row.is_some_and(|row| Gid::from(row) == route.local);
            let row = rows.iter().position(is_it);
            let local = row.and_then(|row| rows[row]);
            let source_index = row.and_then(|row| u8::try_from(row).ok());
            let (Some(local), Some(source_index)) = (local, source_index) else {
                self.manager.unsendable(now, &mad);
                continue;
            };
            let bth = Bth::new(Opcode::UdSendOnly, Qpn::GSI, self.next_psn);
            self.next_psn = self.next_psn.add(1);
            let mut headers = Headers::new(bth);
            headers.deth = Some(Deth {
                qkey: GSI_QKEY,
                src_qpn: Qpn::GSI,
            });
            let start = headers.emit(out);
            let end = start + MAD_LEN;
            out[start..end].copy_from_slice(&mad);
            let destination = Destination {
                address: local.peer(route.remote),
                source_index,
                tos: route.traffic_class,
                hop_limit: 0,
                flow_label: 0,
                bundles: false,
            };
            return Some((end, destination));
        }
        None
    }
}

/// Datagrams that may wait here for the port.
const OUTBOX_MAX: usize = 64;

/// The bits of a traffic class that congestion marks use (RFC 3168).
const ECN: u8 = 3;
