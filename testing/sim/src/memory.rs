//! Registered memory: vectors of bytes with a key, an address range and access rights.

use core::ops::Range;

use airdma_transport::{Access, AtomicOperation, Bind, LocalFault, RemoteFault};
use airdma_wire::Rkey;

/// The caller's name for registered memory. Local and remote key are the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Key.
    pub key: u32,
    /// First address.
    pub va: u64,
    /// Bytes.
    pub length: u32,
}

/// One element of a scatter or gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Key of the memory.
    pub key: u32,
    /// First address.
    pub va: u64,
    /// Bytes.
    pub length: u32,
}

impl Sge {
    /// Whether both name some of the same addresses.
    pub(crate) fn overlaps(&self, other: &Sge) -> bool {
        self.va < other.va.saturating_add(other.length.into())
            && other.va < self.va.saturating_add(self.length.into())
    }
}

impl Region {
    /// The key as a peer names it.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }

    /// The whole region as a list element.
    pub fn all(&self) -> Sge {
        self.part(0..self.length)
    }

    /// Bytes `range` of the region as a list element; they may lie outside.
    pub fn part(&self, range: Range<u32>) -> Sge {
        Sge {
            key: self.key,
            va: self.va + u64::from(range.start),
            length: range.end - range.start,
        }
    }
}

/// A memory window: a key of its own to a part of a region.
#[derive(Debug)]
struct Window {
    key: Rkey,
    opens: Option<Bind>,
}

#[derive(Debug)]
struct Registered {
    region: Region,
    access: Access,
    valid: bool,
    bytes: Vec<u8>,
}

/// Rights, one of which a remote access to memory needs.
const REMOTE: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

/// Distance between the first addresses of two regions, so that none touches the next.
const SPACING: u64 = 1 << 32;

/// All memory of one endpoint: one protection domain.
#[derive(Debug, Default)]
pub struct Memory {
    registered: Vec<Registered>,
    windows: Vec<Window>,
}

impl Memory {
    /// Registers a copy of `bytes`. `noise` makes the key hard to guess: keys of different
    /// endpoints and regions must not be equal by accident.
    pub(crate) fn register(&mut self, bytes: &[u8], access: Access, noise: u64) -> Region {
        let index = self.registered.len() as u32;
        let region = Region {
            key: (noise as u32 & 0xffff_ff00) | index,
            va: SPACING * u64::from(index + 1) + (noise >> 32 & 0xff) * 8,
            length: u32::try_from(bytes.len()).expect("regions of a simulation are small"),
        };
        assert!(index < 0x100, "the key has eight bits for the index");
        self.registered.push(Registered {
            region,
            access,
            valid: true,
            bytes: bytes.to_vec(),
        });
        region
    }

    /// Current bytes of a region, valid or not.
    pub fn bytes(&self, region: &Region) -> &[u8] {
        &self.registered[index_of(region.key)].bytes
    }

    /// Bytes of a region, for changes as by the application.
    pub fn bytes_mut(&mut self, region: &Region) -> &mut [u8] {
        &mut self.registered[index_of(region.key)].bytes
    }

    /// Whether the key is still valid.
    pub fn is_valid(&self, key: u32) -> bool {
        self.registered
            .get(index_of(key))
            .is_some_and(|found| found.region.key == key && found.valid)
    }

    pub(crate) fn create_window(&mut self, noise: u64) -> Rkey {
        let key = Rkey(noise as u32);
        self.windows.push(Window { key, opens: None });
        key
    }

    pub(crate) fn window(&self, key: Rkey) -> Option<Bind> {
        let found = self.windows.iter().find(|window| window.key == key);
        found.and_then(|window| window.opens)
    }

    /// Binds a window under a new key. The old one must be its current key: a repeated bind fails.
    pub(crate) fn bind(&mut self, bind: &Bind) -> Result<(), LocalFault> {
        let part = Sge {
            key: bind.region.0,
            va: bind.va,
            length: u32::try_from(bind.length).map_err(|_| LocalFault)?,
        };
        self.range(part, Access::MW_BIND).ok_or(LocalFault)?;
        let windows = &mut self.windows;
        let window = windows.iter_mut().find(|window| window.key == bind.window);
        let window = window.ok_or(LocalFault)?;
        if bind.new_key.0 >> 8 != bind.window.0 >> 8 || bind.new_key == bind.window {
            return Err(LocalFault);
        }
        *window = Window {
            key: bind.new_key,
            opens: Some(*bind),
        };
        Ok(())
    }

