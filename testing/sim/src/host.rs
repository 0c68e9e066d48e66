//! The host that a queue pair sees during one call.

use airdma_transport::{
    Access, AtomicOperation, Bind, Completion, Counter, Host, LocalFault, QpEvent, Receive,
    RemoteAccess, RemoteFault, Slot,
};
use airdma_wire::Rkey;

use crate::memory::{Memory, Sge};
use crate::rings::Rings;

/// One queue pair's rings and its endpoint's memory.
#[derive(Debug)]
pub struct SimHost<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) rings: &'a mut Rings,
}

/// Cuts bytes `offset..offset + length` out of a list and calls `each` with every element and
/// where its bytes lie in the cut.
fn cut(
    sges: &[Sge],
    offset: u32,
    length: usize,
    mut each: impl FnMut(Sge, core::ops::Range<usize>) -> Result<(), LocalFault>,
) -> Result<(), LocalFault> {
    let mut skip = offset;
    let mut done = 0;
    for sge in sges {
        if skip >= sge.length {
            skip -= sge.length;
            continue;
        }
        let here = ((sge.length - skip) as usize).min(length - done);
        let part = Sge {
            key: sge.key,
            va: sge.va + u64::from(skip),
            length: here as u32,
        };
        each(part, done..done + here)?;
        done += here;
        skip = 0;
        if done == length {
            break;
        }
    }
    assert_eq!(done, length, "the transport went beyond the list");
    Ok(())
}

impl Host for SimHost<'_> {
    fn gather(&mut self, slot: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        let memory = &mut *self.memory;
        cut(
            self.rings.send_sges(slot),
            offset,
            out.len(),
            |sge, range| memory.read_local(sge, &mut out[range]),
        )
    }

    fn scatter(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let memory = &mut *self.memory;
        cut(
            self.rings.send_sges(slot),
            offset,
            data.len(),
            |sge, range| memory.write_local(sge, &data[range]),
        )
    }

    fn share_memory(&mut self, one: Slot, other: Slot) -> bool {
        let [one, other] = [one, other].map(|slot| self.rings.send_sges(slot));
        one.iter()
            .any(|one| other.iter().any(|other| one.overlaps(other)))
    }

    fn take_receive(&mut self) -> Option<Receive> {
        self.rings.take_receive()
    }

    fn take_shared_receive(&mut self, _srqn: u32) -> Result<Option<Receive>, RemoteFault> {
        Ok(self.rings.take_receive())
    }

    fn scatter_receive(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let memory = &mut *self.memory;
        cut(
            self.rings.receive_sges(slot),
            offset,
            data.len(),
            |sge, range| memory.write_local(sge, &data[range]),
        )
    }

    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), RemoteFault> {
        let sge = Sge {
            key: rkey.0,
            va,
            length,
        };
        self.memory.remote(sge, right_for(access)).map(|_| ())
    }

    fn read_remote(&mut self, rkey: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteFault> {
        let sge = Sge {
            key: rkey.0,
            va,
            length: out.len() as u32,
        };
        out.copy_from_slice(self.memory.remote(sge, Access::REMOTE_READ)?);
        Ok(())
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteFault> {
        let sge = Sge {
            key: rkey.0,
            va,
            length: data.len() as u32,
        };
        let bytes = self.memory.remote(sge, Access::REMOTE_WRITE)?;
        bytes.copy_from_slice(data);
        Ok(())
    }

    fn atomic(
        &mut self,
        rkey: Rkey,
        va: u64,
        operation: AtomicOperation,
    ) -> Result<u64, RemoteFault> {
        self.memory.atomic(rkey, va, operation)
    }

    fn write_atomic(&mut self, rkey: Rkey, va: u64, data: [u8; 8]) -> Result<(), RemoteFault> {
        self.write_remote(rkey, va, &data)
    }

    fn invalidate_local(&mut self, rkey: Rkey) -> Result<(), LocalFault> {
        if self.memory.invalidate(rkey.0) {
            Ok(())
        } else {
            Err(LocalFault)
        }
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), LocalFault> {
        self.memory.bind(bind)
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), RemoteFault> {
        if self.memory.invalidate(rkey.0) {
            Ok(())
        } else {
            Err(RemoteFault::Access)
        }
    }

    fn complete_send(&mut self, slot: Slot, completion: Option<Completion>) {
        self.rings.complete_send(slot, completion);
    }

    fn complete_receive(&mut self, slot: Slot, completion: Completion) {
        self.rings.complete_receive(slot, completion);
    }

    fn event(&mut self, event: QpEvent) {
        self.rings.events.push(event);
    }

    fn count(&mut self, counter: Counter) {
        self.rings.add_count(counter);
    }
}

fn right_for(access: RemoteAccess) -> Access {
    match access {
        RemoteAccess::Read => Access::REMOTE_READ,
        RemoteAccess::Write => Access::REMOTE_WRITE,
        RemoteAccess::Atomic => Access::REMOTE_ATOMIC,
        RemoteAccess::Flush { needs, .. } => needs,
    }
}
