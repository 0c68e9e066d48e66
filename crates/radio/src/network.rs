//! The network that an address is reached through, as a name that tells networks apart. Needs no
//! privilege.
//!
//! A private address means another host in each network. A network is named by the link-layer
//! address of the default gateway of the interface that leads to the address, and the interface's
//! own prefix. An Ethernet interface without a default route (a cable to another host, for example)
//! is named by its name and its prefix. Other interfaces have no name: a wireless interface without
//! a gateway, which has another network at each place, and a tunnel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink::{ACK, Conversation, DUMP, Request, attribute, number, short};
use crate::nl80211::Nl80211;
use crate::unreadable::Unreadable;

/// The network that an address is reached through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// The address is this host's own.
    Host,
    /// Name of the network: printable ASCII without blanks, the same each time the host is there.
    Named(String),
    /// The kernel does not know the gateway's link-layer address until a packet was sent there.
    Unresolved(SocketAddr),
    /// The network cannot be told from others.
    Nameless,
}

/// Route to an address.
#[derive(Clone, Copy)]
struct Route {
    interface: u32,
    source: IpAddr,
    is_local: bool,
}

impl Network {
    /// The network that `address` is reached through now.
    ///
    /// # Errors
    /// The kernel's error, for example that there is no route.
    pub fn towards(address: IpAddr) -> Result<Network, Unreadable> {
        let mut kernel = Conversation::open(NETLINK_ROUTE)?;
        let route = route_to(&mut kernel, address)?;
        if route.is_local {
            return Ok(Network::Host);
        }
        let (name, is_ethernet) = link(&mut kernel, route.interface)?;
        let prefix = prefix_of(&mut kernel, &route)?;
        let (Some(prefix), true) = (prefix, is_ethernet) else {
            return Ok(Network::Nameless);
        };
        for is_v6 in [false, true] {
            match default_gateway(&mut kernel, route.interface, is_v6)? {
                Default::None => {}
                Default::WithoutGateway => return Ok(Network::Nameless),
                Default::Gateway(gateway) => {
                    let found = link_address(&mut kernel, route.interface, gateway)?;
                    return Ok(match found {
                        Some(address) => Network::Named(format!("{address}@{prefix}")),
                        None => Network::Unresolved(socket(gateway, route.interface)),
                    });
                }
            }
        }
        if Nl80211::open().is_ok_and(|mut nl80211| nl80211.interface(route.interface).is_ok()) {
            return Ok(Network::Nameless);
        }
        Ok(Network::Named(format!("{name}@{prefix}")))
    }
}

/// The default route of an interface.
enum Default {
    None,
    WithoutGateway,
    Gateway(IpAddr),
}

fn route_to(kernel: &mut Conversation, address: IpAddr) -> Result<Route, Unreadable> {
    let bytes = octets(address);
    let mut header = [0; ROUTE_HEADER_BYTES];
    header[..2].copy_from_slice(&[family(address.is_ipv6()), bytes.len() as u8 * 8]);
    let mut request = Request::new(libc::RTM_GETROUTE, ACK, &header).attribute(RTA_DST, &bytes);
    let mut found = None;
    kernel.ask(&mut request, |body| {
        let Some((header, attributes)) = body.split_at_checked(ROUTE_HEADER_BYTES) else {
            return;
        };
        found = found.or_else(|| {
            Some(Route {
                interface: number(attribute(attributes, RTA_OIF)?)?,
                source: ip(attribute(attributes, RTA_PREFSRC)?)?,
                is_local: header[ROUTE_TYPE_AT] == libc::RTN_LOCAL,
            })
        });
    })?;
    found.ok_or(Unreadable::Garbled)
}

/// Name of an interface, and whether it is an Ethernet interface.
fn link(kernel: &mut Conversation, interface: u32) -> Result<(String, bool), Unreadable> {
    let mut header = [0; LINK_HEADER_BYTES];
    header[4..8].copy_from_slice(&interface.to_ne_bytes());
    let mut request = Request::new(libc::RTM_GETLINK, ACK, &header);
    let mut found = None;
    kernel.ask(&mut request, |body| {
        let Some((header, attributes)) = body.split_at_checked(LINK_HEADER_BYTES) else {
            return;
        };
        let name = attribute(attributes, libc::IFLA_IFNAME).unwrap_or_default();
        let name = name.strip_suffix(b"\0").unwrap_or(name);
        let is_ethernet = short(&header[2..]) == Some(libc::ARPHRD_ETHER);
        found = Some((plain(name), is_ethernet));
    })?;
    found.ok_or(Unreadable::Garbled)
}

