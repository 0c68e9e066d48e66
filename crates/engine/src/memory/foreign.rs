//! Memory of another process: of a client of the daemon that runs this worker.
//!
//! The client passes a descriptor of its own `/proc/self/mem`. That works between any two users,
//! whatever Yama says, and is bound to the address space: after `exec`, or once the client is dead,
//! it reads and writes nothing. Each access is a call of the kernel's, which translates addresses
//! at that moment, so memory that is not mapped is an error and never a fault. Rights are checked
//! by the client at registration, as in a process: the kernel forces accesses by this descriptor.
//!
//! All regions of a client's protection domains are such memory ([`Region::checked`]): the serial
//! number of a domain names its client, so there is no region of a client that leads into the
//! daemon's own memory.
//!
//! [`Region::checked`]: super::Region::checked

use super::{MemoryTable, Refused};
use crate::index::{PdIndex, client_of};
use airdma_transport::Spread;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The memory of one client.
pub(crate) struct Foreign {
    memory: File,
    is_lent: Box<IsLent>,
}

/// Whether the memory is the daemon's to access: a client that has given the daemon up uses it for
/// other things.
type IsLent = dyn Fn() -> bool + Send + Sync;

/// The memory of all clients, by their numbers.
pub(super) type Homes = HashMap<u64, Arc<Foreign>>;

impl Foreign {
    /// `memory` is a descriptor of the client's `/proc/self/mem`.
    pub(crate) fn new(memory: File, is_lent: Box<IsLent>) -> Self {
        Foreign { memory, is_lent }
    }

    /// The memory, if it still is the daemon's to access. This process may have been stopped since
    /// the request arrived, for so long that the client has given it up.
    fn memory(&self) -> Result<&File, Refused> {
        (self.is_lent)().then_some(&self.memory).ok_or(Refused)
    }

    /// Whether the byte at `address` can be read now, and is the daemon's to read.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.memory()
            .is_ok_and(|memory| memory.read_exact_at(&mut [0], address).is_ok())
    }

    #[cold]
    pub(super) fn read(&self, from: *mut u8, out: &mut [u8]) -> Result<(), Refused> {
        let read = self.memory()?.read_exact_at(out, from.addr() as u64);
        read.map_err(|_| Refused)
    }

    #[cold]
    pub(super) fn write(&self, to: *mut u8, data: &[u8]) -> Result<(), Refused> {
        let written = self.memory()?.write_all_at(data, to.addr() as u64);
        written.map_err(|_| Refused)
    }

    /// As [`Foreign::read`] to the parts of `spread`, by one call for all of them: a call for each
    /// costs more than the second copy.
    #[cold]
    pub(super) fn read_spread(
        &self,
        from: *mut u8,
        out: &mut [u8],
        spread: Spread,
    ) -> Result<(), Refused> {
        thread_local! {
            static TOGETHER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        TOGETHER.with_borrow_mut(|together| {
            together.resize(spread.bytes(), 0);
            self.read(from, together)?;
            spread.fill(out, |before, part| {
                let from = together.get(before..before + part.len()).ok_or(Refused)?;
                part.copy_from_slice(from);
                Ok(())
            })
        })
    }
}

impl MemoryTable {
    /// From now on regions of this client's domains are in `home`; without one they open nothing.
    pub(crate) fn set_home(&mut self, client: u64, home: Option<Arc<Foreign>>) {
        match home {
            Some(home) => self.homes.insert(client, home),
            None => self.homes.remove(&client),
        };
    }

    /// The memory of the client that has this domain.
    pub(super) fn home(&self, pd: PdIndex) -> Result<&Foreign, Refused> {
        let home = self.homes.get(&client_of(pd.serial()));
        home.map(|home| &**home).ok_or(Refused)
    }

    /// Calls `call` on eight bytes of a client's memory. Atomic for all requests, which one worker
    /// executes, and not for the client's own threads (`IBV_ATOMIC_HCA`).
    #[cold]
    pub(super) fn on_foreign_word<R>(
        &self,
        pd: PdIndex,
        at: *mut u8,
        call: impl FnOnce(&AtomicU64) -> R,
    ) -> Result<R, Refused> {
        let home = self.home(pd)?;
        let mut word = [0; 8];
        home.read(at, &mut word)?;
        let value = AtomicU64::new(u64::from_ne_bytes(word));
        let result = call(&value);
        let after = value.into_inner().to_ne_bytes();
        if after != word {
            home.write(at, &after)?;
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn memory_that_is_not_lent_is_not_looked_at() {
        let lent = Arc::new(AtomicBool::new(true));
        let is_lent = Arc::clone(&lent);
        let memory = File::options()
            .read(true)
            .write(true)
            .open("/proc/self/mem")
            .expect("our own");
        let foreign = Foreign::new(memory, Box::new(move || is_lent.load(Ordering::Relaxed)));
        let mut ours = [7];
        let at = ours.as_mut_ptr();
        let outcomes = || {
            [
                foreign.has(at.addr() as u64),
                foreign.read(at, &mut [0]).is_ok(),
                foreign.write(at, &[7]).is_ok(),
            ]
        };
        assert_eq!(outcomes(), [true; 3]);
        lent.store(false, Ordering::Relaxed);
        assert_eq!(outcomes(), [false; 3]);
    }
}
