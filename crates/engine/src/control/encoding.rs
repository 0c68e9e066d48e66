//! The encoding of [`Control`](super::Control) and [`Reply`](super::Reply): a version, then the
//! fields of the value one after the other, without padding.
//!
//! Numbers are little-endian. A truth value is a byte 0 or 1, an option is such a byte and what it
//! holds, a variant is a byte (its number in `control.rs`), bytes and text follow their length
//! (32 bits). Each value has one encoding: bytes that decode encode to the same bytes again.
//!
//! Decoding trusts nothing: what is too long, too short, or of another version is an error. It
//! allocates for text and for events, as much as arrived, and borrows all other bytes.

use super::QueuePairInit;
use crate::index::{CqHandle, CqIndex, PdIndex, QpHandle, QpIndex, SrqHandle, SrqIndex};
use crate::{
    Access, AttrMask, Bind, CountedOperations, CqOptions, Gid, Lkey, Path, PathMtu, Psn, Qkey,
    QpAttributes, QpCaps, QpState, QpType, Qpn, RegionChange, Rkey,
};
use airdma_cm::{
    Accept, Connect, ConnectRequest, ConnectResponse, ConnectionId, Event, ListenerId, Resolve,
    Route, SidrAnswer, SidrId, SidrRequest, SidrResponse, Takes,
};
use airdma_transport::{RecordConfig, ReliableConfig};
use airdma_wire::cm::{IpAddressing, RejReason, ServiceId, SidrStatus, TransportService};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// First byte of each message. It rises with each change of [`Control`](super::Control),
/// [`Reply`](super::Reply), or what they are made of.
pub(crate) const VERSION: u8 = 5;

/// Longest message. Private data has 224 bytes at most; the rest is numbers, and words of the
/// system about a path.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// Bytes that are no message of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A message that carries `value`.
pub(crate) fn encode<'a>(value: &impl Value<'a>) -> Vec<u8> {
    let mut out = vec![VERSION];
    value.put(&mut out);
    out
}

/// The value of a whole message.
///
/// # Errors
/// For bytes that [`encode`] never makes, and for more than [`MESSAGE_BYTES_MAX`].
pub(crate) fn decode<'a, V: Value<'a>>(message: &'a [u8]) -> Result<V, Malformed> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(Malformed);
    }
    let mut input = Input(message);
    let is_known = u8::take(&mut input) == Some(VERSION);
    let value = V::take(&mut input).filter(|_| is_known && input.0.is_empty());
    value.ok_or(Malformed)
}

/// Takes a value from the front of `bytes`, if they begin with one.
///
/// # Panics
/// If its encoding differs from the bytes that it was taken from.
pub(super) fn check_front<'a, V: Value<'a>>(bytes: &'a [u8]) {
    let mut input = Input(bytes);
    if let Some(value) = V::take(&mut input) {
        let mut out = Vec::new();
        value.put(&mut out);
        assert_eq!(out, bytes[..bytes.len() - input.0.len()]);
    }
}

/// What has not been decoded yet.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }
}

/// A part of a message.
pub(crate) trait Value<'a>: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes the value from the front; `None` if that holds no such value.
    fn take(input: &mut Input<'a>) -> Option<Self>;
}

/// Defines an enum of plain values, each variant behind its number, and its encoding.
macro_rules! values {
    (
        $(#[$meta:meta])*
        $name:ident $(<$life:lifetime>)? {
            $($(#[$doc:meta])* $number:literal $variant:ident $({
                $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)?
            })?,)*
        }
    ) => {
        $(#[$meta])*
        pub(crate) enum $name $(<$life>)? {
            $($(#[$doc])* $variant $({ $($(#[$field_doc])* $field: $type),* })?,)*
        }

        impl<'a> $crate::control::encoding::Value<'a> for $name $(<$life>)? {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($name::$variant $({ $($field),* })? => {
                        out.push($number);
                        $($($crate::control::encoding::Value::put($field, out);)*)?
                    })*
                }
            }

            fn take(input: &mut $crate::control::encoding::Input<'a>) -> Option<Self> {
                let number: u8 = $crate::control::encoding::Value::take(input)?;
                Some(match number {
                    $($number => $name::$variant $({
                        $($field: $crate::control::encoding::Value::take(input)?),*
                    })?,)*
                    _ => return None,
                })
            }
        }

        #[cfg(test)]
        impl $(<$life>)? $name $(<$life>)? {
            /// The numbers of all variants.
            pub(crate) const NUMBERS: &'static [u8] = &[$($number),*];
        }
    };
}

