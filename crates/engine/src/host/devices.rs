//! RDMA devices, by network interface.

use crate::DeviceConfig;
use crate::config::path_mtu_asked_for;
use crate::host::gids::{GIDS_MAX, GidEntry};
use crate::host::interface::InterfaceQuery;
use airdma_wire::{Gid, PathMtu};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name of the RDMA device: `airdma_` and the interface's name.
    pub name: String,
    /// Name of the interface.
    pub interface: String,
    /// Index of the interface.
    pub interface_index: u32,
    /// MTU of the interface in bytes.
    pub mtu: u32,
    /// MAC address; zero where the interface has none.
    pub mac: [u8; 6],
    /// Node GUID as a number: an EUI-64 from the MAC address, or from the first address if there is
    /// none.
    ///
    /// `guid.to_be_bytes()` is its form on the wire.
    pub guid: u64,
    /// The GID table: at first the IPv4 addresses, then global IPv6, then link-local IPv6.
    ///
    /// While the device is open, rows keep their index: those of removed addresses are empty, and
    /// new addresses take free rows.
    pub gids: Vec<GidEntry>,
    /// Active path MTU: the largest that the interface's MTU carries.
    pub path_mtu: PathMtu,
    /// Whether the interface is up and has a carrier.
    pub up: bool,
    /// Speed of the link in Mb/s, if the driver reports it.
    pub speed_mbps: Option<u32>,
}

/// The devices of this machine, with or without the loopback interface. `current_of` describes a
/// device that this process has open.
pub(crate) fn describe_all(
    loopback: bool,
    current_of: impl Fn(&DeviceInfo) -> Option<DeviceInfo>,
) -> io::Result<Vec<DeviceInfo>> {
    let asked = path_mtu_asked_for()?;
    let query = InterfaceQuery::new()?;
    let unusable = unusable_now();
    let found = interfaces()?;
    let usable = found
        .into_iter()
        .filter(|(_, interface)| interface.up && (loopback || !interface.loopback));
    let mut devices: Vec<_> = usable
        .filter_map(|(name, interface)| describe(&query, name, interface, &unusable))
        .collect();
    for device in &mut devices {
        device.path_mtu = asked.unwrap_or(device.path_mtu);
        if let Some(opened) = current_of(device) {
            *device = opened;
        }
    }
    devices.sort_by_key(|device| device.interface_index);
    Ok(devices)
}

/// Present properties of an opened device's interface; `gids` holds its addresses, without empty
/// rows.
///
/// An interface that is gone is down and has none.
///
/// # Errors
/// Errors of `getifaddrs(3)`.
pub(crate) fn look_at(opened: &DeviceInfo, config: &DeviceConfig) -> io::Result<DeviceInfo> {
    let mut seen = DeviceInfo {
        gids: Vec::new(),
        up: false,
        ..opened.clone()
    };
    // The interface may have another name by now.
    let Some(name) = name_of(opened.interface_index) else {
        return Ok(seen);
    };
    let Some(interface) = interfaces()?.remove(&name) else {
        return Ok(seen);
    };
    let query = InterfaceQuery::new()?;
    if let Ok(mtu) = query.mtu(&name) {
        seen.mtu = mtu;
        let of_interface = PathMtu::for_interface_mtu(mtu).unwrap_or(PathMtu::M256);
        seen.path_mtu = config.path_mtu.unwrap_or(of_interface);
    }
    seen.speed_mbps = query.speed_mbps(&name);
    seen.up = interface.up && interface.running;
    seen.gids = gid_table(interface.addresses, &unusable_now());
    Ok(seen)
}

/// Addresses that cannot be bound yet, or ever.
fn unusable_now() -> Vec<Ipv6Addr> {
    std::fs::read_to_string("/proc/thread-self/net/if_inet6")
        .map_or_else(|_| Vec::new(), |text| unusable(&text))
}

/// One interface of `getifaddrs(3)`.
#[derive(Default)]
struct Interface {
    up: bool,
    running: bool,
    loopback: bool,
    addresses: Vec<IpAddr>,
}

fn describe(
    query: &InterfaceQuery,
    name: String,
    interface: Interface,
    unusable: &[Ipv6Addr],
) -> Option<DeviceInfo> {
    let gids = gid_table(interface.addresses, unusable);
    let first = gids.first()?.gid;
    let mtu = query.mtu(&name).ok()?;
    let mac = query.mac(&name).unwrap_or_default();
    Some(DeviceInfo {
        interface_index: index_of(&name)?,
        path_mtu: PathMtu::for_interface_mtu(mtu)?,
        guid: guid(mac, first),
        speed_mbps: query.speed_mbps(&name),
        up: interface.running,
        name: format!("airdma_{name}"),
        interface: name,
        mtu,
        mac,
        gids,
    })
}

