//! Blocks of a receiver: lent to the program with a frame, or offered to the sender.

use crate::credit::{self, CREDIT_BYTES};
use crate::error::{Error, Result};
use crate::header::{Header, TURN_BYTES, block_bytes};
use crate::{BLOCKS_MAX, FRAME_BYTES_MAX};
use airdma::{Device, Endpoint, Operation, Region, Remote, Rights, Shared};
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Memory of a receiver: blocks of one size, for one connection after the other.
///
/// A frame that the program keeps stays in its block when the connection ends; the block is offered
/// to the next one once the frame is dropped.
#[derive(Clone)]
pub struct Pool(pub(crate) Arc<Blocks>);

pub(crate) struct Blocks {
    pub(crate) device: Device,
    count: u32,
    block_bytes: u32,
    sums: bool,
    /// Blocks that frames of one device may have.
    quota: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Free blocks that are not offered.
    free: VecDeque<Region>,
    /// Blocks that the program has, by device.
    lent: BTreeMap<u32, u32>,
    offers: Option<Offers>,
}

/// What one sender may write.
struct Offers {
    endpoint: Arc<Endpoint>,
    credits: Remote,
    /// Number of the next credit.
    next: u64,
    /// Blocks that it may write, in the order in which it uses them.
    offered: VecDeque<Shared>,
    /// Credits in flight, and memory for others.
    writing: VecDeque<Operation<Region>>,
    entries: Vec<Region>,
}

impl Pool {
    /// Allocates `count` blocks that hold frames of up to `frame_bytes` each.
    ///
    /// # Errors
    /// [`Error::Invalid`]: no block, more than [`BLOCKS_MAX`], or frames beyond
    /// [`FRAME_BYTES_MAX`]. [`Error::Connection`]: no memory.
    pub fn new(device: &Device, count: u32, frame_bytes: usize) -> Result<Pool> {
        if !(1..=BLOCKS_MAX).contains(&count) {
            return Err(Error::Invalid("a receiver has 1 to 4096 blocks"));
        }
        if frame_bytes > FRAME_BYTES_MAX {
            return Err(Error::Invalid("a frame has less than 1 GiB"));
        }
        let block_bytes = block_bytes(frame_bytes.max(1));
        let mut rest = device.allocate_file(block_bytes * count as usize)?;
        let mut free = VecDeque::new();
        for _ in 1..count {
            let (block, others) = rest.split_at(block_bytes)?;
            free.push_back(block);
            rest = others;
        }
        free.push_back(rest);
        let state = State {
            free,
            lent: BTreeMap::new(),
            offers: None,
        };
        Ok(Pool(Arc::new(Blocks {
            device: device.clone(),
            count,
            block_bytes: block_bytes as u32,
            sums: false,
            quota: u32::MAX,
            state: Mutex::new(state),
        })))
    }

    /// Asks senders for a checksum in each frame, which detects errors that packets' checksums do
    /// not: those of a sender's memory, and headers that do not belong to their payload.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the pool is in use.
    pub fn with_checksums(mut self) -> Result<Pool> {
        self.unused()?.sums = true;
        Ok(self)
    }

    /// Lets the program keep frames of one device in at most `blocks` blocks at a time, so that
    /// others have some. Further frames of the device are dropped, and counted.
    ///
    /// # Errors
    /// [`Error::Invalid`]: no block, or the pool is in use.
    pub fn with_quota(mut self, blocks: u32) -> Result<Pool> {
        if blocks == 0 {
            return Err(Error::Invalid("a device has a quota of at least one block"));
        }
        self.unused()?.quota = blocks;
        Ok(self)
    }

    fn unused(&mut self) -> Result<&mut Blocks> {
        let blocks = Arc::get_mut(&mut self.0);
        blocks.ok_or(Error::Invalid("the pool is in use"))
    }
}

