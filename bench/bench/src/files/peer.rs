//! Programs that copy, and how each is run: from the start of the sender until both ends have
//! ended.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use airdma_link::measure::{Link, Running, target};
use airdma_link::{LinkError, Side, ipv4};

use super::content::Content;
use super::run::Place;
use crate::ssh::Ssh;
use crate::wireless::beside;
use crate::{ssh, tools};

const PORT: u16 = airdma_link::measure::PORT;
const QUIC: &str = "airdma-quic-peer";
/// Code that both users would have to type; a benchmark has no secret.
const CODE: &str = "lusab-babad";
/// Slowest rate that counts as working, after the first minute.
const SLOWEST_MBIT: f64 = 50.0;
const SLOWEST_FILE: Duration = Duration::from_millis(50);
const MINUTE: Duration = Duration::from_secs(60);

/// A program that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `airdma send` and `airdma recv`.
    Airdma,
    Scp,
    Rsync,
    /// One stream by quinn, of a file or of tar's output.
    Quic,
    /// cat or tar, over TCP.
    Nc,
}

pub const PEERS: [Peer; 5] = [Peer::Airdma, Peer::Scp, Peer::Rsync, Peer::Quic, Peer::Nc];

/// Seconds that a copy took.
pub struct Took {
    pub seconds: f64,
    pub cpu_s: f64,
}

impl Peer {
    /// Name in cases.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Airdma => "airdma",
            Peer::Scp => "scp",
            Peer::Rsync => "rsync",
            Peer::Quic => "quic",
            Peer::Nc => "nc",
        }
    }

    pub fn is_encrypted(self) -> bool {
        match self {
            Peer::Airdma | Peer::Scp | Peer::Rsync | Peer::Quic => true,
            Peer::Nc => false,
        }
    }

    /// The program that this machine lacks for this peer; none if it can be measured.
    pub fn missing(self) -> Option<String> {
        let programs: &[&str] = match self {
            Peer::Airdma => &[],
            Peer::Scp => &["scp", "ssh-keygen", "sshd"],
            Peer::Rsync => &["rsync", "ssh", "ssh-keygen", "sshd"],
            Peer::Quic | Peer::Nc => &["tar"],
        };
        if self == Peer::Quic && beside(QUIC).is_none() {
            return Some(format!(
                "{QUIC} is not beside this binary: cargo build --release -p {QUIC}"
            ));
        }
        let gone = programs
            .iter()
            .find(|program| tools::find(program).is_none());
        if let Some(program) = gone {
            return Some(format!(
                "{program} is not installed: {}",
                tools::package(program)
            ));
        }
        matches!(self, Peer::Scp | Peer::Rsync)
            .then(ssh::missing)
            .flatten()
    }

    /// Copies from A to B; `air` is the value of `AIRDMA_AIR`.
    pub fn copy(
        self,
        link: &Link,
        airdma: &Path,
        air: &str,
        content: Content,
        place: &Place,
    ) -> Result<Took, LinkError> {
        match self {
            Peer::Airdma => by_airdma(link, air, content, place),
            Peer::Scp | Peer::Rsync => by_ssh(link, self, content, place),
            Peer::Quic => {
                let program = beside(QUIC);
                let program = program.ok_or_else(|| LinkError::Asked(format!("{QUIC} is gone")))?;
                let seconds = limit(content).as_secs().to_string();
                let bytes = u64::MAX.to_string();
                let how = [
                    "--seconds",
                    &seconds,
                    "--bytes",
                    &bytes,
                    "--congestion",
                    "cubic",
                ];
                stream(link, &program, ["receive", "send"], &how, content, place)
            }
            Peer::Nc => {
                let ends = ["bench-end pipe-receive", "bench-end pipe-send"];
                stream(link, airdma, ends, &[], content, place)
            }
        }
    }
}

fn limit(content: Content) -> Duration {
    let moving = Duration::from_secs_f64(content.bytes() as f64 * 8.0 / 1e6 / SLOWEST_MBIT);
    MINUTE + moving + SLOWEST_FILE * content.files
}

/// Runs both ends; the receiver is ready first.
fn pair(
    receiver: Running,
    content: Content,
    send: impl FnOnce() -> Result<Running, LinkError>,
) -> Result<Took, LinkError> {
    let began = Instant::now();
    let sent = send()?.ended(limit(content))?;
    let came = receiver.ended(limit(content))?;
    Ok(Took {
        seconds: began.elapsed().as_secs_f64(),
        cpu_s: sent.cpu_s + came.cpu_s,
    })
}

