//! `airdma bench`, and its helper processes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use airdma_bench::{
    DAEMON, End, Files, ManyPairs, PartRuns, RECORDS, RecordsLoad, RecordsMode, SOCKETS, STREAMS,
    Stop, There,
};

pub const EXAMPLES: &str = "\
Examples:
  airdma bench --quick
      some minutes, to airdma-bench.json, .md, -veth-1500.svg, ...
  airdma bench --only 'bandwidth/veth-1500/write_bw' --runs 3
      WRITE by message size, and its peers
  airdma bench --only 'latency/.*/64$'
      latency of 64 B
  airdma bench --no-peers --only 'queue-pairs|idle-memory|connections'
      what concerns airdma alone

Figures: bandwidth (Gb/s by message size), latency (us), message-rate (millions a second), cpu (seconds of both
ends for 10^9 bytes), queue-pairs (Gb/s by their number), idle-memory (bytes of each), connections (a second).

Programs measured, and their Debian packages: perftest, iperf3, sockperf, ucx_perftest (ucx-utils), fi_pingpong
(libfabric-bin), cmtime (rdmacm-utils); nft (nftables) for the lossy link.";

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    part: Option<Part>,
    /// A few sizes, three samples of each, no large MTUs: some minutes in place of half an hour.
    #[arg(long)]
    quick: bool,
    /// Only cases whose name (FIGURE/LINK/SERIES/SIZE, see --list) matches, and the peers they are
    /// compared with.
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Leave out the peers, unless --only names them.
    #[arg(long)]
    no_peers: bool,
    /// Print the names of the cases and measure nothing.
    #[arg(long)]
    list: bool,
    /// Samples of each case [default: 5, with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Length of each bandwidth sample, in seconds.
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// The files to write: STEM.json, STEM.md, and pictures of each link (STEM-LINK.svg, .png).
    #[arg(
        long,
        value_name = "STEM",
        default_value = "airdma-bench",
        overrides_with = "output"
    )]
    output: PathBuf,
    /// Measure nothing: write the page and plots of this JSON file again, next to it.
    #[arg(long, value_name = "JSON", conflicts_with_all = ["quick", "only", "no_peers", "list", "runs", "seconds", "output"])]
    render: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
enum Part {
    /// Transports on an emulated Wi-Fi link (`airdma link`), each alone on it, in turns: goodput
    /// next to bare UDP, completion time, ping under load, CPU, answers.
    ///
    /// Signals: good (35 dB), fair (20), poor (10), loss of 0.1, 1 and 5 % at a good signal, walks
    /// away and toward; then what each leaves to a TCP flow next to it. Prints first how long it
    /// takes. Writes STEM.json after each run, and STEM.md and pictures (STEM-FIGURE.svg, .png) at
    /// the end.
    Wireless(WirelessOptions),
    /// Files by `airdma send` and `airdma recv`, scp, rsync, QUIC, and cat or tar through TCP, on a
    /// plain veth and on emulated Wi-Fi links.
    ///
    /// 1 GB, 10 MB, and 10,000 files of 4 KiB, from disk to disk; the contents are compared after
    /// each. scp and rsync need root. Writes STEM.json, after each run, and STEM.md and pictures
    /// (STEM-FIGURE.svg, .png) at the end.
    Files(FilesOptions),
    /// Write-Record (docs/records.md) next to UD SEND, RC SEND and RC WRITE on a veth: latency and
    /// bandwidth by message size, the same with packets lost, 1,000 sources, and reliable records
    /// to 64 destinations of which one dies.
    ///
    /// Figures: latency, bandwidth, queue-pairs, idle-memory, sources, source-memory, survivors.
    /// Links: veth-1500, and loss-0.1 to loss-5 (per cent, each packet alone). Writes STEM.json,
    /// and STEM.md and pictures (STEM-LINK.svg, .png) at the end.
    Records(PartOptions),
    /// Socket programs under `airdma sockets` on a veth, with the library at both ends, at one, and
    /// at none: iperf3, sockperf, nginx with wrk, redis, SIPp.
    ///
    /// Figures: bandwidth, cpu, latency, web, get, set, response, client-memory. Links: veth-1500,
    /// and lossy (0.1 %, each packet alone). Writes STEM.json and STEM.md.
    Sockets(PartOptions),
    /// Streams of frames on a veth, by credits (`airdma stream`), by the status bytes of a paper,
    /// and by sliding windows: latency, throughput, control delay, a block that is kept, cameras.
    ///
    /// Figures: control, one-way, bandwidth, kept, cameras; from them CPU and memory. Wants
    /// airdma-stream-peer beside airdma. Writes STEM.json, and STEM.md and pictures
    /// (STEM-veth-1500*.svg, .png) at the end.
    Streams(PartOptions),
    /// perftest with `airdma daemon` at both ends beside the same in a process on a veth: bandwidth
    /// of 64 KiB, latency of 64 B, and WRITEs to a program that is stopped meanwhile.
    ///
    /// Figures: bandwidth, latency, stopped. Link: veth-1500. Writes STEM.json and STEM.md.
    Daemon(PartOptions),
}

