//! Socket addresses in the kernel's layout.

use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::control::FLOW_LABEL_MASK;

/// Room for an IPv4 or IPv6 socket address as the kernel writes and reads it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union SocketAddress {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// Bytes to offer the kernel for an address it writes.
pub(crate) const ADDRESS_ROOM: libc::socklen_t = size_of::<SocketAddress>() as libc::socklen_t;

impl SocketAddress {
    pub(crate) const fn zeroed() -> Self {
        // SAFETY: the union holds integers only; all zero is a value of each of them (family
        // AF_UNSPEC).
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// `scope` is the interface that link-local addresses and groups are meant on.
    pub(crate) fn new(address: IpAddr, port: u16, scope: u32) -> Self {
        let mut this = Self::zeroed();
        match address {
            IpAddr::V4(ip) => {
                this.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: port.to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(ip.octets()),
                    },
                    sin_zero: [0; 8],
                };
            }
            IpAddr::V6(ip) => {
                this.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: port.to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr {
                        s6_addr: ip.octets(),
                    },
                    sin6_scope_id: if ip.is_unicast_link_local() || ip.is_multicast() {
                        scope
                    } else {
                        0
                    },
                };
            }
        }
        this
    }

    /// The same with an IPv6 flow label; IPv4 has none.
    pub(crate) fn with_flow_label(mut self, label: u32) -> Self {
        if self.family() == libc::AF_INET6 {
            self.v6.sin6_flowinfo = (label & FLOW_LABEL_MASK).to_be();
        }
        self
    }

    /// Length of the valid part; 0 when neither family was written.
    pub(crate) fn len(&self) -> libc::socklen_t {
        match self.family() {
            libc::AF_INET => size_of::<libc::sockaddr_in>() as libc::socklen_t,
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>() as libc::socklen_t,
            _ => 0,
        }
    }

    /// Address and port, if the kernel wrote either family.
    pub(crate) fn get(&self) -> Option<(IpAddr, u16)> {
        match self.family() {
            libc::AF_INET => {
                // SAFETY: the union is plain integers, initialised in full by `zeroed`.
                let v4 = unsafe { self.v4 };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some((IpAddr::V4(ip), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { self.v6 };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some((IpAddr::V6(ip), u16::from_be(v6.sin6_port)))
            }
            _ => None,
        }
    }

    fn family(&self) -> libc::c_int {
        // SAFETY: both layouts begin with the family, and `zeroed` initialised it.
        libc::c_int::from(unsafe { self.family })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernel_layout() {
        for text in ["127.0.0.1", "10.5.0.1", "::1", "fe80::1", "2001:db8::1"] {
            let address = text.parse().expect("an address");
            let name = SocketAddress::new(address, 4791, 3);
            assert_eq!(name.get(), Some((address, 4791)));
        }
        assert_eq!(SocketAddress::zeroed().get(), None);
        assert_eq!(SocketAddress::zeroed().len(), 0);
    }

    #[test]
    fn only_link_local_addresses_and_groups_have_a_scope() {
        for (text, scope) in [
            ("fe80::1", 3),
            ("ff02::1", 3),
            ("2001:db8::1", 0),
            ("::1", 0),
        ] {
            let address = text.parse().expect("an address");
            let name = SocketAddress::new(address, 4791, 3);
            // SAFETY: plain integers.
            let v6 = unsafe { name.v6 };
            assert_eq!(v6.sin6_scope_id, scope, "{text}");
        }
    }
}
