//! Options of UDP sockets that lanes have no part in.

use std::ffi::c_int;

use super::Datagrams;
use crate::socket::Socket;

const UDP_CORK: c_int = 1;
const UDP_ENCAP: c_int = 100;
const UDP_SEGMENT: c_int = 103;
const UDP_GRO: c_int = 104;
const SO_TXTIME: c_int = 61;
const IP_RECVFRAGSIZE: c_int = 25;
const IPV6_RECVFRAGSIZE: c_int = 77;
const IPV6_RECVPATHMTU: c_int = 60;
const IPV6_DONTFRAG: c_int = 62;

/// Options by which the kernel does more with a datagram than to carry it.
const KERNELS: &[(c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, SO_TXTIME),
    (libc::IPPROTO_UDP, UDP_CORK),
    (libc::IPPROTO_UDP, UDP_ENCAP),
    (libc::IPPROTO_UDP, UDP_SEGMENT),
    (libc::IPPROTO_UDP, UDP_GRO),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IP, IP_RECVFRAGSIZE),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    (libc::IPPROTO_IPV6, IPV6_RECVFRAGSIZE),
    (libc::IPPROTO_IPV6, IPV6_RECVPATHMTU),
    (libc::IPPROTO_IPV6, IPV6_DONTFRAG),
];

/// Before an option of the program is set.
pub fn set(socket: &'static Socket, level: c_int, name: c_int) {
    if KERNELS.contains(&(level, name)) {
        super::hand_back(socket);
    } else if level == libc::SOL_SOCKET
        && matches!(name, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE)
        && let Ok(mut datagrams) = socket.datagrams.try_lock()
    {
        Datagrams::forget_lengths(&mut datagrams);
    }
}

/// Whether a descriptor is a UDP socket.
pub fn is_udp(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    const FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & !FLAGS == libc::SOCK_DGRAM
        && matches!(protocol, 0 | libc::IPPROTO_UDP)
}
