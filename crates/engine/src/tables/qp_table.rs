//! The queue pairs of a worker, found by number in one step.
//!
//! A number is `generation << 20 | range << 12 | place`. Ranges are taken one after the other, as
//! they are needed: from those that the processes of a host share ([`crate::sharing::steering`]),
//! or, where nothing is shared, in order from a random one. Places in a range come in a random
//! order, so that a peer cannot tell the numbers of other connections by its own. The generation, 1
//! to 14, moves on each time a place is used again, and a place is left alone until [`RESTING`]
//! others were given back after it: so late packets of a queue pair that is gone do not reach a
//! successor, which would take those with the right peer and PSN. Which of those that have rested
//! is used again is left to chance, of [`CHOICE`] as a rule: a peer that was told all numbers
//! before, because it connected over and over again, does not know the next. Numbers 0, 1 and
//! 0xffffff, which have meanings of their own, do not come up.

use crate::counter_names::EngineCounter;
use crate::index::{AirIndex, PeerIndex, QpHandle, QpIndex};
use crate::queues::record_shared::RecordShared;
use crate::random::Random;
use crate::seal::Seal;
use crate::seal::datagrams::DatagramSeals;
use crate::sharing::steering::range_of;
use crate::tables::qp_host::QpSide;
use crate::tables::rate_limit::RateLimit;
use crate::tables::round_robin::Turn;
use crate::{Error, LIMITS, QpState, QpType};
use airdma_port::Received;
use airdma_transport::rate::NotificationPoint;
use airdma_transport::{Progress, QueuePair, Time};
use airdma_wire::{Neighbour, Qpn};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

const GENERATION_MAX: u8 = 14;

/// Positions that were given back and are not used again yet, while there are fresh ones.
const RESTING: usize = 1024;

/// Positions that have rested, beyond which no fresh ones are used.
const CHOICE: usize = 2048;
const _: () = assert!(RESTING + CHOICE < PLACES);

const POSITION_BITS: u32 = 20;
/// Numbers of a range that differ in their last bits only.
const PLACE_BITS: u32 = 12;
const PLACES: usize = 1 << PLACE_BITS;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;
const RANGES: usize = 1 << (POSITION_BITS - PLACE_BITS);
const _: () = assert!(LIMITS.max_qp == 1 << POSITION_BITS);
/// In [`QpTable::order`]: a range that is not ours.
const NOT_OURS: u16 = u16::MAX;

const GONE: Error = Error::Gone("the queue pair");

/// A queue pair, and what the worker keeps for it.
pub(crate) struct QpSlot {
    pub(crate) qp: QueuePair,
    pub(crate) side: QpSide,
    pub(crate) turn: Turn,
    /// Set while it is connected (RC only).
    pub(crate) connection: Option<Connection>,
    /// Bytes in flight as last told to the peer's window.
    pub(crate) in_flight: u32,
    /// Whether the queue pair waits for room in the peer's window.
    pub(crate) blocked: bool,
    /// Whether the queue pair waits for its turn at the pacer of its peer.
    pub(crate) waits: bool,
    /// Whether the queue pair sent all that the pacer allowed, and has more to send.
    pub(crate) hungry: bool,
    /// Whether the queue pair is among those that owe their peer a report.
    pub(crate) owes_report: bool,
    /// The limit of the rate of its requests, if it has one.
    pub(crate) limit: Option<Box<RateLimit>>,
    /// What other ports than the peer's have shown.
    pub(crate) silence: Option<Silence>,
    /// Packets longer than this leave in pieces.
    pub(crate) cut_above: usize,
    /// Whether ACKs may wait for replies: the peer is an airdma host, which takes both out of one
    /// segmented packet.
    pub(crate) delays_acks: bool,
    /// When the last CNP reported congestion marks to its peer.
    pub(crate) notification_point: NotificationPoint,
    /// Whether the connections of the queue pair are sealed.
    pub(crate) seals: bool,
    /// Whether its destruction has begun: its user can do no more with it.
    pub(crate) retired: bool,
    /// Keys of its present connection, if that is sealed.
    pub(crate) seal: Option<Box<Seal>>,
    /// Keys that a datagram queue pair shares with each peer, for sealing.
    pub(crate) datagrams: Option<Box<DatagramSeals>>,
    /// The records of a datagram queue pair that takes some.
    pub(crate) records: Option<Arc<RecordShared>>,
    /// When the next of them times out.
    pub(crate) records_due: Option<Time>,
    /// The peer whose pacer its datagrams asked last.
    pub(crate) datagram_pacer: Option<AirIndex>,
    /// The window whose room is its to use or to pass on in its next turn, if it sends datagrams.
    pub(crate) offered: Option<PeerIndex>,
}

