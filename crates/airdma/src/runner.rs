//! Event loops of the program that run the device themselves.

use crate::hub::Hub;
use crate::{Device, Error, Result};
use airdma_engine::{ChannelWait, EventWait};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the thread that wakes tasks leaves the device to the engine after the last [`Runner`]:
/// an event loop comes back soon.
const ASIDE_FOR: Duration = Duration::from_millis(100);

/// Runs a device in a thread that sleeps on descriptors of its own: in an event loop.
///
/// A task that waits for an operation is woken by a thread of airdma, which costs each message a
/// wake-up more. While a runner lives, that thread stands aside, and the runner's thread receives
/// packets and wakes tasks itself. It repeats three steps:
///
/// 1. [`Runner::run`]; if something happened, look what it was;
/// 2. sleep, in one `ppoll(2)`, on its own descriptors and [`Runner::descriptors`];
/// 3. [`Runner::woke`].
///
/// Runners are cheap: make one for each wait, and drop it before other work. Several threads may
/// have one for the same device, but then each packet wakes all of them.
///
/// Replies of an event loop leave together: the first after a wait at once, the others with the
/// next [`Runner::run`]. A thread that waits elsewhere calls [`Device::flush`] before.
///
/// ```
/// # fn main() -> airdma::Result<()> {
/// use std::task::{Context, Waker};
/// use std::{future::Future, pin::pin};
///
/// let device = airdma::Device::open("127.0.0.1")?;
/// let listener = device.listen(7472)?;
/// let connecting = device.connect("127.0.0.1:7472");
/// let mut accepting = pin!(listener.accept());
/// // In place of a waker that does nothing: one that marks the task.
/// let mut context = Context::from_waker(Waker::noop());
/// let mut runner = device.runner();
/// while accepting.as_mut().poll(&mut context).is_pending() {
///     runner.run()?;
///     let (descriptors, limit) = runner.descriptors();
///     let limit = limit.map_or(10, |limit| limit.as_millis().min(10) as i32);
///     let count = descriptors.len() as libc::nfds_t;
///     // SAFETY: that many entries.
///     let ready = unsafe { libc::poll(descriptors.as_mut_ptr(), count, limit) };
///     runner.woke(ready.max(0) as usize);
/// }
/// # drop((runner, connecting));
/// # Ok(())
/// # }
/// ```
pub struct Runner {
    hub: Arc<Hub>,
    wait: ChannelWait,
}

impl Device {
    /// A [`Runner`] of this device.
    pub fn runner(&self) -> Runner {
        Runner::new(self.hub())
    }

    /// Lets messages leave that wait for the next [`Runner::run`]. Without it they do so some
    /// milliseconds later at most.
    pub fn flush(&self) {
        self.hub().engine.flush();
    }
}

impl Runner {
    fn new(hub: &Arc<Hub>) -> Runner {
        if hub.runs.enter() {
            hub.call_driver();
        }
        Runner {
            hub: Arc::clone(hub),
            wait: ChannelWait::of_event_loop(&hub.channel),
        }
    }

    /// Runs the device: transmits, receives, and wakes tasks whose operations have an outcome. True
    /// if there was something to wake for: then look for it before the thread sleeps.
    ///
    /// # Errors
    /// [`Blame::System`](crate::Blame::System), for example in a child after `fork(2)`.
    pub fn run(&mut self) -> Result<bool> {
        // Where the thread did not sleep after all.
        self.woke(0);
        let step = |wait: &mut ChannelWait| match wait.step() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            result => result.map_err(|error| Error::system("running the device", &error)),
        };
        let Some(first) = step(&mut self.wait)? else {
            return Ok(false);
        };
        self.hub.attend(Some(first));
        // Those of the same round.
        while let Some(next) = self.wait.take_more() {
            self.hub.attend(Some(next));
        }
        Ok(true)
    }

    /// After a [`Runner::run`] that returned false: the descriptors to sleep on, and how long at
    /// most.
    pub fn descriptors(&mut self) -> (&mut [libc::pollfd], Option<Duration>) {
        let (descriptors, due) = self.wait.descriptors();
        let due = due.map(|due| Duration::new(due.tv_sec.unsigned_abs(), due.tv_nsec as u32));
        (descriptors, due)
    }

    /// The sleep is over, and that many of [`Runner::descriptors`] are ready; their `revents` say
    /// which.
    pub fn woke(&mut self, ready: usize) {
        // An error is a signal's.
        drop(self.wait.woke(Ok(ready)));
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.hub.runs.leave();
    }
}

/// Which thread runs a device: the one that wakes tasks, or those with a [`Runner`].
pub(crate) struct Runs {
    runners: AtomicU32,
    /// When the last one left, in milliseconds since `start`; 0 if there was none.
    left: AtomicU64,
    start: Instant,
    /// Whether the thread that wakes tasks runs the device.
    by_driver: AtomicBool,
}

impl Default for Runs {
    fn default() -> Self {
        Runs {
            runners: AtomicU32::new(0),
            left: AtomicU64::new(0),
            start: Instant::now(),
            by_driver: AtomicBool::new(false),
        }
    }
}

impl Runs {
    /// A runner begins. Whether the thread that wakes tasks has to be told.
    fn enter(&self) -> bool {
        self.runners.fetch_add(1, Ordering::SeqCst);
        self.by_driver.load(Ordering::SeqCst)
    }

    fn leave(&self) {
        self.left.store(self.now(), Ordering::Relaxed);
        self.runners.fetch_sub(1, Ordering::SeqCst);
    }

    fn now(&self) -> u64 {
        1 + self.start.elapsed().as_millis() as u64
    }

    /// The thread that wakes tasks runs the device, unless there are runners. Whether it does.
    pub(crate) fn take_over(&self) -> bool {
        self.by_driver.store(true, Ordering::SeqCst);
        let left = self.left.load(Ordering::Relaxed);
        let is_recent = left != 0 && self.now() - left < ASIDE_FOR.as_millis() as u64;
        let takes_over = self.runners.load(Ordering::SeqCst) == 0 && !is_recent;
        if !takes_over {
            self.stand_aside();
        }
        takes_over
    }

    /// It no longer does.
    pub(crate) fn stand_aside(&self) {
        self.by_driver.store(false, Ordering::SeqCst);
    }
}
