//! The window towards each peer host, shared by all reliable queue pairs that go there.
//!
//! Additive increase, multiplicative decrease over the bytes in flight, as in TCP (RFC 5681), but
//! per host and not per connection: the queue pairs to one host fill one receive socket, and it is
//! the socket that overflows.
//!
//! | parameter | value | why |
//! |---|---|---|
//! | start | 64 KiB | one segmented send |
//! | growth | the acknowledged bytes until the first loss, then one MTU per window | RFC 5681 3.1; only while the window is what holds the sender back |
//! | decrease | half, at most once in 100 us | the losses of one overflow are one signal |
//! | floor | 8 KiB | two packets of the largest MTU: acknowledgements keep coming |
//! | ceiling | 256 KiB, `AIRDMA_WINDOW_BYTES` | see [`WINDOW_BYTES_MAX`]; `none`: there is no window |
//!
//! A window never stalls: with nothing in flight one packet may leave, whatever its size. Queue
//! pairs that it holds back wait in line, and one at a time is released: the next when that one has
//! sent all it had, or when more is acknowledged. So each has a turn, and an acknowledgement costs
//! the same however many wait.
//!
//! A peer that did not answer in time is silent until something is acknowledged again. Meanwhile
//! each queue pair has one packet in flight, its probe, regardless of the window: all of them find
//! out by their own timers, in parallel, whether the peer is gone, and none fills a path that may
//! be dead.

use crate::config::{WINDOW_BYTES_MAX, Window};
use crate::index::{AirIndex, PeerIndex, QpIndex};
use airdma_transport::Time;
use airdma_wire::Neighbour;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const WINDOW_BYTES_START: u32 = 64 * 1024;
const WINDOW_BYTES_MIN: u32 = 8 * 1024;
const DECREASE_INTERVAL: Duration = Duration::from_micros(100);
/// Credit for one packet, which asks for an acknowledgement because no more may follow.
const PROBE: u32 = 1;

/// The peers of one worker. A peer exists while a queue pair is connected to it.
pub(crate) struct Peers {
    peers: Vec<Peer>,
    /// Those with users, by address and rate controller: any host can be one, in any number.
    places: BTreeMap<(Neighbour, Option<AirIndex>), PeerIndex>,
    /// Places of those without.
    free: Vec<PeerIndex>,
    /// The window of peers that connect from now on.
    window: Window,
}

struct Peer {
    address: Neighbour,
    /// Queue pairs connected to it.
    users: u32,
    window: u32,
    /// What the window may become, by the peer's socket.
    ceiling: u32,
    slow_start: bool,
    /// Bytes acknowledged since the last additive step.
    acked: u32,
    in_flight: u64,
    decreased_at: Option<Time>,
    silent: bool,
    /// The number of the rate controller that says the window, if there is one.
    paced: Option<AirIndex>,
    /// What it said.
    granted: Option<u64>,
    /// Queue pairs that have packets but no room in the window, oldest first.
    blocked: VecDeque<QpIndex>,
}

/// What a peer's window is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerState {
    pub(crate) address: Neighbour,
    /// Its bytes; none if there is no limit.
    pub(crate) window: Option<u64>,
    pub(crate) in_flight: u64,
    /// Queue pairs that it holds back.
    pub(crate) waiting: usize,
    pub(crate) is_silent: bool,
}

impl Peers {
    pub(crate) fn new(window: Window) -> Self {
        Peers {
            peers: Vec::new(),
            places: BTreeMap::new(),
            free: Vec::new(),
            window,
        }
    }

    /// Removes the window for queue pairs that connect from now on.
    pub(crate) fn lift(&mut self) {
        self.window = Window::Unlimited;
    }

    fn window_max(&self) -> u32 {
        match self.window {
            Window::AtMost(bytes) => bytes.max(WINDOW_BYTES_MIN),
            Window::Unlimited => WINDOW_BYTES_MAX,
        }
    }

