//! Devices in a simulated Wi-Fi cell, and transfers between them in virtual time, with the same
//! figures on every machine.
//!
//! Includes all that programs use except the sockets: engine, transport, reports, rate control, and
//! a shared radio with aggregates, retries, a moving rate and a queue in front of it
//! (`docs/design/010-wifi-model.md`).

mod foreground;
mod host;

use airdma_engine::{PathMtu, RateControl};
use airdma_port::QueueFill;
use airdma_port::sim::Frame;
use airdma_sim::Random;
use airdma_sim::wifi::{Fate, Medium, Outcome, Profile, StationId};
use airdma_transport::Time;
use core::time::Duration;
use foreground::Foreground;
use host::{Host, index_of};
use std::cell::Cell as Mutable;
use std::collections::HashMap;
use std::rc::Rc;

/// Bytes of IPv4 and UDP, which a frame of the devices does not have.
const HEADERS: u32 = 28;
const IP_HEADER: u32 = 20;
/// Longest IP packet on the air; longer ones leave as fragments.
const MTU: u32 = 1500;
/// Payload of a full UDP datagram.
const PAYLOAD: u64 = (MTU - HEADERS) as u64;
/// A middle packet of a WRITE at a path MTU of 1,024 bytes, in the cell: BTH, payload, ICRC.
const PACKET: u32 = HEADERS + 12 + 1024 + 4;
/// Time in which hosts find each other.
const WARM_UP: Duration = Duration::from_millis(300);
/// Time before it, in which stations learn their rates.
const TEACHING: Duration = Duration::from_millis(500);
const TEACHING_PACKETS: usize = 64;
const MEDIUM_STEP: Duration = Duration::from_micros(100);
/// Duration at which a transfer counts as failed.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// Duration of each SNR of a [`Setting`].
pub const SNR_STEP: Duration = Duration::from_millis(100);

/// A cell and its residual loss.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Profile of the radio.
    pub profile: Profile,
    /// SNR between all stations, each for [`SNR_STEP`] from the start of the measurement; the last
    /// one stays.
    pub snr_db: Vec<f64>,
    /// Share of the packets that vanish behind the radio: the residual loss.
    pub loss: f64,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Transmission of a host: features and rate control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Air mode with this rate control; otherwise plain RoCEv2.
    pub air: Option<RateControl>,
    /// Whether the engine limits packets in flight to peers without rate control, as it does by
    /// default; NICs do not.
    pub has_window: bool,
    /// In air mode, in bundles: datagrams of up to 64 KB, in fragments.
    pub bundles: bool,
    /// Path MTU; packets beyond [`PathMtu::M1024`] leave as fragments.
    pub path_mtu: PathMtu,
}

impl Sender {
    /// Plain RoCEv2, as other implementations.
    pub const ROCE: Sender = Sender {
        air: None,
        has_window: true,
        bundles: false,
        path_mtu: PathMtu::M1024,
    };

    /// Air mode with this rate control.
    pub const fn air(control: RateControl) -> Sender {
        Sender {
            air: Some(control),
            ..Sender::ROCE
        }
    }

    /// Bytes of the largest packet on the air.
    fn packet_bytes(self) -> u32 {
        if self.air.is_some() || self.path_mtu > PathMtu::M1024 {
            MTU
        } else {
            PACKET
        }
    }
}

/// A load on the cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Number of hosts that send, all to one.
    pub hosts: usize,
    /// Queue pairs of each host.
    pub queue_pairs: usize,
    /// Bytes of each RDMA WRITE; each queue pair has 128 in flight.
    pub message_bytes: u32,
    /// READs instead of WRITEs, 16 of a queue pair at a time: the one host sends the data, and all
    /// others request it.
    pub reads: bool,
    /// Rate of 1,500-byte datagrams that another program of the first host sends evenly to the same
    /// receiver, in Mb/s; 0: none.
    pub foreground_mbit: u32,
}

