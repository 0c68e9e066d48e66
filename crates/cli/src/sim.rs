//! `airdma sim`: random worlds in virtual time, judged by the reference model; and details of one
//! of them.

mod air;
mod congestion;
mod records;

use airdma_sim::wifi::report;
use airdma_sim::wifi::traffic::Acks;
use airdma_worlds::{Counts, Outcome, Plan, SLOW, Soak, plan_of, run, shrink, soak};
use anyhow::Context;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::link::LinkOptions;

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("world").args(["seed", "bytes"])), args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    part: Option<Part>,
    /// Run the world of this seed, and print its result
    #[arg(long, value_name = "N", conflicts_with_all = ["worlds", "hours"])]
    seed: Option<u64>,
    /// Run the world of these bytes, as found by the fuzz target `world`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["worlds", "hours"])]
    bytes: Option<PathBuf>,
    /// With one world: print the event log, and write it and a capture of each host's packets to a
    /// folder
    #[arg(long, requires = "world")]
    trace: bool,
    /// With one world: if it fails, remove what is not needed for the failure, and print the rest
    #[arg(long, requires = "world")]
    shrink: bool,
    /// Folder for --trace [default: airdma-sim-SEED, or airdma-sim-NAME after the file]
    #[arg(long, value_name = "DIR", requires = "trace")]
    out: Option<PathBuf>,
    /// Number of worlds to run
    #[arg(long, value_name = "N", default_value_t = 1000)]
    worlds: u64,
    /// Seed of the first world
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Run worlds for this many hours instead
    #[arg(long, value_name = "H", conflicts_with = "worlds")]
    hours: Option<f64>,
    /// Number of threads [default: the number of processors]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print the Wi-Fi model's ideal goodput next to the figures that it is calibrated with, and
    /// the cost of acknowledgements
    #[arg(long, conflicts_with_all = ["world", "worlds", "hours"])]
    wifi: bool,
    /// Print the counters as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Part {
    /// A link of `airdma link` in virtual time: the same profiles, signals and stations, repeatable
    /// from a seed.
    ///
    /// A sends packets of 1,500 bytes as fast as possible, B answers as configured. Prints a row of
    /// CSV for each interval.
    Link(TwinOptions),
    /// Transfers between two devices on simulated Wi-Fi, by plain RoCEv2 and in air mode: a table
    /// in Markdown, the same on every machine.
    Air(TableOptions),
    /// Devices that share a marking queue, with DCQCN, DCTCP and neither: a table as above
    Congestion(TableOptions),
    /// Write-Records over a network that loses packets: a table as above
    Records(TableOptions),
}

#[derive(clap::Args)]
struct TableOptions {
    /// Print nothing, and fail if this file does not hold the table
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
}

/// Prints the table of this part, or compares it.
fn table(options: &TableOptions, part: &str, table: &str) -> anyhow::Result<ExitCode> {
    let Some(file) = &options.check else {
        write!(io::stdout(), "{table}")?;
        return Ok(ExitCode::SUCCESS);
    };
    let kept = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    let mut rows = kept.lines().zip(table.lines());
    if let Some((kept, now)) = rows.find(|(kept, now)| kept != now) {
        let file = file.display();
        eprintln!(
            "{file} says:\n{kept}\nbut it is now:\n{now}\nwrite it anew: airdma sim {part} > {file}"
        );
        return Ok(ExitCode::FAILURE);
    }
    anyhow::ensure!(
        kept == table,
        "{} is longer or shorter than it is now",
        file.display()
    );
    Ok(ExitCode::SUCCESS)
}

#[derive(clap::Args)]
struct TwinOptions {
    #[command(flatten)]
    link: LinkOptions,
    /// Virtual seconds to run [default: as long as the trace or walk, or 10]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Length of a row's interval in seconds: a multiple of 0.01
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    every: f64,
    /// B answers every N-th packet with 52 bytes; 0 for no answers
    #[arg(long, value_name = "N", default_value_t = 0)]
    acks: u64,
    /// Packets that A keeps in its queue [default: the profile's]; TCP keeps about 1 ms
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    queue: Option<u32>,
}

