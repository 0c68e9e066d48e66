//! What the kernel knows of a TCP connection, and the two gates by which its descriptor has the
//! readiness of a lane.
//!
//! *Read gate.* While a lane is open, one byte (a token) lies in the kernel's receive queue. With
//! `SO_RCVLOWAT` above 1 the descriptor is not readable, with 1 it is, and setting 1 wakes whatever
//! waits for it: `tcp_set_rcvlowat` calls `sk_data_ready`, a new event for an edge-triggered epoll
//! also where the gate was open.
//!
//! *Write gate.* A byte sent with `MSG_MORE` stays unsent, and with `TCP_NOTSENT_LOWAT` of 1 the
//! descriptor is not writable; a larger value makes it writable and wakes (`sk_write_space`). The
//! kernel sends the byte after 200 ms in any case: then the descriptor looks writable until the
//! program's next attempt.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::{address, next};

/// More bytes than tokens in the receive queue.
const NEVER_READABLE: c_int = 8192;
/// The byte of tokens. Its value means nothing.
const TOKEN: [u8; 1] = [0];
/// `struct tcp_info` up to `tcpi_bytes_received`.
const INFO_BYTES: usize = 136;

/// The default of `net.core.wmem_max`.
const QUEUE_BYTES: c_int = 212_992;

const TCP_SAVE_SYN: c_int = 27;
const TCP_SAVED_SYN: c_int = 28;
const TCP_NOTSENT_LOWAT: c_int = 25;

/// Reads an option with the layout of `T`, which any bytes are a value of.
fn option<T: Copy + Default>(fd: c_int, level: c_int, name: c_int) -> Option<T> {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: that many bytes.
    let got = unsafe {
        next::getsockopt(
            fd,
            level,
            name,
            (&raw mut value).cast::<c_void>(),
            &raw mut length,
        )
    };
    (got == 0).then_some(value)
}

/// An option that is an integer.
pub fn integer(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    option(fd, level, name)
}

fn set_integer(fd: c_int, level: c_int, name: c_int, value: c_int) -> bool {
    // SAFETY: four bytes.
    unsafe {
        next::setsockopt(
            fd,
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        ) == 0
    }
}

/// Whether a filter sees the packets of the socket.
pub fn has_filter(fd: c_int) -> bool {
    // With no room the kernel answers with the number of instructions, or `EACCES` for eBPF.
    let (got, instructions) = text_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, 0);
    instructions > 0 || got == Err(libc::EACCES)
}

/// Whether another protocol, such as TLS, lies between the program and TCP.
pub fn has_upper_protocol(fd: c_int) -> bool {
    text_option(fd, libc::IPPROTO_TCP, libc::TCP_ULP, NAME_BYTES).1 > 0
}

/// Longest name of such a protocol.
const NAME_BYTES: usize = 16;

/// Reads an option of at most `room` bytes, and gives the length that the kernel says.
fn text_option(fd: c_int, level: c_int, name: c_int, room: usize) -> (Result<(), c_int>, usize) {
    let mut bytes = [0u8; NAME_BYTES];
    let mut length = room as libc::socklen_t;
    let to = bytes.as_mut_ptr().cast::<c_void>();
    // SAFETY: at most the bytes of the buffer.
    let got = unsafe { next::getsockopt(fd, level, name, to, &raw mut length) };
    if got == 0 {
        (Ok(()), length as usize)
    } else {
        (Err(airdma_preload::errno::current()), 0)
    }
}

/// Whether it is a TCP socket.
pub fn is_tcp(fd: c_int) -> bool {
    let is = |name, value| integer(fd, libc::SOL_SOCKET, name) == Some(value);
    is(libc::SO_PROTOCOL, libc::IPPROTO_TCP)
}

/// The time after which a blocking call on the socket gives up, in milliseconds; -1 without one.
pub fn timeout_ms(fd: c_int, name: c_int) -> c_int {
    #[derive(Clone, Copy, Default)]
    #[repr(C)]
    struct Time {
        seconds: i64,
        microseconds: i64,
    }
    let time: Time = option(fd, libc::SOL_SOCKET, name).unwrap_or_default();
    let ms = time.seconds.saturating_mul(1000) + time.microseconds.div_euclid(1000);
    if time.seconds == 0 && time.microseconds == 0 {
        -1
    } else {
        c_int::try_from(ms.max(1)).unwrap_or(c_int::MAX)
    }
}