/// Since when a connection has made no progress, as far as packets from other ports have shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    pub(crate) since: Time,
    pub(crate) progress: Progress,
}

/// Where packets of a queue pair leave from.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(crate) local: Neighbour,
    /// No router is between it and the peer.
    pub(crate) on_link: bool,
}

/// No packet comes from there.
pub(crate) const NO_PORT: u32 = 1 << 16;

/// Between which addresses a queue pair is connected.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    pub(crate) peer: PeerIndex,
    pub(crate) remote: Neighbour,
    pub(crate) local: Neighbour,
    /// Index of `local` in the GID table.
    pub(crate) source_index: u8,
    /// UDP port from which the peer's packets in the clear come; 0 until a good one has come
    /// ([`crate::worker::source_port`]), and [`NO_PORT`] if the connection is sealed.
    pub(crate) source_port: u32,
    /// No router is in between.
    pub(crate) on_link: bool,
    /// Range of the peer's queue pair number.
    pub(crate) range: u8,
    /// The process at the other end, if more than RoCEv2 is offered to it; the host, if the rate to
    /// it is controlled.
    pub(crate) air: Option<AirIndex>,
}

impl Connection {
    /// The peer's address, and ours.
    pub(crate) fn ends(&self) -> (Neighbour, Neighbour) {
        (self.remote, self.local)
    }
}

impl QpSlot {
    pub(crate) fn new(qp: QueuePair, side: QpSide) -> Self {
        QpSlot {
            qp,
            side,
            turn: Turn::default(),
            connection: None,
            in_flight: 0,
            blocked: false,
            waits: false,
            hungry: false,
            owes_report: false,
            limit: None,
            cut_above: usize::MAX,
            delays_acks: false,
            silence: None,
            notification_point: NotificationPoint::new(),
            seals: false,
            retired: false,
            seal: None,
            datagrams: None,
            records: None,
            records_due: None,
            datagram_pacer: None,
            offered: None,
        }
    }

