//! One UDP socket: its set-up, and its errors.

use std::fs;
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use airdma_radio::SocketMemory;
use libc::c_int;

use super::UdpConfig;
use super::address::{ADDRESS_ROOM, SocketAddress};
use crate::descriptors;
use crate::own_link::OwnLink;

/// An unconnected, non-blocking socket, bound to one local address.
pub(super) struct Socket {
    fd: OwnedFd,
    /// Whether other sockets of this user had the address before.
    pub(super) joined: bool,
    /// As bound: a local address or a group, and never port 0.
    pub(super) address: IpAddr,
    pub(super) port: u16,
    /// Scope of link-local destinations.
    pub(super) interface_index: u32,
    /// UDP_GRO is on.
    pub(super) coalescing: bool,
    /// Whether the address is in use: then every receive call polls it.
    pub(super) active: bool,
    /// Receive calls that polled it since the last packet.
    pub(super) silent: u32,
    /// Receive calls that skipped it since then.
    pub(super) skipped: u32,
    /// Time of the last poll that was not necessary.
    looked_at: Instant,
    /// The kernel may cut what is sent now into IP fragments: the don't-fragment flag is off.
    fragmenting: bool,
    /// Shortest datagram the interface was found too small for.
    too_big: usize,
    /// Fragmented sends since that was found out.
    fragmented: u32,
    /// Other interfaces have the subnet of the address.
    pub(super) own_link: Option<OwnLink>,
    /// Bundles leave: false once the kernel has refused one.
    pub(super) bundles: bool,
}

/// After this many fragmented sends it is tried again whether the interface takes whole packets
/// now.
const FRAGMENTED_MAX: u32 = 4096;

impl Socket {
    pub(super) fn open(
        address: IpAddr,
        interface_index: u32,
        config: &UdpConfig,
    ) -> Result<Self, BindError> {
        let family = match address {
            IpAddr::V4(_) => libc::AF_INET,
            IpAddr::V6(_) => libc::AF_INET6,
        };
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: plain integers.
        let fd = descriptors::open(|| unsafe { libc::socket(family, kind, 0) });
        let mut socket = Socket {
            fd: fd.map_err(|source| BindError::System {
                call: "socket",
                address,
                source,
            })?,
            joined: false,
            address,
            port: config.port,
            interface_index,
            coalescing: false,
            active: true,
            silent: 0,
            skipped: 0,
            looked_at: Instant::now(),
            fragmenting: false,
            too_big: usize::MAX,
            fragmented: 0,
            own_link: OwnLink::of(address, interface_index),
            bundles: true,
        };
        socket
            .configure(config)
            .map_err(|(call, source)| BindError::System {
                call,
                address,
                source,
            })?;
        if config.share && !address.is_multicast() {
            socket.bind_shared()?;
        } else {
            socket.bind()?;
        }
        Ok(socket)
    }

    /// A socket that receives what is sent to a multicast group on the interface.
    pub(super) fn open_group(
        group: IpAddr,
        interface_index: u32,
        config: &UdpConfig,
    ) -> Result<Self, BindError> {
        let socket = Self::open(group, interface_index, config)?;
        socket.join().map_err(|source| BindError::System {
            call: "setsockopt(joining the group)",
            address: group,
            source,
        })?;
        Ok(socket)
    }

    /// Whether a receive call skips this socket: it polls it in one of `interval` calls, and after
    /// `most` since the last poll.
    ///
    /// Each socket counts its own calls: between busy sockets, not every call reaches it.
    pub(super) fn is_skipped(&mut self, interval: u32, most: Duration, now: Instant) -> bool {
        self.skipped += 1;
        if self.skipped < interval && now.duration_since(self.looked_at) < most {
            return true;
        }
        self.skipped = 0;
        self.looked_at = now;
        false
    }