#[derive(clap::Args)]
struct PartOptions {
    /// A few sizes, once: a minute.
    #[arg(long)]
    quick: bool,
    /// Only cases whose name (FIGURE/LINK/SERIES/SIZE, see --list) matches, and what they are
    /// compared with.
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Print the names of the cases and measure nothing.
    #[arg(long)]
    list: bool,
    /// Samples of each [default: 3, with --quick 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// The files to write [default: airdma-records, airdma-sockets, airdma-streams or
    /// airdma-daemon].
    #[arg(long, value_name = "STEM")]
    output: Option<PathBuf>,
    /// Measure the chosen cases and keep the others in STEM.json.
    #[arg(long)]
    merge: bool,
    /// Measure nothing: write the page and pictures of this JSON file again, next to it.
    #[arg(long, value_name = "JSON", conflicts_with_all = ["quick", "only", "list", "runs", "merge"])]
    render: Option<PathBuf>,
}

#[derive(clap::Args)]
struct FilesOptions {
    /// A small file and a hundred smaller ones on a veth, once: some seconds, to check that
    /// everything works.
    #[arg(long)]
    quick: bool,
    /// Only cases whose name (LINK/PEER/FILES, see --list) matches: 'veth/', 'airdma/10MB'.
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Print the names of the cases and measure nothing.
    #[arg(long)]
    list: bool,
    /// Samples of each [default: 3, with --quick 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Directory for both copies of the files, on the disk to be measured.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// The files to write.
    #[arg(long, value_name = "STEM", default_value = "airdma-files")]
    output: PathBuf,
    /// Measure the chosen cases and keep the others in STEM.json.
    #[arg(long)]
    merge: bool,
    /// Measure nothing: write the page and pictures of this JSON file again, next to it.
    #[arg(long, value_name = "JSON", conflicts_with_all = ["quick", "only", "list", "runs", "merge"])]
    render: Option<PathBuf>,
}

