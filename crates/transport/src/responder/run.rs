//! Middle packets of a SEND or WRITE that come in their turn.

use airdma_wire::{Bth, Opcode};

use super::{Inbound, Responder};
use crate::host::Host;

impl Responder {
    /// Handles a middle packet of the current SEND or WRITE, if it is the expected one.
    ///
    /// If false, nothing was done, and the caller must call
    /// [`handle_request`](Self::handle_request).
    #[inline(always)] // as in the queue pair
    pub(crate) fn take_middle<H: Host>(&mut self, bth: &Bth, payload: &[u8], host: &mut H) -> bool {
        let others_wait = self.reorder.as_ref().is_some_and(|reorder| reorder.waits());
        let full = self.full;
        if bth.psn != self.expected || payload.len() != full as usize || others_wait {
            return false;
        }
        // The last packet has some payload, so it is not reached.
        let placed = match (&mut self.inbound, bth.opcode) {
            (
                Some(Inbound::Write {
                    rkey,
                    va,
                    length,
                    placed,
                }),
                Opcode::RcWriteMiddle,
            ) if *length - *placed > full => {
                let va = va.wrapping_add(u64::from(*placed));
                if host.write_remote(*rkey, va, payload).is_err() {
                    return false;
                }
                placed
            }
            (Some(Inbound::Send { receive, placed }), Opcode::RcSendMiddle)
                if receive.length - *placed >= full =>
            {
                let scattered = host.scatter_receive(receive.slot, *placed, payload);
                if scattered.is_err() {
                    return false;
                }
                placed
            }
            _ => return false,
        };
        *placed += full;
        self.executed_data(bth);
        true
    }
}
