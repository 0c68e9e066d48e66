//! Whole Ethernet frames out of an interface, by `packet(7)`: needs CAP_NET_RAW in the network
//! namespace.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A socket that sends frames as they are given, and receives none.
#[derive(Debug)]
pub struct RawSocket(OwnedFd);

impl RawSocket {
    /// # Errors
    /// `EPERM` without the capability, `ENODEV` for an interface that is gone.
    pub fn open(interface_index: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: plain integers. Protocol 0 receives nothing.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `socket` just returned it, and nothing else owns it.
        let socket = RawSocket(unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: integers, for which zero is a value.
        let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        name.sll_family = libc::AF_PACKET as libc::sa_family_t;
        name.sll_ifindex = interface_index.cast_signed();
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `name` is a socket address of `len` bytes.
        let result = unsafe { libc::bind(socket.0.as_raw_fd(), (&raw const name).cast(), len) };
        if result == 0 {
            Ok(socket)
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Sends one frame, from its destination address to the end of its payload.
    ///
    /// # Errors
    /// `EINVAL` for one shorter than its header, `EMSGSIZE` for one longer than the interface
    /// takes; `EAGAIN`, `ENOBUFS` or `ENETDOWN` when it did not leave for want of room or of a
    /// link.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the bytes of `frame` may be read.
        let sent = unsafe {
            libc::send(
                self.0.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                flags,
            )
        };
        if sent >= 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}