#[derive(clap::Args)]
struct WirelessOptions {
    /// Also measure the kernel's TCP (CUBIC and BBR), QUIC (quinn, CUBIC and BBR), and scp and
    /// rsync over ssh (as root).
    #[arg(long)]
    peers: bool,
    /// Only cases whose name (SIGNAL/TRANSPORT/MB, beside/TRANSPORT, messages/TRANSPORT/BYTES, see
    /// --list) matches: 'good/.*', 'airdma_write'.
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Print the names and durations of the cases and measure nothing.
    #[arg(long)]
    list: bool,
    /// Sizes in MB, separated by commas [default: 10, 100 and once 1000 at a good signal, 10 and
    /// 100 at a fair and a poor one, 10 with loss].
    #[arg(long, value_name = "MB", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=100_000))]
    megabytes: Vec<u64>,
    /// Samples of each [default: 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Profile of the radio: a name, or FILE.toml.
    #[arg(long, value_name = "NAME", default_value = "wifi5-80")]
    profile: String,
    /// The files to write.
    #[arg(long, value_name = "STEM", default_value = "airdma-wireless")]
    output: PathBuf,
    /// Resume an interrupted run: keep what STEM.json has, and measure what is missing.
    #[arg(long, conflicts_with = "merge")]
    resume: bool,
    /// Measure the chosen cases and keep the others in STEM.json.
    #[arg(long)]
    merge: bool,
    /// Measure nothing: write the page and pictures of this JSON file again, next to it.
    #[arg(long, value_name = "JSON", conflicts_with_all = ["peers", "only", "list", "megabytes", "runs", "resume", "merge"])]
    render: Option<PathBuf>,
}

/// Runs a benchmark.
pub fn bench(mut options: Options) -> anyhow::Result<ExitCode> {
    match options.part.take() {
        Some(Part::Wireless(options)) => return wireless(options),
        Some(Part::Files(options)) => {
            let runs = if options.quick { 1 } else { 3 };
            return airdma_bench::files(&Files {
                quick: options.quick,
                only: options.only,
                list: options.list,
                runs: options.runs.unwrap_or(runs),
                folder: options.folder,
                output: options.output,
                merge: options.merge,
                render: options.render,
            });
        }
        Some(Part::Records(options)) => {
            return airdma_bench::measure_part(&RECORDS, &part(options, "airdma-records"));
        }
        Some(Part::Sockets(options)) => {
            return airdma_bench::measure_part(&SOCKETS, &part(options, "airdma-sockets"));
        }
        Some(Part::Streams(options)) => {
            return airdma_bench::measure_part(&STREAMS, &part(options, "airdma-streams"));
        }
        Some(Part::Daemon(options)) => {
            return airdma_bench::measure_part(&DAEMON, &part(options, "airdma-daemon"));
        }
        None => (),
    }
    let runs = if options.quick { 3 } else { 5 };
    Ok(airdma_bench::bench(&airdma_bench::Options {
        quick: options.quick,
        only: options.only,
        peers: !options.no_peers,
        list: options.list,
        runs: options.runs.unwrap_or(runs),
        seconds: options.seconds,
        output: options.output,
        render: options.render,
        version: env!("CARGO_PKG_VERSION"),
    }))
}

fn part(options: PartOptions, output: &str) -> PartRuns {
    let runs = if options.quick { 1 } else { 3 };
    PartRuns {
        quick: options.quick,
        only: options.only,
        list: options.list,
        runs: options.runs.unwrap_or(runs),
        output: options.output.unwrap_or_else(|| output.into()),
        merge: options.merge,
        render: options.render,
        version: env!("CARGO_PKG_VERSION"),
    }
}

fn wireless(options: WirelessOptions) -> anyhow::Result<ExitCode> {
    airdma_bench::wireless(&airdma_bench::Wireless {
        peers: options.peers,
        only: options.only,
        list: options.list,
        megabytes: options.megabytes,
        runs: options.runs,
        profile: options.profile,
        output: options.output,
        there: match (options.resume, options.merge) {
            (true, _) => There::Resume,
            (_, true) => There::Merge,
            (false, false) => There::Replace,
        },
        render: options.render,
    })
}

#[derive(clap::Args)]
pub struct EndOptions {
    #[command(subcommand)]
    end: EndCommand,
}

