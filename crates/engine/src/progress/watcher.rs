//! The watcher: one thread of a process sleeps for all of its idle devices.
//!
//! A listener at all addresses of a host with 200 interfaces has 200 devices, few of which are ever
//! busy at a time. A device gets a thread of its own when something wakes the watcher for it
//! (a packet, a timer, a change of the interface), and that thread ends after some idle time. So a
//! busy device never waits for another one, and the first packet after a pause costs the start of a
//! thread.
//!
//! It also receives the kernel's notifications about interfaces for all of them.
//!
//! There is a watcher for each network namespace in which the process has opened devices: threads
//! inherit the namespace of the thread that starts them.

pub(crate) mod roster;

use crate::progress::eventfd::EventFd;
use crate::progress::poll_set::PollSet;
use crate::progress::progress_thread::without_signals;
use crate::progress::slice::shorten;
use airdma_preload::PerProcess;
use roster::{Idle, NotStarted, Roster, Token};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

/// Pause before the next attempt to start devices' threads, if the system refuses them. The watcher
/// runs the devices meanwhile.
const PAUSE: Duration = Duration::from_millis(1);

/// [`Token`]s of the watcher's own descriptors.
const ITSELF: Token = 0;
const CHANGES: Token = Token::MAX;

/// A device, as the watcher and its own thread see it.
pub(crate) trait Device: Send + Sync {
    /// [`Idle::fall_asleep`].
    fn fall_asleep(&self) -> bool;
    /// [`Idle::wake_up`].
    fn wake_up(&self);
    /// Descriptors that end the sleep: what wakes all sleepers, what wakes its own thread, and its
    /// packets.
    fn descriptors(&self) -> [RawFd; 3];
    /// A monitor of all interfaces; none in a sandbox that forbids it.
    ///
    /// # Errors
    /// A shortage of descriptors or memory.
    fn monitor(&self) -> io::Result<Option<Box<dyn Monitor>>>;
    /// The interface that it follows, if it follows one.
    fn interface(&self) -> Option<u32>;
    /// The interface may have changed.
    fn note_change(&self);
    /// What the device's own thread runs: it ends when the device is closed, or after
    /// [`hand_over`].
    fn serve(&self, token: Token);
    /// Runs the device once, for want of a thread.
    fn serve_once(&self);
}

/// Receives the kernel's notifications about interfaces.
pub(crate) trait Monitor: Send + Sync {
    /// Readable while there is a notification.
    fn fd(&self) -> RawFd;
    /// Discards the notifications, and calls `changed` with the index of the interface of each.
    /// True if some were lost: then any interface may have changed.
    fn drain(&self, changed: &mut dyn FnMut(u32)) -> bool;
}

static TABLE: PerProcess<Table> = PerProcess::new();

#[derive(Default)]
struct Table {
    roster: Roster<Member>,
    /// By network namespace.
    watchers: HashMap<u64, Watcher>,
}

struct Watcher {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    devices: usize,
}

/// The watcher's thread, and those that wake it.
struct Shared {
    set: PollSet,
    wake: EventFd,
    exit: AtomicBool,
    /// Held by the watcher's thread while it runs devices for want of threads.
    serving: Mutex<()>,
    /// That thread.
    thread: OnceLock<ThreadId>,
    /// The monitor of all interfaces; none in a sandbox that forbids it.
    monitor: Option<Box<dyn Monitor>>,
}

/// A device of the roster.
struct Member {
    device: Arc<dyn Device>,
    namespace: u64,
    watcher: Arc<Shared>,
}

impl Idle for Member {
    type Thread = JoinHandle<()>;

    fn fall_asleep(&self) -> bool {
        self.device.fall_asleep()
    }

    fn wake_up(&self) {
        self.device.wake_up();
    }

    fn watch(&self, token: Token) -> io::Result<()> {
        for fd in self.device.descriptors() {
            self.watcher.set.add_as(fd, token)?;
        }
        Ok(())
    }

    fn unwatch(&self) {
        for fd in self.device.descriptors() {
            self.watcher.set.remove(fd);
        }
    }

    fn start(
        &self,
        token: Token,
        former: Option<JoinHandle<()>>,
    ) -> Result<JoinHandle<()>, NotStarted<JoinHandle<()>>> {
        let device = Arc::clone(&self.device);
        let former = Arc::new(Mutex::new(former));
        let take = |former: &Mutex<Option<_>>| {
            let mut former = former.lock().unwrap_or_else(PoisonError::into_inner);
            former.take()
        };
        let its = Arc::clone(&former);
        let started = spawn("airdma-helper", move || {
            if let Some(former) = take(&its) {
                join(former);
            }
            device.serve(token);
        });
        started.map_err(|error| NotStarted {
            error,
            former: take(&former),
        })
    }
}

