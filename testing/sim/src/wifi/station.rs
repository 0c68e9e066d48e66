//! A station: its queue, its peers, its backoff; and rival stations that only use air time.

use core::time::Duration;

use airdma_transport::Time;

use super::block_ack::{Agreement, Settled};
use super::interference::exponential;
use super::outcome::{Outcome, Overflow};
use super::phy::{SIFS_NS, SLOT_NS};
use super::profile::{Access, Profile};
use super::rate_control::RateControl;
use crate::random::Random;

/// A station of a [`Medium`](super::Medium).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StationId(pub(super) usize);

/// A station of another network, of which only the air time matters: its frames always arrive
/// unless they collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    /// Length of its PPDUs.
    pub ppdu: Duration,
    /// Times at which it has packets.
    pub load: Load,
}

/// Load of a rival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Always.
    Saturated,
    /// In bursts; lengths of bursts and of the pauses between are exponential with these means.
    OnOff {
        /// Mean length of a burst.
        on: Duration,
        /// Mean length of a pause.
        off: Duration,
    },
}

/// Packets that a station holds without an acknowledgement, those on the air included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Packets.
    pub packets: usize,
    /// Their bytes, without the MAC's overhead.
    pub bytes: u64,
}

/// Counters of a station.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StationCounters {
    /// Packets that the queue accepted.
    pub entered: u64,
    /// Packets that it refused.
    pub overflowed: u64,
    /// Times that it won the medium, collisions included.
    pub accesses: u64,
    /// Times that it began together with another station.
    pub collisions: u64,
    /// Exchanges without collision that were not answered.
    pub unanswered: u64,
    /// MPDUs sent, each attempt.
    pub mpdus_sent: u64,
    /// MPDUs of PPDUs that did not collide and arrived damaged.
    pub mpdus_damaged: u64,
    /// Packets given up.
    pub given_up: u64,
    /// Block-ack requests sent.
    pub requests: u64,
    /// Time on the air, answers and waiting for answers included, in ns.
    pub airtime_ns: u64,
}

/// A receiver that a station sends to.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) agreement: Agreement,
    pub(crate) control: RateControl,
}

#[derive(Clone, Debug)]
struct RivalState {
    rival: Rival,
    is_on: bool,
    toggles_at: Option<Time>,
}

#[derive(Clone, Debug)]
pub(crate) struct Station {
    id: StationId,
    pub(crate) access: Access,
    cw: u16,
    /// Failures of the access in a row.
    failures: u8,
    /// Slots left; none if it must be drawn when the medium is idle.
    backoff: Option<u64>,
    waiting_since: Time,
    /// Begin of the contention for the next aggregate.
    formed_at: Time,
    peers: Vec<Peer>,
    next_peer: usize,
    fixed_mcs: Option<u8>,
    rival: Option<RivalState>,
    backlog: Backlog,
    pub(crate) counters: StationCounters,
}

impl Station {
    pub(crate) fn new(id: StationId, access: Access) -> Self {
        Station {
            id,
            access,
            cw: access.cw_min,
            failures: 0,
            backoff: Some(0),
            waiting_since: Time::ZERO,
            formed_at: Time::ZERO,
            peers: Vec::new(),
            next_peer: 0,
            fixed_mcs: None,
            rival: None,
            backlog: Backlog::default(),
            counters: StationCounters::default(),
        }
    }

    pub(crate) fn rival(id: StationId, access: Access, rival: Rival, now: Time) -> Self {
        let saturated = rival.load == Load::Saturated;
        Station {
            rival: Some(RivalState {
                rival,
                is_on: saturated,
                toggles_at: (!saturated).then_some(now),
            }),
            backoff: None,
            ..Station::new(id, access)
        }
    }

    /// Length of the PPDUs, if this is a rival.
    pub(crate) fn rival_ppdu_ns(&self) -> Option<u64> {
        let state = self.rival.as_ref()?;
        Some(nanos(state.rival.ppdu))
    }

    pub(crate) fn backlog(&self) -> Backlog {
        self.backlog
    }

    pub(crate) fn fix_mcs(&mut self, mcs: Option<u8>) {
        self.fixed_mcs = mcs;
        for peer in &mut self.peers {
            peer.control.fix(mcs);
        }
    }

    pub(crate) fn peer(&mut self, index: usize) -> &mut Peer {
        &mut self.peers[index]
    }

