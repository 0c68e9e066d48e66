//! What the devices of running processes tell of themselves: the other end of the sockets at which
//! they listen ([`airdma_engine::VIEW_NAME_PREFIX`]).
//!
//! Any process of the network namespace may have sockets with such names, and a process of this
//! user may write anything: names, answers and the time for an answer are bounded, and texts are
//! shown with their control characters escaped. Which process and user answers is the kernel's
//! word, not the answer's.

use airdma_engine::{REPORT_VERSION, VIEW_NAME_PREFIX};
use airdma_files::printable;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Most bytes that the kernel's list of sockets may have.
const LIST_BYTES_MAX: u64 = 16 << 20;
/// Most names of sockets that are looked at.
const NAMES_MAX: usize = 4096;
/// Most devices of processes of this user, or for root of any, that are looked at.
pub const VIEWS_MAX: usize = 256;
/// Most bytes of a report: 1,024 queue pairs fit.
const REPORT_BYTES_MAX: usize = 1 << 20;
/// Longest wait for processes that are asked.
pub const PATIENCE: Duration = Duration::from_millis(300);
/// Sockets know no timeout of zero.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);
/// Longest text that is shown of a process.
const TEXT_MAX: usize = 48;

/// A connection to the device of a process.
pub struct View {
    pub pid: u32,
    /// Name of its program, fit to be shown.
    pub program: String,
    reader: BufReader<UnixStream>,
}

/// What is behind the name of a socket.
pub enum Opened {
    View(View),
    /// A socket of another user's.
    Foreign,
    /// None, or one whose process does not answer.
    Gone,
}

/// What a device reports.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Report {
    pub now_ns: u64,
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    #[serde(default)]
    pub send_queue: SendQueue,
    #[serde(default)]
    pub peers: Vec<Peer>,
    #[serde(default)]
    pub queue_pairs: Vec<QueuePair>,
    #[serde(default)]
    pub queue_pairs_total: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct SendQueue {
    pub bytes: u64,
    pub full: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Peer {
    pub address: String,
    pub window_bytes: Option<u64>,
    pub in_flight_bytes: u64,
    pub waiting: u64,
    pub silent: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct QueuePair {
    pub number: u32,
    #[serde(rename = "type")]
    pub service: String,
    pub state: String,
    pub peer: Option<String>,
    pub peer_number: Option<u32>,
    pub sent: u32,
    pub received: u32,
    pub messages_received: u32,
    pub queued: u64,
    pub in_flight_bytes: u64,
    /// Posted, and taken by no message yet.
    #[serde(default)]
    pub receives: Option<u64>,
    #[serde(default)]
    pub shares_receives: bool,
    pub waits_for: String,
}

/// What is read of each report before anything else.
#[derive(Debug, Default, Deserialize)]
struct Version {
    version: Option<u32>,
    airdma: Option<String>,
}

/// An answer that is no report of this version: that of another airdma, mostly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotUnderstood {
    /// What the answer says of its version.
    pub version: String,
}

impl NotUnderstood {
    fn of(version: Version) -> NotUnderstood {
        let airdma = version
            .airdma
            .map(|it| format!("airdma {}", shown(it.as_bytes())));
        let number = version.version.map(|it| format!("report {it}"));
        NotUnderstood {
            version: airdma
                .or(number)
                .unwrap_or_else(|| "unknown version".into()),
        }
    }
}

impl fmt::Display for NotUnderstood {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ours = env!("CARGO_PKG_VERSION");
        write!(
            out,
            "the report of another version ({}) is not understood by airdma {ours}",
            self.version
        )
    }
}

impl std::error::Error for NotUnderstood {}

/// Names of the sockets of devices in this network namespace.
///
/// # Errors
/// `/proc` cannot be read.
pub fn names() -> io::Result<Vec<String>> {
    let mut list = Vec::new();
    File::open("/proc/net/unix")?
        .take(LIST_BYTES_MAX)
        .read_to_end(&mut list)?;
    // Names of others may have any bytes.
    Ok(names_in(&String::from_utf8_lossy(&list)))
}

