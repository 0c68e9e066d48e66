//! Devices.

use crate::config::{DeviceConfig, RecordConfig};
use crate::connection::{Connection, Manner};
use crate::endpoint::Connecting;
use crate::hub::Hub;
use crate::{
    DatagramAddress, DatagramEndpoint, Endpoint, Error, Listener, Operation, Region, Result,
};
use airdma_engine::{self as engine, DeviceInfo, Path};
use std::fmt::Write;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

/// An interface that has a device, from [`Device::interfaces`].
#[derive(Clone, Debug)]
pub struct Interface(DeviceInfo);

impl Interface {
    /// Its name.
    pub fn name(&self) -> &str {
        let Self(info) = self;
        &info.interface
    }

    /// Whether it reaches this host only.
    pub fn is_loopback(&self) -> bool {
        self.0.gids.iter().all(|row| row.address.is_loopback())
    }

    /// Opens its device, with the configuration in the environment; see [`Device::open`].
    ///
    /// # Errors
    /// [`Blame::System`](crate::Blame::System): no descriptors or memory.
    /// [`Blame::You`](crate::Blame::You): an invalid variable, or one that has changed since the
    /// device was opened.
    pub fn open(&self) -> Result<Device> {
        Device::of(&self.0, None, None)
    }

    /// Opens its device with `config`; see [`Device::open_with`].
    ///
    /// # Errors
    /// [`Blame::System`](crate::Blame::System): no descriptors or memory.
    /// [`Blame::You`](crate::Blame::You): the device is open with another configuration.
    pub fn open_with(&self, config: &DeviceConfig) -> Result<Device> {
        Device::of(&self.0, None, Some(config))
    }

    /// Whether `device` is this interface's, which may have been renamed since it was opened.
    pub fn is_of(&self, device: &Device) -> bool {
        device.hub.engine.info().interface_index == self.0.interface_index
    }
}

/// An RDMA device. Every network interface with an address has one.
///
/// Clones are the same device.
#[derive(Clone)]
pub struct Device {
    hub: Arc<Hub>,
    /// The address that it was opened by.
    address: Option<IpAddr>,
    manner: Manner,
}

/// Hop limit of the packets of connections.
const HOP_LIMIT: u8 = 64;

impl Device {
    /// Names of the interfaces that have a device: those that are up and have an address, `lo`
    /// included.
    ///
    /// # Errors
    /// [`Blame::System`](crate::Blame::System).
    pub fn names() -> Result<Vec<String>> {
        let devices = engine::all_devices()
            .map_err(|error| Error::system("listing the interfaces", &error))?;
        Ok(devices.into_iter().map(|device| device.interface).collect())
    }

    /// As [`Device::names`], as handles: opening devices by their names would search for each
    /// again.
    ///
    /// # Errors
    /// [`Blame::System`](crate::Blame::System).
    pub fn interfaces() -> Result<Vec<Interface>> {
        let devices = engine::all_devices()
            .map_err(|error| Error::system("listing the interfaces", &error))?;
        Ok(devices.into_iter().map(Interface).collect())
    }

    /// Opens the device of an interface, named by the interface (`eth0`), an address or the device
    /// (`airdma_eth0`).
    ///
    /// Opened by an address (`192.0.2.1`), it uses only that one. `127.0.0.1` is for tests on one
    /// host.
    ///
    /// It works as the variables of the environment say, and those must not change while this
    /// process has it open.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): there is no such device; the error lists the existing
    /// ones; or a variable is invalid, or has changed since the device was opened.
    /// [`Blame::System`](crate::Blame::System): no descriptors or memory.
    pub fn open(name: &str) -> Result<Device> {
        Device::named(name, None)
    }

