//! Request for communication (IBTA 12.6.5).
//!
//! ```text
//!   0  local id of the sender     5  vendor id (24), 0       8  service id (64)
//!  16  GUID of the channel adapter (64)                     24  reserved
//!  28  Q_Key                     32  queue pair number (24), responder resources (8)
//!  36  EE context (24), initiator depth (8)
//!  40  remote EE context (24), remote response timeout (5), transport service (2),
//!      end-to-end flow control (1)
//!  44  first PSN (24), local response timeout (5), retry count (3)
//!  48  P_Key (16)                50  path MTU (4), RDC exists (1), RNR retry count (3)
//!  51  CM retries (4), shared receive queue (1), extended transport (3)
//!  52  primary path, 44 bytes    96  alternate path         140  private data, 92 bytes
//!
//!  path:
//!   0  local LID   2  remote LID   4  local GID   20  remote GID
//!  36  flow label (20), reserved (6), rate (6)
//!  40  traffic class   41  hop limit   42  service level (4), subnet local (1)
//!  43  local ACK timeout (5)
//! ```

use super::{
    Body, ServiceId, get_24_and_byte, get_u16, get_u32, get_u64, set_24_and_byte, set_u16, set_u32,
    set_u64,
};
use crate::mad::{MAD_BODY_LEN, MadError};
use crate::{Gid, PathMtu, Psn, Qkey, Qpn, field};

/// The active side requests a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// Communication id of the sender.
    pub local_id: u32,
    /// The requested service.
    pub service_id: ServiceId,
    /// GUID of the sender's channel adapter.
    pub ca_guid: u64,
    /// Queue key; reliable datagrams only.
    pub qkey: Qkey,
    /// Queue pair of the sender.
    pub qpn: Qpn,
    /// READ and atomic requests that the sender answers at a time.
    pub responder_resources: u8,
    /// End-to-end context, 24 bits; reliable datagrams only.
    pub ee_context: u32,
    /// READ and atomic requests that the sender has in flight at most.
    pub initiator_depth: u8,
    /// The receiver's end-to-end context, 24 bits; reliable datagrams only.
    pub remote_ee_context: u32,
    /// The sender waits 4.096 us * 2^code for an answer before it repeats itself; 5 bits.
    pub remote_response_timeout: u8,
    /// Kind of the connection.
    pub transport: TransportService,
    /// The sender uses end-to-end flow control.
    pub flow_control: bool,
    /// PSN of the first packet that the receiver of this message will send.
    ///
    /// The captures of kernels show that it is the receiver's, not the sender's.
    pub psn: Psn,
    /// The sender answers messages within 4.096 us * 2^code; 5 bits.
    pub local_response_timeout: u8,
    /// Number of times the receiver must repeat a packet that is not acknowledged; 3 bits.
    pub retry_count: u8,
    /// Partition key of the connection.
    pub pkey: u16,
    /// Path MTU of the connection.
    pub path_mtu: PathMtu,
    /// A reliable datagram channel exists.
    pub rdc_exists: bool,
    /// Number of times the receiver must repeat after an RNR NAK, 3 bits: 7 is without end.
    pub rnr_retry_count: u8,
    /// Number of times a message of connection management is repeated; 4 bits.
    pub cm_retries_max: u8,
    /// The queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// Kind of an extended connection, 3 bits: 1 is XRC.
    pub extended_transport: u8,
    /// Path of the connection.
    pub primary: PathRecord,
    /// Path to use if that fails; all zero for none.
    pub alternate: PathRecord,
    /// The program's own data; in the port spaces of RDMA CM an
    /// [`IpAddressing`](super::IpAddressing) precedes it.
    pub private_data: [u8; Req::PRIVATE_DATA_LEN],
}

/// Kind of a connection: two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportService {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// The kind in [`Req::extended_transport`].
    Extended,
}

/// A path, seen from the sender of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// LID of the sender; 0xffff over Ethernet.
    pub local_lid: u16,
    /// LID of the receiver; 0xffff over Ethernet.
    pub remote_lid: u16,
    /// GID of the sender.
    pub local_gid: Gid,
    /// GID of the receiver.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Static rate, 6 bits.
    pub rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// The path stays within a subnet of InfiniBand.
    pub subnet_local: bool,
    /// The receiver must wait 4.096 us * 2^code for an acknowledgement; 5 bits.
    pub ack_timeout: u8,
}

impl Req {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 92;