/// Encodes structs as their fields; a field that is left out here does not compile.
macro_rules! structs {
    ($($name:ident $(<$life:lifetime>)? { $($field:ident),* $(,)? })*) => { $(
        impl<'a> Value<'a> for $name $(<$life>)? {
            fn put(&self, out: &mut Vec<u8>) {
                let $name { $($field),* } = self;
                $($field.put(out);)*
            }

            fn take(input: &mut Input<'a>) -> Option<Self> {
                Some($name { $($field: Value::take(input)?),* })
            }
        }
    )* };
}

/// Encodes a type as one other value: how to get it, and how to go back, which can fail.
macro_rules! as_other {
    ($($name:ty: $other:ty = |$value:ident| $get:expr, |$read:ident| $make:expr;)*) => { $(
        impl<'a> Value<'a> for $name {
            fn put(&self, out: &mut Vec<u8>) {
                let $value = *self;
                let other: $other = $get;
                other.put(out);
            }

            fn take(input: &mut Input<'a>) -> Option<Self> {
                let $read: $other = Value::take(input)?;
                $make
            }
        }
    )* };
}

macro_rules! numbers {
    ($($name:ty),*) => { $(
        impl<'a> Value<'a> for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(input: &mut Input<'a>) -> Option<Self> {
                Some(<$name>::from_le_bytes(input.array()?))
            }
        }
    )* };
}

numbers!(u8, u16, u32, u64, i32);

structs! {
    QpHandle { index, serial }
    CqHandle { index, serial }
    SrqHandle { index, serial }
    QueuePairInit {
        serial, qp_type, caps, signal_all, receives, pd, send_cq, recv_cq, port_mtu,
    }
    Bind { window, new_key, region, va, length, access }
    RegionChange { translation, access }
    CqOptions { timestamps, ignore_overrun }
    RecordConfig { open_max, closed_max, units_max, sources_max, idle, age, strict_last }
    ReliableConfig { messages_max, share_max, destinations_max, silence, not_ready }
    QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline }
    Path { gid, sgid_index, traffic_class, hop_limit, flow_label }
    QpAttributes {
        state, cur_state, path_mtu, qkey, rq_psn, sq_psn, dest_qpn, access, path, pkey_index, port,
        sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, timeout, retry_count,
        rnr_retry, path_mig_state, en_sqd_async_notify, rate_limit_kbps,
    }
    Route { local, remote, traffic_class }
    Connect<'a> {
        route, service_id, transport, qpn, psn, path_mtu, responder_resources, initiator_depth,
        retry_count, rnr_retry_count, srq, ack_timeout, flow_label, addressing, private_data,
    }
    Accept<'a> {
        qpn, psn, responder_resources, initiator_depth, rnr_retry_count, srq, private_data,
    }
    Resolve<'a> { route, service_id, addressing, private_data }
    SidrAnswer<'a> { status, qpn, qkey, private_data }
    ConnectRequest {
        id, listener, route, service_id, transport, qpn, psn, path_mtu, responder_resources,
        initiator_depth, retry_count, rnr_retry_count, srq, ack_timeout, flow_label, addressing,
        private_data,
    }
    ConnectResponse {
        id, qpn, psn, responder_resources, initiator_depth, rnr_retry_count, target_ack_delay, srq,
        private_data,
    }
    SidrRequest { id, listener, route, service_id, addressing, private_data }
    SidrResponse { id, status, qpn, qkey, private_data }
}

