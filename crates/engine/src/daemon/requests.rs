//! The requests of a client: decoded, checked against what the client has, and handled by the
//! worker as those of this process are.
//!
//! An object belongs to the client whose number its serial number carries
//! ([`client_of`]), and the worker finds an object by place and serial number
//! together: so a handle that a client makes up finds its own objects or none. Keys have no serial
//! number, and are looked up in the client's list. What the objects of a process check before they
//! ask is checked here again, with this process's own view of addresses and limits.

use super::client::{CQS_MAX, Client, ClientCq, ClientQp, KEYS_MAX, Key, QPS_MAX};
use crate::control::{
    Beside, Control, MemoryControl, NewCompletionQueue, NewQueuePair, QueueControl,
    QueuePairControl, QueuePairInit, ReceivesFrom, Reply, WRONG_BESIDE, WRONG_REPLY, encoding,
};
use crate::core::Core;
use crate::index::{CqHandle, DOORBELLS, PdIndex, QpHandle, Serial, client_of};
use crate::objects::qp::check_attributes;
use crate::remote::protocol::{self, Extent};
use crate::{AttrMask, Error, Gid, LIMITS, QpAttributes, QpType};
use airdma_shm::{Block, Cqe, RecvWqe, RingConsumer, RingProducer, RingWatch, SendWqe};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The low bits of a key, which a bind of a window chooses.
const CHOSEN_BITS: u32 = 8;

/// Another object's, or none.
pub(super) const NOT_YOURS: Error = Error::Gone("an object of the request");
const NOT_CARRIED: Error = Error::Unsupported("this request to a daemon");

/// Blocks that came beside a request.
struct Blocks {
    extents: VecDeque<Extent>,
    files: VecDeque<OwnedFd>,
}

impl Client {
    /// Handles one packet of the client's. `None` if it is no request: the connection ends.
    pub(super) fn handle(
        &mut self,
        core: &Arc<Core>,
        packet: &[u8],
        files: Vec<OwnedFd>,
    ) -> Option<Reply> {
        let (extents, message) = protocol::take_blocks(packet)?;
        let control = encoding::decode::<Control<'_>>(message).ok()?;
        if files.len() < extents.len() {
            return Some(Reply::from(Error::System {
                message: "the daemon has no descriptors left".to_owned(),
                errno: libc::EMFILE,
            }));
        }
        let blocks = Blocks {
            extents: extents.into(),
            files: files.into(),
        };
        // What was posted before the request is taken before it.
        self.take_doorbells(core);
        let reply = self.answer(core, control, blocks);
        Some(reply.unwrap_or_else(Reply::from))
    }

    fn answer(
        &mut self,
        core: &Arc<Core>,
        control: Control<'_>,
        blocks: Blocks,
    ) -> Result<Reply, Error> {
        match control {
            Control::Flush => core.ask(control),
            Control::Memory { call } => self.memory(core, call),
            Control::Queue { call } => self.queue(core, call, blocks),
            Control::CreateQueuePair { init } => self.create_queue_pair(core, init, blocks),
            Control::QueuePair { qp, call } => self.queue_pair(core, qp, call),
            Control::Cm { call } => self.cm(core, call),
            Control::Connection { call } => self.connection(core, call),
        }
    }

