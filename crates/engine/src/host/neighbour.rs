//! The Ethernet address behind an IP address, from the kernel's routes and neighbour table, by
//! `rtnetlink(7)` without privilege.
//!
//! For a destination that is not in the table an empty datagram is sent, so that the kernel
//! resolves it. It goes to the discard port (RFC 863), never to the RoCEv2 port: rxe of Linux 6.1
//! panics at a datagram that is shorter than a BTH.

use crate::Error;
use crate::host::devices::name_of;
use crate::host::interface::InterfaceQuery;
use airdma_port::own_link::OwnLink;
use airdma_port::packet::Resolver;
use airdma_wire::ROCE_PORT;
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest time to resolve a destination (the kernel asks three times, once a second), and interval
/// of the checks meanwhile.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Longest time to resolve a path's next hop, as in the kernel (`rdma_addr_find_l2_eth_by_grh`),
/// and interval of the checks; most neighbours answer within a millisecond.
const PATIENCE_OF_PATHS: Duration = Duration::from_secs(1);
const LOOK_SOON: Duration = Duration::from_micros(200);

/// The discard port (RFC 863), destination of the empty datagram.
const DISCARD: u16 = 9;

/// Most messages in answer to one request: an endless answer is not the kernel's.
const MESSAGES_MAX: usize = 1 << 20;

/// Bytes of `struct nlmsghdr`, `struct rtmsg` and `struct ndmsg`, `struct rtattr`.
const HEADER: usize = 16;
const BODY: usize = 12;
const ATTRIBUTE: usize = 4;

/// The neighbour through which `source` reaches `destination` on an interface, and its address
/// there.
///
/// # Errors
/// The kernel's for the route (`ENETUNREACH`), `EHOSTUNREACH` without an answer, and the system's.
pub(crate) fn resolve(
    interface: u32,
    source: IpAddr,
    destination: IpAddr,
) -> Result<[u8; 6], Error> {
    if let Some(group) = group(destination) {
        return Ok(group);
    }
    let error = |error: io::Error| Error::system("asking the kernel for a neighbour", &error);
    let socket = Rtnetlink::new().map_err(error)?;
    let next = socket.next_hop(interface, destination).map_err(error)?;
    let start = Instant::now();
    let mut asked = false;
    loop {
        if let Some(found) = socket.neighbour(interface, next).map_err(error)? {
            return Ok(found);
        }
        if !asked {
            asked = true;
            ask(interface, source, destination);
        }
        if start.elapsed() > PATIENCE {
            return Err(error(io::Error::from_raw_os_error(libc::EHOSTUNREACH)));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The next hops of an interface, for a port that writes Ethernet headers itself.
pub(crate) struct NextHops {
    interface: u32,
    socket: Rtnetlink,
}

impl NextHops {
    pub(crate) fn new(interface: u32) -> io::Result<Self> {
        let socket = Rtnetlink::new()?;
        Ok(NextHops { interface, socket })
    }
}

impl Resolver for NextHops {
    fn next_hop(&mut self, source: IpAddr, destination: IpAddr) -> io::Result<Option<[u8; 6]>> {
        if let Some(group) = group(destination) {
            return Ok(Some(group));
        }
        let next = self.socket.next_hop(self.interface, destination)?;
        let found = self.socket.neighbour(self.interface, next)?;
        if found.is_none() {
            ask(self.interface, source, destination);
        }
        Ok(found)
    }
}

/// Whether a packet from `source` to `destination` can leave at once: the kernel need not resolve
/// an address on the link, or has it already. `interface` counts for link-local destinations only.
///
/// # Errors
/// The kernel's for the route (`ENETUNREACH`, `EHOSTUNREACH`), and the system's.
pub(crate) fn is_known(interface: u32, source: IpAddr, destination: IpAddr) -> io::Result<bool> {
    if group(destination).is_some() {
        return Ok(true);
    }
    let socket = Rtnetlink::new()?;
    let route = socket.route(interface, source, destination)?;
    if !route.has_neighbours || socket.neighbour(route.interface, route.next)?.is_some() {
        return Ok(true);
    }
    let name = name_of(route.interface).ok_or(io::ErrorKind::NotFound)?;
    Ok(!InterfaceQuery::new()?.asks_for_addresses(&name)?)
}

/// Waits until a packet from `source` to `destination` can leave, as the kernel does for a path of
/// RoCE: at most a second. Without permission to send (a sandbox) the path counts as usable.
///
/// # Errors
/// `ENETUNREACH`, `EHOSTUNREACH` and other errors of the kernel for the route; `ETIMEDOUT` if no
/// host has the address.
pub(crate) fn wait_for(interface: u32, source: IpAddr, destination: IpAddr) -> Result<(), Error> {
    let error = |error: io::Error| {
        let what = format!("no path leads from {source} to {destination}");
        Err(Error::system(&what, &error))
    };
    let start = Instant::now();
    let mut asked = false;
    loop {
        match is_known(interface, source, destination) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(said) if is_of_route(&said) => return error(said),
            Err(_) => return Ok(()),
        }
        if start.elapsed() > PATIENCE_OF_PATHS {
            return error(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        if !asked {
            asked = true;
            ask(interface, source, destination);
        }
        std::thread::sleep(LOOK_SOON);
    }
}

fn is_of_route(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH)
    )
}

/// Whether `destination` is on the link of its interface, without a router in between. False if the
/// kernel does not tell.
pub(crate) fn is_on_link(interface: u32, source: IpAddr, destination: IpAddr) -> bool {
    let route = Rtnetlink::new().and_then(|socket| socket.route(interface, source, destination));
    route.is_ok_and(|route| {
        route.next == destination && (route.interface == interface || !route.has_neighbours)
    })
}

/// Makes the kernel resolve `destination`, without waiting for the answer.
pub(crate) fn ask(interface: u32, source: IpAddr, destination: IpAddr) {
    let sent = socket_towards(interface, source, destination).and_then(|(socket, mut to)| {
        to.set_port(DISCARD);
        if is_own_link(interface, source, destination) {
            leave_by(&socket, interface, source)?;
        }
        socket.send_to(&[], to)
    });
    // If it cannot be sent, no answer comes, and the wait for it ends.
    drop(sent);
}

/// A socket that is bound to a source, and the RoCEv2 port of a destination.
pub(super) fn socket_towards(
    interface: u32,
    source: IpAddr,
    destination: IpAddr,
) -> io::Result<(UdpSocket, SocketAddr)> {
    let socket = UdpSocket::bind(at(interface, source, 0))?;
    Ok((socket, at(interface, destination, ROCE_PORT)))
}

/// A port of an address, which is one of the interface's link if it is link-local.
pub(super) fn at(interface: u32, ip: IpAddr, port: u16) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddr::from(SocketAddrV6::new(v6, port, 0, interface))
        }
        IpAddr::V4(_) | IpAddr::V6(_) => SocketAddr::new(ip, port),
    }
}