    /// Those with users.
    pub(crate) fn states(&self) -> impl Iterator<Item = PeerState> {
        self.places.values().map(|index| {
            let peer = &self.peers[index.place()];
            let window = peer.granted.unwrap_or(peer.window.into());
            PeerState {
                address: peer.address,
                window: (window != u64::MAX).then_some(window),
                in_flight: peer.in_flight,
                waiting: peer.blocked.len(),
                is_silent: peer.silent,
            }
        })
    }

    /// How many have users.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// A queue pair connects to `address`; `paced`: the window is that of a rate controller, which
    /// has this number.
    pub(crate) fn join(&mut self, address: Neighbour, paced: Option<AirIndex>) -> PeerIndex {
        let index = match self.places.get(&(address, paced)) {
            Some(&index) => index,
            None => self.add(address, paced),
        };
        self.peer(index).users += 1;
        index
    }

    fn add(&mut self, address: Neighbour, paced: Option<AirIndex>) -> PeerIndex {
        let peer = Peer {
            granted: (self.window == Window::Unlimited).then_some(u64::MAX),
            ..Peer::new(address, paced, self.window_max())
        };
        let index = match self.free.pop() {
            Some(index) => {
                let place = self.peer(index);
                // Those whose records waited for the former peer: its last user lets them go.
                let blocked = std::mem::take(&mut place.blocked);
                *place = Peer { blocked, ..peer };
                index
            }
            None => {
                self.peers.push(peer);
                PeerIndex::from_place(self.peers.len() - 1)
            }
        };
        self.places.insert((address, paced), index);
        index
    }

    /// Removes a queue pair with `in_flight` bytes in flight.
    pub(crate) fn leave(&mut self, index: PeerIndex, queue_pair: QpIndex, in_flight: u32) {
        self.unwait(index, queue_pair);
        self.leave_datagrams(index, in_flight);
    }

    /// As [`Peers::leave`], for datagrams, with which any queue pair may wait: the caller lets all
    /// go ([`Peers::let_go`]).
    pub(crate) fn leave_datagrams(&mut self, index: PeerIndex, in_flight: u32) {
        let peer = self.peer(index);
        peer.users -= 1;
        peer.in_flight -= u64::from(in_flight);
        if peer.users == 0 {
            let name = (peer.address, peer.paced);
            self.places.remove(&name);
            self.free.push(index);
        }
    }

    /// Bytes of new data that a queue pair may send now, unless it `waits` in line.
    ///
    /// The pair is the bytes that the queue pair has in flight: as last noted, and now.
    pub(crate) fn credit(
        &self,
        index: PeerIndex,
        (noted, in_flight): (u32, u32),
        waits: bool,
    ) -> u32 {
        let peer = &self.peers[index.place()];
        if peer.silent {
            return if in_flight == 0 { PROBE } else { 0 };
        }
        if waits {
            return 0;
        }
        peer.room(peer.in_flight + u64::from(in_flight) - u64::from(noted))
    }

    /// The bytes in flight of one queue pair changed. Fewer are `acknowledged`, unless they were
    /// given up as lost.
    pub(crate) fn update(
        &mut self,
        index: PeerIndex,
        before: u32,
        after: u32,
        acknowledged: bool,
        mtu: u32,
    ) {
        let window_max = self.window_max();
        let peer = self.peer(index);
        if acknowledged && after < before {
            peer.silent = false;
            peer.grow(before - after, mtu, window_max);
        }
        peer.in_flight = peer.in_flight + u64::from(after) - u64::from(before);
    }

    /// Sets the window to a peer, as the controller `paced` grants it, if that paces the peer.
    pub(crate) fn grant(&mut self, index: PeerIndex, window: u64, paced: AirIndex) {
        let peer = self.peer(index);
        if peer.paced == Some(paced) {
            peer.granted = Some(window);
        }
    }

    /// The peer's socket holds `bytes` at most. A quarter is left to other senders.
    pub(crate) fn note_socket(&mut self, index: PeerIndex, bytes: u32) {
        let peer = self.peer(index);
        peer.ceiling = (bytes / 4 * 3).max(WINDOW_BYTES_MIN);
        peer.window = peer.window.min(peer.ceiling);
    }

