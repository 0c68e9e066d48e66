//! The connection manager against peers that send what they want and a program that calls what it
//! wants: it stays within its bounds, answers no datagram with many, and whatever was begun ends.
//! Requests with forged addresses bring little there, and take nothing from a connection that has
//! nothing to do with it all.

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
use airdma_wire::{Gid, PathMtu, Psn, Qkey, Qpn, ROCE_PORT};

use crate::input::Input;

const CONNECTIONS_MAX: usize = 12;
const TRANSMITS_MAX: usize = 16;

/// Datagrams that one of a peer may bring about: a reject, and the end of the connection that it
/// shows to be stale.
const ANSWERS_MAX: usize = 2;

/// A connection without an answer is repeated at most 15 times, each after 69 s at most, and
/// remembered for two minutes.
const LIFE_MAX: Duration = Duration::from_secs(16 * 69 + 2 * 120);

/// Datagrams to an address from which nothing but requests comes, for each of those: a reply, and
/// three more.
const ANSWERS_TO_STRANGERS_MAX: usize = 4;
/// Their host numbers. The last is the peer of a connection that goes on, in whose name requests
/// are forged, too.
const STRANGERS: std::ops::Range<u8> = 4..9;
const BYSTANDER: u8 = 8;
const BYSTANDERS_QPN: Qpn = Qpn::new(0x77);

/// Captured datagrams that are kept to be changed and sent again.
const SEEN_MAX: usize = 32;

/// A manager, what surrounds it, and what it said.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut siege = Siege::new(input.byte());
    while !input.is_empty() {
        siege.step(&mut input);
        // One more while it is evicted.
        assert!(siege.manager.connections() <= CONNECTIONS_MAX + 1);
        assert!(siege.manager.resolutions() <= CONNECTIONS_MAX);
    }
    siege.finish();
}

/// Datagrams to and from a forged address.
#[derive(Clone, Copy, Default)]
struct Exchanged {
    came: usize,
    went: usize,
}

struct Siege {
    manager: Manager,
    now: Time,
    listeners: Vec<ListenerId>,
    /// Those that the program knows.
    connections: Vec<ConnectionId>,
    exchanges: Vec<SidrId>,
    seen: Vec<[u8; MAD_LEN]>,
    strangers: [Exchanged; 5],
    /// Requests of theirs that the program knows.
    forged: Vec<ConnectionId>,
    /// A connection that no datagram and no call is about.
    bystander: ConnectionId,
}