    fn memory(&mut self, core: &Core, call: MemoryControl) -> Result<Reply, Error> {
        let mut is_window = false;
        match call {
            MemoryControl::Register { pd, address, .. } => {
                self.check_new_key(pd)?;
                self.check_memory(address)?;
            }
            MemoryControl::RegisterNull { pd } | MemoryControl::RegisterEmpty { pd } => {
                self.check_new_key(pd)?;
            }
            MemoryControl::AllocateWindow { pd, .. } => {
                self.check_new_key(pd)?;
                is_window = true;
            }
            MemoryControl::Reregister {
                key, pd, change, ..
            } => {
                self.check_region(key)?;
                self.check_domain(pd)?;
                if let Some((address, _)) = change.translation {
                    self.check_memory(address)?;
                }
            }
            MemoryControl::Locate { pd, .. } => self.check_domain(pd)?,
            MemoryControl::OpenWindow { qp, pd, .. } => {
                self.check_domain(pd)?;
                self.check_serial(qp.serial)?;
            }
            MemoryControl::Deregister { key } | MemoryControl::CloseWindows { key } => {
                self.check_region(key)?;
            }
            MemoryControl::FreeWindow { key } => self.check_window(key)?,
            MemoryControl::RegisterRecords { .. } | MemoryControl::RegisterGroupRecords { .. } => {
                return Err(NOT_CARRIED);
            }
        }
        let reply = core.ask(Control::Memory { call })?;
        match (&reply, call) {
            (&Reply::Key { key }, _) => {
                self.keys.insert(key >> CHOSEN_BITS, Key { key, is_window });
            }
            (
                Reply::Done,
                MemoryControl::Deregister { key } | MemoryControl::FreeWindow { key },
            ) => {
                self.keys.remove(&(key >> CHOSEN_BITS));
            }
            _ => {}
        }
        Ok(reply)
    }

    fn queue(
        &mut self,
        core: &Core,
        call: QueueControl,
        mut blocks: Blocks,
    ) -> Result<Reply, Error> {
        match call {
            QueueControl::CreateCompletions { serial, .. } => {
                self.check_serial(serial)?;
                if self.cqs.len() >= CQS_MAX {
                    return Err(Error::NoMemory("a client of a daemon has no more queues"));
                }
                let block = self.next_block(&mut blocks)?;
                let strides = Cqe::STRIDE..=Cqe::STRIDE;
                let ring = producer(&block, strides, LIMITS.max_cqe)?;
                let watch = RingWatch::attach(block).map_err(|_| WRONG_BESIDE)?;
                let mut made = None;
                let beside = Beside::CompletionQueue(NewCompletionQueue {
                    ring,
                    // The client raises the events of its channel by itself.
                    channel: None,
                    events: Arc::clone(&self.greeted.events),
                    made: &mut made,
                });
                let reply = core.ask_with(Control::Queue { call }, beside)?;
                let Reply::CompletionQueue { index } = reply else {
                    return Err(WRONG_REPLY);
                };
                let handle = CqHandle { index, serial };
                self.cqs.push(ClientCq::new(handle, watch));
                Ok(reply)
            }
            QueueControl::PurgeCompletions { cq, .. } => {
                // The client waits for the reply, and uses its end of the ring no more.
                let ring = &self.find_cq(cq)?.ring;
                let shape = (ring.capacity(), ring.stride());
                let mut consumer = consumer(ring.block(), shape)?;
                let beside = Beside::Completions(&mut consumer);
                core.ask_with(Control::Queue { call }, beside)
            }
            QueueControl::DestroyCompletions { cq } => {
                self.find_cq(cq)?;
                // Its place would be that of the next queue, perhaps another client's.
                if self.qps.values().any(|qp| qp.cqs.contains(&cq)) {
                    return Err(Error::Busy("the completion queue"));
                }
                let reply = core.ask(Control::Queue { call })?;
                self.cqs.retain(|known| known.handle != cq);
                Ok(reply)
            }
            QueueControl::ResizeCompletions { .. }
            | QueueControl::CreateReceives { .. }
            | QueueControl::LimitReceives { .. }
            | QueueControl::ResizeReceives { .. }
            | QueueControl::DestroyReceives { .. } => Err(NOT_CARRIED),
        }
    }