impl Load {
    /// One queue pair with messages of 64 KiB.
    pub const USUAL: Load = Load {
        hosts: 1,
        queue_pairs: 1,
        message_bytes: 64 * 1024,
        reads: false,
        foreground_mbit: 0,
    };
}

/// Observations of a load in a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Payload rate, in Mb/s.
    pub mbit: f64,
    /// Share of each queue pair in it, host by host.
    pub shares_mbit: Vec<f64>,
    /// Time of a packet in the queue and on the air, until it arrived or was dropped: median and 99
    /// %.
    pub queued_ms: [f64; 2],
    /// Packets that found the queue full.
    pub overflowed: u64,
    /// Datagrams from the receiver of the data for each MB of payload.
    pub answers_per_mb: f64,
    /// Foreground: share of its datagrams that arrived, and the 99 % delay in ms.
    pub foreground: [f64; 2],
}

/// Lets the stations learn their rates with packets that no program receives.
fn teach(medium: &mut Medium, stations: &[StationId], random: &mut Random) -> Time {
    let mut outcomes = Vec::new();
    let mut now = Time::ZERO;
    let [senders @ .., receiver] = stations else {
        return now;
    };
    let ways = senders
        .iter()
        .flat_map(|sender| [(*sender, *receiver), (*receiver, *sender)]);
    let waits = |medium: &Medium| {
        stations
            .iter()
            .any(|&station| medium.backlog(station).packets > 0)
    };
    while now < Time::ZERO + TEACHING || waits(medium) {
        for (from, to) in ways.clone() {
            if now < Time::ZERO + TEACHING && medium.backlog(from).packets < TEACHING_PACKETS {
                // A packet that finds the queue full is not needed.
                let _ = medium.enqueue(now, from, to, MTU, 0);
            }
        }
        now = medium.poll_at().unwrap_or(now + MEDIUM_STEP).max(now);
        medium.advance(now, random, &mut outcomes);
        outcomes.clear();
    }
    now
}

/// A medium with this number of stations, each of which hears the last one.
fn medium(setting: &Setting, stations: usize) -> (Medium, Vec<StationId>) {
    let mut medium = Medium::new(setting.profile.clone());
    let stations: Vec<StationId> = (0..stations).map(|_| medium.add_station()).collect();
    set_snr(&mut medium, &stations, setting, Duration::ZERO);
    (medium, stations)
}

/// Sets the SNR that applies `since` the start of the measurement.
fn set_snr(medium: &mut Medium, stations: &[StationId], setting: &Setting, since: Duration) {
    let step = (since.as_nanos() / SNR_STEP.as_nanos()) as usize;
    let snr_db = setting.snr_db.get(step).or(setting.snr_db.last());
    for (index, &one) in stations.iter().enumerate() {
        for &other in &stations[..index] {
            medium.set_snr(one, other, *snr_db.expect("an SNR"));
        }
    }
}

/// Time of the next change of the SNR.
fn next_snr(setting: &Setting, since: Duration) -> Option<Duration> {
    let step = (since.as_nanos() / SNR_STEP.as_nanos()) as u32 + 1;
    ((step as usize) < setting.snr_db.len()).then(|| SNR_STEP * step)
}

/// Throughput of `hosts` queues that are always full, in Mb/s of full UDP datagrams.
pub fn line_rate(setting: &Setting, hosts: usize, time: Duration) -> f64 {
    let mut full = FullQueues::new(setting, hosts, Duration::ZERO);
    let begin = full.now + WARM_UP;
    let end = begin + time;
    let mut came = 0;
    while full.now < end {
        came += full.step(begin, |at| at >= begin && at < end);
    }
    mbit(came * PAYLOAD, time)
}

/// Time in which one queue that is always full moves `bytes`, after the pause before a transfer.
pub fn line_completion(setting: &Setting, bytes: u64) -> Duration {
    let mut full = FullQueues::new(setting, 1, WARM_UP);
    let begin = full.now;
    let mut came = 0;
    while came * PAYLOAD < bytes {
        came += full.step(begin, |_| true);
    }
    full.now.duration_since(begin)
}

