//! Reads by datagrams: memory of peers comes into records.

use super::*;
use crate::plan::RecordFault;
use crate::reads::{Fetched, PLACE, PLACES, ReadEnd, Reading, SHARED_BYTES};
use airdma_engine::{DatagramRead, Ended, RecordHandle};
use airdma_model::records::Name;

/// A read to begin.
pub(super) struct Wanted {
    pub(super) reader: usize,
    pub(super) peer: usize,
    pub(super) place: usize,
    /// First byte of the peer's memory.
    pub(super) at: usize,
    pub(super) length: usize,
    pub(super) patience: u8,
    pub(super) fault: Option<RecordFault>,
}

/// Deadlines: shorter than a round trip of slow networks, and longer than all tries.
const DEADLINES: [Duration; 4] = [
    Duration::from_micros(100),
    Duration::from_millis(5),
    Duration::from_millis(40),
    Duration::from_secs(8),
];
/// Within this, a slow network may be the reason that nothing came.
const SLOW: Duration = Duration::from_millis(200);
/// Requests without an answer until a read ends.
const TRIES: [u32; 2] = [2, 8];

impl World {
    pub(super) fn begin_read(&mut self, wanted: &Wanted) -> Result<(), String> {
        let Wanted {
            reader,
            peer,
            fault,
            ..
        } = *wanted;
        let place = wanted.place % PLACES;
        let length = 1 + wanted.length % PLACE;
        let at = wanted.at % (SHARED_BYTES - length + 1);
        let Some((own, other)) = self.records.get(reader).zip(self.records.get(peer)) else {
            return Ok(());
        };
        if !self.hosts[reader].alive || own.reads.places[place].is_some() {
            return Ok(());
        }
        let name = Name {
            source: peer as u64,
            number: own.reads.count,
        };
        let (mut va, mut key, mut qkey) = (other.reads.va + at as u64, other.reads.key, QKEY);
        match fault {
            None => {}
            Some(RecordFault::Key) => key ^= 0x00ab_c000,
            // The key of memory for records, which peers write.
            Some(RecordFault::OtherKey) => key = other.key,
            Some(RecordFault::End) => va = other.reads.va + (SHARED_BYTES + 1 - length) as u64,
            Some(RecordFault::Start) => va = other.reads.va - 1,
            Some(RecordFault::Qkey) => qkey.0 ^= 1,
        }
        let deadline = DEADLINES[usize::from(wanted.patience) % DEADLINES.len()];
        let to = ReadEnd::place_va(place);
        let read = DatagramRead {
            datagram: Datagram {
                path: airdma_engine::Path {
                    gid: self.hosts[peer].address.into(),
                    hop_limit: 64,
                    ..airdma_engine::Path::default()
                },
                qpn: other.number,
                qkey,
            },
            va,
            rkey: Rkey(key),
            length: length as u32,
            lkey: own.reads.landing.lkey(),
            to,
            deadline,
            tries: TRIES[usize::from(wanted.patience >> 2) % TRIES.len()],
        };
        let reading = Reading {
            peer,
            name,
            fault,
            deadline,
            lost: self.lost_among([reader, peer]),
            was_shared: other.reads.shared_mr.is_some(),
            registrations: other.reads.registrations,
        };
        let content = other.reads.content(at, length).to_vec();
        let handle = match own.qp.read_record(&read) {
            Ok(RecordHandle(handle)) => handle,
            // As many are open as may be.
            Err(Error::NoMemory(_)) => return Ok(()),
            Err(error) => return Err(format!("read {name:?} was refused: {error}")),
        };
        let until = (self.now + deadline).as_nanos() as u64;
        let reads = &mut self.records[reader].reads;
        reads.judge.begun(name, to, &content, until)?;
        reads.open.insert(handle, reading);
        reads.places[place] = Some(name);
        reads.count += 1;
        self.counts.reads += 1;
        self.note(|_| {
            format!("host {reader} reads {length} B of host {peer} as {name:?} to place {place}, for {deadline:?}, fault {fault:?}")
        });
        self.run(reader)
    }