/// The GID table of these addresses, in its order; addresses of one kind stay in the kernel's.
fn gid_table(mut addresses: Vec<IpAddr>, unusable: &[Ipv6Addr]) -> Vec<GidEntry> {
    addresses.retain(|address| match address {
        IpAddr::V4(address) => !address.is_unspecified(),
        IpAddr::V6(address) => !unusable.contains(address),
    });
    addresses.sort_by_key(|address| match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(address) if !address.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    });
    addresses.truncate(GIDS_MAX);
    addresses.into_iter().map(GidEntry::from).collect()
}

/// Modified EUI-64 of a MAC address (RFC 4291 appendix A), or a substitute without one.
fn guid(mac: [u8; 6], gid: Gid) -> u64 {
    let [a, b, c, d, e, f] = mac;
    if mac != [0; 6] {
        return u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    }
    let (high, low) = gid.0.split_at(8);
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    // The local bit: not assigned by a manufacturer.
    (word(high) ^ word(low)) | 2 << 56
}

/// IPv6 addresses that cannot be bound yet, or ever, from the text of `/proc/net/if_inet6`.
fn unusable(text: &str) -> Vec<Ipv6Addr> {
    let tentative = |flags: u32| flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) != 0;
    let optimistic = |flags: u32| flags & libc::IFA_F_OPTIMISTIC != 0;
    let row = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
        (tentative(flags) && !optimistic(flags)).then(|| Ipv6Addr::from(address))
    };
    text.lines().filter_map(row).collect()
}

/// The name of an interface.
pub(crate) fn name_of(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer holds any interface's name and its end.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: a string with its end, in `name`.
    let name = unsafe { CStr::from_ptr(found) };
    Some(name.to_string_lossy().into_owned())
}

fn index_of(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: a string with its end.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// All interfaces by name.
fn interfaces() -> io::Result<BTreeMap<String, Interface>> {
    let mut head = std::ptr::null_mut();
    // SAFETY: `head` may be written; the list it is set to is freed below, once.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut interfaces = BTreeMap::new();
    let mut next = head;
    // SAFETY: each element of the list is valid until it is freed, and ends with a null.
    while let Some(element) = unsafe { next.as_ref() } {
        next = element.ifa_next;
        // SAFETY: the name of an element is a string with its end.
        let label = unsafe { CStr::from_ptr(element.ifa_name) }.to_string_lossy();
        // IPv4 addresses may have labels like "eth0:1".
        let name = label.split(':').next().unwrap_or_default();
        let interface: &mut Interface = interfaces.entry(name.to_owned()).or_default();
        let has = |flag: libc::c_int| element.ifa_flags & flag as u32 != 0;
        interface.up |= has(libc::IFF_UP);
        interface.running |= has(libc::IFF_RUNNING);
        interface.loopback |= has(libc::IFF_LOOPBACK);
        // SAFETY: null, or a socket address whose family tells its type.
        interface
            .addresses
            .extend(unsafe { address_of(element.ifa_addr) });
    }
    // SAFETY: the list of getifaddrs; no reference to it is left.
    unsafe { libc::freeifaddrs(head) };
    Ok(interfaces)
}

/// # Safety
/// `address` is null or points to a socket address of its family's length.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise; every socket address begins with its family.
    let family = unsafe { address.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: of this family, so of this type.
            let address = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: of this family, so of this type.
            let address = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn gids_are_ipv4_then_global_then_link_local() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let addresses = [
            "fe80::1",
            "2001:db8::1",
            "10.0.0.2",
            "2001:db8::2",
            "10.0.0.1",
        ]
        .map(address);
        let table = gid_table(addresses.to_vec(), &["2001:db8::2".parse().unwrap()]);
        let order: Vec<_> = table.iter().map(|entry| entry.address).collect();
        assert_eq!(
            order,
            ["10.0.0.2", "10.0.0.1", "2001:db8::1", "fe80::1"].map(address)
        );
        assert_eq!(table[0].gid.0[10..], [0xff, 0xff, 10, 0, 0, 2]);
    }

    #[test]
    fn guids_are_never_zero() {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(
            guid([0x02, 0x11, 0x22, 0x33, 0x44, 0x55], gid),
            0x0011_22ff_fe33_4455
        );
        assert_ne!(guid([0; 6], gid), 0);
    }

    #[test]
    fn tentative_addresses_are_found() {
        let text = "fe80000000000000000000000000abcd 02 40 20 40 eth0\n\
                    20010db8000000000000000000000001 02 40 00 80 eth0\n\
                    20010db8000000000000000000000002 02 40 00 48 eth0\n\
                    20010db8000000000000000000000003 02 40 00 44 eth0\nrubbish\n";
        assert_eq!(
            unusable(text),
            ["fe80::abcd", "2001:db8::2"].map(|text| text.parse::<Ipv6Addr>().unwrap())
        );
    }

    #[test]
    fn every_device_has_a_gid_and_a_path_mtu_that_fits() {
        for device in describe_all(false, |_| None).unwrap() {
            assert!(!device.gids.is_empty());
            assert!(device.path_mtu.bytes() + 80 <= device.mtu);
            assert_eq!(device.name, format!("airdma_{}", device.interface));
            assert_ne!(device.guid, 0);
        }
    }
}
