//! Hosts connected by RDMA CM, whose connections the attacker tries to end or prevent.
//!
//! Each host listens, and the second connects to the first before any other action. Programs accept
//! all requests, at once or, in half of the worlds, when the world ends: then a forged request
//! occupies its place for as long as the manager permits.
// The variants not named here do not concern a connection.
#![allow(clippy::wildcard_enum_match_arm)]

use crate::host::Host;
use airdma_engine::cm_protocol::{
    Accept, Connect, ConnectRequest, ConnectionId, Event, IpAddressing, ListenerId, PortSpace,
    Route, ServiceId, Takes, TransportService,
};
use airdma_engine::{CmChannel, CmNews, PathMtu, Psn, Qpn};
use airdma_sim::Random;
use core::time::Duration;
use std::sync::Arc;

/// Service of the listeners.
pub(super) const SERVICE: ServiceId = ServiceId::of_port(PortSpace::TCP, 7471);
/// Requests that may wait for a program.
const BACKLOG: usize = 16;
/// Indices of the host that listens and of the one that connects.
const LISTENS: usize = 0;
const CONNECTS: usize = 1;
/// Longest time of a connection if nothing is lost.
pub(super) const TIME_MAX: Duration = Duration::from_millis(500);

/// Stage of a connection.
#[derive(Clone, Debug, Default)]
struct Stage {
    /// Connections that the listening host accepted for it, including those that the attacker
    /// requested in the other host's name.
    candidates: Vec<ConnectionId>,
    /// Id at the listening host, once a candidate is established, and at the connecting host.
    ids: [Option<ConnectionId>; 2],
    established: [bool; 2],
}

/// The connections of a world by RDMA CM.
pub(super) struct Meeting {
    channels: [Arc<CmChannel>; 2],
    listeners: [ListenerId; 2],
    /// Programs fetch no events before the end.
    is_slow: bool,
    /// The queue pair numbers that the hosts advertise, by connection and end.
    pub(super) numbers: [[Qpn; 2]; 2],
    stages: [Stage; 2],
    /// Time of the second connection's request, and the packets lost until then.
    asked: Option<(Duration, u64)>,
    is_over: bool,
}

impl Meeting {
    /// Makes the hosts listen; one requests a connection.
    pub(super) fn new(hosts: &[Host], random: &mut Random) -> Meeting {
        let channel = || CmChannel::new().expect("a descriptor");
        let channels = [channel(), channel()];
        let listeners = [LISTENS, CONNECTS].map(|host| {
            let device = hosts[host].device.device();
            let listener = device.cm_listen(SERVICE, Takes::RC, None, BACKLOG, &channels[host], 0);
            listener.expect("a service without a listener")
        });
        let mut number = || Qpn::new(2 + random.below((1 << 24) - 3) as u32);
        let numbers = [[number(), number()], [number(), number()]];
        let mut meeting = Meeting {
            channels,
            listeners,
            is_slow: random.chance(0.5),
            numbers,
            stages: [Stage::default(), Stage::default()],
            asked: None,
            is_over: false,
        };
        meeting.connect(hosts, 0);
        meeting
    }

    /// Requests the `which`-th connection.
    fn connect(&mut self, hosts: &[Host], which: usize) {
        let [to, from] = [LISTENS, CONNECTS].map(|host| hosts[host].address);
        let wanted = Connect {
            route: Route {
                local: from.into(),
                remote: to.into(),
                traffic_class: 0,
            },
            service_id: SERVICE,
            transport: TransportService::Rc,
            qpn: self.numbers[which][CONNECTS],
            psn: Psn::new(7),
            path_mtu: PathMtu::M256,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            ack_timeout: 10,
            flow_label: 0,
            addressing: IpAddressing::new(from, 4711, to),
            private_data: &[],
        };
        let device = hosts[CONNECTS].device.device();
        let id = device.cm_connect(&wanted, &self.channels[CONNECTS], 1);
        self.stages[which].ids[CONNECTS] = Some(id.expect("a connection"));
    }

    /// Whether both ends have seen the first connection established.
    pub(super) fn is_established(&self) -> bool {
        self.stages[0].established == [true; 2]
    }

    /// Whether programs have events to fetch now.
    pub(super) fn has_news(&self) -> bool {
        let fetches = !self.is_slow || self.asked.is_some() || !self.is_established();
        !self.is_over && fetches && self.channels.iter().any(|channel| channel.has_news())
    }

