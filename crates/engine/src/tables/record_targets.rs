//! The queue pairs of a host that Write-Records go to, and how many messages each has entries for.
//!
//! An answer states how many messages the target has entries for beyond those that have arrived
//! ([`airdma_wire::RecordEcho`]). That number may begin beyond those before the question.
//!
//! | | |
//! |---|---|
//! | no answer yet, or one of an earlier version | any number may begin |
//! | [`ASK_MESSAGES`] or fewer are left | the first packet of each message asks |
//! | none is left | queue pairs wait, and the target is asked: after a round trip, then after twice as long, up to [`QUERY_MAX`] |
//! | no entry for [`PATIENCE`] | any number may begin until the next answer: the program of the target is stuck, or the answers are forged |
//! | queue pairs of a host | [`TARGETS_MAX`]; a further one takes the place of another |

use crate::index::QpIndex;
use airdma_transport::Time;
use airdma_wire::{Psn, Qkey, Qpn};
use std::time::Duration;

/// Most queue pairs of one host that are known.
const TARGETS_MAX: usize = 64;
/// With this many messages left, or fewer, each one asks.
const ASK_MESSAGES: u32 = 8;
/// Shortest and longest time between two questions of those that wait.
const QUERY_MIN: Duration = Duration::from_micros(20);
const QUERY_MAX: Duration = Duration::from_millis(10);
/// Longest wait for an entry.
const PATIENCE: Duration = Duration::from_millis(200);
/// Offset in a question without a packet: longer than any message.
const QUERY_OFFSET: u32 = u32::MAX;

/// The queue pair that asks for entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) index: QpIndex,
    pub(crate) number: Qpn,
    pub(crate) instance: Psn,
    /// The Q_Key of its message.
    pub(crate) qkey: Qkey,
}

/// Queue pairs that wait for entries.
struct Wait {
    since: Time,
    /// When the target is asked next, and how long after that again.
    query_at: Time,
    interval: Duration,
    asker: Asker,
    waiting: Vec<QpIndex>,
}

/// One queue pair of the host.
struct Target {
    number: Qpn,
    /// Messages that began, modulo 2^32.
    begun: u32,
    /// How many may have begun; `None`: any number.
    limit: Option<u32>,
    /// It has stated entries, so it takes packets at the end of messages that are as long as the
    /// others.
    takes_padded: bool,
    wait: Option<Wait>,
}

/// Those of a host.
#[derive(Default)]
pub(crate) struct Targets {
    targets: Vec<Target>,
    last: usize,
    /// The next one that leaves its place to another.
    hand: usize,
}

impl Target {
    /// How many messages may begin.
    fn room(&self) -> u32 {
        let left = |limit: u32| limit.wrapping_sub(self.begun) as i32;
        self.limit
            .map_or(u32::MAX, |limit| left(limit).max(0) as u32)
    }

    fn release(&mut self, released: &mut Vec<QpIndex>) {
        if let Some(wait) = self.wait.take() {
            released.extend(wait.waiting);
        }
    }
}

impl Targets {
    #[inline]
    fn find(&mut self, number: Qpn) -> Option<&mut Target> {
        let is_it = |target: &Target| target.number == number;
        if !self.targets.get(self.last).is_some_and(is_it) {
            self.last = self.targets.iter().position(is_it)?;
        }
        self.targets.get_mut(self.last)
    }

    /// Whether a message to a target may begin, and if so, whether it asks for an answer. Those
    /// that waited for a target that leaves its place are released.
    pub(crate) fn admit(&mut self, number: Qpn, released: &mut Vec<QpIndex>) -> Option<bool> {
        let Some(target) = self.find(number) else {
            self.add(number, released);
            return Some(false);
        };
        match target.room() {
            0 => None,
            room => Some(room <= ASK_MESSAGES),
        }
    }

