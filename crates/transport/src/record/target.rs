//! The target: a table of messages, found by source and number, with a map of what arrived for
//! each.

use std::collections::VecDeque;

use airdma_wire::{Neighbour, RecordAnswer, RecordHeaders, RecordPacket, Reth};

use super::entry::{Entry, State};
use super::index::{Index, NONE};
use super::list::List;
use super::reads::Reads;
use super::reply::Refused;
use super::sources::{Fate, Source, Sources, share};
use super::{
    Ended, InvalidRecordConfig, Part, RecordConfig, RecordHost, RecordOrigin, RecordReply, WORD,
    has_unit, unit_of,
};
use crate::counter::Counter;
use crate::datagram::grh_header;
use crate::host::Receive;
use crate::queue_pair::Arrival;
use crate::reliable::RELIABLE_IDLE;
use crate::time::Time;

/// A message without packets for this part of [`RecordConfig::idle`] makes room for later ones of
/// its source: they are sent one after the other, and networks reorder for less time.
const QUIET_SHARE: u32 = 8;

/// The records of one queue pair, as a state machine without I/O.
///
/// Order of calls: any number of [`handle_packet`](Self::handle_packet) and
/// [`handle_timeout`](Self::handle_timeout), then [`poll_record`](Self::poll_record) as long as
/// there is room for what it returns, then [`poll_timeout`](Self::poll_timeout). A packet costs a
/// constant amount of work, and a look at each open message where one must be displaced. All memory
/// is taken at the start.
#[derive(Debug)]
pub struct RecordTarget {
    config: RecordConfig,
    pub(super) entries: Vec<Entry>,
    /// The maps of all entries, one behind the other.
    maps: Vec<u64>,
    by_message: Index,
    free: Vec<u32>,
    /// Open entries, the one opened first at the front.
    pub(super) by_age: List,
    /// Open entries, the one touched longest ago at the front.
    by_touch: List,
    /// Open entries of acknowledged messages, which are in no other list, in the order of touch.
    pub(super) reliable: List,
    open: u32,
    open_reliable: u32,
    /// Receives of SENDs that ended early; the next SENDs get them.
    pub(super) spares: VecDeque<Receive>,
    /// Closed entries that the application was not told of.
    pub(super) untold: VecDeque<u32>,
    pub(super) sources: Sources,
    pub(super) reads: Reads,
    /// The entry of the last packet.
    last: u32,
}

impl RecordTarget {
    /// A target without messages. `key` is secret: sources choose what is hashed with it.
    ///
    /// # Errors
    /// If a value of `config` is not allowed.
    pub fn new(config: RecordConfig, key: [u64; 2]) -> Result<Self, InvalidRecordConfig> {
        config.check()?;
        let entries = config.entries();
        Ok(RecordTarget {
            config,
            entries: vec![Entry::free(); entries as usize],
            maps: vec![0; entries as usize * config.map_words() as usize],
            by_message: Index::new(entries, key),
            free: (0..entries).rev().collect(),
            by_age: List::new(entries),
            by_touch: List::new(entries),
            reliable: List::new(entries),
            open: 0,
            open_reliable: 0,
            spares: VecDeque::with_capacity(entries as usize),
            untold: VecDeque::with_capacity(entries as usize),
            sources: Sources::new(config.sources_max, key),
            reads: Reads::new(key),
            last: NONE,
        })
    }

    /// Its limits.
    pub fn config(&self) -> &RecordConfig {
        &self.config
    }

