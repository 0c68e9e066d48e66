//! Regions that are shared for records, found by the keys that peers write with.

use crate::hub::lock;
use crate::region::{Memory, Region, copy_from};
use crate::{Error, Remote, Result};
use airdma_engine::{Gid, Mr, Rkey};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// The landings of a device, by key.
#[derive(Default)]
pub(crate) struct Landings(Mutex<HashMap<Rkey, Arc<Landing>>>);

/// Where records land: a region, until it is withdrawn.
pub(crate) struct Landing {
    address: u64,
    length: usize,
    /// `None` once it is withdrawn: the bytes are the program's alone then.
    memory: Mutex<Option<Arc<Memory>>>,
}

/// What opens a shared region to records.
pub(crate) struct RecordKeys {
    landing: Arc<Landing>,
    keys: Mutex<Vec<RecordKey>>,
    landings: Arc<Landings>,
}

/// Access of one host, or of all.
struct RecordKey {
    from: Option<IpAddr>,
    /// Ends the access when dropped.
    mr: Arc<Mr>,
}

impl Landings {
    pub(crate) fn find(&self, key: Rkey) -> Option<Arc<Landing>> {
        lock(&self.0).get(&key).cloned()
    }
}

impl Landing {
    /// Offset of an address in the region.
    pub(crate) fn offset(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.address)?).ok()?;
        (offset < self.length).then_some(offset)
    }

    /// Copies bytes at `offset` of the region.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let memory = lock(&self.memory);
        let memory = memory
            .as_ref()
            .ok_or_else(|| Error::you("the region of the record was withdrawn: read it before"))?;
        if offset.checked_add(bytes.len()) > Some(self.length) {
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

    /// The key for all hosts, or for one.
    pub(crate) fn remote(&self, from: Option<IpAddr>) -> Result<Remote> {
        let (address, length) = (self.landing.address, self.landing.length);
        let mut keys = lock(&self.keys);
        if let Some(known) = keys.iter().find(|key| key.from == from) {
            return Ok(Remote::new(address, known.mr.rkey(), length));
        }
        let mr = match &*lock(&self.landing.memory) {
            Some(memory) => memory.register_records(address, length, from.map(Gid::from))?,
            None => return Err(Error::you("the region was withdrawn")),
        };
        let key = mr.rkey();
        lock(&self.landings.0).insert(key, Arc::clone(&self.landing));
        keys.push(RecordKey { from, mr });
        Ok(Remote::new(address, key, length))
    }

    pub(crate) fn are_of(&self, landing: &Arc<Landing>) -> bool {
        Arc::ptr_eq(&self.landing, landing)
    }
}

impl Drop for RecordKeys {
    fn drop(&mut self) {
        let keys = std::mem::take(&mut *lock(&self.keys));
        for key in &keys {
            lock(&self.landings.0).remove(&key.mr.rkey());
        }
        // Peers write no more, and then records read no more.
        drop(keys);
        *lock(&self.landing.memory) = None;
    }
}