    /// When it must be called next.
    #[inline]
    pub(crate) fn due(&self) -> Option<Time> {
        match (self.qp.poll_timeout(), self.records_due) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Whether it is a reliable connection that sends what is posted.
    #[inline]
    pub(crate) fn is_sending_by_connection(&self) -> bool {
        self.qp.state() == QpState::ReadyToSend
            && matches!(self.qp.qp_type(), QpType::Rc | QpType::XrcSend)
    }

    /// Why it does not take a packet in the clear.
    #[cold]
    pub(crate) fn why_not_plain(&self) -> EngineCounter {
        if self.seal.is_some() || self.datagrams.is_some() {
            EngineCounter::DropUnsealed
        } else {
            EngineCounter::DropBadSource
        }
    }

    /// Whether a packet in the clear comes from where the peer's always do, or the queue pair takes
    /// it from wherever.
    #[inline]
    pub(crate) fn knows(&self, received: &Received<'_>) -> bool {
        let port = u32::from(received.source_port);
        (self.connection.as_ref()).is_none_or(|connection| connection.source_port == port)
            && self.accepts(received.source, received.destination)
    }

    /// Whether a packet between these addresses may be for this queue pair. A connected one takes
    /// those of its peer only (IBTA 9.6.1.5); what state it is in is the transport's question.
    pub(crate) fn accepts(&self, source: Neighbour, destination: Neighbour) -> bool {
        match (&self.connection, self.qp.qp_type()) {
            (Some(connection), _) => connection.remote == source && connection.local == destination,
            // What is sealed does not come this way.
            (None, QpType::Ud) => self.datagrams.is_none(),
            // What comes over RoCE is never raw.
            (None, QpType::RawPacket) => false,
            // Without a peer there is no source of packets; in a state that accepts none the
            // transport reports so.
            (None, _) => !self.qp.state().receives(),
        }
    }
}

/// In which order the places of a range are used: the same in all ranges.
struct Places {
    by_index: Box<[u16; PLACES]>,
    by_place: Box<[u16; PLACES]>,
}

impl Places {
    /// Shuffled (Fisher and Yates, as in Knuth volume 2, algorithm P) by SipHash of a random key: a
    /// random number of the kernel for each would take a millisecond.
    fn new(random: &mut Random) -> Places {
        let key = [(); 4].map(|()| u32::from_ne_bytes(random.secret()));
        let mut by_index = Box::new([0; PLACES]);
        for at in 1..PLACES {
            let mut hasher = DefaultHasher::new();
            (key, at).hash(&mut hasher);
            let other = (hasher.finish() % (at as u64 + 1)) as usize;
            by_index[at] = at as u16;
            by_index.swap(at, other);
        }
        let mut by_place = Box::new([0; PLACES]);
        for (index, place) in by_index.iter().enumerate() {
            by_place[usize::from(*place)] = index as u16;
        }
        Places { by_index, by_place }
    }

    fn of_index(&self, index: QpIndex) -> u32 {
        u32::from(self.by_index[index.place() & PLACE_MASK as usize])
    }

    #[inline]
    fn place_of(&self, number: Qpn) -> u32 {
        u32::from(self.by_place[(number.get() & PLACE_MASK) as usize])
    }
}

/// The table.
pub(crate) struct QpTable {
    slots: Vec<Option<Box<QpSlot>>>,
    generations: Vec<u8>,
    free: VecDeque<QpIndex>,
    /// Ranges in the order in which they were taken: the first has the first 4096 slots.
    ranges: Vec<u8>,
    /// Where each range stands there.
    order: Box<[u16; RANGES]>,
    places: Places,
    first_range: u8,
    random: Random,
}

impl QpTable {
    pub(crate) fn new(mut random: Random) -> Self {
        QpTable {
            slots: Vec::new(),
            generations: Vec::new(),
            free: VecDeque::new(),
            ranges: Vec::new(),
            order: Box::new([NOT_OURS; RANGES]),
            places: Places::new(&mut random),
            first_range: random.next_u32() as u8,
            random,
        }
    }

    /// Whether the next [`QpTable::reserve`] would like to have another range.
    pub(crate) fn wants_range(&self) -> bool {
        self.free.len() <= RESTING && self.slots.len() == self.ranges.len() << PLACE_BITS
    }

    /// Adds a range of numbers, unless the table has it.
    pub(crate) fn add_range(&mut self, range: u8) {
        let order = &mut self.order[usize::from(range)];
        if *order == NOT_OURS {
            *order = self.ranges.len() as u16;
            self.ranges.push(range);
        }
    }

    /// Adds the next range of numbers, where no other process shares the address.
    pub(crate) fn add_any_range(&mut self) {
        if self.ranges.len() < RANGES {
            let range = usize::from(self.first_range) + self.ranges.len();
            self.add_range(range as u8);
        }
    }

    /// The first range that was taken.
    pub(crate) fn first_range(&self) -> Option<u8> {
        self.ranges.first().copied()
    }

