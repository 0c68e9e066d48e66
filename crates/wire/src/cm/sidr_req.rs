//! Service id resolution request (IBTA 12.11.1).
//!
//! ```text
//!   0  request id   4  P_Key (16)   6  reserved   8  service id (64)   16  private data, 216 bytes
//! ```

use super::{Body, ServiceId, get_u16, get_u32, get_u64, set_u16, set_u32, set_u64};
use crate::field;
use crate::mad::MAD_BODY_LEN;

/// Asks for the queue pair that serves datagrams of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// Id of the request, chosen by its sender.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// The requested service.
    pub service_id: ServiceId,
    /// The program's own data; in the port spaces of RDMA CM an
    /// [`IpAddressing`](super::IpAddressing) precedes it.
    pub private_data: [u8; SidrReq::PRIVATE_DATA_LEN],
}

impl SidrReq {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 216;

    pub(super) fn from_body(body: &Body) -> Self {
        Self {
            request_id: get_u32::<0>(body),
            pkey: get_u16::<4>(body),
            service_id: ServiceId(get_u64::<8>(body)),
            private_data: field::get::<16, { Self::PRIVATE_DATA_LEN }, _>(body),
        }
    }

    pub(super) fn body(&self) -> Body {
        let mut body = [0; MAD_BODY_LEN];
        set_u32::<0>(&mut body, self.request_id);
        set_u16::<4>(&mut body, self.pkey);
        set_u64::<8>(&mut body, self.service_id.0);
        field::set::<16, { Self::PRIVATE_DATA_LEN }, _>(&mut body, self.private_data);
        body
    }
}
