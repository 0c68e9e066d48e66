//! Plan of the measurement: transports, links, sizes, repetitions, and their estimated duration.

use airdma_link::{Options as LinkOptions, Walk};
use regex::Regex;

use super::Wireless;
use super::transport::{TRANSPORTS, Transport};

/// A kind of link, and its name.
pub struct Signal {
    pub name: &'static str,
    /// Description for readers.
    pub label: &'static str,
    snr_db: f64,
    loss: f64,
    pub walk: Option<Walk>,
}

pub const SIGNALS: [Signal; 8] = [
    steady("good", "good signal, 35 dB", 35.0, 0.0),
    steady("fair", "fair signal, 20 dB", 20.0, 0.0),
    steady("poor", "poor signal, 10 dB", 10.0, 0.0),
    steady("loss-0.1", "good signal, 0.1 % lost", 35.0, 0.001),
    steady("loss-1", "good signal, 1 % lost", 35.0, 0.01),
    steady("loss-5", "good signal, 5 % lost", 35.0, 0.05),
    walking("away", "walking away", Walk::Away),
    walking("toward", "walking toward", Walk::Toward),
];

const fn steady(name: &'static str, label: &'static str, snr_db: f64, loss: f64) -> Signal {
    Signal {
        name,
        label,
        snr_db,
        loss,
        walk: None,
    }
}

const fn walking(name: &'static str, label: &'static str, walk: Walk) -> Signal {
    Signal {
        name,
        label,
        snr_db: 0.0,
        loss: 0.0,
        walk: Some(walk),
    }
}

/// Seed of walks: all transports meet the same walk.
const WALK_SEED: u64 = 3;
/// Samples of each case by default.
pub const RUNS: u32 = 3;
/// Sizes in MB with their repetitions.
///
/// A good signal has all sizes, other signals small and large ones, and loss (which costs some
/// transports minutes) fewer repetitions.
const SIZES_AT_GOOD: [(u64, u32); 3] = [(10, RUNS), (100, RUNS), (1000, 1)];
const SIZES_BY_SIGNAL: [(u64, u32); 2] = [(10, RUNS), (100, RUNS)];
const SIZES_BY_LOSS: [(u64, u32); 2] = [(10, RUNS), (100, 1)];
/// A walk has its own duration.
const WALK: [(u64, u32); 1] = [(0, 1)];

/// Seconds that measure the practical line rate.
pub const UDP_S: f64 = 4.0;
/// Seconds that TCP runs beside others.
pub const BESIDE_S: f64 = 4.0;
/// Seconds that a run takes in addition to its transfer: making and warming up the link, program
/// start, the link's last count.
pub const OVERHEAD_S: f64 = 3.0;
/// Estimated share of the line rate without loss.
const SHARE: f64 = 0.5;
/// Estimated slowdown per lost packet.
const SLOWED_BY_LOSS: f64 = 400.0;

impl Signal {
    pub fn options(&self, profile: &str, seed: u64) -> LinkOptions {
        LinkOptions {
            profile: profile.into(),
            snr: self.walk.is_none().then_some(self.snr_db),
            walk: self.walk,
            loss: self.loss,
            seed: if self.walk.is_some() { WALK_SEED } else { seed },
            ..LinkOptions::default()
        }
    }

    /// Sizes in MB, with their repetitions.
    fn sizes(&self, options: &Wireless) -> Vec<(u64, u32)> {
        if self.walk.is_some() {
            return WALK.to_vec();
        }
        let usual: &[(u64, u32)] = match (self.name, self.loss > 0.0) {
            ("good", _) => &SIZES_AT_GOOD,
            (_, false) => &SIZES_BY_SIGNAL,
            (_, true) => &SIZES_BY_LOSS,
        };
        let runs = |(megabytes, runs): (u64, u32)| match options.runs {
            // A size that is measured once by default is repeated only if the user names it.
            Some(wanted) if runs > 1 || !options.megabytes.is_empty() => (megabytes, wanted),
            _ => (megabytes, runs),
        };
        match &options.megabytes[..] {
            [] => usual.iter().copied().map(runs).collect(),
            chosen => chosen.iter().map(|size| runs((*size, RUNS))).collect(),
        }
    }
}

/// A cell of the table.
#[derive(Clone, Copy)]
pub struct Row {
    pub signal: &'static Signal,
    pub transport: Transport,
    /// Size in MB; transports without one have the first.
    pub megabytes: u64,
    pub runs: u32,
}

impl Row {
    pub fn name(&self) -> String {
        let (signal, transport) = (self.signal.name, self.transport.name());
        format!("{signal}/{transport}/{}", self.megabytes)
    }

    /// Whether both rows are measured in turns.
    pub fn is_beside(&self, other: &Row) -> bool {
        self.signal.name == other.signal.name
            && self.megabytes == other.megabytes
            && self.runs == other.runs
    }

