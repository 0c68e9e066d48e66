//! Transports that move bytes over a link, and how each is run.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use airdma_link::measure::{Ended, Link, Running, TRAFFIC};
use airdma_link::traffic::Found;
use airdma_link::{LinkError, Side, ipv4};

use super::ssh::{Copier, copy};
use super::taken::Sample;
use crate::{ssh, tools};

const SECOND_BINS: usize = 50;
/// Slowest rate that counts as working, after the first minute.
const SLOWEST_MBIT: f64 = 50.0;
const MINUTE: Duration = Duration::from_secs(60);
/// Bytes of each of airdma's WRITEs.
const MESSAGE_BYTES: u64 = 65_536;
const PERFTEST_PORT: u16 = 18_515;
const NORTH: &str = "airdma-north-peer";

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP: as much as the queue takes, without retransmissions, which is the upper bound.
    Udp,
    /// The kernel's TCP, with this congestion control.
    Tcp(&'static str),
    /// One QUIC stream by quinn, with this congestion control.
    Quic(&'static str),
    /// RoCEv2 RC with go-back-N, without air mode.
    Write,
    /// Air mode with this rate control.
    Air(&'static str),
    /// Air mode, with packets or datagrams longer than the interface's MTU: setting and name.
    Fragments(&'static str, &'static str),
    /// Air mode, by programs that sleep while idle, where perftest polls.
    Events,
    /// A file over ssh.
    File(Copier),
}

/// All transports.
pub const TRANSPORTS: [Transport; 13] = [
    Transport::Udp,
    Transport::Tcp("cubic"),
    Transport::Tcp("bbr"),
    Transport::Quic("cubic"),
    Transport::Quic("bbr"),
    Transport::Write,
    Transport::Air("buffers"),
    Transport::Air("latency"),
    LONGER[0],
    LONGER[1],
    Transport::Events,
    Transport::File(Copier::Scp),
    Transport::File(Copier::Rsync),
];

/// Air mode by IP fragments: fuller frames and fewer packets.
pub const LONGER: [Transport; 2] = [
    Transport::Fragments("AIRDMA_AGGREGATE=datagrams", "airdma_air_datagrams"),
    Transport::Fragments("AIRDMA_MTU=4096", "airdma_air_mtu4096"),
];

impl Transport {
    /// Name in cases.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Tcp("bbr") => "tcp_bbr",
            Transport::Tcp(_) => "tcp_cubic",
            Transport::Quic("bbr") => "quic_bbr",
            Transport::Quic(_) => "quic_cubic",
            Transport::Write => "airdma_write",
            Transport::Air("latency") => "airdma_air_latency",
            Transport::Air(_) => "airdma_air",
            Transport::Fragments(_, name) => name,
            Transport::Events => "airdma_events",
            Transport::File(Copier::Scp) => "scp",
            Transport::File(Copier::Rsync) => "rsync",
        }
    }

    /// Whether another project makes it.
    pub fn is_peer(self) -> bool {
        match self {
            Transport::Udp
            | Transport::Write
            | Transport::Air(_)
            | Transport::Fragments(..)
            | Transport::Events => false,
            Transport::Tcp(_) | Transport::Quic(_) | Transport::File(_) => true,
        }
    }

    /// Whether it moves files, and so ends by itself.
    pub fn moves_files(self) -> bool {
        matches!(self, Transport::File(_))
    }

    /// Whether a poor signal and walks show nothing more about it.
    pub fn is_about_loss(self) -> bool {
        matches!(self, Transport::Fragments(..))
    }

    /// The program of this repository that is its ends, if it is not this one.
    fn end(self) -> Option<&'static str> {
        match self {
            Transport::Quic(_) => Some("airdma-quic-peer"),
            Transport::Events => Some(NORTH),
            Transport::Udp
            | Transport::Tcp(_)
            | Transport::Write
            | Transport::Air(_)
            | Transport::Fragments(..)
            | Transport::File(_) => None,
        }
    }

    /// The program that this machine lacks for it; none if it can be measured.
    pub fn missing(self) -> Option<String> {
        let programs: &[&str] = match self {
            Transport::Udp | Transport::Tcp("cubic") | Transport::Quic(_) | Transport::Events => {
                &[]
            }
            Transport::Tcp(_) => &["tcp_bbr"],
            Transport::Write | Transport::Air(_) | Transport::Fragments(..) => &["ib_write_bw"],
            Transport::File(Copier::Scp) => &["scp", "sshd"],
            Transport::File(Copier::Rsync) => &["rsync", "ssh", "sshd"],
        };
        if let Some(end) = self.end()
            && beside(end).is_none()
        {
            return Some(format!(
                "{end} is not beside this binary: cargo build --release -p {end}"
            ));
        }
        let gone = programs
            .iter()
            .find(|program| tools::find(program).is_none());
        if let Some(program) = gone {
            let package = tools::package(program);
            return Some(format!("{program} is not installed: {package}"));
        }
        self.moves_files().then(ssh::missing).flatten()
    }
}

