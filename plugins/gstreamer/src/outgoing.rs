//! The connection to a receiver, which all sinks of this process that name it share.

use crate::locked;
use crate::meeting::Way;
use airdma_stream::{
    Block, Counts, Description, Error, Flags, Policy, Sender, SenderConfig, Source, now_ns,
    thread_waker,
};
use airdma_transfer::{Cancel, Device, Kind};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Longest sleep, after which deadlines are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Pause before the next attempt to connect.
const PAUSE: Duration = Duration::from_millis(200);
/// Time for the last frames when a sink stops without EOS.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Connections of this process, by the name of the receiver.
static ALL: Mutex<Vec<(Option<String>, Arc<Outgoing>)>> = Mutex::new(Vec::new());

pub(crate) fn connections() -> usize {
    locked(&ALL).len()
}

/// What a sink wants of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) peer: Option<String>,
    pub(crate) code: Option<String>,
    pub(crate) frame_bytes: usize,
    pub(crate) patience: Duration,
}

pub(crate) struct Outgoing {
    frame_bytes: usize,
    state: Mutex<State>,
    /// Something has changed: a block is free, a frame has arrived, or the connection has failed.
    changed: Condvar,
    cancel: Cancel,
}

struct State {
    sender: Sender,
    /// Buffers whose block is on its way, by the address of their memory. The reference keeps the
    /// elements in front of the sink from writing there.
    pinned: HashMap<usize, (Arc<Slot>, gst::Buffer)>,
    /// Numbers of the devices of the sinks that run.
    devices: BTreeSet<u32>,
    /// One block of each allocation, which is never used: buffers outlive the frames in them, and
    /// the memory must outlive the buffers.
    _anchors: Vec<Block>,
    failed: Option<String>,
    is_closing: bool,
    reconnects: u64,
    runner: Option<(Thread, JoinHandle<()>)>,
}

/// A block that a buffer has a view of; it is with the sender while a frame is in it.
pub(crate) struct Slot {
    block: Mutex<Option<Block>>,
    /// Bytes of the block.
    pub(crate) length: usize,
    outgoing: Arc<Outgoing>,
}

/// Why a frame was not taken.
#[derive(Debug)]
pub(crate) enum Refusal {
    Flushing,
    Failed(String),
}

impl Drop for Slot {
    fn drop(&mut self) {
        let block = self.block.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = block.take() {
            self.outgoing.lock().sender.discard(block);
        }
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Option<Block>> {
        locked(&self.block)
    }
}

/// A sink's part of a connection.
pub(crate) struct Membership {
    pub(crate) outgoing: Arc<Outgoing>,
    pub(crate) device: u32,
    /// Most blocks that buffers may have views of.
    pub(crate) slots_max: usize,
}

impl Membership {
    /// Joins the connection to a receiver, or makes it. `device` is the number of the device; the
    /// first that is free if it is `None`.
    pub(crate) fn join(
        wanted: &Wanted,
        device: Option<u32>,
        (blocks, policy): (usize, Policy),
    ) -> Result<Membership, String> {
        let mut all = locked(&ALL);
        let known = all.iter().find(|(peer, _)| *peer == wanted.peer);
        let outgoing = match known {
            Some((_, outgoing)) => Arc::clone(outgoing),
            None => {
                let outgoing = Outgoing::open(wanted)?;
                all.push((wanted.peer.clone(), Arc::clone(&outgoing)));
                outgoing
            }
        };
        // Buffers of two formats, copies, the end, and the block that is never used.
        let source = Source {
            quota: 3 * blocks + 2,
            policy,
            returns: true,
            ..Source::default()
        };
        let device = outgoing.add(wanted, device, source);
        match device {
            Ok(device) => Ok(Membership {
                outgoing,
                device,
                slots_max: 2 * blocks,
            }),
            Err(error) => {
                release(&mut all, &outgoing);
                Err(error)
            }
        }
    }

    /// Says that the device sends no more, if it has not, and leaves. The last one closes the
    /// connection.
    pub(crate) fn leave(&self, has_ended: bool) {
        let never = AtomicBool::new(false);
        if !has_ended {
            // A receiver that is not there learns it from the connection.
            let _ = self.end(&never, LAST_WORD);
        }
        self.outgoing.lock().devices.remove(&self.device);
        let mut all = locked(&ALL);
        release(&mut all, &self.outgoing);
    }

    /// Says that the device sends no more, and waits until all of its frames have arrived.
    pub(crate) fn end(&self, flushing: &AtomicBool, limit: Duration) -> Result<(), Refusal> {
        self.mark(Flags::END, now_ns(), (flushing, limit))?;
        let (outgoing, device) = (&self.outgoing, self.device);
        outgoing.wait((flushing, limit), |state| {
            state.sender.is_idle_of(device).then_some(())
        })
    }

