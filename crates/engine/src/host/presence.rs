//! Whether the process at the other end of a silent connection still exists, which its kernel tells
//! without it.
//!
//! An airdma process listens at a TCP port of each address that it has reliable connections from.
//! The port is that of its range of queue pair numbers: one of 256 from [`FIRST_PORT`] on. Its
//! kernel completes handshakes there even while the process is stopped or starved, and refuses them
//! as soon as it has ended. A requester whose peer is silent begins a handshake, and aborts it when
//! the answer is there.
//!
//! | answer | meaning |
//! |---|---|
//! | SYN and ACK | the process exists: its silence is [excused](airdma_transport::QueuePair::excuse_silence) |
//! | a reset, an ICMP message, none | nothing: an adapter, an older airdma, a firewall, or the process or host is gone; silence counts |
//!
//! Nothing is accepted: with `TCP_DEFER_ACCEPT` a handshake makes no socket before there is data,
//! of which there is none, so a stopped process has no queue that could overflow.

use crate::host::neighbour::{at, is_own_link, leave_by};
use airdma_port::descriptors::keep_away;
use airdma_transport::Time;
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// The port of range 0.
const FIRST_PORT: u16 = 24_791;
/// Time between two questions to a peer.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// For how long an answer is believed. It covers the next timer of all but the longest `timeout`s.
const BELIEVED_FOR: Duration = Duration::from_secs(3);
/// The kernel repeats an unanswered SYN after 1 s and 3 s.
const ANSWER_BY: Duration = Duration::from_secs(5);
/// Most peers that are asked at a time.
const PEERS_MAX: usize = 64;
/// Seconds in which data would have to follow a handshake.
const DATA_WITHIN_S: libc::c_int = 1;
/// Most handshakes with data that wait for a process that accepts none.
const BACKLOG: libc::c_int = 1;

/// The listeners of a device, and its questions to silent peers.
pub(crate) struct Presence {
    interface: u32,
    /// By address and port; none where the system refused: a service has the port.
    listeners: BTreeMap<SocketAddr, Option<Socket>>,
    /// By their address and port, and ours.
    questions: BTreeMap<(SocketAddr, IpAddr), Question>,
}

struct Question {
    asked_at: Time,
    /// Until the answer is there.
    socket: Option<Socket>,
    /// When the last answer came that the process exists.
    exists_at: Option<Time>,
}

impl Presence {
    pub(crate) fn new(interface: u32) -> Self {
        Presence {
            interface,
            listeners: BTreeMap::new(),
            questions: BTreeMap::new(),
        }
    }

    /// Lets the kernel answer the peers of queue pairs of a range, connected from this address.
    pub(crate) fn listen(&mut self, local: IpAddr, range: u8) {
        let address = at(self.interface, local, port_of(range));
        (self.listeners)
            .entry(address)
            .or_insert_with(|| listener(address).ok());
    }

    /// Whether the process at `remote` with this range of queue pair numbers was there within the
    /// last seconds. The answer to a question that this asks is told by a later call.
    pub(crate) fn exists(
        &mut self,
        local: IpAddr,
        (remote, range): (IpAddr, u8),
        now: Time,
    ) -> bool {
        let ends = (at(self.interface, remote, port_of(range)), local);
        if !self.questions.contains_key(&ends) {
            (self.questions).retain(|_, question| !question.is_over(now));
            if self.questions.len() >= PEERS_MAX {
                return false;
            }
        }
        let interface = self.interface;
        let ask = || ask(interface, local, ends.0).ok();
        let question = (self.questions)
            .entry(ends)
            .or_insert_with(|| Question::new(ask(), now));
        question.look(now);
        if question.socket.is_none() && now >= question.asked_at + ASK_AGAIN {
            (question.socket, question.asked_at) = (ask(), now);
            question.look(now);
        }
        question.is_answered(now)
    }
}

impl Question {
    fn new(socket: Option<Socket>, now: Time) -> Self {
        let mut question = Question {
            asked_at: now,
            socket,
            exists_at: None,
        };
        question.look(now);
        question
    }

    /// Takes the answer, if it is there.
    fn look(&mut self, now: Time) {
        let Some(socket) = &self.socket else {
            return;
        };
        match is_connected(socket) {
            Ok(true) => {
                // The handshake ends with a reset, not with a connection that lingers.
                let _kept = socket.set_linger(Some(Duration::ZERO));
                (self.exists_at, self.socket) = (Some(now), None);
            }
            Ok(false) if now < self.asked_at + ANSWER_BY => {}
            Ok(false) | Err(_) => (self.exists_at, self.socket) = (None, None),
        }
    }

    fn is_answered(&self, now: Time) -> bool {
        self.exists_at.is_some_and(|at| now < at + BELIEVED_FOR)
    }

    /// Whether nothing is known by it any more.
    fn is_over(&self, now: Time) -> bool {
        now >= self.asked_at + ANSWER_BY && !self.is_answered(now)
    }
}

fn port_of(range: u8) -> u16 {
    FIRST_PORT + u16::from(range)
}

fn listener(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
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

/// Begins a handshake.
fn ask(interface: u32, local: IpAddr, remote: SocketAddr) -> io::Result<Socket> {
    let from = at(interface, local, 0);
    let socket = Socket::new(Domain::for_address(from), Type::STREAM.nonblocking(), None)?;
    socket.bind(&SockAddr::from(from))?;
    if is_own_link(interface, local, remote.ip()) {
        leave_by(&socket, interface, local)?;
    }
    match socket.connect(&SockAddr::from(remote)) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        Ok(()) | Err(_) => Ok(socket),
    }
}

/// Whether the handshake has got its answer.
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