    fn create_queue_pair(
        &mut self,
        core: &Arc<Core>,
        init: QueuePairInit,
        mut blocks: Blocks,
    ) -> Result<Reply, Error> {
        let is_carried = matches!(init.qp_type, QpType::Rc | QpType::Uc | QpType::Ud);
        if !is_carried || init.receives != ReceivesFrom::Own {
            return Err(NOT_CARRIED);
        }
        self.check_serial(init.serial)?;
        self.check_domain(init.pd)?;
        let (Some(send_cq), Some(recv_cq)) = (init.send_cq, init.recv_cq) else {
            return Err(NOT_YOURS);
        };
        let cqs = [send_cq, recv_cq];
        for cq in cqs {
            self.find_cq(cq)?;
        }
        init.caps.check()?;
        if self.qps.len() >= QPS_MAX {
            return Err(Error::NoMemory(
                "a client of a daemon has no more queue pairs",
            ));
        }
        let (send, recv) = (self.next_block(&mut blocks)?, self.next_block(&mut blocks)?);
        let strides = SendWqe::stride(0, 0)..=SendWqe::stride(LIMITS.max_sge, LIMITS.max_inline);
        let send = ends(&send, strides, LIMITS.max_qp_wr)?;
        let strides = RecvWqe::stride(0)..=RecvWqe::stride(LIMITS.max_sge);
        let recv = ends(&recv, strides, LIMITS.max_qp_wr)?;
        core.bind()?;
        let init = QueuePairInit {
            port_mtu: core.current().path_mtu,
            ..init
        };
        let mut made = None;
        let beside = Beside::QueuePair(NewQueuePair {
            send,
            recv,
            events: Arc::clone(&self.greeted.events),
            raw: None,
            made: &mut made,
        });
        let reply = core.ask_with(Control::CreateQueuePair { init }, beside)?;
        let Reply::QueuePair { index, .. } = reply else {
            return Err(WRONG_REPLY);
        };
        let serial = init.serial;
        let qp = QpHandle { index, serial };
        if index.get() >= DOORBELLS {
            // It would share its doorbell, perhaps with another client's.
            let call = QueuePairControl::Destroy;
            core.ask(Control::QueuePair { qp, call })?;
            return Err(Error::NoMemory("a daemon has no more queue pairs"));
        }
        self.qps.insert(index, ClientQp { handle: qp, cqs });
        Ok(reply)
    }

    fn queue_pair(
        &mut self,
        core: &Core,
        qp: QpHandle,
        call: QueuePairControl,
    ) -> Result<Reply, Error> {
        self.check_serial(qp.serial)?;
        let call = match call {
            QueuePairControl::Modify {
                attributes, mask, ..
            } => {
                check_attributes(core, &attributes, mask)?;
                let source = source_of(core, &attributes, mask)?;
                QueuePairControl::Modify {
                    attributes,
                    mask,
                    source,
                }
            }
            QueuePairControl::Query
            | QueuePairControl::Seal
            | QueuePairControl::QueryBinding
            | QueuePairControl::IsFinished
            | QueuePairControl::Attach { .. }
            | QueuePairControl::Detach { .. }
            | QueuePairControl::IsAttached
            | QueuePairControl::DetachAll
            | QueuePairControl::Retire
            | QueuePairControl::RepeatLastAnswer
            | QueuePairControl::Destroy
            | QueuePairControl::LimitRate { .. } => call,
            QueuePairControl::NoteApplicationBuffer
            | QueuePairControl::AttachCounter { .. }
            | QueuePairControl::EnableRecords { .. }
            | QueuePairControl::CloseRecord { .. }
            | QueuePairControl::EnableReliable { .. }
            | QueuePairControl::ReadRecord { .. } => return Err(NOT_CARRIED),
        };
        let reply = core.ask(Control::QueuePair { qp, call })?;
        if call == QueuePairControl::Destroy {
            self.qps.remove(&qp.index);
        }
        Ok(reply)
    }

    fn check_serial(&self, serial: Serial) -> Result<(), Error> {
        if client_of(serial) == self.greeted.number {
            Ok(())
        } else {
            Err(NOT_YOURS)
        }
    }

    fn check_domain(&self, pd: PdIndex) -> Result<(), Error> {
        self.check_serial(pd.serial())
    }

    fn check_region(&self, key: u32) -> Result<(), Error> {
        let known = self.keys.get(&(key >> CHOSEN_BITS));
        let is_it = known.is_some_and(|known| !known.is_window && known.key == key);
        is_it.then_some(()).ok_or(NOT_YOURS)
    }