/// First contact by a code, between users without keys.
fn by_airdma(link: &Link, air: &str, content: Content, place: &Place) -> Result<Took, LinkError> {
    let air = format!("AIRDMA_AIR={air}");
    let homes = ["home-a", "home-b"].map(|name| format!("AIRDMA_HOME={}", place.word(name)));
    let airdma = std::env::current_exe();
    let airdma = airdma.map_err(|error| LinkError::Asked(format!("finding airdma: {error}")))?;
    let (airdma, to, source) = (
        airdma.to_string_lossy(),
        place.word("to"),
        place.word("files"),
    );
    let code = ["--json", "--code", CODE];
    let receive = [
        &[&*homes[1], &air, &*airdma, "recv", "--yes", "--no-name"],
        &code[..],
        &[&to],
    ]
    .concat();
    let host = ipv4(Side::B).to_string();
    let send = [
        &[&*homes[0], &air, &*airdma, "send"],
        &code[..],
        &[&source, &host],
    ]
    .concat();
    let receiver = link.start(Side::B, "env", &receive)?.says("listening")?;
    pair(receiver, content, || link.start(Side::A, "env", &send))
}

/// With a new ssh connection, as a user would; the server runs before.
fn by_ssh(link: &Link, peer: Peer, content: Content, place: &Place) -> Result<Took, LinkError> {
    let failed = |error| LinkError::Asked(format!("preparing keys: {error}"));
    let ssh = Ssh::new(&place.keys().map_err(failed)?).map_err(failed)?;
    let server = ssh.serve(link)?;
    let (client, source) = (ssh.client(), place.word("files"));
    let to = format!("b:{}/", place.word("to"));
    let by_ssh = format!("ssh -F {client}");
    let (program, words) = if peer == Peer::Rsync {
        let words = ["-a", "--whole-file", "-e", &by_ssh, &source, &to];
        ("rsync", words.to_vec())
    } else {
        ("scp", vec!["-qrp", "-F", &client, &source, &to])
    };
    let began = Instant::now();
    let client = link
        .start(Side::A, program, &words)?
        .ended(limit(content))?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu_s = client.cpu_s + server.stopped()?;
    Ok(Took { seconds, cpu_s })
}

/// A stream of bytes from A to B: a file by cat, and a directory by tar, which also unpacks it.
fn stream(
    link: &Link,
    program: &Path,
    [receive, send]: [&str; 2],
    how: &[&str],
    content: Content,
    place: &Place,
) -> Result<Took, LinkError> {
    let program = program.to_string_lossy();
    let how = how.join(" ");
    let (pack, unpack) = match content.is_directory() {
        true => ("tar -cC \"$1\" files", "tar -xC \"$1/to\""),
        false => ("cat \"$1/files\"", "cat > \"$1/to/files\""),
    };
    // Output of the end itself bypasses the pipe that its bytes take.
    let receive =
        format!("{{ \"$0\" {receive} --port {PORT} --into /dev/fd/3 3>&1 1>&4 | {unpack}; }} 4>&1");
    let to: SocketAddr = SocketAddr::new(ipv4(Side::B), PORT);
    let send = format!("{pack} | \"$0\" {send} --to {to} {how} --from /dev/stdin");
    let folder = place.folder().to_string_lossy();
    let receiver = link.start(Side::B, "sh", &["-c", &receive, &program, &folder])?;
    let receiver = receiver.says("ready")?;
    pair(receiver, content, || {
        link.start(Side::A, "sh", &["-c", &send, &program, &folder])
    })
}

/// Rate that iperf3 measures, in Mb/s: the options of a link need it.
pub fn iperf3(link: &Link, seconds: u32) -> Result<f64, LinkError> {
    let port = PORT.to_string();
    let server = link.start(Side::B, "iperf3", &["-s", "-1", "-p", &port])?;
    if !server.listens(PORT) {
        return Err(LinkError::Asked("iperf3 does not listen".into()));
    }
    let (host, time) = (ipv4(Side::B).to_string(), seconds.to_string());
    let words = ["-J", "-c", &host, "-p", &port, "-t", &time];
    let text = link.start(Side::A, "iperf3", &words)?.ended(MINUTE)?.text;
    let said: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let bits = said["end"]["sum_received"]["bits_per_second"].as_f64();
    let bits = bits.ok_or_else(|| LinkError::Asked(format!("iperf3 to {}: {text}", target())))?;
    Ok(bits / 1e6)
}