impl Siege {
    fn new(seed: u8) -> Self {
        let mut config = Config::new(u64::from(seed), 1);
        config.path_mtu_max = PathMtu::M2048;
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
        let bystander = established(&mut manager);
        Siege {
            manager,
            now: Time::ZERO,
            listeners,
            connections: Vec::new(),
            exchanges: Vec::new(),
            seen: Vec::new(),
            strangers: [Exchanged::default(); 5],
            forged: Vec::new(),
            bystander,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let who = input.byte();
        if who >= 0xf0 {
            self.forged_request(STRANGERS.start + who % 5, input);
        }
        let peer = 2 + who % 2;
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
        self.manager
            .handle_mad(self.now, route(1, peer), ROCE_PORT, mad);
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
            assert!(route.local == gid(1));
            let mut strangers = STRANGERS;
            let stranger = strangers.position(|host| route.remote == gid(host));
            match stranger {
                Some(at) => {
                    let exchanged = &mut self.strangers[at];
                    exchanged.went += 1;
                    let most = ANSWERS_TO_STRANGERS_MAX * exchanged.came;
                    assert!(exchanged.went <= most, "a forged request pays off");
                }
                None => assert!([gid(2), gid(3)].contains(&route.remote)),
            }
            count += 1;
            if stranger.is_none() {
                self.remember(mad);
            }
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

    /// A request that comes from no host with that address: nothing that is sent there is ever
    /// seen. It may name the queue pair of another connection.
    fn forged_request(&mut self, stranger: u8, input: &mut Input<'_>) {
        let mut attacker = Manager::new(Config::new(u64::from(input.byte() % 8), 3));
        let mut wanted = wanted(stranger, 1, input);
        if stranger == BYSTANDER {
            wanted.qpn = BYSTANDERS_QPN;
        }
        let asked = attacker.connect(self.now, &wanted);
        assert!(asked.is_ok(), "there is room in a fresh manager");
        let (_, mad) = attacker.poll_transmit().expect("a request");
        self.strangers[usize::from(stranger - STRANGERS.start)].came += 1;
        self.handle(stranger, &mad);
    }

    /// Something that was seen, as another message, with the ids the other way round, with other
    /// bytes.
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
                // No data comes from an address without a host.
                if !self.forged.contains(&id) {
                    self.manager.data_arrived(now, id);
                }
                Ok(())
            }
            7 => {
                self.manager.taken(id);
                Ok(())
            }
            8 => {
                let notice = self.manager.orphan_notice(id);
                notice.map_or(Ok(()), |notice| {
                    self.manager.send_orphan_notice(now, &notice);
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
        if let Some(evicted) = self.manager.poll_evicted()
            && self.now.as_nanos().is_multiple_of(2)
        {
            self.manager.withdraw(evicted);
        }
        while let Some(event) = self.manager.poll_event() {
            match event {
                Event::ConnectRequest(request) => {
                    let mut strangers = STRANGERS.map(gid);
                    if strangers.any(|stranger| stranger == request.route.remote) {
                        self.forged.push(request.id);
                    }
                    self.connections.insert(0, request.id);
                }
                Event::SidrRequest(request) => self.exchanges.insert(0, request.id),
                Event::Rejected { id, .. }
                | Event::Unreachable { id }
                | Event::TimewaitExit { id } => {
                    self.connections.retain(|known| *known != id);
                }
                Event::SidrUnreachable { id } | Event::SidrWithdrawn { id } => {
                    self.exchanges.retain(|known| *known != id)
                }
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

    /// Everybody falls silent. What waits for a peer ends by itself, what waits for the program
    /// when that lets go.
    fn finish(mut self) {
        for listener in std::mem::take(&mut self.listeners) {
            self.manager.close(self.now, listener);
        }
        self.run_dry();
        self.poll_events();
        let ended = self.manager.disconnect(self.now, self.bystander, &[]);
        assert_eq!(ended, Ok(()), "the bystander's connection goes on");
        let said = self.manager.poll_transmit();
        let (route, _) = said.expect("it is open until this moment");
        assert_eq!(route.remote, gid(BYSTANDER));
        self.manager.destroy(self.now, self.bystander);
        self.strangers[usize::from(BYSTANDER - STRANGERS.start)].came += 16;
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

/// A connection that a peer has asked for and completed.
fn established(manager: &mut Manager) -> ConnectionId {
    let now = Time::ZERO;
    let mut peer = Manager::new(Config::new(99, 4));
    let wanted = Connect {
        service_id: ServiceId::of_port(PortSpace::TCP, 1),
        transport: TransportService::Rc,
        qpn: BYSTANDERS_QPN,
        ..wanted(BYSTANDER, 1, &mut Input::new(&[]))
    };
    let theirs = peer.connect(now, &wanted).expect("there is room");
    let (_, req) = peer.poll_transmit().expect("REQ");
    manager.handle_mad(now, route(1, BYSTANDER), ROCE_PORT, &req);
    let Some(Event::ConnectRequest(request)) = manager.poll_event() else {
        unreachable!("somebody listens");
    };
    let with = Accept {
        qpn: Qpn::new(6),
        psn: Psn::new(1),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        srq: false,
        private_data: &[],
    };
    let accepted = manager.accept(now, request.id, &with);
    let (_, rep) = manager.poll_transmit().expect("REP");
    peer.handle_mad(now, route(BYSTANDER, 1), ROCE_PORT, &rep);
    let ready = peer.ready(theirs, &[]);
    let (_, rtu) = peer.poll_transmit().expect("RTU");
    manager.handle_mad(now, route(1, BYSTANDER), ROCE_PORT, &rtu);
    let event = manager.poll_event();
    assert!(accepted.is_ok() && ready.is_ok());
    assert!(matches!(event, Some(Event::Established { .. })));
    request.id
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
