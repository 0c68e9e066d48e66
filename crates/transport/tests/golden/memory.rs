//! The memory of one end, by address. What was never written is zero.

use std::collections::BTreeMap;

use airdma_wire::Rkey;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory(BTreeMap<u64, u8>);

impl Memory {
    pub fn write(&mut self, va: u64, bytes: &[u8]) {
        for (va, byte) in (va..).zip(bytes) {
            match byte {
                0 => self.0.remove(&va),
                byte => self.0.insert(va, *byte),
            };
        }
    }

    pub fn read(&self, va: u64, length: usize) -> Vec<u8> {
        let byte = |va| self.0.get(&va).copied().unwrap_or(0);
        (va..).take(length).map(byte).collect()
    }

    pub fn read_u64(&self, va: u64) -> u64 {
        u64::from_ne_bytes(self.read(va, 8).try_into().unwrap())
    }
}

/// Memory that the other end may touch.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub va: u64,
    pub length: u64,
    pub rkey: Rkey,
}

impl Region {
    pub fn holds(&self, rkey: Rkey, va: u64, length: u64) -> bool {
        let starts = va.checked_sub(self.va);
        rkey == self.rkey && starts.is_some_and(|start| start + length <= self.length)
    }
}
