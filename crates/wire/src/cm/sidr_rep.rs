//! Service id resolution response (IBTA 12.11.2).
//!
//! ```text
//!   0  request id   4  status   5  length of the information   8  queue pair number (24)
//!  12  service id (64)         20  Q_Key    24  additional information, 72 bytes
//!  96  private data, 136 bytes
//! ```

use super::{
    Body, ServiceId, get_24_and_byte, get_u32, get_u64, set_24_and_byte, set_u32, set_u64,
};
use crate::mad::{MAD_BODY_LEN, MadError};
use crate::{Qkey, Qpn, field};

/// Answers a [`SidrReq`](super::SidrReq).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// Id of the request.
    pub request_id: u32,
    /// Whether there is a queue pair, and if not, why.
    pub status: SidrStatus,
    /// Number of valid bytes of `info`, at most [`INFO_LEN`](Self::INFO_LEN).
    pub info_len: u8,
    /// Queue pair to send datagrams to.
    pub qpn: Qpn,
    /// The requested service.
    pub service_id: ServiceId,
    /// Queue key that the datagrams must carry.
    pub qkey: Qkey,
    /// Additional information; its meaning depends on the status.
    pub info: [u8; SidrRep::INFO_LEN],
    /// The program's own data.
    pub private_data: [u8; SidrRep::PRIVATE_DATA_LEN],
}

/// Status of a response (IBTA 12.11.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The queue pair number is valid.
    pub const VALID: Self = Self(0);
    /// The service id is not served here.
    pub const UNSUPPORTED_SERVICE: Self = Self(1);
    /// The program refused.
    pub const REJECTED: Self = Self(2);
    /// There is no queue pair.
    pub const NO_QP: Self = Self(3);
}

impl SidrRep {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 136;

    pub(super) fn from_body(body: &Body) -> Result<Self, MadError> {
        let [status, info_len] = field::get::<4, 2, _>(body);
        if usize::from(info_len) > Self::INFO_LEN {
            return Err(MadError::InfoLength(info_len));
        }
        Ok(Self {
            request_id: get_u32::<0>(body),
            status: SidrStatus(status),
            info_len,
            qpn: Qpn::new(get_24_and_byte::<8>(body).0),
            service_id: ServiceId(get_u64::<12>(body)),
            qkey: Qkey(get_u32::<20>(body)),
            info: field::get::<24, { Self::INFO_LEN }, _>(body),
            private_data: field::get::<96, { Self::PRIVATE_DATA_LEN }, _>(body),
        })
    }

    pub(super) fn body(&self) -> Body {
        let mut body = [0; MAD_BODY_LEN];
        set_u32::<0>(&mut body, self.request_id);
        field::set::<4, 2, _>(&mut body, [self.status.0, self.info_len]);
        set_24_and_byte::<8>(&mut body, self.qpn.get(), 0);
        set_u64::<12>(&mut body, self.service_id.0);
        set_u32::<20>(&mut body, self.qkey.0);
        field::set::<24, { Self::INFO_LEN }, _>(&mut body, self.info);
        field::set::<96, { Self::PRIVATE_DATA_LEN }, _>(&mut body, self.private_data);
        body
    }
}