    /// Estimated duration of a run.
    pub fn guessed_s(&self, profile: &str) -> anyhow::Result<f64> {
        let plan = self.signal.options(profile, 1).plan()?;
        let loss = self.signal.loss;
        let mbit = plan.profile.goodput_mbit(self.signal.snr_db) * SHARE;
        let slowed = mbit / (1.0 + SLOWED_BY_LOSS * loss);
        let moving_s = match (self.signal.walk, self.transport) {
            (Some(_), _) => plan.signal.duration().as_secs_f64(),
            (None, Transport::Udp) => UDP_S + 1.0,
            (None, _) => self.megabytes as f64 * 8.0 / slowed,
        };
        Ok(moving_s + OVERHEAD_S)
    }
}

/// Rows that the options select and this machine can measure, in the order of measurement.
pub fn rows(options: &Wireless, only: Option<&Regex>) -> Vec<Row> {
    let mut rows = Vec::new();
    for signal in &SIGNALS {
        let sizes = signal.sizes(options);
        for (megabytes, runs) in sizes.iter().copied() {
            let is_first = sizes.first() == Some(&(megabytes, runs));
            let all = TRANSPORTS.into_iter().map(|transport| Row {
                signal,
                transport,
                megabytes,
                runs,
            });
            rows.extend(all.filter(|row| is_chosen(row, options, only, is_first)));
        }
    }
    rows
}

fn is_chosen(row: &Row, options: &Wireless, only: Option<&Regex>, is_first: bool) -> bool {
    let is_usual = !row.transport.is_peer() || options.peers;
    let is_wanted = only.map_or(is_usual, |only| only.is_match(&row.name()));
    // The line rate has no size.
    let is_new = is_first || row.transport != Transport::Udp;
    // A file ends, and a walk has its own duration.
    let can_walk = row.signal.walk.is_none() || !row.transport.moves_files();
    let is_usable = row.signal.walk.is_none() && row.signal.name != "poor";
    let tells = is_usable || !row.transport.is_about_loss();
    is_wanted && is_new && can_walk && tells && row.transport.missing().is_none()
}

/// Transports beside which a TCP flow is measured.
pub fn beside(options: &Wireless, only: Option<&Regex>) -> Vec<Transport> {
    let is_chosen = |transport: &Transport| {
        let name = format!("beside/{}", transport.name());
        let is_wanted = only.map_or(options.peers, |only| only.is_match(&name));
        let is_about_loss = transport.is_about_loss();
        is_wanted && !transport.moves_files() && !is_about_loss && transport.missing().is_none()
    };
    TRANSPORTS.into_iter().filter(is_chosen).collect()
}

/// Repetitions of that.
pub fn beside_runs(options: &Wireless) -> u32 {
    options.runs.unwrap_or(RUNS)
}

/// Estimated duration of a run of TCP alone and one beside.
pub fn beside_s() -> f64 {
    2.0 * (BESIDE_S + OVERHEAD_S) + 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(megabytes: &[u64], runs: Option<u32>) -> Wireless {
        Wireless {
            peers: true,
            megabytes: megabytes.to_vec(),
            runs,
            profile: "wifi5-80".into(),
            ..Wireless::default()
        }
    }

    fn named(options: &Wireless, only: Option<&str>) -> Vec<(String, u32)> {
        let only = only.map(|only| Regex::new(only).unwrap());
        let rows = rows(options, only.as_ref());
        rows.iter().map(|row| (row.name(), row.runs)).collect()
    }

    #[test]
    fn signals_can_be() {
        for signal in &SIGNALS {
            signal.options("wifi5-80", 1).plan().unwrap();
        }
    }

    #[test]
    fn a_gigabyte_and_a_walk_are_measured_once() {
        let all = named(&options(&[], None), None);
        assert!(all.contains(&("good/tcp_cubic/1000".into(), 1)), "{all:?}");
        assert!(all.contains(&("good/tcp_cubic/10".into(), 3)), "{all:?}");
        assert!(all.contains(&("away/udp/0".into(), 1)), "{all:?}");
        let often = named(&options(&[], Some(9)), Some("cubic"));
        assert!(often.contains(&("good/tcp_cubic/1000".into(), 1)));
        assert!(often.contains(&("loss-5/tcp_cubic/10".into(), 9)));
        let chosen = named(&options(&[1000], Some(9)), Some("cubic"));
        assert!(chosen.contains(&("poor/tcp_cubic/1000".into(), 9)));
    }

    #[test]
    fn what_has_no_size_is_measured_once() {
        let all = named(&options(&[1, 2], None), Some("^(good|away)/(udp|scp)"));
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"good/udp/1") && !names.contains(&"good/udp/2"));
        assert!(!names.iter().any(|name| name.starts_with("away/scp")));
    }

    #[test]
    fn loss_and_a_poor_signal_take_longer() {
        let rows = rows(&options(&[100], None), Some(&Regex::new("cubic").unwrap()));
        let guessed = |name: &str| {
            let row = rows.iter().find(|row| row.name() == name).unwrap();
            row.guessed_s("wifi5-80").unwrap()
        };
        assert!(guessed("poor/tcp_cubic/100") > guessed("good/tcp_cubic/100") + 1.0);
        assert!(guessed("loss-5/tcp_cubic/100") > guessed("good/tcp_cubic/100") + 1.0);
    }
}