/// A cell in which some stations always have packets for the last one.
struct FullQueues<'a> {
    setting: &'a Setting,
    medium: Medium,
    stations: Vec<StationId>,
    random: Random,
    now: Time,
    token: u64,
    outcomes: Vec<Outcome>,
}

impl<'a> FullQueues<'a> {
    /// Builds it and lets `pause` pass.
    fn new(setting: &'a Setting, hosts: usize, pause: Duration) -> Self {
        let (mut medium, stations) = medium(setting, hosts + 1);
        let mut random = Random::new(setting.seed);
        let now = teach(&mut medium, &stations, &mut random) + pause;
        let mut outcomes = Vec::new();
        medium.advance(now, &mut random, &mut outcomes);
        FullQueues {
            setting,
            medium,
            stations,
            random,
            now,
            token: 0,
            outcomes,
        }
    }

    /// Fills the queues and advances to the next event. Returns the packets that arrived at a time
    /// that `counts`.
    ///
    /// The signal moves from `begin` on.
    fn step(&mut self, begin: Time, counts: impl Fn(Time) -> bool) -> u64 {
        let (receiver, senders) = self.stations.split_last().expect("stations");
        for &from in senders {
            while self.medium.backlog(from).packets < self.setting.profile.queue_packets_max {
                let taken = (self.medium).enqueue(self.now, from, *receiver, MTU, self.token);
                self.token += u64::from(taken.is_ok());
            }
        }
        let since = self.now.duration_since(begin);
        let turn = next_snr(self.setting, since).map(|after| begin + after);
        let next = self.medium.poll_at().unwrap_or(self.now);
        self.now = next.min(turn.unwrap_or(next)).max(self.now);
        let since = self.now.duration_since(begin);
        set_snr(&mut self.medium, &self.stations, self.setting, since);
        (self.medium).advance(self.now, &mut self.random, &mut self.outcomes);
        let mut came = 0;
        for outcome in self.outcomes.drain(..) {
            let arrived = outcome.fate == Fate::Delivered && counts(outcome.at);
            came += u64::from(arrived && !self.random.chance(self.setting.loss));
        }
        came
    }
}

/// Throughput of an endless load.
pub fn throughput(setting: &Setting, sender: Sender, load: Load, time: Duration) -> Seen {
    let mut cell = Cell::new(setting, sender, load);
    cell.run_until(WARM_UP, u64::MAX);
    let before = cell.begin();
    cell.run_until(WARM_UP + time, u64::MAX);
    cell.seen(&before, time)
}

/// Time from the first request to the last completion of `bytes`; `None` if they do not complete.
pub fn completion(setting: &Setting, sender: Sender, bytes: u64) -> Option<Duration> {
    let mut cell = Cell::new(setting, sender, Load::USUAL);
    cell.run_until(WARM_UP, 0);
    cell.begin();
    let messages = bytes.div_ceil(Load::USUAL.message_bytes.into());
    cell.run_until(WARM_UP + GIVEN_UP, messages);
    (cell.done() == [messages]).then(|| cell.now - WARM_UP)
}

fn mbit(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / time.as_secs_f64() / 1e6
}

/// Median and 99 % of times, in ms.
fn middle_and_high(times: &mut [Duration]) -> [f64; 2] {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    [50, 99].map(|percent| {
        let place = (times.len() * percent / 100).min(last);
        (times.get(place)).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    })
}

/// Payload of a packet in the cell.
enum Carried {
    /// A whole datagram, or a fragment.
    Part(Rc<Datagram>),
    /// A packet of the other program.
    Foreground,
}

/// A datagram of a device. It has arrived once all its parts have.
struct Datagram {
    frame: Frame,
    is_lost: Mutable<bool>,
}

