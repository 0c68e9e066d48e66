//! Several interfaces of a host in one subnet: the kernel sends to the subnet by one of them,
//! whatever the source address. A device is one interface, so datagrams to a host of the subnet
//! leave by its own, as with RDMA hardware. All others, and those to this host, follow the kernel's
//! routes.
//!
//! With `rp_filter=1` that is impossible: the kernel drops packets from an interface by which it
//! would not send, so packets follow the kernel's routes.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Destinations that are remembered; beyond, the first ones are looked at anew.
const KNOWN_MAX: usize = 256;

/// An address whose subnet several interfaces have.
pub struct OwnLink {
    interface_index: u32,
    subnet: Subnet,
    /// Destinations, and whether they lie behind the own interface.
    known: Vec<(IpAddr, bool)>,
}

/// The first bits of addresses, as a number of 128 bits that begins with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subnet {
    is_ipv4: bool,
    bits: u128,
    len: u32,
}

/// An address of an interface, as `getifaddrs(3)` shows it.
struct Held {
    interface: String,
    address: IpAddr,
    subnet: Subnet,
    is_loopback: bool,
}

impl OwnLink {
    /// None where no other interface has the subnet of an address, or the kernel would drop what
    /// comes back.
    pub fn of(address: IpAddr, interface_index: u32) -> Option<Self> {
        if is_link_local(address) || address.is_multicast() || address.is_loopback() {
            return None;
        }
        let held = addresses().ok()?;
        let own = held.iter().find(|held| {
            held.address == address && index_of(&held.interface) == Some(interface_index)
        })?;
        let is_rival = |other: &&Held| {
            !other.is_loopback
                && other.interface != own.interface
                && other.subnet.overlaps(&own.subnet)
        };
        held.iter().find(is_rival)?;
        if address.is_ipv4() && filters_strictly(&own.interface) {
            return None;
        }
        Some(Self {
            interface_index,
            subnet: own.subnet,
            known: Vec::new(),
        })
    }

    /// The interface.
    pub fn interface_index(&self) -> u32 {
        self.interface_index
    }

    /// Whether what goes to `destination` leaves by the own interface.
    pub fn leads_to(&mut self, destination: IpAddr) -> bool {
        if let Some((_, leads)) = self.known.iter().find(|(known, _)| *known == destination) {
            return *leads;
        }
        let leads = self.subnet.has(destination) && !is_of_this_host(destination);
        if self.known.len() == KNOWN_MAX {
            self.known.clear();
        }
        self.known.push((destination, leads));
        leads
    }
}

impl Subnet {
    fn new(address: IpAddr, mask: IpAddr) -> Self {
        let len = number(mask).leading_ones();
        let bits = first(number(address), len);
        let is_ipv4 = address.is_ipv4();
        Self { is_ipv4, bits, len }
    }

    fn has(&self, address: IpAddr) -> bool {
        self.is_ipv4 == address.is_ipv4() && first(number(address), self.len) == self.bits
    }

    fn overlaps(&self, other: &Self) -> bool {
        let len = self.len.min(other.len);
        // A prefix of length 0 has no neighbours, and one of full length leads nowhere.
        let width = if self.is_ipv4 { 32 } else { 128 };
        let is_between = len > 0 && self.len < width && other.len < width;
        is_between
            && self.is_ipv4 == other.is_ipv4
            && first(self.bits, len) == first(other.bits, len)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn first(number: u128, len: u32) -> u128 {
    number & u128::MAX.checked_shl(128 - len).unwrap_or(0)
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Only an address of this host can be bound to.
fn is_of_this_host(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The kernel takes the stricter of both values.
fn filters_strictly(interface: &str) -> bool {
    let value = |of: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{of}/rp_filter");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.trim().parse().unwrap_or(0u32)
    };
    value("all").max(value(interface)) == 1
}

fn index_of(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: a string with its end.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// The addresses of all interfaces that are up.
fn addresses() -> io::Result<Vec<Held>> {
    let mut head = std::ptr::null_mut();
    // SAFETY: `head` may be written; the list it is set to is freed below, once.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = head;
    // SAFETY: each element of the list is valid until it is freed, and ends with a null.
    while let Some(element) = unsafe { next.as_ref() } {
        next = element.ifa_next;
        let has = |flag: libc::c_int| element.ifa_flags & flag.cast_unsigned() != 0;
        // SAFETY: null, or socket addresses whose families say their types.
        let (address, mask) = unsafe { (ip(element.ifa_addr), ip(element.ifa_netmask)) };
        let (Some(address), Some(mask), true) = (address, mask, has(libc::IFF_UP)) else {
            continue;
        };
        // SAFETY: the name of an element is a string with its end.
        let label = unsafe { CStr::from_ptr(element.ifa_name) }.to_string_lossy();
        // IPv4 addresses may have labels like "eth0:1".
        let name = label.split(':').next().unwrap_or_default();
        found.push(Held {
            interface: name.to_owned(),
            address,
            subnet: Subnet::new(address, mask),
            is_loopback: has(libc::IFF_LOOPBACK),
        });
    }
    // SAFETY: the list that getifaddrs made; nothing borrows from it any more.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

/// # Safety
/// `address` is null or points to a socket address as long as its family says.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise; every socket address begins with its family.
    match i32::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: of this family, so of this type.
            let address = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn subnet(address: &str, mask: &str) -> Subnet {
        Subnet::new(address.parse().unwrap(), mask.parse().unwrap())
    }

    #[test]
    fn subnets_overlap_where_one_is_in_the_other() {
        let home = subnet("192.168.1.2", "255.255.255.0");
        assert!(home.has("192.168.1.77".parse().unwrap()));
        assert!(!home.has("192.168.2.77".parse().unwrap()));
        assert!(!home.has("::1".parse().unwrap()));
        assert!(home.overlaps(&subnet("192.168.1.3", "255.255.255.0")));
        assert!(home.overlaps(&subnet("192.168.7.3", "255.255.0.0")));
        assert!(!home.overlaps(&subnet("192.168.7.3", "255.255.255.0")));
        assert!(!home.overlaps(&subnet("192.168.1.3", "255.255.255.255")));
        let six = subnet("fd00::1", "ffff:ffff:ffff:ffff::");
        assert!(six.overlaps(&subnet("fd00::2", "ffff:ffff:ffff:ffff::")));
        assert!(!six.overlaps(&home));
    }
}
