//! Reply to a request for communication (IBTA 12.6.8).
//!
//! ```text
//!   0  local id of the sender     4  remote id               8  Q_Key
//!  12  queue pair number (24)    16  EE context (24)        20  first PSN (24)
//!  24  responder resources       25  initiator depth
//!  26  target ACK delay (5), failover accepted (2), end-to-end flow control (1)
//!  27  RNR retry count (3), shared receive queue (1)
//!  28  GUID of the channel adapter (64)                     36  private data, 196 bytes
//!  15, 19, 23  vendor id, high byte first: 0
//! ```

use super::{Body, get_24_and_byte, get_u32, get_u64, set_24_and_byte, set_u32, set_u64};
use crate::mad::MAD_BODY_LEN;
use crate::{Psn, Qkey, Qpn, field};

/// The passive side accepts, with these parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Communication id of the receiver.
    pub remote_id: u32,
    /// Queue key; reliable datagrams only.
    pub qkey: Qkey,
    /// Queue pair of the sender.
    pub qpn: Qpn,
    /// End-to-end context, 24 bits; reliable datagrams only.
    pub ee_context: u32,
    /// PSN of the first packet that the receiver of this message will send.
    ///
    /// The captures of kernels show that it is the receiver's, not the sender's.
    pub psn: Psn,
    /// READ and atomic requests that the sender answers at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that the sender has in flight at most.
    pub initiator_depth: u8,
    /// The sender acknowledges within 4.096 us * 2^code; 5 bits.
    pub target_ack_delay: u8,
    /// Whether the alternate path was accepted, 2 bits: 0 is yes.
    pub failover_accepted: u8,
    /// The sender uses end-to-end flow control.
    pub flow_control: bool,
    /// Number of times the receiver must repeat after an RNR NAK, 3 bits: 7 is without end.
    pub rnr_retry_count: u8,
    /// The queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// GUID of the sender's channel adapter.
    pub ca_guid: u64,
    /// The program's own data.
    pub private_data: [u8; Rep::PRIVATE_DATA_LEN],
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_DATA_LEN: usize = 196;

    pub(super) fn from_body(body: &Body) -> Self {
        let [responder_resources, initiator_depth, delay, retry] = field::get::<24, 4, _>(body);
        Self {
            local_id: get_u32::<0>(body),
            remote_id: get_u32::<4>(body),
            qkey: Qkey(get_u32::<8>(body)),
            qpn: Qpn::new(get_24_and_byte::<12>(body).0),
            ee_context: get_24_and_byte::<16>(body).0,
            psn: Psn::new(get_24_and_byte::<20>(body).0),
            responder_resources,
            initiator_depth,
            target_ack_delay: delay >> 3,
            failover_accepted: delay >> 1 & 0b11,
            flow_control: delay & 1 != 0,
            rnr_retry_count: retry >> 5,
            srq: retry & 0x10 != 0,
            ca_guid: get_u64::<28>(body),
            private_data: field::get::<36, { Self::PRIVATE_DATA_LEN }, _>(body),
        }
    }

    pub(super) fn body(&self) -> Body {
        let mut body = [0; MAD_BODY_LEN];
        set_u32::<0>(&mut body, self.local_id);
        set_u32::<4>(&mut body, self.remote_id);
        set_u32::<8>(&mut body, self.qkey.0);
        set_24_and_byte::<12>(&mut body, self.qpn.get(), 0);
        set_24_and_byte::<16>(&mut body, self.ee_context, 0);
        set_24_and_byte::<20>(&mut body, self.psn.get(), 0);
        let delay = self.target_ack_delay << 3
            | (self.failover_accepted & 0b11) << 1
            | u8::from(self.flow_control);
        let retry = self.rnr_retry_count << 5 | u8::from(self.srq) << 4;
        field::set::<24, 4, _>(
            &mut body,
            [self.responder_resources, self.initiator_depth, delay, retry],
        );
        set_u64::<28>(&mut body, self.ca_guid);
        field::set::<36, { Self::PRIVATE_DATA_LEN }, _>(&mut body, self.private_data);
        body
    }
}