fn twin(options: TwinOptions) -> anyhow::Result<ExitCode> {
    let plan = options.link.options().plan()?;
    let known = plan.signal.duration().as_secs_f64();
    let usual = if known > 0.0 { known } else { 10.0 };
    let time = |seconds: f64, what: &str| {
        let time = Duration::try_from_secs_f64(seconds).ok();
        let time = time.filter(|time| (0.01..=1e6).contains(&time.as_secs_f64()));
        time.with_context(|| format!("{what} {seconds}: it must be between 0.01 and 1,000,000"))
    };
    let duration = time(options.seconds.unwrap_or(usual), "--seconds")?;
    let every = time(options.every, "--every")?;
    let acks = match options.acks {
        0 => Acks::None,
        packets => Acks::Packets(packets),
    };
    let queue = options.queue.map(|packets| packets as usize);
    let rows = airdma_link::twin::run(&plan, acks, queue, every, duration);
    write!(io::stdout(), "{}", airdma_link::twin::csv(&rows))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs worlds. Exits with 0 if the model agreed with all of them, with 1 if not.
pub fn sim(mut options: Options) -> anyhow::Result<ExitCode> {
    match options.part.take() {
        Some(Part::Link(twin_options)) => return twin(twin_options),
        Some(Part::Air(options)) => return table(&options, "air", &air::table()?),
        Some(Part::Congestion(options)) => {
            return table(&options, "congestion", &congestion::table()?);
        }
        Some(Part::Records(options)) => return table(&options, "records", &records::table()?),
        None => {}
    }
    let options = &options;
    if options.seed.is_none() && options.bytes.is_none() {
        // A world that panics is reported like any other failure.
        std::panic::set_hook(Box::new(|_| {}));
    }
    if options.wifi {
        return wifi();
    }
    if let Some(seed) = options.seed {
        return one(
            &format!("seed={seed}"),
            &seed.to_string(),
            plan_of(seed),
            options,
        );
    }
    if let Some(file) = &options.bytes {
        let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        return one(
            &file.display().to_string(),
            &name,
            Plan::decode(&bytes),
            options,
        );
    }
    many(options)
}

fn wifi() -> anyhow::Result<ExitCode> {
    let mut out = io::stdout();
    writeln!(out, "{}\n{}", report::calibration(), report::ack_cost())?;
    Ok(ExitCode::SUCCESS)
}

fn many(options: &Options) -> anyhow::Result<ExitCode> {
    let hours = options
        .hours
        .map(|hours| Duration::try_from_secs_f64(hours * 3600.0))
        .transpose();
    let hours = hours.context("--hours wants a number of hours that is not negative")?;
    let threads = options
        .threads
        .or_else(|| Some(std::thread::available_parallelism().ok()?.get()));
    let work = Soak {
        first: options.first,
        worlds: if hours.is_some() {
            u64::MAX
        } else {
            options.worlds
        },
        time: hours,
        threads: threads.unwrap_or(1),
        failures_max: 20,
    };
    let each = |done| {
        if hours.is_some() && done % 100_000 == 0 {
            let _ = writeln!(io::stderr(), "{done} worlds");
        }
    };
    let slow = |seed| {
        let seconds = SLOW.as_secs();
        let _ = writeln!(io::stderr(), "seed={seed} runs for more than {seconds} s");
    };
    let report = soak(&work, each, slow);
    let mut out = io::stdout();
    for (seed, why) in &report.failures {
        writeln!(out, "seed={seed} {why}")?;
        writeln!(out, "  replay: airdma sim --seed {seed} --trace")?;
    }
    if options.json {
        let mut counts = counted(&report.counts);
        counts["failures"] = report.failures.len().into();
        let failed: Vec<u64> = report.failures.iter().map(|(seed, _)| *seed).collect();
        counts["failed_seeds"] = failed.into();
        counts["seconds"] = report.time.as_secs_f64().into();
        writeln!(out, "{counts}")?;
    } else {
        let rate = report.counts.worlds as f64 / report.time.as_secs_f64().max(1e-9);
        writeln!(out, "{}", in_words(&report.counts))?;
        writeln!(
            out,
            "{} failed; {:.1} s, {rate:.0} worlds a second",
            report.failures.len(),
            report.time.as_secs_f64()
        )?;
    }
    Ok(code(report.failures.is_empty()))
}

fn code(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn counted(counts: &Counts) -> serde_json::Value {
    serde_json::json!({
        "worlds": counts.worlds,
        "actions": counts.actions,
        "requests": counts.requests,
        "request_bytes": counts.bytes,
        "receives": counts.receives,
        "completions": counts.completions,
        "failed_completions": counts.failures,
        "events": counts.events,
        "packets": counts.packets,
        "packets_lost_or_damaged": counts.lost,
        "packets_delivered_damaged": counts.damaged,
        "hosts_killed": counts.kills,
        "datagrams_forged": counts.forged,
        "packets_in_rings": counts.in_rings,
        "rings_damaged": counts.damaged_rings,
    })
}

fn in_words(counts: &Counts) -> String {
    format!(
        "{} worlds: {} actions, {} requests of {} bytes, {} receives, {} completions ({} of failure), {} events, {} packets, {} of them lost or damaged, {} hosts killed, {} datagrams forged, {} packets between processes of one host, whose rings were damaged {} times",
        counts.worlds,
        counts.actions,
        counts.requests,
        counts.bytes,
        counts.receives,
        counts.completions,
        counts.failures,
        counts.events,
        counts.packets,
        counts.lost,
        counts.kills,
        counts.forged,
        counts.in_rings,
        counts.damaged_rings
    )
}

/// Runs one world, with a description and a name for files.
fn one(words: &str, name: &str, plan: Plan, options: &Options) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout();
    let outcome = run(plan.clone(), options.trace);
    if options.trace {
        let log = log_of(&plan, &outcome);
        let folder = options
            .out
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("airdma-sim-{name}")));
        write_files(&folder, &log, &outcome)
            .with_context(|| format!("writing to {}", folder.display()))?;
        write!(out, "{log}")?;
        writeln!(
            out,
            "written to {}: events.log, and a capture of each host's packets",
            folder.display()
        )?;
    }
    writeln!(out, "{}", in_words(&outcome.counts))?;
    match &outcome.failure {
        None => writeln!(out, "{words} went as it should")?,
        Some(why) => writeln!(out, "{words} {why}")?,
    }
    if options.shrink && outcome.failure.is_some() {
        let small = shrink(&plan);
        let small = Plan {
            actions: small.actions,
            ..plan
        };
        let again = run(small.clone(), true);
        writeln!(out, "{} actions are enough:", small.actions.len())?;
        write!(out, "{}", log_of(&small, &again))?;
        writeln!(out, "{}", again.failure.unwrap_or_default())?;
    }
    Ok(code(outcome.failure.is_none()))
}

