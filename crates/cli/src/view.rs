//! What the devices of running processes tell of themselves: the other end of the sockets at which
//! they listen ([`airdma_engine::VIEW_NAME_PREFIX`]).
//!
//! A process of this user may still write anything: answers are bounded in length, in time and in
//! number, and names are shown with their control characters escaped. Which process answers is the
//! kernel's word, not the answer's.

use airdma_engine::VIEW_NAME_PREFIX;
use airdma_files::printable;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Most bytes that the kernel's list of sockets may have.
const LIST_BYTES_MAX: u64 = 16 << 20;
/// Most devices of processes that are looked at.
const VIEWS_MAX: usize = 256;
/// Most bytes of a report: 1,024 queue pairs fit.
const REPORT_BYTES_MAX: u64 = 1 << 20;
/// Longest wait for a process that is asked.
const PATIENCE: Duration = Duration::from_millis(300);
/// Longest text that is shown of a process.
const TEXT_MAX: usize = 48;

/// A connection to the device of a process.
pub struct View {
    pub pid: u32,
    /// Name of its program, fit to be shown.
    pub program: String,
    reader: BufReader<UnixStream>,
}

/// What a device reports.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Report {
    pub version: u32,
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
    pub waits_for: String,
}

/// Names of the sockets of devices in this network namespace.
///
/// # Errors
/// `/proc` cannot be read.
pub fn names() -> io::Result<Vec<String>> {
    let mut list = String::new();
    File::open("/proc/net/unix")?
        .take(LIST_BYTES_MAX)
        .read_to_string(&mut list)?;
    Ok(names_in(&list))
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
    names.into_iter().take(VIEWS_MAX).map(Into::into).collect()
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
    /// Connects to the device of that name. `None` if it is another user's, or gone.
    pub fn open(name: &str) -> Option<View> {
        let stream = connect(name).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        let (pid, user) = peer(&stream).ok()?;
        // SAFETY: no arguments, no failure.
        let ours = unsafe { libc::geteuid() };
        if user != ours && ours != 0 {
            return None;
        }
        Some(View {
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
        let line = self.ask("report\n")?;
        let mut report: Report = serde_json::from_str(&line)?;
        if report.version != 1 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        report.clean();
        Ok(report)
    }

    /// Asks for something, and reads the first line of the answer.
    pub fn ask(&mut self, request: &str) -> io::Result<String> {
        self.reader.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        (&mut self.reader)
            .take(REPORT_BYTES_MAX)
            .read_line(&mut line)?;
        match line.pop() {
            Some('\n') => Ok(line),
            Some(_) | None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The rest of an answer.
    pub fn reader(&mut self) -> &mut BufReader<UnixStream> {
        &mut self.reader
    }
}

impl Report {
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

    #[test]
    fn only_names_of_devices_are_taken_from_the_list() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000: 00000002 00000000 00010000 0001 01 101 @airdma-view-2-00ff\n\
            0000: 00000003 00000000 00000000 0001 03 102 @airdma-view-2-00ff\n\
            0000: 00000002 00000000 00010000 0001 01 103 /tmp/airdma-view-3-00\n\
            0000: 00000002 00000000 00010000 0001 01 104 @airdma-view-x\u{1b}[2J\n\
            0000: 00000002 00000000 00010000 0001 01 105 @airdma-view-10-0a\n";
        assert_eq!(names_in(list), ["airdma-view-10-0a", "airdma-view-2-00ff"]);
        let many: String = (0..2 * VIEWS_MAX)
            .map(|number| format!("0: 2 0 0 1 1 1 @airdma-view-1-{number:x}\n"))
            .collect();
        assert_eq!(names_in(&many).len(), VIEWS_MAX);
    }

    #[test]
    fn a_report_shows_nothing_that_hides() {
        let text = "\\u001b[2J".repeat(40);
        let line = format!(
            r#"{{"version":1,"interface":2,"now_ns":7,"counters":{{"tx_bytes":1,"{text}":2}},
            "queue_pairs":[{{"number":1,"type":"{text}","state":"{text}","peer":"{text}","sent":1,
            "received":2,"messages_received":3,"queued":4,"in_flight_bytes":5,"waits_for":"{text}"}}]}}"#
        );
        let mut report: Report = serde_json::from_str(&line).expect("valid");
        report.clean();
        assert_eq!(report.counters.len(), 1);
        let pair = &report.queue_pairs[0];
        for text in [&pair.service, &pair.state, &pair.waits_for] {
            assert!(
                text.starts_with("\\u{1b}[2J") && text.len() <= TEXT_MAX,
                "{text}"
            );
        }
    }
}
