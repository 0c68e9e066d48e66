//! What the daemon knows of one client.

use super::Log;
use super::connections::ClientCm;
use super::handshake::file_system;
use crate::control::{Control, MemoryControl, QueueControl, QueuePairControl};
use crate::core::Core;
use crate::index::{CqHandle, QpHandle, QpIndex};
use crate::memory::foreign::Foreign;
use crate::progress::eventfd::EventFd;
use crate::queues::async_event::{AsyncEvents, EventOwner};
use crate::queues::shared_page::SharedPage;
use crate::remote::protocol::{Event, Extent};
use crate::remote::socket::Socket;
use crate::{AsyncEvent, AttrMask, QpAttributes, QpState};
use airdma_shm::{Block, Doorbells, RingWatch};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files of shared memory of one client.
const CHUNKS_MAX: usize = 256;
/// Bytes of all of them: queues of thousands of queue pairs.
const CHUNK_BYTES_MAX: u64 = 4 << 30;
/// Objects of one client. They bound what its end takes.
pub(super) const QPS_MAX: usize = 16_384;
pub(super) const CQS_MAX: usize = 16_384;
pub(super) const KEYS_MAX: usize = 65_536;
/// How long connections of a client that is gone refuse requests: longer than peers are silent
/// between two retries.
const REFUSES_FOR: Duration = Duration::from_secs(10);

/// A client that was greeted, and is not served yet.
pub(super) struct Greeted {
    pub(super) number: u64,
    pub(super) process: libc::pid_t,
    pub(super) memory: Arc<Foreign>,
    pub(super) page: SharedPage,
    pub(super) doorbells: Doorbells,
    pub(super) chunks: Chunks,
    pub(super) events: Arc<AsyncEvents>,
    pub(super) event_socket: Socket,
    /// A packet makes the client's end readable. An eventfd has a state that the client can change,
    /// so that writing to it blocks.
    pub(super) wake_client: Socket,
    pub(super) wake_daemon: EventFd,
}

/// A client that is served.
pub(super) struct Client {
    pub(super) greeted: Greeted,
    pub(super) socket: Socket,
    pub(super) cqs: Vec<ClientCq>,
    pub(super) qps: HashMap<QpIndex, ClientQp>,
    /// Keys of regions and windows. The low bits of a window's key change with each bind.
    pub(super) keys: HashMap<u32, Key>,
    pub(super) cm: ClientCm,
    /// The event for which the socket has no room; the others wait behind it, in their queue.
    unsent: Option<Event>,
    /// Whether it was told that the client takes no events.
    told_unsent: bool,
}

/// A completion queue of a client.
pub(super) struct ClientCq {
    pub(super) handle: CqHandle,
    pub(super) ring: RingWatch,
    /// How many completions it had when the client was last woken for it.
    seen: u32,
}

/// Queue pairs and completion queues of a client that is gone.
pub(super) struct Orphans {
    /// The client's number, which is not given away meanwhile.
    pub(super) number: u64,
    /// When they end.
    pub(super) until: Instant,
    pub(super) qps: Vec<QpHandle>,
    cqs: Vec<CqHandle>,
}

/// A queue pair of a client, and the queues that it adds completions to.
pub(super) struct ClientQp {
    pub(super) handle: QpHandle,
    pub(super) cqs: [CqHandle; 2],
}

/// A key that the client got.
#[derive(Clone, Copy)]
pub(super) struct Key {
    pub(super) key: u32,
    pub(super) is_window: bool,
}

/// The files of a client's shared memory, each mapped once.
#[derive(Default)]
pub(super) struct Chunks(Vec<Chunk>);

struct Chunk {
    file: (u64, u64),
    memory: Block,
}

impl Greeted {
    pub(super) fn with_socket(self, socket: Socket, cm: ClientCm) -> Client {
        Client {
            greeted: self,
            cm,
            socket,
            cqs: Vec::new(),
            qps: HashMap::new(),
            keys: HashMap::new(),
            unsent: None,
            told_unsent: false,
        }
    }
}

