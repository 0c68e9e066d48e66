//! What moves the bytes over a link, and how each is run.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use airdma_link::measure::{Ended, Link, Running};
use airdma_link::traffic::Found;
use airdma_link::{LinkError, Side, ipv4};

use super::taken::Sample;
use crate::tools;

const SECOND_BINS: usize = 50;
/// What is not there by then has failed.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Of airdma's writes.
const MESSAGE_BYTES: u64 = 65_536;
const PERFTEST_PORT: u16 = 18_515;
const RSYNC_PORT: u16 = 8_730;

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// As much as the queue takes, nothing sent again: what is possible.
    Udp,
    /// The kernel's, with this congestion control.
    Tcp(&'static str),
    /// airdma as it is: RC with go-back-N, without any care for radio.
    Write,
    /// A file by rsync, whole, from memory to memory, to a daemon.
    Rsync,
}

/// All of them.
pub const TRANSPORTS: [Transport; 5] = [
    Transport::Udp,
    Transport::Tcp("cubic"),
    Transport::Tcp("bbr"),
    Transport::Write,
    Transport::Rsync,
];

impl Transport {
    /// In names of cases.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Tcp("bbr") => "tcp_bbr",
            Transport::Tcp(_) => "tcp_cubic",
            Transport::Write => "airdma_write",
            Transport::Rsync => "rsync",
        }
    }

    /// Whether it is somebody else's.
    pub fn is_peer(self) -> bool {
        matches!(self, Transport::Tcp(_) | Transport::Rsync)
    }

    /// Whether this machine has it; else what to do.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Transport::Tcp("bbr") if tools::find("tcp_bbr").is_none() => {
                Some(tools::package("tcp_bbr"))
            }
            Transport::Write if tools::find("ib_write_bw").is_none() => {
                Some(tools::package("ib_write_bw"))
            }
            Transport::Rsync if tools::find("rsync").is_none() => Some(tools::package("rsync")),
            Transport::Rsync if !may_set_groups() => {
                Some("root outside of a user namespace, since its daemon sets its groups")
            }
            Transport::Udp | Transport::Tcp(_) | Transport::Write | Transport::Rsync => None,
        }
    }
}

/// The bytes, from A to B.
pub fn flow(
    link: &Link,
    airdma: &Path,
    transport: Transport,
    bytes: u64,
    seconds: f64,
    port: u16,
) -> Result<Sample, LinkError> {
    let to = SocketAddr::new(ipv4(Side::B), port).to_string();
    let (port, seconds) = (port.to_string(), seconds.to_string());
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
        Transport::Rsync => {
            let folder = Files::new(bytes)
                .map_err(|error| LinkError::Asked(format!("making a file for rsync: {error}")))?;
            rsync(link, &folder, bytes)
        }
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
fn write(link: &Link, airdma: &Path, bytes: u64, seconds: &str) -> Result<Sample, LinkError> {
    let airdma = airdma.to_string_lossy();
    let size = MESSAGE_BYTES.to_string();
    let count = bytes.div_ceil(MESSAGE_BYTES).to_string();
    let whole = seconds.split('.').next().unwrap_or("10").to_owned();
    let mut words = vec!["run", "--", "ib_write_bw", "-s", &size];
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
    Ok(Sample {
        mbit,
        bytes: moved,
        seconds: moved * 8.0 / 1e6 / mbit.max(1e-9),
        cpu_s_per_gb: (client.cpu_s + server.cpu_s) / (moved.max(1.0) / 1e9),
        ..Sample::default()
    })
}

/// The files of rsync, in memory where there is a file system for that. Gone when this is dropped.
struct Files(PathBuf);

impl Files {
    fn new(bytes: u64) -> io::Result<Files> {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() {
            memory.into()
        } else {
            std::env::temp_dir()
        };
        let folder = base.join(format!("airdma-wireless-{}", std::process::id()));
        let files = Files(folder);
        std::fs::create_dir_all(files.0.join("to"))?;
        std::fs::File::create(files.file())?.set_len(bytes)?;
        // In a user namespace there is nobody else that the daemon could become.
        let configuration = format!(
            "use chroot = no\nuid = 0\ngid = 0\nreverse lookup = no\n[to]\npath = {}\nread only = no\n",
            files.0.join("to").display()
        );
        std::fs::write(files.configuration(), configuration)?;
        Ok(files)
    }

    fn file(&self) -> PathBuf {
        self.0.join("file")
    }

    fn configuration(&self) -> PathBuf {
        self.0.join("rsyncd.conf")
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn rsync(link: &Link, files: &Files, bytes: u64) -> Result<Sample, LinkError> {
    let configuration = format!("--config={}", files.configuration().display());
    let port = format!("--port={RSYNC_PORT}");
    let serve = ["--daemon", "--no-detach", &port, &configuration];
    let server = link.start(Side::B, "rsync", &serve)?;
    if !server.listens(RSYNC_PORT) {
        return Err(LinkError::Asked("rsync's daemon does not listen".into()));
    }
    let to = format!("rsync://{}:{RSYNC_PORT}/to/", ipv4(Side::B));
    let file = files.file().display().to_string();
    let began = Instant::now();
    link.start(Side::A, "rsync", &["--whole-file", "--inplace", &file, &to])?
        .ended(LIMIT)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Sample {
        mbit: bytes as f64 * 8.0 / 1e6 / seconds,
        bytes: bytes as f64,
        seconds,
        // The daemon's children are its own affair.
        cpu_s_per_gb: f64::NAN,
        ..Sample::default()
    })
}

/// Whether processes of ours that are root may do what root may.
fn may_set_groups() -> bool {
    // SAFETY: only reads who we are.
    let is_root = unsafe { libc::geteuid() } == 0;
    let groups = std::fs::read_to_string("/proc/self/setgroups").unwrap_or_default();
    is_root && groups.trim() == "allow"
}
