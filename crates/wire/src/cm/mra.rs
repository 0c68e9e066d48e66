//! Message receipt acknowledgement (IBTA 12.6.6).
//!
//! ```text
//!   0  local id of the sender   4  remote id   8  message (2 bits)   9  service timeout (5 bits)
//!  10  private data, 222 bytes
//! ```

use super::{About, Body, get_u32, set_u32};
use crate::field;
use crate::mad::MAD_BODY_LEN;

/// The message has arrived; its answer takes longer than the sender announced to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Communication id of the receiver.
    pub remote_id: u32,
    /// Which message has arrived.
    pub about: About,
    /// The answer comes within 4.096 us * 2^code; 5 bits.
    pub service_timeout: u8,
    /// The program's own data.
    pub private_data: [u8; Mra::PRIVATE_DATA_LEN],
}

impl Mra {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 222;

    pub(super) fn from_body(body: &Body) -> Self {
        let [about, timeout] = field::get::<8, 2, _>(body);
        Self {
            local_id: get_u32::<0>(body),
            remote_id: get_u32::<4>(body),
            about: About::from_high_bits(about),
            service_timeout: timeout >> 3,
            private_data: field::get::<10, { Self::PRIVATE_DATA_LEN }, _>(body),
        }
    }

    pub(super) fn body(&self) -> Body {
        let mut body = [0; MAD_BODY_LEN];
        set_u32::<0>(&mut body, self.local_id);
        set_u32::<4>(&mut body, self.remote_id);
        field::set::<8, 2, _>(
            &mut body,
            [self.about.high_bits(), self.service_timeout << 3],
        );
        field::set::<10, { Self::PRIVATE_DATA_LEN }, _>(&mut body, self.private_data);
        body
    }
}
