//! Devices.

use crate::config::DeviceConfig;
use crate::connection::Connection;
use crate::endpoint::Connecting;
use crate::hub::Hub;
use crate::{Endpoint, Error, Listener, Operation, Region, Result};
use airdma_engine::{self as engine, DeviceInfo, Path};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

/// An interface that has a device, as [`Device::interfaces`] found it.
#[derive(Clone, Debug)]
pub struct Interface(DeviceInfo);

impl Interface {
    /// Its name.
    pub fn name(&self) -> &str {
        let Self(info) = self;
        &info.interface
    }

    /// Whether it leads to this host alone.
    pub fn is_loopback(&self) -> bool {
        self.0.gids.iter().all(|row| row.address.is_loopback())
    }

    /// Opens its device, as the environment asks.
    ///
    /// # Errors
    /// The system's (descriptors, memory), and a wrong value of a variable.
    pub fn open(&self) -> Result<Device> {
        Device::of(&self.0, None, None)
    }

    /// Opens its device as `config` says; see [`Device::open_with`].
    ///
    /// # Errors
    /// The system's (descriptors, memory).
    pub fn open_with(&self, config: &DeviceConfig) -> Result<Device> {
        Device::of(&self.0, None, Some(config))
    }

    /// Whether a device is the one of this interface, which may have had another name when that was
    /// opened.
    pub fn is_of(&self, device: &Device) -> bool {
        device.hub.engine.info().interface_index == self.0.interface_index
    }
}

/// An RDMA device: one is on each network interface that has an address. Clones are the same
/// device.
#[derive(Clone)]
pub struct Device {
    hub: Arc<Hub>,
    /// The address that it was opened by.
    address: Option<IpAddr>,
    seals: bool,
}

/// What packets of connections are sent with.
const HOP_LIMIT: u8 = 64;

impl Device {
    /// The interfaces that have a device: those that are up and have an address, `lo` too.
    ///
    /// # Errors
    /// The system's.
    pub fn names() -> Result<Vec<String>> {
        let devices = engine::all_devices()
            .map_err(|error| Error::system("listing the interfaces", &error))?;
        Ok(devices.into_iter().map(|device| device.interface).collect())
    }

    /// The same, to be opened: by their names each would be looked for anew.
    ///
    /// # Errors
    /// The system's.
    pub fn interfaces() -> Result<Vec<Interface>> {
        let devices = engine::all_devices()
            .map_err(|error| Error::system("listing the interfaces", &error))?;
        Ok(devices.into_iter().map(Interface).collect())
    }

    /// Opens the device on an interface: by the interface's name (`eth0`), one of its addresses
    /// (`192.0.2.1`), or the name of the device itself (`airdma_eth0`). `127.0.0.1` is for trying
    /// things out on one host.
    ///
    /// Opened by an address, it uses that one alone.
    ///
    /// # Errors
    /// Yours, if there is none: the error says which there are. The system's (descriptors, memory).
    pub fn open(name: &str) -> Result<Device> {
        Device::named(name, None)
    }