    /// Takes a free position, and gives it its next number.
    pub(crate) fn reserve(&mut self) -> Result<(QpIndex, Qpn), Error> {
        let fresh_ones = self.slots.len() < self.ranges.len() << PLACE_BITS;
        let index = if fresh_ones && self.free.len() < RESTING + CHOICE {
            self.slots.push(None);
            self.generations
                .push((self.random.next_u32() % u32::from(GENERATION_MAX)) as u8);
            QpIndex::from_place(self.slots.len() - 1)
        } else {
            let rested = self.free.len().saturating_sub(RESTING).max(1);
            let any = self.random.next_u32() as usize % rested;
            // The first takes its place: neither is among the last, which rest.
            self.free.swap_remove_front(any).ok_or(Error::NoMemory(
                "no more queue pairs: see max_qp of the device",
            ))?
        };
        let generation = &mut self.generations[index.place()];
        *generation = *generation % GENERATION_MAX + 1;
        let range = u32::from(self.ranges[index.place() >> PLACE_BITS]);
        let place = self.places.of_index(index);
        let number = u32::from(*generation) << POSITION_BITS | range << PLACE_BITS | place;
        Ok((index, Qpn::new(number)))
    }

    /// Gives a reserved position back.
    pub(crate) fn release(&mut self, index: QpIndex) {
        self.slots[index.place()] = None;
        self.free.push_back(index);
    }

    pub(crate) fn insert(&mut self, index: QpIndex, slot: QpSlot) {
        self.slots[index.place()] = Some(Box::new(slot));
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// All of them.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut QpSlot> {
        self.slots.iter_mut().flatten().map(|slot| &mut **slot)
    }

    /// How many have something to send that waits for the keys of their connection.
    pub(crate) fn wait_for_keys(&self) -> usize {
        let waits = |slot: &&QpSlot| {
            let holds = slot.seal.as_ref().is_some_and(|seal| seal.holds());
            (holds || slot.datagrams.is_some()) && slot.qp.wants_transmit()
        };
        (self.slots.iter().flatten().map(|slot| &**slot))
            .filter(waits)
            .count()
    }

    /// How many have something to send that their rate limit holds back.
    pub(crate) fn wait_for_their_rate(&self) -> usize {
        let waits = |slot: &&QpSlot| {
            let is_held = slot.limit.as_ref().is_some_and(|limit| limit.is_held());
            is_held && slot.qp.wants_transmit()
        };
        (self.slots.iter().flatten().map(|slot| &**slot))
            .filter(waits)
            .count()
    }

    /// One more than the largest index in use.
    pub(crate) fn end(&self) -> QpIndex {
        QpIndex::from_place(self.slots.len())
    }

    /// All indices that were in use once.
    pub(crate) fn indices(&self) -> impl Iterator<Item = QpIndex> + use<> {
        (0..self.slots.len()).map(QpIndex::from_place)
    }

    pub(crate) fn slot(&mut self, index: QpIndex) -> Option<&mut QpSlot> {
        self.slots.get_mut(index.place())?.as_deref_mut()
    }

    /// The queue pair with that handle, until its destruction begins.
    ///
    /// # Errors
    /// `EINVAL` if it is gone.
    pub(crate) fn live(&mut self, qp: QpHandle) -> Result<&mut QpSlot, Error> {
        let slot = self.known(qp)?;
        if slot.retired {
            return Err(GONE);
        }
        Ok(slot)
    }

    /// As [`QpTable::live`], until the end of its destruction.
    ///
    /// # Errors
    /// `EINVAL` if it is gone.
    pub(crate) fn known(&mut self, qp: QpHandle) -> Result<&mut QpSlot, Error> {
        let slot = self.slot(qp.index);
        slot.filter(|slot| slot.side.serial == qp.serial)
            .ok_or(GONE)
    }

