//! The air that all stations of a cell share.

use core::time::Duration;
use std::collections::BTreeMap;

use airdma_transport::Time;

use super::block_ack::Limits;
use super::errors;
use super::fading::Channel;
use super::interference::Bursts;
use super::outcome::{Outcome, Overflow};
use super::phy::{
    ACK_BYTES, ANSWER_TIMEOUT_NS, BLOCK_ACK_REQUEST_BYTES, MPDU_BYTES_MAX, RTS_BYTES, SIFS_NS,
    SLOT_NS, answer_mbit, answer_mcs, block_ack_bytes, legacy_ns, mpdu_bytes,
};
use super::profile::{Access, Profile};
use super::rate_control::{Choice, PROBE_MPDUS_MAX};
use super::station::{Backlog, Load, Peer, Rival, Station, StationCounters, StationId};
use crate::random::Random;

/// SNR between two stations by default: enough for every scheme.
pub const SNR_DB: f64 = 45.0;

/// Use of the air, in ns. The sum of the three and the idle time is the time that passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Airtime {
    /// Exchanges that were answered: frames, gaps and answers.
    pub answered_ns: u64,
    /// Exchanges of one station that were not answered.
    pub unanswered_ns: u64,
    /// Exchanges that more than one station began in the same slot.
    pub collided_ns: u64,
}

impl Airtime {
    /// All of it.
    pub const fn busy_ns(&self) -> u64 {
        self.answered_ns + self.unanswered_ns + self.collided_ns
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No station has sent since then.
    Idle { since: Time },
    /// Frames are on the air, and their last bit is sent at `until`.
    OnAir { until: Time },
    /// The answer is sent, or its timeout runs.
    Answer { until: Time, is_answered: bool },
}

#[derive(Clone, Copy, Debug)]
enum Frame {
    Data { peer: usize, choice: Choice },
    BlockAckRequest { peer: usize, mcs: u8 },
    Rival,
}

/// Frame that a station sends now.
#[derive(Clone, Debug)]
struct Transmission {
    station: usize,
    frame: Frame,
    /// Sequence numbers of its MPDUs.
    chosen: Vec<u64>,
    ppdu_ns: u64,
    answer_ns: u64,
    /// Whether RTS and CTS announced it.
    is_announced: bool,
}

/// A channel and the stations on it, in virtual or real time.
///
/// Half duplex: one exchange at a time. A station with a packet waits until the medium
/// was idle for AIFS, counts its backoff down, and sends an aggregate; the receiver answers
/// after SIFS. Stations whose backoffs end in the same slot collide and all of their frames are
/// lost. All stations hear each other: there are no hidden stations and no capture.
///
/// Order of calls: [`advance`](Medium::advance) to the present before each
/// [`enqueue`](Medium::enqueue), and again at [`poll_at`](Medium::poll_at), which is never late but
/// may be early. The work of `advance` is bound by the frames that fit into the time that passed.
///
/// A clone continues independently: an emulator asks it for the future.
#[derive(Clone, Debug)]
pub struct Medium {
    profile: Profile,
    now: Time,
    phase: Phase,
    stations: Vec<Station>,
    channels: BTreeMap<(usize, usize), Channel>,
    bursts: Bursts,
    /// Senders with their frames; reused for its memory.
    on_air: Vec<Transmission>,
    spare: Vec<Vec<u64>>,
    began: Time,
    txop_until: Option<Time>,
    airtime: Airtime,
}

impl Medium {
    /// An idle channel without stations.
    ///
    /// # Panics
    ///
    /// If [`Profile::check`] finds something wrong.
    pub fn new(profile: Profile) -> Self {
        assert_eq!(profile.check(), Ok(()));
        Medium {
            profile,
            now: Time::ZERO,
            phase: Phase::Idle { since: Time::ZERO },
            stations: Vec::new(),
            channels: BTreeMap::new(),
            bursts: Bursts::default(),
            on_air: Vec::new(),
            spare: Vec::new(),
            began: Time::ZERO,
            txop_until: None,
            airtime: Airtime::default(),
        }
    }

    /// The cell's profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Adds a station.
    pub fn add_station(&mut self) -> StationId {
        let id = StationId(self.stations.len());
        self.stations.push(Station::new(id, self.profile.access));
        id
    }