impl Chunks {
    /// A block in a file that the client passed.
    pub(super) fn block(&mut self, file: OwnedFd, extent: Extent) -> io::Result<Block> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        let length = usize::try_from(extent.length).map_err(|_| invalid("block too long"))?;
        // Before what asks the file system, which may be the client's own.
        if !is_in_memory(&file) {
            return Err(invalid("shared memory that is no file in memory"));
        }
        let (name, bytes) = name_and_size(&file)?;
        if let Some(known) = self.0.iter().find(|chunk| chunk.file == name) {
            return known.memory.part(extent.offset, length);
        }
        if file_system(&file.as_fd())? != libc::TMPFS_MAGIC {
            return Err(invalid("shared memory that is no file in memory"));
        }
        // Those of which the worker has no part any more.
        self.0.retain(|chunk| chunk.memory.has_other_parts());
        let all: u64 = self.0.iter().map(|chunk| chunk.memory.len() as u64).sum();
        if self.0.len() >= CHUNKS_MAX || bytes.saturating_add(all) > CHUNK_BYTES_MAX {
            return Err(invalid("more shared memory than a client may have"));
        }
        let whole = usize::try_from(bytes).map_err(|_| invalid("shared memory too large"))?;
        let memory = Block::map(file, 0, whole)?;
        let block = memory.part(extent.offset, length)?;
        self.0.push(Chunk { file: name, memory });
        Ok(block)
    }
}

/// Whether a file can be sealed: those of tmpfs and of huge pages alone.
fn is_in_memory(file: &OwnedFd) -> bool {
    // SAFETY: plain integers.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) >= 0 }
}