impl Blocks {
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    pub(crate) fn sums(&self) -> bool {
        self.sums
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers the free blocks to a sender, in place of the one before.
    pub(crate) fn offer_to(&self, endpoint: &Arc<Endpoint>, credits: Remote) -> Result<()> {
        let mut state = self.state();
        state.take_back();
        state.offers = Some(Offers {
            endpoint: Arc::clone(endpoint),
            credits,
            next: 1,
            offered: VecDeque::new(),
            writing: VecDeque::new(),
            entries: Vec::new(),
        });
        state.offer(&self.device)
    }

    /// Takes back what is offered to this sender, if it is still the one.
    pub(crate) fn take_back(&self, endpoint: &Arc<Endpoint>) {
        let mut state = self.state();
        let is_it = |offers: &Offers| Arc::ptr_eq(&offers.endpoint, endpoint);
        if state.offers.as_ref().is_some_and(is_it) {
            state.take_back();
        }
    }

    /// The block of the next frame of this sender, if it is complete: the sender cannot write it
    /// any more.
    pub(crate) fn take(&self, endpoint: &Arc<Endpoint>) -> Result<Option<Region>> {
        let mut state = self.state();
        let Some(offers) = state.offers.as_mut() else {
            return Ok(None);
        };
        if !Arc::ptr_eq(&offers.endpoint, endpoint) {
            return Ok(None);
        }
        let Some(block) = offers.offered.front() else {
            return Ok(None);
        };
        let turn = offers.next - offers.offered.len() as u64;
        match u64::from_le(block.word(block.len() - TURN_BYTES)?) {
            0 => Ok(None),
            seen if seen == turn => Ok(offers.offered.pop_front().map(Shared::withdraw)),
            _ => Err(Error::Protocol("a frame has not the number of its block")),
        }
    }

    /// Whether a frame may be lent by its device's quota; counts it if so.
    pub(crate) fn lend(&self, header: &Header) -> bool {
        let mut state = self.state();
        let lent = state.lent.entry(header.device).or_default();
        let may = *lent < self.quota;
        *lent += u32::from(may);
        may
    }

    /// A block that was lent with a frame of a device is free again.
    pub(crate) fn take_back_from(&self, device: u32, block: Region) {
        if let Entry::Occupied(mut lent) = self.state().lent.entry(device) {
            *lent.get_mut() -= 1;
            if *lent.get() == 0 {
                lent.remove();
            }
        }
        self.release(block);
    }

    /// A block is free again.
    pub(crate) fn release(&self, block: Region) {
        let mut state = self.state();
        state.free.push_back(block);
        // A connection that has failed tells its receiver so.
        drop(state.offer(&self.device));
    }
}

impl State {
    fn take_back(&mut self) {
        if let Some(offers) = self.offers.take() {
            let offered = offers.offered.into_iter();
            self.free.extend(offered.map(Shared::withdraw));
        }
    }

    /// Offers all free blocks.
    fn offer(&mut self, device: &Device) -> Result<()> {
        let Some(offers) = self.offers.as_mut() else {
            return Ok(());
        };
        while let Some(mut block) = self.free.pop_front() {
            let end = block.len() - TURN_BYTES;
            block[end..].fill(0);
            let shared = block.share(Rights::WRITE)?;
            if let Err(error) = offers.grant(&shared, device) {
                self.free.push_front(shared.withdraw());
                return Err(error);
            }
            offers.offered.push_back(shared);
        }
        Ok(())
    }
}

impl Offers {
    /// Tells the sender of a free block.
    fn grant(&mut self, block: &Shared, device: &Device) -> Result<()> {
        let remote = block.remote(&self.endpoint)?;
        let mut entry = self.entry(device)?;
        credit::put(&mut entry, &remote, self.next);
        let at = credit::offset(self.next) as u64;
        let writing = self.endpoint.write(entry, .., &self.credits, at);
        self.writing.push_back(writing);
        self.next += 1;
        Ok(())
    }

    /// Memory for a credit.
    fn entry(&mut self, device: &Device) -> Result<Region> {
        while let Some(oldest) = self.writing.front_mut()
            && let Poll::Ready(result) = oldest.look(Waker::noop())
        {
            self.writing.pop_front();
            let entry = match result {
                Ok(entry) => Some(entry),
                Err(error) => error.into_region(),
            };
            self.entries.extend(entry);
        }
        match self.entries.pop() {
            Some(entry) => Ok(entry),
            None => Ok(device.allocate_private(CREDIT_BYTES)?),
        }
    }
}