    /// As [`Device::open`], as `config` says and not as the variables of the environment do. A
    /// device that this process has open already keeps the configuration that it was opened with.
    ///
    /// ```
    /// use airdma::Device;
    /// use airdma::config::{Air, DeviceConfig};
    ///
    /// # fn main() -> airdma::Result<()> {
    /// let config = DeviceConfig {
    ///     air: Air::Off,
    ///     ..DeviceConfig::default()
    /// };
    /// let device = Device::open_with("127.0.0.1", &config)?;
    /// # drop(device);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open_with(name: &str, config: &DeviceConfig) -> Result<Device> {
        Device::named(name, Some(config))
    }

    fn named(name: &str, config: Option<&DeviceConfig>) -> Result<Device> {
        let devices = engine::all_devices()
            .map_err(|error| Error::system("listing the interfaces", &error))?;
        let address: Option<IpAddr> = name.parse().ok();
        let has = |device: &DeviceInfo| {
            let is_known = |address| device.gids.iter().any(|row| row.address == address);
            device.interface == name || device.name == name || address.is_some_and(is_known)
        };
        let Some(info) = devices.iter().find(|device| has(device)) else {
            return Err(Error::you(unknown(name, &devices)));
        };
        Device::of(info, address, config)
    }

    /// The device that has an address; of a link-local address, which several may have, the one
    /// with the interface `scope`.
    fn at(address: IpAddr, scope: Option<u32>) -> Result<Device> {
        let devices = engine::all_devices()
            .map_err(|error| Error::system("listing the interfaces", &error))?;
        let has = |device: &&DeviceInfo| {
            let is_meant = scope.is_none_or(|scope| scope == device.interface_index);
            is_meant && device.gids.iter().any(|row| row.address == address)
        };
        match devices.iter().find(has) {
            Some(info) => Device::of(info, Some(address), None),
            None => Err(Error::you(unknown(&address.to_string(), &devices))),
        }
    }

    /// The device of an interface, as `config` says or the environment.
    fn of(
        info: &DeviceInfo,
        address: Option<IpAddr>,
        config: Option<&DeviceConfig>,
    ) -> Result<Device> {
        let opened = match config {
            Some(config) => engine::Device::open_with(info, config),
            None => engine::Device::open(info),
        };
        let device =
            opened.map_err(|error| Error::system(&format!("opening {}", info.name), &error))?;
        Ok(Device {
            hub: Hub::new(device)?,
            address,
            seals: false,
        })
    }

    /// Opens the device that leads to a peer: `"192.0.2.2:7471"`, `("server", 7471)`. A name is
    /// looked up at once. A link-local address needs its zone: `("fe80::1%eth0", 7471)`.
    ///
    /// # Errors
    /// Yours, for an address that is none; otherwise as [`Device::open`].
    pub fn towards(peer: impl ToSocketAddrs) -> Result<Device> {
        let mut refused = None;
        for to in addresses_of(peer)? {
            let source = route_source(to);
            match source.map(|source| Device::at(source, scope_of(to))) {
                Some(Ok(device)) => return Ok(device),
                Some(Err(error)) => refused = Some(error),
                None => {}
            }
        }
        Err(refused.unwrap_or_else(|| {
            Error::you("no interface leads to the peer: is there a route (`ip route get ADDRESS`)?")
        }))
    }

    /// A device of the engine's, for tests.
    #[doc(hidden)]
    pub fn on(device: Arc<engine::Device>) -> Result<Device> {
        Ok(Device {
            hub: Hub::new(device)?,
            address: None,
            seals: false,
        })
    }

    /// The same device, whose connections are *sealed*: every packet is encrypted and
    /// authenticated, with keys that the two ends exchange. The other end has to seal as well; with
    /// one that does not, nothing is exchanged, and transfers fail as if it were gone.
    ///
    /// The exchange does not authenticate the peer. A program that knows its peers compares
    /// [`Endpoint::binding`] with them.
    #[must_use]
    pub fn sealed(self) -> Device {
        Device {
            seals: true,
            ..self
        }
    }

    /// Whether its interface is gone for good: deleted, or moved to another network namespace. What
    /// used the device has ended then, and an interface of the same name that comes later has
    /// another one.
    pub fn is_gone(&self) -> bool {
        self.hub.engine.is_gone()
    }

    /// Starts the thread that wakes tasks, which the first of them would do otherwise: what it
    /// needs is there then, or it is known now that it is not.
    ///
    /// # Errors
    /// The system's (descriptors, threads).
    pub fn start(&self) -> Result<()> {
        let started = self.hub.drive();
        started.map_err(|error| Error::system("a thread to wait with", &error))
    }

    /// Its name: `airdma_` and the interface's.
    pub fn name(&self) -> &str {
        &self.hub.engine.info().name
    }

    /// Its address, the one that it was opened by or the interface's first; none while the
    /// interface has none.
    pub fn address(&self) -> Option<IpAddr> {
        self.address.or_else(|| {
            let info = self.hub.engine.current();
            let row = info.gids.iter().find(|row| !row.is_empty());
            row.map(|row| row.address)
        })
    }

    /// All addresses at which peers reach it: the one that it was opened by, or those of the
    /// interface.
    pub fn addresses(&self) -> Vec<IpAddr> {
        match self.address {
            Some(address) => vec![address],
            None => {
                let info = self.hub.engine.current();
                let rows = info.gids.iter().filter(|row| !row.is_empty());
                rows.map(|row| row.address).collect()
            }
        }
    }

    /// `length` bytes of memory, zeroed, that the device can send from and receive into.
    ///
    /// # Errors
    /// Yours, for no bytes; the system's.
    pub fn allocate(&self, length: usize) -> Result<Region> {
        Region::allocate(&self.hub, length)
    }

    /// The same in a memory file of its own, which takes a descriptor: another process can be given
    /// it ([`Region::file`]).
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn allocate_file(&self, length: usize) -> Result<Region> {
        Region::allocate_file(&self.hub, length)
    }

    /// The same for this process alone: no other can map it, and it is there sooner, where it is
    /// megabytes.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn allocate_private(&self, length: usize) -> Result<Region> {
        Region::allocate_private(&self.hub, length)
    }

    /// Listens on a port. Ports are those of RDMA CM: TCP's are others.
    ///
    /// # Errors
    /// The system's: the port has a listener, or another program holds UDP port 4791.
    pub fn listen(&self, port: u16) -> Result<Listener> {
        Listener::new(&self.hub, port, self.address, self.seals)
    }

    /// Connects to who listens there: `"192.0.2.2:7471"`, `("server", 7471)`, a [`SocketAddr`]. A
    /// name is looked up at once.
    ///
    /// # Errors
    /// Yours, for an address that is none; the peer's, if nobody listens there; the network's, if
    /// nobody answers within ten seconds; the system's.
    pub fn connect(&self, to: impl ToSocketAddrs) -> Operation<Endpoint> {
        match self.begin_to_connect(to) {
            Ok(connection) => Operation::new(&self.hub, Connecting::new(connection)),
            Err(error) => Operation::failed(&self.hub, error),
        }
    }

    fn begin_to_connect(&self, to: impl ToSocketAddrs) -> Result<Arc<Connection>> {
        let mut refused = None;
        for to in addresses_of(to)? {
            match self.source_for(to) {
                Ok((source, index)) => {
                    let path = path_to(to.ip(), index);
                    return Connection::connect(&self.hub, to, source, path, self.seals);
                }
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| Error::you("the name of the peer has no address")))
    }

    /// Our address towards `to`, and its place in the GID table.
    fn source_for(&self, to: SocketAddr) -> Result<(IpAddr, u8)> {
        let info = self.hub.engine.current();
        let index_of = |address: IpAddr| {
            let at = info.gids.iter().position(|row| row.address == address)?;
            u8::try_from(at).ok().map(|at| (address, at))
        };
        let is_fit =
            |address: &IpAddr| !address.is_unspecified() && address.is_ipv4() == to.is_ipv4();
        let kernels = || route_source(to).and_then(index_of);
        let first = || {
            let mut addresses = info.gids.iter().map(|row| row.address);
            addresses.find(is_fit).and_then(index_of)
        };
        let source = match self.address {
            Some(address) => Some(address).filter(is_fit).and_then(index_of),
            None => kernels().or_else(first),
        };
        source.ok_or_else(|| {
            let family = if to.is_ipv4() { "IPv4" } else { "IPv6" };
            Error::you(format!(
                "{} has no {family} address, which a connection to {} needs: open another, or open it by its name",
                info.name,
                to.ip()
            ))
        })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

fn addresses_of(peer: impl ToSocketAddrs) -> Result<impl Iterator<Item = SocketAddr>> {
    peer.to_socket_addrs().map_err(|error| {
        Error::you(format!(
            "no such address: {error}; give HOST:PORT, as in 192.0.2.1:7471"
        ))
    })
}

/// The way to an address from the GID at `index`.
pub(crate) fn path_to(to: IpAddr, index: u8) -> Path {
    Path {
        gid: engine::Gid::from(to),
        sgid_index: index,
        hop_limit: HOP_LIMIT,
        ..Path::default()
    }
}

/// The interface that a link-local address is meant on.
fn scope_of(to: SocketAddr) -> Option<u32> {
    match to {
        SocketAddr::V6(to) => Some(to.scope_id()).filter(|scope| *scope != 0),
        SocketAddr::V4(_) => None,
    }
}

/// The address that the kernel would send from.
fn route_source(to: SocketAddr) -> Option<IpAddr> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    // Nothing is sent: the kernel only looks for the way.
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

fn unknown(name: &str, devices: &[DeviceInfo]) -> String {
    let mut message = format!("no device {name:?}: there is");
    for (index, device) in devices.iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        let first = device.gids.first().map(|row| row.address);
        let address = first.map_or_else(String::new, |address| format!(" ({address})"));
        // Writing to a string does not fail.
        let _ = write!(message, "{separator} {}{address}", device.interface);
    }
    if devices.is_empty() {
        message.push_str(" none; give an interface an address, and bring it up");
    }
    message
}