    /// Whether the process `paced` at `address` is silent to the queue pairs that are connected to
    /// it.
    pub(crate) fn is_host_silent(&self, address: Neighbour, paced: AirIndex) -> bool {
        let by = |paced| self.places.get(&(address, paced));
        let index = by(Some(paced)).or_else(|| by(None));
        index.is_some_and(|&index| self.is_silent(index))
    }

    /// Whether a peer did not answer in time, and nothing has come from it since.
    pub(crate) fn is_silent(&self, index: PeerIndex) -> bool {
        self.peers[index.place()].silent
    }

    /// Packets to this peer were lost. True if the window got smaller.
    pub(crate) fn lost(&mut self, index: PeerIndex, now: Time) -> bool {
        let peer = self.peer(index);
        let recently = |at| now.duration_since(at) < DECREASE_INTERVAL;
        if peer.granted.is_some() || peer.decreased_at.is_some_and(recently) {
            return false;
        }
        peer.decreased_at = Some(now);
        peer.slow_start = false;
        peer.acked = 0;
        peer.window = (peer.window / 2).max(WINDOW_BYTES_MIN);
        true
    }

    /// Notes that the peer did not answer in time.
    ///
    /// Returns how many queue pairs waited for its window, which now holds none back: the caller
    /// must release them ([`Peers::let_go`]).
    pub(crate) fn fell_silent(&mut self, index: PeerIndex) -> usize {
        let peer = self.peer(index);
        if std::mem::replace(&mut peer.silent, true) {
            // The probe of each waiting queue pair is in flight.
            return 0;
        }
        peer.blocked.len()
    }

    /// The next queue pair in line, whatever the window says.
    pub(crate) fn let_go(&mut self, index: PeerIndex) -> Option<QpIndex> {
        self.peer(index).blocked.pop_front()
    }

    /// Something came from the peer.
    pub(crate) fn answered(&mut self, index: PeerIndex) {
        self.peer(index).silent = false;
    }

    /// A queue pair has packets that the window holds back.
    pub(crate) fn block(&mut self, index: PeerIndex, queue_pair: QpIndex) {
        self.peer(index).blocked.push_back(queue_pair);
    }

    /// As [`Peers::block`], for a queue pair that may be in line already.
    pub(crate) fn block_once(&mut self, index: PeerIndex, queue_pair: QpIndex) {
        let peer = self.peer(index);
        if !peer.blocked.contains(&queue_pair) {
            peer.blocked.push_back(queue_pair);
        }
    }

    /// A queue pair waits no more.
    pub(crate) fn unwait(&mut self, index: PeerIndex, queue_pair: QpIndex) {
        let peer = self.peer(index);
        peer.blocked.retain(|&other| other != queue_pair);
    }

    /// Whether queue pairs wait for room in the window.
    #[inline]
    pub(crate) fn holds_back(&self, index: PeerIndex) -> bool {
        !self.peers[index.place()].blocked.is_empty()
    }

    /// The next queue pair that the window held back and need no longer.
    pub(crate) fn unblock(&mut self, index: PeerIndex) -> Option<QpIndex> {
        let peer = self.peer(index);
        if peer.silent || peer.room(peer.in_flight) < WINDOW_BYTES_MIN / 2 {
            return None;
        }
        peer.blocked.pop_front()
    }

    fn peer(&mut self, index: PeerIndex) -> &mut Peer {
        &mut self.peers[index.place()]
    }
}

impl Peer {
    fn new(address: Neighbour, paced: Option<AirIndex>, window_max: u32) -> Self {
        Peer {
            address,
            paced,
            users: 0,
            window: WINDOW_BYTES_START.min(window_max),
            ceiling: u32::MAX,
            slow_start: true,
            acked: 0,
            in_flight: 0,
            decreased_at: None,
            silent: false,
            granted: None,
            blocked: VecDeque::new(),
        }
    }

    /// Bytes that the window allows with this many in flight.
    fn room(&self, in_flight: u64) -> u32 {
        if in_flight == 0 {
            return u32::MAX;
        }
        let window = self.granted.unwrap_or(self.window.into());
        u32::try_from(window.saturating_sub(in_flight)).unwrap_or(u32::MAX)
    }