/// The IP packets of a datagram of `bytes` (BTH to ICRC).
fn ip_packets(bytes: u32) -> impl Iterator<Item = u32> {
    let most = MTU - IP_HEADER;
    let all = bytes + HEADERS - IP_HEADER;
    (0..all.div_ceil(most)).map(move |index| (all - index * most).min(most) + IP_HEADER)
}

/// A packet in the cell.
struct Under {
    carried: Carried,
    from: usize,
    since: Duration,
}

struct Cell<'a> {
    setting: &'a Setting,
    load: Load,
    packet_bytes: u32,
    /// Hosts; the last one receives, or is read from.
    hosts: Vec<Host>,
    stations: Vec<StationId>,
    medium: Medium,
    random: Random,
    /// The medium's time at which the hosts' clock was zero.
    began: Time,
    now: Duration,
    under_way: HashMap<u64, Under>,
    token: u64,
    foreground: Foreground,
    waits: Vec<Duration>,
    overflowed: u64,
    answers: u64,
}

impl<'a> Cell<'a> {
    fn new(setting: &'a Setting, sender: Sender, load: Load) -> Cell<'a> {
        let (mut medium, stations) = medium(setting, load.hosts + 1);
        let mut random = Random::new(setting.seed);
        let began = teach(&mut medium, &stations, &mut random);
        let host = |(index, &station)| {
            let is_receiver = index == load.hosts;
            let pairs = load.queue_pairs * if is_receiver { load.hosts } else { 1 };
            Host::new(index, sender, station, load, pairs)
        };
        let hosts: Vec<Host> = stations.iter().enumerate().map(host).collect();
        if let [senders @ .., receiver] = &hosts[..] {
            for (index, sender) in senders.iter().enumerate() {
                for pair in 0..load.queue_pairs {
                    sender.join(pair, receiver, index * load.queue_pairs + pair);
                }
            }
        }
        Cell {
            setting,
            load,
            packet_bytes: sender.packet_bytes(),
            hosts,
            stations,
            medium,
            random,
            began,
            now: Duration::ZERO,
            under_way: HashMap::new(),
            token: 0,
            foreground: Foreground::new(load.foreground_mbit, WARM_UP),
            waits: Vec::new(),
            overflowed: 0,
            answers: 0,
        }
    }

    /// Completed messages of each queue pair.
    fn done(&self) -> Vec<u64> {
        let senders = &self.hosts[..self.load.hosts];
        let pairs = senders.iter().flat_map(|host| &host.pairs);
        pairs.map(|pair| pair.done).collect()
    }

    /// Starts the measurement. Returns what has completed before.
    fn begin(&mut self) -> Vec<u64> {
        self.waits.clear();
        self.overflowed = 0;
        self.answers = 0;
        self.done()
    }

    fn seen(mut self, before: &[u64], time: Duration) -> Seen {
        let done = self.done();
        let messages = done.iter().zip(before).map(|(now, then)| now - then);
        let bytes: Vec<u64> = messages
            .map(|messages| messages * u64::from(self.load.message_bytes))
            .collect();
        let sum: u64 = bytes.iter().sum();
        Seen {
            mbit: mbit(sum, time),
            shares_mbit: bytes.into_iter().map(|bytes| mbit(bytes, time)).collect(),
            queued_ms: middle_and_high(&mut self.waits),
            overflowed: self.overflowed,
            answers_per_mb: self.answers as f64 / (sum as f64 / 1e6).max(1e-9),
            foreground: self.foreground.seen(),
        }
    }

    /// Lets time pass until `end`, or until each queue pair has completed `messages`.
    fn run_until(&mut self, end: Duration, messages: u64) {
        while self.now < end {
            self.post(messages);
            self.settle();
            if messages > 0 && self.done().iter().all(|&done| done == messages) {
                return;
            }
            self.now = self.next().unwrap_or(end).clamp(self.now, end);
            let since = self.since();
            set_snr(&mut self.medium, &self.stations, self.setting, since);
            self.pass();
            if let Some(bytes) = self.foreground.poll(self.now) {
                self.enqueue(0, self.load.hosts, bytes, Carried::Foreground);
            }
        }
    }

    fn sends_data(&self, host: usize) -> bool {
        (host == self.load.hosts) == self.load.reads
    }

    /// Time since the measurement started.
    fn since(&self) -> Duration {
        self.now.saturating_sub(WARM_UP)
    }

    /// Time of the next event.
    fn next(&self) -> Option<Duration> {
        let medium = self.medium.poll_at();
        let medium = medium.map(|at| at.duration_since(self.began));
        let devices = self.hosts.iter().filter_map(|host| host.device.deadline());
        let turn = next_snr(self.setting, self.since()).map(|after| WARM_UP + after);
        let others = [medium, turn, self.foreground.due()];
        others.into_iter().flatten().chain(devices).min()
    }

    fn post(&mut self, messages: u64) {
        if let [senders @ .., receiver] = &mut self.hosts[..] {
            for sender in senders {
                sender.post(self.now, receiver.target(), messages);
            }
        }
    }

    /// Runs all devices at this moment.
    fn settle(&mut self) {
        let packets = self.setting.profile.queue_packets_max as u64;
        let capacity = packets * u64::from(self.packet_bytes);
        let mut is_moving = true;
        while std::mem::take(&mut is_moving) {
            for from in 0..self.hosts.len() {
                let host = &self.hosts[from];
                let fill = QueueFill {
                    bytes: self.medium.backlog(host.station).bytes,
                    capacity: Some(capacity),
                    left_bytes: None,
                };
                host.carrier.set_send_queue(Some(fill));
                host.device.run(self.now);
                while let Some(frame) = self.hosts[from].carrier.take() {
                    is_moving = true;
                    self.send(from, frame);
                }
            }
            for host in &mut self.hosts[..self.load.hosts] {
                is_moving |= host.poll();
            }
        }
    }

    fn send(&mut self, from: usize, frame: Frame) {
        if !self.sends_data(from) {
            self.answers += 1;
        }
        let to = index_of(frame.destination);
        let packets = ip_packets(frame.bytes.len() as u32);
        let datagram = Rc::new(Datagram {
            frame,
            is_lost: Mutable::new(false),
        });
        for bytes in packets {
            let part = Carried::Part(Rc::clone(&datagram));
            if !self.enqueue(from, to, bytes, part) {
                self.overflowed += 1;
                datagram.is_lost.set(true);
                break;
            }
        }
    }

    /// Enqueues a packet; returns whether there was room.
    fn enqueue(&mut self, from: usize, to: usize, bytes: u32, carried: Carried) -> bool {
        let now = self.began + self.now;
        let [station, peer] = [from, to].map(|host| self.hosts[host].station);
        let token = self.token;
        self.token += 1;
        let taken = (self.medium).enqueue(now, station, peer, bytes, token);
        if taken.is_ok() {
            let since = self.now;
            let under = Under {
                carried,
                from,
                since,
            };
            self.under_way.insert(token, under);
        }
        taken.is_ok()
    }

    fn pass(&mut self) {
        let mut outcomes = Vec::new();
        let now = self.began + self.now;
        self.medium.advance(now, &mut self.random, &mut outcomes);
        for outcome in outcomes {
            let under = self.under_way.remove(&outcome.token);
            let under = under.expect("a packet of ours");
            let took = self.now.saturating_sub(under.since);
            let came = outcome.fate == Fate::Delivered && !self.random.chance(self.setting.loss);
            match under.carried {
                Carried::Foreground if came => self.foreground.came(took),
                Carried::Foreground => {}
                Carried::Part(datagram) => {
                    if self.sends_data(under.from) {
                        self.waits.push(took);
                    }
                    if !came {
                        datagram.is_lost.set(true);
                    }
                    if let Some(Datagram { frame, is_lost }) = Rc::into_inner(datagram)
                        && !is_lost.get()
                    {
                        self.hosts[index_of(frame.destination)].carrier.give(frame);
                    }
                }
            }
        }
    }
}
