//! Regions for records: peers write messages to them by datagrams, and do nothing else.
//!
//! The members of a multicast group agree on one key and one address space, from 0 on. Such a key
//! is no key of the table: it is looked up for messages to that group alone, in the protection
//! domain of the queue pair that takes them. So whatever is agreed on, it opens nothing else, and
//! is the key of nothing else.

use super::{Kind, MemoryTable, Place, Refused, Region};
use crate::index::PdIndex;
use crate::{Access, Error};
use airdma_transport::RecordOrigin;
use airdma_wire::Neighbour;
use std::collections::BTreeMap;

/// What members of a group call a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    pub(crate) pd: PdIndex,
    pub(crate) group: Neighbour,
    pub(crate) key: u32,
}

/// The keys of regions that groups have other keys for.
#[derive(Default)]
pub(super) struct GroupKeys(BTreeMap<GroupKey, u32>);

impl GroupKeys {
    /// The region of this key is gone.
    pub(super) fn remove(&mut self, key: u32) {
        self.0.retain(|_, &mut region| region != key);
    }
}

impl MemoryTable {
    /// Registers memory for records of all hosts, or of one.
    pub(crate) fn register_records(
        &mut self,
        pd: PdIndex,
        address: u64,
        length: usize,
        source: Option<Neighbour>,
    ) -> Result<u32, Error> {
        let region = Region::checked(pd, address, length, address, Access::LOCAL_WRITE)?;
        self.insert(Region {
            kind: Kind::Records { source },
            ..region
        })
    }

    /// Registers memory for records to a group, which names it by `name.key`, or if that is 0, by
    /// the key that is returned. Its addresses begin at 0.
    ///
    /// # Errors
    /// `EEXIST` if the domain has a region of that name; otherwise as [`MemoryTable::register`].
    pub(crate) fn register_group_records(
        &mut self,
        name: GroupKey,
        address: u64,
        length: usize,
        source: Option<Neighbour>,
    ) -> Result<u32, Error> {
        if self.groups.0.contains_key(&name) {
            return Err(known(name));
        }
        let region = Region::checked(name.pd, address, length, 0, Access::LOCAL_WRITE)?;
        let key = self.insert(Region {
            kind: Kind::GroupRecords { source },
            ..region
        })?;
        let name = match name.key {
            0 => GroupKey { key, ..name },
            _ => name,
        };
        if self.groups.0.contains_key(&name) {
            self.deregister(key)?;
            return Err(known(name));
        }
        self.groups.0.insert(name, key);
        Ok(key)
    }

    /// What a group calls the region of this key.
    pub(crate) fn group_key(&self, key: u32) -> Option<GroupKey> {
        let names = &mut self.groups.0.iter();
        names.find_map(|(&name, &region)| (region == key).then_some(name))
    }

    /// Registers memory that all hosts, or one, may read by datagrams.
    pub(crate) fn register_record_reads(
        &mut self,
        pd: PdIndex,
        address: u64,
        length: usize,
        source: Option<Neighbour>,
    ) -> Result<u32, Error> {
        let region = Region::checked(pd, address, length, address, Access::empty())?;
        self.insert(Region {
            kind: Kind::RecordReads { source },
            ..region
        })
    }

    /// Whether a host may read `length` bytes by datagrams.
    pub(crate) fn check_record_read(
        &self,
        source: Neighbour,
        place: Place,
        length: u32,
    ) -> Result<(), Refused> {
        self.gives_records(source, place.key)?;
        self.find(place, length.into(), Access::empty())?;
        Ok(())
    }

    /// Copies registered memory for a host that reads it by datagrams.
    pub(crate) fn read_record(
        &self,
        source: Neighbour,
        place: Place,
        out: &mut [u8],
    ) -> Result<(), Refused> {
        self.gives_records(source, place.key)?;
        self.read(place, Access::empty(), out)
    }

    fn gives_records(&self, from: Neighbour, key: u32) -> Result<(), Refused> {
        match self.at(key).ok_or(Refused)?.kind {
            Kind::RecordReads { source } if source.is_none_or(|source| source == from) => Ok(()),
            Kind::RecordReads { .. }
            | Kind::Records { .. }
            | Kind::GroupRecords { .. }
            | Kind::Region { .. }
            | Kind::Window { .. } => Err(Refused),
        }
    }

    /// Gives a region for records other addresses, from `iova` on.
    pub(crate) fn move_records(&mut self, key: u32, iova: u64) {
        if let Some(region) = self.at_mut(key)
            && let Kind::Records { .. } | Kind::RecordReads { .. } = region.kind
        {
            region.iova = iova;
        }
    }

    /// Whether a message of that origin may write `length` bytes of a record.
    pub(crate) fn check_record(
        &self,
        origin: RecordOrigin,
        place: Place,
        length: u32,
    ) -> Result<(), Refused> {
        let place = self.takes_records(origin, place)?;
        self.find(place, length.into(), Access::LOCAL_WRITE)?;
        Ok(())
    }

    /// Copies part of a record into registered memory.
    pub(crate) fn write_record(
        &self,
        origin: RecordOrigin,
        place: Place,
        data: &[u8],
    ) -> Result<(), Refused> {
        let place = self.takes_records(origin, place)?;
        self.write(place, Access::LOCAL_WRITE, data)
    }

    /// The place that a message of that origin means, if its region takes such messages.
    fn takes_records(&self, origin: RecordOrigin, place: Place) -> Result<Place, Refused> {
        let is_from = |only: Option<Neighbour>| only.is_none_or(|source| source == origin.source);
        let Some(group) = origin.group else {
            return match self.at(place.key).ok_or(Refused)?.kind {
                Kind::Records { source } if is_from(source) => Ok(place),
                Kind::Records { .. }
                | Kind::GroupRecords { .. }
                | Kind::RecordReads { .. }
                | Kind::Region { .. }
                | Kind::Window { .. } => Err(Refused),
            };
        };
        let name = GroupKey {
            pd: place.pd,
            group,
            key: place.key,
        };
        let key = *self.groups.0.get(&name).ok_or(Refused)?;
        match self.at(key).ok_or(Refused)?.kind {
            Kind::GroupRecords { source } if is_from(source) => Ok(Place { key, ..place }),
            Kind::GroupRecords { .. }
            | Kind::Records { .. }
            | Kind::RecordReads { .. }
            | Kind::Region { .. }
            | Kind::Window { .. } => Err(Refused),
        }
    }
}

fn known(name: GroupKey) -> Error {
    Error::System {
        message: format!(
            "the protection domain has a region for records with the key {:#x} of this group: choose another key, or another domain",
            name.key
        ),
        errno: libc::EEXIST,
    }
}
