//! `airdma bench wireless`: today's transports on an emulated Wi-Fi link, each alone on it, in turns.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use airdma_link::measure::{Link, PORT};
use airdma_link::{Options as LinkOptions, Side, Walk, ipv4};
use anyhow::{Context, ensure};
use regex::Regex;

use crate::{machine, plot};

mod taken;
mod transport;

use taken::{Beside, Case, LOOK, Sample, Taken, curves, line, markdown, middle, save};
use transport::{LIMIT, TRANSPORTS, Transport, flow};

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
/// How long the practical line rate is looked for.
const UDP_S: f64 = 4.0;
/// How long TCP is looked at beside others.
const BESIDE_S: f64 = 5.0;
const FOREGROUND: u16 = PORT + 2;

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
        beside: Vec::new(),
    };
    for transport in TRANSPORTS {
        if let Some(what) = transport.missing() {
            let name = transport.name();
            writeln!(
                io::stderr(),
                "airdma bench: {name} is left out: it needs {what}"
            )?;
        }
    }
    for signal in &SIGNALS {
        for &megabytes in &options.megabytes {
            let chosen = chosen(options, only.as_ref(), signal, megabytes);
            let cases = cases(&airdma, options, signal, megabytes, &chosen)?;
            taken.cases.extend(cases);
            save(&taken, &options.output)?;
        }
    }
    for transport in TRANSPORTS {
        let name = format!("beside/{}", transport.name());
        let chosen = only
            .as_ref()
            .map_or(options.peers, |only| only.is_match(&name));
        if chosen && transport != Transport::Rsync && transport.missing().is_none() {
            taken.beside.push(beside(&airdma, options, transport)?);
            save(&taken, &options.output)?;
        }
    }
    let is_empty = taken.cases.is_empty() && taken.beside.is_empty();
    ensure!(
        !is_empty,
        "no case has such a name (SIGNAL/TRANSPORT/MB, beside/TRANSPORT)"
    );
    write_page(&taken, options)?;
    Ok(ExitCode::SUCCESS)
}

/// What of a signal and a size is wanted, and can be.
fn chosen(
    options: &Wireless,
    only: Option<&Regex>,
    signal: &Signal,
    megabytes: u64,
) -> Vec<Transport> {
    let wanted = |transport: &Transport| {
        let name = format!("{}/{}/{megabytes}", signal.name, transport.name());
        let is_usual = !transport.is_peer() || options.peers;
        let is_wanted = only.map_or(is_usual, |only| only.is_match(&name));
        // The line rate and a walk have no size.
        let has_size = *transport != Transport::Udp && signal.walk.is_none();
        let is_new = has_size || options.megabytes.first() == Some(&megabytes);
        // A file has an end, a walk does not wait for it.
        let can_walk = signal.walk.is_none() || *transport != Transport::Rsync;
        is_wanted && is_new && can_walk && transport.missing().is_none()
    };
    TRANSPORTS.into_iter().filter(wanted).collect()
}

/// Measures them in turns, and says what was found.
fn cases(
    airdma: &Path,
    options: &Wireless,
    signal: &Signal,
    megabytes: u64,
    transports: &[Transport],
) -> anyhow::Result<Vec<Case>> {
    let empty = |transport: &Transport| Case {
        signal: signal.name.into(),
        link: signal.options(&options.profile, 1).words(),
        transport: transport.name().into(),
        megabytes,
        samples: Vec::new(),
    };
    let mut cases: Vec<Case> = transports.iter().map(empty).collect();
    let runs = if signal.walk.is_some() {
        1
    } else {
        options.runs
    };
    for run in 0..runs {
        let link = signal.options(&options.profile, u64::from(run) + 1);
        for (case, transport) in cases.iter_mut().zip(transports) {
            let sample = sample(airdma, &link, *transport, megabytes)?;
            case.samples.push(sample);
        }
    }
    for case in &cases {
        writeln!(io::stdout(), "{}", line(case))?;
    }
    Ok(cases)
}

