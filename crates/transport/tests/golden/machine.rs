//! The host of the queue pair under test: the memory and the receives of its end.

use std::collections::{BTreeMap, VecDeque};

use airdma_transport::{
    AtomicOperation, Bind, Completion, Counter, Host, LocalFault, QpEvent, Receive, RemoteAccess,
    RemoteFault, Slot,
};
use airdma_wire::Rkey;

use crate::memory::{Memory, Region};

pub struct Machine {
    pub memory: Memory,
    pub regions: Vec<Region>,
    /// By slot: what a request sends, or the place for what it brings.
    pub messages: BTreeMap<u32, Vec<u8>>,
    pub receives: VecDeque<Receive>,
    /// By slot: where a receive lies in the memory.
    pub receive_at: BTreeMap<u32, u64>,
    pub sent: Vec<Completion>,
    pub received: Vec<Completion>,
}

impl Machine {
    fn check(&self, rkey: Rkey, va: u64, length: usize) -> Result<(), RemoteFault> {
        let holds = |region: &Region| region.holds(rkey, va, length as u64);
        if self.regions.iter().any(holds) {
            Ok(())
        } else {
            Err(RemoteFault::Access)
        }
    }
}

impl Host for Machine {
    fn gather(&mut self, slot: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        out.copy_from_slice(&self.messages[&slot.0][offset as usize..][..out.len()]);
        Ok(())
    }

    fn scatter(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let message = self.messages.get_mut(&slot.0).unwrap();
        message[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn share_memory(&mut self, _: Slot, _: Slot) -> bool {
        false
    }

    fn take_receive(&mut self) -> Option<Receive> {
        self.receives.pop_front()
    }

    fn take_shared_receive(&mut self, _: u32) -> Result<Option<Receive>, RemoteFault> {
        Err(RemoteFault::Access)
    }

    fn scatter_receive(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let va = self.receive_at[&slot.0] + u64::from(offset);
        self.memory.write(va, data);
        Ok(())
    }

    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        _: RemoteAccess,
    ) -> Result<(), RemoteFault> {
        self.check(rkey, va, length as usize)
    }

    fn read_remote(&mut self, rkey: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteFault> {
        self.check(rkey, va, out.len())?;
        out.copy_from_slice(&self.memory.read(va, out.len()));
        Ok(())
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteFault> {
        self.check(rkey, va, data.len())?;
        self.memory.write(va, data);
        Ok(())
    }

    fn atomic(
        &mut self,
        rkey: Rkey,
        va: u64,
        operation: AtomicOperation,
    ) -> Result<u64, RemoteFault> {
        self.check(rkey, va, 8)?;
        let original = self.memory.read_u64(va);
        let value = match operation {
            AtomicOperation::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOperation::CompareSwap { .. } => original,
            AtomicOperation::FetchAdd { add } => original.wrapping_add(add),
        };
        self.memory.write(va, &value.to_ne_bytes());
        Ok(original)
    }

    fn write_atomic(&mut self, rkey: Rkey, va: u64, data: [u8; 8]) -> Result<(), RemoteFault> {
        self.write_remote(rkey, va, &data)
    }

    fn invalidate(&mut self, _: Rkey) -> Result<(), RemoteFault> {
        Err(RemoteFault::Access)
    }

    fn invalidate_local(&mut self, _: Rkey) -> Result<(), LocalFault> {
        Err(LocalFault)
    }

    fn bind(&mut self, _: &Bind) -> Result<(), LocalFault> {
        Err(LocalFault)
    }

    fn complete_send(&mut self, _: Slot, completion: Option<Completion>) {
        self.sent.extend(completion);
    }

    fn complete_receive(&mut self, _: Slot, completion: Completion) {
        self.received.push(completion);
    }

    fn event(&mut self, _: QpEvent) {}

    fn count(&mut self, _: Counter) {}
}
