//! Reject (IBTA 12.6.7).
//!
//! ```text
//!   0  local id of the sender   4  remote id   8  message (2 bits)
//!   9  length of the information (7 bits)
//!  10  reason   12  additional reject information, 72 bytes   84  private data, 148 bytes
//! ```
//!
//! A sender that keeps no state of a refused request sends 0 as its own id. One that abandons its
//! request before the answer sends 0 as the remote id.

use std::fmt;

use super::{About, Body, get_u16, get_u32, set_u16, set_u32};
use crate::field;
use crate::mad::{MAD_BODY_LEN, MadError};

/// The sender refuses the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Communication id of the receiver.
    pub remote_id: u32,
    /// Which message is refused.
    pub about: About,
    /// Why it is refused.
    pub reason: RejReason,
    /// Number of valid bytes of `info`, at most [`INFO_LEN`](Self::INFO_LEN).
    pub info_len: u8,
    /// Additional reject information; its meaning depends on the reason.
    pub info: [u8; Rej::INFO_LEN],
    /// The program's own data.
    pub private_data: [u8; Rej::PRIVATE_DATA_LEN],
}

/// Reason of a reject (IBTA 12.6.7.2). Only those that occur over Ethernet have a name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejReason(pub u16);

impl RejReason {
    /// No queue pair is left.
    pub const NO_QP: Self = Self(1);
    /// Resources are short.
    pub const NO_RESOURCES: Self = Self(3);
    /// An answer did not come in time.
    pub const TIMEOUT: Self = Self(4);
    /// The request cannot be served.
    pub const UNSUPPORTED_REQUEST: Self = Self(5);
    /// No connection has this communication id.
    pub const INVALID_COMMUNICATION_ID: Self = Self(6);
    /// No listener has the service id.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The transport service is not the one of the service.
    pub const INVALID_TRANSPORT_SERVICE: Self = Self(9);
    /// The queue pair is part of another connection, or the connection with this id has ended.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The primary path names a GID that is not the receiver's.
    pub const INVALID_GID: Self = Self(12);
    /// The path MTU is not supported.
    pub const INVALID_PATH_MTU: Self = Self(26);
    /// The program refused.
    pub const CONSUMER: Self = Self(28);
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::NO_QP => "no queue pair",
            Self::NO_RESOURCES => "no resources",
            Self::TIMEOUT => "timeout",
            Self::UNSUPPORTED_REQUEST => "unsupported request",
            Self::INVALID_COMMUNICATION_ID => "invalid communication id",
            Self::INVALID_SERVICE_ID => "invalid service id",
            Self::INVALID_TRANSPORT_SERVICE => "invalid transport service",
            Self::STALE_CONNECTION => "stale connection",
            Self::INVALID_GID => "invalid GID",
            Self::INVALID_PATH_MTU => "invalid path MTU",
            Self::CONSUMER => "consumer",
            Self(_) => "other",
        };
        write!(f, "{name} ({})", self.0)
    }
}

impl Rej {
    /// Bytes of additional reject information.
    pub const INFO_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 148;

    pub(super) fn from_body(body: &Body) -> Result<Self, MadError> {
        let [about, info_len] = field::get::<8, 2, _>(body);
        let info_len = info_len >> 1;
        if usize::from(info_len) > Self::INFO_LEN {
            return Err(MadError::InfoLength(info_len));
        }
        Ok(Self {
            local_id: get_u32::<0>(body),
            remote_id: get_u32::<4>(body),
            about: About::from_high_bits(about),
            reason: RejReason(get_u16::<10>(body)),
            info_len,
            info: field::get::<12, { Self::INFO_LEN }, _>(body),
            private_data: field::get::<84, { Self::PRIVATE_DATA_LEN }, _>(body),
        })
    }

    pub(super) fn body(&self) -> Body {
        let mut body = [0; MAD_BODY_LEN];
        set_u32::<0>(&mut body, self.local_id);
        set_u32::<4>(&mut body, self.remote_id);
        field::set::<8, 2, _>(&mut body, [self.about.high_bits(), self.info_len << 1]);
        set_u16::<10>(&mut body, self.reason.0);
        field::set::<12, { Self::INFO_LEN }, _>(&mut body, self.info);
        field::set::<84, { Self::PRIVATE_DATA_LEN }, _>(&mut body, self.private_data);
        body
    }
}