/// The kernel shows abstract names with an `@`, and all that is not a socket that listens has the
/// same name as the one that does.
fn names_in(list: &str) -> Vec<String> {
    let names = list
        .lines()
        .filter_map(|line| line.rsplit_once(" @"))
        .map(|(_, name)| name)
        .filter(|name| is_view(name));
    let names: std::collections::BTreeSet<&str> = names.collect();
    names.into_iter().take(NAMES_MAX).map(Into::into).collect()
}

fn is_view(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic();
    name.len() <= 64 && name.bytes().all(is_plain) && interface_of(name).is_some()
}

/// The interface of the device with a socket of that name.
pub fn interface_of(name: &str) -> Option<u32> {
    let (interface, _) = name.strip_prefix(VIEW_NAME_PREFIX)?.split_once('-')?;
    interface.parse().ok()
}

impl View {
    /// Connects to the device of that name.
    pub fn open(name: &str) -> Opened {
        let opened = connect(name).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok((peer(&stream)?, stream))
        });
        let Ok(((pid, user), stream)) = opened else {
            return Opened::Gone;
        };
        // SAFETY: no arguments, no failure.
        let ours = unsafe { libc::geteuid() };
        if user != ours && ours != 0 {
            return Opened::Foreign;
        }
        Opened::View(View {
            pid,
            program: program(pid),
            reader: BufReader::new(stream),
        })
    }

    /// Asks for a report.
    ///
    /// # Errors
    /// The process does not answer in time, or not as a device does. The connection is of no use
    /// then.
    pub fn report(&mut self) -> io::Result<Report> {
        self.ask_for_report()?;
        self.take_report(Instant::now() + PATIENCE)
    }

    /// The first half of [`report`](Self::report).
    pub fn ask_for_report(&mut self) -> io::Result<()> {
        self.reader.get_mut().write_all(b"report\n")
    }

    /// The second half, by a time after which only what is there is taken.
    pub fn take_report(&mut self, until: Instant) -> io::Result<Report> {
        let line = self.answer(until)?;
        Report::parse(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Asks for something, and reads the first line of the answer.
    pub fn ask(&mut self, request: &str) -> io::Result<String> {
        self.reader.get_mut().write_all(request.as_bytes())?;
        self.answer(Instant::now() + PATIENCE)
    }

    /// The next line, all of which has to be there in time.
    fn answer(&mut self, until: Instant) -> io::Result<String> {
        let mut line = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait = Some(left.max(SHORTEST_WAIT));
            self.reader.get_ref().set_read_timeout(wait)?;
            let there = self.reader.fill_buf()?;
            let end = there.iter().position(|&byte| byte == b'\n');
            line.extend_from_slice(&there[..end.unwrap_or(there.len())]);
            let used = end.map_or(there.len(), |end| end + 1);
            self.reader.consume(used);
            if end.is_some() {
                return String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData.into());
            }
            if used == 0 || line.len() > REPORT_BYTES_MAX {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// The rest of an answer.
    pub fn reader(&mut self) -> &mut BufReader<UnixStream> {
        &mut self.reader
    }
}

impl Report {
    fn parse(line: &str) -> Result<Report, NotUnderstood> {
        let version: Version = serde_json::from_str(line).unwrap_or_default();
        if version.version != Some(REPORT_VERSION) {
            return Err(NotUnderstood::of(version));
        }
        let mut report: Report =
            serde_json::from_str(line).map_err(|_| NotUnderstood::of(version))?;
        report.clean();
        Ok(report)
    }

    /// Makes all texts fit to be shown.
    fn clean(&mut self) {
        let is_name = |name: &String| {
            name.len() <= TEXT_MAX
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        self.counters.retain(|name, _| is_name(name));
        for peer in &mut self.peers {
            clean(&mut peer.address);
        }
        for pair in &mut self.queue_pairs {
            clean(&mut pair.service);
            clean(&mut pair.state);
            clean(&mut pair.waits_for);
            pair.peer.iter_mut().for_each(clean);
        }
    }
}

fn clean(text: &mut String) {
    *text = shown(text.as_bytes());
}

/// The beginning of a text, with characters that do not show as escapes.
fn shown(text: &[u8]) -> String {
    printable(text).chars().take(TEXT_MAX).collect()
}

/// Name of the program of a process; a process of another container has no number here.
fn program(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim_ascii_end() {
        [] => "?".into(),
        name => shown(name),
    }
}

/// Fails at once where too many connections wait: its process does not answer.
fn connect(name: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    rustix::net::connect(&socket, &address)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Process and user of the other end.
fn peer(stream: &UnixStream) -> io::Result<(u32, u32)> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room for the struct, and its length.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((credentials.pid.unsigned_abs(), credentials.uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    #[test]
    fn only_names_of_devices_are_taken_from_the_list() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000: 00000002 00000000 00010000 0001 01 101 @airdma-view-2-00ff\n\
            0000: 00000003 00000000 00000000 0001 03 102 @airdma-view-2-00ff\n\
            0000: 00000002 00000000 00010000 0001 01 103 /tmp/airdma-view-3-00\n\
            0000: 00000002 00000000 00010000 0001 01 104 @airdma-view-x\u{1b}[2J\n\
            0000: 00000002 00000000 00010000 0001 01 105 @airdma-view-10-0a\n";
        assert_eq!(names_in(list), ["airdma-view-10-0a", "airdma-view-2-00ff"]);
        let many: String = (0..2 * NAMES_MAX)
            .map(|number| format!("0: 2 0 0 1 1 1 @airdma-view-1-{number:x}\n"))
            .collect();
        assert_eq!(names_in(&many).len(), NAMES_MAX);
    }

    #[test]
    fn a_name_that_is_no_text_hides_no_device() {
        let interface = 0xffff_fff0_u32 - std::process::id();
        let ours = format!("{VIEW_NAME_PREFIX}{interface}-ab");
        let bind = |name: &[u8]| {
            let address = SocketAddr::from_abstract_name(name).expect("short");
            UnixListener::bind_addr(&address).expect("free")
        };
        let _odd = bind(&[&b"\xff\xfe-"[..], ours.as_bytes()].concat());
        let _device = bind(ours.as_bytes());
        assert!(names().expect("/proc").contains(&ours));
    }

    #[test]
    fn an_answer_has_to_be_there_in_time() {
        let (near, mut far) = UnixStream::pair().expect("sockets");
        let mut view = View {
            pid: 1,
            program: String::new(),
            reader: BufReader::new(near),
        };
        let drips = std::thread::spawn(move || {
            while far.write_all(b"x").is_ok() {
                std::thread::sleep(PATIENCE / 10);
            }
        });
        let start = Instant::now();
        let error = view.report().expect_err("no line");
        let late = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(late.contains(&error.kind()), "{error}");
        assert!(start.elapsed() >= PATIENCE && start.elapsed() < 10 * PATIENCE);
        drop(view);
        drips.join().expect("it ends");
    }

    #[test]
    fn a_report_shows_nothing_that_hides() {
        let text = "\\u001b[2J".repeat(40);
        let line = format!(
            r#"{{"version":1,"interface":2,"now_ns":7,"counters":{{"tx_bytes":1,"{text}":2}},
            "queue_pairs":[{{"number":1,"type":"{text}","state":"{text}","peer":"{text}","sent":1,
            "received":2,"messages_received":3,"queued":4,"in_flight_bytes":5,"waits_for":"{text}"}}]}}"#
        );
        let report = Report::parse(&line).expect("valid");
        assert_eq!(report.counters.len(), 1);
        let pair = &report.queue_pairs[0];
        for text in [&pair.service, &pair.state, &pair.waits_for] {
            assert!(
                text.starts_with("\\u{1b}[2J") && text.len() <= TEXT_MAX,
                "{text}"
            );
        }
    }

    #[test]
    fn a_report_of_another_version_says_which() {
        let said = |line: &str| Report::parse(line).expect_err("not understood").version;
        let new = r#"{"version":2,"airdma":"9.1.0\u001b","devices":[]}"#;
        assert_eq!(said(new), "airdma 9.1.0\\u{1b}");
        assert_eq!(said(r#"{"version":3}"#), "report 3");
        // Even where it could be read.
        assert_eq!(said(r#"{"version":2,"now_ns":7}"#), "report 2");
        for odd in ["", "[]", "{}", r#"{"version":-1}"#, r#"{"version":"1"}"#] {
            assert_eq!(said(odd), "unknown version", "{odd}");
        }
        // The version is right, the rest is no report.
        assert_eq!(said(r#"{"version":1,"airdma":"9.1.0"}"#), "airdma 9.1.0");
    }
}