fn write_page(taken: &Taken, options: &Wireless) -> anyhow::Result<()> {
    let page = PathBuf::from(format!("{}.md", options.output.display()));
    std::fs::write(&page, markdown(taken))
        .with_context(|| format!("writing {}", page.display()))?;
    writeln!(io::stdout(), "\nwrote {}", page.display())?;
    for signal in SIGNALS.iter().filter(|signal| signal.walk.is_some()) {
        let curves = curves(taken.cases.iter(), signal.name);
        if !curves.is_empty() {
            let title = format!(
                "{}, walking {}: what arrived, in Mb/s",
                options.profile, signal.name
            );
            let stem = PathBuf::from(format!("{}-{}", options.output.display(), signal.name));
            for file in plot::over_time(&stem, &title, &curves)? {
                writeln!(io::stdout(), "wrote {}", file.display())?;
            }
        }
    }
    Ok(())
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
        Transport::Tcp(_) | Transport::Write | Transport::Rsync => LIMIT.as_secs_f64(),
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
        let flow = scope.spawn(|| flow(&link, airdma, transport, bytes, seconds, PORT));
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

/// TCP CUBIC alone, and beside a transport, on links of their own.
fn beside(airdma: &Path, options: &Wireless, transport: Transport) -> anyhow::Result<Beside> {
    let mut found = Beside {
        transport: transport.name().into(),
        alone_mbit: Vec::new(),
        beside_mbit: Vec::new(),
        errors: Vec::new(),
    };
    for run in 0..options.runs {
        let good = SIGNALS[0].options(&options.profile, u64::from(run) + 1);
        let cubic = Transport::Tcp("cubic");
        let tcp = |link: &Link| flow(link, airdma, cubic, u64::MAX, BESIDE_S, FOREGROUND);
        let link = Link::new(airdma, &good)?;
        found.alone_mbit.push(tcp(&link)?.mbit);
        drop(link);
        let link = Link::new(airdma, &good)?;
        let longer = BESIDE_S + 1.0;
        let mbit = thread::scope(|scope| {
            let other = scope.spawn(|| flow(&link, airdma, transport, u64::MAX, longer, PORT));
            // It is in full swing when TCP comes.
            thread::sleep(LOOK);
            let mbit = tcp(&link).map(|sample| sample.mbit);
            match other.join() {
                Ok(other) => other.and(mbit),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        match mbit {
            Ok(mbit) => found.beside_mbit.push(mbit),
            // If one of the two does not survive, there is nothing to compare.
            Err(error) => found.errors.push(error.to_string()),
        }
    }
    let [alone, both] = [&found.alone_mbit, &found.beside_mbit];
    let [alone, both] = [alone, both].map(|runs| middle(runs.clone()).unwrap_or(f64::NAN));
    let name = format!("beside/{}", found.transport);
    writeln!(
        io::stdout(),
        "{name:<32} TCP CUBIC {both:.0} of {alone:.0} Mb/s"
    )?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_can_be() {
        for signal in &SIGNALS {
            signal.options("wifi5-80", 1).plan().unwrap();
        }
    }

    #[test]
    fn what_has_no_size_is_measured_once() {
        let options = Wireless {
            peers: true,
            only: None,
            megabytes: vec![10, 100],
            runs: 1,
            profile: "wifi5-80".into(),
            output: "x".into(),
        };
        let has_udp = |signal: usize, megabytes| {
            chosen(&options, None, &SIGNALS[signal], megabytes).contains(&Transport::Udp)
        };
        assert!(has_udp(0, 10) && !has_udp(0, 100));
        assert!(chosen(&options, None, &SIGNALS[6], 100).is_empty());
        let none = Regex::new("^fair/").unwrap();
        assert!(chosen(&options, Some(&none), &SIGNALS[0], 10).is_empty());
    }
}
