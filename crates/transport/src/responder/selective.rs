//! The responder's part in selective repeat: packets out of order go to [`Reorder`], and are
//! executed in order.

use airdma_wire::{Opcode, Packet, Psn};

use super::executed::answer_cut;
use super::{Inbound, Refusal, Responder};
use crate::attributes::QpAttributes;
use crate::counter::Counter;
use crate::host::Host;
use crate::queue_pair::View;
use crate::replies::{Peer, emit_acknowledge};
use crate::request_packet::packets_of;
use crate::selective::{AHEAD_MAX, Next, Owed, PsnRange, Reorder, ReorderMemory, sack};

impl Responder {
    /// Turns selective repeat on or off; when turned off, the peer retransmits what was buffered.
    pub(crate) fn set_selective(&mut self, memory: Option<&ReorderMemory>) {
        match (&self.reorder, memory) {
            (None, Some(memory)) => self.reorder = Some(Box::new(Reorder::new(memory.clone()))),
            (Some(_), None) => self.reorder = None,
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    /// Whether early packets are kept: the peer repeats selectively.
    #[inline]
    pub(crate) fn is_selective(&self) -> bool {
        self.reorder.is_some()
    }

    /// Sets how the peer learns what is missing: by ACKs (SACK), or by reports that the caller
    /// makes with [`take_report`](Self::take_report).
    pub(crate) fn tell_by_acks(&mut self, by_acks: bool) {
        if let Some(reorder) = &mut self.reorder {
            reorder.tell_by_acks(by_acks);
        }
    }

    /// Whether the peer is owed an [`take_report`](Self::take_report), and why.
    pub(crate) fn owed(&self) -> Option<Owed> {
        let reorder = self.reorder.as_ref();
        reorder.filter(|reorder| !reorder.tells_by_acks())?.owed()
    }

    /// Packets that were missing when later ones came, since the last call.
    pub(crate) fn take_missed(&mut self) -> u32 {
        let reorder = self.reorder.as_mut();
        reorder.map_or(0, |reorder| reorder.take_missed())
    }

    /// Writes the first ranges of what is missing into `missing`: the PSN that is expected, and how
    /// many ranges there are.
    pub(crate) fn take_report(&mut self, missing: &mut [PsnRange]) -> Option<(Psn, usize)> {
        let reorder = self.reorder.as_mut()?;
        let mut count = 0;
        let ranges = reorder.missing(self.expected, self.gap_reported);
        for (range, place) in ranges.zip(missing) {
            *place = range;
            count += 1;
        }
        reorder.told();
        Some((self.expected, count))
    }

    /// Handles a packet out of order.
    #[cold]
    pub(super) fn handle_early<H: Host>(
        &mut self,
        attributes: &QpAttributes,
        packet: &Packet<'_>,
        ahead: u32,
        host: &mut H,
    ) {
        let path_mtu = attributes.path_mtu.bytes();
        let Some(reorder) = &mut self.reorder else {
            return self.report_gap();
        };
        let asks = packet.headers.bth.ack_request;
        reorder.owe(asks);
        if ahead < AHEAD_MAX && reorder.has(ahead) {
            host.count(Counter::Duplicates);
            if asks {
                self.owe_sack();
            }
            return;
        }
        let placed = place_early(self.inbound.as_ref(), packet, ahead, self.full, host);
        let psns = match packet.headers.reth {
            Some(reth) if packet.headers.bth.opcode == Opcode::RcReadRequest => {
                // If it is refused in its turn, it has a single reply.
                let cut = answer_cut(packet, path_mtu, self.long_payload_max);
                cut.map_or(1, |cut| packets_of(reth.length, cut.payload))
            }
            Some(_) | None => 1,
        };
        let kept = if placed {
            reorder.note_placed(ahead)
        } else {
            reorder.hold(ahead, psns, packet)
        };
        if !kept {
            reorder.note_dropped(ahead);
            host.count(Counter::DropEarly);
        }
        if reorder.has_news() || asks {
            self.owe_sack();
        }
    }

    /// Executes the buffered packets that follow the expected one, which took `psns` PSNs.
    pub(super) fn handle_held<H: Host>(
        &mut self,
        view: View<'_>,
        mut psns: u32,
        host: &mut H,
    ) -> Result<(), Refusal> {
        while psns > 0
            && let Some(reorder) = self.reorder.as_mut().filter(|reorder| reorder.waits())
        {
            psns = match reorder.advance(psns) {
                Next::Missing => 0,
                Next::Placed => {
                    if let Some(Inbound::Write { placed, .. }) = &mut self.inbound {
                        *placed += self.full;
                    }
                    self.placed = Some(self.expected);
                    self.expected = self.expected.add(1);
                    1
                }
                Next::Held(held) => self.handle_expected(view, &held.packet(), host)?,
            };
        }
        Ok(())
    }

    /// Owes an ACK with the missing packets, if the peer gets such.
    pub(super) fn owe_sack(&mut self) {
        let by_acks = |reorder: &Reorder| reorder.tells_by_acks();
        if self.reorder.as_deref().is_some_and(by_acks) {
            self.replies.owe_ack(self.latest(), self.msn);
        }
    }

    /// PSN of the last packet before the expected one.
    fn latest(&self) -> Psn {
        self.expected.add(u32::MAX)
    }

    /// Writes the next reply if it is an ACK with missing packets.
    pub(crate) fn poll_sack<H: Host>(
        &mut self,
        peer: &Peer,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<usize> {
        let latest = (self.latest(), self.msn);
        let reorder = self.reorder.as_mut();
        let reorder = reorder.filter(|reorder| reorder.tells_by_acks())?;
        let (psn, msn) = self.replies.take_acknowledgement(latest)?;
        let len = emit_acknowledge(psn, msn, peer, out);
        let (expected, refused) = (self.expected, self.gap_reported);
        let ranges = &mut out[len..];
        let len = len + sack::emit(reorder, expected, refused, psn.add(1), ranges);
        host.count(Counter::AcksSent);
        Some(len)
    }

    /// Whether a packet is dropped because it is out of order and its peer has not shown its tag:
    /// then it is missing.
    pub(crate) fn refuse_early<H: Host>(&mut self, packet: &Packet<'_>, host: &mut H) -> bool {
        let bth = &packet.headers.bth;
        let ahead = bth.psn.distance_from(self.expected);
        let Some(reorder) = self.reorder.as_mut().filter(|_| ahead > 0) else {
            return false;
        };
        host.count(Counter::OutOfOrder);
        host.count(Counter::DropEarly);
        reorder.owe(bth.ack_request);
        reorder.note_dropped(ahead.unsigned_abs());
        if reorder.has_news() || bth.ack_request {
            self.owe_sack();
        }
        true
    }
}

/// Places the data of a packet out of order if it is from the middle of the current WRITE.
///
/// A write that is not allowed is refused in its turn.
fn place_early<H: Host>(
    inbound: Option<&Inbound>,
    packet: &Packet<'_>,
    ahead: u32,
    full: u32,
    host: &mut H,
) -> bool {
    let Some(Inbound::Write {
        rkey,
        va,
        length,
        placed,
    }) = inbound
    else {
        return false;
    };
    let offset = u64::from(*placed) + u64::from(ahead) * u64::from(full);
    let in_the_middle = offset + u64::from(full) < u64::from(*length);
    in_the_middle
        && packet.headers.bth.opcode == Opcode::RcWriteMiddle
        && packet.payload.len() == full as usize
        && host
            .write_remote(*rkey, va.wrapping_add(offset), packet.payload)
            .is_ok()
}
