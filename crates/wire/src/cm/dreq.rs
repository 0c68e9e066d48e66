//! Request for disconnection (IBTA 12.6.10).
//!
//! ```text
//!   0  local id of the sender   4  remote id   8  remote queue pair number (24)
//!  12  private data, 220 bytes
//! ```

use super::{Body, get_24_and_byte, get_u32, set_24_and_byte, set_u32};
use crate::mad::MAD_BODY_LEN;
use crate::{Qpn, field};

/// The sender ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Communication id of the receiver.
    pub remote_id: u32,
    /// Queue pair of the receiver.
    pub remote_qpn: Qpn,
    /// The program's own data.
    pub private_data: [u8; Dreq::PRIVATE_DATA_LEN],
}

impl Dreq {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 220;

    pub(super) fn from_body(body: &Body) -> Self {
        Self {
            local_id: get_u32::<0>(body),
            remote_id: get_u32::<4>(body),
            remote_qpn: Qpn::new(get_24_and_byte::<8>(body).0),
            private_data: field::get::<12, { Self::PRIVATE_DATA_LEN }, _>(body),
        }
    }

    pub(super) fn body(&self) -> Body {
        let mut body = [0; MAD_BODY_LEN];
        set_u32::<0>(&mut body, self.local_id);
        set_u32::<4>(&mut body, self.remote_id);
        set_24_and_byte::<8>(&mut body, self.remote_qpn.get(), 0);
        field::set::<12, { Self::PRIVATE_DATA_LEN }, _>(&mut body, self.private_data);
        body
    }
}
