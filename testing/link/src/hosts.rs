//! The two hosts: network namespaces joined by a veth pair, with addresses.

use std::fs;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use airdma_lab::{NAMED, Named, Namespace, Route, configure, interface, wait_up};
use serde::{Deserialize, Serialize};

use crate::air::Side;
use crate::error::{LinkError, Tried};

/// Name of the radio interface on both hosts.
pub const INTERFACE: &str = "air0";
/// Usual MTU of Wi-Fi.
const MTU: u32 = 1500;

/// Two hosts. Gone when this is dropped, or when the process ends and no program is in them; those
/// that were given stay.
#[derive(Debug)]
pub struct Hosts {
    namespaces: [Namespace; 2],
    names: Option<[Named; 2]>,
    given: Option<[Place; 2]>,
}

/// An interface that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// A name of `ip netns`, or a process in the namespace; none: this one.
    pub namespace: Option<String>,
    /// The interface.
    pub interface: String,
}

impl Place {
    /// From `INTERFACE`, `NETNS:INTERFACE` or `PROCESS:INTERFACE`.
    ///
    /// # Errors
    ///
    /// If it is none of these.
    pub fn parse(word: &str) -> Result<Place, LinkError> {
        let (namespace, interface) = match word.rsplit_once(':') {
            Some((namespace, interface)) => (Some(namespace.to_owned()), interface),
            None => (None, word),
        };
        let is_name = |name: &str| !name.is_empty() && !name.contains(['/', ' ']);
        if is_name(interface) && interface.len() < 16 && namespace.as_deref().is_none_or(is_name) {
            let interface = interface.to_owned();
            return Ok(Place {
                namespace,
                interface,
            });
        }
        Err(LinkError::Asked(format!(
            "{word:?} is not an interface: use INTERFACE, NETNS:INTERFACE or PROCESS:INTERFACE"
        )))
    }

    /// As on the command line.
    pub fn words(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}:{}", self.interface),
            None => self.interface.clone(),
        }
    }

    fn open(&self) -> Result<Namespace, LinkError> {
        let file = match &self.namespace {
            None => "/proc/self/ns/net".into(),
            Some(process) if process.bytes().all(|byte| byte.is_ascii_digit()) => {
                format!("/proc/{process}/ns/net")
            }
            Some(name) => format!("{NAMED}/{name}"),
        };
        Namespace::open(Path::new(&file)).tried(format!("opening the namespace {file}"))
    }
}

impl Side {
    /// As on the command line.
    pub fn parse(word: &str) -> Option<Side> {
        match word {
            "A" | "a" => Some(Side::A),
            "B" | "b" => Some(Side::B),
            _ => None,
        }
    }

    /// As in names.
    pub const fn letter(self) -> char {
        match self {
            Side::A => 'a',
            Side::B => 'b',
        }
    }
}

/// The address of a host.
pub fn ipv4(side: Side) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1 + side.index() as u8))
}

/// The IPv6 address of a host.
pub fn ipv6(side: Side) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(
        0xfd78,
        0,
        0,
        0,
        0,
        0,
        0,
        1 + side.index() as u16,
    ))
}

impl Hosts {
    /// Makes them, and waits until packets can cross. After [`airdma_lab::enter`]. With root they
    /// get names for `ip netns` that begin with `name`. `segmented`: packets of many segments cross
    /// whole; otherwise each segment takes the air, and is lost, by itself.
    pub fn new(name: &str, segmented: bool) -> Result<Hosts, LinkError> {
        let make = || Namespace::new().tried("making a network namespace");
        let namespaces = [make()?, make()?];
        let mut hosts = Hosts {
            namespaces,
            names: None,
            given: None,
        };
        hosts.connect(segmented)?;
        if is_real_root() {
            hosts.publish(name)?;
        }
        Ok(hosts)
    }

    /// Interfaces that are there, and can reach each other; addresses are their owner's business.
    pub fn given(places: &[Place; 2]) -> Result<Hosts, LinkError> {
        let [a, b] = places;
        let hosts = Hosts {
            namespaces: [a.open()?, b.open()?],
            names: None,
            given: Some(places.clone()),
        };
        for side in Side::BOTH {
            let place = &places[side.index()];
            let found = hosts.on(side, || interface(&place.interface));
            found.tried(format!("looking for the interface {}", place.words()))?;
        }
        Ok(hosts)
    }

