//! Reads: records that their target asks for (`docs/protocol.md`, "Reads of records").
//!
//! A read is an entry of the table from the beginning, so nothing opens one that was not asked for.
//! The requester asks for all units, and when the last one of those has arrived, or none for some
//! time, for what is missing. It keeps the time, and counts the tries; the other end keeps nothing
//! that it does not send right then.

use core::time::Duration;

use airdma_wire::siphash::siphash;
use airdma_wire::{
    Bth, Deth, Neighbour, Opcode, Psn, Qkey, Qpn, ReadRanges, RecordRead, RecordReadKind, Reth,
    Rkey, UnitRange,
};

use super::index::NONE;
use super::sources::Source;
use super::target::RecordTarget;
use super::{Ended, RecordHandle, RecordHost, has_unit, unit_of};
use crate::counter::Counter;
use crate::request_packet::request_bth;
use crate::time::Time;
use crate::work::{MESSAGE_LEN_MAX, Path};

/// Most reads of a queue pair that have not ended; they have half of the entries for open messages
/// at most.
pub const RECORD_READS_MAX: u32 = 64;
/// Most destinations whose tokens are kept.
const TOKENS_MAX: usize = 64;
/// Shortest time without a packet after which what is missing is asked for again.
const QUIET_MIN: Duration = Duration::from_millis(10);
/// Longest one.
const QUIET_MAX: Duration = Duration::from_millis(500);

/// What to read, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The way to the peer.
    pub path: Path,
    /// Its address.
    pub address: Neighbour,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The queue key of that.
    pub qkey: Qkey,
    /// Its memory, and how much of it.
    pub from: Reth,
    /// Local key of the memory to write.
    pub lkey: Rkey,
    /// First address of it.
    pub va: u64,
    /// When the read ends, whole or not.
    pub deadline: Duration,
    /// Requests without a packet in return, after which it ends.
    pub tries: u32,
}

/// What a requester's queue pair says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Its number.
    pub qpn: Qpn,
    /// Its queue key.
    pub qkey: Qkey,
    /// Most payload of a packet on the path of the read.
    pub payload_max: u32,
}

/// Why a read does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotRead {
    /// A length, a time or a number of tries is not allowed.
    #[error("a read of no bytes, of too many packets, without time or without tries")]
    Invalid,
    /// The table is full.
    #[error("no free entry for a read")]
    Full,
}

/// A read that has not ended.
#[derive(Clone, Copy, Debug)]
struct Reading {
    index: u32,
    request: ReadRequest,
    reader: Reader,
    id: u32,
    nonce: u64,
    token: u64,
    ends_at: Time,
    tries_left: u32,
    /// Whether the peer has asked for a proof.
    was_challenged: bool,
    /// When it asks again, unless a packet comes.
    ask_at: Time,
    asked_at: Time,
    /// No packet has come since it asked.
    is_unanswered: bool,
    round_trip: Option<Duration>,
    /// Last unit that it has asked for.
    last: u32,
}

impl Reading {
    /// Time without a packet after which it asks again.
    fn quiet(&self) -> Duration {
        let usual = self.round_trip.map_or(QUIET_MIN * 2, |time| time * 4);
        let silent_tries = self.request.tries.saturating_sub(self.tries_left).min(6);
        (usual.max(QUIET_MIN) * (1 << silent_tries)).min(QUIET_MAX)
    }
}

/// A proof that the requester receives at its address, from a peer.
#[derive(Clone, Copy, Debug)]
struct Token {
    address: Neighbour,
    qpn: Qpn,
    token: u64,
    payload_max: u16,
}

/// The reads of a target.
#[derive(Debug)]
pub(super) struct Reads {
    key: [u64; 2],
    instance: Psn,
    next_id: u32,
    reads: Vec<Reading>,
    tokens: Vec<Token>,
    /// The token that the next one takes the place of.
    hand: usize,
    /// Requests to send.
    asked: Vec<(RecordRead, Path)>,
}

impl Reads {
    pub(super) fn new(key: [u64; 2]) -> Self {
        let key = [key[0] ^ u64::MAX, key[1]];
        Reads {
            key,
            instance: Psn::new(siphash(key, b"instance") as u32),
            next_id: 0,
            reads: Vec::with_capacity(RECORD_READS_MAX as usize),
            tokens: Vec::with_capacity(TOKENS_MAX),
            hand: 0,
            asked: Vec::with_capacity(RECORD_READS_MAX as usize),
        }
    }

