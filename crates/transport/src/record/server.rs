//! The answers to reads: packets of a record for a peer that asked for memory
//! (`docs/protocol.md`, "Reads of records").
//!
//! A request from an address that has not proved that it receives there gets a token, which is
//! shorter than the request, and is not remembered. With the token the request becomes a job: one
//! for each record, until its packets have left, or another request for the record comes.

use core::time::Duration;
use std::collections::VecDeque;

use airdma_wire::siphash::siphash;
use airdma_wire::{
    Bth, Deth, Gid, Neighbour, Opcode, Psn, Qkey, Qpn, Rceth, ReadRanges, RecordHeaders,
    RecordRead, RecordReadKind, Reth, Rkey,
};

use super::RECORD_PAYLOAD_MIN;
use crate::counter::Counter;
use crate::datagram::SentDatagram;
use crate::host::Host;
use crate::queue_pair::Transmit;
use crate::request_packet::{pad_of, request_bth};
use crate::time::Time;
use crate::work::{MESSAGE_LEN_MAX, Path};

/// Most requests of which packets have yet to leave.
const JOBS_MAX: usize = 64;
/// Most of them from one address.
const JOBS_OF_ADDRESS_MAX: usize = JOBS_MAX / 2;
/// A token is good for this long at least, and for twice as long at most.
const TOKEN_LIFE: Duration = Duration::from_secs(8);

/// A request that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct ReadAsked<'a> {
    /// The request.
    pub packet: &'a RecordRead,
    /// Address that it came from.
    pub source: Neighbour,
    /// The way back.
    pub path: Path,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    address: Neighbour,
    path: Path,
    qpn: Qpn,
    qkey: Qkey,
    instance: Psn,
    id: u32,
    nonce: u64,
    from: Reth,
    unit: u16,
    ranges: ReadRanges,
    /// The range whose units leave now, and how many of them have.
    range: usize,
    sent: u32,
}

impl Job {
    fn is_of(&self, asked: &ReadAsked<'_>) -> bool {
        let packet = asked.packet;
        self.address == asked.source
            && self.qpn == packet.deth.src_qpn
            && self.instance == packet.bth.psn
            && self.id == packet.id
    }
}

/// The reads of peers that a queue pair answers.
#[derive(Debug)]
pub(crate) struct ReadServer {
    key: [u64; 2],
    jobs: VecDeque<Job>,
}