    #[cold]
    fn add(&mut self, number: Qpn, released: &mut Vec<QpIndex>) {
        let fresh = Target {
            number,
            begun: 0,
            limit: None,
            takes_padded: false,
            wait: None,
        };
        if self.targets.len() < TARGETS_MAX {
            self.last = self.targets.len();
            self.targets.push(fresh);
            return;
        }
        self.hand = (self.hand + 1) % TARGETS_MAX;
        self.last = self.hand;
        std::mem::replace(&mut self.targets[self.hand], fresh).release(released);
    }

    /// Whether the packets of messages to a target may be of one length.
    #[inline]
    pub(crate) fn takes_padded(&mut self, number: Qpn) -> bool {
        self.find(number).is_some_and(|target| target.takes_padded)
    }

    /// A message begins.
    pub(crate) fn begin(&mut self, number: Qpn) {
        if let Some(target) = self.find(number) {
            target.begun = target.begun.wrapping_add(1);
        }
    }

    /// Messages to a target that began, modulo 2^32.
    pub(crate) fn begun(&mut self, number: Qpn) -> u32 {
        self.find(number).map_or(0, |target| target.begun)
    }

    /// A queue pair waits for an entry of a target. Returns when that is asked.
    pub(crate) fn wait(
        &mut self,
        number: Qpn,
        asker: Asker,
        round_trip: Option<Duration>,
        now: Time,
    ) -> Option<Time> {
        let target = self.find(number)?;
        let interval = round_trip.unwrap_or(QUERY_MIN).clamp(QUERY_MIN, QUERY_MAX);
        let wait = target.wait.get_or_insert_with(|| Wait {
            since: now,
            query_at: now + interval,
            interval,
            asker,
            waiting: Vec::new(),
        });
        wait.asker = asker;
        if !wait.waiting.contains(&asker.index) {
            wait.waiting.push(asker.index);
        }
        Some(wait.query_at)
    }

    /// Takes an answer: `entries` beyond the messages that had `begun` when the target was asked.
    pub(crate) fn take_answer(
        &mut self,
        number: Qpn,
        (begun, entries): (u32, Option<u32>),
        released: &mut Vec<QpIndex>,
    ) {
        if let Some(target) = self.find(number) {
            target.takes_padded = entries.is_some();
            target.limit = entries.map(|entries| begun.wrapping_add(entries));
            if target.room() > 0 {
                target.release(released);
            }
        }
    }

    /// When [`expire`](Self::expire) is due.
    pub(crate) fn due(&self) -> Option<Time> {
        let waits = self
            .targets
            .iter()
            .filter_map(|target| target.wait.as_ref());
        waits.map(|wait| wait.query_at).min()
    }

    /// The next target that is asked now: by which queue pair, and in which message and offset.
    pub(crate) fn expire(
        &mut self,
        now: Time,
        released: &mut Vec<QpIndex>,
    ) -> Option<(Asker, Qpn, (u32, u32))> {
        for target in &mut self.targets {
            let Some(wait) = target.wait.as_mut().filter(|wait| wait.query_at <= now) else {
                continue;
            };
            if wait.since + PATIENCE <= now {
                target.limit = None;
                target.release(released);
                continue;
            }
            wait.query_at = now + wait.interval;
            wait.interval = (wait.interval * 2).min(QUERY_MAX);
            return Some((wait.asker, target.number, (target.begun, QUERY_OFFSET)));
        }
        None
    }

    /// Nothing more is known of these targets.
    pub(crate) fn release_all(&mut self, released: &mut Vec<QpIndex>) {
        for target in &mut self.targets {
            target.release(released);
        }
    }