/// The plan, then all events in order of time.
fn log_of(plan: &Plan, outcome: &Outcome) -> String {
    let mut log = String::new();
    let Plan {
        seed,
        hosts,
        v6,
        careful,
        network,
        connections,
        actions,
        attacker,
        sealed,
        on_path,
        one_host,
        records,
    } = plan;
    let family = if *v6 { "IPv6" } else { "IPv4" };
    let faults = if *careful { "without" } else { "with" };
    let _ = writeln!(
        log,
        "{hosts} hosts, {family}, {faults} faults on purpose, chance from {seed:#x}, {network:?}"
    );
    for (index, connection) in connections.iter().enumerate() {
        let _ = writeln!(
            log,
            "ends {} and {}: {connection:?}",
            2 * index,
            2 * index + 1
        );
    }
    if let Some(attacker) = attacker {
        let _ = writeln!(log, "{attacker:?}");
    }
    if *sealed {
        let _ = writeln!(log, "sealed");
    }
    if let Some(on_path) = on_path {
        let _ = writeln!(log, "{on_path:?}");
    }
    if *one_host {
        let _ = writeln!(log, "hosts 0 and 1 are processes of one host");
    }
    if *records {
        let _ = writeln!(log, "with Write-Records");
    }
    let _ = writeln!(log, "{} actions", actions.len());
    for line in outcome.world.events() {
        let _ = writeln!(log, "{line}");
    }
    log
}

fn write_files(folder: &Path, log: &str, outcome: &Outcome) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("events.log"), log)?;
    for host in 0..outcome.world.hosts.len() {
        fs::write(
            folder.join(format!("host{host}.pcap")),
            outcome.world.network.captured_at(host),
        )?;
    }
    Ok(())
}
