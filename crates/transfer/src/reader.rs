//! The thread that reads and seals chunks, ahead of the network by as many as it has memory for.

use crate::SLOT_BYTES;
use crate::error::Error;
use airdma::{Device, Region};
use airdma_files::Source;
use airdma_files::session::{Sealer, TAG_BYTES};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::task::Waker;
use std::thread;

/// Chunks that are read, under way, or both.
const CHUNKS: u64 = 16;

/// A chunk that can be written.
pub(crate) struct Sealed {
    pub chunk: u64,
    pub region: Region,
    pub bytes: usize,
}

/// Ends, when it is dropped, once what it reads is read.
pub(crate) struct Reader {
    sealed: Receiver<Sealed>,
    empty: Sender<Region>,
}

impl Reader {
    /// Begins to read.
    pub fn start(
        source: Source,
        sealer: Sealer,
        device: &Device,
        waker: &Waker,
    ) -> Result<Self, Error> {
        let (empty, to_fill) = channel();
        let (filled, sealed) = channel();
        // The other end is right here.
        let _ = empty.send(device.allocate(SLOT_BYTES)?);
        let memory = Memory {
            device: device.clone(),
            empty: to_fill,
            more: CHUNKS - 1,
        };
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
        Ok(Self { sealed, empty })
    }

    /// The next chunk, if it is there.
    pub fn take(&self) -> Option<Sealed> {
        self.sealed.try_recv().ok()
    }

    /// Gives back the memory of one.
    pub fn give_back(&self, region: Region) {
        // All is read where nobody takes it.
        let _ = self.empty.send(region);
    }
}

/// What chunks are read into. Each piece is allocated when it is wanted first, so that the first chunk need not wait for all.
struct Memory {
    device: Device,
    empty: Receiver<Region>,
    more: u64,
}

impl Memory {
    /// None when nobody gives any back.
    fn take(&mut self) -> Option<Region> {
        match self.empty.try_recv() {
            Ok(region) => return Some(region),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
        if self.more > 0 {
            self.more -= 1;
            if let Ok(region) = self.device.allocate(SLOT_BYTES) {
                return Some(region);
            }
            // There is one at least, which does, if more slowly.
            self.more = 0;
        }
        self.empty.recv().ok()
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
    fn memory_is_allocated_as_it_is_wanted_and_not_once_nobody_gives_any_back() {
        isolated(
            "reader::tests::memory_is_allocated_as_it_is_wanted_and_not_once_nobody_gives_any_back",
            "",
            || {
                let (gives, empty) = channel();
                let mut memory = Memory {
                    device: Device::open("127.0.0.1").unwrap(),
                    empty,
                    more: 2,
                };
                let first = memory.take().unwrap();
                assert_eq!((first.len(), memory.more), (SLOT_BYTES, 1));
                gives.send(first).unwrap();
                assert!(memory.take().is_some());
                assert_eq!(memory.more, 1, "what is given back comes first");
                drop(gives);
                assert!(memory.take().is_none());
            },
        );
    }
}