impl ReadServer {
    /// `key` is secret.
    pub(crate) fn new(key: [u64; 2]) -> Self {
        ReadServer {
            key,
            jobs: VecDeque::with_capacity(JOBS_MAX),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.jobs.clear();
    }

    /// How many records are on their way.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// What a requester proves with that it receives at its address: never 0.
    fn token(&self, era: u64, asked: &ReadAsked<'_>, qpn: Qpn) -> u64 {
        let mut message = [0; 32];
        message[..16].copy_from_slice(&Gid::from(asked.source).0);
        message[16..20].copy_from_slice(&asked.packet.deth.src_qpn.get().to_le_bytes());
        message[20..24].copy_from_slice(&qpn.get().to_le_bytes());
        message[24..].copy_from_slice(&era.to_le_bytes());
        siphash(self.key, &message).max(1)
    }

    /// Takes a request; returns the answer to it, if it is not memory.
    pub(crate) fn handle<H: Host>(
        &mut self,
        now: Time,
        asked: &ReadAsked<'_>,
        qpn: Qpn,
        payload_max: u32,
        host: &mut H,
    ) -> Option<RecordRead> {
        let packet = asked.packet;
        let era = now.duration_since(Time::ZERO).as_secs() / TOKEN_LIFE.as_secs();
        let token = self.token(era, asked, qpn);
        let earlier = era.checked_sub(1).map(|era| self.token(era, asked, qpn));
        if packet.token != token && Some(packet.token) != earlier {
            host.count(Counter::ReadsChallenged);
            return Some(answer(
                asked,
                qpn,
                RecordReadKind::Challenge,
                token,
                payload_max,
            ));
        }
        let refused = Some(answer(asked, qpn, RecordReadKind::Refused, 0, 0));
        let Reth { va, rkey, length } = packet.reth;
        if !is_well_formed(packet, payload_max)
            || host.check_read(asked.source, rkey, va, length).is_err()
        {
            host.count(Counter::DropRecordRefused);
            return refused;
        }
        let known = self.jobs.iter().position(|job| job.is_of(asked));
        if let Some(at) = known {
            self.jobs.remove(at);
        }
        let of_address = |job: &&Job| job.address == asked.source;
        if self.jobs.len() >= JOBS_MAX
            || self.jobs.iter().filter(of_address).count() >= JOBS_OF_ADDRESS_MAX
        {
            // It asks again.
            host.count(Counter::DropRecordFull);
            return None;
        }
        self.jobs.push_back(Job {
            address: asked.source,
            path: asked.path,
            qpn: packet.deth.src_qpn,
            qkey: packet.answer_qkey,
            instance: packet.bth.psn,
            id: packet.id,
            nonce: packet.nonce,
            from: packet.reth,
            unit: packet.unit,
            ranges: packet.ranges,
            range: 0,
            sent: 0,
        });
        None
    }

    /// Destination of the job at a place.
    pub(crate) fn next(&self, place: usize) -> Option<(Path, Qpn)> {
        let job = self.jobs.get(place)?;
        Some((job.path, job.qpn))
    }

    /// Writes the next packet of the job at a place, which goes behind the others. `None`: its
    /// memory may not be read any more, and it is gone.
    pub(crate) fn poll<H: Host>(
        &mut self,
        place: usize,
        asks: bool,
        qpn: Qpn,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<SentDatagram> {
        let mut job = self.jobs.remove(place)?;
        let range = *job.ranges.as_slice().get(job.range)?;
        let Reth { va, rkey, length } = job.from;
        let unit = u32::from(job.unit);
        let offset = (range.first + job.sent) * unit;
        let payload_len = unit.min(length - offset);
        let headers = RecordHeaders {
            bth: Bth {
                ack_request: asks,
                pad: pad_of(payload_len),
                dest_qpn: job.qpn,
                psn: job.instance,
                opcode: Opcode::UdSendOnly,
                ..request_bth()
            },
            deth: Deth {
                qkey: job.qkey,
                src_qpn: qpn,
            },
            reth: Reth {
                va: 0,
                rkey: Rkey(0),
                length,
            },
            rceth: Rceth {
                id: job.id,
                offset,
                unit: job.unit,
                round: 0,
            },
            is_send: false,
            token: None,
            read: Some(job.nonce),
            imm: None,
        };
        let start = headers.emit(out);
        let end = start + payload_len as usize;
        let from = va + u64::from(offset);
        if host
            .read_for(job.address, rkey, from, &mut out[start..end])
            .is_err()
        {
            host.count(Counter::DropRecordRefused);
            return None;
        }
        let len = end + usize::from(headers.bth.pad);
        out[end..len].fill(0);
        let transmit = Transmit {
            len,
            path: job.path,
        };
        job.sent += 1;
        if job.sent == range.count {
            (job.range, job.sent) = (job.range + 1, 0);
        }
        let (instance, part) = (job.instance, (job.id, offset));
        if job.range < job.ranges.as_slice().len() {
            self.jobs.push_back(job);
        }
        Some(SentDatagram {
            transmit,
            instance,
            part: Some(part),
        })
    }
}

/// Whether length, unit and ranges fit each other, and no unit is asked for twice.
fn is_well_formed(packet: &RecordRead, payload_max: u32) -> bool {
    let (length, unit) = (packet.reth.length, u32::from(packet.unit));
    let is_one = length <= unit;
    if !(1..=MESSAGE_LEN_MAX).contains(&length)
        || unit > payload_max
        || !is_one && (unit < RECORD_PAYLOAD_MIN || !unit.is_multiple_of(4))
        || unit == 0
    {
        return false;
    }
    let (mut next, units) = (0, length.div_ceil(unit));
    packet.ranges.as_slice().iter().all(|range| {
        let fits = range.first >= next && range.count > 0;
        let end = range.first.checked_add(range.count);
        next = end.unwrap_or(u32::MAX);
        fits && next <= units
    })
}

/// An answer, which is shorter than what it answers.
fn answer(
    asked: &ReadAsked<'_>,
    qpn: Qpn,
    kind: RecordReadKind,
    token: u64,
    payload_max: u32,
) -> RecordRead {
    let packet = asked.packet;
    RecordRead {
        bth: Bth {
            opcode: Opcode::UdSendOnly,
            dest_qpn: packet.deth.src_qpn,
            psn: packet.bth.psn,
            ..request_bth()
        },
        deth: Deth {
            qkey: Qkey(0),
            src_qpn: qpn,
        },
        token,
        unit: payload_max as u16,
        kind,
        ranges: ReadRanges::default(),
        ..*packet
    }
}
