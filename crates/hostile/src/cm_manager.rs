//! The connection manager against peers that send what they want and a program that calls what it wants: it stays within its
//! bounds, answers no datagram with many, and whatever was begun ends.

use std::net::Ipv4Addr;
use std::time::Duration;

use airdma_cm::{
    Accept, Config, Connect, ConnectionId, Event, ListenerId, Manager, Resolve, Route, SidrAnswer,
    SidrId, Takes,
};
use airdma_transport::Time;
use airdma_wire::cm::{
    CmMad, IpAddressing, PortSpace, RejReason, ServiceId, SidrStatus, TransportService,
};
use airdma_wire::mad::MAD_LEN;
use airdma_wire::{Gid, PathMtu, Psn, Qkey, Qpn};

use crate::input::Input;

const CONNECTIONS_MAX: usize = 12;
const TRANSMITS_MAX: usize = 16;

/// Datagrams that one of a peer may bring about: a reject, and the end of the connection that it shows to be stale.
const ANSWERS_MAX: usize = 2;

/// A connection without an answer is repeated at most 15 times, each after 69 s at most, and remembered for two minutes.
const LIFE_MAX: Duration = Duration::from_secs(16 * 69 + 2 * 120);

/// Captured datagrams that are kept to be changed and sent again.
const SEEN_MAX: usize = 32;

/// A manager, what surrounds it, and what it said.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut siege = Siege::new(input.byte());
    while !input.is_empty() {
        siege.step(&mut input);
        assert!(siege.manager.connections() <= CONNECTIONS_MAX);
        assert!(siege.manager.resolutions() <= CONNECTIONS_MAX);
    }
    siege.finish();
}

struct Siege {
    manager: Manager,
    now: Time,
    listeners: Vec<ListenerId>,
    /// Those that the program knows.
    connections: Vec<ConnectionId>,
    exchanges: Vec<SidrId>,
    seen: Vec<[u8; MAD_LEN]>,
}