/// Prefix of the route's source address.
fn prefix_of(kernel: &mut Conversation, route: &Route) -> Result<Option<String>, Unreadable> {
    let header = [family(route.source.is_ipv6()), 0, 0, 0, 0, 0, 0, 0];
    let mut request = Request::new(libc::RTM_GETADDR, DUMP, &header);
    let mut found = None;
    kernel.ask(&mut request, |body| {
        let Some((header, attributes)) = body.split_at_checked(header.len()) else {
            return;
        };
        let own = attribute(attributes, libc::IFA_LOCAL);
        let own = own.or_else(|| attribute(attributes, libc::IFA_ADDRESS));
        if number(&header[4..]) == Some(route.interface) && own.and_then(ip) == Some(route.source) {
            found = Some(prefix(route.source, header[1]));
        }
    })?;
    Ok(found)
}

/// Gateway of the first default route, of any table, that uses the interface.
fn default_gateway(
    kernel: &mut Conversation,
    interface: u32,
    is_v6: bool,
) -> Result<Default, Unreadable> {
    let mut header = [0; ROUTE_HEADER_BYTES];
    header[0] = family(is_v6);
    let mut request = Request::new(libc::RTM_GETROUTE, DUMP, &header);
    let mut found = Default::None;
    kernel.ask(&mut request, |body| {
        let Some((header, attributes)) = body.split_at_checked(ROUTE_HEADER_BYTES) else {
            return;
        };
        let is_default = header[1] == 0 && header[ROUTE_TYPE_AT] == libc::RTN_UNICAST;
        if !is_default || !matches!(found, Default::None) {
            return;
        }
        let hops = hops(attributes);
        if let Some((_, gateway)) = hops.into_iter().find(|(out, _)| *out == interface) {
            found = gateway.map_or(Default::WithoutGateway, Default::Gateway);
        }
    })?;
    Ok(found)
}

/// Interfaces and gateways of a route, which may have several next hops.
fn hops(route: &[u8]) -> Vec<(u32, Option<IpAddr>)> {
    let gateway = |attributes| attribute(attributes, RTA_GATEWAY).and_then(ip);
    if let Some(interface) = attribute(route, RTA_OIF).and_then(number) {
        return vec![(interface, gateway(route))];
    }
    let mut rest = attribute(route, RTA_MULTIPATH).unwrap_or_default();
    let mut hops = Vec::new();
    while let Some(length) = short(rest).map(usize::from)
        && let Some(hop) = rest.get(..length)
        && let Some((header, attributes)) = hop.split_at_checked(HOP_HEADER_BYTES)
    {
        let interface = number(&header[4..]).unwrap_or_default();
        hops.push((interface, gateway(attributes)));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}

/// Link-layer address of a neighbour, if the kernel has it.
fn link_address(
    kernel: &mut Conversation,
    interface: u32,
    neighbour: IpAddr,
) -> Result<Option<String>, Unreadable> {
    let mut header = [0; NEIGHBOUR_HEADER_BYTES];
    header[0] = family(neighbour.is_ipv6());
    let mut request = Request::new(libc::RTM_GETNEIGH, DUMP, &header);
    let mut found = None;
    kernel.ask(&mut request, |body| {
        let Some((header, attributes)) = body.split_at_checked(NEIGHBOUR_HEADER_BYTES) else {
            return;
        };
        let is_it = number(&header[4..]) == Some(interface)
            && attribute(attributes, libc::NDA_DST).and_then(ip) == Some(neighbour);
        let address = attribute(attributes, libc::NDA_LLADDR);
        if let Some(address) = address.filter(|bytes| is_it && bytes.iter().any(|byte| *byte > 0)) {
            let digits = address.iter().map(|byte| format!("{byte:02x}"));
            found = Some(digits.collect::<Vec<_>>().join(":"));
        }
    })?;
    Ok(found)
}

/// The name in printable ASCII; an interface may have any name.
fn plain(name: &[u8]) -> String {
    let plain = name.iter().map(|byte| match byte {
        b'!'..=b'~' => char::from(*byte),
        _ => '?',
    });
    plain.collect()
}

fn prefix(address: IpAddr, length: u8) -> String {
    let mut bytes = octets(address);
    for (at, byte) in bytes.iter_mut().enumerate() {
        let kept = usize::from(length).saturating_sub(at * 8).min(8);
        *byte &= (0xff00 >> kept) as u8;
    }
    let network = ip(&bytes).unwrap_or(address);
    format!("{network}/{length}")
}

fn socket(gateway: IpAddr, interface: u32) -> SocketAddr {
    match gateway {
        IpAddr::V4(_) => SocketAddr::new(gateway, DISCARD),
        IpAddr::V6(gateway) => SocketAddrV6::new(gateway, DISCARD, 0, interface).into(),
    }
}

fn family(is_v6: bool) -> u8 {
    (if is_v6 { libc::AF_INET6 } else { libc::AF_INET }) as u8
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(*bytes.first_chunk()?).into()),
        16 => Some(Ipv6Addr::from(*bytes.first_chunk()?).into()),
        _ => None,
    }
}