    pub(super) fn clear(&mut self) {
        self.reads.clear();
        self.asked.clear();
    }

    /// The entries of reads that have not ended.
    pub(super) fn entries(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.reads.iter().map(|reading| reading.index)
    }

    pub(super) fn end(&mut self, index: u32) {
        self.reads.retain(|reading| reading.index != index);
    }

    pub(super) fn due(&self) -> Option<Time> {
        let due = |reading: &Reading| reading.ask_at.min(reading.ends_at);
        self.reads.iter().map(due).min()
    }

    fn place_of(&self, index: u32) -> Option<usize> {
        self.reads.iter().position(|reading| reading.index == index)
    }

    fn token_for(&self, address: Neighbour, qpn: Qpn) -> Option<Token> {
        let is_it = |token: &&Token| token.address == address && token.qpn == qpn;
        self.tokens.iter().find(is_it).copied()
    }

    fn keep(&mut self, token: Token) {
        let is_it = |known: &Token| known.address == token.address && known.qpn == token.qpn;
        if let Some(known) = self.tokens.iter_mut().find(|known| is_it(known)) {
            *known = token;
        } else if self.tokens.len() < TOKENS_MAX {
            self.tokens.push(token);
        } else {
            self.tokens[self.hand] = token;
            self.hand = (self.hand + 1) % TOKENS_MAX;
        }
    }
}

impl RecordTarget {
    /// Begins to read memory of a peer. Its record is told as any other, with the handle that is
    /// returned.
    ///
    /// # Errors
    /// For arguments that are not allowed, and without a free entry.
    pub fn read(
        &mut self,
        now: Time,
        request: ReadRequest,
        reader: Reader,
    ) -> Result<RecordHandle, CannotRead> {
        let length = request.from.length;
        let is_allowed = (1..=MESSAGE_LEN_MAX).contains(&length)
            && request.from.va.checked_add(length.into()).is_some()
            && request.va.checked_add(length.into()).is_some()
            && request.tries > 0
            && !request.deadline.is_zero();
        let known = self.reads.token_for(request.address, request.qpn);
        let theirs = known.map_or(u32::MAX, |known| known.payload_max.into());
        let unit = unit_of(length, reader.payload_max.min(theirs));
        if !is_allowed || length.div_ceil(unit) > self.config().units_max {
            return Err(CannotRead::Invalid);
        }
        let most = RECORD_READS_MAX.min((self.config().open_max / 2).max(1));
        if self.reads.reads.len() >= most as usize {
            return Err(CannotRead::Full);
        }
        let id = self.reads.next_id;
        let words = [u64::from(id).to_le_bytes(), u64::from(length).to_le_bytes()].concat();
        let nonce = siphash(self.reads.key, &words);
        let source = Source {
            address: request.address,
            qpn: request.qpn,
            instance: self.reads.instance,
        };
        let memory = Reth {
            va: request.va,
            rkey: request.lkey,
            length,
        };
        let index = self.open_read(now, (source, id, nonce), memory, unit as u16);
        let index = index.ok_or(CannotRead::Full)?;
        self.reads.next_id = id.wrapping_add(1);
        self.reads.reads.push(Reading {
            index,
            request,
            reader,
            id,
            nonce,
            token: known.map_or(0, |known| known.token),
            ends_at: now + request.deadline,
            tries_left: request.tries,
            was_challenged: false,
            ask_at: now,
            asked_at: now,
            is_unanswered: true,
            round_trip: None,
            last: NONE,
        });
        self.ask(now, self.reads.reads.len() - 1);
        Ok(self.handle(index))
    }

    /// Asks for the units that a read misses.
    fn ask(&mut self, now: Time, place: usize) {
        let index = self.reads.reads[place].index;
        let (unit, units) = (self.entry(index).unit, self.entry(index).units());
        let (mut ranges, mut next, mut last) = (ReadRanges::default(), 0, NONE);
        let map = self.map(index);
        while let Some(first) = (next..units).find(|&unit| !has_unit(map, unit)) {
            let end = (first..units).find(|&unit| has_unit(map, unit));
            next = end.unwrap_or(units);
            let count = next - first;
            if !ranges.push(UnitRange { first, count }) {
                break;
            }
            last = next - 1;
        }
        let reads = &mut self.reads;
        let reading = &mut reads.reads[place];
        reading.last = last;
        reading.asked_at = now;
        reading.is_unanswered = true;
        reading.ask_at = now + reading.quiet();
        let request = &reading.request;
        let packet = RecordRead {
            bth: Bth {
                opcode: Opcode::UdSendOnly,
                dest_qpn: request.qpn,
                psn: reads.instance,
                ..request_bth()
            },
            deth: Deth {
                qkey: request.qkey,
                src_qpn: reading.reader.qpn,
            },
            reth: request.from,
            id: reading.id,
            nonce: reading.nonce,
            token: reading.token,
            answer_qkey: reading.reader.qkey,
            unit,
            kind: RecordReadKind::Request,
            ranges,
        };
        let path = request.path;
        // One at a time for each read.
        let same = |asked: &(RecordRead, Path)| asked.0.id == packet.id;
        reads.asked.retain(|asked| !same(asked));
        reads.asked.push((packet, path));
    }

