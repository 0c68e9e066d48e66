//! The MTU of the path to a host, as far as the kernel knows it: from a route, or from a router's
//! ICMP error (RFC 1191, RFC 8201), which the kernel keeps for ten minutes.

use crate::host::neighbour::socket_towards;
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// Bytes of the longest IP packet that reaches `destination` in one piece.
///
/// # Errors
/// The system's: no route, descriptors.
pub(crate) fn mtu(interface: u32, source: IpAddr, destination: IpAddr) -> io::Result<u32> {
    let (socket, to) = socket_towards(interface, source, destination)?;
    // Nothing is sent: the kernel only searches for a route.
    socket.connect(to)?;
    mtu_of(&socket, destination)
}

fn mtu_of(socket: &UdpSocket, destination: IpAddr) -> io::Result<u32> {
    let (level, option) = match destination {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mut mtu = 0_u32;
    let mut len = size_of::<u32>() as libc::socklen_t;
    // SAFETY: room for an integer of that size.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut mtu).cast(),
            &raw mut len,
        )
    };
    if got == 0 {
        Ok(mtu)
    } else {
        Err(io::Error::last_os_error())
    }
}