#[derive(clap::Subcommand)]
enum EndCommand {
    UdpReceive {
        #[arg(long)]
        port: u16,
        #[arg(long)]
        offload: bool,
    },
    UdpSend {
        #[arg(long)]
        to: SocketAddr,
        #[arg(long)]
        datagram: usize,
        #[arg(long)]
        message: usize,
        #[arg(long)]
        seconds: u32,
        #[arg(long)]
        offload: bool,
    },
    IdlePairs {
        #[arg(long)]
        pairs: u64,
    },
    PairsServe {
        #[arg(long)]
        port: u16,
        #[command(flatten)]
        pairs: ManyPairsOptions,
    },
    PairsWrite {
        #[arg(long)]
        to: SocketAddr,
        #[arg(long)]
        seconds: u32,
        #[command(flatten)]
        pairs: ManyPairsOptions,
    },
    RecordsServe {
        #[arg(long)]
        port: u16,
        #[command(flatten)]
        load: RecordsLoadOptions,
    },
    RecordsDrive {
        #[arg(long)]
        to: SocketAddr,
        #[arg(long)]
        seconds: u32,
        #[command(flatten)]
        load: RecordsLoadOptions,
    },
    PipeReceive {
        #[arg(long)]
        port: u16,
        #[arg(long)]
        into: PathBuf,
    },
    PipeSend {
        #[arg(long)]
        to: SocketAddr,
        #[arg(long)]
        from: PathBuf,
    },
    AtDaemon {
        #[arg(long)]
        socket: Option<PathBuf>,
        #[arg(long, requires = "stop_for")]
        stop_port: Option<u16>,
        #[arg(long, requires = "stop_port")]
        stop_for: Option<u32>,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

#[derive(clap::Args)]
struct ManyPairsOptions {
    #[arg(long)]
    pairs: u32,
    #[arg(long)]
    bytes: u32,
    #[arg(long)]
    outstanding: u32,
}

impl ManyPairsOptions {
    fn load(&self) -> ManyPairs {
        ManyPairs {
            bytes: self.bytes,
            outstanding: self.outstanding,
        }
    }
}

#[derive(clap::Args)]
struct RecordsLoadOptions {
    #[arg(long)]
    mode: RecordsMode,
    #[arg(long)]
    bytes: u32,
    #[arg(long)]
    count: u32,
}

impl RecordsLoadOptions {
    fn load(&self) -> RecordsLoad {
        RecordsLoad {
            mode: self.mode,
            bytes: self.bytes,
            count: self.count,
        }
    }
}

/// Runs one end of a measurement.
pub fn end(options: EndOptions) -> anyhow::Result<ExitCode> {
    let end = match options.end {
        EndCommand::UdpReceive { port, offload } => End::UdpReceive { port, offload },
        EndCommand::UdpSend {
            to,
            datagram,
            message,
            seconds,
            offload,
        } => End::UdpSend {
            to,
            datagram,
            message,
            seconds,
            offload,
        },
        EndCommand::IdlePairs { pairs } => End::IdlePairs { pairs },
        EndCommand::PairsServe { port, pairs } => End::PairsServe {
            port,
            pairs: pairs.pairs,
            load: pairs.load(),
        },
        EndCommand::PairsWrite { to, seconds, pairs } => End::PairsWrite {
            to,
            pairs: pairs.pairs,
            load: pairs.load(),
            seconds,
        },
        EndCommand::RecordsServe { port, load } => End::RecordsServe {
            port,
            load: load.load(),
        },
        EndCommand::RecordsDrive { to, seconds, load } => End::RecordsDrive {
            to,
            load: load.load(),
            seconds,
        },
        EndCommand::PipeReceive { port, into } => End::PipeReceive { port, into },
        EndCommand::PipeSend { to, from } => End::PipeSend { to, from },
        EndCommand::AtDaemon {
            socket,
            stop_port,
            stop_for,
            command,
        } => End::AtDaemon {
            socket,
            stop: stop_port
                .zip(stop_for)
                .map(|(port, seconds)| Stop { port, seconds }),
            command,
        },
    };
    airdma_bench::run_end(&end)?;
    Ok(ExitCode::SUCCESS)
}
