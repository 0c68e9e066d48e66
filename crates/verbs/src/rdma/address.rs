//! Socket addresses as C has them, and which device reaches one.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use super::abi::rdma_sockaddr;
use crate::errno::Errno;

/// The socket address at `raw`; `None` for NULL.
///
/// # Errors
/// `EINVAL` for a family other than IPv4 and IPv6, as librdmacm says.
///
/// # Safety
/// `raw` is NULL or points to an address as long as its family says.
pub unsafe fn read(raw: *const sockaddr) -> Result<Option<SocketAddr>, Errno> {
    // SAFETY: the caller's promise; addresses may lie anywhere in C structs.
    unsafe {
        if raw.is_null() {
            return Ok(None);
        }
        let family = raw.cast::<libc::sa_family_t>().read_unaligned();
        match i32::from(family) {
            libc::AF_INET => {
                let sin = raw.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
                Ok(Some(
                    SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into(),
                ))
            }
            libc::AF_INET6 => {
                let sin6 = raw.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
                let port = u16::from_be(sin6.sin6_port);
                let (flow, scope) = (sin6.sin6_flowinfo, sin6.sin6_scope_id);
                Ok(Some(SocketAddrV6::new(ip, port, flow, scope).into()))
            }
            _ => Err(Errno::INVALID),
        }
    }
}

/// The same, where an address of no family (`AF_UNSPEC`) means none, as for sources.
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// As [`read`].
pub unsafe fn read_if_any(raw: *const sockaddr) -> Result<Option<SocketAddr>, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let unspecified = libc::AF_UNSPEC as libc::sa_family_t;
        if raw.is_null() || raw.cast::<libc::sa_family_t>().read_unaligned() == unspecified {
            return Ok(None);
        }
        read(raw)
    }
}

/// A socket address for C.
pub fn to_c(address: &SocketAddr) -> rdma_sockaddr {
    // SAFETY: all zeros is a socket address of no family.
    let mut out: rdma_sockaddr = unsafe { mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: as above.
            let mut sin: sockaddr_in = unsafe { mem::zeroed() };
            sin.sin_family = libc::AF_INET as libc::sa_family_t;
            sin.sin_port = v4.port().to_be();
            sin.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            out.sin = sin;
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let mut sin6: sockaddr_in6 = unsafe { mem::zeroed() };
            sin6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            sin6.sin6_port = v6.port().to_be();
            sin6.sin6_flowinfo = v6.flowinfo();
            sin6.sin6_scope_id = v6.scope_id();
            sin6.sin6_addr.s6_addr = v6.ip().octets();
            out.sin6 = sin6;
        }
    }
    out
}

/// Bytes of a C socket address.
pub fn length(address: &SocketAddr) -> socklen_t {
    let bytes = match address {
        SocketAddr::V4(_) => mem::size_of::<sockaddr_in>(),
        SocketAddr::V6(_) => mem::size_of::<sockaddr_in6>(),
    };
    bytes as socklen_t
}

/// The address from which the kernel would reach `destination`: its routes decide, nothing is sent.
///
/// # Errors
/// `ENETUNREACH`, `EHOSTUNREACH` and whatever else the kernel says of the route.
pub fn source_for(destination: &SocketAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match destination {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    // A datagram socket wants a port; which one means nothing.
    let mut to = *destination;
    to.set_port(ROUTE_PROBE_PORT);
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// `discard`.
const ROUTE_PROBE_PORT: u16 = 9;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        for text in ["10.5.0.2:7471", "[fd00::2]:7471", "[fe80::1%3]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = to_c(&address);
            // SAFETY: an address as long as its family says.
            let back = unsafe { read((&raw const c).cast()) };
            assert_eq!(back, Ok(Some(address)));
        }
    }

    #[test]
    fn other_families_are_refused_and_null_is_nothing() {
        // SAFETY: NULL, or a family and nothing else that is looked at.
        unsafe {
            assert_eq!(read(std::ptr::null()), Ok(None));
            let unix = libc::AF_UNIX as libc::sa_family_t;
            let refused = read((&raw const unix).cast());
            assert_eq!(refused, Err(Errno::INVALID));
            let none = libc::AF_UNSPEC as libc::sa_family_t;
            assert_eq!(read_if_any((&raw const none).cast()), Ok(None));
        }
    }

    #[test]
    fn loopback_is_reached_from_loopback() {
        let to = "127.0.0.1:80".parse().unwrap();
        assert_eq!(source_for(&to).unwrap(), IpAddr::from([127, 0, 0, 1]));
    }
}
