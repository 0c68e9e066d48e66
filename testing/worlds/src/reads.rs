//! Reads by datagrams: on each host memory that its peers read, and memory that its own reads fill,
//! which the judge of reads watches.

use crate::host::Host;
use crate::plan::RecordFault;
use airdma_engine::{Access, Ended, Mr, Qp, Record, RecordHandle};
use airdma_model::reads::Reads;
use airdma_model::records::{self, Name};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most bytes of a read: three packets.
pub(crate) const PLACE: usize = 3072;
/// Places for reads in a reader's memory.
pub(crate) const PLACES: usize = 3;
/// Bytes before and behind them, which no key opens.
const GUARD: usize = 64;
const LANDING_BYTES: usize = GUARD + PLACE * PLACES + GUARD;
/// Bytes that peers may read.
pub(crate) const SHARED_BYTES: usize = 2 * PLACE;

/// How peers name the first byte of the first registration.
const SHARED_VA: u64 = 0x4_0000_0000;
/// Distance of the addresses of two registrations.
const SHARED_STEP: u64 = 0x10_0000;
/// Address of the first place.
const LANDING_VA: u64 = 0x5_0000_0000;

/// A read that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// The host whose memory it reads.
    pub(crate) peer: usize,
    pub(crate) name: Name,
    pub(crate) fault: Option<RecordFault>,
    pub(crate) deadline: Duration,
    /// Packets lost between the hosts before.
    pub(crate) lost: u64,
    /// Whether the memory could be read when it began, and the registrations until then.
    pub(crate) was_shared: bool,
    pub(crate) registrations: u64,
}

/// A read that has ended, as its record says.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) record: records::Record,
    pub(crate) ended: Ended,
    pub(crate) is_read: bool,
}

impl Fetched {
    fn of(name: Name, record: &Record<'_>) -> Option<Fetched> {
        let ended = record.ended?;
        Some(Fetched {
            record: records::Record {
                name,
                va: record.va,
                length: record.length,
                unit: record.unit.into(),
                valid: record.ranges().collect(),
                valid_bytes: record.valid_bytes,
                is_whole: ended == Ended::Whole,
            },
            ended,
            is_read: record.is_read,
        })
    }
}

/// What a host has for reads, beside its queue pair for records.
pub(crate) struct ReadEnd {
    /// `None` while no peer may read.
    pub(crate) shared_mr: Option<Arc<Mr>>,
    /// The key of the last registration, and its first address.
    pub(crate) key: u32,
    pub(crate) va: u64,
    pub(crate) registrations: u64,
    shared: Box<[u8]>,
    pub(crate) landing: Arc<Mr>,
    memory: Box<[u8]>,
    /// Judges what is read to here.
    pub(crate) judge: Reads,
    /// Which read has a place, until its record is freed.
    pub(crate) places: [Option<Name>; PLACES],
    /// By their handles.
    pub(crate) open: BTreeMap<u64, Reading>,
    /// Reads whose end has not been polled: bytes that arrived, and from which host.
    pub(crate) untaken: BTreeMap<u64, (Name, u32)>,
    /// Records that are not freed.
    pub(crate) held: Vec<(RecordHandle, Name)>,
    pub(crate) count: u32,
}

impl ReadEnd {
    /// `content` is what peers read.
    pub(crate) fn new(host: &Host, content: Vec<u8>, held_max: usize) -> ReadEnd {
        assert_eq!(content.len(), SHARED_BYTES);
        let memory = vec![0_u8; LANDING_BYTES].into_boxed_slice();
        let at = memory.as_ptr().expose_provenance() as u64 + GUARD as u64;
        let landing = host
            .pd
            .reg_mr(at, PLACE * PLACES, LANDING_VA, Access::LOCAL_WRITE);
        let mut end = ReadEnd {
            shared_mr: None,
            key: 0,
            va: SHARED_VA,
            registrations: 0,
            shared: content.into_boxed_slice(),
            landing: landing.expect("memory that is there"),
            judge: Reads::new(LANDING_VA - GUARD as u64, &memory, held_max),
            memory,
            places: [None; PLACES],
            open: BTreeMap::new(),
            untaken: BTreeMap::new(),
            held: Vec::new(),
            count: 0,
        };
        end.share(host);
        end
    }

    /// Lets peers read, by another key and other addresses each time.
    pub(crate) fn share(&mut self, host: &Host) {
        let at = self.shared.as_ptr().expose_provenance() as u64;
        let mr = host.pd.reg_record_read_mr(at, SHARED_BYTES, None);
        let mr = mr.expect("memory that is there");
        self.va = SHARED_VA + self.registrations * SHARED_STEP;
        self.registrations += 1;
        host.device.move_records(&mr, self.va);
        self.key = mr.rkey().0;
        self.shared_mr = Some(mr);
    }

    /// Bytes that peers read.
    pub(crate) fn content(&self, at: usize, length: usize) -> &[u8] {
        &self.shared[at..][..length]
    }

    /// Address of a place.
    pub(crate) fn place_va(place: usize) -> u64 {
        LANDING_VA + (place * PLACE) as u64
    }

    /// Lets the judge check the memory at a time, and takes the reads that have ended since.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub(crate) fn check(
        &mut self,
        qp: &Qp,
        now: Duration,
    ) -> Result<Vec<(Reading, Fetched)>, String> {
        let now = now.as_nanos() as u64;
        let at = std::ptr::with_exposed_provenance(self.memory.as_ptr().expose_provenance());
        // SAFETY: the allocation has that many bytes, alive with `self`. The device, which writes
        // to them, runs only when this thread calls it, and the slice does not outlive such a call.
        let bytes = unsafe { std::slice::from_raw_parts(at, LANDING_BYTES) };
        self.judge.check(bytes, now)?;
        let mut ended = Vec::new();
        for (&handle, reading) in &self.open {
            let name = reading.name;
            let fetched = qp.record(RecordHandle(handle), |record| Fetched::of(name, record));
            if let Some(fetched) = fetched {
                let fetched = fetched.ok_or_else(|| format!("{name:?} is told and open"))?;
                let is_age = fetched.ended == Ended::Age;
                self.judge.told(&fetched.record, is_age, now)?;
                ended.push((handle, *reading, fetched));
            }
        }
        for (handle, reading, fetched) in &ended {
            self.open.remove(handle);
            let taken = (reading.name, fetched.record.valid_bytes);
            self.untaken.insert(*handle, taken);
        }
        Ok(ended.into_iter().map(|(_, of, how)| (of, how)).collect())
    }

    /// The program writes to a place that no read has.
    pub(crate) fn store(&mut self, place: usize, bytes: &[u8]) {
        let start = GUARD + place * PLACE;
        assert!(bytes.len() <= PLACE);
        let at = self.memory.as_ptr().expose_provenance() + start;
        let to = std::ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: in bounds, and no other thread runs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        self.judge.stored(ReadEnd::place_va(place), bytes);
    }

    /// Deregisters all memory.
    ///
    /// # Errors
    /// A region cannot be deregistered.
    pub(crate) fn take_down(&self) -> Result<(), String> {
        for mr in self.shared_mr.iter().chain([&self.landing]) {
            mr.deregister()
                .map_err(|error| format!("taking reads down: {error}"))?;
        }
        Ok(())
    }
}