/// Whether calls on the descriptor do not block.
pub fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: plain integers.
    let flags = unsafe { next::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Asks for the SYN of each later connection to the listener.
pub fn save_syn(listener: c_int) {
    // Refused for other kinds of sockets, which have no lanes.
    set_integer(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN, 1);
}

/// The peer's initial sequence number, of a connection that was accepted with [`save_syn`]. The
/// kernel hands it out once.
pub fn peer_initial_sequence(fd: c_int) -> Option<u32> {
    let mut header = [0u8; 256];
    let mut length = header.len() as libc::socklen_t;
    // SAFETY: that many bytes.
    let got = unsafe {
        next::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            TCP_SAVED_SYN,
            header.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if got != 0 {
        return None;
    }
    let header = header.get(..length as usize)?;
    let tcp = header.get(ip_header(header)?.bytes..)?;
    sequence(tcp)
}

/// The two ends of a connection: own and peer's address, IPv4 addresses as such.
pub fn ends(fd: c_int) -> Option<(SocketAddr, SocketAddr)> {
    Some((address::own(fd)?, address::peer(fd)?))
}

/// How far a connection's stream is, in the kernel's view: bytes of each direction since the
/// handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Bytes that were written to it.
    pub written: u64,
    /// How many of them the peer's kernel has not acknowledged.
    pub unacknowledged: u64,
    /// Bytes that were read from it.
    pub read: u64,
}

/// The positions of an established connection in both directions; `active`: this end connected.
///
/// Nothing may write to or read from it meanwhile. `None` if its state is another, or if packets
/// keep changing it.
pub fn positions(fd: c_int, active: bool) -> Option<Positions> {
    let seen = look(fd)?;
    if seen.info.state != TCP_ESTABLISHED {
        return None;
    }
    // The kernel counts the SYN of the end that connected among the acknowledged bytes.
    let acknowledged = seen.info.acknowledged.checked_sub(u64::from(active))?;
    Some(Positions {
        written: acknowledged + seen.unacknowledged,
        unacknowledged: seen.unacknowledged,
        read: seen.info.received.checked_sub(seen.unread)?,
    })
}

/// Bytes that were read from a connection, also of one that has ended; `None` as for
/// [`positions`].
pub fn read_position(fd: c_int) -> Option<u64> {
    let seen = look(fd)?;
    // The kernel counts the peer's FIN among the received bytes, and not among the unread ones.
    let has_fin = AFTER_FIN.contains(&seen.info.state);
    let received = seen.info.received.checked_sub(u64::from(has_fin))?;
    received.checked_sub(seen.unread)
}

struct Look {
    info: Info,
    unacknowledged: u64,
    unread: u64,
}

/// Counters of one moment; `None` if packets keep changing them.
fn look(fd: c_int) -> Option<Look> {
    for _ in 0..64 {
        let before = info(fd)?;
        let unacknowledged = count(fd, libc::TIOCOUTQ)?;
        let unread = count(fd, libc::FIONREAD)?;
        if info(fd)? == before {
            return Some(Look {
                info: before,
                unacknowledged,
                unread,
            });
        }
    }
    None
}

/// States of the kernel.
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;
/// States with the peer's FIN: `TCP_CLOSE_WAIT`, `TCP_LAST_ACK`, `TCP_CLOSING`.
const AFTER_FIN: [u8; 3] = [8, 9, 11];

#[derive(PartialEq, Eq)]
struct Info {
    state: u8,
    acknowledged: u64,
    received: u64,
}

fn info(fd: c_int) -> Option<Info> {
    let mut bytes = [0u8; INFO_BYTES];
    let mut length = INFO_BYTES as libc::socklen_t;
    // SAFETY: that many bytes.
    let got = unsafe {
        next::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if got != 0 || (length as usize) < INFO_BYTES {
        return None;
    }
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some(Info {
        state: bytes[0],
        acknowledged: word(120)?,
        received: word(128)?,
    })
}

/// Whether the connection is established, with no end of either direction.
pub fn is_established(fd: c_int) -> bool {
    info(fd).is_some_and(|info| info.state == TCP_ESTABLISHED)
}

/// Whether the kernel has ended the connection: by a reset, or a time-out.
pub fn is_ended(fd: c_int) -> bool {
    info(fd).is_some_and(|info| info.state == TCP_CLOSE)
}

/// Whether it has, or the peer's kernel has ended its stream.
pub fn has_end(fd: c_int) -> bool {
    let is_end = |state| state == TCP_CLOSE || AFTER_FIN.contains(&state);
    info(fd).is_some_and(|info| is_end(info.state))
}

/// Whether the kernel's queue has room.
pub fn is_writable(fd: c_int) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one entry.
    let ready = unsafe { next::poll(&raw mut entry, 1, 0) };
    ready == 1 && entry.revents & libc::POLLOUT != 0
}

/// Writes bytes for which there is room; how many the kernel took.
pub fn send_some(fd: c_int, bytes: &[u8]) -> usize {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: that many bytes.
    let sent = unsafe { next::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).unwrap_or(0)
}

/// Ends a connection by RST: processes at both ends get errors, and never an end of the stream.
pub fn abort(fd: c_int) {
    // SAFETY: all zeros is an address of the family `AF_UNSPEC`.
    let ended = unsafe {
        let nowhere: libc::sockaddr = std::mem::zeroed();
        next::connect(
            fd,
            &raw const nowhere,
            size_of::<libc::sockaddr>() as libc::socklen_t,
        )
    };
    if ended != 0 {
        // A kernel that refuses it while a thread waits in the socket.
        reset_at_close(fd);
        // SAFETY: plain integers.
        unsafe { next::shutdown(fd, libc::SHUT_RDWR) };
    }
}

/// How long `close(2)` waits for the peer's kernel, if the program has asked for that; zero: it
/// ends the connection by RST.
pub fn linger(fd: c_int) -> Option<Duration> {
    let [is_on, seconds]: [c_int; 2] = option(fd, libc::SOL_SOCKET, libc::SO_LINGER)?;
    (is_on != 0).then(|| Duration::from_secs(u64::from(seconds.unsigned_abs())))
}

/// The kernel ends the connection of a host that is dead after some minutes.
pub fn keep_alive(fd: c_int) {
    set_integer(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set_integer(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60);
    set_integer(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 15);
    set_integer(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 8);
}

/// `close(2)` ends the connection by RST from now on.
pub fn reset_at_close(fd: c_int) {
    set_linger(fd, 1);
}

/// `close(2)` does not wait from now on.
pub fn linger_no_more(fd: c_int) {
    set_linger(fd, 0);
}

fn set_linger(fd: c_int, is_on: c_int) {
    let linger = libc::linger {
        l_onoff: is_on,
        l_linger: 0,
    };
    // SAFETY: the option's structure.
    unsafe {
        next::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        );
    }
}

/// Gives the kernel's queue the room that it has for a program that asks for much, unless it has
/// more.
pub fn widen_send_queue(fd: c_int) {
    // The kernel doubles it, and takes no more than `net.core.wmem_max`.
    let has_less = |bytes| bytes < 2 * QUEUE_BYTES;
    if integer(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).is_some_and(has_less) {
        set_integer(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, QUEUE_BYTES);
    }
}

/// An ioctl that returns a number of bytes.
pub fn count(fd: c_int, request: libc::Ioctl) -> Option<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: the request stores an integer.
    let got = unsafe { next::ioctl(fd, request, (&raw mut bytes).cast()) };
    (got == 0).then(|| u64::from(bytes.unsigned_abs()))
}

