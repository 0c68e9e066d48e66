//! Runs of middle packets.
//!
//! Most packets of long messages are in the middle of one. They are full, have no header but the
//! BTH, and consecutive ones differ only in PSN and payload. So they are written many at a time,
//! and received without checks for what they cannot have. The result is the same as for single
//! packets: anything unusual (a loss, a fault, no credit) is left to the code for one packet.

use airdma_wire::{Bth, ICRC_LEN, Opcode, Psn, Qpn};

use crate::host::{Host, RemoteFault, Spread};
use crate::replies::{Peer, Replies};
use crate::request_packet::request_bth;

/// Packets that were written back to back, with room for an ICRC after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of packets.
    pub packets: usize,
    /// Bytes of each, BTH to payload. Their distance has 4 bytes more, and the requested room.
    pub len: usize,
    spare: usize,
}

/// Limits of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Most packets.
    pub packets: usize,
    /// Room behind each packet, before that for its ICRC.
    pub spare: usize,
}

/// Least packets of a run.
const PACKETS_MIN: usize = 2;

impl Run {
    /// A run of `packets` packets, if there is room for them.
    pub(crate) fn new(packets: usize, payload: u32, limits: RunLimits, out: &[u8]) -> Option<Self> {
        let run = Run {
            packets,
            len: Bth::LEN + payload as usize,
            spare: limits.spare,
        };
        let packets = packets.min(limits.packets).min(out.len() / run.stride());
        (packets >= PACKETS_MIN).then_some(Run { packets, ..run })
    }

    /// Distance between the starts of two packets.
    pub fn stride(&self) -> usize {
        self.len + self.spare + ICRC_LEN
    }

    pub(crate) fn payloads(&self) -> Spread {
        Spread {
            start: Bth::LEN,
            len: self.len - Bth::LEN,
            stride: self.stride(),
            count: self.packets,
        }
    }
}

/// The header fields of a run.
pub(crate) struct RunHeaders {
    pub(crate) opcode: Opcode,
    pub(crate) dest_qpn: Qpn,
    pub(crate) first: Psn,
    pub(crate) tag: u16,
}

impl RunHeaders {
    /// Writes the BTH of each packet; `asks` tells whether the packet with an index asks for an
    /// acknowledgement.
    pub(crate) fn emit(&self, run: &Run, out: &mut [u8], mut asks: impl FnMut(u32) -> bool) {
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

impl Replies {
    /// Writes what [`poll_transmit`](Self::poll_transmit) would write next, as far as it is middle
    /// packets of one READ response.
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
        let headers = RunHeaders {
            opcode: Opcode::RcReadResponseMiddle,
            dest_qpn: peer.qpn,
            first,
            tag: peer.tag,
        };
        headers.emit(&run, out, |_| false);
        let copied: Result<(), RemoteFault> =
            host.read_remote_run(read.rkey, va, out, run.payloads());
        copied.ok()?;
        self.advance_read(read.done + run.payloads().bytes() as u32);
        Some(run)
    }
}
