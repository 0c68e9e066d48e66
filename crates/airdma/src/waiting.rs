//! Sleeping until a device has an event: blocking calls, and the thread that wakes tasks.

use crate::hub::Hub;
use crate::runner::Runs;
use airdma_engine::{Channel, ChannelWait, CmChannel, EventWait, without_signals};
use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::task::Wake;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest sleep, after which deadlines and silent peers are checked.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// Wakes one thread from its sleep.
pub(crate) struct Signal(OwnedFd);

impl Signal {
    pub(crate) fn new() -> io::Result<Arc<Signal>> {
        // SAFETY: valid flags.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just created, and that nothing else owns.
        Ok(Arc::new(Signal(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// The signal of the calling thread.
    pub(crate) fn of_thread() -> io::Result<Arc<Signal>> {
        thread_local!(static SIGNAL: OnceCell<Arc<Signal>> = const { OnceCell::new() });
        let of_cell = |cell: &OnceCell<Arc<Signal>>| {
            if let Some(signal) = cell.get() {
                return Ok(Arc::clone(signal));
            }
            let signal = Signal::new()?;
            Ok(Arc::clone(cell.get_or_init(|| signal)))
        };
        // A thread that is exiting has none.
        SIGNAL.try_with(of_cell).unwrap_or_else(|_| Signal::new())
    }

    /// The descriptor, readable while the signal is set.
    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Discards signals so far.
    pub(crate) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes, which an eventfd fills. An error only means that there was no
        // signal.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let one = 1u64;
        // SAFETY: eight bytes. Fails only if the signal is set already.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// A thread's wait for events of a device. The thread runs the device meanwhile, as in
/// `ibv_get_cq_event(3)`.
pub(crate) struct Sleeper {
    wait: ChannelWait,
    channel: Arc<Channel>,
    connections: Arc<CmChannel>,
    signal: Arc<Signal>,
    /// Descriptors of the last sleep.
    descriptors: Vec<libc::pollfd>,
}

impl Sleeper {
    pub(crate) fn new(hub: &Hub, signal: Arc<Signal>) -> Sleeper {
        Sleeper::on(&hub.channel, &hub.events, signal)
    }

    fn on(channel: &Arc<Channel>, connections: &Arc<CmChannel>, signal: Arc<Signal>) -> Sleeper {
        Sleeper {
            wait: ChannelWait::out_of_sight(channel),
            channel: Arc::clone(channel),
            connections: Arc::clone(connections),
            signal,
            descriptors: Vec::new(),
        }
    }

    /// Sleeps until an event or `signal`, but not beyond `limit` nor [`TICK`].
    ///
    /// Returns the number of the member whose completion queue has something, if that was the
    /// event. Packets that complete nothing do not end the sleep.
    pub(crate) fn sleep(&mut self, limit: Duration) -> io::Result<Option<u64>> {
        let end = Instant::now() + limit.min(TICK);
        loop {
            match self.wait.step() {
                Ok(None) => {}
                Ok(event) => return Ok(event),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
                Err(error) => return Err(error),
            }
            let left = end.saturating_duration_since(Instant::now());
            let (signalled, woke) = self.lie_down(left);
            match woke {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                Ok(()) if !signalled && !left.is_zero() => {}
                Ok(()) | Err(_) => return Ok(None),
            }
        }
    }

    /// As [`Sleeper::sleep`], while another thread runs the device.
    fn sleep_aside(&mut self) -> io::Result<Option<u64>> {
        // The engine counts a wait among the threads that run the device.
        self.wait = ChannelWait::out_of_sight(&self.channel);
        if let Some(event) = self.channel.take_event() {
            return Ok(Some(event));
        }
        let entry = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let signal = self.signal.0.as_raw_fd();
        let mut descriptors = [self.channel.fd(), signal, self.connections.fd()].map(entry);
        let (count, limit) = (descriptors.len() as libc::nfds_t, TICK.as_millis() as i32);
        // SAFETY: that many pollfds.
        let ready = unsafe { libc::poll(descriptors.as_mut_ptr(), count, limit) };
        if ready < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(self.channel.take_event())
    }

    /// One sleep, after a step without event. Returns whether the signal or a connection ended it,
    /// and the result of the wait.
    fn lie_down(&mut self, limit: Duration) -> (bool, io::Result<()>) {
        let (slept_on, due) = self.wait.descriptors();
        let due = due.map(|due| Duration::new(due.tv_sec.unsigned_abs(), due.tv_nsec as u32));
        let limit = due.map_or(limit, |due| due.min(limit));
        let timeout = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        };
        let also = [self.signal.0.as_raw_fd(), self.connections.fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        let descriptors = &mut self.descriptors;
        descriptors.clear();
        descriptors.extend_from_slice(slept_on);
        descriptors.extend(also);
        let count = descriptors.len() as libc::nfds_t;
        // SAFETY: that many pollfds, and a time that outlives the call.
        let ready = unsafe {
            libc::ppoll(
                descriptors.as_mut_ptr(),
                count,
                &raw const timeout,
                std::ptr::null(),
            )
        };
        let failed = (ready < 0).then(io::Error::last_os_error);
        let (of_device, of_others) = descriptors.split_at(slept_on.len());
        slept_on.copy_from_slice(of_device);
        let is_ready = |entry: &&libc::pollfd| entry.revents != 0;
        let signalled = of_others.iter().any(|entry| is_ready(&entry));
        let of_device = slept_on.iter().filter(is_ready).count();
        (signalled, self.wait.woke(failed.map_or(Ok(of_device), Err)))
    }
}

/// The thread that wakes tasks, as an executor cannot sleep on a device. Started with the first
/// waiting task.
pub(crate) struct Driver {
    signal: Arc<Signal>,
    thread: JoinHandle<()>,
}

impl Driver {
    pub(crate) fn start(hub: &Arc<Hub>) -> io::Result<Driver> {
        let signal = Signal::new()?;
        let mut sleeper = Sleeper::new(hub, Arc::clone(&signal));
        let (hub, runs) = (Arc::downgrade(hub), Arc::clone(&hub.runs));
        let own = Arc::clone(&signal);
        // The application's signal handlers run in its own threads.
        let thread = without_signals(|| {
            std::thread::Builder::new()
                .name("airdma-driver".into())
                .spawn(move || run(&hub, &runs, &mut sleeper, &own))
        })?;
        Ok(Driver { signal, thread })
    }

    /// Ends the thread's sleep.
    pub(crate) fn call(&self) {
        self.signal.wake_by_ref();
    }

    /// Ends the thread, and waits for it.
    pub(crate) fn stop(self) {
        // The thread itself may drop the last handle.
        if self.thread.thread().id() != std::thread::current().id() {
            self.signal.wake_by_ref();
            // It does not panic; if it did, nothing could be done about it.
            drop(self.thread.join());
        }
    }
}

/// Runs until the hub is dropped: this thread holds it only while there is work.
fn run(hub: &Weak<Hub>, runs: &Runs, sleeper: &mut Sleeper, signal: &Signal) {
    loop {
        let slept = if runs.take_over() {
            let slept = sleeper.sleep(TICK);
            runs.stand_aside();
            slept
        } else {
            sleeper.sleep_aside()
        };
        if !matches!(slept, Ok(Some(_))) {
            signal.clear();
        }
        let Some(hub) = hub.upgrade() else { return };
        match slept {
            Ok(event) => hub.attend(event),
            // For example, the program has closed descriptors that are not its own.
            Err(_) => std::thread::sleep(TICK),
        }
    }
}

/// When a wait of at most `limit` ends.
pub(crate) fn deadline(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}