/// Sends bytes and learns the sequence number of the first.
///
/// The kernel loops a packet with its headers back to its socket's error queue if a time stamp is
/// asked for when it is queued (`SOF_TIMESTAMPING_TX_SCHED`), which needs no privilege unless
/// `net.core.tstamp_allow_data` is 0. Call it only where the packet leaves at once: nothing is
/// unacknowledged, and the socket is not corked.
pub fn send_and_learn(fd: c_int, bytes: &[u8]) -> (isize, Option<u32>) {
    const TX_SCHED: u32 = 1 << 8;
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    #[repr(C, align(8))]
    struct Control([u8; 24]);
    let mut control = Control([0; 24]);
    // SAFETY: a message of one part and room for one control message of four bytes.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SO_TIMESTAMPING;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<u32>().write(TX_SCHED);
        next::sendmsg(
            fd,
            &raw const message,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    if sent != bytes.len() as isize {
        return (sent, None);
    }
    let mut packet = [0u8; 256];
    // SAFETY: that many bytes.
    let got = unsafe {
        next::recv(
            fd,
            packet.as_mut_ptr().cast(),
            packet.len(),
            libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
        )
    };
    let packet = usize::try_from(got).ok().and_then(|got| packet.get(..got));
    let found = packet.and_then(|packet| own_sequence(packet, ends(fd)?));
    (sent, found)
}

/// The sequence number of a looped packet between two ends, behind any link header.
fn own_sequence(packet: &[u8], (own, peer): (SocketAddr, SocketAddr)) -> Option<u32> {
    (0..=22).step_by(2).find_map(|link_header| {
        let packet = packet.get(link_header..)?;
        let ip = ip_header(packet)?;
        let tcp = packet.get(ip.bytes..)?;
        let port = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
        let is_it = ip.source == own.ip()
            && ip.destination == peer.ip()
            && port(0)? == own.port()
            && port(2)? == peer.port();
        is_it.then(|| sequence(tcp)).flatten()
    })
}

struct IpHeader {
    bytes: usize,
    source: IpAddr,
    destination: IpAddr,
}

/// The IP header at the beginning of a packet, if TCP's follows.
fn ip_header(packet: &[u8]) -> Option<IpHeader> {
    let first = *packet.first()?;
    match first >> 4 {
        4 => {
            let at = |at: usize| <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok();
            (*packet.get(9)? == libc::IPPROTO_TCP as u8).then_some(())?;
            Some(IpHeader {
                bytes: usize::from(first & 0xf) * 4,
                source: IpAddr::from(at(12)?),
                destination: IpAddr::from(at(16)?),
            })
        }
        6 => {
            let at = |at: usize| <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok();
            (*packet.get(6)? == libc::IPPROTO_TCP as u8).then_some(())?;
            Some(IpHeader {
                bytes: 40,
                source: IpAddr::from(at(8)?),
                destination: IpAddr::from(at(24)?),
            })
        }
        _ => None,
    }
}

fn sequence(tcp: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(tcp.get(4..8)?.try_into().ok()?))
}