    /// Whether the interfaces existed before, and belong to another user of them.
    pub fn are_given(&self) -> bool {
        self.given.is_some()
    }

    /// Name of a host's radio interface.
    pub fn interface(&self, side: Side) -> &str {
        match &self.given {
            Some(places) => &places[side.index()].interface,
            None => INTERFACE,
        }
    }

    /// Its MTU, in bytes.
    pub fn mtu(&self, side: Side) -> io::Result<u32> {
        let name = self.interface(side);
        self.on(side, || mtu(name))
    }

    /// Runs `work` on a host and returns its result; sockets that it opens stay there.
    pub fn on<T: Send>(
        &self,
        side: Side,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        self.namespaces[side.index()].within(work)
    }

    /// Descriptors of the namespaces.
    pub fn descriptors(&self) -> [RawFd; 2] {
        [0, 1].map(|index| self.namespaces[index].raw())
    }

    /// Their numbers.
    pub fn numbers(&self) -> io::Result<[u64; 2]> {
        let [a, b] = self.descriptors().map(number_of);
        Ok([a?, b?])
    }

    /// Names of `ip netns`, if they have any.
    pub fn names(&self) -> Option<[String; 2]> {
        let [a, b] = self.names.as_ref()?;
        Some([a, b].map(|named| named.name().to_owned()))
    }

    fn connect(&self, segmented: bool) -> Result<(), LinkError> {
        let [_, far] = self.descriptors();
        for side in Side::BOTH {
            // Without this the link-local addresses would be unusable for the first second or two.
            // No file where the kernel has no IPv6.
            let dad = || fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
            let _ = self.on(side, dad);
        }
        self.on(Side::A, || Route::open()?.add_veth(INTERFACE, MTU, far))
            .tried("making a veth pair")?;
        for side in Side::BOTH {
            let addresses = [ipv4(side), ipv6(side)];
            self.on(side, || {
                configure(INTERFACE, addresses[0], addresses[1], segmented)
            })
            .tried(format!("giving {INTERFACE} its addresses"))?;
        }
        for side in Side::BOTH {
            let up = self.on(side, || wait_up(INTERFACE));
            if !up.tried("waiting for the carrier")? {
                return Err(LinkError::Asked(format!(
                    "the interface of host {side:?} does not come up"
                )));
            }
        }
        Ok(())
    }

    /// Gives the namespaces names, as `ip netns add` does.
    fn publish(&mut self, name: &str) -> Result<(), LinkError> {
        let named = |side: Side| {
            let name = format!("{name}-{}", side.letter());
            let what = format!("naming a network namespace {name}");
            Named::new(name, &self.namespaces[side.index()]).tried(what)
        };
        self.names = Some([named(Side::A)?, named(Side::B)?]);
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if self.given.is_some() {
            return;
        }
        // Programs may still be in the namespaces: the interfaces go now.
        let remove = || Route::open()?.remove(interface(INTERFACE)?);
        let _ = self.on(Side::A, remove);
    }
}

/// MTU of an interface in the namespace of the calling thread.
fn mtu(name: &str) -> io::Result<u32> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: plain data without pointers, of which all zeros is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(15)) {
        *to = from as libc::c_char;
    }
    // SAFETY: the request lives through the call; the kernel writes the number that is read then.
    unsafe {
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(request.ifr_ifru.ifru_mtu as u32)
    }
}

/// The number of the namespace behind a descriptor.
fn number_of(descriptor: RawFd) -> io::Result<u64> {
    Ok(fs::metadata(format!("/proc/self/fd/{descriptor}"))?.ino())
}

/// Root of the machine, not of a user namespace.
fn is_real_root() -> bool {
    // SAFETY: only reads who we are.
    let is_root = unsafe { libc::geteuid() } == 0;
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    is_root && map.split_ascii_whitespace().nth(2) == Some("4294967295")
}