    fn join(&self) -> io::Result<()> {
        match self.address {
            IpAddr::V4(group) => {
                let membership = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(group.octets()),
                    },
                    imr_address: libc::in_addr { s_addr: 0 },
                    imr_ifindex: self.interface_index.cast_signed(),
                };
                self.set(libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, membership)
            }
            IpAddr::V6(group) => {
                let membership = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr {
                        s6_addr: group.octets(),
                    },
                    ipv6mr_interface: self.interface_index,
                };
                self.set(libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, membership)
            }
        }
    }

    /// Groups on other interfaces are not ours: without this a socket gets what any other of the
    /// host has joined.
    fn configure_group(&self) -> Result<(), (&'static str, io::Error)> {
        let (level, option) = match self.address {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL),
        };
        self.set(level, option, 0)
            .map_err(|error| ("setsockopt(MULTICAST_ALL)", error))?;
        // Every process of the host that joined gets its own copy.
        self.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
            .map_err(|error| ("setsockopt(SO_REUSEADDR)", error))
    }

    /// What is sent to a group leaves by the interface of the port, whatever the routes say.
    fn choose_multicast_interface(&self) {
        // Refused only where the interface is gone, and then nothing leaves anyway.
        let _ = match self.address {
            IpAddr::V4(_) => {
                let choice = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr { s_addr: 0 },
                    imr_address: libc::in_addr { s_addr: 0 },
                    imr_ifindex: self.interface_index.cast_signed(),
                };
                self.set(libc::IPPROTO_IP, libc::IP_MULTICAST_IF, choice)
            }
            IpAddr::V6(_) => self.set(
                libc::IPPROTO_IPV6,
                libc::IPV6_MULTICAST_IF,
                self.interface_index.cast_signed(),
            ),
        };
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The kernel knows UDP_SEGMENT. Whether the interface can is only known when it is tried.
    pub(super) fn can_segment(&self) -> bool {
        self.option(libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
    }

    /// Whether a datagram of `len` bytes is known to be too big for the interface.
    pub(super) fn must_fragment(&self, len: usize) -> bool {
        len >= self.too_big
    }

    /// The interface refused a datagram of `len` bytes.
    pub(super) fn note_too_big(&mut self, len: usize) {
        self.too_big = self.too_big.min(len);
        self.fragmented = 0;
    }

    /// Notes that `count` datagrams left in fragments.
    pub(super) fn note_fragmented(&mut self, count: usize) {
        self.fragmented = self.fragmented.saturating_add(count as u32);
        if self.fragmented >= FRAGMENTED_MAX {
            self.too_big = usize::MAX;
        }
    }

    /// Lets the kernel fragment datagrams from now on, or not.
    ///
    /// OMIT is the kernel's name for fragmenting what does not fit the interface, without DF, and
    /// ignoring ICMP "too big".
    pub(super) fn set_fragmenting(&mut self, on: bool) -> io::Result<()> {
        if self.fragmenting == on {
            return Ok(());
        }
        let (level, option, cut, whole) = match self.address {
            IpAddr::V4(_) => (
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_OMIT,
                libc::IP_PMTUDISC_PROBE,
            ),
            IpAddr::V6(_) => (
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_OMIT,
                libc::IPV6_PMTUDISC_PROBE,
            ),
        };
        self.set(level, option, if on { cut } else { whole })?;
        self.fragmenting = on;
        Ok(())
    }

    /// Size of the buffer `SO_RCVBUF` or `SO_SNDBUF`, as the kernel counts it; 0 if unknown.
    pub(super) fn buffer_bytes(&self, which: c_int) -> usize {
        self.option(libc::SOL_SOCKET, which)
            .map_or(0, |bytes| usize::try_from(bytes).unwrap_or(0))
    }

    /// Datagrams the kernel dropped at this socket since it was opened: the count that SO_RXQ_OVFL
    /// would attach to later datagrams, without waiting for one.
    pub(super) fn drops(&self) -> u64 {
        self.memory().map_or(0, |memory| memory.dropped.into())
    }

    /// What waits in it, if the kernel says.
    pub(super) fn memory(&self) -> Option<SocketMemory> {
        SocketMemory::of(self.fd.as_fd()).ok()
    }

    fn configure(&mut self, config: &UdpConfig) -> Result<(), (&'static str, io::Error)> {
        let (level, required): (c_int, &[_]) = match self.address {
            IpAddr::V4(_) => (libc::IPPROTO_IP, &OPTIONS_V4),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, &OPTIONS_V6),
        };
        for &(name, option, value) in required {
            self.set(level, option, value)
                .map_err(|error| (name, error))?;
        }
        if self.address.is_ipv6() {
            // rxe sends UDP checksum 0 over IPv6 too; the kernel drops that silently unless told
            // otherwise.
            self.set(libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)
                .map_err(|error| ("setsockopt(UDP_NO_CHECK6_RX)", error))?;
        }
        if self.address.is_ipv6() {
            // Without these the flow label is the kernel's business, and nothing else changes.
            let _ = self.set(libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO_SEND, 1);
            let _ = self.set(libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO, 1);
        }
        if self.address.is_multicast() {
            self.configure_group()?;
        } else {
            self.choose_multicast_interface();
        }
        self.coalescing = config.coalescing && self.set(libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        for (forced, plain, bytes) in [
            (
                libc::SO_RCVBUFFORCE,
                libc::SO_RCVBUF,
                config.receive_buffer_bytes,
            ),
            (
                libc::SO_SNDBUFFORCE,
                libc::SO_SNDBUF,
                config.send_buffer_bytes,
            ),
        ] {
            // Smaller buffers than asked for cost speed, not function, so a refusal is not an
            // error.
            let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
            if self.set(libc::SOL_SOCKET, forced, bytes).is_err() {
                let _ = self.set(libc::SOL_SOCKET, plain, bytes);
            }
        }
        Ok(())
    }

    /// Binds alone, or as one of a group if the address is taken.
    ///
    /// Only the first socket binds without SO_REUSEPORT, so it learns whether there is a group that
    /// it does not know of. It admits others afterwards.
    fn bind_shared(&mut self) -> Result<(), BindError> {
        match self.bind() {
            Err(BindError::AddressInUse { .. }) => {
                self.admit_others()?;
                self.joined = true;
                self.bind()
            }
            Ok(()) => self.admit_others(),
            Err(error) => Err(error),
        }
    }

    fn admit_others(&self) -> Result<(), BindError> {
        self.set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
            .map_err(|source| BindError::System {
                call: "setsockopt(SO_REUSEPORT)",
                address: self.address,
                source,
            })
    }

    /// Gives the group of sockets at this address, as long as it has several, the program that
    /// chooses one.
    pub(super) fn attach_steering(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            filter: program.as_ptr().cast_mut(),
        };
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, program)
    }

    /// In the order of calls: alone, a socket belongs to its process; others are let in by
    /// [`Socket::admit_others`].
    fn bind(&mut self) -> Result<(), BindError> {
        let name = SocketAddress::new(self.address, self.port, self.interface_index);
        // SAFETY: `name` is a socket address of `len` bytes.
        let result = unsafe { libc::bind(self.descriptor(), (&raw const name).cast(), name.len()) };
        if result != 0 {
            return Err(BindError::refused(
                self.address,
                self.port,
                io::Error::last_os_error(),
            ));
        }
        if self.port == 0 {
            self.port = self.bound_port()?;
        }
        Ok(())
    }

    fn bound_port(&self) -> Result<u16, BindError> {
        let mut name = SocketAddress::zeroed();
        let mut len = ADDRESS_ROOM;
        // SAFETY: the kernel writes at most `len` bytes into `name`.
        let result =
            unsafe { libc::getsockname(self.descriptor(), (&raw mut name).cast(), &raw mut len) };
        match name.get() {
            Some((_, port)) if result == 0 => Ok(port),
            Some(_) | None => Err(BindError::system("getsockname", self.address)),
        }
    }

    /// `T` is the type that the option has: an int, or a struct of integers.
    fn set<T: Copy>(&self, level: c_int, option: c_int, value: T) -> io::Result<()> {
        // SAFETY: the kernel reads at most the bytes of `value`.
        let result = unsafe {
            libc::setsockopt(
                self.descriptor(),
                level,
                option,
                (&raw const value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn option(&self, level: c_int, option: c_int) -> io::Result<c_int> {
        let mut value: c_int = 0;
        let mut len = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the kernel writes at most one int.
        let result = unsafe {
            libc::getsockopt(
                self.descriptor(),
                level,
                option,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        if result == 0 {
            Ok(value)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// Without one of these the port would send or see wrong packets. DF by PROBE: identification 0,
/// and ICMP "too big", which any host can forge, is ignored.
const OPTIONS_V4: [(&str, c_int, c_int); 3] = [
    (
        "setsockopt(IP_MTU_DISCOVER)",
        libc::IP_MTU_DISCOVER,
        libc::IP_PMTUDISC_PROBE,
    ),
    ("setsockopt(IP_RECVTOS)", libc::IP_RECVTOS, 1),
    ("setsockopt(IP_RECVTTL)", libc::IP_RECVTTL, 1),
];

const OPTIONS_V6: [(&str, c_int, c_int); 4] = [
    ("setsockopt(IPV6_V6ONLY)", libc::IPV6_V6ONLY, 1),
    (
        "setsockopt(IPV6_MTU_DISCOVER)",
        libc::IPV6_MTU_DISCOVER,
        libc::IPV6_PMTUDISC_PROBE,
    ),
    ("setsockopt(IPV6_RECVTCLASS)", libc::IPV6_RECVTCLASS, 1),
    ("setsockopt(IPV6_RECVHOPLIMIT)", libc::IPV6_RECVHOPLIMIT, 1),
];

/// Why a [`super::UdpPort`] could not be bound, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another program has the port (EADDRINUSE).
    #[error(
        "UDP port {port} of {address} is in use by another program. Processes of one user share an address; this is \
         somebody else: end it first (`ss -ulpn sport = :{port}` names it; without a name it is another user's, or the \
         kernel's rxe, to be removed with `rdma link delete`; a process of this user is of another version, or has another \
         /run and /tmp), or give this one another address"
    )]
    AddressInUse {
        /// Address to bind.
        address: IpAddr,
        /// UDP port to bind.
        port: u16,
    },
    /// A process that shares the address stopped in the middle of an update of the registry
    /// (EAGAIN).
    #[error(
        "{address} is shared with other processes, and process {process} keeps their list locked: continue or end it"
    )]
    SharingLocked {
        /// Address to bind.
        address: IpAddr,
        /// Number of the process in its own PID namespace.
        process: u32,
    },
    /// The IPv6 address is not yet known to be unique (EADDRNOTAVAIL).
    #[error(
        "{address} is still tentative: the kernel is checking that no other host on the link has it. Try again in one \
         or two seconds"
    )]
    AddressTentative {
        /// Address to bind.
        address: IpAddr,
    },
    /// Another host on the link has the same IPv6 address (EADDRNOTAVAIL).
    #[error(
        "{address} is also the address of another host on the link (duplicate address detection failed): remove it \
         here or there"
    )]
    AddressDuplicate {
        /// Address to bind.
        address: IpAddr,
    },
    /// No interface has the address (EADDRNOTAVAIL).
    #[error("no interface of this host has the address {address} (any more): see `ip address`")]
    AddressUnavailable {
        /// Address to bind.
        address: IpAddr,
    },
    /// A rule forbids it (EACCES, EPERM).
    #[error(
        "binding UDP port {port} of {address} is not permitted: a security module or sandbox forbids it, or \
         `net.ipv4.ip_unprivileged_port_start` is above {port}"
    )]
    NotPermitted {
        /// Address to bind.
        address: IpAddr,
        /// UDP port to bind.
        port: u16,
    },
    /// No permission to send and receive whole frames (EPERM).
    #[error(
        "whole Ethernet frames need CAP_NET_RAW in this network namespace: run as root, or `setcap cap_net_raw+ep PROGRAM`, \
         or unset AIRDMA_PORT"
    )]
    RawNotPermitted,
    /// The interface of the address has no Ethernet frames (EOPNOTSUPP).
    #[error(
        "the interface of {address} is none of Ethernet (loopback, a tunnel): unset AIRDMA_PORT for it"
    )]
    NotEthernet {
        /// Address of the interface.
        address: IpAddr,
    },
    /// No address, or more than a GID index can tell apart.
    #[error("a port has 1 to 256 addresses, not {count}")]
    AddressCount {
        /// Number of addresses.
        count: usize,
    },
    /// Any other refusal of the kernel.
    #[error("{call} failed for {address}: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// Address to bind.
        address: IpAddr,
        /// The system's error.
        source: io::Error,
    },
}

