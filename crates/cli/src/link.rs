//! `airdma link`: an emulated Wi-Fi link between two hosts.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use airdma_link::calibrate::{Calibration, SECTIONS};
use airdma_link::{
    DirectionStatus, Folder, Joined, Options, Place, Profile, READY, Record, Side, Signal, Status,
    Walk,
};
use anyhow::{Context, bail};

mod controller;
mod traffic;

use controller::{ControllerOptions, NicOptions};
use traffic::{TrafficOptions, traffic};

pub const EXAMPLES: &str = "\
Examples:
  airdma link up --profile wifi5-80
  airdma link exec B -- iperf3 -s -D
  airdma link exec A -- iperf3 -c 10.78.0.2
  airdma link status --watch
  airdma link down
      TCP over 80 MHz of Wi-Fi 5; A is 10.78.0.1 and fd78::1, B is 10.78.0.2 and fd78::2

  airdma link up --name hall --profile wifi6-80 --walk away --seed 3 --stations 4
      somebody walks away, among four other stations

  airdma link profiles wifi6-80 > mine.toml; airdma link up --profile mine.toml --snr 18
      a radio of your own";

#[derive(clap::Subcommand)]
pub enum LinkCommand {
    /// Make a link between two new hosts, A and B; it stays until `down`.
    ///
    /// The hosts are network namespaces, made without root (in a user namespace), with root also
    /// known to `ip netns` as NAME-a and NAME-b. A process in the background drives the link.
    Up(UpOptions),
    /// Run a command on host A or B.
    ///
    /// It finds the address of the other host in AIRDMA_LINK_PEER. Exits as the command does, with
    /// 127 if it is not found.
    Exec {
        /// A or B
        #[arg(value_parser = parse_side)]
        host: Side,
        /// Name of the link
        #[arg(long, value_name = "NAME", default_value = NAME)]
        name: String,
        /// The command and its arguments.
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "CMD"
        )]
        command: Vec<OsString>,
    },
    /// Print the state of links: rate, airtime by use, queue, retries, loss
    Status {
        /// Name of the link [default: all]
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Same as NAME
        #[arg(long = "name", value_name = "NAME", conflicts_with = "name")]
        named: Option<String>,
        /// Repeat every half second, until Ctrl-C
        #[arg(short, long)]
        watch: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// End a link and the programs on it, and leave nothing behind
    Down {
        /// Name of the link
        #[arg(value_name = "NAME", default_value = NAME)]
        name: String,
        /// Same as NAME
        #[arg(long = "name", value_name = "NAME", conflicts_with_all = ["name", "all"])]
        named: Option<String>,
        /// All links of this user, and the remains of those that crashed
        #[arg(long)]
        all: bool,
    },
    /// List the built-in profiles, or print one as a template
    Profiles {
        /// Profile to print
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Print the SNR over time of a walking station, as a trace for --trace
    Walk {
        /// toward, away or random.
        #[arg(value_parser = parse_walk)]
        walk: Walk,
        /// Profile whose path loss and noise apply
        #[arg(long, value_name = "NAME", default_value = "wifi5-80")]
        profile: String,
        /// Seed: another walk for each
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
    },
    /// Measure links against their targets, and print a page (Markdown).
    ///
    /// UDP against the analytic table, TCP's share, the cost of acknowledgements, round trips under
    /// load, loss by signal, how fast throughput changes, the cost of the emulation. For an
    /// otherwise idle machine; takes some ten minutes.
    Calibrate {
        /// Only these sections: goodput, tcp, acks, delay, loss, changes, cpu
        #[arg(long, value_name = "SECTION", value_delimiter = ',')]
        only: Vec<String>,
        /// Length of each flow, in seconds
        #[arg(long, value_name = "S", default_value_t = 5.0)]
        seconds: f64,
        /// Samples of each measurement
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
        runs: u32,
    },
    /// Forward frames between a plain RoCEv2 host and a radio, so that no queue overflows: in the
    /// foreground, until Ctrl-C.
    ///
    /// RoCE waits here and goes to the radio as fast as the radio carries it; all else goes first.
    /// When too much waits, the host is asked to stop by priority flow control (IEEE 802.1Qbb).
    /// Needs CAP_NET_RAW and CAP_NET_ADMIN.
    Controller(ControllerOptions),
    /// A NIC that honours priority flow control, for tests of `controller`.
    #[command(hide = true)]
    Nic(NicOptions),
    /// One end of a measurement.
    #[command(hide = true)]
    Traffic(TrafficOptions),
    /// The process that drives a link.
    #[command(hide = true)]
    Serve {
        #[arg(long)]
        name: String,
        #[arg(long)]
        options: String,
    },
}

const NAME: &str = "air";

#[derive(clap::Args)]
pub struct UpOptions {
    #[command(flatten)]
    link: LinkOptions,
    /// Name of the link
    #[arg(long, value_name = "NAME", default_value = NAME)]
    name: String,
    /// Connect two existing interfaces that can reach each other, instead of two new hosts. Each is
    /// INTERFACE, NETNS:INTERFACE (of `ip netns`) or PROCESS:INTERFACE. What they send is queued,
    /// what they receive is lost. Needs CAP_NET_ADMIN over them; the queues are removed with the
    /// link
    #[arg(long, value_name = "A,B", conflicts_with = "plain")]
    between: Option<String>,
    /// Stay in the foreground, print the state, and end the link on Ctrl-C
    #[arg(short, long)]
    foreground: bool,
}

/// Properties of a link.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("signal").args(["snr", "distance", "trace", "walk"])))]
pub struct LinkOptions {
    /// wifi4-40, wifi5-80, wifi5-160, wifi6-80, wifi6-160, wifi7-320, or a file of your own
    /// (FILE.toml).
    #[arg(long, value_name = "NAME", default_value = "wifi5-80")]
    profile: String,
    /// Signal to noise, in dB [default: the profile's, 35].
    #[arg(long, value_name = "DB", allow_hyphen_values = true)]
    snr: Option<f64>,
    /// Signal to noise at this distance, in metres.
    #[arg(long, value_name = "M", allow_hyphen_values = true)]
    distance: Option<f64>,
    /// Signal to noise, or rate, over time: CSV below a line "time_s,snr_db" or "time_s,rate_mbit".
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// A walking station: toward, away or random
    #[arg(long, value_name = "HOW", value_parser = parse_walk)]
    walk: Option<Walk>,
    /// Number of other stations on the channel, each with its own bursts
    #[arg(long, value_name = "N", default_value_t = 0)]
    stations: usize,
    /// Probability of a packet's loss, in addition to the MAC's: 0 to 1
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.0,
        allow_hyphen_values = true
    )]
    loss: f64,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Use one scheme instead of rate control
    #[arg(long, value_name = "N")]
    mcs: Option<u8>,
    /// No radio: the bare veth pair, for comparison
    #[arg(long)]
    plain: bool,
}