    /// Adds a station of another network, with its own access parameters.
    ///
    /// # Panics
    ///
    /// If its bursts, or the pauses between them, have no length.
    pub fn add_rival(&mut self, rival: Rival, access: Access) -> StationId {
        if let Load::OnOff { on, off } = rival.load {
            assert!(!on.is_zero() && !off.is_zero(), "bursts and pauses last");
        }
        let id = StationId(self.stations.len());
        self.stations
            .push(Station::rival(id, access, rival, self.now));
        id
    }

    /// Sets the mean SNR between two stations, both ways, in dB: the SNR per stream in the
    /// channel's own width.
    pub fn set_snr(&mut self, a: StationId, b: StationId, snr_db: f64) {
        assert!(snr_db.is_finite(), "an SNR is a number");
        self.channel(a.0, b.0).mean_db = snr_db;
    }

    /// Sends with this scheme only, or lets the rate control choose again.
    pub fn fix_mcs(&mut self, station: StationId, mcs: Option<u8>) {
        self.stations[station.0].fix_mcs(mcs);
    }

    /// The scheme that a station considers best towards another, if it ever sent to it.
    pub fn mcs(&self, from: StationId, to: StationId) -> Option<u8> {
        let peer = self.stations[from.0].peer_of(to)?;
        Some(peer.control.best())
    }

    /// Queues an IP packet of `bytes`; `token` comes back with its [`Outcome`].
    ///
    /// # Errors
    ///
    /// If the sender holds as many packets as it may.
    ///
    /// # Panics
    ///
    /// If the packet is longer than an MPDU, or a station sends to itself.
    pub fn enqueue(
        &mut self,
        now: Time,
        from: StationId,
        to: StationId,
        bytes: u32,
        token: u64,
    ) -> Result<(), Overflow> {
        assert!(from != to && to.0 < self.stations.len(), "no such receiver");
        assert!(mpdu_bytes(bytes) <= MPDU_BYTES_MAX, "longer than an MPDU");
        let is_busy = !matches!(self.phase, Phase::Idle { .. });
        let now = now.max(self.now);
        self.stations[from.0].enqueue(now, to, bytes, token, is_busy, &self.profile)
    }

    /// Packets that a station holds.
    pub fn backlog(&self, station: StationId) -> Backlog {
        self.stations[station.0].backlog()
    }

    /// Counters of a station.
    pub fn counters(&self, station: StationId) -> StationCounters {
        self.stations[station.0].counters
    }

    /// Use of the air, without the exchange in progress.
    pub fn airtime(&self) -> Airtime {
        self.airtime
    }

    /// Most MPDUs that were open at once from one station to another: never more than the window.
    pub fn widest_window(&self, from: StationId, to: StationId) -> u64 {
        let peer = self.stations[from.0].peer_of(to);
        peer.map_or(0, |peer| peer.agreement.widest())
    }

    /// Latest time given to the medium.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Time of the next event, if no packet is queued before.
    pub fn poll_at(&self) -> Option<Time> {
        match self.phase {
            Phase::OnAir { until } | Phase::Answer { until, .. } => Some(until),
            Phase::Idle { since } => {
                if self.stations.iter().any(Station::needs_backoff) {
                    return self.is_anybody_active().then_some(self.now);
                }
                let access = self.next_access(since).map(|slot| slot_at(since, slot));
                access.into_iter().chain(self.next_toggle()).min()
            }
        }
    }

    fn is_anybody_active(&self) -> bool {
        let mut stations = self.stations.iter();
        stations.any(|station| station.is_waiting() || station.toggles_at().is_some())
    }

    /// Lets time pass until `now`, and reports the results of packets.
    pub fn advance(&mut self, now: Time, random: &mut Random, out: &mut Vec<Outcome>) {
        loop {
            match self.phase {
                Phase::Idle { since } => {
                    if !self.contend(since, now, random, out) {
                        break;
                    }
                }
                Phase::OnAir { until } => {
                    if until > now {
                        break;
                    }
                    self.arrive(until, random, out);
                }
                Phase::Answer { until, is_answered } => {
                    if until > now {
                        break;
                    }
                    self.finish(until, is_answered, random);
                }
            }
        }
        self.now = self.now.max(now);
    }

    fn next_access(&self, since: Time) -> Option<u64> {
        self.stations
            .iter()
            .filter_map(|station| station.access_slot(since))
            .min()
    }

    fn next_toggle(&self) -> Option<Time> {
        self.stations.iter().filter_map(Station::toggles_at).min()
    }