    /// As [`Device::open`], as `config` says and not as the variables of the environment do.
    ///
    /// All devices of a process on one interface are one device with one configuration:
    /// [`Device::open`] and [`Device::towards`] join it whatever the environment says.
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
    /// As [`Device::open`]; [`Blame::You`](crate::Blame::You): this process has the device open
    /// with another configuration. The error names the fields that differ.
    pub fn open_with(name: &str, config: &DeviceConfig) -> Result<Device> {
        Device::named(name, Some(config))
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
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

    /// The device with an address. Several may have a link-local one: then that of the interface
    /// `scope`.
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

    /// The device of an interface, with `config` or the environment's configuration.
    fn of(
        info: &DeviceInfo,
        address: Option<IpAddr>,
        config: Option<&DeviceConfig>,
    ) -> Result<Device> {
        let opened = match config {
            Some(config) => engine::Device::open_with(info, config),
            None => engine::Device::open(info),
        };
        let device = opened.map_err(|error| {
            let what = format!("opening {}", info.name);
            // The kernel's own EINVAL is not about the configuration.
            match (error.kind(), error.raw_os_error()) {
                (ErrorKind::InvalidInput, None) => Error::you(format!("{what}: {error}")),
                _ => Error::system(&what, &error),
            }
        })?;
        Ok(Device {
            hub: Hub::new(device)?,
            address,
            manner: Manner::default(),
        })
    }

    /// Opens the device that leads to a peer: `"192.0.2.2:7471"`, `("server", 7471)`.
    ///
    /// A name is resolved at once. A link-local address needs its zone: `("fe80::1%eth0", 7471)`.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the address is invalid. Otherwise as [`Device::open`].
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

    /// A device of the engine, for tests.
    #[doc(hidden)]
    pub fn on(device: Arc<engine::Device>) -> Result<Device> {
        Ok(Device {
            hub: Hub::new(device)?,
            address: None,
            manner: Manner::default(),
        })
    }

    /// The same device with *sealed* connections: every packet is encrypted and authenticated.
    ///
    /// The two ends exchange the keys, so both must seal; with an end that does not, transfers fail
    /// as if it were gone. The exchange does not authenticate the peer: a program that knows its
    /// peers compares [`Endpoint::binding`] with them.
    #[must_use]
    pub fn sealed(self) -> Device {
        let manner = Manner {
            seals: true,
            ..self.manner
        };
        Device { manner, ..self }
    }

    /// The same device with *patient* connections: they outlast any silence of their peer.
    ///
    /// A peer that does not answer may be a stopped process, which goes on after days. As a rule it
    /// counts as gone after some seconds, and what waits for it ends with an error. A patient
    /// connection waits for as long as it takes: the program needs another way to detect a dead
    /// host. A peer that closes ends the connection as always.
    #[must_use]
    pub fn patient(self) -> Device {
        let manner = Manner {
            is_patient: true,
            ..self.manner
        };
        Device { manner, ..self }
    }

    /// Whether its interface is gone for good: deleted, or moved to another network namespace.
    ///
    /// Everything that used the device has ended then; a later interface of the same name has
    /// another device.
    pub fn is_gone(&self) -> bool {
        self.hub.engine.is_gone()
    }

    /// Adds to a counter of the library for socket programs.
    #[doc(hidden)]
    pub fn count_sockets(&self, counter: engine::SocketCounter, amount: u64) {
        self.hub.engine.count_sockets(counter, amount);
    }

    /// Starts the thread that wakes tasks, which the first task would start otherwise.
    ///
    /// A lack of resources then shows now.
    ///
    /// # Errors
    /// [`Blame::System`](crate::Blame::System): no descriptors or threads.
    pub fn start(&self) -> Result<()> {
        let started = self.hub.drive();
        started.map_err(|error| Error::system("a thread to wait with", &error))
    }

    /// Its name: `airdma_` and the interface's.
    pub fn name(&self) -> &str {
        &self.hub.engine.info().name
    }

    /// The address that it was opened by, or the interface's first; `None` while the interface has
    /// none.
    pub fn address(&self) -> Option<IpAddr> {
        self.address.or_else(|| {
            let info = self.hub.engine.current();
            let row = info.gids.iter().find(|row| !row.is_empty());
            row.map(|row| row.address)
        })
    }

    /// All addresses where peers reach it: the one that it was opened by, or all of the interface.
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

    /// Allocates `length` bytes of zeroed memory that the device can send from and receive into.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): `length` is 0. [`Blame::System`](crate::Blame::System).
    pub fn allocate(&self, length: usize) -> Result<Region> {
        Region::allocate(&self.hub, length)
    }

    /// As [`Device::allocate`], in a memory file of its own, which another process can get
    /// ([`Region::file`]).
    ///
    /// The file takes a descriptor.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn allocate_file(&self, length: usize) -> Result<Region> {
        Region::allocate_file(&self.hub, length)
    }