impl LinkOptions {
    /// The options of the library.
    pub fn options(self) -> Options {
        Options {
            profile: self.profile,
            snr: self.snr,
            distance: self.distance,
            trace: self.trace,
            walk: self.walk,
            stations: self.stations,
            loss: self.loss,
            seed: self.seed,
            mcs: self.mcs,
            plain: self.plain,
            whole: false,
            between: None,
        }
    }
}

fn parse_side(word: &str) -> Result<Side, String> {
    Side::parse(word).ok_or_else(|| "a host is A or B".into())
}

fn parse_walk(word: &str) -> Result<Walk, String> {
    match word {
        "toward" => Ok(Walk::Toward),
        "away" => Ok(Walk::Away),
        "random" => Ok(Walk::Random),
        _ => Err("one walks toward, away or random".into()),
    }
}

/// Runs a subcommand.
pub fn link(command: LinkCommand) -> anyhow::Result<ExitCode> {
    match command {
        LinkCommand::Up(options) => up(options),
        LinkCommand::Exec {
            host,
            name,
            command,
        } => exec(host, &name, &command),
        LinkCommand::Status {
            name,
            named,
            watch,
            json,
        } => status(name.or(named).as_deref(), watch, json),
        LinkCommand::Down { name, named, all } => down(named.as_deref().unwrap_or(&name), all),
        LinkCommand::Profiles { name } => profiles(name.as_deref()),
        LinkCommand::Walk {
            walk,
            profile,
            seed,
        } => {
            let profile = Profile::find(&profile)?;
            write!(io::stdout(), "{}", Signal::walk(walk, &profile, seed).csv())?;
            Ok(ExitCode::SUCCESS)
        }
        LinkCommand::Calibrate {
            only,
            seconds,
            runs,
        } => calibrate(&only, seconds, runs as usize),
        LinkCommand::Controller(options) => controller::run(&options),
        LinkCommand::Nic(options) => controller::nic(&options),
        LinkCommand::Traffic(options) => traffic(options),
        LinkCommand::Serve { name, options } => serve(&name, &options),
    }
}

