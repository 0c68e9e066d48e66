//! The receiver, which all sources of this process with its port share.

use crate::locked;
use crate::meeting::{parse, remember};
use airdma_files::session::{PublicKey, Role};
use airdma_stream::{Flags, Frame, Incoming, Pool, Received, Receiver};
use airdma_transfer::{Cancel, Device, DoorConfig, Entrance, Event, Home, Met, Service};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Longest wait for a frame, after which other senders and the end are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Receivers of this process.
static ALL: Mutex<Vec<Arc<Hall>>> = Mutex::new(Vec::new());

/// What a source wants of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) interfaces: Vec<String>,
    pub(crate) port: u16,
    pub(crate) name: Option<String>,
    pub(crate) code: Option<String>,
    pub(crate) blocks: u32,
    pub(crate) memory_bytes: usize,
}

/// A receiver: its sources, and what has arrived for them.
pub(crate) struct Hall {
    wanted: Wanted,
    state: Mutex<State>,
    /// Something has arrived, or the receiver has failed.
    changed: Condvar,
    cancel: Cancel,
}

#[derive(Default)]
struct State {
    /// Frames that the sources have not taken yet, by device.
    queues: BTreeMap<u32, VecDeque<Frame>>,
    counts: BTreeMap<u32, Received>,
    /// Frames of devices without a source.
    unclaimed: u64,
    failed: Option<String>,
    threads: Vec<JoinHandle<()>>,
}

/// Why there is no frame.
pub(crate) enum Nothing {
    Flushing,
    Failed(String),
}

/// A source's part of a receiver.
pub(crate) struct Seat {
    hall: Arc<Hall>,
    device: u32,
}

impl Seat {
    /// Takes the frames of a device. No sender is admitted before [`Seat::open`].
    pub(crate) fn take(wanted: Wanted, device: u32) -> Result<Seat, String> {
        let mut all = locked(&ALL);
        let known = all.iter().find(|hall| hall.wanted.port == wanted.port);
        if known.is_some_and(|hall| hall.wanted != wanted) {
            let port = wanted.port;
            return Err(format!(
                "another source has port {port}, with other properties"
            ));
        }
        let hall = match known {
            Some(hall) => Arc::clone(hall),
            None => {
                parse(wanted.code.as_deref())?;
                let hall = Arc::new(Hall {
                    wanted,
                    state: Mutex::default(),
                    changed: Condvar::new(),
                    cancel: Cancel::default(),
                });
                all.push(Arc::clone(&hall));
                hall
            }
        };
        let mut state = hall.lock();
        if state.queues.contains_key(&device) {
            return Err(format!("another source takes device {device} of this port"));
        }
        state.queues.insert(device, VecDeque::new());
        drop(state);
        Ok(Seat { hall, device })
    }

    /// Admits senders: all sources of the pipeline have their seats.
    pub(crate) fn open(&self) {
        let mut state = self.hall.lock();
        if !state.threads.is_empty() || state.failed.is_some() {
            return;
        }
        let (arrived, arrivals) = mpsc::channel();
        let (door, hall) = (Arc::clone(&self.hall), Arc::clone(&self.hall));
        let threads = [
            spawn("airdmasrc-door", move || door.let_in(&arrived)),
            spawn("airdmasrc", move || hall.run(&arrivals)),
        ];
        for thread in threads {
            match thread {
                Ok(thread) => state.threads.push(thread),
                Err(error) => state.failed = Some(error.to_string()),
            }
        }
    }