    fn grow(&mut self, acked: u32, mtu: u32, window_max: u32) {
        let window_max = window_max.min(self.ceiling);
        if self.granted.is_some() || self.in_flight < u64::from(self.window / 2) {
            return;
        }
        if self.slow_start {
            self.window = self.window.saturating_add(acked).min(window_max);
            return;
        }
        self.acked = self.acked.saturating_add(acked);
        if self.acked >= self.window {
            self.acked -= self.window;
            self.window = (self.window + mtu).min(window_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qp(place: u32) -> QpIndex {
        QpIndex::new(place)
    }

    const MTU: u32 = 1024;

    impl Peers {
        /// Credit of a queue pair that has packets in flight, and does not wait.
        fn room(&self, index: PeerIndex) -> u32 {
            self.credit(index, (1, 1), false)
        }
    }

    fn peers() -> (Peers, PeerIndex) {
        let mut peers = Peers::new(Window::default());
        let index = peers.join(Neighbour::from([192, 0, 2, 1]), None);
        (peers, index)
    }

    #[test]
    fn the_window_doubles_until_a_loss_and_creeps_afterwards() {
        let (mut peers, peer) = peers();
        peers.update(peer, 0, WINDOW_BYTES_START, true, MTU);
        assert_eq!(peers.room(peer), 0);
        peers.update(peer, WINDOW_BYTES_START, 0, true, MTU);
        peers.update(peer, 0, WINDOW_BYTES_START, true, MTU);
        assert_eq!(peers.room(peer), WINDOW_BYTES_START);
        peers.lost(peer, Time::from_nanos(1));
        assert_eq!(peers.room(peer), 0);
        peers.update(peer, WINDOW_BYTES_START, 0, true, MTU);
        peers.update(peer, 0, MTU, true, MTU);
        assert_eq!(peers.room(peer), WINDOW_BYTES_START);
    }

    #[test]
    fn losses_of_one_overflow_halve_it_once_and_there_is_a_floor() {
        let (mut peers, peer) = peers();
        peers.update(peer, 0, 1, true, MTU);
        for nanos in 0..50_000 {
            peers.lost(peer, Time::from_nanos(nanos));
        }
        assert_eq!(peers.room(peer), WINDOW_BYTES_START / 2 - 1);
        for micros in 1..100 {
            peers.lost(peer, Time::from_nanos(micros * 200_000));
        }
        assert_eq!(peers.room(peer), WINDOW_BYTES_MIN - 1);
    }

    #[test]
    fn with_nothing_in_flight_anything_may_go() {
        let (mut peers, peer) = peers();
        assert_eq!(peers.room(peer), u32::MAX);
        peers.update(peer, 0, 10 << 20, true, MTU);
        assert_eq!(peers.room(peer), 0);
        peers.block(peer, qp(7));
        assert_eq!(peers.unblock(peer), None);
        peers.update(peer, 10 << 20, 0, true, MTU);
        assert_eq!(peers.unblock(peer), Some(qp(7)));
        assert_eq!(peers.unblock(peer), None);
    }

    #[test]
    fn queue_pairs_to_a_host_share_its_window_and_entries_are_reset() {
        let (mut peers, first) = peers();
        let second = peers.join(Neighbour::from([192, 0, 2, 1]), None);
        let other = peers.join(Neighbour::from([192, 0, 2, 2]), None);
        assert_eq!(first, second);
        assert_ne!(first, other);
        peers.update(first, 0, 40_000, true, MTU);
        peers.update(second, 0, 20_000, true, MTU);
        assert_eq!(peers.room(first), WINDOW_BYTES_START - 60_000);
        peers.leave(first, qp(0), 40_000);
        peers.leave(second, qp(1), 20_000);
        assert_eq!(peers.join(Neighbour::from([192, 0, 2, 3]), None), first);
        assert_eq!(peers.room(first), u32::MAX);
    }

    /// One host makes another one forgotten, whose place it takes.
    #[test]
    fn queue_pairs_that_waited_for_a_forgotten_host_are_let_go() {
        let mut peers = Peers::new(Window::default());
        let first = peers.join(Neighbour::from([192, 0, 2, 1]), None);
        peers.block_once(first, qp(1));
        peers.block_once(first, qp(2));
        peers.block_once(first, qp(1));
        peers.leave_datagrams(first, 0);
        assert_eq!(peers.count(), 0);
        assert_eq!(peers.join(Neighbour::from([192, 0, 2, 2]), None), first);
        let order = std::iter::from_fn(|| peers.let_go(first));
        assert_eq!(order.collect::<Vec<_>>(), [1, 2].map(qp));
    }

    #[test]
    fn who_waits_gets_nothing_until_it_is_let_go_on() {
        let (mut peers, peer) = peers();
        peers.update(peer, 0, WINDOW_BYTES_START, true, MTU);
        for queue_pair in [3, 1, 2] {
            peers.block(peer, qp(queue_pair));
        }
        peers.update(peer, WINDOW_BYTES_START, MTU, true, MTU);
        assert_eq!(peers.credit(peer, (0, 0), true), 0);
        assert!(peers.credit(peer, (0, 0), false) > MTU);
        let order = std::iter::from_fn(|| peers.unblock(peer));
        assert_eq!(order.collect::<Vec<_>>(), [3, 1, 2].map(qp));
    }

    #[test]
    fn each_queue_pair_sends_one_packet_to_a_silent_peer() {
        let (mut peers, peer) = peers();
        peers.update(peer, 0, WINDOW_BYTES_START, true, MTU);
        peers.block(peer, qp(1));
        peers.block(peer, qp(2));
        assert_eq!(peers.fell_silent(peer), 2);
        let order = std::iter::from_fn(|| peers.let_go(peer));
        assert_eq!(order.collect::<Vec<_>>(), [1, 2].map(qp));
        for waits in [false, true] {
            assert_eq!(peers.credit(peer, (0, 0), waits), PROBE);
            assert_eq!(peers.credit(peer, (MTU, MTU), waits), 0);
        }
        // Their probes are in flight.
        peers.block(peer, qp(2));
        peers.block(peer, qp(1));
        assert_eq!(peers.fell_silent(peer), 0);
        // What is given up was not acknowledged.
        peers.update(peer, WINDOW_BYTES_START, MTU, false, MTU);
        assert_eq!(peers.credit(peer, (MTU, MTU), false), 0);
        assert_eq!(peers.unblock(peer), None);
        peers.update(peer, MTU, 0, true, MTU);
        assert_eq!(peers.unblock(peer), Some(qp(2)));
        assert_eq!(peers.credit(peer, (MTU, MTU), false), u32::MAX);
    }

    #[test]
    fn who_knows_of_no_window_is_not_held_back_by_losses() {
        let (mut peers, held) = peers();
        peers.lift();
        let peer = peers.join(Neighbour::from([192, 0, 2, 2]), None);
        peers.update(peer, 0, 8 << 20, true, MTU);
        assert!(!peers.lost(peer, Time::from_nanos(1)));
        assert_eq!(peers.room(peer), u32::MAX);
        // A queue pair from before keeps the window that it had.
        peers.update(held, 0, MTU, true, MTU);
        assert_eq!(peers.room(held), WINDOW_BYTES_START - MTU);
    }

    #[test]
    fn who_is_paced_has_a_window_of_its_own() {
        let (mut peers, plain) = peers();
        let address = Neighbour::from([192, 0, 2, 1]);
        let paced = peers.join(address, Some(AirIndex::new(3)));
        assert_ne!(paced, plain);
        assert_eq!(peers.join(address, Some(AirIndex::new(3))), paced);
        peers.grant(paced, 5_000_000, AirIndex::new(3));
        // A queue pair that has not switched yet keeps its own.
        peers.grant(plain, 5_000_000, AirIndex::new(3));
        for peer in [paced, plain] {
            peers.update(peer, 0, 1_000, true, MTU);
        }
        assert_eq!(peers.room(paced), 4_999_000);
        assert_eq!(peers.room(plain), WINDOW_BYTES_START - 1_000);
        assert!(!peers.lost(paced, Time::from_nanos(1)));
        assert_eq!(peers.room(paced), 4_999_000);
        assert!(peers.lost(plain, Time::from_nanos(1)));
    }
}
