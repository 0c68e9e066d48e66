//! `airdma bench wireless`: today's transports on an emulated Wi-Fi link, each alone on it, in turns.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use airdma_link::measure::{Ended, Link, PORT, Running, target};
use airdma_link::traffic::Found;
use airdma_link::{Options as LinkOptions, Side, Walk, ipv4};
use anyhow::{Context, ensure};
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::{machine, plot, table, tools};

/// What the user wants.
#[derive(Clone, Debug)]
pub struct Wireless {
    /// Beside airdma and bare UDP.
    pub peers: bool,
    /// Only cases whose name (SIGNAL/TRANSPORT/MB) matches.
    pub only: Option<String>,
    /// Sizes, in MB.
    pub megabytes: Vec<u64>,
    /// Samples of each.
    pub runs: u32,
    /// A profile.
    pub profile: String,
    /// Files to write, without their endings.
    pub output: PathBuf,
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// As much as the queue takes, nothing sent again: what is possible.
    Udp,
    /// The kernel's, with this congestion control.
    Tcp(&'static str),
    /// airdma as it is: RC with go-back-N, without any care for radio.
    Write,
}

const TRANSPORTS: [Transport; 4] = [
    Transport::Udp,
    Transport::Tcp("cubic"),
    Transport::Tcp("bbr"),
    Transport::Write,
];

/// A kind of link, and its name.
struct Signal {
    name: &'static str,
    snr_db: f64,
    loss: f64,
    walk: Option<Walk>,
}

const SIGNALS: [Signal; 8] = [
    steady("good", 35.0, 0.0),
    steady("fair", 20.0, 0.0),
    steady("poor", 10.0, 0.0),
    steady("loss-0.1", 35.0, 0.001),
    steady("loss-1", 35.0, 0.01),
    steady("loss-5", 35.0, 0.05),
    walking("away", Walk::Away),
    walking("toward", Walk::Toward),
];

const fn steady(name: &'static str, snr_db: f64, loss: f64) -> Signal {
    Signal {
        name,
        snr_db,
        loss,
        walk: None,
    }
}

const fn walking(name: &'static str, walk: Walk) -> Signal {
    Signal {
        name,
        snr_db: 0.0,
        loss: 0.0,
        walk: Some(walk),
    }
}

/// Of walks, so that all transports meet the same.
const WALK_SEED: u64 = 3;
/// What is not there by then has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// How long the practical line rate is looked for.
const UDP_S: f64 = 4.0;
const SECOND_BINS: usize = 50;
/// Of airdma's writes.
const MESSAGE_BYTES: u64 = 65_536;
const PERFTEST_PORT: u16 = 18_515;
const LOOK: Duration = Duration::from_millis(500);

/// One run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Sample {
    /// Payload, in Mb/s; of UDP the best second.
    mbit: f64,
    /// Payload that arrived.
    bytes: f64,
    /// From the first byte to the last, in seconds.
    seconds: f64,
    /// CPU time of both ends for 10^9 bytes, in seconds.
    cpu_s_per_gb: f64,
    /// Packets from the receiver for 10^6 bytes, those of ping not counted.
    answers_per_mb: f64,
    /// Round trips beside it, in ms: median and 95 %.
    ping_ms: [f64; 2],
    /// What arrived over the link in each half second, in Mb/s, and the radio's rate by the table.
    over_time: Vec<[f64; 2]>,
    /// Why it failed, if it did.
    error: Option<String>,
}

/// A cell of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Case {
    signal: String,
    link: String,
    transport: String,
    megabytes: u64,
    samples: Vec<Sample>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Taken {
    format: u32,
    command: String,
    started: String,
    machine: std::collections::BTreeMap<String, String>,
    cases: Vec<Case>,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Tcp("bbr") => "tcp_bbr",
            Transport::Tcp(_) => "tcp_cubic",
            Transport::Write => "airdma_write",
        }
    }

    fn is_peer(self) -> bool {
        matches!(self, Transport::Tcp(_))
    }

    /// Whether this machine has it; else what to do.
    fn missing(self) -> Option<&'static str> {
        match self {
            Transport::Tcp("bbr") if tools::find("tcp_bbr").is_none() => {
                Some(tools::package("tcp_bbr"))
            }
            Transport::Write if tools::find("ib_write_bw").is_none() => {
                Some(tools::package("ib_write_bw"))
            }
            Transport::Udp | Transport::Tcp(_) | Transport::Write => None,
        }
    }
}