/// Longest time that `bytes` may take.
pub fn limit(bytes: u64) -> Duration {
    match bytes {
        u64::MAX => MINUTE,
        bytes => MINUTE + Duration::from_secs_f64(bytes as f64 * 8.0 / 1e6 / SLOWEST_MBIT),
    }
}

/// Moves bytes from A to B.
pub fn flow(
    link: &Link,
    airdma: &Path,
    transport: Transport,
    bytes: u64,
    seconds: f64,
    port: u16,
) -> Result<Sample, LinkError> {
    let to = SocketAddr::new(ipv4(Side::B), port).to_string();
    let (number, port) = (port, port.to_string());
    let (time, count) = (seconds.to_string(), bytes.to_string());
    let to_and_time = ["--to", &to, "--seconds", &time];
    let [sent, came] = match transport {
        Transport::Write => return write(link, airdma, &[], MESSAGE_BYTES, bytes, seconds),
        Transport::Air(control) => {
            let rate = format!("AIRDMA_RATE={control}");
            let air = ["env", "AIRDMA_AIR=1", &rate];
            return write(link, airdma, &air, MESSAGE_BYTES, bytes, seconds);
        }
        Transport::Fragments(how, _) => {
            let air = ["env", "AIRDMA_AIR=1", how];
            return write(link, airdma, &air, MESSAGE_BYTES, bytes, seconds);
        }
        Transport::File(program) => return copy(link, program, bytes),
        Transport::Udp => {
            let receive = [&TRAFFIC[..], &["udp-receive", "--port", &port]].concat();
            let send = [&TRAFFIC[..], &["udp-send"], &to_and_time].concat();
            let [sent, came] = link.flow(airdma, &receive, &send)?;
            let mut sample = of(&sent, &came);
            sample.mbit = came.best_mbit(SECOND_BINS);
            return Ok(sample);
        }
        Transport::Tcp(congestion) => {
            let receive = [&TRAFFIC[..], &["tcp-receive", "--port", &port]].concat();
            let how = ["--bytes", &count, "--congestion", congestion];
            let send = [&TRAFFIC[..], &["tcp-send"], &to_and_time, &how].concat();
            link.flow(airdma, &receive, &send)?
        }
        Transport::Quic(congestion) => {
            let quic = beside("airdma-quic-peer");
            let quic = quic.ok_or_else(|| LinkError::Asked("airdma-quic-peer is gone".into()))?;
            let how = ["--bytes", &count, "--congestion", congestion];
            let send = [&["send"], &to_and_time[..], &how].concat();
            link.flow(&quic, &["receive", "--port", &port], &send)?
        }
        Transport::Events => events(link, bytes, seconds, number, 1)?,
    };
    if bytes != u64::MAX && came.bytes < bytes {
        let (came, all) = (came.bytes / 1_000_000, bytes / 1_000_000);
        let late = format!("after {seconds:.0} s {came} of {all} MB had arrived");
        return Err(LinkError::Asked(late));
    }
    Ok(of(&sent, &came))
}