    /// Waits for the next frame of the device.
    pub(crate) fn next(&self, flushing: &AtomicBool) -> Result<Frame, Nothing> {
        let mut state = self.hall.lock();
        loop {
            if flushing.load(Ordering::Acquire) {
                return Err(Nothing::Flushing);
            }
            let queue = state.queues.get_mut(&self.device);
            if let Some(frame) = queue.and_then(VecDeque::pop_front) {
                return Ok(frame);
            }
            if let Some(why) = &state.failed {
                return Err(Nothing::Failed(why.clone()));
            }
            let waited = self.hall.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes the source that waits.
    pub(crate) fn wake(&self) {
        // A source that has looked and does not wait yet has the lock.
        drop(self.hall.lock());
        self.hall.changed.notify_all();
    }

    /// What arrived of the device, and the frames of devices without a source.
    pub(crate) fn counts(&self) -> (Received, u64) {
        let state = self.hall.lock();
        let own = state.counts.get(&self.device);
        (own.copied().unwrap_or_default(), state.unclaimed)
    }

    /// Leaves. The last one closes the receiver.
    pub(crate) fn leave(self) {
        let mut all = locked(&ALL);
        let mut state = self.hall.lock();
        let frames = state.queues.remove(&self.device);
        let is_last = state.queues.is_empty();
        let threads = match is_last {
            true => std::mem::take(&mut state.threads),
            false => Vec::new(),
        };
        drop(state);
        drop(frames);
        if is_last {
            all.retain(|hall| !Arc::ptr_eq(hall, &self.hall));
            self.hall.cancel.cancel();
            for thread in threads {
                // It has told what went wrong before.
                let _ = thread.join();
            }
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(run)
}

impl Hall {
    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn fail(&self, why: String) {
        self.lock().failed = Some(why);
        self.changed.notify_all();
    }

    /// Admits senders, and hands them over.
    fn let_in(&self, arrived: &mpsc::Sender<Met>) {
        let opened = Home::open().map_err(|error| error.to_string());
        let opened = opened.and_then(|home| {
            let home = Arc::new(home);
            let known = Arc::clone(&home);
            let config = DoorConfig {
                service: Service::Streams,
                interfaces: self.wanted.interfaces.clone(),
                port: self.wanted.port,
                name: self.wanted.name.clone(),
                key: home.identity().public(),
            };
            let is_known = move |key: &PublicKey| known.knows(key, Role::Sender);
            let code = parse(self.wanted.code.as_deref())?;
            let entrance = Entrance::open(config, home.identity(), code, is_known);
            Ok((home, entrance.map_err(|error| error.to_string())?))
        });
        let (home, mut entrance) = match opened {
            Ok(opened) => opened,
            Err(why) => return self.fail(why),
        };
        let watch = |event: Event| gst::info!(gst::CAT_DEFAULT, "airdmasrc: {event:?}");
        while let Ok(met) = entrance.next(&watch, &[&self.cancel]) {
            remember(&met, &home);
            if arrived.send(met).is_err() {
                return;
            }
        }
    }

    /// Receives from one sender after the other.
    fn run(&self, arrivals: &mpsc::Receiver<Met>) {
        let mut reception = Reception::default();
        while !self.cancel.is_cancelled() {
            let arrival = match reception.sender {
                Some(_) => arrivals.try_recv().ok(),
                None => arrivals.recv_timeout(LOOK_EVERY).ok(),
            };
            if let Some(met) = arrival {
                // What has arrived over the former connection comes first.
                while reception.next(self, Duration::ZERO) {}
                if let Err(why) = reception.meet(met, &self.wanted) {
                    gst::warning!(
                        gst::CAT_DEFAULT,
                        "airdmasrc: a sender was turned away: {why}"
                    );
                }
            }
            reception.next(self, LOOK_EVERY);
        }
    }

    /// Gives a frame to the source of its device.
    fn deliver(&self, frame: Frame) {
        let mut state = self.lock();
        let is_data = !frame.flags().contains(Flags::END) && !frame.flags().contains(Flags::GAP);
        let refused = match state.queues.get_mut(&frame.device()) {
            Some(queue) => {
                queue.push_back(frame);
                None
            }
            None => {
                state.unclaimed += u64::from(is_data);
                Some(frame)
            }
        };
        drop(state);
        drop(refused);
        self.changed.notify_all();
    }
}

#[derive(Default)]
struct Reception {
    receiver: Option<Receiver>,
    /// Blocks for frames of a length, on the device of the last connection.
    pool: Option<(Device, usize, Pool)>,
    /// Key of the sender that is connected.
    sender: Option<PublicKey>,
}

impl Reception {
    /// A sender has connected: the one that is there again, or another one.
    fn meet(&mut self, met: Met, wanted: &Wanted) -> Result<(), String> {
        if self.sender.is_some_and(|sender| sender != met.peer) {
            return Err("another sender is connected".to_owned());
        }
        self.sender = None;
        let incoming = Incoming::hear(&met.device, met.endpoint);
        let incoming = incoming.map_err(|error| error.to_string())?;
        let bytes = incoming.frame_bytes();
        if bytes.saturating_mul(wanted.blocks as usize) > wanted.memory_bytes {
            return Err(format!(
                "its frames of up to {bytes} bytes exceed max-memory in {} blocks",
                wanted.blocks
            ));
        }
        let fits = |(of, length, _): &(Device, usize, Pool)| {
            of.name() == met.device.name() && !of.is_gone() && *length >= bytes
        };
        if !self.pool.as_ref().is_some_and(fits) {
            let pool = Pool::new(&met.device, wanted.blocks, bytes);
            let pool = pool.map_err(|error| error.to_string())?;
            self.pool = Some((met.device, bytes, pool));
        }
        let Some((_, _, pool)) = &self.pool else {
            return Ok(());
        };
        let opened = match &mut self.receiver {
            Some(receiver) => receiver.reopen(incoming, pool),
            none => Receiver::open(incoming, pool).map(|receiver| *none = Some(receiver)),
        };
        opened.map_err(|error| error.to_string())?;
        self.sender = Some(met.peer);
        Ok(())
    }

    /// Takes the next frame. False if there is none.
    fn next(&mut self, hall: &Hall, limit: Duration) -> bool {
        let (Some(receiver), Some(_)) = (&mut self.receiver, self.sender) else {
            return false;
        };
        match receiver.next(limit) {
            Ok(Some(frame)) => {
                hall.lock().counts = receiver.sequences().iter().collect();
                hall.deliver(frame);
                true
            }
            Ok(None) => false,
            Err(error) => {
                gst::info!(gst::CAT_DEFAULT, "airdmasrc: the sender has gone: {error}");
                self.sender = None;
                false
            }
        }
    }
}
