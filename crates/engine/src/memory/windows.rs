//! Memory windows (IBTA 10.6.7): keys that open a part of a region, by a work request.

use super::{
    Backing, CHOSEN_BITS, CHOSEN_MASK, FLUSHES, Kind, MemoryTable, REMOTE_WRITES, Refused, Region,
};
use crate::index::{PdIndex, Serial};
use crate::{Access, Error};
use airdma_transport::Bind;

impl MemoryTable {
    /// Makes a window that opens nothing yet. Returns its key.
    pub(crate) fn alloc_window(&mut self, pd: PdIndex, type_two: bool) -> Result<u32, Error> {
        let window = Region {
            kind: Kind::Window {
                type_two,
                region: None,
                qp: 0,
            },
            ..Region::empty(pd)
        };
        self.insert(window)
    }

    /// Forgets a window, whatever its key is by now: one of its keys finds it.
    pub(crate) fn free_window(&mut self, key: u32) {
        let row = self.row(key);
        let is_window = self.rows.get(row).is_some_and(|window| {
            window.key != 0
                && window.key >> CHOSEN_BITS == key >> CHOSEN_BITS
                && matches!(window.kind, Kind::Window { .. })
        });
        if is_window {
            self.unbind(row);
            self.rows[row] = Region::empty(PdIndex::NONE);
            self.used -= 1;
        }
    }

    /// Binds a window for the queue pair with the serial number `qp`, of domain `pd`.
    pub(crate) fn bind(&mut self, pd: PdIndex, qp: Serial, bind: &Bind) -> Result<(), Refused> {
        let window = self.at(bind.window.0).ok_or(Refused)?;
        let Kind::Window {
            type_two, region, ..
        } = window.kind
        else {
            return Err(Refused);
        };
        let chosen = bind.new_key.0 ^ bind.window.0;
        if window.pd != pd || chosen & !CHOSEN_MASK != 0 {
            return Err(Refused);
        }
        // A window of type 2 is bound once, under a new key, and to something; one of type 1 any
        // time, and by a length of zero to nothing (IBTA C10-74 to C10-77).
        if type_two && (region.is_some() || chosen == 0 || bind.length == 0) {
            return Err(Refused);
        }
        let row = self.row(bind.window.0);
        let bound = if bind.length == 0 {
            None
        } else {
            Some(self.part(pd, bind)?)
        };
        self.unbind(row);
        let window = &mut self.rows[row];
        window.key = bind.new_key.0;
        if let Some(part) = bound {
            window.access = bind.access;
            window.address = part.address;
            window.iova = part.iova;
            window.length = part.length;
            window.backing = part.backing;
            let region = bind.region.0;
            window.kind = Kind::Window {
                type_two,
                region: Some(region),
                qp,
            };
            if let Some(Kind::Region { windows }) = self.kind_mut(region) {
                *windows += 1;
            }
        }
        Ok(())
    }

    /// The part of a region that a window is to open.
    fn part(&self, pd: PdIndex, bind: &Bind) -> Result<Region, Refused> {
        let region = self.at(bind.region.0).ok_or(Refused)?;
        let is_region =
            matches!(region.kind, Kind::Region { .. }) && region.backing != Backing::Null;
        if !is_region || region.pd != pd || !region.access.contains(Access::MW_BIND) {
            return Err(Refused);
        }
        if bind.access.intersects(REMOTE_WRITES) && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(Refused);
        }
        // Whether its memory can be flushed is known of the region.
        if !region.access.contains(bind.access & FLUSHES) {
            return Err(Refused);
        }
        let offset = bind.va.checked_sub(region.iova).ok_or(Refused)?;
        let end = offset.checked_add(bind.length).ok_or(Refused)?;
        if end > region.length {
            return Err(Refused);
        }
        Ok(Region {
            address: region.address.wrapping_add(offset as usize),
            iova: if bind.access.contains(Access::ZERO_BASED) {
                0
            } else {
                bind.va
            },
            length: bind.length,
            ..*region
        })
    }

    /// Closes a window of type 2 that the queue pair with the serial number `qp` bound: its key
    /// opens nothing until it is bound again. Regions are not invalidated: only those that a kernel
    /// registers by a work request are (IBTA 10.6.3.2).
    pub(crate) fn invalidate(&mut self, pd: PdIndex, qp: Serial, key: u32) -> Result<(), Refused> {
        let window = self.at(key).ok_or(Refused)?;
        match window.kind {
            Kind::Window {
                type_two: true,
                region: Some(_),
                qp: owner,
            } if owner == qp && window.pd == pd => {
                self.unbind(self.row(key));
                Ok(())
            }
            Kind::Window { .. }
            | Kind::Region { .. }
            | Kind::Records { .. }
            | Kind::GroupRecords { .. }
            | Kind::RecordReads { .. } => Err(Refused),
        }
    }

    /// Closes all windows that are bound in a region.
    pub(crate) fn close_windows(&mut self, key: u32) {
        for row in 0..self.rows.len() {
            let kind = self.rows[row].kind;
            if matches!(kind, Kind::Window { region: Some(region), .. } if region == key) {
                self.unbind(row);
            }
        }
    }

    /// Takes away what a window opens.
    fn unbind(&mut self, row: usize) {
        let window = &mut self.rows[row];
        let Kind::Window { region, .. } = &mut window.kind else {
            return;
        };
        let region = region.take();
        window.length = 0;
        window.address = 0;
        window.access = Access::empty();
        if let Some(region) = region
            && let Some(Kind::Region { windows }) = self.kind_mut(region)
        {
            *windows = windows.saturating_sub(1);
        }
    }

    fn kind_mut(&mut self, key: u32) -> Option<&mut Kind> {
        Some(&mut self.at_mut(key)?.kind)
    }
}