    /// Handles the next event of an idle medium; false if it is not due.
    fn contend(
        &mut self,
        since: Time,
        now: Time,
        random: &mut Random,
        out: &mut Vec<Outcome>,
    ) -> bool {
        for station in &mut self.stations {
            station.draw_backoff(random);
        }
        let slot = self.next_access(since);
        let at = slot.map(|slot| slot_at(since, slot));
        let toggle = self.next_toggle();
        if let Some(toggle) = toggle.filter(|&toggle| toggle <= at.unwrap_or(now).min(now)) {
            for station in &mut self.stations {
                if station.toggles_at() == Some(toggle) {
                    station.toggle(toggle, since, random);
                }
            }
            return true;
        }
        let (Some(slot), Some(at)) = (slot, at) else {
            return false;
        };
        if at > now {
            return false;
        }
        if self.expire(since, slot, at, out) {
            self.take(since, slot, at, random);
        }
        true
    }

    /// Gives up packets beyond their lifetime at the stations that would send now; false if one of
    /// them has no packet left.
    fn expire(&mut self, since: Time, slot: u64, at: Time, out: &mut Vec<Outcome>) -> bool {
        let lifetime_ns = nanos(self.profile.lifetime);
        let older_than = Time::from_nanos(at.as_nanos().saturating_sub(lifetime_ns));
        let mut all_wait = true;
        for station in &mut self.stations {
            if station.access_slot(since) == Some(slot) {
                station.expire(older_than, at, out);
                all_wait &= station.is_waiting();
            }
        }
        all_wait
    }

    /// Lets all stations send whose backoff ends in this slot.
    fn take(&mut self, since: Time, slot: u64, at: Time, random: &mut Random) {
        self.clear();
        for index in 0..self.stations.len() {
            let station = &mut self.stations[index];
            if station.access_slot(since) != Some(slot) {
                station.freeze(slot);
                continue;
            }
            let ppdu_ns_max = match nanos(station.access.txop) {
                0 => self.profile.ppdu_ns_max,
                txop_ns => self.profile.ppdu_ns_max.min(ppdu_ns_within(txop_ns)),
            };
            let sent = self.form(index, at, ppdu_ns_max, random);
            self.on_air.extend(sent);
        }
        self.txop_until = match &self.on_air[..] {
            [only] => {
                let txop = self.stations[only.station].access.txop;
                (!txop.is_zero()).then(|| at + txop)
            }
            _ => None,
        };
        self.send(at, at);
    }

    fn clear(&mut self) {
        let used = self.on_air.drain(..).map(|sent| sent.chosen);
        self.spare.extend(used);
    }

    /// Forms a station's PPDU of at most this length.
    fn form(
        &mut self,
        index: usize,
        at: Time,
        ppdu_ns_max: u64,
        random: &mut Random,
    ) -> Option<Transmission> {
        let profile = &self.profile;
        let station = &mut self.stations[index];
        let mut sent = Transmission {
            station: index,
            frame: Frame::Rival,
            chosen: self.spare.pop().unwrap_or_default(),
            ppdu_ns: 0,
            answer_ns: legacy_ns(24, block_ack_bytes(64)),
            is_announced: false,
        };
        sent.chosen.clear();
        if let Some(ppdu_ns) = station.rival_ppdu_ns() {
            sent.ppdu_ns = ppdu_ns;
            return Some(sent);
        }
        let (peer, arrived_until) = station.next_peer(at, profile.aggregates_early)?;
        let Peer { agreement, control } = station.peer(peer);
        if agreement.must_tell() {
            let mcs = control.best();
            sent.frame = Frame::BlockAckRequest { peer, mcs };
            sent.ppdu_ns = legacy_ns(answer_mbit(mcs), BLOCK_ACK_REQUEST_BYTES);
            sent.answer_ns = legacy_ns(answer_mbit(mcs), block_ack_bytes(profile.window));
            return Some(sent);
        }
        let choice = control.choose(at, agreement.failures(), random);
        let mpdus_max = usize::from(profile.window);
        let fitting = profile.phy.bytes_within(choice.mcs, ppdu_ns_max);
        let limits = Limits {
            mpdus_max: if choice.probing {
                mpdus_max.min(PROBE_MPDUS_MAX)
            } else {
                mpdus_max
            },
            bytes_max: fitting.min(u64::from(profile.ampdu_bytes_max)),
            arrived_until,
        };
        let bytes = agreement.select(&limits, &mut sent.chosen);
        let answer_bytes = match sent.chosen.len() {
            1 => ACK_BYTES,
            _ => block_ack_bytes(profile.window),
        };
        sent.frame = Frame::Data { peer, choice };
        sent.ppdu_ns = profile.phy.ppdu_ns(choice.mcs, bytes);
        sent.answer_ns = legacy_ns(answer_mbit(choice.mcs), answer_bytes);
        let threshold = profile.rts_above_bytes.map(u64::from);
        sent.is_announced = threshold.is_some_and(|threshold| bytes > threshold);
        Some(sent)
    }