    /// Invalidates a key; false if there was none.
    pub(crate) fn invalidate(&mut self, key: u32) -> bool {
        let mut windows = self.windows.iter_mut();
        if let Some(window) = windows.find(|window| window.key.0 == key) {
            return window.opens.take().is_some();
        }
        let was_valid = self.is_valid(key);
        if was_valid {
            self.registered[index_of(key)].valid = false;
        }
        was_valid
    }

    fn range(&mut self, sge: Sge, needs: Access) -> Option<&mut [u8]> {
        if !self.is_valid(sge.key) {
            return None;
        }
        let found = &mut self.registered[index_of(sge.key)];
        if !found.access.contains(needs) {
            return None;
        }
        let start = usize::try_from(sge.va.checked_sub(found.region.va)?).ok()?;
        let end = start.checked_add(sge.length as usize)?;
        found.bytes.get_mut(start..end)
    }

    pub(crate) fn read_local(&mut self, sge: Sge, out: &mut [u8]) -> Result<(), LocalFault> {
        let bytes = self.range(sge, Access::empty()).ok_or(LocalFault)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn write_local(&mut self, sge: Sge, data: &[u8]) -> Result<(), LocalFault> {
        let bytes = self.range(sge, Access::LOCAL_WRITE).ok_or(LocalFault)?;
        bytes.copy_from_slice(data);
        Ok(())
    }

    /// The bytes of a remote access that needs `needs`.
    pub(crate) fn remote(&mut self, sge: Sge, needs: Access) -> Result<&mut [u8], RemoteFault> {
        debug_assert!(REMOTE.contains(needs));
        let Some(bind) = self.window(Rkey(sge.key)) else {
            return self.range(sge, needs).ok_or(RemoteFault::Access);
        };
        let end = u64::from(sge.length).checked_add(sge.va.wrapping_sub(bind.va));
        if !bind.access.contains(needs) || end.is_none_or(|end| end > bind.length) {
            return Err(RemoteFault::Access);
        }
        let part = Sge {
            key: bind.region.0,
            ..sge
        };
        self.range(part, Access::MW_BIND).ok_or(RemoteFault::Access)
    }

    pub(crate) fn atomic(
        &mut self,
        rkey: Rkey,
        va: u64,
        operation: AtomicOperation,
    ) -> Result<u64, RemoteFault> {
        let sge = Sge {
            key: rkey.0,
            va,
            length: 8,
        };
        let bytes = self.remote(sge, Access::REMOTE_ATOMIC)?;
        if !va.is_multiple_of(8) {
            return Err(RemoteFault::Misaligned);
        }
        let original = u64::from_ne_bytes(bytes.try_into().expect("eight bytes were asked for"));
        let value = match operation {
            AtomicOperation::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOperation::CompareSwap { .. } => original,
            AtomicOperation::FetchAdd { add } => original.wrapping_add(add),
        };
        bytes.copy_from_slice(&value.to_ne_bytes());
        Ok(original)
    }
}

fn index_of(key: u32) -> usize {
    (key & 0xff) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_needs_the_key_the_bounds_and_the_right() {
        let mut memory = Memory::default();
        let region = memory.register(&[1, 2, 3, 4], Access::REMOTE_READ, 0x1234_5678_9abc_def0);
        let part = region.part(1..3);
        assert_eq!(
            memory.remote(part, Access::REMOTE_READ),
            Ok(&mut [2, 3][..])
        );
        assert!(memory.remote(part, Access::REMOTE_WRITE).is_err());
        assert!(
            memory
                .remote(region.part(3..5), Access::REMOTE_READ)
                .is_err()
        );
        let before = Sge {
            va: region.va - 1,
            ..part
        };
        assert!(memory.remote(before, Access::REMOTE_READ).is_err());
        let stale = Sge {
            key: region.key ^ 0x100,
            ..part
        };
        assert!(memory.remote(stale, Access::REMOTE_READ).is_err());
        assert!(memory.write_local(part, &[0, 0]).is_err());
        assert!(memory.invalidate(region.key));
        assert!(!memory.invalidate(region.key));
        assert!(memory.remote(part, Access::REMOTE_READ).is_err());
        assert_eq!(memory.bytes(&region), [1, 2, 3, 4]);
    }
}