    /// As [`Device::allocate`], for this process alone: no other can map it, and megabytes of it
    /// are ready sooner.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn allocate_private(&self, length: usize) -> Result<Region> {
        Region::allocate_private(&self.hub, length)
    }

    /// Listens on a port, in the port space of RDMA CM (not TCP's).
    ///
    /// # Errors
    /// [`Blame::System`](crate::Blame::System): the port has a listener, or another program holds
    /// UDP port 4791.
    pub fn listen(&self, port: u16) -> Result<Listener> {
        Listener::new(&self.hub, port, self.address, self.manner)
    }

    /// Connects to a listener: `"192.0.2.2:7471"`, `("server", 7471)`, a [`SocketAddr`]. A name is
    /// resolved at once.
    ///
    /// # Errors
    /// - [`Blame::You`](crate::Blame::You): the address is invalid.
    /// - [`Blame::Peer`](crate::Blame::Peer): there is no listener.
    /// - [`Blame::Network`](crate::Blame::Network): no answer comes within ten seconds.
    /// - [`Blame::System`](crate::Blame::System).
    pub fn connect(&self, to: impl ToSocketAddrs) -> Operation<Endpoint> {
        match self.begin_to_connect(to) {
            Ok(connection) => Operation::new(&self.hub, Connecting::new(connection)),
            Err(error) => Operation::failed(&self.hub, error),
        }
    }

    /// An endpoint without a connection, for records.
    ///
    /// On a device that [seals](Device::sealed) it needs a secret that both hosts have
    /// ([`DeviceConfig::secret`], `AIRDMA_SECRET`). With a secret all endpoints seal.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the interface has no address, or the device seals and has
    /// no secret. [`Blame::System`](crate::Blame::System).
    pub fn datagram_endpoint(&self) -> Result<DatagramEndpoint> {
        self.datagram_endpoint_with(RecordConfig::default())
    }

    /// As [`Device::datagram_endpoint`], with other limits for its records.
    ///
    /// # Errors
    /// As [`Device::datagram_endpoint`]; [`Blame::You`](crate::Blame::You): a limit is out of
    /// range.
    pub fn datagram_endpoint_with(&self, config: RecordConfig) -> Result<DatagramEndpoint> {
        DatagramEndpoint::new(self, &self.hub, config, None)
    }

    /// An endpoint that is a member of a multicast group ([`DatagramAddress::of_group`]): it gets
    /// what is written to the group, in regions that are shared for it
    /// ([`Shared::remote_for_group`](crate::Shared::remote_for_group)).
    ///
    /// Members answer nothing, so a process writes 64 KiB each 10 ms to a group at most. Two
    /// members in one process have two devices: open the interface twice.
    ///
    /// # Errors
    /// As [`Device::datagram_endpoint`]; [`Blame::You`](crate::Blame::You): the address is not of a
    /// group, or the device has a secret: groups are not sealed.
    pub fn group_endpoint(&self, group: &DatagramAddress) -> Result<DatagramEndpoint> {
        self.group_endpoint_with(group, RecordConfig::default())
    }

    /// As [`Device::group_endpoint`], with other limits for its records.
    ///
    /// # Errors
    /// As [`Device::group_endpoint`] and [`Device::datagram_endpoint_with`].
    pub fn group_endpoint_with(
        &self,
        group: &DatagramAddress,
        config: RecordConfig,
    ) -> Result<DatagramEndpoint> {
        DatagramEndpoint::new(self, &self.hub, config, Some(group))
    }

    /// Whether connections are sealed: see [`Device::sealed`].
    pub(crate) fn seals(&self) -> bool {
        self.manner.seals
    }

    fn begin_to_connect(&self, to: impl ToSocketAddrs) -> Result<Arc<Connection>> {
        let mut refused = None;
        for to in addresses_of(to)? {
            match self.source_for(to) {
                Ok((source, index)) => {
                    let path = path_to(to.ip(), index);
                    return Connection::connect(&self.hub, to, source, path, self.manner);
                }
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| Error::you("the name of the peer has no address")))
    }

    /// The source address for `to`, and its index in the GID table.
    pub(crate) fn source_for(&self, to: SocketAddr) -> Result<(IpAddr, u8)> {
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

/// The path to an address from the GID at `index`.
pub(crate) fn path_to(to: IpAddr, index: u8) -> Path {
    Path {
        gid: engine::Gid::from(to),
        sgid_index: index,
        hop_limit: HOP_LIMIT,
        ..Path::default()
    }
}

/// The interface of a link-local address.
fn scope_of(to: SocketAddr) -> Option<u32> {
    match to {
        SocketAddr::V6(to) => Some(to.scope_id()).filter(|scope| *scope != 0),
        SocketAddr::V4(_) => None,
    }
}

/// The source address that the kernel would use.
fn route_source(to: SocketAddr) -> Option<IpAddr> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    // Nothing is sent: the kernel only searches for a route.
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
