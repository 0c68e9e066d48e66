//! A manager that receives anything from anyone never panics, stays within its bounds, and can be
//! emptied.

#![allow(clippy::unwrap_used, missing_docs)]

use std::net::Ipv4Addr;
use std::time::Duration;

use airdma_cm::*;
use airdma_sim::Random;
use airdma_transport::Time;
use airdma_wire::cm::{
    IpAddressing, PortSpace, RejReason, ServiceId, SidrStatus, TransportService,
};
use airdma_wire::{Gid, PathMtu, Psn, Qkey, Qpn};

const PORT: u16 = 1;
const BACKLOG: usize = 4;

struct Target {
    manager: Manager,
    random: Random,
    now: Time,
    listeners: Vec<ListenerId>,
    ids: Vec<ConnectionId>,
    sidr_ids: Vec<SidrId>,
    /// Datagrams seen on the wire, to be changed and sent again.
    corpus: Vec<[u8; 256]>,
}

fn address(n: u64) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n as u8)
}

fn services() -> [ServiceId; 2] {
    [PortSpace::TCP, PortSpace::UDP].map(|space| ServiceId::of_port(space, PORT))
}

impl Target {
    fn new(seed: u64) -> Self {
        let mut config = Config::new(seed, 1);
        config.path_mtu_max = PathMtu::M1024;
        config.connections_max = 40;
        config.half_open_max = 20;
        config.resting_max = 10;
        config.transmits_max = 30;
        let mut manager = Manager::new(config);
        let takes = [Takes::RC, Takes::Datagrams];
        let listeners = takes
            .into_iter()
            .zip(services())
            .map(|(takes, service)| manager.listen(service, takes, None, BACKLOG).unwrap())
            .collect();
        Target {
            manager,
            random: Random::new(seed),
            now: Time::ZERO,
            listeners,
            ids: Vec::new(),
            sidr_ids: Vec::new(),
            corpus: Vec::new(),
        }
    }

