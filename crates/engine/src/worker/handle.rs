//! The requests of an application's objects ([`crate::control`]), which the worker handles.
//!
//! The handle of an object that is gone is an error, and keys are looked up. The other values are
//! as the objects checked them: where requests come from another process, those checks belong here.

mod connections;
mod queue_pair;
mod queues;

use super::Worker;
use crate::Error;
use crate::control::{Beside, Control, MemoryControl, Reply};
use crate::index::{PdIndex, QpHandle};
use crate::memory::GroupKey;
use airdma_transport::{Bind, Time};
use airdma_wire::Neighbour;

impl Worker {
    /// Handles a request.
    ///
    /// # Errors
    /// Those of the call that made the request.
    pub(crate) fn handle(
        &mut self,
        now: Time,
        control: Control<'_>,
        beside: Beside<'_>,
    ) -> Result<Reply, Error> {
        match control {
            Control::Flush => Ok(Reply::Done),
            Control::Memory { call } => self.handle_memory(now, call),
            Control::Queue { call } => self.handle_queue(call, beside),
            Control::CreateQueuePair { init } => self.create_queue_pair(now, &init, beside),
            Control::QueuePair { qp, call } => self.handle_queue_pair(now, qp, call, beside),
            Control::Cm { call } => self.handle_cm(now, call, beside),
            Control::Connection { call } => self.handle_connection(now, call, beside),
        }
    }

    fn handle_memory(&mut self, now: Time, call: MemoryControl) -> Result<Reply, Error> {
        let memory = &mut self.state.device.memory;
        match call {
            MemoryControl::Register {
                pd,
                address,
                length,
                iova,
                access,
                can_be_cut,
            } => {
                let key = memory.register(pd, address, length, iova, access)?;
                if can_be_cut {
                    memory.may_go(key);
                }
                Ok(Reply::Key { key })
            }
            MemoryControl::RegisterNull { pd } => {
                let key = memory.register_null(pd)?;
                Ok(Reply::Key { key })
            }
            MemoryControl::RegisterEmpty { pd } => {
                let key = memory.register_empty(pd)?;
                Ok(Reply::Key { key })
            }
            MemoryControl::Reregister {
                key,
                pd,
                change,
                can_be_cut,
            } => {
                memory.reregister(key, pd, &change)?;
                if can_be_cut {
                    memory.may_go(key);
                }
                Ok(Reply::Done)
            }
            MemoryControl::Deregister { key } => {
                let name = memory.group_key(key);
                memory.deregister(key)?;
                self.state.close_records(key, name, now);
                Ok(Reply::Done)
            }
            MemoryControl::Locate {
                pd,
                key,
                va,
                length,
                right,
            } => {
                let address = memory.address_of(pd, key, va, length, right);
                Ok(Reply::Address { address })
            }
            MemoryControl::AllocateWindow { pd, type_two } => {
                let key = memory.alloc_window(pd, type_two)?;
                Ok(Reply::Key { key })
            }
            MemoryControl::OpenWindow { qp, pd, bind } => self.open_window(qp, pd, &bind),
            MemoryControl::FreeWindow { key } => {
                memory.free_window(key);
                Ok(Reply::Done)
            }
            MemoryControl::RegisterRecords {
                pd,
                address,
                length,
                source,
                is_read,
                can_be_cut,
            } => {
                let source = source.map(|gid| Neighbour::from(gid.to_ip()));
                let key = if is_read {
                    memory.register_record_reads(pd, address, length, source)?
                } else {
                    memory.register_records(pd, address, length, source)?
                };
                if can_be_cut {
                    memory.may_go(key);
                }
                Ok(Reply::Key { key })
            }
            MemoryControl::RegisterGroupRecords {
                pd,
                address,
                length,
                source,
                group,
                key,
                can_be_cut,
            } => {
                let source = source.map(|gid| Neighbour::from(gid.to_ip()));
                let group = Neighbour::from(group.to_ip());
                let name = GroupKey { pd, group, key };
                let key = memory.register_group_records(name, address, length, source)?;
                if can_be_cut {
                    memory.may_go(key);
                }
                Ok(Reply::Key { key })
            }
            MemoryControl::CloseWindows { key } => {
                memory.close_windows(key);
                Ok(Reply::Done)
            }
        }
    }

    fn open_window(&mut self, qp: QpHandle, pd: PdIndex, bind: &Bind) -> Result<Reply, Error> {
        if self.state.qps.live(qp)?.side.pd != pd {
            return Err(Error::Invalid(
                "the queue pair belongs to another protection domain",
            ));
        }
        let bound = self.state.device.memory.bind(pd, qp.serial, bind);
        bound.map_err(|_| Error::Invalid("the region does not hold such a window"))?;
        Ok(Reply::Done)
    }
}

#[cfg(test)]
mod tests;
