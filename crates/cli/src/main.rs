//! The `airdma` command: runs programs on airdma devices, lists the devices, transfers files,
//! checks the machine.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

mod bench;
mod capture;
mod daemon;
mod devices;
mod doctor;
mod files;
mod generate;
mod lab;
mod link;
mod queue;
mod run;
mod selftest;
mod serve;
mod sim;
mod stream;
mod top;
mod view;
mod words;

/// RDMA for every network interface, in user space: no RDMA NIC, no kernel module.
#[derive(Parser)]
#[command(name = "airdma", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// The program that is started.
#[derive(Args)]
struct Started {
    /// The program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program written for libibverbs, unmodified, on airdma devices.
    ///
    /// Where the host has rdma-core's libraries, sets LD_PRELOAD to libairdma.so, which stands
    /// before them: rdma-core's rsockets run on it. On other hosts sets LD_LIBRARY_PATH to the
    /// folder `dropin`, where airdma has the names of rdma-core's libraries, and LD_PRELOAD to what
    /// is in there. Then becomes the program. libairdma.so is found beside this binary (same
    /// folder, ../lib, ../lib/airdma) or named by AIRDMA_LIB, `dropin` beside it. Exits with 127 if
    /// the program or the library is not found, with 126 if it cannot be run.
    ///
    /// Before that it checks on loopback that this kernel numbers packets as RoCE peers need it (10
    /// ms), and warns if it does not.
    Run {
        /// Print which library is used and the result of the check on loopback
        #[arg(short, long)]
        verbose: bool,
        /// Print what would be set and why, which devices CMD will see and what blocks it; run
        /// nothing. Exits with 0 if it will work, with 1 if not
        #[arg(long)]
        explain: bool,
        /// Use the folder `dropin` even on a host with rdma-core
        #[arg(long)]
        dropin: bool,
        /// Let the program's TCP connections use RDMA too, as `airdma sockets` does
        #[arg(long)]
        sockets: bool,
        #[command(flatten)]
        started: Started,
    },
    /// Run a program written for sockets, unmodified: its TCP connections use RDMA (experimental).
    ///
    /// An experiment, not for data that matters. A connection that is inherited, passed, spliced or
    /// half closed goes back to the kernel; what a killed program had sent may be lost.
    ///
    /// Sets LD_PRELOAD to libairdma_sockets.so and becomes the program. Connections to peers that
    /// run so too move their data by RDMA; all others stay with the kernel. The library is found
    /// beside this binary (same folder, ../lib, ../lib/airdma) or named by AIRDMA_SOCKETS_LIB.
    /// Exits with 127 if the program or the library is not found, with 126 if it cannot be run.
    Sockets {
        /// Print what is set, and a line when the program ends: connections and bytes by RDMA
        #[arg(short, long)]
        verbose: bool,
        /// Print what would be set and what blocks it; run nothing. Exits with 0 if it will work,
        /// with 1 if not
        #[arg(long)]
        explain: bool,
        /// File of rules which connections may use RDMA: lines of ACTION NETWORK PORTS, of which
        /// the first that matches decides. ACTION is lane or kernel, NETWORK the peer's address
        /// (any, ADDRESS or ADDRESS/BITS), PORTS the port of the end that accepted (any, 80,
        /// 8000-8999, or a list of these with commas). Without a rule, connections between private
        /// addresses may
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        /// UDP, too: datagrams that do not fit a frame use RDMA where the peer's program runs so,
        /// and survive the loss of a packet. All others stay with the kernel, which is faster for
        /// them
        #[arg(long)]
        udp: bool,
        #[command(flatten)]
        started: Started,
    },
    /// List the devices: one per interface that is up and has an address.
    Devices {
        /// All attributes, the GID table and the counters.
        #[arg(short, long)]
        verbose: bool,
        /// Everything, as JSON.
        #[arg(long)]
        json: bool,
        /// Serve the counters over HTTP as OpenMetrics, at http://ADDR/metrics, until ended. Any
        /// host that reaches another address than the loopback's can read them
        #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = devices::metrics::ADDRESS,
              conflicts_with_all = ["verbose", "json"])]
        metrics: Option<SocketAddr>,
    },
    /// Show what devices, processes and queue pairs do, while they do it.
    ///
    /// Rates each way, packets sent again, drops by reason, and why a queue pair does not send
    /// more. Sorted by rate. Programs pay nothing for it: what they have for their own purposes is
    /// read when it is shown.
    #[command(after_help = top::HELP)]
    Top(top::Options),
    /// Write the packets of devices to a file or a pipe, for Wireshark (pcapng).
    ///
    /// Without privilege: the programs that have the devices copy their packets while they are
    /// asked to.
    #[command(after_help = capture::HELP)]
    Capture(capture::Options),
    /// Check this host, and say what to change, with the command.
    #[command(after_help = doctor::HELP)]
    Doctor {
        /// A list of findings, as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check what this kernel offers for RoCEv2 over sockets
    Selftest,
    /// Send files and directories to a host where `airdma recv` waits.
    ///
    /// Always encrypted and authenticated. At the first contact the receiver shows a code, which is
    /// asked for here; later the two know each other. After an interruption at either end, the same
    /// command resumes.
    #[command(after_long_help = files::SEND_HELP)]
    Send(files::SendOptions),
    /// Receive files and directories from a host with `airdma send`.
    ///
    /// Shows a code for the sender, waits for one offer, asks, and writes nothing before that.
    /// Files have their names once they are complete.
    #[command(after_long_help = files::RECV_HELP)]
    Recv(files::RecvOptions),
    /// Frames of cameras and other devices, from one host to another.
    ///
    /// All devices of a sender share one RDMA connection. A frame is written straight into a block
    /// of the receiver's memory. Connections are found, paired by a code and encrypted as those of
    /// `airdma send` and `airdma recv` are.
    #[command(subcommand)]
    Stream(stream::StreamCommand),
    /// Keep a queue of files to send, for programs and for `airdma queue`.
    ///
    /// Jobs are sent one at a time, first come, first served. They survive a restart of the
    /// service, and an interrupted job resumes. An absent or busy receiver is retried for up to a
    /// day. Receivers must be known already (from `airdma send`), or the job has their code.
    #[command(after_long_help = serve::HELP)]
    Serve(serve::Options),
    /// Own the devices of this host for all programs of this user (experimental).
    ///
    /// Programs whose environment has AIRDMA_DAEMON=PATH, the path that is printed, use the devices
    /// of this process in place of their own. It runs until a signal ends it.
    #[command(after_long_help = daemon::HELP)]
    Daemon {
        /// Where to listen; by default daemon.sock in the user's runtime directory
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
    },
    /// Queue files for `airdma serve`, and show their state
    #[command(after_long_help = queue::HELP)]
    Queue(queue::Options),
    /// Run random worlds in virtual time, judged by a reference model.
    ///
    /// Hosts, queue pairs, programs and a network that loses, repeats, reorders and damages packets
    /// all follow from one seed. A failure prints the seed, and --seed N --trace replays it. Exits
    /// with 0 if the model agreed, with 1 if not.
    Sim(sim::Options),
    /// Measure airdma beside kernel TCP and others, in turns, on links made for it.
    ///
    /// Makes two hosts as network namespaces joined by a veth, with root or, without, in a user
    /// namespace; measures airdma by perftest, and beside it iperf3, sockperf, bare UDP,
    /// ucx_perftest and fi_pingpong, at each size in turns, one core a side; prints a table while
    /// it runs; writes every sample (JSON), a page with tables, the targets and where airdma loses
    /// (Markdown), and plots (SVG, PNG). Run it on a machine that does nothing else. Leaves nothing
    /// behind, after Ctrl-C, too, and then writes what it has.
    ///
    /// Programs that are not installed are named, with the Debian package that has them, and left
    /// out; without perftest nothing can be measured.
    ///
    /// Exits with 0 if all was measured, with 1 if a run failed (what both ends said is in the JSON
    /// file), with 2 if nothing can be measured here, with 128 and the signal's number if it was
    /// stopped.
    #[command(after_long_help = bench::EXAMPLES)]
    Bench(bench::Options),
    /// Two hosts on this machine, for tests: network namespaces joined by a veth pair.
    #[command(after_long_help = lab::EXAMPLES, subcommand)]
    Lab(lab::LabCommand),
    /// An emulated Wi-Fi link between two hosts on this machine, in real time and without root.
    ///
    /// One medium for both directions, frames in aggregates, a rate that moves, a driver's queue,
    /// and the loss that the MAC did not repair. Two network namespaces are joined by a veth pair;
    /// HTB, a queue and nftables at each end follow a model of the Wi-Fi MAC, several hundred times
    /// a second.
    #[command(after_long_help = link::EXAMPLES, subcommand)]
    Link(link::LinkCommand),
    /// One end of a measurement of `airdma bench`.
    #[command(hide = true)]
    BenchEnd(bench::EndOptions),
    /// Write the man pages and the completions of shells into a folder, for packages.
    #[command(hide = true)]
    Generate {
        /// Gets the folders `man1` and `completions`
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Run {
            verbose,
            explain,
            dropin,
            sockets,
            started,
        } => {
            let options = run::Options {
                verbose,
                explain,
                drop_in: dropin,
                sockets,
            };
            return run::run(&options, &started.command);
        }
        Command::Sockets {
            verbose,
            explain,
            policy,
            udp,
            started,
        } => {
            let options = run::sockets::Options {
                verbose,
                explain,
                policy,
                udp,
            };
            return run::sockets::run(&options, &started.command);
        }
        Command::Devices {
            metrics: Some(address),
            ..
        } => devices::metrics::serve(address),
        Command::Devices { verbose, json, .. } => devices::print(verbose, json),
        Command::Top(options) => top::top(&options),
        Command::Capture(options) => capture::capture(&options),
        Command::Doctor { json } => doctor::print(json),
        Command::Selftest => selftest::print(),
        Command::Send(options) => return files::send::send(options),
        Command::Recv(options) => return files::recv::recv(options),
        Command::Stream(command) => return stream::stream(command),
        Command::Serve(options) => serve::serve(&options),
        Command::Daemon { socket } => daemon::daemon(socket),
        Command::Queue(options) => return queue::queue(&options),
        Command::Sim(options) => sim::sim(options),
        Command::Bench(options) => bench::bench(options),
        Command::Lab(command) => lab::lab(command),
        Command::Link(command) => link::link(command),
        Command::BenchEnd(options) => bench::end(options),
        Command::Generate { folder } => generate::generate(Arguments::command(), &folder),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            warn(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// A closed pipe (`airdma devices | head -1`) is not an error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints a line on standard error; if that is closed, the line is lost.
fn warn(message: &str) {
    let message = words::printable_lines(message);
    let _ = writeln!(io::stderr(), "airdma: {message}");
}
