//! Memory that a socket holds: two queries that the standard library lacks, and the only unsafe
//! code of this crate.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The kernel's account of a socket (`SO_MEMINFO`).
///
/// Bytes are those of the kernel's buffers, bookkeeping included ("truesize"): a datagram of 1,000
/// to 1,472 bytes counts as 2,304, one of ten bytes as 832 (Linux 6.18 on x86-64).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketMemory {
    /// Bytes received and not yet read.
    pub receive_bytes: u32,
    /// Limit of received bytes, beyond which packets are dropped: twice `SO_RCVBUF`.
    pub receive_limit_bytes: u32,
    /// Bytes sent and not yet released by the kernel.
    ///
    /// They wait in the interface's queue, and in the driver's if it keeps the owner of its packets
    /// until they have left. A veth or loopback releases them when the packet crosses.
    pub send_bytes: u32,
    /// Limit of sent bytes, beyond which sends wait or fail with EAGAIN: twice `SO_SNDBUF`.
    pub send_limit_bytes: u32,
    /// Packets dropped because the receive queue was full (what `SO_RXQ_OVFL` counts). Wraps.
    pub dropped: u32,
}

impl SocketMemory {
    /// Reads the account of a socket.
    ///
    /// # Errors
    /// The kernel's error: ENOTSOCK if the descriptor is not a socket.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<SocketMemory> {
        let mut words = [0u32; WORDS];
        let mut bytes = mem::size_of_val(&words) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes into `words`, and the length into
        // `bytes`; both live through the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                words.as_mut_ptr().cast(),
                &mut bytes,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(SocketMemory {
            receive_bytes: words[RECEIVE],
            receive_limit_bytes: words[RECEIVE_LIMIT],
            send_bytes: words[SEND],
            send_limit_bytes: words[SEND_LIMIT],
            dropped: words[DROPS],
        })
    }
}

/// Bytes of a TCP socket that the peer has not acknowledged (`SIOCOUTQ`).
///
/// For a UDP socket: [`SocketMemory::send_bytes`].
///
/// # Errors
/// The kernel's error: ENOTTY if the descriptor is not a socket, EINVAL if the socket listens.
pub fn unsent_bytes(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int, which lives through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u32::try_from(bytes).unwrap_or(0))
}

/// Indices of `SK_MEMINFO_*`.
const RECEIVE: usize = 0;
const RECEIVE_LIMIT: usize = 1;
const SEND: usize = 2;
const SEND_LIMIT: usize = 3;
const DROPS: usize = 8;
const WORDS: usize = 9;