    pub(crate) fn peer_of(&self, to: StationId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.agreement.to() == to)
    }

    pub(crate) fn enqueue(
        &mut self,
        now: Time,
        to: StationId,
        bytes: u32,
        token: u64,
        is_medium_busy: bool,
        profile: &Profile,
    ) -> Result<(), Overflow> {
        if self.backlog.packets >= profile.queue_packets_max {
            self.counters.overflowed += 1;
            return Err(Overflow);
        }
        if !self.is_waiting() {
            self.begin_waiting(now, is_medium_busy);
        }
        self.counters.entered += 1;
        self.backlog.packets += 1;
        self.backlog.bytes += u64::from(bytes);
        let index = self.peer_index(to, profile);
        self.peers[index].agreement.enqueue(now, bytes, token);
        Ok(())
    }

    fn peer_index(&mut self, to: StationId, profile: &Profile) -> usize {
        let found = self.peers.iter().position(|peer| peer.agreement.to() == to);
        found.unwrap_or_else(|| {
            let mut control = RateControl::new(profile.phy);
            control.fix(self.fixed_mcs);
            self.peers.push(Peer {
                agreement: Agreement::new(self.id, to, profile.window, profile.attempts_max),
                control,
            });
            self.peers.len() - 1
        })
    }

    /// 802.11-2020 10.23.2.4: a station without a backoff that finds the medium busy draws one.
    fn begin_waiting(&mut self, now: Time, is_medium_busy: bool) {
        self.waiting_since = now;
        self.formed_at = now;
        if is_medium_busy && self.backoff == Some(0) {
            self.backoff = None;
        }
    }

    /// Whether it has a packet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.backlog.packets > 0
            || self.rival.as_ref().is_some_and(|state| state.is_on)
            || self.peers.iter().any(|peer| peer.agreement.must_tell())
    }

    /// Time at which a rival begins or ends a burst.
    pub(crate) fn toggles_at(&self) -> Option<Time> {
        self.rival.as_ref()?.toggles_at
    }

    /// Begins or ends a burst; `idle_since` is when the medium became idle.
    pub(crate) fn toggle(&mut self, at: Time, idle_since: Time, random: &mut Random) {
        let Some(state) = &mut self.rival else {
            return;
        };
        let Load::OnOff { on, off } = state.rival.load else {
            return;
        };
        state.is_on = !state.is_on;
        let mean = if state.is_on { on } else { off };
        state.toggles_at = Some(at + exponential(mean, random));
        if state.is_on {
            self.begin_waiting(at, at < idle_since);
        }
    }

    pub(crate) fn needs_backoff(&self) -> bool {
        self.backoff.is_none()
    }

    pub(crate) fn draw_backoff(&mut self, random: &mut Random) {
        if self.backoff.is_none() {
            self.backoff = Some(random.between(0, u64::from(self.cw)));
        }
    }

    /// The slot in which it will send, counted from SIFS after the medium became idle, if no other
    /// station does before. Arrivals on an idle medium only wait for the next slot.
    pub(crate) fn access_slot(&self, idle_since: Time) -> Option<u64> {
        if !self.is_waiting() {
            return None;
        }
        let counted = u64::from(self.access.aifsn) + self.backoff.unwrap_or(0);
        let counts_from = idle_since.as_nanos() + SIFS_NS;
        let late_ns = self.waiting_since.as_nanos().saturating_sub(counts_from);
        Some(counted.max(late_ns.div_ceil(SLOT_NS)))
    }

    /// Stops the countdown: another station took the medium in this slot.
    pub(crate) fn freeze(&mut self, slot: u64) {
        let elapsed = slot.saturating_sub(u64::from(self.access.aifsn));
        if let Some(backoff) = &mut self.backoff {
            *backoff = backoff.saturating_sub(elapsed);
        }
    }

    /// Gives up packets beyond their lifetime.
    pub(crate) fn expire(&mut self, older_than: Time, at: Time, out: &mut Vec<Outcome>) {
        for index in 0..self.peers.len() {
            let settled = self.peers[index].agreement.expire(older_than, at, out);
            if settled.packets > 0 {
                self.formed_at = at;
            }
            self.settled(settled);
        }
    }

    /// The peer whose turn it is, and the time until which its packets must have come to be sent
    /// now.
    pub(crate) fn next_peer(&mut self, at: Time, early: bool) -> Option<(usize, Time)> {
        let until = if early { self.formed_at } else { at };
        let count = self.peers.len();
        let mut turns = (0..count).map(|turn| (self.next_peer + turn) % count);
        let index = turns.find(|&index| self.peers[index].agreement.is_waiting_since(until))?;
        self.next_peer = (index + 1) % count;
        Some((index, until))
    }

    pub(crate) fn settled(&mut self, settled: Settled) {
        self.backlog.packets -= settled.packets;
        self.backlog.bytes -= settled.bytes;
        self.counters.given_up += settled.given_up;
    }

    /// Resets the contention window after an answered exchange.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
        self.cw = self.access.cw_min;
        self.backoff = None;
    }

    /// Doubles the contention window after an exchange without an answer; it is reset after as many
    /// failures as an MPDU may have.
    pub(crate) fn failed(&mut self, failures_max: u8) {
        self.failures += 1;
        self.cw = if self.failures >= failures_max {
            self.failures = 0;
            self.access.cw_min
        } else {
            (2 * self.cw + 1).min(self.access.cw_max)
        };
        self.backoff = None;
    }

    /// Ends its exchange; the next aggregate is formed.
    pub(crate) fn form(&mut self, at: Time) {
        self.formed_at = at;
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