impl Siege {
    fn new(seed: u8) -> Self {
        let mut config = Config::new(u64::from(seed), 1);
        config.connections_max = CONNECTIONS_MAX;
        config.half_open_max = 6;
        config.resting_max = 3;
        config.transmits_max = TRANSMITS_MAX;
        config.id_tag = (seed & 1 != 0).then_some(seed);
        let mut manager = Manager::new(config);
        let mut listen = |space, takes, local| {
            let service = ServiceId::of_port(space, 1);
            manager
                .listen(service, takes, local, 3)
                .expect("nobody else listens")
        };
        let listeners = vec![
            listen(PortSpace::TCP, Takes::RC, None),
            listen(PortSpace::UDP, Takes::Datagrams, Some(gid(1))),
            listen(
                PortSpace::IB,
                Takes::Connections(TransportService::Uc),
                None,
            ),
        ];
        Siege {
            manager,
            now: Time::ZERO,
            listeners,
            connections: Vec::new(),
            exchanges: Vec::new(),
            seen: Vec::new(),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let peer = 2 + input.byte() % 2;
        match input.below(16) {
            0..=2 => self.fresh_request(peer, input),
            3..=8 => self.hostile_datagram(peer, input),
            9 => self.connect(peer, input),
            10..=12 => self.call(input),
            13 => self.wait(input),
            14 => self.poll_events(),
            _ => {
                let mad = input.take(MAD_LEN).to_vec();
                self.handle(peer, &mad);
            }
        }
        self.poll_transmits();
    }

    /// Delivers a datagram, of which few may come.
    fn handle(&mut self, peer: u8, mad: &[u8]) {
        self.poll_transmits();
        self.manager.handle_mad(self.now, route(1, peer), mad);
        let answers = self.poll_transmits();
        assert!(
            answers <= ANSWERS_MAX,
            "one datagram brought about {answers}"
        );
    }

    fn poll_transmits(&mut self) -> usize {
        let mut count = 0;
        while let Some((route, mad)) = self.manager.poll_transmit() {
            assert!(CmMad::parse(&mad).is_ok(), "a malformed datagram of ours");
            assert!(route.local == gid(1) && [gid(2), gid(3)].contains(&route.remote));
            count += 1;
            self.remember(mad);
        }
        assert!(count <= TRANSMITS_MAX);
        count
    }

    fn remember(&mut self, mad: [u8; MAD_LEN]) {
        self.seen.insert(0, mad);
        self.seen.truncate(SEEN_MAX);
    }

    /// A peer's own manager asks for a connection, or for a queue pair of datagrams.
    fn fresh_request(&mut self, peer: u8, input: &mut Input<'_>) {
        let mut attacker = Manager::new(Config::new(input.byte().into(), 2));
        let wanted = wanted(peer, 1, input);
        let asked = if input.one_in(4) {
            let resolve = Resolve {
                route: wanted.route,
                service_id: ServiceId::of_port(PortSpace::UDP, 1),
                addressing: wanted.addressing,
                private_data: &[],
            };
            attacker.resolve(self.now, &resolve).is_ok()
        } else {
            attacker.connect(self.now, &wanted).is_ok()
        };
        assert!(asked, "there is room in a fresh manager");
        let (_, mad) = attacker.poll_transmit().expect("a request");
        self.remember(mad);
        self.handle(peer, &mad);
    }

    /// Something that was seen, as another message, with the ids the other way round, with other bytes.
    fn hostile_datagram(&mut self, peer: u8, input: &mut Input<'_>) {
        let about = input.below(SEEN_MAX) % self.seen.len().max(1);
        let mut mad = self.seen.get(about).copied().unwrap_or([0; MAD_LEN]);
        let changes = input.byte();
        if changes & 1 != 0 {
            mad[17] = 0x10 + input.byte() % 9;
        }
        if changes & 2 != 0 {
            let (a, b) = mad[24..32].split_at_mut(4);
            a.swap_with_slice(b);
        }
        if changes & 4 != 0 {
            // The other id is of another datagram.
            let other = input.below(SEEN_MAX) % self.seen.len().max(1);
            let other = self.seen.get(other).copied().unwrap_or(mad);
            mad[28..32].copy_from_slice(&other[24..28]);
        }
        for _ in 0..changes >> 6 {
            let at = input.below(MAD_LEN);
            mad[at] = input.byte();
        }
        self.handle(peer, &mad);
    }

    fn connect(&mut self, peer: u8, input: &mut Input<'_>) {
        let wanted = wanted(1, peer, input);
        if input.one_in(3) {
            let resolve = Resolve {
                route: wanted.route,
                service_id: ServiceId::of_port(PortSpace::UDP, 1),
                addressing: None,
                private_data: &[],
            };
            self.exchanges
                .extend(self.manager.resolve(self.now, &resolve));
        } else {
            self.connections
                .extend(self.manager.connect(self.now, &wanted));
        }
    }

    /// A call of the program, right or wrong.
    fn call(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        let data = &[5; 256][..usize::from(input.byte() & 0x1f) * 8];
        let exchange = input.below(8);
        if let Some(&id) = self.exchanges.get(exchange) {
            let with = SidrAnswer {
                status: if input.one_in(2) {
                    SidrStatus::VALID
                } else {
                    SidrStatus::REJECTED
                },
                qpn: Qpn::new(1),
                qkey: Qkey(1),
                private_data: data,
            };
            let _ = match input.below(3) {
                0 => self.manager.taken_sidr(id),
                1 => self.manager.answer(now, id, &with).inspect(|()| {
                    self.exchanges.remove(exchange);
                }),
                _ => {
                    self.exchanges.remove(exchange);
                    self.manager.destroy_sidr(now, id);
                    Ok(())
                }
            };
        }
        let connection = input.below(8) % self.connections.len().max(1);
        let Some(&id) = self.connections.get(connection) else {
            return;
        };
        let accept = Accept {
            qpn: Qpn::new(7),
            psn: Psn::new(1),
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 7,
            srq: false,
            private_data: data,
        };
        let _ = match input.below(10) {
            0..=2 => self.manager.accept(now, id, &accept),
            3 => self.manager.ready(id, data),
            4 => self.manager.disconnect(now, id, data),
            5 => self.manager.reject(now, id, RejReason::CONSUMER, data),
            6 => {
                self.manager.data_arrived(id);
                Ok(())
            }
            7 => {
                self.manager.taken(id);
                Ok(())
            }
            8 => {
                let words = self.manager.last_words(id);
                words.map_or(Ok(()), |words| {
                    self.manager.say(now, &words);
                    Ok(())
                })
            }
            _ => {
                self.connections.remove(connection);
                self.manager.destroy(now, id);
                Ok(())
            }
        };
        // The network may be gone.
        if input.one_in(8)
            && let Some(mad) = self.seen.first()
        {
            self.manager.unsendable(now, mad);
        }
    }

    fn wait(&mut self, input: &mut Input<'_>) {
        let due = self.manager.poll_timeout();
        self.now = match (input.below(3), due) {
            (0 | 1, Some(due)) => due.max(self.now),
            (2, _) | (_, None) => self.now + Duration::from_millis(input.u16().into()),
            (_, Some(_)) => self.now,
        };
        self.handle_timeout();
    }

    fn handle_timeout(&mut self) {
        self.manager.handle_timeout(self.now);
        let next = self.manager.poll_timeout();
        assert!(
            next.is_none_or(|at| at > self.now),
            "a timer that is due stays due"
        );
    }

    fn poll_events(&mut self) {
        while let Some(event) = self.manager.poll_event() {
            match event {
                Event::ConnectRequest(request) => self.connections.insert(0, request.id),
                Event::SidrRequest(request) => self.exchanges.insert(0, request.id),
                Event::Rejected { id, .. }
                | Event::Unreachable { id }
                | Event::TimewaitExit { id } => {
                    self.connections.retain(|known| *known != id);
                }
                Event::SidrUnreachable { id } => self.exchanges.retain(|known| *known != id),
                Event::SidrResponse(response) => {
                    self.exchanges.retain(|known| *known != response.id)
                }
                Event::ConnectResponse(_)
                | Event::Established { .. }
                | Event::Disconnected { .. } => {}
            }
        }
        assert!(
            self.connections.len() <= 2 * CONNECTIONS_MAX
                && self.exchanges.len() <= 2 * CONNECTIONS_MAX
        );
    }

    /// Everybody falls silent. What waits for a peer ends by itself, what waits for the program when that lets go.
    fn finish(mut self) {
        for listener in std::mem::take(&mut self.listeners) {
            self.manager.close(self.now, listener);
        }
        self.run_dry();
        self.poll_events();
        for id in std::mem::take(&mut self.connections) {
            self.manager.destroy(self.now, id);
        }
        for id in std::mem::take(&mut self.exchanges) {
            self.manager.destroy_sidr(self.now, id);
        }
        self.run_dry();
        self.poll_events();
        assert!(self.manager.is_idle(), "{:#?}", self.manager);
    }

    fn run_dry(&mut self) {
        let end = self.now + LIFE_MAX;
        let mut sent = self.poll_transmits();
        while let Some(due) = self.manager.poll_timeout() {
            assert!(due <= end, "a connection outlives its repetitions");
            self.now = self.now.max(due);
            self.handle_timeout();
            sent += self.poll_transmits();
        }
        assert!(
            sent <= 2 * 17 * 2 * CONNECTIONS_MAX,
            "{sent} datagrams to peers that are silent"
        );
    }
}

fn gid(host: u8) -> Gid {
    Ipv4Addr::new(10, 0, 0, host).into()
}

/// As seen from the host `local`.
fn route(local: u8, remote: u8) -> Route {
    Route {
        local: gid(local),
        remote: gid(remote),
        traffic_class: 0,
    }
}

fn wanted(local: u8, remote: u8, input: &mut Input<'_>) -> Connect<'static> {
    let [kind, qpn, ack_timeout, mtu] = input.bytes();
    let (space, transport) = match kind % 8 {
        0..=4 => (PortSpace::TCP, TransportService::Rc),
        5 => (PortSpace::IB, TransportService::Uc),
        6 => (PortSpace::IB, TransportService::Extended),
        _ => (PortSpace::UDP, TransportService::Rc),
    };
    let address = |host| Ipv4Addr::new(10, 0, 0, host).into();
    Connect {
        route: route(local, remote),
        service_id: ServiceId::of_port(space, 1 + u16::from(kind >> 7 & kind)),
        transport,
        qpn: Qpn::new(u32::from(qpn % 4)),
        psn: Psn::new(1),
        path_mtu: PathMtu::ALL[usize::from(mtu % 5)],
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        ack_timeout,
        flow_label: 0,
        addressing: IpAddressing::new(address(local), 5, address(remote)),
        private_data: &[],
    }
}