/// The discard port (RFC 863): datagrams to it have no effect.
const DISCARD: u16 = 9;
/// Length of `struct rtmsg`, and offset of its type.
const ROUTE_HEADER_BYTES: usize = 12;
const ROUTE_TYPE_AT: usize = 7;
/// Length of `struct ifinfomsg`.
const LINK_HEADER_BYTES: usize = 16;
/// Length of `struct ndmsg`.
const NEIGHBOUR_HEADER_BYTES: usize = 12;
/// Length of `struct rtnexthop`.
const HOP_HEADER_BYTES: usize = 8;
const RTA_DST: u16 = libc::RTA_DST;
const RTA_OIF: u16 = libc::RTA_OIF;
const RTA_GATEWAY: u16 = libc::RTA_GATEWAY;
const RTA_PREFSRC: u16 = libc::RTA_PREFSRC;
const RTA_MULTIPATH: u16 = libc::RTA_MULTIPATH;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_this_host_is_the_hosts() {
        let here = Network::towards(Ipv4Addr::LOCALHOST.into());
        assert_eq!(here, Ok(Network::Host));
    }

    #[test]
    fn prefixes_are_cut_at_any_bit() {
        let address = "10.11.12.13".parse().unwrap();
        for (length, said) in [
            (0, "0.0.0.0/0"),
            (20, "10.11.0.0/20"),
            (24, "10.11.12.0/24"),
            (32, "10.11.12.13/32"),
        ] {
            assert_eq!(prefix(address, length), said);
        }
        assert_eq!(prefix("fd00::1:2".parse().unwrap(), 64), "fd00::/64");
    }

    #[test]
    fn a_route_has_one_hop_or_several_and_what_is_cut_off_is_none() {
        let mut one = vec![8, 0, 4, 0, 7, 0, 0, 0];
        assert_eq!(hops(&one), [(7, None)]);
        one.extend([8, 0, 5, 0, 10, 0, 0, 1]);
        assert_eq!(hops(&one), [(7, ip(&[10, 0, 0, 1]))]);
        let hop = |interface, last| [16, 0, 0, 0, interface, 0, 0, 0, 8, 0, 5, 0, 10, 0, 0, last];
        let mut several = vec![36, 0, 9, 0];
        several.extend(hop(2, 1));
        several.extend(hop(3, 2));
        let both = [(2, ip(&[10, 0, 0, 1])), (3, ip(&[10, 0, 0, 2]))];
        assert_eq!(hops(&several), both);
        for length in 0..several.len() {
            several[0] = length as u8;
            assert!(hops(&several[..length]).len() < 2);
        }
        assert_eq!(hops(&[8, 0, 9, 0, 0, 0, 0, 0]), []);
    }
}