/// Serves a device from now on, in the network namespace of that number, in which the calling
/// thread is.
///
/// # Errors
/// Those of the system: descriptors, threads.
pub(crate) fn enter(device: Arc<dyn Device>, namespace: u64) -> io::Result<Token> {
    let mut table = TABLE.lock();
    let watcher = match table.watchers.get(&namespace) {
        Some(watcher) => Arc::clone(&watcher.shared),
        None => {
            let watcher = Watcher::start(device.monitor()?)?;
            let shared = Arc::clone(&watcher.shared);
            table.watchers.insert(namespace, watcher);
            shared
        }
    };
    let entered = table.roster.enter(Member {
        device,
        namespace,
        watcher,
    });
    let entered_count = usize::from(entered.is_ok());
    let ended = table.count(namespace, |devices| devices + entered_count);
    drop(table);
    end(ended);
    entered
}

/// Leaves a device to the watcher, if it is idle. True if the calling thread, which is the device's
/// own, must end.
pub(crate) fn hand_over(token: Token) -> bool {
    TABLE.lock().roster.hand_over(token)
}

/// Ends the service of a device, and waits for that, unless the calling thread is its own.
pub(crate) fn leave(token: Token) {
    let mut table = TABLE.lock();
    let Some((member, thread)) = table.roster.remove(token) else {
        return;
    };
    let ended = table.count(member.namespace, |devices| devices.saturating_sub(1));
    drop(table);
    if let Some(thread) = thread {
        join(thread);
    }
    member.watcher.wait_for_served();
    end(ended);
}

impl Table {
    /// Wakes the devices whose interfaces changed.
    fn note_changes(&self, watcher: &Shared) {
        let mut changed = HashSet::new();
        let monitor = watcher.monitor.as_ref();
        let mut note = |index| {
            changed.insert(index);
        };
        let lost = monitor.is_some_and(|monitor| monitor.drain(&mut note));
        for member in self.roster.devices() {
            let interface = member.device.interface();
            let is_its = std::ptr::eq(&*member.watcher, watcher);
            if is_its && interface.is_some_and(|index| lost || changed.contains(&index)) {
                member.device.note_change();
            }
        }
    }

    /// Changes the number of a watcher's devices. Returns the watcher if it has none.
    fn count(&mut self, namespace: u64, change: impl FnOnce(usize) -> usize) -> Option<Watcher> {
        let watcher = self.watchers.get_mut(&namespace)?;
        watcher.devices = change(watcher.devices);
        if watcher.devices > 0 {
            return None;
        }
        self.watchers.remove(&namespace)
    }
}

impl Watcher {
    fn start(monitor: Option<Box<dyn Monitor>>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            set: PollSet::out_of_sight()?,
            wake: EventFd::nonblocking()?,
            exit: AtomicBool::new(false),
            serving: Mutex::default(),
            thread: OnceLock::new(),
            monitor,
        });
        shared.set.add_as(shared.wake.fd(), ITSELF)?;
        if let Some(monitor) = &shared.monitor {
            shared.set.add_as(monitor.fd(), CHANGES)?;
        }
        let its = Arc::clone(&shared);
        Ok(Watcher {
            shared,
            thread: spawn("airdma-watcher", move || watch(&its))?,
            devices: 0,
        })
    }
}

impl Shared {
    fn serving(&self) -> MutexGuard<'_, ()> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the watcher has let go of the devices that it runs for want of threads: a closed
    /// one would keep its sockets until then.
    fn wait_for_served(&self) {
        if self.thread.get() != Some(&std::thread::current().id()) {
            drop(self.serving());
        }
    }
}

/// The watcher's thread.
fn watch(shared: &Shared) {
    shared.thread.get_or_init(|| std::thread::current().id());
    while !shared.exit.load(Ordering::SeqCst) {
        let Ok(tokens) = shared.set.wait() else {
            // The program has closed descriptors that are not its own, say.
            std::thread::sleep(PAUSE);
            continue;
        };
        let mut refused = Vec::new();
        let serving = shared.serving();
        {
            let mut table = TABLE.lock();
            for token in tokens {
                if token == CHANGES {
                    table.note_changes(shared);
                } else if let Err(member) = table.roster.wake(token) {
                    refused.push(Arc::clone(&member.device));
                }
            }
        }
        // Their descriptors stay ready until they have threads, or nothing more to do.
        let is_refused = !refused.is_empty();
        for device in refused {
            device.serve_once();
        }
        drop(serving);
        if is_refused {
            std::thread::sleep(PAUSE);
        }
    }
}

fn end(watcher: Option<Watcher>) {
    if let Some(watcher) = watcher {
        watcher.shared.exit.store(true, Ordering::SeqCst);
        watcher.shared.wake.signal();
        join(watcher.thread);
    }
}

/// Waits for the end of a thread. If the interface is gone, a device's own thread may drop the
/// device's last reference.
fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() {
        thread.join().ok();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    without_signals(|| {
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                shorten();
                run();
            })
    })
}
