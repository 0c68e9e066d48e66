//! The MTU of the path to a host, as far as the kernel knows it: from a route, or from a router's
//! ICMP error (RFC 1191, RFC 8201), which the kernel keeps for ten minutes.

use crate::host::neighbour::{is_own_link, socket_towards};
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// Bytes of the longest IP packet that reaches `destination` in one piece.
///
/// Whether packets leave by the interface although others have the subnet takes many system calls
/// to find out: not if the MTU of the kernel's route `is_enough`.
///
/// # Errors
/// The system's: no route, descriptors.
pub(crate) fn mtu(
    interface: u32,
    source: IpAddr,
    destination: IpAddr,
    is_enough: impl FnOnce(u32) -> bool,
) -> io::Result<u32> {
    let (socket, to) = socket_towards(interface, source, destination)?;
    // Nothing is sent: the kernel only searches for a route.
    socket.connect(to)?;
    let mtu = mtu_of(&socket, destination)?;
    if is_enough(mtu) || !is_own_link(interface, source, destination) {
        return Ok(mtu);
    }
    bind_to(&socket, interface)?;
    socket.connect(to)?;
    mtu_of(&socket, destination)
}

/// Without privilege, as the socket is bound to no interface yet (Linux 5.7).
fn bind_to(socket: &UdpSocket, interface: u32) -> io::Result<()> {
    // SAFETY: an integer of that size.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTOIFINDEX,
            (&raw const interface).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::common::isolated;

    #[test]
    fn in_one_subnet_each_interface_has_its_own_mtu() {
        let setup = "for number in 1 2; do
                ip link add near$number mtu ${number}500 index 7$number type veth peer name far$number
                ip link set near$number up; ip link set far$number up
                ip address add 192.0.2.$number/24 dev near$number
                ip address add fd00::$number/64 dev near$number nodad
            done";
        let test = "host::path::tests::in_one_subnet_each_interface_has_its_own_mtu";
        isolated(test, setup, || {
            let of = |index, source: &str, there: &str| {
                let [source, there] = [source, there].map(|text| text.parse().unwrap());
                mtu(index, source, there, |mtu| mtu >= 2500).unwrap()
            };
            // The kernel's route leaves by the first.
            for (index, source, there, expected) in [
                (71, "192.0.2.1", "192.0.2.9", 1500),
                (72, "192.0.2.2", "192.0.2.9", 2500),
                (71, "fd00::1", "fd00::9", 1500),
                (72, "fd00::2", "fd00::9", 2500),
            ] {
                assert_eq!(of(index, source, there), expected, "{source}");
            }
        });
    }
}