    pub(super) fn from_body(body: &Body) -> Result<Self, MadError> {
        let (qpn, responder_resources) = get_24_and_byte::<32>(body);
        let (ee_context, initiator_depth) = get_24_and_byte::<36>(body);
        let (remote_ee_context, service) = get_24_and_byte::<40>(body);
        let (psn, retry) = get_24_and_byte::<44>(body);
        let [mtu, cm] = field::get::<50, 2, _>(body);
        Ok(Self {
            local_id: get_u32::<0>(body),
            service_id: ServiceId(get_u64::<8>(body)),
            ca_guid: get_u64::<16>(body),
            qkey: Qkey(get_u32::<28>(body)),
            qpn: Qpn::new(qpn),
            responder_resources,
            ee_context,
            initiator_depth,
            remote_ee_context,
            remote_response_timeout: service >> 3,
            transport: TransportService::from_bits(service >> 1),
            flow_control: service & 1 != 0,
            psn: Psn::new(psn),
            local_response_timeout: retry >> 3,
            retry_count: retry & 0b111,
            pkey: get_u16::<48>(body),
            path_mtu: PathMtu::from_enum(mtu >> 4).ok_or(MadError::PathMtu(mtu >> 4))?,
            rdc_exists: mtu & 0b1000 != 0,
            rnr_retry_count: mtu & 0b111,
            cm_retries_max: cm >> 4,
            srq: cm & 0b1000 != 0,
            extended_transport: cm & 0b111,
            primary: PathRecord::from_bytes(&field::get::<52, { PathRecord::LEN }, _>(body)),
            alternate: PathRecord::from_bytes(&field::get::<96, { PathRecord::LEN }, _>(body)),
            private_data: field::get::<140, { Self::PRIVATE_DATA_LEN }, _>(body),
        })
    }

    pub(super) fn body(&self) -> Body {
        let mut body = [0; MAD_BODY_LEN];
        let service = self.remote_response_timeout << 3
            | (self.transport as u8) << 1
            | u8::from(self.flow_control);
        let retry = self.local_response_timeout << 3 | self.retry_count & 0b111;
        let mtu = (self.path_mtu as u8) << 4
            | u8::from(self.rdc_exists) << 3
            | self.rnr_retry_count & 0b111;
        let cm =
            self.cm_retries_max << 4 | u8::from(self.srq) << 3 | self.extended_transport & 0b111;

        set_u32::<0>(&mut body, self.local_id);
        set_u64::<8>(&mut body, self.service_id.0);
        set_u64::<16>(&mut body, self.ca_guid);
        set_u32::<28>(&mut body, self.qkey.0);
        set_24_and_byte::<32>(&mut body, self.qpn.get(), self.responder_resources);
        set_24_and_byte::<36>(&mut body, self.ee_context, self.initiator_depth);
        set_24_and_byte::<40>(&mut body, self.remote_ee_context, service);
        set_24_and_byte::<44>(&mut body, self.psn.get(), retry);
        set_u16::<48>(&mut body, self.pkey);
        field::set::<50, 2, _>(&mut body, [mtu, cm]);
        field::set::<52, { PathRecord::LEN }, _>(&mut body, self.primary.to_bytes());
        field::set::<96, { PathRecord::LEN }, _>(&mut body, self.alternate.to_bytes());
        field::set::<140, { Self::PRIVATE_DATA_LEN }, _>(&mut body, self.private_data);
        body
    }
}

impl TransportService {
    /// The kind of the low two bits.
    fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0 => TransportService::Rc,
            1 => TransportService::Uc,
            2 => TransportService::Rd,
            _ => TransportService::Extended,
        }
    }
}

impl PathRecord {
    const LEN: usize = 44;

    /// No path.
    pub const NONE: Self = Self {
        local_lid: 0,
        remote_lid: 0,
        local_gid: Gid([0; 16]),
        remote_gid: Gid([0; 16]),
        flow_label: 0,
        rate: 0,
        traffic_class: 0,
        hop_limit: 0,
        service_level: 0,
        subnet_local: false,
        ack_timeout: 0,
    };

    fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let word = u32::from_be_bytes(field::get::<36, 4, _>(bytes));
        let [traffic_class, hop_limit, level, timeout] = field::get::<40, 4, _>(bytes);
        Self {
            local_lid: u16::from_be_bytes(field::get::<0, 2, _>(bytes)),
            remote_lid: u16::from_be_bytes(field::get::<2, 2, _>(bytes)),
            local_gid: Gid(field::get::<4, 16, _>(bytes)),
            remote_gid: Gid(field::get::<20, 16, _>(bytes)),
            flow_label: word >> 12,
            rate: (word & 0x3f) as u8,
            traffic_class,
            hop_limit,
            service_level: level >> 4,
            subnet_local: level & 0b1000 != 0,
            ack_timeout: timeout >> 3,
        }
    }

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let word = self.flow_label << 12 | u32::from(self.rate & 0x3f);
        let level = self.service_level << 4 | u8::from(self.subnet_local) << 3;
        let rest = [
            self.traffic_class,
            self.hop_limit,
            level,
            self.ack_timeout << 3,
        ];
        field::set::<0, 2, _>(&mut bytes, self.local_lid.to_be_bytes());
        field::set::<2, 2, _>(&mut bytes, self.remote_lid.to_be_bytes());
        field::set::<4, 16, _>(&mut bytes, self.local_gid.0);
        field::set::<20, 16, _>(&mut bytes, self.remote_gid.0);
        field::set::<36, 4, _>(&mut bytes, word.to_be_bytes());
        field::set::<40, 4, _>(&mut bytes, rest);
        bytes
    }
}