    /// Whether [`poll_request`](Self::poll_request) has one.
    pub fn has_request(&self) -> bool {
        !self.reads.asked.is_empty()
    }

    /// The next request to send.
    pub fn poll_request(&mut self) -> Option<(RecordRead, Path)> {
        (!self.reads.asked.is_empty()).then(|| self.reads.asked.remove(0))
    }

    /// A unit of a read was placed, which is not whole.
    pub(super) fn note_read(&mut self, now: Time, index: u32, unit: u32) {
        let Some(place) = self.reads.place_of(index) else {
            return;
        };
        let reading = &mut self.reads.reads[place];
        if reading.is_unanswered {
            let sample = now.duration_since(reading.asked_at);
            reading.round_trip = Some(sample);
            reading.is_unanswered = false;
        }
        reading.tries_left = reading.request.tries;
        reading.ask_at = now + reading.quiet();
        if unit == reading.last {
            self.ask(now, place);
        }
    }

    /// Takes an answer to a request: a token to ask again with, or that it is refused.
    pub fn handle_read_answer<H: RecordHost>(
        &mut self,
        now: Time,
        source: Neighbour,
        answer: &RecordRead,
        host: &mut H,
    ) {
        let instance = self.reads.instance;
        let is_it = |reading: &Reading| {
            reading.id == answer.id
                && reading.nonce == answer.nonce
                && reading.request.address == source
                && reading.request.qpn == answer.deth.src_qpn
                && answer.bth.psn == instance
        };
        let Some(place) = self.reads.reads.iter().position(is_it) else {
            return host.count_record(Counter::DropGhost);
        };
        let index = self.reads.reads[place].index;
        match answer.kind {
            RecordReadKind::Request => host.count_record(Counter::DropGhost),
            RecordReadKind::Refused => self.close(index, Ended::Refused, host),
            RecordReadKind::Challenge => {
                self.reads.keep(Token {
                    address: source,
                    qpn: answer.deth.src_qpn,
                    token: answer.token,
                    payload_max: answer.unit,
                });
                let reading = &mut self.reads.reads[place];
                if reading.token == answer.token {
                    // An answer to an earlier request: it has been asked again.
                    return;
                }
                if reading.was_challenged {
                    // It asks again at once, but not without end.
                    reading.tries_left = reading.tries_left.saturating_sub(1);
                } else {
                    // The peer is there, however long its answer took.
                    reading.was_challenged = true;
                    reading.tries_left = reading.request.tries;
                }
                reading.token = answer.token;
                let payload_max = reading.reader.payload_max.min(answer.unit.into());
                if reading.tries_left == 0 {
                    return;
                }
                if self.divide(index, payload_max) {
                    self.ask(now, place);
                } else {
                    self.close(index, Ended::Refused, host);
                }
            }
        }
    }

    /// Ends all reads: the queue pair sends no more, so nothing asks again.
    pub fn flush_reads<H: RecordHost>(&mut self, host: &mut H) {
        while let Some(reading) = self.reads.reads.first() {
            self.close(reading.index, Ended::Flushed, host);
        }
    }

    /// Asks again for what did not come in time, and ends the reads whose time or tries are over.
    pub(super) fn expire_reads<H: RecordHost>(&mut self, now: Time, host: &mut H) {
        let mut place = 0;
        while let Some(reading) = self.reads.reads.get_mut(place) {
            let index = reading.index;
            if reading.ends_at <= now {
                self.close(index, Ended::Age, host);
                continue;
            }
            if reading.ask_at <= now {
                reading.tries_left = reading.tries_left.saturating_sub(1);
                if reading.tries_left == 0 {
                    self.close(index, Ended::Idle, host);
                    continue;
                }
                self.ask(now, place);
            }
            place += 1;
        }
    }
}