    /// A queue pair is gone: it waits for no entry.
    pub(crate) fn forget(&mut self, queue_pair: QpIndex) {
        let waits = self
            .targets
            .iter_mut()
            .filter_map(|target| target.wait.as_mut());
        for wait in waits {
            wait.waiting.retain(|&waiting| waiting != queue_pair);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TO: Qpn = Qpn::new(9);

    fn at(us: u64) -> Time {
        Time::from_nanos(us * 1_000)
    }

    fn asker(place: u32) -> Asker {
        Asker {
            index: QpIndex::new(place),
            number: Qpn::new(7 + place),
            instance: Psn::new(3),
            qkey: Qkey(0x11),
        }
    }

    /// Begins as many messages as may begin, at most 1,000; returns how many, and how many asked.
    fn begin(targets: &mut Targets) -> (u32, u32) {
        let (mut begun, mut asked) = (0, 0);
        while begun < 1_000
            && let Some(asks) = targets.admit(TO, &mut Vec::new())
        {
            targets.begin(TO);
            begun += 1;
            asked += u32::from(asks);
        }
        (begun, asked)
    }

    fn answer(targets: &mut Targets, begun: u32, entries: Option<u32>) -> Vec<QpIndex> {
        let mut released = Vec::new();
        targets.take_answer(TO, (begun, entries), &mut released);
        released
    }

    #[test]
    fn no_more_begin_than_an_answer_allows() {
        let mut targets = Targets::default();
        assert_eq!(begin(&mut targets), (1_000, 0), "none was stated");
        answer(&mut targets, 1_000, Some(20));
        assert_eq!(begin(&mut targets), (20, ASK_MESSAGES));
        // Ten of these had arrived when the target was asked, and are freed.
        answer(&mut targets, 1_010, Some(20));
        assert_eq!(begin(&mut targets).0, 10);
        answer(&mut targets, 1_030, None);
        assert_eq!(begin(&mut targets).0, 1_000, "of an earlier version");
    }

    #[test]
    fn counts_wrap_around() {
        let mut targets = Targets::default();
        targets.admit(TO, &mut Vec::new());
        targets.find(TO).unwrap().begun = u32::MAX - 1;
        answer(&mut targets, u32::MAX - 1, Some(5));
        assert_eq!(begin(&mut targets).0, 5);
        answer(&mut targets, 3, Some(0x00ff_ffff));
        assert_eq!(targets.find(TO).unwrap().room(), 0x00ff_ffff);
    }

    #[test]
    fn one_that_has_no_entry_is_asked_ever_more_rarely() {
        let mut targets = Targets::default();
        begin(&mut targets);
        answer(&mut targets, 1_000, Some(0));
        let round_trip = Some(Duration::from_micros(100));
        for place in [1, 2, 1] {
            let due = targets.wait(TO, asker(place), round_trip, at(0));
            assert_eq!(due, Some(at(100)));
        }
        let mut released = Vec::new();
        let mut asked = Vec::new();
        while let Some(due) = targets.due() {
            if let Some((by, to, part)) = targets.expire(due, &mut released) {
                assert_eq!((by.number, to, part), (Qpn::new(8), TO, (1_000, u32::MAX)));
                asked.push(due.as_nanos() / 1_000);
                assert_eq!(answer(&mut targets, 1_000, Some(0)), []);
            }
        }
        assert_eq!(asked[..4], [100, 200, 400, 800]);
        assert!((20..40).contains(&asked.len()), "{asked:?}");
        assert!(*asked.last().unwrap() < 200_000);
        // It lost patience.
        assert_eq!(released, [1, 2].map(QpIndex::new));
        assert_eq!(begin(&mut targets).0, 1_000);
    }

    #[test]
    fn an_entry_releases_those_that_wait() {
        let mut targets = Targets::default();
        begin(&mut targets);
        answer(&mut targets, 1_000, Some(0));
        for place in [1, 2, 3] {
            targets.wait(TO, asker(place), None, at(0)).unwrap();
        }
        targets.forget(QpIndex::new(2));
        assert_eq!(
            answer(&mut targets, 1_000, Some(1)),
            [1, 3].map(QpIndex::new)
        );
        assert_eq!(targets.due(), None);
        assert_eq!(begin(&mut targets), (1, 1));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut targets = Targets::default();
        let mut released = Vec::new();
        begin(&mut targets);
        answer(&mut targets, 1_000, Some(0));
        targets.wait(TO, asker(1), None, at(0)).unwrap();
        for other in 0..3 * TARGETS_MAX as u32 {
            targets.admit(Qpn::new(100 + other), &mut released);
            assert!(targets.targets.len() <= TARGETS_MAX);
        }
        assert_eq!(released, [QpIndex::new(1)]);
    }
}
