//! The thread that reads and seals chunks, ahead of the network by as many as it has memory for.

use crate::SLOT_BYTES;
use crate::error::Error;
use airdma::{Device, Region};
use airdma_files::Source;
use airdma_files::session::{Sealer, TAG_BYTES};
use std::sync::mpsc::{Receiver, Sender, channel};
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
        for _ in 0..CHUNKS.min(source.plan().chunks() - source.next()) {
            // The other end is right here.
            let _ = empty.send(device.allocate(SLOT_BYTES)?);
        }
        let waker = waker.clone();
        thread::Builder::new()
            .name("airdma-reader".into())
            .spawn(move || {
                read(source, sealer, &to_fill, |chunk| {
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

fn read(
    mut source: Source,
    mut sealer: Sealer,
    to_fill: &Receiver<Region>,
    hand_over: impl Fn(Sealed) -> bool,
) {
    while source.next() < source.plan().chunks()
        && let Ok(mut region) = to_fill.recv()
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