    /// Lets the judge check what reads have written to a host, and those that have ended.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub(crate) fn observe_reads(&mut self, host: usize) -> Result<(), String> {
        let end = &mut self.records[host];
        let ended = end.reads.check(&end.qp, self.now);
        for (reading, fetched) in ended.map_err(|why| format!("reads of host {host}: {why}"))? {
            self.explain_read(host, &reading, &fetched)?;
        }
        Ok(())
    }

    /// A read ends whole, or for a reason that the world has.
    fn explain_read(&mut self, host: usize, of: &Reading, fetched: &Fetched) -> Result<(), String> {
        let Fetched {
            record,
            ended,
            is_read,
        } = fetched;
        self.note(|_| format!("read {:?} ends: {ended:?}, {:?}", of.name, record.valid));
        let peer = &self.records[of.peer].reads;
        let is_same = of.was_shared && peer.shared_mr.is_some();
        let is_same = is_same && of.registrations == peer.registrations;
        let is_dead = !self.hosts[of.peer].alive;
        let is_lossy = self.lost_among([host, of.peer]) > of.lost;
        let wrong_key = of.fault == Some(RecordFault::Qkey);
        let is_allowed = of.fault.is_none();
        // A queue pair agrees on no keys with itself, and what it sends waits behind packets that
        // wait for keys.
        let may_lack_keys = self.plan.on_path.is_some();
        let is_silent = is_dead || is_lossy || wrong_key || may_lack_keys;
        let explains = match ended {
            Ended::Whole => is_allowed,
            Ended::Refused => !(is_allowed || wrong_key) || !is_same,
            // No peer answers a wrong Q_Key.
            Ended::Idle => is_silent,
            Ended::Age => is_silent || of.deadline < SLOW,
            _ => false,
        };
        if !explains || !is_read || (!is_allowed && record.valid_bytes > 0) {
            return Err(format!("{fetched:?} of host {host}: {of:?}"));
        }
        self.counts.reads_whole += u64::from(*ended == Ended::Whole);
        self.counts.reads_partial += u64::from(!record.is_whole && record.valid_bytes > 0);
        self.counts.reads_refused += u64::from(*ended == Ended::Refused);
        Ok(())
    }

    /// Takes the completion of a read. False if it is of another record.
    pub(super) fn take_read(
        &mut self,
        host: usize,
        completion: &Completion,
    ) -> Result<bool, String> {
        let Some((name, valid_bytes)) = self.records[host].reads.untaken.remove(&completion.wr_id)
        else {
            return Ok(false);
        };
        let peer = self.records[name.source as usize].number;
        let completed = (completion.byte_len, completion.src_qpn, completion.imm);
        if completed != (valid_bytes, peer, None) {
            return Err(format!("{name:?} has another completion: {completion:?}"));
        }
        let held = (RecordHandle(completion.wr_id), name);
        self.records[host].reads.held.push(held);
        Ok(true)
    }

    /// Frees the records of reads. The program then has their memory, and writes it: what is late
    /// shows there.
    pub(super) fn free_reads(&mut self, host: usize) -> Result<(), String> {
        let held = std::mem::take(&mut self.records[host].reads.held);
        for (handle, name) in held {
            let end = &mut self.records[host];
            if !end.qp.free_record(handle) || end.qp.record(handle, |_| ()).is_some() {
                return Err(format!("the record of read {name:?} cannot be freed"));
            }
            end.reads.judge.freed(name)?;
            let place = end.reads.places.iter().position(|of| *of == Some(name));
            let place = place.expect("the place that it was read to");
            end.reads.places[place] = None;
            let bytes = self.random.bytes(PLACE);
            self.records[host].reads.store(place, &bytes);
        }
        Ok(())
    }

    /// Lets peers read no more, or again.
    pub(super) fn withdraw_reads(&mut self, host: usize) -> Result<(), String> {
        let Some(end) = self.records.get_mut(host) else {
            return Ok(());
        };
        match end.reads.shared_mr.take() {
            Some(mr) => mr
                .deregister()
                .map_err(|error| format!("taking memory for reads back: {error}"))?,
            None => end.reads.share(&self.hosts[host]),
        }
        self.note(|_| format!("host {host} shares its memory for reads no more, or again"));
        self.run(host)
    }
}