    /// The position of the queue pair with that number.
    pub(crate) fn find(&self, number: Qpn) -> Option<QpIndex> {
        let order = self.order[usize::from(range_of(number))];
        // Beyond all slots where the range is not ours.
        let index = u32::from(order) << PLACE_BITS | self.places.place_of(number);
        let slot = self.slots.get(index as usize)?.as_ref()?;
        (slot.qp.qpn() == number).then_some(QpIndex::new(index))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn a_number_does_not_come_again_soon() {
        let mut table = QpTable::new(Random::kernel());
        table.add_any_range();
        let mut seen = HashSet::new();
        for _ in 0..usize::from(GENERATION_MAX) * RESTING {
            let (index, number) = table.reserve().unwrap();
            assert!(seen.insert(number));
            assert!(number > Qpn::GSI && number < Qpn::MULTICAST);
            table.release(index);
        }
        assert!(
            table.end().place() <= RESTING + CHOICE,
            "positions are used again"
        );
    }

    #[test]
    fn the_key_of_the_places_is_on_no_page_of_fetched_numbers() {
        let mut random = Random::kernel();
        Places::new(&mut random);
        assert!(!random.has_page());
    }

    #[test]
    fn a_number_does_not_tell_the_next() {
        let mut table = QpTable::new(Random::kernel());
        table.add_any_range();
        let places: Vec<_> = (0..PLACES)
            .map(|_| table.reserve().unwrap().1.get() & PLACE_MASK)
            .collect();
        let distances: HashSet<_> = places
            .windows(2)
            .map(|pair| pair[1].wrapping_sub(pair[0]) & PLACE_MASK)
            .collect();
        assert!(
            distances.len() > PLACES / 2,
            "{} distances",
            distances.len()
        );
        let all: HashSet<_> = places.into_iter().collect();
        assert_eq!(all.len(), PLACES, "each place once");
        let other = QpTable::new(Random::kernel()).places;
        assert_ne!(other.by_index, table.places.by_index);
    }

    const POSITION_MASK: u32 = (1 << POSITION_BITS) - 1;

    /// A peer connects over and over again, and is told all numbers but one now and then, which
    /// another peer gets.
    #[test]
    fn all_numbers_that_were_do_not_tell_the_next() {
        let mut table = QpTable::new(Random::kernel());
        table.add_any_range();
        let mut told = HashMap::new();
        let (mut before, mut guessed) = (0, 0);
        for round in 0..40_000 {
            let (index, number) = table.reserve().unwrap();
            table.release(index);
            let place = number.get() & POSITION_MASK;
            let generation = number.get() >> POSITION_BITS;
            if round > 30_000 {
                let next = told.get(&before);
                guessed += u32::from(next == Some(&(place, generation % 14)));
            }
            told.insert(before, (place, (generation + 1) % 14));
            before = place;
        }
        assert!(guessed < 100, "{guessed} of 9,999");
    }

    #[test]
    fn the_table_is_full_at_the_limit() {
        let mut table = QpTable::new(Random::kernel());
        let mut seen = HashSet::new();
        for _ in 0..LIMITS.max_qp {
            if table.wants_range() {
                table.add_any_range();
            }
            assert!(seen.insert(table.reserve().unwrap().1));
        }
        table.add_any_range();
        assert_eq!(table.reserve().unwrap_err().errno(), libc::ENOMEM);
        table.release(QpIndex::new(17));
        assert_eq!(table.reserve().unwrap().0, QpIndex::new(17));
    }

    #[test]
    fn numbers_are_of_the_ranges_that_were_taken() {
        let mut table = QpTable::new(Random::kernel());
        assert_eq!(table.reserve().unwrap_err().errno(), libc::ENOMEM);
        for range in [9, 200] {
            assert!(table.wants_range());
            table.add_range(range);
            for _ in 0..1 << PLACE_BITS {
                assert!(!table.wants_range());
                let (index, number) = table.reserve().unwrap();
                assert_eq!(range_of(number), range);
                let slot = table.slots[index.place()].is_none();
                assert!(slot && table.find(number).is_none());
            }
        }
        assert_eq!(table.first_range(), Some(9));
        // Neither is a number of a range that is not ours.
        assert_eq!(table.find(Qpn::new(0x10_a000)), None);
    }
}