impl BindError {
    /// The errno a C caller should see.
    pub fn errno(&self) -> i32 {
        match self {
            BindError::AddressInUse { .. } => libc::EADDRINUSE,
            BindError::AddressTentative { .. }
            | BindError::AddressDuplicate { .. }
            | BindError::AddressUnavailable { .. } => libc::EADDRNOTAVAIL,
            BindError::SharingLocked { .. } => libc::EAGAIN,
            BindError::NotPermitted { .. } => libc::EACCES,
            BindError::RawNotPermitted => libc::EPERM,
            BindError::NotEthernet { .. } => libc::EOPNOTSUPP,
            BindError::AddressCount { .. } => libc::EINVAL,
            BindError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    /// The address that could not be bound.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            BindError::AddressInUse { address, .. }
            | BindError::SharingLocked { address, .. }
            | BindError::AddressTentative { address }
            | BindError::AddressDuplicate { address }
            | BindError::AddressUnavailable { address }
            | BindError::NotPermitted { address, .. }
            | BindError::NotEthernet { address }
            | BindError::System { address, .. } => Some(*address),
            BindError::AddressCount { .. } | BindError::RawNotPermitted => None,
        }
    }

    fn system(call: &'static str, address: IpAddr) -> Self {
        BindError::System {
            call,
            address,
            source: io::Error::last_os_error(),
        }
    }