    /// Lets programs fetch their events. Returns the hosts that have datagrams to send.
    ///
    /// # Errors
    /// An established connection was ended.
    pub(super) fn fetch(&mut self, hosts: &[Host]) -> Result<(), String> {
        for host in [LISTENS, CONNECTS] {
            while let Some((_, news)) = self.channels[host].pop() {
                if let CmNews::Event(event) = news
                    && hosts[host].alive
                {
                    self.take(hosts, host, event)?;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, hosts: &[Host], host: usize, event: Event) -> Result<(), String> {
        let device = hosts[host].device.device();
        match event {
            Event::ConnectRequest(request) => {
                let which = self.which_asks(hosts, host, &request);
                let number = which.map_or(Qpn::new(0x77), |which| self.numbers[which][LISTENS]);
                let accepted = device.cm_accept(request.id, &accept(number));
                if let (Some(which), Ok(())) = (which, accepted) {
                    self.stages[which].candidates.push(request.id);
                }
            }
            Event::ConnectResponse(response) => {
                // It may have ended before the answer.
                if device.cm_ready(response.id, &[]).is_ok()
                    && let Some(which) = self.which(host, response.id)
                {
                    self.stages[which].established[host] = true;
                }
            }
            Event::Established { id, .. } => {
                let mut stages = self.stages.iter_mut();
                if let Some(stage) = stages.find(|stage| stage.candidates.contains(&id)) {
                    stage.ids[host] = Some(id);
                    stage.established[host] = true;
                }
            }
            Event::Rejected { id, .. }
            | Event::Unreachable { id }
            | Event::Disconnected { id, .. }
            | Event::TimewaitExit { id } => {
                let which = self.which(host, id);
                if let Some(which) = which.filter(|&which| self.stages[which].established[host]) {
                    return Err(format!(
                        "connection {which} by RDMA CM ended at host {host}: {event:?}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn which(&self, host: usize, id: ConnectionId) -> Option<usize> {
        let mut stages = self.stages.iter();
        stages.position(|stage| stage.ids[host] == Some(id))
    }

    /// Index of the connection that a request belongs to; none for a forged one.
    fn which_asks(&self, hosts: &[Host], host: usize, request: &ConnectRequest) -> Option<usize> {
        let is_theirs = host == LISTENS && request.route.remote == hosts[CONNECTS].address.into();
        let mut numbers = self.numbers.iter();
        let which = numbers.position(|numbers| numbers[CONNECTS] == request.qpn);
        which.filter(|_| is_theirs)
    }

    /// Requests the second connection, after `lost` packets were lost, and lets programs fetch
    /// events.
    pub(super) fn ask_again(&mut self, hosts: &[Host], now: Duration, lost: u64) {
        if self.is_established() && self.asked.is_none() {
            self.asked = Some((now, lost));
            self.connect(hosts, 1);
        }
    }

    /// Whether the second connection was requested and must still appear, given the packets lost.
    pub(super) fn waits(&self, lost: u64) -> bool {
        let before = self
            .asked
            .filter(|_| self.stages[1].established != [true; 2]);
        before.is_some_and(|(_, before)| before == lost)
    }

    /// Checks that the second connection is established or was prevented by loss.
    ///
    /// # Errors
    /// It is missing, though nothing was lost.
    pub(super) fn check(&self, now: Duration, lost: u64) -> Result<(), String> {
        match self.asked {
            Some((asked, _)) if self.waits(lost) => Err(format!(
                "a connection by RDMA CM was asked for, nothing was lost, and {:?} later it is not there: {:?}",
                now - asked,
                self.stages[1]
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Ends listeners and connections.
    pub(super) fn end(&mut self, hosts: &[Host]) {
        self.is_over = true;
        for host in [LISTENS, CONNECTS] {
            if !hosts[host].alive {
                continue;
            }
            let device = hosts[host].device.device();
            device.cm_close(self.listeners[host]);
            for stage in &self.stages {
                let accepted = stage.candidates.iter().filter(|_| host == LISTENS);
                for &id in accepted.chain(&stage.ids[host]) {
                    device.cm_destroy(id);
                }
            }
        }
    }
}

fn accept(qpn: Qpn) -> Accept<'static> {
    Accept {
        qpn,
        psn: Psn::new(9),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        srq: false,
        private_data: &[],
    }
}