    /// Takes one packet, whose Q_Key the queue pair has checked. Returns what its sender must be
    /// told, if that is anything.
    pub fn handle_packet<H: RecordHost>(
        &mut self,
        now: Time,
        arrival: &Arrival,
        packet: &RecordPacket<'_>,
        host: &mut H,
    ) -> Option<RecordReply> {
        let Some(part) = Part::of(packet) else {
            host.count_record(Counter::DropMalformed);
            return None;
        };
        let packet = &RecordPacket {
            payload: &packet.payload[..part.len],
            ..*packet
        };
        let headers = &packet.headers;
        let source = Source {
            address: arrival.source,
            qpn: headers.deth.src_qpn,
            instance: headers.bth.psn,
        };
        let outcome = match self.find(&source, headers.rceth.id) {
            Some(index) => self
                .check_known(index, group_of(arrival), headers)
                .map(|()| index),
            None => self.open(now, source, part, (arrival, packet), host),
        };
        if headers.token.is_some()
            && let Some(row) = self.sources.find(&source)
        {
            self.sources.touch(row, now);
        }
        let reply = match outcome {
            Ok(index) => self.place(now, index, part, packet, host),
            Err(refused) => {
                host.count_record(refused.counter());
                RecordReply::without_map(refused.answer()?)
            }
        };
        // A message that is whole now is acknowledged without being asked, if it is repeated.
        let is_told = headers.bth.ack_request || reply.ends && headers.token.is_some();
        is_told.then_some(reply)
    }

    /// The entry of a message, open or closed.
    fn find(&self, source: &Source, id: u32) -> Option<u32> {
        let is_it = |index: u32| {
            let entry = &self.entries[index as usize];
            entry.id == id && entry.source == *source && entry.state != State::Free
        };
        if self.last != NONE && is_it(self.last) {
            return Some(self.last);
        }
        self.by_message.find(self.hash(source, id), is_it)
    }

    fn hash(&self, source: &Source, id: u32) -> u64 {
        let other = u64::from(source.instance.get()) << 32 | u64::from(id);
        self.by_message
            .hash(source.address, source.qpn.get(), other)
    }

    fn check_known(
        &self,
        index: u32,
        group: Option<Neighbour>,
        headers: &RecordHeaders,
    ) -> Result<(), Refused> {
        let entry = &self.entries[index as usize];
        match entry.state {
            State::Closed {
                ended: Ended::Whole,
                ..
            } if entry.is_reliable => Err(Refused::Whole),
            State::Closed { .. } | State::Free => Err(Refused::Late),
            State::Open if entry.is_of(group, headers) => Ok(()),
            State::Open => Err(Refused::Malformed),
        }
    }

