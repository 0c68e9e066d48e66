//! Two managers, programs with random calls, and a network that loses, repeats, delays and
//! reorders. In every world both sides learn how each connection ended, nothing happens twice, and
//! nothing is left.
//!
//! `AIRDMA_SEEDS=20000 cargo test --release -p airdma-cm --test pair` runs more worlds than usual,
//! `AIRDMA_SEED=n cargo test -p airdma-cm --test pair` runs the world of that seed alone.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use airdma_cm::*;
use airdma_sim::Random;
use airdma_transport::Time;
use airdma_wire::cm::{
    IpAddressing, PortSpace, RejReason, ServiceId, SidrStatus, TransportService,
};
use airdma_wire::{PathMtu, Psn, Qkey, Qpn};

const SERVICE: ServiceId = ServiceId::of_port(PortSpace::TCP, 1);
const SERVICE_UDP: ServiceId = ServiceId::of_port(PortSpace::UDP, 1);
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

#[derive(Debug)]
enum Action {
    Arrive(usize, Route, Box<[u8; 256]>),
    Connect(usize, u64),
    Resolve(usize),
    Accept(usize, ConnectionId),
    Reject(usize, ConnectionId),
    Ready(usize, ConnectionId),
    Disconnect(usize, ConnectionId),
    Destroy(usize, ConnectionId),
    Answer(usize, SidrId),
}

/// A program's view of a connection.
#[derive(Debug, Default)]
struct Known {
    tag: u64,
    history: Vec<&'static str>,
    established: bool,
    /// No more events follow, except perhaps the end of timewait.
    over: bool,
    gone: bool,
}

