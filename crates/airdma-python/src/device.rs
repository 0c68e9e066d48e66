//! Devices and listeners.

use crate::datagrams::{DatagramAddress, DatagramEndpoint};
use crate::operation::{Any, Operation};
use crate::region::Region;
use crate::{Cell, failure};
use airdma::config::RecordConfig;
use pyo3::prelude::*;
use std::time::Duration;

/// An RDMA device. Every network interface with an address has one.
///
/// `Device(name)` opens it by the interface's name (`eth0`), one of its addresses (`192.0.2.1`;
/// then it uses only that one), or the device's name (`airdma_eth0`). `127.0.0.1` is for tests on
/// one host.
///
/// It works as the variables of the environment say (`AIRDMA_MTU`, ...), and those must not change
/// while this process has it open.
///
/// Raises UsageError if there is no such device, with a list of the existing ones, or a variable is
/// wrong or has changed; HostError (descriptors, memory).
#[pyclass(frozen, module = "airdma")]
pub struct Device(pub airdma::Device);

/// A port where peers can connect. Closing it stops listening; accepted connections stay.
#[pyclass(frozen, module = "airdma")]
pub struct Listener {
    port: u16,
    /// None once it is closed.
    listener: Cell<Option<airdma::Listener>>,
}

/// A peer's address: as in Python's sockets, or one string.
#[derive(FromPyObject)]
enum Address {
    Pair(String, u16),
    Text(String),
}

impl Address {
    fn text(self) -> String {
        match self {
            Address::Text(text) => text,
            Address::Pair(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            Address::Pair(host, port) => format!("{host}:{port}"),
        }
    }
}

#[pymethods]
impl Device {
    #[new]
    fn new(py: Python<'_>, name: &str) -> PyResult<Device> {
        let opened = py.detach(|| airdma::Device::open(name));
        opened
            .map(Device)
            .map_err(|error| failure::from(py, &error))
    }

    /// Opens the device that leads to a peer: `"192.0.2.2:7471"`, `("server", 7471)`. A name is
    /// resolved at once.
    ///
    /// Raises UsageError for an invalid address, or one without a route; otherwise as `Device`.
    #[staticmethod]
    fn towards(py: Python<'_>, peer: Address) -> PyResult<Device> {
        let peer = peer.text();
        let opened = py.detach(|| airdma::Device::towards(peer));
        opened
            .map(Device)
            .map_err(|error| failure::from(py, &error))
    }

    /// Its name: `airdma_` and the interface's.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// The address that it was opened by, or the interface's first; None while the interface has
    /// none.
    #[getter]
    fn address(&self) -> Option<String> {
        self.0.address().map(|address| address.to_string())
    }

    /// Allocates `length` bytes of zeroed memory that the device can send from and receive into.
    ///
    /// Raises UsageError if `length` is 0; HostError if there is not enough memory.
    fn allocate(&self, py: Python<'_>, length: usize) -> PyResult<Region> {
        let allocated = py.detach(|| self.0.allocate(length));
        allocated
            .map(Region::new)
            .map_err(|error| failure::from(py, &error))
    }

    /// Listens on a port, in the port space of RDMA CM (not TCP's).
    ///
    /// Raises HostError: the port has a listener, or another program holds UDP port 4791.
    fn listen(&self, py: Python<'_>, port: u16) -> PyResult<Listener> {
        let listening = py.detach(|| self.0.listen(port));
        let listener = listening.map_err(|error| failure::from(py, &error))?;
        Ok(Listener {
            port: listener.port(),
            listener: Cell::new(Some(listener)),
        })
    }

    /// Connects to a listener: `"192.0.2.2:7471"`, `("server", 7471)`. Returns an `Endpoint`. A
    /// name is resolved at once.
    ///
    /// The operation raises UsageError for an invalid address; PeerError if there is no listener;
    /// NetworkError if no answer comes within ten seconds; HostError.
    fn connect(&self, py: Python<'_>, peer: Address) -> Operation {
        let peer = peer.text();
        let connecting = py.detach(|| self.0.connect(peer));
        Operation::new(Any::Endpoint(connecting), None)
    }

    /// An endpoint without a connection, for records. It has room for `open_max` messages that
    /// arrive at once, each of at most `units_max` packets, and for `closed_max` records that are
    /// not released. A message is closed when nothing of it arrived for `idle` seconds, or `age`
    /// seconds after its first packet.
    ///
    /// Raises UsageError for a limit out of range, or an interface without an address; HostError.
    /// On a device that seals it needs a secret that both hosts have (AIRDMA_SECRET).
    #[pyo3(signature = (*, open_max=64, closed_max=192, units_max=4096, idle=0.02, age=1.0))]
    fn datagram_endpoint(
        &self,
        py: Python<'_>,
        open_max: u32,
        closed_max: u32,
        units_max: u32,
        idle: f64,
        age: f64,
    ) -> PyResult<DatagramEndpoint> {
        let duration = |seconds: f64| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| failure::usage(py, format!("a time of {seconds} s for records")))
        };
        let usual = RecordConfig::default();
        let config = RecordConfig {
            open_max,
            closed_max,
            units_max,
            sources_max: usual.sources_max.max(open_max.saturating_add(closed_max)),
            idle: duration(idle)?,
            age: duration(age)?,
            ..usual
        };
        let opened = py.detach(|| self.0.datagram_endpoint_with(config));
        opened
            .map(DatagramEndpoint::new)
            .map_err(|error| failure::from(py, &error))
    }

    /// An endpoint that is a member of a multicast group (`DatagramAddress.of_group`): it gets what
    /// is written to the group, in regions that are shared for it (`Shared.remote_for_group`).
    /// Members answer nothing, so a process writes 64 KiB each 10 ms to a group at most.
    ///
    /// Raises UsageError if the address is not of a group, or hosts share a secret; HostError.
    fn group_endpoint(
        &self,
        py: Python<'_>,
        group: &DatagramAddress,
    ) -> PyResult<DatagramEndpoint> {
        let opened = py.detach(|| self.0.group_endpoint(&group.0));
        opened
            .map(DatagramEndpoint::new)
            .map_err(|error| failure::from(py, &error))
    }

    fn __repr__(&self) -> String {
        format!("<airdma.Device {}>", self.0.name())
    }
}

#[pymethods]
impl Listener {
    /// The port.
    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    /// Accepts the next connection: returns an `Endpoint`. A cancelled accept loses none.
    ///
    /// The operation raises HostError if there is no room for another connection.
    fn accept(&self, py: Python<'_>) -> PyResult<Operation> {
        let accepting = self.listener.lock().as_ref().map(airdma::Listener::accept);
        let accepting = accepting.ok_or_else(|| failure::usage(py, "the listener is closed"))?;
        Ok(Operation::new(Any::Endpoint(accepting), None))
    }

    /// Stops listening.
    fn close(&self, py: Python<'_>) {
        let listener = self.listener.lock().take();
        py.detach(|| drop(listener));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<airdma.Listener on port {}>", self.port)
    }
}