    /// The error for a refused `bind`.
    pub(crate) fn refused(address: IpAddr, port: u16, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EADDRINUSE) => BindError::AddressInUse { address, port },
            Some(libc::EACCES | libc::EPERM) => BindError::NotPermitted { address, port },
            Some(libc::EADDRNOTAVAIL) => match address {
                IpAddr::V4(_) => BindError::AddressUnavailable { address },
                IpAddr::V6(ip) => {
                    // The file does not exist without IPv6; then the address does not exist either.
                    let table = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
                    match ipv6_flags(&table, ip) {
                        Some(flags) if flags & IFA_F_DADFAILED != 0 => {
                            BindError::AddressDuplicate { address }
                        }
                        Some(flags) if flags & IFA_F_TENTATIVE != 0 => {
                            BindError::AddressTentative { address }
                        }
                        Some(_) | None => BindError::AddressUnavailable { address },
                    }
                }
            },
            _ => BindError::System {
                call: "bind",
                address,
                source,
            },
        }
    }
}

/// Flags of `address` in the kernel's table: lines of address, interface, prefix length, scope,
/// flags (hexadecimal), name.
fn ipv6_flags(table: &str, address: Ipv6Addr) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let bits = u128::from_str_radix(words.next()?, 16).ok()?;
        let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
        (bits == address.to_bits()).then_some(flags)
    })
}

/// linux/if_addr.h
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_an_ipv6_address_is_read_from_the_kernel_table() {
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fe800000000000000000000000000001 02 40 20 c0     eth0\n";
        let flags = |text: &str| ipv6_flags(table, text.parse().expect("an address"));
        assert_eq!(flags("::1"), Some(0x80));
        assert_eq!(flags("fe80::1"), Some(0xc0));
        assert_eq!(flags("fe80::2"), None);
    }
}
