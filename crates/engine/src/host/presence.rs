//! Whether the process at the other end of a silent connection is stopped, or starved: it exists,
//! and does not run.
//!
//! An airdma process listens at a TCP port of each address that it has reliable connections from.
//! The port is that of its range of queue pair numbers: one of 256 from [`FIRST_PORT`] on. Its
//! kernel completes handshakes and takes bytes there even while the process does not run, and
//! refuses and resets once it has ended. The progress thread closes what it accepts. A requester
//! whose peer is silent connects, and sends a byte.
//!
//! | answer | meaning |
//! |---|---|
//! | the connection stays open | the process does not run: its silence is [excused](airdma_transport::QueuePair::excuse_silence) |
//! | it is closed | the process runs, and the queue pair at the other end is gone; or it has just ended |
//! | a refusal, none | nothing: an adapter, an older airdma, a firewall, or process or host is gone |
//!
//! All but the first change nothing: silence counts. With `TCP_DEFER_ACCEPT` a handshake without
//! data wakes no process.

use crate::host::neighbour::{at, is_own_link, leave_by};
use crate::progress::poll_set::PollSet;
use crate::progress::progress_thread::Caller;
use airdma_port::descriptors::{self, keep_away};
use airdma_transport::Time;
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// The port of range 0.
const FIRST_PORT: u16 = 24_791;
/// Time between the beginnings of two questions to a process.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A process that runs has closed the connection by then.
const RUNS_WITHIN: Duration = Duration::from_millis(100);
/// The kernel repeats an unanswered SYN after 1 s and 3 s.
const CONNECTED_BY: Duration = Duration::from_secs(5);
/// A question that no queue pair has looked at for as long is over.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);
/// Whether the host still exists is asked by the kernel: each second, three times in vain.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVES: u32 = 3;
/// Most processes that are asked at a time.
const QUESTIONS_MAX: usize = 64;
/// Seconds in which data has to follow a handshake.
const DATA_WITHIN_S: libc::c_int = 1;
/// Most questions that wait at a process that does not run.
const BACKLOG: libc::c_int = 64;

/// The listeners of a device, and its questions to silent peers.
pub(crate) struct Presence {
    interface: u32,
    /// Wakes the progress thread while a question waits at a listener.
    callers: Arc<PollSet>,
    /// By address and port.
    listeners: BTreeMap<SocketAddr, Socket>,
    /// By their address and port, and ours.
    questions: BTreeMap<(SocketAddr, IpAddr), Question>,
}

struct Question {
    asked_at: Time,
    looked_at: Time,
    /// Until it is answered.
    socket: Option<Socket>,
    /// When the byte was sent.
    sent_at: Option<Time>,
}

impl Presence {
    /// `callers`: in which listeners are [`Caller::Peer`], so that [`answer`](Self::answer) is
    /// called.
    pub(crate) fn new(interface: u32, callers: Arc<PollSet>) -> Self {
        Presence {
            interface,
            callers,
            listeners: BTreeMap::new(),
            questions: BTreeMap::new(),
        }
    }

    /// Lets peers of queue pairs of a range, connected from this address, ask for this process. If
    /// the system refuses, as it does while a service has the port, the next connection tries
    /// again.
    pub(crate) fn listen(&mut self, local: IpAddr, range: u8) {
        let address = at(self.interface, local, port_of(range));
        if !self.listeners.contains_key(&address)
            && let Ok(listener) = listener(address)
            && (self.callers)
                .add_as(listener.as_raw_fd(), Caller::Peer as u64)
                .is_ok()
        {
            self.listeners.insert(address, listener);
        }
    }

    /// Closes the connections that wait: this process runs. Without a descriptor for that, the
    /// listener is closed: it would be ready for ever, and the process seem to be stopped.
    pub(crate) fn answer(&mut self) {
        self.listeners.retain(|_, listener| {
            for _ in 0..=BACKLOG {
                match descriptors::accept(listener) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(_) => return false,
                }
            }
            true
        });
    }

    /// The listeners, which a child of a fork must not keep open.
    pub(crate) fn lifelines(&self) -> impl Iterator<Item = RawFd> {
        self.listeners.values().map(AsRawFd::as_raw_fd)
    }

    /// Whether the process at `remote` with this range of queue pair numbers exists and does not
    /// run. The answer to a question that this asks is told by a later call.
    pub(crate) fn is_stopped(
        &mut self,
        local: IpAddr,
        (remote, range): (IpAddr, u8),
        now: Time,
    ) -> bool {
        let ends = (at(self.interface, remote, port_of(range)), local);
        if !self.questions.contains_key(&ends) {
            (self.questions).retain(|_, question| !question.is_over(now));
            if self.questions.len() >= QUESTIONS_MAX {
                return false;
            }
        }
        let interface = self.interface;
        let ask = || ask(interface, local, ends.0).ok();
        let question = self.questions.entry(ends).or_insert_with(|| Question {
            asked_at: now,
            looked_at: now,
            socket: ask(),
            sent_at: None,
        });
        question.look(now);
        if question.socket.is_none() && now >= question.asked_at + ASK_AGAIN {
            (question.socket, question.asked_at) = (ask(), now);
            question.look(now);
        }
        question.sent_at.is_some_and(|at| now >= at + RUNS_WITHIN)
    }
}

impl Question {
    /// Takes the next step that is possible.
    fn look(&mut self, now: Time) {
        self.looked_at = now;
        let Some(mut socket) = self.socket.as_ref() else {
            return;
        };
        let goes_on = if self.sent_at.is_some() {
            let read = socket.read(&mut [0]);
            read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        } else {
            match is_connected(socket) {
                Ok(true) => {
                    self.sent_at = Some(now);
                    socket.write(&[0]).is_ok()
                }
                Ok(false) => now < self.asked_at + CONNECTED_BY,
                Err(_) => false,
            }
        };
        if !goes_on {
            (self.socket, self.sent_at) = (None, None);
        }
    }

    fn is_over(&self, now: Time) -> bool {
        now >= self.looked_at + FORGOTTEN_AFTER
            || self.socket.is_none() && now >= self.asked_at + ASK_AGAIN
    }
}

fn port_of(range: u8) -> u16 {
    FIRST_PORT + u16::from(range)
}

fn listener(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        None,
    )?;
    // An earlier process of the range may have left connections that are about to end.
    socket.set_reuse_address(true)?;
    let seconds = DATA_WITHIN_S;
    // SAFETY: an integer of that size.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of_val(&seconds) as libc::socklen_t,
        )
    };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(Socket::from(keep_away(OwnedFd::from(socket))))
}

/// Begins to connect.
fn ask(interface: u32, local: IpAddr, remote: SocketAddr) -> io::Result<Socket> {
    let from = at(interface, local, 0);
    let socket = Socket::new(Domain::for_address(from), Type::STREAM.nonblocking(), None)?;
    // It ends with a reset, not with a connection that lingers.
    socket.set_linger(Some(Duration::ZERO))?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    let keepalive = keepalive.with_interval(KEEPALIVE).with_retries(KEEPALIVES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.bind(&SockAddr::from(from))?;
    if is_own_link(interface, local, remote.ip()) {
        leave_by(&socket, interface, local)?;
    }
    match socket.connect(&SockAddr::from(remote)) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        Ok(()) | Err(_) => Ok(socket),
    }
}

/// Whether the handshake is done.
fn is_connected(socket: &Socket) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
