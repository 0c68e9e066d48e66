//! A cell as part of a network: its hosts, and an access point that is a switch or a host.

use core::cell::{RefCell, RefMut};
use std::rc::Rc;

use airdma_transport::Time;

use super::medium::Medium;
use super::outcome::{Fate as End, Outcome};
use super::profile::Profile;
use super::station::StationId;
use crate::medium::Passed;
use crate::network::Network;
use crate::random::Random;
use crate::topology::{Node, Topology};
use crate::trace::Fate;

/// A [`Medium`] that [`Topology::share`] takes. A clone is another handle to the same cell: keep
/// one to change its SNR or to look at its queues while a network runs over it.
///
/// ```
/// use airdma_sim::wifi::{Cell, Profile};
/// use airdma_sim::{Link, Node, Topology, gbit};
///
/// // Two phones, an access point, and a server behind it.
/// let cell = Cell::new(7, Profile::AX_80, 3).snr(1, 30.0).snr(2, 18.0);
/// let network = Topology::new()
///     .hosts(3)
///     .switches(1)
///     .share(cell.clone(), &[Node::Switch(0), Node::Host(0), Node::Host(1)])
///     .join(Node::Switch(0), Node::Host(2), || Link::new().rate(gbit(10)))
///     .network(7);
/// assert_eq!(network.hosts(), 3);
/// assert_eq!(cell.medium().backlog(cell.station(0)).packets, 0);
/// ```
#[derive(Clone, Debug)]
pub struct Cell {
    state: Rc<RefCell<State>>,
    stations: usize,
}

#[derive(Debug)]
struct State {
    medium: Medium,
    random: Random,
    outcomes: Vec<Outcome>,
    /// Tokens that found a queue full, with the time.
    overflowed: Vec<(Time, u64)>,
    /// Backlog above which a sender waits.
    wait_bytes: Option<u64>,
    sentence: String,
}

impl Cell {
    /// A cell of `stations`, the first of which is the access point if there is one.
    pub fn new(seed: u64, profile: Profile, stations: usize) -> Self {
        let sentence = format!("wifi({})", profile.name);
        let mut medium = Medium::new(profile);
        for _ in 0..stations {
            medium.add_station();
        }
        let state = State {
            medium,
            random: Random::new(seed),
            outcomes: Vec::new(),
            overflowed: Vec::new(),
            wait_bytes: None,
            sentence,
        };
        Cell {
            state: Rc::new(RefCell::new(state)),
            stations,
        }
    }

    /// Sets the mean SNR between a station and the access point, in dB.
    pub fn snr(self, station: usize, snr_db: f64) -> Self {
        self.set_snr(station, snr_db);
        let more = format!(".snr({station}, {snr_db})");
        self.state.borrow_mut().sentence.push_str(&more);
        self
    }

    /// Makes a sender wait while its queue holds more than this, as a socket with a full send
    /// buffer. Otherwise packets that find the queue full are dropped.
    pub fn waits_above(self, bytes: u64) -> Self {
        let mut state = self.state.borrow_mut();
        state.wait_bytes = Some(bytes);
        state.sentence.push_str(&format!(".waits_above({bytes})"));
        drop(state);
        self
    }

    /// The mean SNR between a station and the access point from now on, in dB.
    pub fn set_snr(&self, station: usize, snr_db: f64) {
        let (point, station) = (self.station(0), self.station(station));
        self.medium().set_snr(point, station, snr_db);
    }

    /// The medium's name of a station.
    ///
    /// # Panics
    ///
    /// If the cell has fewer stations.
    pub fn station(&self, station: usize) -> StationId {
        assert!(station < self.stations, "no such station");
        StationId(station)
    }

    /// The medium, for its state and for adding rivals.
    ///
    /// # Panics
    ///
    /// If what an earlier call returned is still held.
    pub fn medium(&self) -> RefMut<'_, Medium> {
        RefMut::map(self.state.borrow_mut(), |state| &mut state.medium)
    }
}

impl State {
    fn advance(&mut self, now: Time) {
        self.medium
            .advance(now, &mut self.random, &mut self.outcomes);
    }

    fn is_told_now(&self) -> bool {
        !self.overflowed.is_empty() || !self.outcomes.is_empty()
    }
}

impl crate::medium::Medium for Cell {
    fn enqueue(&mut self, now: Time, from: usize, to: usize, bytes: usize, token: u64) {
        let (from, to) = (self.station(from), self.station(to));
        let state = &mut *self.state.borrow_mut();
        state.advance(now);
        let bytes = u32::try_from(bytes).expect("an IP packet is shorter than 64 KiB");
        if state.medium.enqueue(now, from, to, bytes, token).is_err() {
            state.overflowed.push((now, token));
        }
    }

    fn poll_at(&self) -> Option<Time> {
        let state = self.state.borrow();
        if state.is_told_now() {
            return Some(state.medium.now());
        }
        state.medium.poll_at()
    }