/// What tells a file from all others, and its size.
fn name_and_size(file: &OwnedFd) -> io::Result<((u64, u64), u64)> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for the answer.
    if unsafe { libc::fstat(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded and has filled it.
    let found = unsafe { found.assume_init() };
    let size = u64::try_from(found.st_size).unwrap_or(0);
    Ok(((found.st_dev, found.st_ino), size))
}

impl ClientCq {
    pub(super) fn new(handle: CqHandle, ring: RingWatch) -> Self {
        let seen = ring.published();
        ClientCq { handle, ring, seen }
    }
}

impl Client {
    /// Hands the client's doorbells to the worker. Returns whether one was rung.
    pub(super) fn take_doorbells(&self, core: &Core) -> bool {
        if self.greeted.doorbells.is_empty() {
            return false;
        }
        self.greeted.doorbells.drain(|bit| {
            // A queue pair of another client is rung by that one.
            if self.qps.contains_key(&QpIndex::new(bit)) {
                core.doorbells.ring(bit);
            }
        });
        true
    }

    /// Wakes the client if it sleeps and a queue of its got completions. The caller has fenced.
    pub(super) fn wake_for_completions(&mut self) {
        if !self.greeted.page.awaits_completions() {
            return;
        }
        let mut has_news = false;
        for cq in &mut self.cqs {
            let published = cq.ring.published();
            // What the client has polled while it was awake is no reason to wake it.
            has_news |= published != cq.seen && cq.ring.has_unreleased();
            cq.seen = published;
        }
        if has_news {
            self.signal();
        }
    }

    fn signal(&self) {
        if self.greeted.page.must_signal() {
            // Where there is no room, the client's end is readable.
            self.greeted.wake_client.send(&[0], &[], false).ok();
        }
    }

    /// Sends the client what the worker reported of its objects. What the socket has no room for
    /// waits: the client may be stopped. False if its end of the socket is closed.
    pub(super) fn send_events(&mut self, log: &Log) -> bool {
        let mut sent = false;
        let mut is_open = true;
        while let Some(event) = self.unsent.take().or_else(|| self.next_event()) {
            match (self.greeted.event_socket).send(&event.encode(), &[], false) {
                Ok(()) => sent = true,
                Err(error) => {
                    self.unsent = Some(event);
                    is_open = error.kind() == io::ErrorKind::WouldBlock;
                    break;
                }
            }
        }
        if self.unsent.is_some() && is_open && !self.told_unsent {
            self.told_unsent = true;
            let number = self.greeted.number;
            log(&format!("client {number} takes no events: they wait"));
        }
        if sent {
            self.greeted.page.note_events();
            self.signal();
        }
        is_open
    }

    /// The next event that the client learns of.
    fn next_event(&mut self) -> Option<Event> {
        loop {
            let Some(next) = self.greeted.events.pop() else {
                return self.cm.next_event().map(Event::Cm);
            };
            return Some(match next {
                (_, AsyncEvent::Qp { number, event, .. }) => Event::Qp(number.get(), event),
                (EventOwner::Cq(serial), AsyncEvent::CqError { .. }) => Event::CqError(serial),
                (_, AsyncEvent::DeviceFatal) => Event::DeviceFatal,
                // The client follows the interface by itself.
                (
                    _,
                    AsyncEvent::CqError { .. }
                    | AsyncEvent::SrqLimitReached { .. }
                    | AsyncEvent::PortActive
                    | AsyncEvent::PortError
                    | AsyncEvent::GidChange,
                ) => continue,
            });
        }
    }

    /// Ends what the client has: its keys first, which open nothing from then on. Its reliable
    /// connections refuse what their peers request from now on, until [`Orphans::end`].
    pub(super) fn leave(mut self, core: &Core) -> Orphans {
        let ask = |control| core.ask(control).ok();
        core.control(|worker, _| {
            let memory = &mut worker.state.device.memory;
            memory.set_home(self.greeted.number, None);
        });
        self.cm.end(core);
        let (windows, regions): (Vec<Key>, Vec<Key>) = self
            .keys
            .drain()
            .map(|(_, key)| key)
            .partition(|key| key.is_window);
        for Key { key, .. } in windows {
            let call = MemoryControl::FreeWindow { key };
            ask(Control::Memory { call });
        }
        for Key { key, .. } in regions {
            let call = MemoryControl::Deregister { key };
            if ask(Control::Memory { call }).is_none() {
                let windows = MemoryControl::CloseWindows { key };
                ask(Control::Memory { call: windows });
                ask(Control::Memory { call });
            }
        }
        let qps: Vec<QpHandle> = self.qps.drain().map(|(_, qp)| qp.handle).collect();
        for &qp in &qps {
            let call = QueuePairControl::Modify {
                attributes: QpAttributes {
                    state: QpState::Error,
                    ..QpAttributes::default()
                },
                mask: AttrMask::STATE,
                source: None,
            };
            ask(Control::QueuePair { qp, call });
        }
        core.control(|worker, _| {
            for &qp in &qps {
                if let Ok(slot) = worker.state.qps.live(qp) {
                    slot.qp.orphan();
                }
            }
        });
        Orphans {
            number: self.greeted.number,
            until: Instant::now() + REFUSES_FOR,
            qps,
            cqs: self.cqs.drain(..).map(|cq| cq.handle).collect(),
        }
    }

    /// From now on the worker reaches the client's memory.
    pub(super) fn begin(&self, core: &Core) {
        core.add_listener(&self.greeted.events);
        core.control(|worker, _| {
            let memory = &mut worker.state.device.memory;
            memory.set_home(self.greeted.number, Some(Arc::clone(&self.greeted.memory)));
        });
    }
}

impl Orphans {
    /// Destroys them.
    pub(super) fn end(self, core: &Core) {
        let ask = |control| core.ask(control).ok();
        for qp in self.qps {
            for call in [
                QueuePairControl::DetachAll,
                QueuePairControl::Retire,
                QueuePairControl::Destroy,
            ] {
                ask(Control::QueuePair { qp, call });
            }
        }
        for cq in self.cqs {
            let call = QueueControl::DestroyCompletions { cq };
            ask(Control::Queue { call });
        }
    }
}
