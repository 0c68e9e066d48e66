//! What a device tells other processes that look at it: `airdma top` and `airdma capture`.
//!
//! Each device that has its port listens at an abstract Unix socket of its network namespace. The
//! progress thread accepts a connection, and a thread of its own serves it while it is open: a
//! process that is not looked at has no such thread, counts nothing for it, and leaves no file
//! behind, however it ends. Only the same user and root are answered.
//!
//! A request is a line. `report` is answered by a line of JSON ([`crate::core::report`]).
//! `capture snap=BYTES peers=ADDRESS,... numbers=NUMBER,...` is answered by the line `capturing`,
//! and then by records of [`airdma_port::tap`] until the connection is closed.

use crate::core::Core;
use crate::progress::progress_thread::without_signals;
use crate::random::Random;
use airdma_port::descriptors::{self, keep_away};
use airdma_port::local::peer_user;
use airdma_port::tap::{Filter, NUMBERS_MAX, SNAP_MAX, Sink};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What the names of all sockets begin with; the index of the interface and a random number follow.
pub const NAME_PREFIX: &str = "airdma-view-";
/// Answer to a request for packets, before the first record.
pub const CAPTURING: &str = "capturing";

/// Connections at a time. Others are closed at once.
const VIEWERS_MAX: usize = 8;
/// Most bytes of a request.
const REQUEST_BYTES_MAX: u64 = 4096;
/// Addresses of a filter.
const PEERS_MAX: usize = 64;
/// How long a connection may be silent, or not read its answer.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const WRITE_TIME_MAX: Duration = Duration::from_secs(2);
/// How often packets go to their reader.
const PERIOD: Duration = Duration::from_millis(10);
/// How long the end of a device waits for its readers.
const LAST_TIME_MAX: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_micros(100);
/// Packets that wait for that: those of 10 ms at 5 Gb/s. A capture has twice the room, since one
/// buffer is filled while the other is sent.
const QUEUE_BYTES_MAX: usize = 8 << 20;
/// A user without a number in this user namespace: several may seem to be one.
const NOBODY: libc::uid_t = 65_534;

/// The socket of a device, and the connections to it.
pub(crate) struct Viewers {
    listener: UnixListener,
    core: Weak<Core>,
    served: Mutex<Vec<Served>>,
}

struct Served {
    stream: Arc<UnixStream>,
    thread: JoinHandle<()>,
}

impl Served {
    fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }
}

impl Viewers {
    /// Listens for viewers of a device.
    ///
    /// # Errors
    /// Those of the system: a sandbox may forbid it. `PermissionDenied` in a process that others of
    /// its user must not trace either (`PR_SET_DUMPABLE`).
    pub(crate) fn open(core: Weak<Core>, interface: u32) -> io::Result<Self> {
        if !is_traceable() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let number = Random::kernel().secret_u64();
        let name = format!("{NAME_PREFIX}{interface}-{number:016x}");
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Viewers {
            listener: UnixListener::from(keep_away(OwnedFd::from(listener))),
            core,
            served: Mutex::default(),
        })
    }

    /// Readable while a connection waits.
    pub(crate) fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Begins to serve connections that wait: some, since any process can make more.
    ///
    /// # Errors
    /// The program has no descriptor left.
    pub(crate) fn accept(&self) -> io::Result<()> {
        for _ in 0..=VIEWERS_MAX {
            let stream = match descriptors::accept(&self.listener) {
                Ok(stream) => UnixStream::from(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            if !is_admitted(&stream) {
                continue;
            }
            let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
            served.retain(|one| !one.thread.is_finished());
            if served.len() >= VIEWERS_MAX {
                continue;
            }
            let (stream, core) = (Arc::new(stream), Weak::clone(&self.core));
            let its = Arc::clone(&stream);
            let thread = without_signals(|| {
                let thread = thread::Builder::new().name("airdma-viewer".into());
                thread.spawn(move || {
                    // Whatever the reason: the connection ends with the thread.
                    drop(serve(&its, &core));
                    drop(its.shutdown(Shutdown::Both));
                })
            });
            // Without a thread the connection is closed.
            served.extend(thread.map(|thread| Served { stream, thread }));
        }
        Ok(())
    }

    /// Ends all connections, before the device does.
    pub(crate) fn close(&self) {
        let served =
            std::mem::take(&mut *self.served.lock().unwrap_or_else(PoisonError::into_inner));
        let end = |how| {
            for one in &served {
                // One that has ended is not connected.
                drop(one.stream.shutdown(how));
            }
        };
        // They send what they have, to readers that read.
        end(Shutdown::Read);
        let start = Instant::now();
        while start.elapsed() < LAST_TIME_MAX && served.iter().any(Served::is_running) {
            thread::sleep(LAST_PAUSE);
        }
        end(Shutdown::Both);
        for one in served {
            drop(one.thread.join());
        }
    }
}

/// Whether others of this user may look into this process. A program can change it at any time.
fn is_traceable() -> bool {
    // SAFETY: plain integers.
    unsafe { libc::prctl(libc::PR_GET_DUMPABLE) == 1 }
}

/// Whether the other end belongs to this user, or to root, and may look into this process.
fn is_admitted(stream: &UnixStream) -> bool {
    if !is_traceable() {
        return false;
    }
    // SAFETY: no arguments, no failure.
    let ours = unsafe { libc::geteuid() };
    peer_user(stream).is_ok_and(|user| user == 0 || (user == ours && user != NOBODY))
}

/// Answers requests until the other end closes the connection.
fn serve(stream: &UnixStream, core: &Weak<Core>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(WRITE_TIME_MAX))?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        (&mut reader).take(REQUEST_BYTES_MAX).read_line(&mut line)?;
        let Some(request) = line.strip_suffix('\n') else {
            return Ok(());
        };
        if request == "report" {
            let Some(core) = core.upgrade() else {
                return Ok(());
            };
            let mut report = core.report();
            drop(core);
            report.push('\n');
            let mut writer = stream;
            writer.write_all(report.as_bytes())?;
        } else {
            return match Wanted::parse(request) {
                Some(wanted) => capture(stream, core, wanted),
                None => Ok(()),
            };
        }
    }
}

