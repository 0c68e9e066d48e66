//! A sender and a receiver of bare datagrams.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::peer::Received;

/// The longest UDP payload that one call can send or receive.
const CALL_BYTES_MAX: usize = 65507;
/// Segments of one call that every kernel accepts.
const SEGMENTS_MAX: usize = 64;
/// Buffer that the receiver copies into: as large as the largest message measured, so that caches
/// see the same footprint as with RDMA.
const DESTINATION_BYTES: usize = 1 << 20;
const SOCKET_BUFFER_BYTES: libc::c_int = 4 << 20;
const SILENCE: Duration = Duration::from_secs(2);
const FIRST: Duration = Duration::from_secs(20);
/// Payload of the sender's last datagram.
const LAST: &[u8] = b".";

/// Counts payload until the last datagram, or until none has come for two seconds.
pub fn receive(port: u16, offload: bool) -> io::Result<Received> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    enlarge(&socket, libc::SO_RCVBUF, libc::SO_RCVBUFFORCE);
    if offload {
        set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    }
    let mut arrived = vec![0; CALL_BYTES_MAX + 1];
    let mut destination = vec![0; DESTINATION_BYTES];
    let mut at = 0;
    let (mut bytes, mut first, mut last) = (0, None, Instant::now());
    socket.set_read_timeout(Some(FIRST))?;
    loop {
        let length = match socket.recv(&mut arrived) {
            Ok(length) if length > LAST.len() => length,
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        };
        if at + length > destination.len() {
            at = 0;
        }
        destination[at..at + length].copy_from_slice(&arrived[..length]);
        at += length;
        last = Instant::now();
        if first.is_none() {
            // The time that the first call's datagrams took is unknown.
            first = Some(last);
            socket.set_read_timeout(Some(SILENCE))?;
        } else {
            bytes += length as u64;
        }
    }
    std::hint::black_box(&destination);
    let seconds = first.map_or(0.0, |first| last.duration_since(first).as_secs_f64());
    Ok(Received { bytes, seconds })
}

/// Sends as fast as the socket accepts data, then repeats [`LAST`].
pub fn send(
    to: SocketAddr,
    datagram: usize,
    message: usize,
    seconds: u32,
    offload: bool,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        (2..=CALL_BYTES_MAX).contains(&datagram) && message > 0,
        "nothing to send"
    );
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    enlarge(&socket, libc::SO_SNDBUF, libc::SO_SNDBUFFORCE);
    let in_call = if offload {
        set(
            &socket,
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            datagram as libc::c_int,
        )?;
        datagram * (CALL_BYTES_MAX / datagram).min(SEGMENTS_MAX)
    } else {
        datagram
    };
    let source = vec![0x5a; message];
    let deadline = Instant::now() + Duration::from_secs(seconds.into());
    while Instant::now() < deadline {
        for part in source.chunks(in_call) {
            transmit(&socket, part)?;
        }
    }
    if offload {
        set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0)?;
    }
    for _ in 0..20 {
        // The receiver may have ended after the first one.
        let _ = socket.send(LAST);
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Sends one part, which must not look like [`LAST`].
fn transmit(socket: &UdpSocket, part: &[u8]) -> io::Result<()> {
    let part = if part.len() > LAST.len() { part } else { b".." };
    match socket.send(part) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Enlarges a socket buffer as far as permitted; `forced` takes CAP_NET_ADMIN.
fn enlarge(socket: &UdpSocket, option: libc::c_int, forced: libc::c_int) {
    if set(socket, libc::SOL_SOCKET, forced, SOCKET_BUFFER_BYTES).is_err() {
        let _ = set(socket, libc::SOL_SOCKET, option, SOCKET_BUFFER_BYTES);
    }
}

fn set(
    socket: &UdpSocket,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the socket is open; the value is an int that lives through the call, with its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receiver_counts_what_came_and_ends_with_the_sender() {
        for offload in [false, true] {
            // A port without a socket.
            let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let receiver = thread::spawn(move || receive(port, offload));
            thread::sleep(Duration::from_millis(300));
            let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            send(to, 1472, 65536, 1, offload).unwrap();
            let received = receiver.join().unwrap().unwrap();
            assert!(received.bytes > 1 << 20, "{received:?}");
            assert!((0.5..1.5).contains(&received.seconds), "{received:?}");
        }
    }
}