struct World {
    random: Random,
    loss: f64,
    duplication: f64,
    now: Time,
    managers: [Manager; 2],
    agenda: BTreeMap<(Time, u64), Action>,
    entries: u64,
    known: [BTreeMap<ConnectionId, Known>; 2],
    requested: BTreeMap<u64, ConnectionId>,
    resolved: usize,
    next_qpn: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let loss = random.pick(&[0.0, 0.05, 0.2, 0.4]);
        let duplication = random.pick(&[0.0, 0.1, 0.5]);
        let managers = [seed * 2, seed * 2 + 1].map(|seed| {
            let mut manager = Manager::new(Config::new(seed, seed));
            manager.listen(SERVICE, Takes::RC, None, 4).unwrap();
            manager
                .listen(SERVICE_UDP, Takes::Datagrams, None, 4)
                .unwrap();
            manager
        });
        World {
            random,
            loss,
            duplication,
            now: Time::ZERO,
            managers,
            agenda: BTreeMap::new(),
            entries: 0,
            known: Default::default(),
            requested: BTreeMap::new(),
            resolved: 0,
            next_qpn: 2,
        }
    }

    fn plan(&mut self, within_ms: u64, action: Action) {
        let after = self.random.below(within_ms * 1_000_000);
        self.plan_in(Duration::from_nanos(after), action);
    }

    fn plan_in(&mut self, after: Duration, action: Action) {
        self.entries += 1;
        self.agenda.insert((self.now + after, self.entries), action);
    }

    fn run(&mut self) {
        loop {
            let agenda = self.agenda.first_key_value().map(|(&(due, _), _)| due);
            let timers = self.managers.iter().filter_map(Manager::poll_timeout);
            let Some(next) = timers.chain(agenda).min() else {
                break;
            };
            assert!(next >= self.now);
            self.now = next;
            for host in 0..2 {
                self.managers[host].handle_timeout(next);
            }
            while let Some(entry) = self.agenda.first_entry().filter(|e| e.key().0 <= next) {
                let action = entry.remove();
                self.act(action);
            }
            for host in 0..2 {
                self.drain(host);
            }
        }
    }

    fn drain(&mut self, host: usize) {
        while let Some((route, mad)) = self.managers[host].poll_transmit() {
            let there = Route {
                local: route.remote,
                remote: route.local,
                traffic_class: 0,
            };
            let copies = 1 + usize::from(self.random.chance(self.duplication));
            for _ in 0..copies {
                if !self.random.chance(self.loss) {
                    // Shorter than the timewait: the specification assumes that nothing older
                    // arrives.
                    let delay_ms = self.random.pick(&[1, 10, 1500]);
                    self.plan(delay_ms, Action::Arrive(1 - host, there, Box::new(mad)));
                }
            }
        }
        while let Some(event) = self.managers[host].poll_event() {
            self.hear(host, event);
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Arrive(host, route, mad) => {
                self.managers[host].handle_mad(now, route, 4791, &*mad)
            }
            Action::Connect(host, tag) => self.connect(host, tag),
            Action::Resolve(host) => {
                let wanted = Resolve {
                    route: route(host),
                    service_id: SERVICE_UDP,
                    addressing: addressing(host),
                    private_data: &[],
                };
                self.managers[host].resolve(now, &wanted).unwrap();
            }
            Action::Answer(host, id) => {
                let with = SidrAnswer {
                    status: SidrStatus::VALID,
                    qpn: Qpn::new(9),
                    qkey: Qkey(9),
                    private_data: &[],
                };
                self.managers[host].answer(now, id, &with).unwrap();
            }
            Action::Accept(host, id) => {
                let with = Accept {
                    qpn: self.new_qpn(),
                    psn: Psn::new(1),
                    responder_resources: 1,
                    initiator_depth: 1,
                    rnr_retry_count: 7,
                    srq: false,
                    private_data: &[],
                };
                let accepted = self.managers[host].accept(now, id, &with);
                self.expect(host, id, accepted.is_ok());
            }
            Action::Reject(host, id) => {
                let reason = RejReason::CONSUMER;
                let rejected = self.managers[host].reject(now, id, reason, &[]).is_ok();
                self.expect(host, id, rejected);
                self.end(host, id);
            }
            Action::Ready(host, id) => {
                let ready = self.managers[host].ready(id, &[]).is_ok();
                self.expect(host, id, ready);
                if ready {
                    self.established(host, id);
                }
            }
            Action::Disconnect(host, id) => {
                let disconnected = self.managers[host].disconnect(now, id, &[]).is_ok();
                assert_eq!(disconnected, !self.known[host][&id].gone);
            }
            Action::Destroy(host, id) => {
                self.managers[host].destroy(now, id);
                self.end(host, id);
            }
        }
    }

    /// A call must succeed exactly if the program has not been told of the connection's end.
    fn expect(&mut self, host: usize, id: ConnectionId, success: bool) {
        let known = &self.known[host][&id];
        assert_eq!(success, !known.over, "{known:?}");
    }

    fn new_qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::new(self.next_qpn)
    }

    fn connect(&mut self, host: usize, tag: u64) {
        let wanted = Connect {
            route: route(host),
            service_id: SERVICE,
            transport: TransportService::Rc,
            qpn: self.new_qpn(),
            psn: Psn::new(1),
            path_mtu: PathMtu::M1024,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            ack_timeout: 19,
            flow_label: 0,
            addressing: addressing(host),
            private_data: &tag.to_be_bytes(),
        };
        let id = self.managers[host].connect(self.now, &wanted).unwrap();
        self.learn(host, id, tag);
        if self.random.chance(0.1) {
            self.plan(10_000, Action::Destroy(host, id));
        }
    }

    fn learn(&mut self, host: usize, id: ConnectionId, tag: u64) {
        let known = Known {
            tag,
            ..Known::default()
        };
        assert!(self.known[host].insert(id, known).is_none());
    }

    fn end(&mut self, host: usize, id: ConnectionId) {
        let known = self.known[host].get_mut(&id).unwrap();
        known.over = true;
        known.gone = true;
    }

    fn established(&mut self, host: usize, id: ConnectionId) {
        self.known[host].get_mut(&id).unwrap().established = true;
        let action = if self.random.chance(0.2) {
            Action::Destroy(host, id)
        } else {
            Action::Disconnect(host, id)
        };
        // Some programs do not end their connection before the other side does, but all end in
        // time.
        let within_ms = self.random.pick(&[1, 1_000, 20_000, 400_000]);
        self.plan(within_ms, action);
    }

    fn note(&mut self, host: usize, id: ConnectionId, what: &'static str) {
        let known = self.known[host].get_mut(&id).unwrap();
        assert!(!known.gone, "{what} after {known:?}");
        assert!(
            !known.over || what == "timewait exit",
            "{what} after {known:?}"
        );
        assert!(!known.history.contains(&what), "{what} twice: {known:?}");
        known.history.push(what);
    }

    fn hear(&mut self, host: usize, event: Event) {
        match event {
            Event::ConnectRequest(request) => self.requested(host, &request),
            Event::ConnectResponse(response) => {
                self.note(host, response.id, "response");
                let id = response.id;
                let action = match self.random.below(10) {
                    0 => Action::Reject(host, id),
                    1 => Action::Destroy(host, id),
                    _ => Action::Ready(host, id),
                };
                let within_ms = self.random.pick(&[1, 20_000]);
                self.plan(within_ms, action);
            }
            Event::Established { id, .. } => {
                self.note(host, id, "established");
                self.established(host, id);
            }
            Event::Rejected { id, reason, .. } => {
                let is_withdrawn = reason == RejReason::TIMEOUT;
                let what = if is_withdrawn {
                    "withdrawn"
                } else {
                    "rejected"
                };
                self.note(host, id, what);
                self.end(host, id);
            }
            Event::Unreachable { id } => {
                self.note(host, id, "unreachable");
                self.end(host, id);
            }
            Event::Disconnected { id, .. } => {
                self.note(host, id, "disconnected");
                self.known[host].get_mut(&id).unwrap().over = true;
            }
            Event::TimewaitExit { id } => {
                assert!(self.known[host][&id].over);
                self.note(host, id, "timewait exit");
                self.end(host, id);
            }
            Event::SidrRequest(request) => self.plan(9_000, Action::Answer(host, request.id)),
            Event::SidrResponse(_) | Event::SidrUnreachable { .. } => self.resolved += 1,
            Event::SidrWithdrawn { .. } => panic!("there is room for all"),
        }
    }

    fn requested(&mut self, host: usize, request: &ConnectRequest) {
        let tag = u64::from_be_bytes(request.private_data[..8].try_into().unwrap());
        let id = request.id;
        if let Some(before) = self.requested.insert(tag, id) {
            // The request was evicted, or its peer did not answer in time, and it was made again.
            let before = &self.known[host][&before];
            let is_forgotten = matches!(before.history[..], ["unreachable" | "withdrawn"]);
            assert!(is_forgotten, "request {tag} came twice: {before:?}");
        }
        self.learn(host, id, tag);
        let action = match self.random.below(10) {
            0 => Action::Reject(host, id),
            1 => Action::Destroy(host, id),
            _ => Action::Accept(host, id),
        };
        // The longest exceeds the time that the peer waits without an MRA.
        let within_ms = self.random.pick(&[1, 5_000, 150_000]);
        self.plan(within_ms, action);
    }
}