    fn advance(&mut self, now: Time, each: &mut dyn FnMut(Passed)) {
        let state = &mut *self.state.borrow_mut();
        state.advance(now);
        let ended = state.outcomes.drain(..).map(|outcome| Passed {
            token: outcome.token,
            at: outcome.at,
            dropped: match outcome.fate {
                End::Delivered => None,
                End::Lost(_) => Some(Fate::Lost),
            },
        });
        let overflowed = state.overflowed.drain(..).map(|(at, token)| Passed {
            token,
            at,
            dropped: Some(Fate::Overflowed),
        });
        let mut passed: Vec<Passed> = ended.chain(overflowed).collect();
        passed.sort_by_key(|passed| passed.at);
        passed.into_iter().for_each(each);
    }

    fn ready_at(&self, from: usize) -> Time {
        let state = self.state.borrow();
        let backlog = state.medium.backlog(self.station(from));
        let is_full = state.wait_bytes.is_some_and(|most| backlog.bytes > most);
        if is_full {
            // The sender asks again once the medium has advanced.
            state.medium.poll_at().unwrap_or(Time::ZERO)
        } else {
            Time::ZERO
        }
    }

    fn sentence(&self) -> String {
        self.state.borrow().sentence.clone()
    }
}

/// Networks that consist of a cell.
impl Network {
    /// Two hosts that send to each other directly (Wi-Fi Direct).
    pub fn wifi_direct(seed: u64, cell: Cell) -> Self {
        Topology::new()
            .hosts(2)
            .share(cell, &[Node::Host(0), Node::Host(1)])
            .network(seed)
    }

    /// Hosts around an access point: a packet between two of them takes the air twice.
    pub fn wifi(seed: u64, profile: Profile, hosts: usize) -> Self {
        let stations = (0..hosts).map(Node::Host);
        let nodes: Vec<Node> = core::iter::once(Node::Switch(0)).chain(stations).collect();
        let mut random = Random::new(seed);
        Topology::new()
            .hosts(hosts)
            .switches(1)
            .share(Cell::new(random.next_u64(), profile, nodes.len()), &nodes)
            .network(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::Medium as _;

    fn told(cell: &mut Cell, now: Time) -> Vec<(u64, Option<Fate>)> {
        let mut told = Vec::new();
        cell.advance(now, &mut |passed| told.push((passed.token, passed.dropped)));
        told
    }

    /// Advances a cell to the moment at which its packet arrives, without taking the result.
    fn at_arrival(cell: &mut Cell) -> Time {
        cell.enqueue(Time::ZERO, 0, 1, 1500, 7);
        let begins = cell.poll_at().expect("it has something to send");
        assert_eq!(told(cell, begins), []);
        cell.poll_at().expect("it sends")
    }

    #[test]
    fn what_arrives_while_another_packet_is_queued_is_told_at_once() {
        let mut cell = Cell::new(1, Profile::AC_80.steady(), 2);
        let arrives = at_arrival(&mut cell);
        cell.enqueue(arrives, 1, 0, 60, 8);
        assert_eq!(cell.poll_at(), Some(arrives));
        assert_eq!(told(&mut cell, arrives), [(7, None)]);
        assert!(cell.poll_at() > Some(arrives));
    }

    #[test]
    fn a_full_queue_is_told_at_once() {
        let profile = Profile {
            queue_packets_max: 1,
            ..Profile::AC_80.steady()
        };
        let mut cell = Cell::new(1, profile, 2);
        cell.enqueue(Time::ZERO, 0, 1, 1500, 7);
        cell.enqueue(Time::ZERO, 0, 1, 1500, 8);
        assert_eq!(cell.poll_at(), Some(Time::ZERO));
        let overflowed = (8, Some(Fate::Overflowed));
        assert_eq!(told(&mut cell, Time::ZERO), [overflowed]);
    }

    #[test]
    fn a_sender_waits_above_its_limit_and_no_longer() {
        let mut cell = Cell::new(1, Profile::AC_80.steady(), 2).waits_above(1500);
        cell.enqueue(Time::ZERO, 0, 1, 1500, 7);
        assert_eq!(cell.ready_at(0), Time::ZERO);
        cell.enqueue(Time::ZERO, 0, 1, 1500, 8);
        assert!(cell.ready_at(0) > Time::ZERO);
        assert_eq!(cell.ready_at(1), Time::ZERO);
        while let Some(at) = cell.poll_at() {
            told(&mut cell, at);
        }
        assert_eq!(cell.ready_at(0), Time::ZERO);
    }

    #[test]
    fn a_cell_is_printed_as_it_was_written() {
        let cell = Cell::new(1, Profile::AX_80, 3).snr(1, 20.5).waits_above(9);
        assert_eq!(cell.sentence(), "wifi(ax-80).snr(1, 20.5).waits_above(9)");
    }
}