    /// Opens a message: its first packet, which may be any of it.
    fn open<H: RecordHost>(
        &mut self,
        now: Time,
        source: Source,
        part: Part,
        (arrival, packet): (&Arrival, &RecordPacket<'_>),
        host: &mut H,
    ) -> Result<u32, Refused> {
        let headers = &packet.headers;
        let (id, is_reliable) = (headers.rceth.id, headers.token.is_some());
        if headers.read.is_some() {
            // The read has ended, or was never asked for.
            return Err(Refused::Late);
        }
        if let Some(row) = self.sources.find(&source)
            && let Some(fate) = self.sources.fate(row, id)
        {
            return Err(match fate {
                Fate::Whole if is_reliable => Refused::Whole,
                Fate::TooLong if is_reliable => Refused::TooLong,
                Fate::Whole | Fate::TooLong | Fate::Late => Refused::Late,
            });
        }
        let Reth { va, rkey, length } = headers.reth;
        let origin = RecordOrigin {
            source: source.address,
            group: group_of(arrival),
        };
        let is_allowed = part.units <= self.config.units_max
            && (headers.is_send || host.check_record(origin, rkey, va, length).is_ok());
        if !is_allowed {
            return Err(Refused::Access);
        }
        if self.sources.entries_of(source.address) >= self.share() {
            return Err(Refused::Full);
        }
        if is_reliable && !self.may_open_reliable(source.address) {
            return Err(Refused::Full);
        }
        if self.open == self.config.open_max && !self.free.is_empty() {
            if is_reliable {
                return Err(Refused::Full);
            }
            self.displace(host);
        }
        let index = *self.free.last().ok_or(Refused::Full)?;
        let row = self.sources.enter(source, id, is_reliable, now);
        let row = row.ok_or(Refused::Full)?;
        let receive = if headers.is_send {
            Some(self.receive_for(row, (arrival, packet), host)?)
        } else {
            None
        };
        self.free.pop();
        self.sources.note_open(row, is_reliable);
        let entry = &mut self.entries[index as usize];
        *entry = Entry {
            generation: entry.generation,
            state: State::Open,
            source,
            group: origin.group,
            row,
            id,
            reth: headers.reth,
            unit: headers.rceth.unit,
            imm: headers.imm,
            opened: now,
            touched: now,
            is_reliable,
            receive,
            grh: receive.map(|_| grh_header(arrival)),
            ..Entry::free()
        };
        let words = part.units.div_ceil(WORD) as usize;
        self.map_mut(index)[..words].fill(0);
        self.by_message.insert(self.hash(&source, id), index);
        if is_reliable {
            self.reliable.push(index);
            self.open_reliable += 1;
        } else {
            self.by_age.push(index);
            self.by_touch.push(index);
        }
        self.open += 1;
        Ok(index)
    }

    /// How many messages from an address have entries, beyond those that have some already. An
    /// address that sends no more keeps to it, if others do, too.
    ///
    /// Where most of the open entries are in use, many messages arrive at once, and each further
    /// one needs an open entry; otherwise they arrive one after the other. Its messages of which
    /// nothing came for a while have lost packets, and give way.
    pub fn room_for(&self, address: Neighbour, now: Time) -> u32 {
        let quiet = self.config.idle / QUIET_SHARE;
        let entry = |index: u32| &self.entries[index as usize];
        let lossy = (self.by_touch.iter())
            .take_while(|&index| entry(index).touched + quiet <= now)
            .filter(|&index| entry(index).source.address == address);
        let may_open = self.config.open_max - self.open + lossy.count() as u32;
        let mut free = self.free.len() as u32;
        if may_open <= self.config.open_max / 4 {
            free = free.min(may_open);
        }
        self.sources.room_for(address, self.share(), free)
    }

    /// Entries that one address may have.
    fn share(&self) -> u32 {
        (self.config.entries() / 2).max(1)
    }

    /// Whether an address may open one more acknowledged message, none of which is displaced.
    fn may_open_reliable(&self, address: Neighbour) -> bool {
        let mine = self.sources.open_reliable_of(address);
        let most = (self.config.open_max / 2).max(1);
        mine < share(most, self.open_reliable - mine)
    }

    /// Closes the oldest message of the address with the most open ones.
    fn displace<H: RecordHost>(&mut self, host: &mut H) {
        let mut most = (0, NONE);
        for index in self.by_age.iter() {
            let open = self.sources.open_of(self.entries[index as usize].row);
            // Among equals it is the one whose oldest message is older.
            if open > most.0 {
                most = (open, index);
            }
        }
        if most.1 != NONE {
            self.close(most.1, Ended::Displaced, host);
        }
    }

    fn place<H: RecordHost>(
        &mut self,
        now: Time,
        index: u32,
        part: Part,
        packet: &RecordPacket<'_>,
        host: &mut H,
    ) -> RecordReply {
        self.last = index;
        let is_reliable = self.entries[index as usize].is_reliable;
        if has_unit(self.map(index), part.unit) {
            host.count_record(Counter::Duplicates);
            return self.arrives(index, is_reliable);
        }
        let headers = &packet.headers;
        let entry = &self.entries[index as usize];
        let (origin, receive, read) = (entry.origin(), entry.receive, entry.read);
        let rkey = entry.reth.rkey;
        let va = entry.reth.va + u64::from(headers.rceth.offset);
        let is_placed = match receive {
            Some(receive) => host.place_message(receive.slot, headers.rceth.offset, packet.payload),
            None if read.is_some() => host.write_read(rkey, va, packet.payload).is_ok(),
            None => host.write_record(origin, rkey, va, packet.payload).is_ok(),
        };
        if !is_placed {
            self.fail(index, packet, host);
            return RecordReply::without_map(RecordAnswer::Ended);
        }
        self.map_mut(index)[(part.unit / WORD) as usize] |= 1 << (part.unit % WORD);
        if is_reliable {
            self.reliable.touch(index);
        } else if read.is_none() {
            self.by_touch.touch(index);
        }
        let entry = &mut self.entries[index as usize];
        entry.touched = now;
        entry.solicited |= headers.bth.solicited;
        entry.valid_bytes += packet.payload.len() as u32;
        entry.valid_units += 1;
        if entry.valid_units == part.units {
            match receive {
                Some(_) => self.deliver(index, packet, host),
                None => self.close(index, Ended::Whole, host),
            }
            return RecordReply {
                ends: true,
                ..RecordReply::without_map(RecordAnswer::Whole)
            };
        }
        if read.is_some() {
            self.note_read(now, index, part.unit);
        } else if self.config.strict_last && !is_reliable && part.is_last() {
            self.close(index, Ended::Last, host);
        }
        self.arrives(index, is_reliable)
    }

    /// Which units of an open message arrived.
    fn arrives(&mut self, index: u32, is_reliable: bool) -> RecordReply {
        if !is_reliable {
            return RecordReply::without_map(RecordAnswer::Arrives);
        }
        let entry = &self.entries[index as usize];
        let (mut base, units) = (entry.base, entry.units());
        let map = &self.map(index)[..units.div_ceil(WORD) as usize];
        while has_unit(map, base) {
            base += 1;
        }
        let word = |nth: u32| {
            let word = map.get((base / WORD + nth) as usize).copied();
            u128::from(word.unwrap_or(0))
        };
        let (low, high) = (word(0) | word(1) << WORD, word(2));
        let shift = base % WORD;
        let map = low >> shift | high.checked_shl(2 * WORD - shift).unwrap_or(0);
        self.entries[index as usize].base = base;
        RecordReply {
            base,
            map,
            ..RecordReply::without_map(RecordAnswer::Arrives)
        }
    }

    /// The memory of a message is gone.
    fn fail<H: RecordHost>(&mut self, index: u32, packet: &RecordPacket<'_>, host: &mut H) {
        if self.entries[index as usize].receive.is_some() {
            return self.fail_send(index, packet, host);
        }
        host.count_record(Counter::DropRecordRefused);
        self.close(index, Ended::TakenBack, host);
    }

    /// An open message is closed: its number is remembered.
    pub(super) fn note_closed(&mut self, index: u32, is_whole: bool) {
        let entry = &self.entries[index as usize];
        let (row, id, is_reliable) = (entry.row, entry.id, entry.is_reliable);
        self.sources.note_closed(row, id, is_whole, is_reliable);
        if entry.is_reliable {
            self.reliable.remove(index);
            self.open_reliable -= 1;
        } else if entry.read.is_some() {
            self.reads.end(index);
        } else {
            self.by_age.remove(index);
            self.by_touch.remove(index);
        }
        self.open -= 1;
    }

    /// Closes an open message. Its number is remembered, and its entry stays until the application
    /// frees it.
    pub(super) fn close<H: RecordHost>(&mut self, index: u32, ended: Ended, host: &mut H) {
        self.note_closed(index, ended == Ended::Whole);
        let entry = &mut self.entries[index as usize];
        entry.state = State::Closed {
            ended,
            is_told: false,
        };
        if let Some(receive) = entry.receive.take() {
            host.count_record(Counter::RecordsLost);
            self.spares.push_back(receive);
            return self.release(index);
        }
        let needs_last = self.config.strict_last && !entry.is_reliable && entry.read.is_none();
        if needs_last && !matches!(ended, Ended::Whole | Ended::Last) {
            host.count_record(Counter::RecordsLost);
            return self.release(index);
        }
        host.count_record(if ended == Ended::Whole {
            Counter::RecordsWhole
        } else {
            Counter::RecordsPartial
        });
        self.untold.push_back(index);
    }

    pub(super) fn entry(&self, index: u32) -> &Entry {
        &self.entries[index as usize]
    }

    pub(super) fn release(&mut self, index: u32) {
        self.by_message.remove(index);
        let entry = &mut self.entries[index as usize];
        entry.state = State::Free;
        entry.generation = entry.generation.wrapping_add(1);
        self.sources.note_freed(entry.row);
        self.free.push(index);
    }

    fn words(&self, index: u32) -> std::ops::Range<usize> {
        let words = self.config.map_words() as usize;
        index as usize * words..(index as usize + 1) * words
    }

    pub(super) fn map(&self, index: u32) -> &[u64] {
        &self.maps[self.words(index)]
    }

    fn map_mut(&mut self, index: u32) -> &mut [u64] {
        let words = self.words(index);
        &mut self.maps[words]
    }

    /// Forgets all messages and records, without a word: the queue pair is in RESET.
    pub fn reset(&mut self) {
        self.untold.clear();
        self.reads.clear();
        self.spares.clear();
        for index in 0..self.config.entries() {
            let entry = &self.entries[index as usize];
            match entry.state {
                State::Free => continue,
                State::Open => self.note_closed(index, false),
                State::Closed { .. } => {}
            }
            self.release(index);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let entry = |index: u32| &self.entries[index as usize];
        let dues = [
            self.by_age
                .first()
                .map(|oldest| entry(oldest).opened + self.config.age),
            self.by_touch
                .first()
                .map(|quietest| entry(quietest).touched + self.config.idle),
            self.reliable
                .first()
                .map(|quietest| entry(quietest).touched + RELIABLE_IDLE),
            self.reads.due(),
        ];
        dues.into_iter().flatten().min()
    }

    /// Closes messages whose time is over; an early call does nothing.
    pub fn handle_timeout<H: RecordHost>(&mut self, now: Time, host: &mut H) {
        while let Some(index) = self.by_touch.first()
            && self.entries[index as usize].touched + self.config.idle <= now
        {
            self.close(index, Ended::Idle, host);
        }
        while let Some(index) = self.by_age.first()
            && self.entries[index as usize].opened + self.config.age <= now
        {
            self.close(index, Ended::Age, host);
        }
        while let Some(index) = self.reliable.first()
            && self.entries[index as usize].touched + RELIABLE_IDLE <= now
        {
            self.close(index, Ended::Idle, host);
        }
        self.expire_reads(now, host);
    }

    /// Opens an entry for a message that is asked for; `None` without a free one.
    pub(super) fn open_read(
        &mut self,
        now: Time,
        (source, id, nonce): (Source, u32, u64),
        reth: Reth,
        unit: u16,
    ) -> Option<u32> {
        if self.open == self.config.open_max {
            return None;
        }
        let index = *self.free.last()?;
        let row = self.sources.enter(source, id, false, now)?;
        self.free.pop();
        self.sources.note_open(row, false);
        let entry = &mut self.entries[index as usize];
        *entry = Entry {
            generation: entry.generation,
            state: State::Open,
            source,
            row,
            id,
            reth,
            unit,
            opened: now,
            touched: now,
            read: Some(nonce),
            ..Entry::free()
        };
        self.map_mut(index).fill(0);
        self.by_message.insert(self.hash(&source, id), index);
        self.open += 1;
        Some(index)
    }

    /// Divides a message that is asked for into packets of this payload, if none has come yet.
    /// False if it has too many.
    pub(super) fn divide(&mut self, index: u32, payload_max: u32) -> bool {
        let units_max = self.config.units_max;
        let entry = &mut self.entries[index as usize];
        if entry.valid_units == 0 && payload_max > 0 {
            entry.unit = unit_of(entry.reth.length, payload_max) as u16;
        }
        entry.units() <= units_max
    }

    /// Ends the SENDs that are open; their receives are spare.
    pub(super) fn close_sends<H: RecordHost>(&mut self, host: &mut H) {
        loop {
            let is_send = |&index: &u32| self.entries[index as usize].receive.is_some();
            let Some(index) = self.reliable.iter().find(is_send) else {
                return;
            };
            self.close(index, Ended::TakenBack, host);
        }
    }
}

/// The multicast group that a packet was sent to.
fn group_of(arrival: &Arrival) -> Option<Neighbour> {
    (arrival.destination.is_multicast()).then_some(arrival.destination)
}
