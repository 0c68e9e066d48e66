//! What the calls of a manager take, and why they fail.

use airdma_wire::cm::{IpAddressing, ServiceId, SidrStatus, TransportService};
use airdma_wire::{PathMtu, Psn, Qkey, Qpn};

use crate::Route;

/// Why a call did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// There is more private data than the message holds: `EINVAL`.
    #[error("at most {max} bytes of private data fit")]
    PrivateDataTooLong {
        /// What fits.
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

/// A connection that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Connect<'a> {
    /// Where to.
    pub route: Route,
    /// Which service.
    pub service_id: ServiceId,
    /// Kind of the connection; [`TransportService::Extended`] stands for an extended reliable one.
    pub transport: TransportService,
    /// Our queue pair.
    pub qpn: Qpn,
    /// Sequence number of the first packet that the peer shall send.
    pub psn: Psn,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// READ and atomic requests that we answer at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that we have in flight at most.
    pub initiator_depth: u8,
    /// How often a packet that is not acknowledged is repeated: 0..=7.
    pub retry_count: u8,
    /// How often a packet is repeated after an RNR NAK: 0..=7.
    pub rnr_retry_count: u8,
    /// Our queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// Local ACK timeout of both sides, 4.096 us * 2^code: 0..=31. The timewait is as long, between 17 ms and 8.6 s.
    pub ack_timeout: u8,
    /// Flow label: 20 bits.
    pub flow_label: u32,
    /// Goes in front of the private data, which every port of RDMA CM wants. With it at most 56 bytes of private data fit,
    /// without 92.
    pub addressing: Option<IpAddressing>,
    /// What the program adds.
    pub private_data: &'a [u8],
}

/// What a connection is accepted with.
#[derive(Clone, Copy, Debug)]
pub struct Accept<'a> {
    /// Our queue pair.
    pub qpn: Qpn,
    /// Sequence number of the first packet that the peer shall send.
    pub psn: Psn,
    /// READ and atomic requests that we answer at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that we have in flight at most.
    pub initiator_depth: u8,
    /// How often the peer shall repeat a packet after an RNR NAK: 0..=7.
    pub rnr_retry_count: u8,
    /// Our queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// What the program adds: at most 196 bytes.
    pub private_data: &'a [u8],
}

/// A queue pair of datagrams that is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Resolve<'a> {
    /// Where to.
    pub route: Route,
    /// Which service.
    pub service_id: ServiceId,
    /// Goes in front of the private data. With it at most 180 bytes fit, without 216.
    pub addressing: Option<IpAddressing>,
    /// What the program adds.
    pub private_data: &'a [u8],
}

/// What a resolution is answered with.
#[derive(Clone, Copy, Debug)]
pub struct SidrAnswer<'a> {
    /// [`SidrStatus::VALID`], or why there is no queue pair.
    pub status: SidrStatus,
    /// Where to send datagrams.
    pub qpn: Qpn,
    /// What they must carry.
    pub qkey: Qkey,
    /// What the program adds: at most 136 bytes.
    pub private_data: &'a [u8],
}

/// `data` at the front of a field of `N` bytes, behind `addressing`; zeros fill it up.
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