/// TCP CUBIC of a program with a fixed rate: the payload that arrived, in Mb/s.
pub fn foreground(
    link: &Link,
    airdma: &Path,
    mbit: u32,
    seconds: f64,
    port: u16,
) -> Result<f64, LinkError> {
    let to = SocketAddr::new(ipv4(Side::B), port).to_string();
    let (port, time, rate) = (port.to_string(), seconds.to_string(), mbit.to_string());
    let receive = [&TRAFFIC[..], &["tcp-receive", "--port", &port]].concat();
    let how = ["--to", &to, "--seconds", &time, "--mbit", &rate];
    let send = [&TRAFFIC[..], &["tcp-send"], &how].concat();
    let [sent, came] = link.flow(airdma, &receive, &send)?;
    Ok(came.bytes as f64 * 8.0 / 1e6 / sent.seconds.max(1e-9))
}

/// Air mode over `connections` connections, by programs that sleep: results of sender and receiver.
pub fn events(
    link: &Link,
    bytes: u64,
    seconds: f64,
    port: u16,
    connections: u32,
) -> Result<[Found; 2], LinkError> {
    let north = beside(NORTH).ok_or_else(|| LinkError::Asked(format!("{NORTH} is gone")))?;
    let north = north.to_string_lossy();
    let host = ipv4(Side::B);
    let (at, to) = (host.to_string(), SocketAddr::new(host, port).to_string());
    let (port, time, count) = (port.to_string(), seconds.to_string(), bytes.to_string());
    let connections = connections.to_string();
    let air = ["AIRDMA_AIR=1", &*north];
    let receive = ["receive", "--at", &at, "--port", &port];
    let send = ["send", "--to", &to, "--seconds", &time, "--bytes", &count];
    let several = ["--connections", &connections];
    let receive = [&air[..], &receive, &several].concat();
    let send = [&air[..], &send, &several].concat();
    link.flow(Path::new("env"), &receive, &send)
}

/// A program in the folder of this one.
pub fn beside(name: &str) -> Option<PathBuf> {
    let file = std::env::current_exe().ok()?.with_file_name(name);
    file.is_file().then_some(file)
}

fn of(sent: &Found, came: &Found) -> Sample {
    Sample::moved(came.bytes as f64, came.seconds, sent.cpu_s + came.cpu_s)
}

/// perftest's WRITEs of `bytes` each: a count of them, or for a duration. `env` runs it in another
/// environment.
pub fn write(
    link: &Link,
    airdma: &Path,
    env: &[&str],
    message_bytes: u64,
    bytes: u64,
    seconds: f64,
) -> Result<Sample, LinkError> {
    let airdma = airdma.to_string_lossy();
    let size = message_bytes.to_string();
    let count = bytes.div_ceil(message_bytes).to_string();
    let whole = seconds.floor().to_string();
    let mut words = [&["run", "--"], env, &["ib_write_bw", "-s", &size]].concat();
    match bytes {
        u64::MAX => words.extend(["-D", &whole]),
        _ => words.extend(["-n", &count]),
    }
    let server: Running = link.start(Side::B, &airdma, &words)?;
    server.listens(PERFTEST_PORT);
    let host = ipv4(Side::B).to_string();
    words.push(&host);
    let limit = limit(bytes).max(Duration::from_secs_f64(seconds + 30.0));
    let client: Ended = link.start(Side::A, &airdma, &words)?.ended(limit)?;
    let server: Ended = server.ended(limit)?;
    let failed = |what: &str| LinkError::Asked(format!("ib_write_bw: {what}"));
    // "65536 1000 44.51 33.70 0.000503": size, count, peak, mean in MiB/s, millions a second.
    let row = client.text.lines().find_map(|line| {
        let numbers: Vec<f64> = line
            .split_ascii_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        (numbers.len() == 5).then_some(numbers)
    });
    let row = row.ok_or_else(|| failed(client.text.lines().last().unwrap_or("no table")))?;
    let (moved, mbit) = (row[0] * row[1], row[3] * 8.0 * 1.048_576);
    let seconds = moved * 8.0 / 1e6 / mbit.max(1e-9);
    Ok(Sample::moved(moved, seconds, client.cpu_s + server.cpu_s))
}