    /// By any key that the window has had.
    fn check_window(&self, key: u32) -> Result<(), Error> {
        let known = self.keys.get(&(key >> CHOSEN_BITS));
        let is_it = known.is_some_and(|known| known.is_window);
        is_it.then_some(()).ok_or(NOT_YOURS)
    }

    fn check_new_key(&self, pd: PdIndex) -> Result<(), Error> {
        if self.keys.len() >= KEYS_MAX {
            return Err(Error::NoMemory("a client of a daemon has no more keys"));
        }
        self.check_domain(pd)
    }

    /// Whether the daemon can read the memory at all. The client has checked pages and rights.
    fn check_memory(&self, address: u64) -> Result<(), Error> {
        // An implicit region begins where nothing is mapped.
        if address == 0 || self.greeted.memory.has(address) {
            return Ok(());
        }
        Err(Error::System {
            message: "the daemon cannot read the memory to register (a mapping of a device, or a \
                      system that forbids /proc/PID/mem)"
                .to_owned(),
            errno: libc::EFAULT,
        })
    }

    fn find_cq(&self, cq: CqHandle) -> Result<&ClientCq, Error> {
        let mut cqs = self.cqs.iter();
        cqs.find(|known| known.handle == cq).ok_or(NOT_YOURS)
    }

    /// The next block beside the request, mapped.
    fn next_block(&mut self, blocks: &mut Blocks) -> Result<Arc<Block>, Error> {
        let next = blocks.extents.pop_front().zip(blocks.files.pop_front());
        let (extent, file) = next.ok_or(WRONG_BESIDE)?;
        let block = self.greeted.chunks.block(file, extent);
        let block = block.map_err(|error| Error::system("shared memory of a client", &error))?;
        Ok(Arc::new(block))
    }
}

/// Bytes of a slot: room for what the worker writes, and no more than it would walk for a packet.
type Strides = RangeInclusive<u32>;

/// Both ends of a ring, as the worker has them.
fn ends(
    block: &Arc<Block>,
    strides: Strides,
    slots: u32,
) -> Result<(RingProducer, RingConsumer), Error> {
    let producer = producer(block, strides, slots)?;
    let consumer = consumer(block, (producer.capacity(), producer.stride()))?;
    Ok((producer, consumer))
}

fn producer(block: &Arc<Block>, strides: Strides, slots: u32) -> Result<RingProducer, Error> {
    let ring = RingProducer::attach(Arc::clone(block)).map_err(|_| WRONG_BESIDE)?;
    if !strides.contains(&ring.stride()) || ring.capacity() > slots.next_power_of_two() {
        return Err(WRONG_BESIDE);
    }
    Ok(ring)
}

/// The consumer's end of a ring with this number of slots and this stride: the client may have
/// changed what the ring says of itself.
fn consumer(block: &Arc<Block>, shape: (u32, u32)) -> Result<RingConsumer, Error> {
    let ring = RingConsumer::attach(Arc::clone(block)).map_err(|_| WRONG_BESIDE)?;
    if (ring.capacity(), ring.stride()) != shape {
        return Err(WRONG_BESIDE);
    }
    Ok(ring)
}

/// The address that the client's source index stands for here.
fn source_of(
    core: &Core,
    attributes: &QpAttributes,
    mask: AttrMask,
) -> Result<Option<(Gid, bool)>, Error> {
    let local = core.address(attributes.path.sgid_index);
    if mask.contains(AttrMask::AV) && local.is_none() {
        return Err(Error::Invalid("the source GID's address is gone"));
    }
    let on_link = |local| core.is_on_link(local, &attributes.path, mask);
    Ok(local.map(|local| (Gid::from(local), on_link(local))))
}

/// Whether a local address is one of the device's.
pub(super) fn source_is_known(core: &Core, local: Gid) -> Result<(), Error> {
    let gids = core.current().gids;
    let is_ours = gids.iter().any(|entry| entry.gid == local);
    is_ours
        .then_some(())
        .ok_or(Error::Invalid("the source address is not the device's"))
}