fn route(host: usize) -> Route {
    Route {
        local: ADDRESSES[host].into(),
        remote: ADDRESSES[1 - host].into(),
        traffic_class: 0,
    }
}

fn addressing(host: usize) -> Option<IpAddressing> {
    IpAddressing::new(ADDRESSES[host].into(), 5, ADDRESSES[1 - host].into())
}

/// Runs a world, and returns the number of connections that were established.
fn run(seed: u64) -> usize {
    let mut world = World::new(seed);
    for tag in 0..10 {
        world.plan(60_000, Action::Connect((tag % 2) as usize, tag));
    }
    for host in [0, 1, 0, 1] {
        world.plan(60_000, Action::Resolve(host));
    }
    world.run();
    assert_eq!(world.resolved, 4);
    for (host, manager) in world.managers.iter().enumerate() {
        assert!(manager.is_idle(), "{host}: {manager:?}");
    }
    let mut established = 0;
    for tag in 0..10 {
        let asker = &world.known[(tag % 2) as usize];
        let asker = asker.values().find(|known| known.tag == tag).unwrap();
        assert!(asker.over, "{asker:?}");
        let asked = world.requested.get(&tag);
        let Some(asked) = asked.map(|id| &world.known[1 - (tag % 2) as usize][id]) else {
            assert!(!asker.established);
            continue;
        };
        assert!(asked.over, "{asked:?}");
        // The side that accepted may not know whether the other was ready; a side that knows is
        // right.
        assert!(
            asker.established || !asked.established,
            "{asker:?} {asked:?}"
        );
        established += usize::from(asked.established);
    }
    established
}

#[test]
fn both_sides_learn_the_end_and_nothing_is_left() {
    if let Ok(seed) = std::env::var("AIRDMA_SEED") {
        run(seed.parse().unwrap());
        return;
    }
    let seeds = std::env::var("AIRDMA_SEEDS");
    let seeds = seeds.map_or(500, |n| n.parse().unwrap());
    let mut established = 0;
    for seed in 0..seeds {
        let outcome = std::panic::catch_unwind(|| run(seed));
        established += outcome.unwrap_or_else(|_| panic!("world {seed}"));
    }
    assert!(
        established as u64 > 2 * seeds,
        "{established} connections established"
    );
}
