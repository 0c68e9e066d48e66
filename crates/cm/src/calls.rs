//! Arguments and errors of a manager's calls.

use airdma_wire::cm::{IpAddressing, ServiceId, SidrStatus, TransportService};
use airdma_wire::{PathMtu, Psn, Qkey, Qpn};

use crate::Route;

/// Why a call had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// There is more private data than the message holds: `EINVAL`.
    #[error("at most {max} bytes of private data fit")]
    PrivateDataTooLong {
        /// Bytes of private data that fit.
        max: usize,
    },
    /// The service id has a listener at that address: `EADDRINUSE`.
    #[error("the service id has a listener")]
    ServiceInUse,
    /// No connection has that id, or it is over: `EINVAL`.
    #[error("no such connection")]
    Unknown,
    /// The state of the connection does not allow the call: `EINVAL`.
    #[error("the state of the connection does not allow this")]
    InvalidState,
    /// There are [`connections_max`](crate::Config::connections_max) connections: `ENOMEM`.
    #[error("too many connections")]
    TooManyConnections,
}

/// Arguments of [`Manager::connect`](crate::Manager::connect).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// Addresses of both ends.
    pub route: Route,
    /// The requested service.
    pub service_id: ServiceId,
    /// Kind of the connection; [`TransportService::Extended`] stands for an extended reliable one.
    pub transport: TransportService,
    /// Our queue pair.
    pub qpn: Qpn,
    /// PSN of the first packet that the peer must send.
    pub psn: Psn,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Incoming READ and atomic requests that this side handles at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that this side has in flight at most.
    pub initiator_depth: u8,
    /// Number of repetitions of a packet that is not acknowledged: 0..=7.
    pub retry_count: u8,
    /// Number of repetitions of a packet after an RNR NAK: 0..=7.
    pub rnr_retry_count: u8,
    /// Our queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// Local ACK timeout of both sides, 4.096 us * 2^code: 0..=31.
    ///
    /// The timewait is as long, but at least 17 ms and at most 8.6 s.
    pub ack_timeout: u8,
    /// Flow label: 20 bits.
    pub flow_label: u32,
    /// Precedes the private data; every port of RDMA CM requires it.
    ///
    /// With it at most 56 bytes of private data fit, without it 92.
    pub addressing: Option<IpAddressing>,
    /// The program's own data.
    pub private_data: &'a [u8],
}

/// Arguments of [`Manager::accept`](crate::Manager::accept).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept<'a> {
    /// Our queue pair.
    pub qpn: Qpn,
    /// PSN of the first packet that the peer must send.
    pub psn: Psn,
    /// Incoming READ and atomic requests that this side handles at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that this side has in flight at most.
    pub initiator_depth: u8,
    /// Number of times the peer must repeat a packet after an RNR NAK: 0..=7.
    pub rnr_retry_count: u8,
    /// Our queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// The program's own data: at most 196 bytes.
    pub private_data: &'a [u8],
}

/// Arguments of [`Manager::resolve`](crate::Manager::resolve).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolve<'a> {
    /// Addresses of both ends.
    pub route: Route,
    /// The requested service.
    pub service_id: ServiceId,
    /// Precedes the private data. With it at most 180 bytes fit, without it 216.
    pub addressing: Option<IpAddressing>,
    /// The program's own data.
    pub private_data: &'a [u8],
}

/// Arguments of [`Manager::answer`](crate::Manager::answer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrAnswer<'a> {
    /// [`SidrStatus::VALID`], or why there is no queue pair.
    pub status: SidrStatus,
    /// Queue pair to send datagrams to.
    pub qpn: Qpn,
    /// Queue key that the datagrams must carry.
    pub qkey: Qkey,
    /// The program's own data: at most 136 bytes.
    pub private_data: &'a [u8],
}

/// Fills a field of `N` bytes with `addressing`, then `data`, then zeros.
pub(crate) fn private_data<const N: usize>(
    addressing: Option<IpAddressing>,
    data: &[u8],
) -> Result<[u8; N], CmError> {
    let start = addressing.map_or(0, |_| IpAddressing::LEN);
    let max = N - start;
    if data.len() > max {
        return Err(CmError::PrivateDataTooLong { max });
    }
    let mut field = [0; N];
    if let Some(addressing) = addressing {
        field[..start].copy_from_slice(&addressing.to_bytes());
    }
    field[start..start + data.len()].copy_from_slice(data);
    Ok(field)
}