    /// Puts the formed frames on the air at `at`, in an exchange since `began`.
    fn send(&mut self, began: Time, at: Time) {
        let alone = self.on_air.len() == 1;
        let lengths = self.on_air.iter().map(|sent| match sent.is_announced {
            true if alone => announcement_ns() + sent.ppdu_ns,
            true => legacy_ns(24, RTS_BYTES),
            false => sent.ppdu_ns,
        });
        let longest = lengths.max().expect("whoever waits has something to send");
        for sent in &self.on_air {
            let counters = &mut self.stations[sent.station].counters;
            counters.accesses += 1;
            counters.collisions += u64::from(!alone);
            counters.mpdus_sent += sent.chosen.len() as u64;
            let is_request = matches!(sent.frame, Frame::BlockAckRequest { .. });
            counters.requests += u64::from(is_request);
        }
        self.began = began;
        self.phase = Phase::OnAir {
            until: at + Duration::from_nanos(longest),
        };
    }

    /// The last bit was sent: determines what arrived.
    fn arrive(&mut self, at: Time, random: &mut Random, out: &mut Vec<Outcome>) {
        let on_air = core::mem::take(&mut self.on_air);
        let answered = match &on_air[..] {
            [only] => match only.frame {
                Frame::Data { peer, choice } => {
                    self.arrive_data(only, peer, choice, at, random, out)
                }
                Frame::BlockAckRequest { peer, mcs } => {
                    self.arrive_request(only.station, peer, mcs, at, random, out)
                }
                Frame::Rival => true,
            },
            several => {
                for sent in several {
                    self.collide(sent, at, out);
                }
                false
            }
        };
        let mut answer_ns = ANSWER_TIMEOUT_NS;
        for sent in &on_air {
            let station = &mut self.stations[sent.station];
            if answered {
                answer_ns = SIFS_NS + sent.answer_ns;
                station.succeeded();
            } else {
                station.failed(self.profile.attempts_max);
                station.counters.unanswered += u64::from(on_air.len() == 1);
            }
        }
        self.on_air = on_air;
        self.phase = Phase::Answer {
            until: at + Duration::from_nanos(answer_ns),
            is_answered: answered,
        };
    }

    /// Draws the arrival of each MPDU; returns whether an answer arrived.
    fn arrive_data(
        &mut self,
        sent: &Transmission,
        peer: usize,
        choice: Choice,
        at: Time,
        random: &mut Random,
        out: &mut Vec<Outcome>,
    ) -> bool {
        let snr_db = self.snr_db(sent.station, peer, random);
        let station = &mut self.stations[sent.station];
        let Peer { agreement, control } = station.peer(peer);
        let usual = errors::loss_of_1458(snr_db, choice.mcs);
        let mut known = (0, 0.0);
        let mut received = 0;
        for &sequence in &sent.chosen {
            let bytes = agreement.mpdu_bytes(sequence);
            if known.0 != bytes {
                known = (bytes, errors::loss_of_length(usual, bytes));
            }
            if !random.chance(known.1) {
                agreement.receive(sequence);
                received += 1;
            }
        }
        let answer_loss = errors::loss(
            snr_db,
            answer_mcs(choice.mcs),
            block_ack_bytes(self.profile.window) as u32,
        );
        let answered = received > 0 && !random.chance(answer_loss);
        let count = sent.chosen.len() as u32;
        control.report(choice, count, if answered { received } else { 0 });
        agreement.release(at, out);
        let settled = agreement.settle(&sent.chosen, answered, at, out);
        station.counters.mpdus_damaged += u64::from(count - received);
        station.settled(settled);
        answered
    }