/// What a reader of packets wants.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    filter: Filter,
    snap: usize,
}

impl Wanted {
    fn parse(request: &str) -> Option<Self> {
        let mut wanted = Wanted {
            filter: Filter::default(),
            snap: SNAP_MAX,
        };
        let mut words = request.split(' ');
        if words.next() != Some("capture") {
            return None;
        }
        for word in words {
            let (key, value) = word.split_once('=')?;
            match key {
                "snap" => wanted.snap = value.parse().ok()?,
                "peers" => wanted.filter.peers = list::<IpAddr>(value, PEERS_MAX)?,
                "numbers" => wanted.filter.numbers = list(value, NUMBERS_MAX)?,
                _ => return None,
            }
        }
        Some(wanted)
    }
}

fn list<T: std::str::FromStr>(text: &str, most: usize) -> Option<Vec<T>> {
    let values = text
        .split(',')
        .take(most + 1)
        .map(|value| value.parse().ok());
    let values: Vec<T> = values.collect::<Option<_>>()?;
    (values.len() <= most).then_some(values)
}

/// Sends the packets of the device until the other end closes the connection, or the device is
/// closed.
fn capture(stream: &UnixStream, core: &Weak<Core>, wanted: Wanted) -> io::Result<()> {
    let sink = Arc::new(Sink::new(wanted.filter, wanted.snap, QUEUE_BYTES_MAX));
    if !core.upgrade().is_some_and(|core| core.tap(&sink)) {
        return Ok(());
    }
    let sent = send_packets(stream, core, &sink);
    if let Some(core) = core.upgrade() {
        core.untap(&sink);
    }
    sent
}

fn send_packets(mut stream: &UnixStream, core: &Weak<Core>, sink: &Sink) -> io::Result<()> {
    // A reader that pauses loses packets, which are counted, and stays connected.
    stream.set_write_timeout(None)?;
    stream.set_read_timeout(Some(PERIOD))?;
    writeln!(stream, "{CAPTURING}")?;
    let mut records = Vec::new();
    loop {
        // Nothing is expected but the end, the reader's or the device's.
        let read = stream.read(&mut [0]);
        let is_last = !read.is_err_and(|error| is_pause(&error)) || core.strong_count() == 0;
        sink.take(&mut records);
        stream.write_all(&records)?;
        if is_last {
            return Ok(());
        }
    }
}

fn is_pause(error: &io::Error) -> bool {
    let kinds = [
        ErrorKind::WouldBlock,
        ErrorKind::TimedOut,
        ErrorKind::Interrupted,
    ];
    kinds.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_packets_has_bounded_lists_of_known_words() {
        let parsed = Wanted::parse("capture snap=96 peers=10.0.0.2,fe80::1 numbers=17,18");
        let filter = Filter {
            peers: vec![
                IpAddr::from([10, 0, 0, 2]),
                "fe80::1".parse().expect("valid"),
            ],
            numbers: vec![17, 18],
        };
        assert_eq!(parsed, Some(Wanted { filter, snap: 96 }));
        let all = Wanted::parse("capture").expect("valid");
        assert_eq!((all.filter, all.snap), (Filter::default(), SNAP_MAX));
        let many = vec!["7"; NUMBERS_MAX + 1].join(",");
        let odd = [
            "",
            "captures",
            "capture x=1",
            "capture snap=-1",
            "capture numbers=",
            "capture snap",
        ];
        for request in odd.into_iter().chain([&*format!("capture numbers={many}")]) {
            assert_eq!(Wanted::parse(request), None, "{request}");
        }
    }
}
