//! Regions for records: peers write messages to them by datagrams, and do nothing else.

use super::{Kind, MemoryTable, Place, Refused, Region};
use crate::index::PdIndex;
use crate::{Access, Error};
use airdma_wire::Neighbour;

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

    /// Gives a region for records other addresses, from `iova` on.
    pub(crate) fn move_records(&mut self, key: u32, iova: u64) {
        if let Some(region) = self.at_mut(key)
            && let Kind::Records { .. } = region.kind
        {
            region.iova = iova;
        }
    }

    /// Whether a host may write `length` bytes of a record.
    pub(crate) fn check_record(
        &self,
        source: Neighbour,
        place: Place,
        length: u32,
    ) -> Result<(), Refused> {
        self.takes_records(source, place.key)?;
        self.find(place, length.into(), Access::LOCAL_WRITE)?;
        Ok(())
    }

    /// Copies part of a record of a host into registered memory.
    pub(crate) fn write_record(
        &self,
        source: Neighbour,
        place: Place,
        data: &[u8],
    ) -> Result<(), Refused> {
        self.takes_records(source, place.key)?;
        self.write(place, Access::LOCAL_WRITE, data)
    }

    fn takes_records(&self, from: Neighbour, key: u32) -> Result<(), Refused> {
        match self.at(key).ok_or(Refused)?.kind {
            Kind::Records { source } if source.is_none_or(|source| source == from) => Ok(()),
            Kind::Records { .. } | Kind::Region { .. } | Kind::Window { .. } => Err(Refused),
        }
    }
}