    /// Arguments of a request between the target and one of two peers; its datagrams add to the
    /// corpus.
    fn wanted(&mut self, local: u64, remote: u64) -> Connect<'static> {
        let [service_id, _] = services();
        Connect {
            route: route(local, remote),
            service_id,
            transport: TransportService::Rc,
            qpn: Qpn::new(self.random.below(6) as u32),
            psn: Psn::new(1),
            path_mtu: PathMtu::M1024,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            ack_timeout: self.random.below(32) as u8,
            flow_label: 0,
            addressing: IpAddressing::new(address(local).into(), 5, address(remote).into()),
            private_data: &[],
        }
    }

    fn step(&mut self) {
        let remote = 2 + self.random.below(2);
        match self.random.below(12) {
            0 => {
                // A peer's own manager makes a new request, with its own ids.
                let seed = self.random.next_u64();
                let mut peer = Manager::new(Config::new(seed, 2));
                let wanted = Connect {
                    path_mtu: self.random.pick(&PathMtu::ALL),
                    ..self.wanted(remote, 1)
                };
                peer.connect(self.now, &wanted).unwrap();
                let [_, service_id] = services();
                let resolve = Resolve {
                    route: wanted.route,
                    service_id,
                    addressing: wanted.addressing,
                    private_data: &[],
                };
                peer.resolve(self.now, &resolve).unwrap();
                while let Some((_, mad)) = peer.poll_transmit() {
                    self.corpus.push(mad);
                    self.manager
                        .handle_mad(self.now, route(1, remote), 4791, &mad);
                }
            }
            1 => {
                let wanted = self.wanted(1, remote);
                if let Ok(id) = self.manager.connect(self.now, &wanted) {
                    self.ids.push(id);
                }
            }
            2 if self.random.chance(0.2) => self.complete(remote),
            2 => self.call(),
            3 => {
                let wait = self.random.below(3_000_000_000);
                self.now = self.now + Duration::from_nanos(wait);
                self.manager.handle_timeout(self.now);
            }
            _ => self.attack(remote),
        }
        self.poll();
    }

    /// Completes a connection of a peer, perhaps with a queue pair that is connected already.
    fn complete(&mut self, remote: u64) {
        let mut peer = Manager::new(Config::new(self.random.next_u64(), 2));
        let wanted = self.wanted(remote, 1);
        let theirs = peer.connect(self.now, &wanted).unwrap();
        let (_, req) = peer.poll_transmit().unwrap();
        self.corpus.push(req);
        self.manager
            .handle_mad(self.now, route(1, remote), 4791, &req);
        let mut id = None;
        while let Some(event) = self.manager.poll_event() {
            if let Event::ConnectRequest(request) = event {
                self.ids.push(request.id);
                id = Some(request.id);
            }
        }
        while self.manager.poll_transmit().is_some() {}
        let with = Accept {
            qpn: Qpn::new(1),
            psn: Psn::new(1),
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 7,
            srq: false,
            private_data: &[],
        };
        let accepted = id.map(|id| self.manager.accept(self.now, id, &with));
        let (Some(Ok(())), Some((_, rep))) = (accepted, self.manager.poll_transmit()) else {
            return;
        };
        peer.handle_mad(self.now, route(remote, 1), 4791, &rep);
        // The event may have been another one.
        let _ = peer.ready(theirs, &[]);
        while let Some((_, rtu)) = peer.poll_transmit() {
            self.manager
                .handle_mad(self.now, route(1, remote), 4791, &rtu);
        }
    }

    fn attack(&mut self, remote: u64) {
        let len = self.random.below(300) as usize;
        let mut bytes = self.random.bytes(len);
        if !self.corpus.is_empty() && !self.random.chance(0.1) {
            let i = self.random.index(self.corpus.len());
            bytes = self.corpus[i].to_vec();
            // Often another message about the same ids follows.
            if self.random.chance(0.5) {
                bytes[17] = 0x10 + self.random.below(9) as u8;
            }
            // A message of the target comes back: local and remote are swapped.
            if self.random.chance(0.5) {
                let (a, b) = bytes[24..32].split_at_mut(4);
                a.swap_with_slice(b);
            }
            for _ in 0..self.random.below(4) {
                let at = self.random.index(bytes.len());
                bytes[at] ^= 1 << self.random.below(8);
            }
        }
        let port = self.random.pick(&[4791, 4791, 49_152]);
        self.manager
            .handle_mad(self.now, route(1, remote), port, &bytes);
    }

    fn call(&mut self) {
        let now = self.now;
        if let Some(&id) = self.sidr_ids.last()
            && self.random.chance(0.3)
        {
            let with = SidrAnswer {
                status: SidrStatus::VALID,
                qpn: Qpn::new(1),
                qkey: Qkey(1),
                private_data: &[],
            };
            let _ = self.manager.answer(now, id, &with);
            self.sidr_ids.pop();
        }
        if self.ids.is_empty() {
            return;
        }
        let id = self.ids[self.random.index(self.ids.len())];
        let accept = Accept {
            qpn: Qpn::new(self.random.below(6) as u32),
            psn: Psn::new(1),
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 7,
            srq: false,
            private_data: &[],
        };
        // In any state: calls that the state does not allow are errors.
        let _ = match self.random.below(7) {
            0 | 1 => self.manager.accept(now, id, &accept),
            2 => self.manager.ready(id, &[]),
            3 => self.manager.disconnect(now, id, &[]),
            4 => self.manager.reject(now, id, RejReason::CONSUMER, &[]),
            5 => {
                self.manager.data_arrived(now, id);
                self.manager.taken(id);
                Ok(())
            }
            _ => {
                self.manager.destroy(now, id);
                Ok(())
            }
        };
    }

    fn poll(&mut self) {
        let mut transmits = 0;
        while let Some((_, mad)) = self.manager.poll_transmit() {
            transmits += 1;
            self.corpus.push(mad);
        }
        assert!(transmits <= 30);
        if self.corpus.len() > 200 {
            self.corpus.drain(..100);
        }
        if self.random.chance(0.5)
            && let Some(evicted) = self.manager.poll_evicted()
        {
            let is_known = match evicted {
                Evicted::Connection(id) => self.ids.contains(&id),
                Evicted::Resolution(id) => self.sidr_ids.contains(&id),
            };
            if !is_known || self.random.chance(0.5) {
                self.manager.withdraw(evicted);
            }
        }
        // The program is slow: it polls only sometimes.
        if self.random.chance(0.7) {
            return;
        }
        while let Some(event) = self.manager.poll_event() {
            match event {
                Event::ConnectRequest(request) => self.ids.push(request.id),
                Event::SidrRequest(request) => self.sidr_ids.push(request.id),
                Event::ConnectResponse(_)
                | Event::Established { .. }
                | Event::Rejected { .. }
                | Event::Unreachable { .. }
                | Event::Disconnected { .. }
                | Event::TimewaitExit { .. }
                | Event::SidrResponse(_)
                | Event::SidrUnreachable { .. }
                | Event::SidrWithdrawn { .. } => {}
            }
        }
        // One more while it is evicted.
        assert!(self.manager.connections() <= 41);
        assert!(self.manager.resolutions() <= 40);
    }

    fn empty(&mut self) {
        for listener in std::mem::take(&mut self.listeners) {
            self.manager.close(self.now, listener);
        }
        for id in std::mem::take(&mut self.ids) {
            self.manager.destroy(self.now, id);
        }
        for id in std::mem::take(&mut self.sidr_ids) {
            self.manager.destroy_sidr(self.now, id);
        }
        let mut timers = 0;
        while let Some(due) = self.manager.poll_timeout() {
            self.now = self.now.max(due);
            self.manager.handle_timeout(self.now);
            while self.manager.poll_transmit().is_some() {}
            timers += 1;
            assert!(timers < 10_000);
        }
        while self.manager.poll_transmit().is_some() {}
        while self.manager.poll_event().is_some() {}
        assert!(self.manager.is_idle(), "{:#?}", self.manager);
    }
}

/// The route seen from the host `local`.
fn route(local: u64, remote: u64) -> Route {
    Route {
        local: Gid::from(address(local)),
        remote: Gid::from(address(remote)),
        traffic_class: 0,
    }
}

#[test]
fn whatever_arrives_is_survived_bounded_and_can_be_cleared_away() {
    let mut counted = [0; Counter::ALL.len()];
    for seed in 0..60 {
        let mut target = Target::new(seed);
        for _ in 0..1_500 {
            target.step();
        }
        target.empty();
        for (sum, &counter) in counted.iter_mut().zip(Counter::ALL) {
            *sum += target.manager.counter(counter);
        }
    }
    for (sum, counter) in counted.iter().zip(Counter::ALL) {
        // The queue of datagrams is emptied after each step.
        assert!(
            *sum > 0 || *counter == Counter::DropTransmitFull,
            "{} never happened",
            counter.name()
        );
    }
}