/// Whether packets leave by the interface although others have the subnet.
pub(super) fn is_own_link(interface: u32, source: IpAddr, destination: IpAddr) -> bool {
    OwnLink::of(source, interface).is_some_and(|mut link| link.leads_to(destination))
}

/// Lets the packets of a socket leave by the interface, whatever the routes say.
pub(super) fn leave_by(socket: &impl AsRawFd, interface: u32, source: IpAddr) -> io::Result<()> {
    let (level, option) = match source {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_UNICAST_IF),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_IF),
    };
    // The kernel wants the network's byte order.
    let index = interface.to_be();
    // SAFETY: an integer of that size.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const index).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The address of a multicast group (RFC 1112, RFC 2464).
fn group(address: IpAddr) -> Option<[u8; 6]> {
    match address {
        IpAddr::V4(address) if address.is_multicast() => {
            let [_, b, c, d] = address.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(address) if address.is_multicast() => {
            let octets = address.octets();
            Some([0x33, 0x33, octets[12], octets[13], octets[14], octets[15]])
        }
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// The first link of a route.
struct RouteFound {
    /// The gateway, or the destination itself.
    next: IpAddr,
    interface: u32,
    /// Whether the destination is another host's, which has an address on the link.
    has_neighbours: bool,
}

struct Rtnetlink(OwnedFd);

impl Rtnetlink {
    fn new() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: plain integers.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `socket` just returned it, so it has no other owner.
        let socket = Rtnetlink(unsafe { OwnedFd::from_raw_fd(fd) });
        // The kernel answers before `send` returns; the timeout bounds the wait all the same.
        let patience = libc::timeval {
            tv_sec: 1,
            tv_usec: 0,
        };
        // SAFETY: the option takes a timeval.
        let set = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const patience).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        };
        if set == 0 {
            Ok(socket)
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// The gateway to a destination, or the destination itself.
    fn next_hop(&self, interface: u32, destination: IpAddr) -> io::Result<IpAddr> {
        let address = octets(destination);
        let mut body = [0; BODY];
        (body[0], body[1]) = (family(destination), address.len() as u8 * 8);
        let attributes: [(u16, &[u8]); 2] = [
            (libc::RTA_DST, &address),
            (libc::RTA_OIF, &interface.to_ne_bytes()),
        ];
        let mut next = destination;
        self.ask(
            &request(libc::RTM_GETROUTE, 0, &body, &attributes),
            |kind, payload| {
                if kind == libc::RTM_NEWROUTE {
                    let gateway =
                        attributes_of(payload).find(|&(kind, _)| kind == libc::RTA_GATEWAY);
                    next = gateway.and_then(|(_, value)| ip(value)).unwrap_or(next);
                }
            },
        )?;
        Ok(next)
    }

    /// The route from one of our addresses to a destination, as for a socket bound to the address.
    fn route(&self, interface: u32, source: IpAddr, destination: IpAddr) -> io::Result<RouteFound> {
        if matches!(destination, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            return self.route_by(interface, None, destination);
        }
        let found = self.route_by(interface, Some(source), destination);
        let leaves_elsewhere = (found.as_ref()).map_or(true, |found| {
            found.has_neighbours && found.interface != interface
        });
        // Whether other interfaces have the subnet takes many system calls to find out.
        if leaves_elsewhere && is_own_link(interface, source, destination) {
            return self.route_by(interface, None, destination);
        }
        found
    }

    /// The route from an address, or by the interface.
    fn route_by(
        &self,
        interface: u32,
        source: Option<IpAddr>,
        destination: IpAddr,
    ) -> io::Result<RouteFound> {
        let (to, oif) = (octets(destination), interface.to_ne_bytes());
        let from = source.map(octets);
        let mut body = [0; BODY];
        (body[0], body[1]) = (family(destination), to.len() as u8 * 8);
        let second: (u16, &[u8]) = match &from {
            None => (libc::RTA_OIF, &oif),
            Some(from) => {
                body[2] = from.len() as u8 * 8;
                (libc::RTA_SRC, from)
            }
        };
        let mut found = RouteFound {
            next: destination,
            interface,
            has_neighbours: true,
        };
        self.ask(
            &request(
                libc::RTM_GETROUTE,
                0,
                &body,
                &[(libc::RTA_DST, &to), second],
            ),
            |kind, payload| {
                if kind != libc::RTM_NEWROUTE {
                    return;
                }
                found.has_neighbours = payload.get(7) == Some(&libc::RTN_UNICAST);
                for (kind, value) in attributes_of(payload) {
                    match kind {
                        libc::RTA_GATEWAY => found.next = ip(value).unwrap_or(found.next),
                        // A router of the other family, behind two bytes that say which.
                        libc::RTA_VIA => {
                            let router = value.get(2..).and_then(ip);
                            found.next = router.unwrap_or(found.next);
                        }
                        libc::RTA_OIF => {
                            let index = value.try_into().map(u32::from_ne_bytes);
                            found.interface = index.unwrap_or(found.interface);
                        }
                        _ => {}
                    }
                }
            },
        )?;
        Ok(found)
    }

    /// The table's entry of a neighbour.
    fn neighbour(&self, interface: u32, address: IpAddr) -> io::Result<Option<[u8; 6]>> {
        let mut body = [0; BODY];
        body[0] = family(address);
        let mut found = None;
        let dump = request(libc::RTM_GETNEIGH, libc::NLM_F_DUMP as u16, &body, &[]);
        self.ask(&dump, |kind, payload| {
            if kind == libc::RTM_NEWNEIGH
                && let Some(link_address) = known(payload, interface, address)
            {
                found = Some(link_address);
            }
        })?;
        Ok(found)
    }

    /// Sends a request, and passes on the answers.
    fn ask(&self, request: &[u8], mut answer: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let is_dump = u16_at(request, 6) & libc::NLM_F_DUMP as u16 != 0;
        // SAFETY: the request may be read.
        let sent = unsafe {
            libc::send(
                self.0.as_raw_fd(),
                request.as_ptr().cast(),
                request.len(),
                0,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut buffer = vec![0; 1 << 16];
        for _ in 0..MESSAGES_MAX {
            // SAFETY: the buffer may be written.
            let got = unsafe {
                libc::recv(
                    self.0.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    0,
                )
            };
            let Ok(got) = usize::try_from(got) else {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            };
            for (kind, payload) in messages(&buffer[..got.min(buffer.len())]) {
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => {
                        let number = payload
                            .first_chunk()
                            .map_or(0, |&at| i32::from_ne_bytes(at));
                        return if number == 0 {
                            Ok(())
                        } else {
                            Err(io::Error::from_raw_os_error(-number))
                        };
                    }
                    _ => answer(kind, payload),
                }
            }
            if !is_dump {
                return Ok(());
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// The address in a message about a neighbour, if it is this one and its address is known.
fn known(payload: &[u8], interface: u32, address: IpAddr) -> Option<[u8; 6]> {
    const KNOWN: u16 = libc::NUD_REACHABLE
        | libc::NUD_STALE
        | libc::NUD_DELAY
        | libc::NUD_PROBE
        | libc::NUD_PERMANENT
        | libc::NUD_NOARP;
    let body = payload.get(..BODY)?;
    if u32_at(body, 4) != interface || u16_at(body, 8) & KNOWN == 0 {
        return None;
    }
    let value = |wanted| {
        let mut attributes = attributes_of(payload);
        attributes.find_map(|(kind, value)| (kind == wanted).then_some(value))
    };
    if ip(value(libc::NDA_DST)?)? != address {
        return None;
    }
    value(libc::NDA_LLADDR)?.try_into().ok()
}

fn request(kind: u16, flags: u16, body: &[u8; BODY], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes.extend_from_slice(body);
    for (kind, value) in attributes {
        let length = (ATTRIBUTE + value.len()) as u16;
        bytes.extend_from_slice(&length.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(ATTRIBUTE), 0);
    }
    let length = bytes.len() as u32;
    bytes[0..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes
}

/// Kind and payload of each message.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.get(..HEADER)?;
        let length = u32_at(header, 0) as usize;
        let payload = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16_at(header, 4), payload))
    })
}

/// Kind and value of each attribute behind the body of a message.
fn attributes_of(payload: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut bytes = payload.get(BODY..).unwrap_or_default();
    std::iter::from_fn(move || {
        let header = bytes.get(..ATTRIBUTE)?;
        let length = usize::from(u16_at(header, 0));
        let value = bytes.get(ATTRIBUTE..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16_at(header, 2), value))
    })
}

fn family(address: IpAddr) -> u8 {
    let family = match address {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    family as u8
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(value).ok().map(IpAddr::from);
    v4().or_else(v6)
}

/// Two bytes at an offset in range.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

/// Four bytes at an offset in range.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::common::isolated;

    fn neighbour(state: u16, address: &[u8], link_address: &[u8]) -> Vec<u8> {
        let mut body = [0; BODY];
        body[4..8].copy_from_slice(&7u32.to_ne_bytes());
        body[8..10].copy_from_slice(&state.to_ne_bytes());
        let attributes = [(libc::NDA_DST, address), (libc::NDA_LLADDR, link_address)];
        request(libc::RTM_NEWNEIGH, 0, &body, &attributes)
    }

    #[test]
    fn what_may_be_behind_a_router_is_not_on_the_link() {
        let setup = "ip link add here index 70 type veth peer name there index 71
            ip link add other index 80 type veth peer name away index 81
            ip addr add 192.0.2.1/24 dev here
            ip addr add 203.0.113.1/24 dev other
            ip -6 addr add fd00::1/64 dev here nodad
            for interface in here there other away; do ip link set $interface up; done
            ip route add 198.51.100.0/25 via 192.0.2.2
            ip route add 198.51.100.128/25 via inet6 fd00::2 dev here
            ip -6 route add fd01::/64 via fd00::2";
        let test = "host::neighbour::tests::what_may_be_behind_a_router_is_not_on_the_link";
        isolated(test, setup, || {
            let on_link = |source: &str, destination: &str| {
                is_on_link(70, source.parse().unwrap(), destination.parse().unwrap())
            };
            let here = "192.0.2.1";
            assert!(on_link(here, "192.0.2.7"));
            assert!(on_link(here, here), "our own");
            assert!(on_link("fd00::1", "fd00::7"));
            assert!(!on_link(here, "198.51.100.7"));
            assert!(
                !on_link(here, "198.51.100.200"),
                "a router by its IPv6 address"
            );
            assert!(!on_link("fd00::1", "fd01::7"));
            assert!(!on_link(here, "203.0.113.7"), "on another interface");
            assert!(!on_link(here, "10.9.9.9"), "nowhere");
        });
    }

    #[test]
    fn resolving_an_address_sends_nothing_to_the_rocev2_port() {
        let setup = "ip -6 address add fd00::1/128 dev lo nodad
            ip -6 address add fd00::2/128 dev lo nodad";
        let test = "host::neighbour::tests::resolving_an_address_sends_nothing_to_the_rocev2_port";
        isolated(test, setup, || {
            for (source, destination) in [("127.0.0.1", "127.0.0.2"), ("fd00::1", "fd00::2")] {
                let destination: IpAddr = destination.parse().unwrap();
                let discard = UdpSocket::bind((destination, DISCARD)).unwrap();
                let roce = UdpSocket::bind((destination, ROCE_PORT)).unwrap();
                roce.set_nonblocking(true).unwrap();
                ask(1, source.parse().unwrap(), destination);
                assert_eq!(discard.recv(&mut [0; 64]).unwrap(), 0, "it was sent");
                let nothing = roce.recv(&mut [0; 64]).unwrap_err();
                assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
            }
        });
    }

    #[test]
    fn in_one_subnet_each_interface_has_its_own_neighbours() {
        let setup = "for number in 1 2; do
                ip link add near$number index 7$number type veth peer name far$number
                ip link set near$number up; ip link set far$number up
                ip address add 192.0.2.$number/24 dev near$number
            done
            ip neighbour add 192.0.2.9 lladdr 02:00:00:00:00:09 dev near2";
        let test = "host::neighbour::tests::in_one_subnet_each_interface_has_its_own_neighbours";
        isolated(test, setup, || {
            let here: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
            let there = "192.0.2.9".parse().unwrap();
            assert!(!is_known(71, here[0], there).unwrap());
            // The kernel's route leaves by the first.
            assert!(is_known(72, here[1], there).unwrap());
            assert!(is_on_link(72, here[1], there));
            // This host's own addresses need none.
            assert!(is_known(72, here[1], here[0]).unwrap());
        });
    }

    #[test]
    fn a_neighbour_is_known_by_interface_address_and_state() {
        let (address, link_address) = ([10, 5, 0, 2], [2, 0, 0, 0, 0, 9]);
        let look = |bytes: &[u8], interface, address: [u8; 4]| {
            let (kind, payload) = messages(bytes).next().unwrap();
            assert_eq!(kind, libc::RTM_NEWNEIGH);
            known(payload, interface, address.into())
        };
        let stale = neighbour(libc::NUD_STALE, &address, &link_address);
        assert_eq!(look(&stale, 7, address), Some(link_address));
        assert_eq!(look(&stale, 8, address), None);
        assert_eq!(look(&stale, 7, [10, 5, 0, 3]), None);
        let failed = neighbour(libc::NUD_FAILED, &address, &link_address);
        assert_eq!(look(&failed, 7, address), None);
        let infiniband = neighbour(libc::NUD_STALE, &address, &[0; 20]);
        assert_eq!(look(&infiniband, 7, address), None);
    }

    #[test]
    fn messages_that_lie_about_their_length_end_the_list() {
        let good = neighbour(libc::NUD_STALE, &[10, 5, 0, 2], &[0; 6]);
        let mut two = good.clone();
        two.extend_from_slice(&good);
        assert_eq!(messages(&two).count(), 2);
        for length in [0u32, 15, 1 << 20] {
            let mut bad = two.clone();
            bad[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(messages(&bad).count(), 0, "{length}");
        }
        for cut in 0..good.len() {
            for (_, payload) in messages(&good[..cut]) {
                assert_eq!(known(payload, 7, [10, 5, 0, 2].into()), None);
            }
            assert!(attributes_of(&good[..cut]).count() <= 8);
        }
        let mut bad = good;
        bad[HEADER + BODY..HEADER + BODY + 2].copy_from_slice(&3u16.to_ne_bytes());
        assert_eq!(attributes_of(&bad[HEADER..]).count(), 0);
    }

    #[test]
    fn groups_have_addresses_of_their_own() {
        let of = |text: &str| group(text.parse().unwrap());
        assert_eq!(of("239.129.2.3"), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(
            of("ff02::1:ff00:1234"),
            Some([0x33, 0x33, 0xff, 0, 0x12, 0x34])
        );
        assert_eq!(of("10.5.0.2"), None);
    }
}