    /// Sends a frame without bytes.
    pub(crate) fn mark(
        &self,
        flags: Flags,
        time: u64,
        patience: (&AtomicBool, Duration),
    ) -> Result<(), Refusal> {
        let block = self.block(0, patience)?;
        let description = Description {
            time,
            flags,
            deadline: 0,
        };
        self.outgoing.send(block, description);
        Ok(())
    }

    /// Waits for a block, to copy a frame into it.
    pub(crate) fn block(
        &self,
        length: usize,
        patience: (&AtomicBool, Duration),
    ) -> Result<Block, Refusal> {
        let device = self.device;
        (self.outgoing)
            .wait(patience, |state| {
                state.sender.block(device, length).transpose()
            })?
            .map_err(|error| Refusal::Failed(error.to_string()))
    }

    /// Memory of a block for a buffer, and its address.
    pub(crate) fn slot(&self, length: usize) -> Option<(Arc<Slot>, *mut u8)> {
        let mut state = self.outgoing.lock();
        let mut block = state.sender.block(self.device, length).ok()??;
        let start = block.as_mut_ptr();
        drop(state);
        let outgoing = Arc::clone(&self.outgoing);
        let block = Mutex::new(Some(block));
        let slot = Slot {
            block,
            length,
            outgoing,
        };
        Some((Arc::new(slot), start))
    }

    /// Sends the block of a buffer as it is. False if the block is on its way already: the buffer
    /// comes a second time.
    pub(crate) fn send_slot(
        &self,
        slot: &Arc<Slot>,
        buffer: &gst::Buffer,
        description: Description,
    ) -> bool {
        let Some(block) = slot.lock().take() else {
            return false;
        };
        let pin = (Arc::clone(slot), buffer.clone());
        let mut state = self.outgoing.lock();
        state.pinned.insert(block.as_ptr() as usize, pin);
        drop(state);
        self.outgoing.send(block, description);
        true
    }

    pub(crate) fn set_format(&self, text: &str) -> Result<(), String> {
        let mut state = self.outgoing.lock();
        let set = state.sender.set_format(self.device, text);
        set.map_err(|error| error.to_string())
    }

    /// What became of its frames, and how often the connection was made again.
    pub(crate) fn counts(&self) -> (Counts, u64) {
        let state = self.outgoing.lock();
        let mut all = state.sender.counts();
        let own = all.find(|(device, _)| *device == self.device);
        (
            own.map_or(Counts::default(), |(_, own)| own),
            state.reconnects,
        )
    }
}

/// Closes a connection that no sink uses.
fn release(all: &mut Vec<(Option<String>, Arc<Outgoing>)>, outgoing: &Arc<Outgoing>) {
    let mut state = outgoing.lock();
    if !state.devices.is_empty() {
        return;
    }
    all.retain(|(_, other)| !Arc::ptr_eq(other, outgoing));
    state.is_closing = true;
    outgoing.cancel.cancel();
    let runner = state.runner.take();
    drop(state);
    if let Some((thread, runner)) = runner {
        thread.unpark();
        // It has told what went wrong before.
        let _ = runner.join();
    }
}

impl Outgoing {
    fn open(wanted: &Wanted) -> Result<Arc<Outgoing>, String> {
        let mut way = Way::find(wanted.peer.as_deref(), wanted.code.as_deref())?;
        let cancel = Cancel::default();
        let met = way
            .connect(None, &cancel)
            .map_err(|error| error.to_string())?;
        let config = SenderConfig {
            blocks: 1,
            frame_bytes: wanted.frame_bytes,
            ..SenderConfig::default()
        };
        let device = met.device.clone();
        let sender = Sender::new(&device, config);
        let mut sender = sender.map_err(|error| error.to_string())?;
        let opened = sender.open(met.endpoint);
        opened.map_err(|error| error.to_string())?;
        let outgoing = Arc::new(Outgoing {
            frame_bytes: wanted.frame_bytes,
            state: Mutex::new(State {
                sender,
                pinned: HashMap::new(),
                devices: BTreeSet::new(),
                _anchors: Vec::new(),
                failed: None,
                is_closing: false,
                reconnects: 0,
                runner: None,
            }),
            changed: Condvar::new(),
            cancel,
        });
        let runs = Arc::clone(&outgoing);
        let patience = wanted.patience;
        let runner = thread::Builder::new()
            .name("airdmasink".into())
            .spawn(move || runs.run(&mut way, &device, patience))
            .map_err(|error| error.to_string())?;
        outgoing.lock().runner = Some((runner.thread().clone(), runner));
        Ok(outgoing)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Adds a device with blocks for its quota.
    fn add(&self, wanted: &Wanted, device: Option<u32>, source: Source) -> Result<u32, String> {
        if wanted.frame_bytes > self.frame_bytes {
            return Err(format!(
                "another sink has the connection to this receiver, with max-frame-size {}",
                self.frame_bytes
            ));
        }
        let mut state = self.lock();
        let is_used = |device: &u32| state.devices.contains(device);
        let device = match device {
            Some(device) if is_used(&device) => {
                return Err(format!("another sink sends as device {device}"));
            }
            Some(device) => device,
            None => (0..).find(|device| !is_used(device)).unwrap_or_default(),
        };
        let is_new = !state.sender.counts().any(|(known, _)| known == device);
        if is_new {
            let adds = |state: &mut State| {
                state.sender.add(device, source)?;
                state.sender.add_blocks(source.quota as u32)?;
                state.sender.block(device, 0)
            };
            let anchor = adds(&mut state).map_err(|error| error.to_string())?;
            state._anchors.extend(anchor);
        }
        state.devices.insert(device);
        Ok(device)
    }

    /// Whether the connection has failed.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let failed = self.lock().failed.clone();
        failed.map_or(Ok(()), |why| Err(Refusal::Failed(why)))
    }