    fn arrive_request(
        &mut self,
        station: usize,
        peer: usize,
        mcs: u8,
        at: Time,
        random: &mut Random,
        out: &mut Vec<Outcome>,
    ) -> bool {
        let snr_db = self.snr_db(station, peer, random);
        let answer_bytes = block_ack_bytes(self.profile.window);
        let loss = |bytes: u64| errors::loss(snr_db, answer_mcs(mcs), bytes as u32);
        let is_heard = !random.chance(loss(BLOCK_ACK_REQUEST_BYTES));
        let answered = is_heard && !random.chance(loss(answer_bytes));
        let agreement = &mut self.stations[station].peer(peer).agreement;
        agreement.tell(is_heard, at, out);
        answered
    }

    /// Loses all frames. A station that only sent an RTS has lost no MPDU.
    fn collide(&mut self, sent: &Transmission, at: Time, out: &mut Vec<Outcome>) {
        let station = &mut self.stations[sent.station];
        match sent.frame {
            Frame::Data { peer, choice } if !sent.is_announced => {
                let Peer { agreement, control } = station.peer(peer);
                control.report(choice, sent.chosen.len() as u32, 0);
                let settled = agreement.settle(&sent.chosen, false, at, out);
                station.settled(settled);
            }
            Frame::BlockAckRequest { peer, .. } => {
                station.peer(peer).agreement.tell(false, at, out)
            }
            Frame::Data { .. } | Frame::Rival => {}
        }
    }

    /// Ends the exchange: the sender continues, or the medium is idle.
    fn finish(&mut self, at: Time, is_answered: bool, random: &mut Random) {
        let took_ns = nanos(at.duration_since(self.began));
        let used = match (self.on_air.len(), is_answered) {
            (1, true) => &mut self.airtime.answered_ns,
            (1, false) => &mut self.airtime.unanswered_ns,
            _ => &mut self.airtime.collided_ns,
        };
        *used += took_ns;
        for sent in &self.on_air {
            let station = &mut self.stations[sent.station];
            station.counters.airtime_ns += took_ns;
            station.form(at);
        }
        self.phase = Phase::Idle { since: at };
        if is_answered {
            self.go_on(at, random);
        }
    }

    /// Sends another PPDU after SIFS, if the TXOP has room for one.
    fn go_on(&mut self, at: Time, random: &mut Random) {
        let (Some(txop_until), [only]) = (self.txop_until, &self.on_air[..]) else {
            return;
        };
        let index = only.station;
        let left_ns = nanos(txop_until.duration_since(at)).saturating_sub(SIFS_NS);
        let ppdu_ns_max = self.profile.ppdu_ns_max.min(ppdu_ns_within(left_ns));
        if ppdu_ns_max == 0 || !self.stations[index].is_waiting() {
            return;
        }
        let Some(sent) = self.form(index, at, ppdu_ns_max, random) else {
            return;
        };
        if sent.ppdu_ns <= ppdu_ns_max {
            self.clear();
            self.on_air.push(sent);
            self.send(at, at + Duration::from_nanos(SIFS_NS));
        }
    }

    /// SNR between a station and its peer for a PPDU that begins now.
    fn snr_db(&mut self, station: usize, peer: usize, random: &mut Random) -> f64 {
        let to = self.stations[station].peer(peer).agreement.to().0;
        let (began, fading) = (self.began, self.profile.fading);
        let snr_db = self.channel(station, to).snr_db(began, &fading, random);
        let noise_db = self.profile.interference.map_or(0.0, |interference| {
            self.bursts.rise_db(began, &interference, random)
        });
        snr_db - noise_db
    }

    fn channel(&mut self, a: usize, b: usize) -> &mut Channel {
        self.channels
            .entry((a.min(b), a.max(b)))
            .or_insert_with(|| Channel::new(SNR_DB))
    }
}

/// Begin of a slot, counted from SIFS after the medium became idle.
fn slot_at(idle_since: Time, slot: u64) -> Time {
    idle_since + Duration::from_nanos(SIFS_NS + slot * SLOT_NS)
}

/// Longest PPDU that fits into this time with the longest answer.
fn ppdu_ns_within(ns: u64) -> u64 {
    ns.saturating_sub(SIFS_NS + legacy_ns(24, block_ack_bytes(1024)))
}

/// RTS, CTS and the gaps behind them.
fn announcement_ns() -> u64 {
    legacy_ns(24, RTS_BYTES) + SIFS_NS + legacy_ns(24, ACK_BYTES) + SIFS_NS
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
