//! Regions that are shared for records, found by the keys that peers write with.

use crate::arrived::Arrived;
use crate::hub::lock;
use crate::region::{Memory, Region, copy_from};
use crate::{Error, Remote, Result};
use airdma_engine::{Gid, Mr, Rkey};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// The landings of a device, by group and key: those of a group are apart from others.
#[derive(Default)]
pub(crate) struct Landings(Mutex<HashMap<(Option<IpAddr>, Rkey), Place>>);

/// A landing as a key names it.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) landing: Arc<Landing>,
    /// Address of the first byte.
    base: u64,
}

/// Where records land: a region, until it is withdrawn.
pub(crate) struct Landing {
    address: u64,
    length: usize,
    /// `None` once it is withdrawn: the bytes are the program's alone then.
    memory: Mutex<Option<Arc<Memory>>>,
}

/// What opens a shared region to datagrams.
pub(crate) struct RecordKeys {
    landing: Arc<Landing>,
    keys: Mutex<Vec<RecordKey>>,
    landings: Arc<Landings>,
}

/// What a key is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To write records.
    Write,
    /// To write records to a group.
    WriteToGroup(IpAddr),
    /// To read.
    Read,
}

/// Access of one host, or of all.
struct RecordKey {
    purpose: Purpose,
    from: Option<IpAddr>,
    /// Ends the access when dropped.
    mr: Arc<Mr>,
}

impl Landings {
    /// The landing of a record.
    pub(crate) fn find(&self, record: &Arrived) -> Option<Place> {
        let name = (record.group(), record.key);
        lock(&self.0).get(&name).cloned()
    }
}

impl Place {
    /// Offset of a record in the region.
    pub(crate) fn offset(&self, record: &Arrived) -> Option<usize> {
        let offset = usize::try_from(record.va.checked_sub(self.base)?).ok()?;
        (offset < self.landing.length).then_some(offset)
    }
}

impl Landing {
    /// Copies bytes at `offset` of the region.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let memory = lock(&self.memory);
        let memory = memory
            .as_ref()
            .ok_or_else(|| Error::you("the region of the record was withdrawn: read it before"))?;
        if offset
            .checked_add(bytes.len())
            .is_none_or(|end| end > self.length)
        {
            return Err(Error::you("bytes beyond the region of the record"));
        }
        let start = memory.at(self.address);
        // SAFETY: within the region, as checked; its memory is shared, and mapped while locked.
        unsafe { copy_from(start.add(offset), bytes) };
        Ok(())
    }
}

impl RecordKeys {
    pub(crate) fn new(region: &Region) -> RecordKeys {
        let memory = region.memory();
        RecordKeys {
            landing: Arc::new(Landing {
                address: region.address(),
                length: region.len(),
                memory: Mutex::new(Some(Arc::clone(memory))),
            }),
            keys: Mutex::default(),
            landings: Arc::clone(memory.landings()),
        }
    }

    /// The key for all hosts, or for one. Members of a group have agreed on `key`, unless it is
    /// drawn now.
    pub(crate) fn remote(
        &self,
        purpose: Purpose,
        from: Option<IpAddr>,
        key: Option<Rkey>,
    ) -> Result<Remote> {
        let Landing {
            address,
            length,
            ref memory,
        } = *self.landing;
        let base = purpose.base(address);
        let mut keys = lock(&self.keys);
        let is_it = |known: &&RecordKey| {
            let is_key = key.is_none_or(|key| key == known.mr.rkey());
            known.purpose == purpose && known.from == from && is_key
        };
        if let Some(known) = keys.iter().find(is_it) {
            return Ok(Remote::new(base, known.mr.rkey(), length));
        }
        let mr = match &*lock(memory) {
            Some(memory) => {
                let part = (address, length);
                memory.register_records(purpose, part, from.map(Gid::from), key)?
            }
            None => return Err(Error::you("the region was withdrawn")),
        };
        let key = mr.rkey();
        if let Some(group) = purpose.group() {
            let landing = Arc::clone(&self.landing);
            lock(&self.landings.0).insert((group, key), Place { landing, base });
        }
        keys.push(RecordKey { purpose, from, mr });
        Ok(Remote::new(base, key, length))
    }

    /// Looks with each key for records at the byte at `offset` of the region, until one finds
    /// something: `look` gets the key, and the address of the byte.
    pub(crate) fn find_map<R>(
        &self,
        offset: usize,
        mut look: impl FnMut(Rkey, u64) -> Option<R>,
    ) -> Option<R> {
        let keys = lock(&self.keys);
        let writes = keys.iter().filter(|key| key.purpose.group().is_some());
        writes
            .map(|key| {
                let base = key.purpose.base(self.landing.address);
                look(key.mr.rkey(), base + offset as u64)
            })
            .find_map(|found| found)
    }

    pub(crate) fn are_of(&self, landing: &Arc<Landing>) -> bool {
        Arc::ptr_eq(&self.landing, landing)
    }
}

impl Purpose {
    /// Address of the first byte of a region at `address`: members of a group agree on addresses
    /// from 0 on.
    fn base(self, address: u64) -> u64 {
        match self {
            Purpose::WriteToGroup(_) => 0,
            Purpose::Write | Purpose::Read => address,
        }
    }

    /// The group of the records that are written with it; `None` if none are.
    fn group(self) -> Option<Option<IpAddr>> {
        match self {
            Purpose::WriteToGroup(group) => Some(Some(group)),
            Purpose::Write => Some(None),
            Purpose::Read => None,
        }
    }
}

impl Drop for RecordKeys {
    fn drop(&mut self) {
        let keys = std::mem::take(&mut *lock(&self.keys));
        for key in &keys {
            if let Some(group) = key.purpose.group() {
                lock(&self.landings.0).remove(&(group, key.mr.rkey()));
            }
        }
        // Peers reach it no more, and then records read no more.
        drop(keys);
        *lock(&self.landing.memory) = None;
    }
}
