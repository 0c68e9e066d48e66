//! Samples of devices and processes, and the rates between two of them.

use crate::view::{self, NotUnderstood, Opened, Peer, QueuePair, Report, View};
use airdma_engine::{DeviceInfo, all_devices, counters_of, devices};
use airdma_files::printable;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

/// Pause before a process that did not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
const REFUSES: &str =
    "it closes the connection: others look at it already, or it must not be traced";
/// Sequence numbers have 24 bits.
const NUMBER_MASK: u32 = 0xff_ffff;
/// A difference above this is a queue pair that began anew.
const STEP_MAX: u32 = 1 << 23;

type Counters = BTreeMap<String, u64>;

/// Rates of a device or a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    pub tx_bytes_per_second: f64,
    pub rx_bytes_per_second: f64,
    pub tx_packets_per_second: f64,
    pub rx_packets_per_second: f64,
    pub tx_messages_per_second: f64,
    pub rx_messages_per_second: f64,
    pub retransmits_per_second: f64,
    pub drops_per_second: f64,
    /// By reason; those that are not 0.
    pub drops: BTreeMap<String, f64>,
}

/// What is shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Picture {
    pub seconds: f64,
    pub devices: Vec<DeviceRates>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeviceRates {
    pub name: String,
    pub up: bool,
    #[serde(flatten)]
    pub rates: Rates,
    pub processes: Vec<ProcessRates>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProcessRates {
    pub pid: u32,
    pub program: String,
    /// Whether it reports.
    pub answers: bool,
    /// That of a process whose report is not understood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Why there is no report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(flatten)]
    pub rates: Rates,
    /// Why most of its queue pairs that have something to do wait.
    pub waits_for: String,
    pub send_queue_bytes: u64,
    pub send_queue_full: bool,
    pub queue_pairs_total: u64,
    pub queue_pairs: Vec<PairRates>,
    pub peers: Vec<PeerState>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PairRates {
    pub number: u32,
    #[serde(rename = "type")]
    pub service: String,
    pub state: String,
    pub peer: Option<String>,
    pub peer_number: Option<u32>,
    /// Packets as counted by sequence numbers: without those that were sent again.
    pub tx_packets_per_second: f64,
    pub rx_packets_per_second: f64,
    pub rx_messages_per_second: f64,
    pub queued: u64,
    pub in_flight_bytes: u64,
    /// Posted, and taken by no message yet; null where each message names its queue.
    pub receives: Option<u64>,
    /// Whether these are in a shared receive queue.
    pub shares_receives: bool,
    pub waits_for: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PeerState {
    pub address: String,
    pub window_bytes: Option<u64>,
    pub in_flight_bytes: u64,
    pub waiting_queue_pairs: u64,
    pub silent: bool,
}

/// What was seen at one time.
pub struct Sample {
    at: Instant,
    devices: Vec<SeenDevice>,
    processes: Vec<SeenProcess>,
}

struct SeenDevice {
    name: String,
    interface: u32,
    up: bool,
    counters: Counters,
}

struct SeenProcess {
    view: String,
    interface: u32,
    pid: u32,
    program: String,
    answer: Answer,
}

/// What came of a question.
#[derive(Clone)]
enum Answer {
    Report(Box<Report>),
    /// Nothing in time.
    Late,
    NotUnderstood(NotUnderstood),
    /// The connection was closed: the process serves as many as it can, or must not be traced.
    Refused,
}

impl Answer {
    fn report(&self) -> Option<&Report> {
        match self {
            Answer::Report(report) => Some(report),
            Answer::Late | Answer::NotUnderstood(_) | Answer::Refused => None,
        }
    }
}

impl From<io::Result<Report>> for Answer {
    fn from(read: io::Result<Report>) -> Answer {
        let error = match read {
            Ok(report) => return Answer::Report(Box::new(report)),
            Err(error) if is_late(&error) => return Answer::Late,
            Err(error) => error,
        };
        let reason = error.get_ref().and_then(|it| it.downcast_ref());
        reason.map_or(Answer::Refused, |reason: &NotUnderstood| {
            Answer::NotUnderstood(reason.clone())
        })
    }
}

/// The connections to processes.
#[derive(Default)]
pub struct Looker {
    views: HashMap<String, View>,
    /// Those that do not answer: process and program, and when to ask again.
    stuck: HashMap<String, (u32, String, Instant)>,
    /// Names of sockets of other users.
    foreign: HashSet<String>,
}

impl Looker {
    /// Looks at all devices and processes.
    ///
    /// # Errors
    /// The system does not list them.
    pub fn look(&mut self) -> io::Result<Sample> {
        let processes = self.ask_all(&view::names()?);
        let at = Instant::now();
        let used = |info: &DeviceInfo| {
            let interface = info.interface_index;
            processes.iter().any(|one| one.interface == interface)
        };
        let listed = devices()?;
        let is_listed = |info: &DeviceInfo| {
            (listed.iter()).any(|other| other.interface_index == info.interface_index)
        };
        let devices = all_devices()?.into_iter();
        let devices = devices
            .filter(|info| is_listed(info) || used(info))
            .map(seen);
        Ok(Sample {
            at,
            devices: devices.collect(),
            processes,
        })
    }

    /// Asks all processes, and then waits for them together.
    fn ask_all(&mut self, names: &[String]) -> Vec<SeenProcess> {
        self.views.retain(|name, _| names.contains(name));
        self.stuck.retain(|name, _| names.contains(name));
        self.foreign.retain(|name| names.contains(name));
        let mut asked = Vec::new();
        let mut seen = Vec::new();
        for name in names {
            if asked.len() + seen.len() >= view::VIEWS_MAX {
                break;
            }
            match self.stuck.get(name) {
                Some((pid, program, again)) if Instant::now() < *again => {
                    let program = program.clone();
                    seen.extend(SeenProcess::of(name, *pid, program, Answer::Late));
                }
                Some(_) | None => {
                    let view = self.ask(name);
                    asked.extend(view.map(|view| (name.clone(), view)));
                }
            }
        }
        let until = Instant::now() + view::PATIENCE;
        for (name, mut view) in asked {
            let answer = Answer::from(view.take_report(until));
            let (pid, program) = (view.pid, view.program.clone());
            match &answer {
                Answer::Report(_) => {
                    self.stuck.remove(&name);
                    self.views.insert(name.clone(), view);
                }
                Answer::Late => {
                    let stuck = (pid, program.clone(), Instant::now() + ASK_AGAIN);
                    self.stuck.insert(name.clone(), stuck);
                }
                Answer::NotUnderstood(_) | Answer::Refused => {}
            }
            seen.extend(SeenProcess::of(&name, pid, program, answer));
        }
        without_ended(seen)
    }

    /// Asks a process. `None`: it is gone, or another user's.
    fn ask(&mut self, name: &String) -> Option<View> {
        if self.foreign.contains(name) {
            return None;
        }
        let mut view = match self.views.remove(name) {
            Some(view) => view,
            None => match View::open(name) {
                Opened::View(view) => view,
                Opened::Foreign => {
                    self.foreign.insert(name.clone());
                    return None;
                }
                Opened::Gone => return None,
            },
        };
        // A connection that is closed says so when it is read.
        let _ = view.ask_for_report();
        Some(view)
    }
}

impl SeenProcess {
    fn of(name: &str, pid: u32, program: String, answer: Answer) -> Option<Self> {
        Some(SeenProcess {
            view: name.to_owned(),
            interface: view::interface_of(name)?,
            pid,
            program,
            answer,
        })
    }
}

/// Without those that closed the connection because they ended.
fn without_ended(mut seen: Vec<SeenProcess>) -> Vec<SeenProcess> {
    let refused = |process: &SeenProcess| matches!(process.answer, Answer::Refused);
    if seen.iter().any(refused) {
        let names = view::names().unwrap_or_default();
        seen.retain(|process| !refused(process) || names.contains(&process.view));
    }
    seen
}

fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn seen(info: DeviceInfo) -> SeenDevice {
    let counters = counters_of(&info).into_iter();
    SeenDevice {
        counters: counters.map(|(name, value)| (name.into(), value)).collect(),
        name: printable(info.name.as_bytes()),
        interface: info.interface_index,
        up: info.up,
    }
}

impl Sample {
    /// Whether there is a device of that name.
    pub fn has(&self, name: &str) -> bool {
        self.devices.iter().any(|device| device.is(name))
    }

    /// The device that follows one, in the order of their names; none, which is all, after the
    /// last.
    pub fn device_after(&self, name: Option<&str>) -> Option<String> {
        let mut names: Vec<&String> = self.devices.iter().map(|device| &device.name).collect();
        names.sort();
        let place = name.map_or(0, |name| {
            let mut devices = names.iter();
            devices
                .position(|device| device.as_str() == name)
                .map_or(0, |at| at + 1)
        });
        names.get(place).map(|name| (*name).clone())
    }
}

impl Picture {
    /// Rows of its devices, their processes, and their queue pairs.
    pub fn rows(&self) -> usize {
        let processes = self.devices.iter().flat_map(|device| &device.processes);
        let of_processes = processes.map(|process| 1 + process.queue_pairs.len());
        self.devices.len() + of_processes.sum::<usize>()
    }

    /// The rates between two samples; with a filter, those of one device.
    pub fn between(before: &Sample, after: &Sample, device: Option<&str>) -> Picture {
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let devices = after.devices.iter();
        let devices = devices.filter(|seen| device.is_none_or(|name| seen.is(name)));
        let mut devices: Vec<_> = devices
            .map(|seen| device_rates(seen, before, after, seconds))
            .collect();
        devices.sort_by(|one, other| {
            let order = other.rates.order().total_cmp(&one.rates.order());
            order.then_with(|| one.name.cmp(&other.name))
        });
        Picture { seconds, devices }
    }
}

impl SeenDevice {
    /// By its name, or by that of its interface.
    fn is(&self, name: &str) -> bool {
        self.name == name || self.name.strip_prefix("airdma_") == Some(name)
    }
}

fn device_rates(seen: &SeenDevice, before: &Sample, after: &Sample, seconds: f64) -> DeviceRates {
    let its = (after.processes.iter()).filter(|process| process.interface == seen.interface);
    let mut processes: Vec<_> = its.map(|process| process_rates(process, before)).collect();
    processes.sort_by(|one, other| {
        let order = other.rates.order().total_cmp(&one.rates.order());
        order.then(one.pid.cmp(&other.pid))
    });
    let was = |other: &&SeenDevice| other.interface == seen.interface;
    let earlier = before.devices.iter().find(was);
    let of_file = earlier.map_or_else(Rates::default, |earlier| {
        Rates::between(&earlier.counters, &seen.counters, seconds)
    });
    // The file has what ended meanwhile, the processes those of other users.
    let mut rates = of_file;
    let sum = processes.iter().map(|process| &process.rates);
    rates.raise_to(&sum.fold(Rates::default(), Rates::plus));
    DeviceRates {
        name: seen.name.clone(),
        up: seen.up,
        rates,
        processes,
    }
}

fn process_rates(process: &SeenProcess, before: &Sample) -> ProcessRates {
    let mut shown = ProcessRates {
        pid: process.pid,
        program: process.program.clone(),
        ..ProcessRates::default()
    };
    let report = match &process.answer {
        Answer::Report(report) => report,
        Answer::Late => {
            shown.waits_for = "does not answer".into();
            return shown;
        }
        Answer::NotUnderstood(reason) => {
            shown.waits_for = "not understood".into();
            shown.version = Some(reason.version.clone());
            shown.message = Some(reason.to_string());
            return shown;
        }
        Answer::Refused => {
            shown.waits_for = "refuses".into();
            shown.message = Some(REFUSES.into());
            return shown;
        }
    };
    shown.answers = true;
    let earlier = before
        .processes
        .iter()
        .find(|other| other.view == process.view);
    let earlier = earlier.and_then(|earlier| earlier.answer.report());
    let ns = earlier.map_or(0, |earlier| report.now_ns.saturating_sub(earlier.now_ns));
    let seconds = Duration::from_nanos(ns).as_secs_f64();
    if let Some(earlier) = earlier {
        shown.rates = Rates::between(&earlier.counters, &report.counters, seconds);
    }
    let pairs: HashMap<u32, &QueuePair> = earlier
        .into_iter()
        .flat_map(|earlier| &earlier.queue_pairs)
        .map(|pair| (pair.number, pair))
        .collect();
    let pair = |pair: &QueuePair| pair_rates(pair, pairs.get(&pair.number).copied(), seconds);
    shown.queue_pairs = report.queue_pairs.iter().map(pair).collect();
    shown.queue_pairs.sort_by(|one, other| {
        let order = other.order().total_cmp(&one.order());
        order.then(one.number.cmp(&other.number))
    });
    shown.queue_pairs_total = report.queue_pairs_total;
    shown.peers = report.peers.iter().map(peer_state).collect();
    shown.send_queue_bytes = report.send_queue.bytes;
    shown.send_queue_full = report.send_queue.full;
    shown.waits_for = process_waits_for(report);
    shown
}

/// The reason of most queue pairs; those that wait for the program count if all do.
fn process_waits_for(report: &Report) -> String {
    if report.send_queue.full {
        return "send queue".into();
    }
    let mut reasons = BTreeMap::new();
    for pair in &report.queue_pairs {
        let is_idle = pair.waits_for == "program";
        *reasons.entry((!is_idle, &pair.waits_for)).or_insert(0_u32) += 1;
    }
    let most = reasons
        .into_iter()
        .max_by_key(|((is_busy, _), count)| (*is_busy, *count));
    most.map_or_else(String::new, |((_, reason), _)| reason.clone())
}

fn pair_rates(pair: &QueuePair, earlier: Option<&QueuePair>, seconds: f64) -> PairRates {
    let rate = |value: fn(&QueuePair) -> u32| {
        let step = earlier.map_or(0, |earlier| {
            value(pair).wrapping_sub(value(earlier)) & NUMBER_MASK
        });
        let step = if step > STEP_MAX { 0 } else { step };
        per_second(f64::from(step), seconds)
    };
    PairRates {
        number: pair.number,
        service: pair.service.clone(),
        state: pair.state.clone(),
        peer: pair.peer.clone(),
        peer_number: pair.peer_number,
        tx_packets_per_second: rate(|pair| pair.sent),
        rx_packets_per_second: rate(|pair| pair.received),
        rx_messages_per_second: rate(|pair| pair.messages_received),
        queued: pair.queued,
        in_flight_bytes: pair.in_flight_bytes,
        receives: pair.receives,
        shares_receives: pair.shares_receives,
        waits_for: pair.waits_for.clone(),
    }
}

fn peer_state(peer: &Peer) -> PeerState {
    PeerState {
        address: peer.address.clone(),
        window_bytes: peer.window_bytes,
        in_flight_bytes: peer.in_flight_bytes,
        waiting_queue_pairs: peer.waiting,
        silent: peer.silent,
    }
}

fn per_second(count: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { count / seconds } else { 0.0 }
}

impl PairRates {
    fn order(&self) -> f64 {
        self.tx_packets_per_second + self.rx_packets_per_second
    }
}

impl Rates {
    fn between(before: &Counters, after: &Counters, seconds: f64) -> Rates {
        let value = |counters: &Counters, name: &str| counters.get(name).copied().unwrap_or(0);
        let rate = |name: &str| {
            let step = value(after, name).saturating_sub(value(before, name));
            per_second(step as f64, seconds)
        };
        let names = after.keys().filter(|name| name.starts_with("drop_"));
        let drops = names.map(|name| (name.clone(), rate(name)));
        let drops: BTreeMap<_, _> = drops.filter(|(_, rate)| *rate > 0.0).collect();
        Rates {
            tx_bytes_per_second: rate("tx_bytes"),
            rx_bytes_per_second: rate("rx_bytes"),
            tx_packets_per_second: rate("tx_packets"),
            rx_packets_per_second: rate("rx_packets"),
            tx_messages_per_second: rate("messages_sent"),
            rx_messages_per_second: rate("messages_received"),
            retransmits_per_second: rate("retransmits"),
            drops_per_second: drops.values().fold(0.0, |sum, rate| sum + rate),
            drops,
        }
    }

    fn order(&self) -> f64 {
        self.tx_bytes_per_second + self.rx_bytes_per_second
    }

    fn values(&mut self) -> [&mut f64; 8] {
        [
            &mut self.tx_bytes_per_second,
            &mut self.rx_bytes_per_second,
            &mut self.tx_packets_per_second,
            &mut self.rx_packets_per_second,
            &mut self.tx_messages_per_second,
            &mut self.rx_messages_per_second,
            &mut self.retransmits_per_second,
            &mut self.drops_per_second,
        ]
    }

    fn combine(&mut self, other: &Rates, call: fn(f64, f64) -> f64) {
        let mut other = other.clone();
        for (value, more) in self.values().into_iter().zip(other.values()) {
            *value = call(*value, *more);
        }
        for (name, more) in other.drops {
            let rate = self.drops.entry(name).or_insert(0.0);
            *rate = call(*rate, more);
        }
    }

    fn plus(mut self, other: &Rates) -> Rates {
        self.combine(other, |one, more| one + more);
        self
    }

    fn raise_to(&mut self, other: &Rates) {
        self.combine(other, f64::max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::table;

    fn report(text: &str) -> Report {
        serde_json::from_str(text).expect("valid")
    }

    fn sample(at: Instant, bytes: u64, sent: u32) -> Sample {
        let text = format!(
            r#"{{"version":1,"interface":2,"now_ns":{},"counters":{{"tx_bytes":{bytes},
            "messages_sent":{},"drop_bad_icrc":{}}},"queue_pairs_total":1,
            "queue_pairs":[{{"number":17,"type":"RC","state":"rts","peer":"10.0.0.2",
            "peer_number":18,"sent":{sent},"received":5,"messages_received":0,"queued":3,
            "in_flight_bytes":4096,"waits_for":"window"}}]}}"#,
            bytes * 1000,
            bytes / 100,
            bytes / 1000,
        );
        Sample {
            at,
            devices: vec![SeenDevice {
                name: "airdma_a".into(),
                interface: 2,
                up: true,
                counters: [("tx_bytes".to_owned(), bytes + 7)].into(),
            }],
            processes: vec![SeenProcess {
                view: "x".into(),
                interface: 2,
                pid: 7,
                program: "ib_write_bw".into(),
                answer: Answer::Report(Box::new(report(&text))),
            }],
        }
    }

    #[test]
    fn rates_are_differences_by_the_time_between_reports() {
        let start = Instant::now();
        // The reports are 2 s apart, by their own clocks.
        let before = sample(start, 1_000_000, NUMBER_MASK - 1);
        let after = sample(start + Duration::from_secs(2), 3_000_000, 8);
        let picture = Picture::between(&before, &after, None);
        let device = &picture.devices[0];
        assert_eq!(
            (picture.seconds, device.rates.tx_bytes_per_second),
            (2.0, 1e6)
        );
        let process = &device.processes[0];
        assert_eq!(process.rates.tx_messages_per_second, 10_000.0);
        assert_eq!(process.rates.drops["drop_bad_icrc"], 1000.0);
        // The file has none, so that these are the processes' own.
        assert_eq!(device.rates.drops_per_second, 1000.0);
        let pair = &process.queue_pairs[0];
        assert_eq!(pair.tx_packets_per_second, 5.0);
        assert_eq!((pair.rx_packets_per_second, pair.queued), (0.0, 3));
        assert_eq!(process.waits_for, "window");
    }

    #[test]
    fn a_device_is_chosen_by_its_name_or_its_interface() {
        let start = Instant::now();
        let [before, after] = [sample(start, 0, 0), sample(start, 0, 0)];
        for (name, count) in [("airdma_a", 1), ("a", 1), ("b", 0)] {
            let picture = Picture::between(&before, &after, Some(name));
            assert_eq!(picture.devices.len(), count, "{name}");
        }
    }

    #[test]
    fn a_queue_pair_that_began_anew_has_no_rate() {
        let start = Instant::now();
        let before = sample(start, 0, 1000);
        let after = sample(start, 1_000_000, 10);
        let picture = Picture::between(&before, &after, None);
        assert_eq!(
            picture.devices[0].processes[0].queue_pairs[0].tx_packets_per_second,
            0.0
        );
    }

    #[test]
    fn a_process_without_a_report_is_shown_with_the_reason() {
        let start = Instant::now();
        let other = NotUnderstood {
            version: "airdma 9.1.0".into(),
        };
        for (answer, waits_for, part) in [
            (Answer::Late, "does not answer", "does not answer"),
            (Answer::Refused, "refuses", "must not be traced"),
            (
                Answer::NotUnderstood(other),
                "not understood",
                "another version (airdma 9.1.0) is not understood",
            ),
        ] {
            let mut seen = sample(start, 0, 0);
            seen.processes[0].answer = answer;
            let picture = Picture::between(&seen, &seen, None);
            let process = &picture.devices[0].processes[0];
            assert_eq!((process.answers, &*process.waits_for), (false, waits_for));
            let text = table::text(&picture, 120);
            let line = text
                .lines()
                .find(|line| line.starts_with("  7 ib_write_bw"));
            assert!(line.is_some_and(|line| line.contains(part)), "{text}");
        }
    }
}