impl Signal {
    fn options(&self, profile: &str, seed: u64) -> LinkOptions {
        LinkOptions {
            profile: profile.into(),
            snr: self.walk.is_none().then_some(self.snr_db),
            walk: self.walk,
            loss: self.loss,
            seed: if self.walk.is_some() { WALK_SEED } else { seed },
            ..LinkOptions::default()
        }
    }
}

/// Measures, prints a table, and writes files.
///
/// # Errors
///
/// If no link can be made here, or the files cannot be written.
pub fn wireless(options: &Wireless) -> anyhow::Result<ExitCode> {
    let airdma = std::env::current_exe().context("finding this binary")?;
    let only = options.only.as_deref().map(Regex::new).transpose();
    let only = only.context("--only")?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut taken = Taken {
        format: 1,
        command: format!("airdma {}", words.join(" ")),
        started: machine::now(),
        machine: machine::describe(),
        cases: Vec::new(),
    };
    for transport in TRANSPORTS {
        if let Some(package) = transport.missing() {
            let name = transport.name();
            writeln!(
                io::stderr(),
                "airdma bench: {name} is left out: it needs {package}"
            )?;
        }
    }
    for signal in &SIGNALS {
        for &megabytes in &options.megabytes {
            let wanted = |transport: &Transport| {
                let name = format!("{}/{}/{megabytes}", signal.name, transport.name());
                let chosen = only
                    .as_ref()
                    .map_or(!transport.is_peer() || options.peers, |only| {
                        only.is_match(&name)
                    });
                // The line rate and a walk have no size.
                let sized = !matches!(transport, Transport::Udp) && signal.walk.is_none();
                let once = sized || megabytes == options.megabytes[0];
                chosen && once && transport.missing().is_none()
            };
            let chosen: Vec<Transport> = TRANSPORTS.into_iter().filter(wanted).collect();
            let mut cases: Vec<Case> = chosen
                .iter()
                .map(|transport| Case {
                    signal: signal.name.into(),
                    link: signal.options(&options.profile, 1).words(),
                    transport: transport.name().into(),
                    megabytes,
                    samples: Vec::new(),
                })
                .collect();
            let runs = if signal.walk.is_some() {
                1
            } else {
                options.runs
            };
            for run in 0..runs {
                for (case, transport) in cases.iter_mut().zip(&chosen) {
                    let link = signal.options(&options.profile, u64::from(run) + 1);
                    case.samples
                        .push(sample(&airdma, &link, *transport, megabytes)?);
                }
            }
            for case in &cases {
                writeln!(io::stdout(), "{}", line(case))?;
            }
            taken.cases.extend(cases);
            save(&taken, &options.output)?;
        }
    }
    ensure!(
        !taken.cases.is_empty(),
        "no case has such a name (SIGNAL/TRANSPORT/MB)"
    );
    let page = PathBuf::from(format!("{}.md", options.output.display()));
    std::fs::write(&page, markdown(&taken))?;
    writeln!(io::stdout(), "\nwrote {}", page.display())?;
    let walks = taken.cases.iter().filter(|case| is_walk(&case.signal));
    for name in ["away", "toward"] {
        let curves: Vec<(String, Vec<(f64, f64)>)> = curves(walks.clone(), name);
        if !curves.is_empty() {
            let title = format!("{}, walking {name}: what arrived, in Mb/s", options.profile);
            let stem = PathBuf::from(format!("{}-{name}", options.output.display()));
            for file in plot::over_time(&stem, &title, &curves)? {
                writeln!(io::stdout(), "wrote {}", file.display())?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_walk(name: &str) -> bool {
    SIGNALS
        .iter()
        .any(|signal| signal.name == name && signal.walk.is_some())
}

/// One run on a link of its own. What fails is a result.
fn sample(
    airdma: &Path,
    options: &LinkOptions,
    transport: Transport,
    megabytes: u64,
) -> anyhow::Result<Sample> {
    let link = Link::new(airdma, options)?;
    let plan = options.plan()?;
    let walk_s = plan.signal.duration().as_secs_f64();
    let is_walk = options.walk.is_some();
    let seconds = match transport {
        _ if is_walk => walk_s,
        Transport::Udp => UDP_S,
        Transport::Tcp(_) | Transport::Write => LIMIT.as_secs_f64(),
    };
    let bytes = if is_walk {
        u64::MAX
    } else {
        megabytes * 1_000_000
    };
    let echo_port = PORT + 1;
    let echo = link.traffic(Side::B, &["echo", "--port", &echo_port.to_string()])?;
    let to = format!("{}:{echo_port}", ipv4(Side::B));
    let ping_s = seconds.to_string();
    let ping = link.traffic(
        Side::A,
        &["ping", "--to", &to, "--seconds", &ping_s, "--apart", "0.05"],
    )?;
    let began = Instant::now();
    let mut over_time = Vec::new();
    let mut sample = thread::scope(|scope| {
        let flow = scope.spawn(|| flow(&link, airdma, transport, bytes, seconds));
        while !flow.is_finished() {
            thread::sleep(LOOK.min(Duration::from_millis(50)));
            if began.elapsed().as_secs_f64() > LOOK.as_secs_f64() * (over_time.len() + 1) as f64 {
                let at = Duration::from_secs_f64(link.status().up_s);
                let rate = plan.profile.goodput_mbit(plan.signal.snr_db(at));
                over_time.push([link.status().directions[0].mbit, rate]);
            }
        }
        match flow.join() {
            Ok(flow) => flow.unwrap_or_else(|error| Sample {
                error: Some(error.to_string()),
                ..Sample::default()
            }),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    sample.over_time = over_time;
    // The link's own count is half a second old.
    thread::sleep(LOOK + Duration::from_millis(50));
    let back = &link.status().directions[1];
    drop(echo);
    // It ends when nobody answers.
    let pinged = ping.found().unwrap_or_default();
    let mut times = pinged.round_trips_ms.clone();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied();
    sample.ping_ms = [at(0.5).unwrap_or(f64::NAN), at(0.95).unwrap_or(f64::NAN)];
    let answers = (back.delivered + back.lost).saturating_sub(pinged.packets);
    sample.answers_per_mb = answers as f64 * 1e6 / sample.bytes.max(1.0);
    Ok(sample)
}

/// The bytes, from A to B.
fn flow(
    link: &Link,
    airdma: &Path,
    transport: Transport,
    bytes: u64,
    seconds: f64,
) -> Result<Sample, airdma_link::LinkError> {
    let (port, to, seconds) = (PORT.to_string(), target(), seconds.to_string());
    match transport {
        Transport::Udp => {
            let receive = ["udp-receive", "--port", &port];
            let send = ["udp-send", "--to", &to, "--seconds", &seconds];
            let [sent, came] = link.flow(&receive, &send)?;
            let mut sample = of(&sent, &came);
            sample.mbit = came.best_mbit(SECOND_BINS);
            Ok(sample)
        }
        Transport::Tcp(congestion) => {
            let receive = ["tcp-receive", "--port", &port];
            let bytes = bytes.to_string();
            let send = [
                "tcp-send",
                "--to",
                &to,
                "--seconds",
                &seconds,
                "--bytes",
                &bytes,
                "--congestion",
                congestion,
            ];
            let [sent, came] = link.flow(&receive, &send)?;
            Ok(of(&sent, &came))
        }
        Transport::Write => write(link, airdma, bytes, &seconds),
    }
}

fn of(sent: &Found, came: &Found) -> Sample {
    Sample {
        mbit: came.mbit(),
        bytes: came.bytes as f64,
        seconds: came.seconds,
        cpu_s_per_gb: (sent.cpu_s + came.cpu_s) / (came.bytes.max(1) as f64 / 1e9),
        ..Sample::default()
    }
}

/// perftest's WRITE of 64 KiB: so many, or for so long.
fn write(
    link: &Link,
    airdma: &Path,
    bytes: u64,
    seconds: &str,
) -> Result<Sample, airdma_link::LinkError> {
    let airdma = airdma.to_string_lossy();
    let size = MESSAGE_BYTES.to_string();
    let count = bytes.div_ceil(MESSAGE_BYTES).to_string();
    let whole = seconds.split('.').next().unwrap_or("10").to_owned();
    let mut words = vec!["run", "--", "ib_write_bw", "--report_gbits", "-s", &size];
    match bytes {
        u64::MAX => words.extend(["-D", &whole]),
        _ => words.extend(["-n", &count]),
    }
    let server: Running = link.start(Side::B, &airdma, &words)?;
    server.listens(PERFTEST_PORT);
    let host = ipv4(Side::B).to_string();
    words.push(&host);
    let limit = LIMIT + Duration::from_secs(30);
    let client: Ended = link.start(Side::A, &airdma, &words)?.ended(limit)?;
    let server: Ended = server.ended(limit)?;
    let failed = |what: &str| airdma_link::LinkError::Asked(format!("ib_write_bw: {what}"));
    // "65536 1000 0.34 0.26 0.000503": size, count, peak, mean in Gb/s, millions a second.
    let row = client.text.lines().find_map(|line| {
        let numbers: Vec<f64> = line
            .split_ascii_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        (numbers.len() == 5).then_some(numbers)
    });
    let row = row.ok_or_else(|| failed(client.text.lines().last().unwrap_or("no table")))?;
    let (moved, mbit) = (row[0] * row[1], row[3] * 1e3);
    Ok(Sample {
        mbit,
        bytes: moved,
        seconds: moved * 8.0 / 1e6 / mbit.max(1e-9),
        cpu_s_per_gb: (client.cpu_s + server.cpu_s) / (moved.max(1.0) / 1e9),
        ..Sample::default()
    })
}

/// The median of what was measured, if anything was.
fn median(case: &Case, value: impl Fn(&Sample) -> f64) -> Option<f64> {
    let good = case.samples.iter().filter(|sample| sample.error.is_none());
    let mut values: Vec<f64> = good.map(value).filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn failures(case: &Case) -> usize {
    let failed = case.samples.iter().filter(|sample| sample.error.is_some());
    failed.count()
}

fn line(case: &Case) -> String {
    let mbit = median(case, |sample| sample.mbit)
        .map_or("failed".into(), |mbit| format!("{mbit:.0} Mb/s"));
    format!(
        "{:<32} {mbit}, {} of {} failed",
        format!("{}/{}/{}", case.signal, case.transport, case.megabytes),
        failures(case),
        case.samples.len()
    )
}

fn save(taken: &Taken, stem: &Path) -> anyhow::Result<()> {
    let file = PathBuf::from(format!("{}.json", stem.display()));
    let mut text = serde_json::to_string_pretty(taken)?;
    text.push('\n');
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

fn markdown(taken: &Taken) -> String {
    let mut text = String::from("# Transports on an emulated Wi-Fi link\n\n");
    let _ = writeln!(text, "`{}`, {}.\n", taken.command, taken.started);
    for (what, value) in &taken.machine {
        let _ = writeln!(text, "- {what}: {value}");
    }
    text.push_str(
        "\nMedians. The line rate is the best second of bare UDP on that link. A failed run is one that did not end well within a minute; \
         why is in the JSON file.\n",
    );
    for signal in &SIGNALS {
        let cases: Vec<&Case> = taken
            .cases
            .iter()
            .filter(|case| case.signal == signal.name)
            .collect();
        let Some(first) = cases.first() else { continue };
        let _ = writeln!(
            text,
            "\n## {}\n\n`airdma link up {}`\n",
            signal.name, first.link
        );
        let udp = cases.iter().find(|case| case.transport == "udp");
        let line = udp.and_then(|case| median(case, |sample| sample.mbit));
        let mut rows = vec![
            [
                "transport",
                "MB",
                "Mb/s",
                "of the line rate",
                "seconds",
                "CPU s/GB",
                "answers/MB",
                "ping ms",
                "ping 95 %",
                "failed",
            ]
            .map(String::from)
            .to_vec(),
        ];
        for case in cases {
            let cell = |value: Option<f64>, digits: usize| {
                value.map_or("-".into(), |value| format!("{value:.digits$}"))
            };
            let mbit = median(case, |sample| sample.mbit);
            let size = match (&*case.transport, signal.walk) {
                ("udp", _) | (_, Some(_)) => "-".into(),
                _ => case.megabytes.to_string(),
            };
            rows.push(vec![
                case.transport.clone(),
                size,
                cell(mbit, 0),
                cell(mbit.zip(line).map(|(mbit, line)| mbit / line), 2),
                cell(median(case, |sample| sample.seconds), 2),
                cell(median(case, |sample| sample.cpu_s_per_gb), 2),
                cell(median(case, |sample| sample.answers_per_mb), 0),
                cell(median(case, |sample| sample.ping_ms[0]), 1),
                cell(median(case, |sample| sample.ping_ms[1]), 1),
                format!("{} of {}", failures(case), case.samples.len()),
            ]);
        }
        let _ = writeln!(text, "{}", table::markdown(&rows, 1));
    }
    text
}

/// What arrived over time, by transport, and what the radio would have carried.
fn curves<'a>(
    cases: impl Iterator<Item = &'a Case>,
    signal: &str,
) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut curves = Vec::new();
    let points = |sample: &Sample, which: usize| -> Vec<(f64, f64)> {
        let rows = sample.over_time.iter().enumerate();
        rows.map(|(index, row)| (LOOK.as_secs_f64() * (index + 1) as f64, row[which]))
            .collect()
    };
    for case in cases.filter(|case| case.signal == signal) {
        if let Some(sample) = case.samples.first() {
            if curves.is_empty() {
                curves.push(("the radio, by the table".to_owned(), points(sample, 1)));
            }
            curves.push((case.transport.clone(), points(sample, 0)));
        }
    }
    curves
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(transport: &str, mbit: &[f64]) -> Case {
        let sample = |mbit: &f64| Sample {
            mbit: *mbit,
            error: (*mbit == 0.0).then(|| "no".into()),
            ping_ms: [f64::NAN; 2],
            ..Sample::default()
        };
        Case {
            signal: "good".into(),
            link: "--snr 35".into(),
            transport: transport.into(),
            megabytes: 10,
            samples: mbit.iter().map(sample).collect(),
        }
    }

    #[test]
    fn a_failed_run_is_no_sample_and_is_said() {
        let cases = vec![
            case("udp", &[600.0]),
            case("tcp_cubic", &[300.0, 0.0, 200.0, 400.0]),
            case("airdma_write", &[0.0]),
        ];
        let taken = Taken {
            format: 1,
            command: "airdma bench wireless".into(),
            started: "now".into(),
            machine: Default::default(),
            cases,
        };
        let page = markdown(&taken);
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
        assert!(
            rows[3].contains(" 300 ") && rows[3].contains("0.50") && rows[3].contains("1 of 4"),
            "{page}"
        );
        assert!(rows[4].contains("1 of 1"), "{page}");
    }

    #[test]
    fn signals_can_be() {
        for signal in &SIGNALS {
            signal.options("wifi5-80", 1).plan().unwrap();
        }
    }
}
