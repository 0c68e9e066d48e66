//! Addresses of sockets, as the kernel has them. IPv4 addresses are such also on sockets
//! of IPv6.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use crate::tcp;

const IPV6_MTU: c_int = 24;
/// Headers of IP and UDP.
const HEADERS_V4: usize = 28;
const HEADERS_V6: usize = 48;

/// The address in a name of a socket, IPv4 addresses as such.
fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says so, and the storage is large enough for any.
            let v4 = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in6>().read() };
            let ip = IpAddr::from(Ipv6Addr::from(v6.sin6_addr.s6_addr)).to_canonical();
            Some(SocketAddr::new(ip, u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

type Name = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;

/// The address of a `sockaddr`; `None` if it is none of IP.
///
/// # Safety
/// That many bytes are readable there.
pub unsafe fn read(name: *const libc::sockaddr, length: libc::socklen_t) -> Option<SocketAddr> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let room = size_of::<libc::sockaddr_storage>();
    let length = usize::try_from(length).ok()?;
    (length <= room && !name.is_null()).then_some(())?;
    // SAFETY: the caller's promise; all bytes are values of the structure.
    let storage = unsafe {
        ptr::copy_nonoverlapping(name.cast::<u8>(), storage.as_mut_ptr().cast(), length);
        storage.assume_init()
    };
    let least = match c_int::from(storage.ss_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        _ => size_of::<libc::sockaddr_in6>(),
    };
    if length < least {
        return None;
    }
    address(&storage)
}

fn name_of(fd: c_int, get: Name) -> Option<SocketAddr> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: that many zeroed bytes, of which the kernel overwrites some.
    let storage = unsafe {
        if get(fd, storage.as_mut_ptr().cast(), &raw mut length) != 0 {
            return None;
        }
        storage.assume_init()
    };
    address(&storage)
}

/// The address that a socket is bound to.
pub fn own(fd: c_int) -> Option<SocketAddr> {
    name_of(fd, libc::getsockname)
}

/// The address that a socket is connected to.
pub fn peer(fd: c_int) -> Option<SocketAddr> {
    name_of(fd, libc::getpeername)
}

/// The way to a peer.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The own address on it.
    pub own: IpAddr,
    /// Longest datagram that leaves in one frame.
    pub frame_bytes: usize,
}

/// The way to a peer, without a packet.
pub fn route(to: SocketAddr) -> Option<Route> {
    let socket = UdpSocket::bind(any(to)).ok()?;
    socket.connect(to).ok()?;
    let (level, name, headers) = match to.ip() {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU, HEADERS_V4),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, IPV6_MTU, HEADERS_V6),
    };
    let mtu = usize::try_from(tcp::integer(socket.as_raw_fd(), level, name)?).ok()?;
    Some(Route {
        own: socket.local_addr().ok()?.ip(),
        frame_bytes: mtu.checked_sub(headers)?,
    })
}

/// Port 0 of any address of the peer's family.
fn any(of: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match of.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

/// A `sockaddr` for a socket whose own address is of IPv6 or not, and its length.
pub fn written(to: SocketAddr, is_v6: bool) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeros is a value of the structure.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let at = &raw mut storage;
    if let (IpAddr::V4(ip), false) = (to.ip(), is_v6) {
        // SAFETY: the storage holds any address.
        let v4 = unsafe { &mut *at.cast::<libc::sockaddr_in>() };
        v4.sin_family = libc::AF_INET as libc::sa_family_t;
        v4.sin_port = to.port().to_be();
        v4.sin_addr.s_addr = u32::from(ip).to_be();
        return (storage, size_of::<libc::sockaddr_in>() as libc::socklen_t);
    }
    let ip = match to.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    // SAFETY: as above.
    let v6 = unsafe { &mut *at.cast::<libc::sockaddr_in6>() };
    v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
    v6.sin6_port = to.port().to_be();
    v6.sin6_addr.s6_addr = ip.octets();
    (storage, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for (text, is_v6) in [
            ("10.0.0.1:80", false),
            ("10.0.0.1:80", true),
            ("[fd77::1]:65535", true),
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, length) = written(address, is_v6);
            // SAFETY: the storage above.
            let (read, short) = unsafe {
                let at = (&raw const storage).cast();
                (read(at, length), read(at, length - 1))
            };
            assert_eq!((read, short), (Some(address), None), "{text}");
        }
    }

    #[test]
    fn loopback_has_a_way_and_its_frame() {
        let route = route("127.0.0.1:9".parse().unwrap()).unwrap();
        assert!(route.own.is_loopback() && route.frame_bytes > 1000);
    }
}
