//! Runs of middle packets.
//!
//! Most packets of long messages stand in the middle of one. They are full, have no header but the BTH, and two that
//! follow each other differ in their PSN and their data alone. So they are written many at a time, and taken without a look at what
//! they cannot have. What is done to a run is what is done to its packets one by one: whatever is out of the ordinary (a loss,
//! a fault, no credit) is left to the code for one packet, which comes to the same place by itself.

use airdma_wire::{Bth, ICRC_LEN, Opcode, Psn, Qpn};

use crate::attributes::QpAttributes;
use crate::host::{Host, RemoteFault, Spread};
use crate::operation::Operation;
use crate::replies::{Peer, Replies};
use crate::request_packet::{middle_opcode, request_bth};
use crate::requester::{Requester, Turn};
use crate::responder::{Inbound, Responder};
use crate::time::Time;

/// Packets that were written one behind the other, with room for an ICRC after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// How many.
    pub packets: usize,
    /// Bytes of each, BTH to payload. They stand 4 bytes more apart, and the room that was asked for.
    pub len: usize,
    spare: usize,
}

/// What a run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Packets at most.
    pub packets: usize,
    /// Bytes of room behind each packet, in front of that for its ICRC.
    pub spare: usize,
}

/// Fewer are no run.
const PACKETS_MIN: usize = 2;

impl Run {
    /// Of `packets` packets, if there is room for so many.
    fn new(packets: usize, payload: u32, limits: RunLimits, out: &[u8]) -> Option<Self> {
        let run = Run {
            packets,
            len: Bth::LEN + payload as usize,
            spare: limits.spare,
        };
        let packets = packets.min(limits.packets).min(out.len() / run.stride());
        (packets >= PACKETS_MIN).then_some(Run { packets, ..run })
    }

    /// How far the packets stand apart.
    pub fn stride(&self) -> usize {
        self.len + self.spare + ICRC_LEN
    }

    fn payloads(&self) -> Spread {
        Spread {
            start: Bth::LEN,
            len: self.len - Bth::LEN,
            stride: self.stride(),
            count: self.packets,
        }
    }
}

/// The headers of a run: who it is for, and what it is.
struct RunHeaders {
    opcode: Opcode,
    dest_qpn: Qpn,
    first: Psn,
    tag: u16,
}

impl RunHeaders {
    /// Writes the BTH of each packet; `asks` says whether the one with that index asks for an acknowledgement.
    fn emit(&self, run: &Run, out: &mut [u8], mut asks: impl FnMut(u32) -> bool) {
        let bth = Bth {
            opcode: self.opcode,
            dest_qpn: self.dest_qpn,
            ..request_bth()
        };
        let mut header = bth.to_bytes_with(self.tag);
        let mut psn = self.first;
        for (index, packet) in (0..).zip(out.chunks_mut(run.stride()).take(run.packets)) {
            Bth::set_place(&mut header, psn, asks(index));
            packet[..Bth::LEN].copy_from_slice(&header);
            psn = psn.add(1);
        }
    }
}

impl Requester {
    /// Writes what [`poll_transmit`](Self::poll_transmit) would write next, as far as it is new middle packets of one SEND or WRITE.
    pub(crate) fn poll_run<H: Host>(
        &mut self,
        turn: &Turn,
        attributes: &QpAttributes,
        limits: RunLimits,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Run> {
        // With nothing under way the window takes one packet whatever its size, no timer runs, and what is sent again is counted.
        if self.next != self.sent_max
            || self.next == self.acked
            || self.locals > 0
            || self.wants_repair()
        {
            return None;
        }
        let entry = self.sendable(attributes, turn.draining)?;
        let opcode = middle_opcode(&entry.request.operation)?;
        let index = self.next - entry.first;
        if index == 0 {
            return None;
        }
        let payload = entry.payload;
        let middle = u64::from(entry.packets - 1) - index;
        let packets = (middle.min(self.packets_in_flight_left()) as usize)
            .min(turn.credit.div_ceil(payload) as usize);
        let run = Run::new(packets, payload, limits, out)?;
        let (slot, offset) = (entry.request.slot, entry.offset(index as u32));
        host.gather_run(slot, offset, out, run.payloads()).ok()?;
        let headers = RunHeaders {
            opcode,
            dest_qpn: attributes.dest_qpn,
            first: self.psn_of(self.next),
            tag: turn.tag,
        };
        let mut asked = false;
        headers.emit(&run, out, |index| {
            asked = self.sent_middle(turn.credit - index * payload, payload);
            asked
        });
        if asked && let Some(repair) = &mut self.repair {
            repair.put_off_probe(turn.now, true, self.acked);
        }
        Some(run)
    }
}

impl Replies {
    /// Writes what [`poll_transmit`](Self::poll_transmit) would write next, as far as it is middle packets of one READ response.
    pub(crate) fn poll_run<H: Host>(
        &mut self,
        peer: &Peer,
        limits: RunLimits,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Run> {
        let (read, first) = self.read_in_progress()?;
        let middle = (read.length - read.done).div_ceil(read.payload) - 1;
        let run = Run::new(middle as usize, read.payload, limits, out)?;
        let va = read.va.wrapping_add(u64::from(read.done));
        let copied: Result<(), RemoteFault> =
            host.read_remote_run(read.rkey, va, out, run.payloads());
        copied.ok()?;
        let headers = RunHeaders {
            opcode: Opcode::RcReadResponseMiddle,
            dest_qpn: peer.qpn,
            first,
            tag: peer.tag,
        };
        headers.emit(&run, out, |_| false);
        self.advance_read(read.done + run.payloads().bytes() as u32);
        Some(run)
    }
}

impl Responder {
    /// Takes a middle packet of the SEND or WRITE that is arriving, if it is the one that is expected. False: nothing was done, and
    /// [`handle_request`](Self::handle_request) is to see it.
    #[inline(always)] // as in the queue pair
    pub(crate) fn take_middle<H: Host>(&mut self, bth: &Bth, payload: &[u8], host: &mut H) -> bool {
        let others_wait = self.reorder.as_ref().is_some_and(|reorder| reorder.waits());
        let full = self.full;
        if bth.psn != self.expected || payload.len() != full as usize || others_wait {
            return false;
        }
        // The last packet has something left to carry, so it is not reached.
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

impl Requester {
    /// Takes a middle packet of the READ response that is arriving, if it is the one that is expected. False: nothing was done, and
    /// [`handle_response`](Self::handle_response) is to see it.
    #[inline(always)] // as in the queue pair
    pub(crate) fn take_middle<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        bth: &Bth,
        payload: &[u8],
        host: &mut H,
    ) -> bool {
        if self.acked >= self.sent_max || bth.psn != self.psn_of(self.acked) {
            return false;
        }
        if let Some(repair) = &self.repair
            && repair.answers_wait()
        {
            return false;
        }
        let Some(entry) = self.queue.front() else {
            return false;
        };
        let is_read = matches!(entry.request.operation, Operation::Read { .. });
        if !is_read || entry.end() - self.acked < 2 || payload.len() != entry.payload as usize {
            return false;
        }
        let offset = (self.acked - entry.first) as u32 * entry.payload;
        let slot = entry.request.slot;
        if host.scatter(slot, offset, payload).is_err() {
            return false;
        }
        if let Some(repair) = &mut self.repair {
            repair.note_heard(self.acked, now);
        }
        self.acked += 1;
        self.progressed(now, attributes);
        true
    }
}