fn up(up: UpOptions) -> anyhow::Result<ExitCode> {
    let folder = Folder::of(&up.name)?;
    let mut options = up.link.options();
    if let Some(places) = &up.between {
        let two = places.split_once(',');
        let (a, b) = two.context("--between wants two interfaces with a comma between")?;
        options.between = Some([Place::parse(a)?, Place::parse(b)?]);
    }
    if up.foreground {
        let watch = io::stdout().is_terminal();
        let ready = |record: &Record| {
            let _ = print_addresses(record);
        };
        airdma_link::serve(&folder, &options, ready, |status| {
            if watch {
                let _ = writeln!(io::stdout(), "{}", in_words(status));
            }
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let airdma = std::env::current_exe().context("finding this binary")?;
    print_addresses(&airdma_link::start(&airdma, &folder, &options, false)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Drives a link; prints on standard output that it is up, or why not, and then nothing.
fn serve(name: &str, options: &str) -> anyhow::Result<ExitCode> {
    let folder = Folder::of(name)?;
    let options: Options = serde_json::from_str(options)?;
    let ready = |_: &Record| {
        let _ = write!(io::stdout(), "{READY}");
        let _ = io::stdout().flush();
        silence();
    };
    match airdma_link::serve(&folder, &options, ready, |_| {}) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            writeln!(io::stdout(), "{error}")?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Closes standard output, so that its reader sees the end, and leaves the working directory.
fn silence() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        // SAFETY: both descriptors are open.
        unsafe { libc::dup2(null.as_raw_fd(), libc::STDOUT_FILENO) };
    }
    let _ = std::env::set_current_dir("/");
}

fn print_addresses(record: &Record) -> io::Result<()> {
    let mut out = io::stdout();
    let [a, b] = &record.addresses;
    let name = if record.name == NAME {
        String::new()
    } else {
        format!(" --name {}", record.name)
    };
    writeln!(out, "{} is up: {}", record.name, record.words)?;
    if record.given.is_some() {
        return Ok(());
    }
    writeln!(out, "  A {a}, B {b}, interface {}", airdma_link::INTERFACE)?;
    if let Some([a, b]) = &record.names {
        writeln!(out, "  ip netns: {a}, {b}")?;
    }
    writeln!(out, "  airdma link exec A{name} -- ping -c 3 {b}")
}

fn exec(host: Side, name: &str, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let folder = Folder::of(name)?;
    let record = found(&folder)?;
    let joined = Joined::new(&record, host)?;
    let Some((program, arguments)) = command.split_first() else {
        bail!("no command");
    };
    let error = Command::new(program)
        .args(arguments)
        .envs(joined.variables)
        .exec();
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let code = if is_missing { 127 } else { 126 };
    crate::warn(&format!("{}: {error}", program.to_string_lossy()));
    Ok(ExitCode::from(code))
}

/// The record of a link that is up.
fn found(folder: &Folder) -> anyhow::Result<Record> {
    let name = folder.name();
    match folder.record() {
        Some(record) if record.is_up() => Ok(record),
        Some(_) => bail!("the link {name} has crashed: airdma link down {name}"),
        None => match folder.end() {
            Some(reason) => bail!("the link {name} has ended: {reason}"),
            None => bail!("no link called {name} is up: airdma link up --name {name}"),
        },
    }
}

fn status(name: Option<&str>, watch: bool, json: bool) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout();
    loop {
        let folders = match name {
            Some(name) => {
                let folder = Folder::of(name)?;
                found(&folder)?;
                vec![folder]
            }
            None => Folder::all()?,
        };
        if folders.is_empty() && !json {
            writeln!(out, "no link is up")?;
        }
        let mut all = serde_json::Map::new();
        for folder in folders {
            let Some(record) = folder.record() else {
                continue;
            };
            if !record.is_up() {
                writeln!(
                    out,
                    "{}: crashed; airdma link down {}",
                    record.name, record.name
                )?;
                continue;
            }
            let status = folder.status().unwrap_or_default();
            if json {
                all.insert(record.name, serde_json::to_value(status)?);
            } else {
                writeln!(
                    out,
                    "{}: {}\n{}",
                    record.name,
                    record.words,
                    in_words(&status)
                )?;
            }
        }
        if json {
            writeln!(out, "{}", serde_json::Value::Object(all))?;
        }
        if !watch {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(Duration::from_millis(500));
    }
}

fn in_words(status: &Status) -> String {
    let [a, b, others, collided] = status.airtime.map(|share| share * 100.0);
    let mut words = format!(
        "  {:.1} s up, SNR {:.1} dB; airtime A {a:.0} %, B {b:.0} %, others {others:.0} %, in collisions {collided:.0} %; \
         controller {:.1} % of a core, at most {:.1} ms late",
        status.up_s,
        status.snr_db,
        status.cpu * 100.0,
        status.late_ms
    );
    for (way, direction) in ["A to B", "B to A"].iter().zip(&status.directions) {
        words.push_str(&direction_in_words(way, direction));
    }
    words
}

fn direction_in_words(way: &str, direction: &DirectionStatus) -> String {
    let mcs = direction.mcs.map_or("-".into(), |mcs| mcs.to_string());
    format!(
        "\n  {way}: {:.1} Mb/s of {:.1}, MCS {mcs}, queue {} packets ({} KB), {} dropped by it; retries {:.1} %, \
         lost {} of {}, loss now {:.2} %",
        direction.mbit,
        direction.rate_mbit,
        direction.backlog_packets,
        direction.backlog_bytes / 1000,
        direction.dropped,
        direction.retries * 100.0,
        direction.lost,
        direction.lost + direction.delivered,
        direction.loss * 100.0
    )
}

fn down(name: &str, all: bool) -> anyhow::Result<ExitCode> {
    let folders = if all {
        Folder::all()?
    } else {
        let folder = Folder::of(name)?;
        if folder.record().is_none() {
            bail!("no link called {name} is up");
        }
        vec![folder]
    };
    let mut failed = false;
    for folder in folders {
        match airdma_link::down(&folder) {
            Ok(programs) => writeln!(
                io::stdout(),
                "{} is down, and {programs} programs on it",
                folder.name()
            )?,
            Err(error) => {
                crate::warn(&error.to_string());
                failed = true;
            }
        }
    }
    Ok(ExitCode::from(u8::from(failed)))
}

fn profiles(name: Option<&str>) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout();
    match name {
        None => {
            for name in Profile::names() {
                let text = Profile::text(name).unwrap_or_default();
                let about = text.lines().next().unwrap_or_default();
                writeln!(out, "{name:<10} {}", about.trim_start_matches("# "))?;
            }
        }
        Some(name) => match Profile::text(name) {
            Some(text) => write!(out, "{text}")?,
            None => {
                Profile::find(name)?;
                bail!("{name} is a file of yours");
            }
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn calibrate(only: &[String], seconds: f64, runs: usize) -> anyhow::Result<ExitCode> {
    if !(2.0..=600.0).contains(&seconds) {
        bail!("--seconds {seconds}: it must be between 2 and 600");
    }
    let airdma = std::env::current_exe().context("finding this binary")?;
    let calibration = Calibration {
        airdma: &airdma,
        seconds,
        runs,
    };
    let all = SECTIONS.map(String::from);
    let sections = if only.is_empty() { &all[..] } else { only };
    for section in sections {
        writeln!(io::stdout(), "{}", calibration.section(section)?)?;
        io::stdout().flush()?;
    }
    Ok(ExitCode::SUCCESS)
}