as_other! {
    usize: u64 = |value| value as u64, |read| usize::try_from(read).ok();
    bool: u8 = |value| value.into(), |read| (read < 2).then_some(read == 1);
    QpIndex: u32 = |value| value.get(), |read| Some(QpIndex::new(read));
    CqIndex: u32 = |value| value.get(), |read| Some(CqIndex::new(read));
    SrqIndex: u32 = |value| value.get(), |read| Some(SrqIndex::new(read));
    PdIndex: u64 = |value| value.serial(), |read| Some(PdIndex::new(read));
    Qpn: u32 = |value| value.get(), |read| Some(Qpn::new(read)).filter(|qpn| qpn.get() == read);
    Psn: u32 = |value| value.get(), |read| Some(Psn::new(read)).filter(|psn| psn.get() == read);
    Qkey: u32 = |value| value.0, |read| Some(Qkey(read));
    Lkey: u32 = |value| value.0, |read| Some(Lkey(read));
    Rkey: u32 = |value| value.0, |read| Some(Rkey(read));
    Gid: [u8; 16] = |value| value.0, |read| Some(Gid(read));
    PathMtu: u8 = |value| value as u8, |read| PathMtu::from_enum(read);
    QpState: u8 = |value| value as u8, |read| QpState::from_number(read.into());
    QpType: u8 = |value| value as u8, |read| {
        QP_TYPES.into_iter().find(|&qp_type| qp_type as u8 == read)
    };
    // No limit on time is longer than 584 years.
    Duration: u64 = |value| value.as_nanos() as u64, |read| Some(Duration::from_nanos(read));
    Access: u32 = |value| value.bits(), |read| Some(Access::from_bits_retain(read));
    AttrMask: u32 = |value| value.bits(), |read| Some(AttrMask::from_bits_retain(read));
    CountedOperations: u32 = |value| value.bits(), |read| CountedOperations::from_bits(read);
    ConnectionId: u32 = |value| value.0, |read| Some(ConnectionId(read));
    ListenerId: u32 = |value| value.0, |read| Some(ListenerId(read));
    SidrId: u32 = |value| value.0, |read| Some(SidrId(read));
    ServiceId: u64 = |value| value.0, |read| Some(ServiceId(read));
    SidrStatus: u8 = |value| value.0, |read| Some(SidrStatus(read));
    RejReason: u16 = |value| value.0, |read| Some(RejReason(read));
    TransportService: u8 = |value| value as u8, |read| {
        SERVICES.into_iter().find(|&service| service as u8 == read)
    };
    Takes: Option<TransportService> = |value| match value {
        Takes::Connections(service) => Some(service),
        Takes::Datagrams => None,
    }, |read| Some(read.map_or(Takes::Datagrams, Takes::Connections));
    Ipv4Addr: [u8; 4] = |value| value.octets(), |read| Some(read.into());
    Ipv6Addr: [u8; 16] = |value| value.octets(), |read| Some(read.into());
}

const QP_TYPES: [QpType; 6] = [
    QpType::Rc,
    QpType::Uc,
    QpType::Ud,
    QpType::XrcSend,
    QpType::XrcReceive,
    QpType::RawPacket,
];

const SERVICES: [TransportService; 4] = [
    TransportService::Rc,
    TransportService::Uc,
    TransportService::Rd,
    TransportService::Extended,
];

impl<'a> Value<'a> for IpAddressing {
    fn put(&self, out: &mut Vec<u8>) {
        match *self {
            IpAddressing::V4 { src_port, src, dst } => (4_u8, (src_port, (src, dst))).put(out),
            IpAddressing::V6 { src_port, src, dst } => (6_u8, (src_port, (src, dst))).put(out),
        }
    }

