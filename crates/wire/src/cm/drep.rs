//! Reply to a request for disconnection (IBTA 12.6.11).
//!
//! ```text
//!   0  local id of the sender   4  remote id   8  private data, 224 bytes
//! ```

use super::{Body, get_u32, set_u32};
use crate::field;
use crate::mad::MAD_BODY_LEN;

/// The connection has ended on this side too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drep {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Communication id of the receiver.
    pub remote_id: u32,
    /// The program's own data.
    pub private_data: [u8; Drep::PRIVATE_DATA_LEN],
}

impl Drep {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 224;

    pub(super) fn from_body(body: &Body) -> Self {
        Self {
            local_id: get_u32::<0>(body),
            remote_id: get_u32::<4>(body),
            private_data: field::get::<8, { Self::PRIVATE_DATA_LEN }, _>(body),
        }
    }

    pub(super) fn body(&self) -> Body {
        let mut body = [0; MAD_BODY_LEN];
        set_u32::<0>(&mut body, self.local_id);
        set_u32::<4>(&mut body, self.remote_id);
        field::set::<8, { Self::PRIVATE_DATA_LEN }, _>(&mut body, self.private_data);
        body
    }
}