    pub(crate) fn discard(&self, block: Block) {
        self.lock().sender.discard(block);
    }

    pub(crate) fn send(&self, block: Block, description: Description) {
        let mut state = self.lock();
        state.sender.send(block, description);
        let runner = state.runner.as_ref().map(|(thread, _)| thread.clone());
        drop(state);
        // It waits for what was sent.
        if let Some(runner) = runner {
            runner.unpark();
        }
    }

    /// Waits until `look` has a result.
    fn wait<T>(
        &self,
        (flushing, limit): (&AtomicBool, Duration),
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Refusal> {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(error) = &state.failed {
                return Err(Refusal::Failed(error.clone()));
            }
            if let Some(result) = look(&mut state) {
                return Ok(result);
            }
            let left = limit.saturating_sub(start.elapsed());
            if flushing.load(Ordering::Acquire) || left.is_zero() {
                return Err(Refusal::Flushing);
            }
            let waited = self
                .changed
                .wait_timeout(state, left.min(Duration::from_secs(1)));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Wakes the sinks that wait.
    pub(crate) fn wake(&self) {
        // A sink that has looked and does not wait yet has the lock.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Sends, and connects again, until the last sink has left.
    fn run(&self, way: &mut Way, device: &Device, patience: Duration) {
        let waker = thread_waker();
        let mut lost: Option<Instant> = None;
        loop {
            let mut state = self.lock();
            let polled = match state.failed {
                Some(_) => Ok(()),
                None => state.sender.poll(&waker),
            };
            let unpinned = state.take_returned();
            let is_over = state.is_closing;
            drop(state);
            // Its pool may free the block, which needs the lock.
            drop(unpinned);
            self.changed.notify_all();
            match polled {
                Ok(()) | Err(_) if is_over => return self.unpin(),
                Ok(()) => {
                    lost = None;
                    thread::park_timeout(LOOK_EVERY);
                }
                Err(error) => {
                    let since = *lost.get_or_insert_with(Instant::now);
                    self.reconnect(way, device, (error, since.elapsed() < patience));
                }
            }
        }
    }

    /// Connects again, once.
    fn reconnect(&self, way: &mut Way, device: &Device, (error, is_patient): (Error, bool)) {
        let may = error.is_of_connection() || error.is_closed();
        self.lock().sender.close();
        if !may || !is_patient {
            return self.fail(format!("the connection to the receiver is lost: {error}"));
        }
        match way.connect(Some(device), &self.cancel) {
            Ok(met) => {
                let mut state = self.lock();
                // What fails is seen by the next look.
                if state.sender.open(met.endpoint).is_ok() {
                    state.reconnects += 1;
                }
            }
            Err(error) if error.kind() == Kind::Unreachable => thread::sleep(PAUSE),
            Err(error) => self.fail(error.to_string()),
        }
    }

    fn fail(&self, why: String) {
        self.lock().failed = Some(why);
        // The elements in front of the sinks wait for buffers, and would never see it.
        self.unpin();
        self.changed.notify_all();
    }

    /// Closes the connection, and lets go of the buffers of frames that did not arrive.
    fn unpin(&self) {
        let mut state = self.lock();
        state.sender.close();
        let pinned = std::mem::take(&mut state.pinned);
        drop(state);
        drop(pinned);
    }
}

impl State {
    /// Takes back the blocks of frames that have arrived or were dropped. Returns the buffers that
    /// have views of them.
    fn take_returned(&mut self) -> Vec<(Arc<Slot>, gst::Buffer)> {
        let mut unpinned = Vec::new();
        while let Some(block) = self.sender.returned() {
            match self.pinned.remove(&(block.as_ptr() as usize)) {
                Some((slot, buffer)) => {
                    *slot.lock() = Some(block);
                    unpinned.push((slot, buffer));
                }
                None => self.sender.discard(block),
            }
        }
        unpinned
    }
}