    fn take(input: &mut Input<'a>) -> Option<Self> {
        match u8::take(input)? {
            4 => {
                let (src_port, (src, dst)) = Value::take(input)?;
                Some(IpAddressing::V4 { src_port, src, dst })
            }
            6 => {
                let (src_port, (src, dst)) = Value::take(input)?;
                Some(IpAddressing::V6 { src_port, src, dst })
            }
            _ => None,
        }
    }
}

/// Events of connections, which a daemon sends.
impl<'a> Value<'a> for Event {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Event::ConnectRequest(request) => {
                out.push(0);
                request.as_ref().put(out);
            }
            Event::ConnectResponse(response) => {
                out.push(1);
                response.as_ref().put(out);
            }
            Event::Established { id, private_data } => {
                out.push(2);
                id.put(out);
                private_data.put(out);
            }
            Event::Rejected {
                id,
                reason,
                private_data,
            } => {
                out.push(3);
                (*id, *reason).put(out);
                private_data.put(out);
            }
            Event::Unreachable { id } => {
                out.push(4);
                id.put(out);
            }
            Event::Disconnected { id, private_data } => {
                out.push(5);
                id.put(out);
                private_data.put(out);
            }
            Event::TimewaitExit { id } => {
                out.push(6);
                id.put(out);
            }
            Event::SidrRequest(request) => {
                out.push(7);
                request.as_ref().put(out);
            }
            Event::SidrWithdrawn { id } => {
                out.push(8);
                id.put(out);
            }
            Event::SidrResponse(response) => {
                out.push(9);
                response.as_ref().put(out);
            }
            Event::SidrUnreachable { id } => {
                out.push(10);
                id.put(out);
            }
        }
    }

    fn take(input: &mut Input<'a>) -> Option<Self> {
        Some(match u8::take(input)? {
            0 => Event::ConnectRequest(Box::new(Value::take(input)?)),
            1 => Event::ConnectResponse(Box::new(Value::take(input)?)),
            2 => Event::Established {
                id: Value::take(input)?,
                private_data: Value::take(input)?,
            },
            3 => Event::Rejected {
                id: Value::take(input)?,
                reason: Value::take(input)?,
                private_data: Value::take(input)?,
            },
            4 => Event::Unreachable {
                id: Value::take(input)?,
            },
            5 => Event::Disconnected {
                id: Value::take(input)?,
                private_data: Value::take(input)?,
            },
            6 => Event::TimewaitExit {
                id: Value::take(input)?,
            },
            7 => Event::SidrRequest(Box::new(Value::take(input)?)),
            8 => Event::SidrWithdrawn {
                id: Value::take(input)?,
            },
            9 => Event::SidrResponse(Box::new(Value::take(input)?)),
            10 => Event::SidrUnreachable {
                id: Value::take(input)?,
            },
            _ => return None,
        })
    }
}

impl<'a, V: Value<'a>> Value<'a> for Option<V> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(input: &mut Input<'a>) -> Option<Self> {
        if bool::take(input)? {
            Some(Some(V::take(input)?))
        } else {
            Some(None)
        }
    }
}

impl<'a, V: Value<'a>, W: Value<'a>> Value<'a> for (V, W) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(input: &mut Input<'a>) -> Option<Self> {
        Some((V::take(input)?, W::take(input)?))
    }
}

impl<'a, const N: usize> Value<'a> for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(input: &mut Input<'a>) -> Option<Self> {
        input.array()
    }
}

impl<'a> Value<'a> for &'a [u8] {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self);
    }

    fn take(input: &mut Input<'a>) -> Option<Self> {
        let length = u32::take(input)?;
        input.bytes(length as usize)
    }
}

impl<'a> Value<'a> for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_slice().put(out);
    }

    fn take(input: &mut Input<'a>) -> Option<Self> {
        let bytes: &[u8] = Value::take(input)?;
        Some(bytes.to_vec())
    }
}

impl<'a> Value<'a> for String {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_bytes().put(out);
    }

    fn take(input: &mut Input<'a>) -> Option<Self> {
        let bytes: &[u8] = Value::take(input)?;
        Some(str::from_utf8(bytes).ok()?.to_owned())
    }
}
