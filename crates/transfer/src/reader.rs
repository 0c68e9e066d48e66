//! The thread that reads and seals chunks, as far ahead of the network as its memory allows.

use crate::SLOT_BYTES;
use crate::error::Error;
use airdma::{Device, Region};
use airdma_files::Source;
use airdma_files::session::{Sealer, TAG_BYTES};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::task::Waker;
use std::thread;

/// Chunks that are read, in flight, or both.
const CHUNKS: usize = 16;
/// Chunks whose memory is one allocation.
const AT_ONCE: usize = 4;

/// A chunk that is ready to be written.
pub(crate) struct Sealed {
    pub chunk: u64,
    pub region: Region,
    pub bytes: usize,
    /// Files that ended in it, and had grown since they were offered.
    pub grown: Vec<u32>,
}

/// The reader's thread. Dropping it ends the thread after the chunk that it reads.
pub(crate) struct Reader {
    sealed: Receiver<Sealed>,
    empty: Sender<Region>,
}

/// A reader's memory, prepared before anything can be read.
pub(crate) struct Prepared {
    memory: Memory,
    empty: Sender<Region>,
}

impl Prepared {
    /// Allocates memory for the first chunks.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let (empty, to_fill) = channel();
        let mut memory = Memory {
            device: device.clone(),
            empty: to_fill,
            new: Vec::new(),
            more: CHUNKS,
        };
        memory.allocate()?;
        Ok(Self { memory, empty })
    }

    /// Starts to read.
    pub fn start(self, source: Source, sealer: Sealer, waker: &Waker) -> Result<Reader, Error> {
        let Self { memory, empty } = self;
        let (filled, sealed) = channel();
        let waker = waker.clone();
        thread::Builder::new()
            .name("airdma-reader".into())
            .spawn(move || {
                read(source, sealer, memory, |chunk| {
                    let is_wanted = filled.send(chunk).is_ok();
                    waker.wake_by_ref();
                    is_wanted
                })
            })?;
        Ok(Reader { sealed, empty })
    }
}

impl Reader {
    /// The next chunk, if it is ready.
    pub fn take(&self) -> Option<Sealed> {
        self.sealed.try_recv().ok()
    }

    /// Returns the memory of a chunk.
    pub fn give_back(&self, region: Region) {
        // Fails if everything is read, and memory is no longer needed.
        let _ = self.empty.send(region);
    }
}

/// Memory of chunks. Allocated on demand, so that the first chunk need not wait for all.
struct Memory {
    device: Device,
    empty: Receiver<Region>,
    /// Memory that was not used yet.
    new: Vec<Region>,
    more: usize,
}

impl Memory {
    /// The next free memory; `None` once none will be returned.
    fn take(&mut self) -> Option<Region> {
        match self.empty.try_recv() {
            Ok(region) => return Some(region),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
        if self.new.is_empty() && self.more > 0 && self.allocate().is_err() {
            // The existing memory suffices, if more slowly.
            self.more = 0;
        }
        self.new.pop().or_else(|| self.empty.recv().ok())
    }

    fn allocate(&mut self) -> airdma::Result<()> {
        let mut rest = self.device.allocate_private(AT_ONCE * SLOT_BYTES)?;
        self.more -= AT_ONCE;
        for _ in 1..AT_ONCE {
            let (piece, others) = rest.split_at(SLOT_BYTES)?;
            self.new.push(piece);
            rest = others;
        }
        self.new.push(rest);
        Ok(())
    }
}

fn read(
    mut source: Source,
    mut sealer: Sealer,
    mut memory: Memory,
    hand_over: impl Fn(Sealed) -> bool,
) {
    while source.next() < source.plan().chunks()
        && let Some(mut region) = memory.take()
    {
        let chunk = source.next();
        let length = source.read(&mut region);
        sealer.seal(&mut region, length);
        let bytes = length + TAG_BYTES;
        if !hand_over(Sealed {
            chunk,
            region,
            bytes,
            grown: source.take_grown(),
        }) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolated::isolated;

    #[test]
    fn memory_is_allocated_on_demand_until_none_is_returned() {
        isolated(
            "reader::tests::memory_is_allocated_on_demand_until_none_is_returned",
            "",
            || {
                let (gives, empty) = channel();
                let mut memory = Memory {
                    device: Device::open("127.0.0.1").unwrap(),
                    empty,
                    new: Vec::new(),
                    more: 2 * AT_ONCE,
                };
                let first = memory.take().unwrap();
                assert_eq!((first.len(), memory.more), (SLOT_BYTES, AT_ONCE));
                gives.send(first).unwrap();
                assert!(memory.take().is_some());
                assert_eq!(
                    memory.new.len(),
                    AT_ONCE - 1,
                    "what is given back comes first"
                );
                for left in (0..2 * AT_ONCE - 1).rev() {
                    assert_eq!(memory.take().unwrap().len(), SLOT_BYTES);
                    assert_eq!(memory.new.len() + memory.more, left);
                }
                drop(gives);
                assert!(memory.take().is_none());
            },
        );
    }
}