/// Opens the read gate, and wakes what waits for it.
pub fn open_read_gate(fd: c_int) {
    set_integer(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
}

/// Shuts the read gate.
pub fn shut_read_gate(fd: c_int) {
    set_integer(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, NEVER_READABLE);
}

/// The descriptor is readable with that many bytes. Wakes what waits for them.
pub fn set_readable_from(fd: c_int, least: u64) {
    let least = c_int::try_from(least).unwrap_or(NEVER_READABLE);
    set_integer(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, least);
}

/// Sends what waits for further bytes.
pub fn push(fd: c_int) {
    // Setting it does so, also where it is set, and on a corked socket.
    let before = integer(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    set_integer(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    if before == Some(0) {
        set_integer(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 0);
    }
}

/// Ends one direction, as `shutdown(2)` does.
pub fn shut(fd: c_int, how: c_int) {
    // SAFETY: plain integers.
    unsafe { next::shutdown(fd, how) };
}

/// Opens the write gate, and wakes what waits for it.
pub fn open_write_gate(fd: c_int) {
    set_integer(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0);
}

/// Shuts the write gate, at the price of a token. Whether it cost one.
pub fn shut_write_gate(fd: c_int) -> bool {
    let paid = send_token(fd, libc::MSG_MORE);
    set_integer(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1);
    paid
}

/// Sends one token. Whether the kernel took it.
pub fn send_token(fd: c_int, flags: c_int) -> bool {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one byte.
    unsafe { next::send(fd, TOKEN.as_ptr().cast(), 1, flags) == 1 }
}

/// Takes at most `most` bytes, which are tokens, from the receive queue; how many there were.
pub fn take_tokens(fd: c_int, most: u64) -> u64 {
    let mut tokens = [0u8; 256];
    let mut taken = 0;
    while taken < most {
        let length =
            usize::try_from(most - taken).map_or(tokens.len(), |left| left.min(tokens.len()));
        // SAFETY: at most the bytes of the buffer.
        let got = unsafe { next::recv(fd, tokens.as_mut_ptr().cast(), length, libc::MSG_DONTWAIT) };
        match u64::try_from(got) {
            Ok(got) if got > 0 => taken += got,
            _ => break,
        }
    }
    taken
}

/// Reads at most `most` tokens; 0 at the end of the stream.
pub fn read_tokens(fd: c_int, most: u64) -> Result<u64, c_int> {
    let mut tokens = [0u8; 256];
    let length = usize::try_from(most).map_or(tokens.len(), |most| most.min(tokens.len()));
    // SAFETY: at most the bytes of the buffer.
    let got = unsafe { next::recv(fd, tokens.as_mut_ptr().cast(), length, libc::MSG_DONTWAIT) };
    u64::try_from(got).map_err(|_| airdma_preload::errno::current())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_read_position_does_not_count_the_end_of_the_stream() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut passive, _) = listener.accept().unwrap();
        let fd = passive.as_raw_fd();
        active.write_all(b"ten bytes!").unwrap();
        passive.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(read_position(fd), Some(4));
        assert_eq!(positions(fd, false).unwrap().read, 4);
        active.shutdown(Shutdown::Write).unwrap();
        // The kernel has the end once a peek at all of it does not wait for more.
        let mut all = [0; 11];
        while info(fd).unwrap().state == TCP_ESTABLISHED {
            passive.peek(&mut all).unwrap();
        }
        assert_eq!(read_position(fd), Some(4));
        assert_eq!(positions(fd, false), None);
        assert_eq!(passive.read(&mut all).unwrap(), 6);
        assert_eq!(passive.read(&mut all).unwrap(), 0);
        assert_eq!(read_position(fd), Some(10));
    }
}
