//! What the threads of a process share of one device: the worker, the lock by which one thread at a
//! time runs it ([`crate::progress::worker_lock`]), and what it is run with.
//!
//! This file has how the worker is reached, and how the port is bound; [`sleep`] has how threads
//! sleep, [`state`] the attributes of the device and their changes, [`co_processes`] the other
//! processes at its addresses.

mod co_processes;
mod finish_time;
mod open_port;
pub(crate) mod progress_loop;
pub(crate) mod report;
mod sleep;
mod state;
pub(crate) mod viewers;

use crate::clock::Clock;
use crate::control::{Beside, Control, Reply};
use crate::host::gids::{GIDS_MAX, GidEntry};
use crate::host::interface;
use crate::host::link_monitor::LinkMonitor;
use crate::host::presence::Presence;
use crate::host::recent_paths::RecentPaths;
use crate::index::{DOORBELLS, Serial};
use crate::inventory::Inventory;
use crate::progress::eventfd::EventFd;
use crate::progress::progress_thread::{Caller, ProgressThread};
use crate::progress::watcher::Device;
use crate::progress::worker_lock::{
    Left, NEVER, NO_ROOM_WANTED, ROOM_ANYWHERE, Rounds, WorkerLock,
};
use crate::queues::async_event::{AsyncEvents, EventOwner};
use crate::queues::gathering::Gathering;
use crate::random::Random;
use crate::remote::Remote;
use crate::seal::Secret;
use crate::sharing::runtime_dir;
use crate::sharing::steering::Steering;
use crate::worker::{Round, Work, Worker};
use crate::{Air, AsyncEvent, DeviceConfig, DeviceInfo, Error, PathMtu, RateControl};
use airdma_port::Port;
use airdma_port::local::Bell;
use airdma_preload::{Process, Uncancelled};
use airdma_shm::{Arena, Doorbells};
use airdma_transport::Time;
use airdma_wire::Neighbour;
use airdma_wire::air::feature;
use finish_time::FinishTime;
use state::{State, WhenGone, addresses_of, families_of, line_rate};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use viewers::Viewers;

/// What would be in the clear must not seem sealed.
pub(crate) fn not_sealed() -> io::Error {
    let message =
        "a daemon seals no connections: AIRDMA_SECRET and AIRDMA_DAEMON exclude each other";
    io::Error::new(io::ErrorKind::Unsupported, message)
}

/// Longest wait for sleeping threads to leave. They leave at once; one that does not (a stopped
/// thread) must not delay the others for ever.
const AWAY_TIME_MAX: Duration = Duration::from_secs(1);
const AWAY_PAUSE: Duration = Duration::from_micros(20);
/// How late another thread sends an ACK that waits for a reply, if the one that polls, or posts the
/// reply, does not: threads that sleep while others poll look for it this often, and so need not be
/// woken for each.
const ACK_LATE_MAX: Duration = Duration::from_millis(1);
/// Pause between two tries to lock the worker, for a thread that waits a limited time, and between
/// two rounds while time passes.
const LOCK_PAUSE: Duration = Duration::from_micros(100);

pub(crate) struct Core {
    pub(crate) info: DeviceInfo,
    /// What it was opened with.
    config: DeviceConfig,
    /// What the device is like, as far as the kernel was asked.
    state: Mutex<State>,
    /// Family of the last address of each row of the GID table, for threads that cannot wait for a
    /// lock: 0 for none, 4 or 6.
    families: Box<[AtomicU8; GIDS_MAX]>,
    /// Says when to ask again; none where the port is not the kernel's. The progress thread follows
    /// the interface by the watcher's monitor.
    link_monitor: Option<LinkMonitor>,
    /// What the kernel last said of paths.
    paths: RecentPaths,
    pub(crate) arena: Arena,
    pub(crate) doorbells: Doorbells,
    worker_lock: WorkerLock<Worker>,
    /// The process that made it; after a fork the child has no helper, and maybe a worker locked
    /// for ever.
    process: Process,
    clock: Clock,
    /// The port's descriptors, once it is bound. They change only while no thread sleeps on them.
    descriptors: Mutex<Vec<RawFd>>,
    /// Rises when they change.
    sockets: AtomicU64,
    /// Rises with each poll of a completion queue; shows whether the application polls.
    pub(crate) polls: AtomicU64,
    /// What it was at the last post to a queue pair of a connection without packets in flight.
    pub(crate) posted_at: AtomicU64,
    /// Whether requests wait for an event loop to come back.
    pub(crate) gathering: Gathering,
    /// The port broke: its descriptors would be ready for ever.
    broken: AtomicBool,
    /// The interface is gone for good.
    gone: AtomicBool,
    /// Run when the interface is gone.
    when_gone: Mutex<Vec<WhenGone>>,
    finish_time: Mutex<FinishTime>,
    pub(crate) progress_thread: ProgressThread,
    /// Get an event when the port breaks.
    listeners: Mutex<Vec<Weak<AsyncEvents>>>,
    /// Wakes threads that sleep when another process of this host writes to memory of this one;
    /// none where none does.
    bell: Option<Arc<Bell>>,
    /// The daemon that has the port and the queue pairs; none where this process has them.
    pub(crate) remote: Option<Arc<Remote>>,
    /// Where other processes have the same addresses, once the port is bound.
    steering: OnceLock<Arc<Steering>>,
    /// Processes that look at this device, once the port is bound and if the system allows it.
    pub(crate) viewers: OnceLock<Viewers>,
    /// Serial numbers for protection domains and completion queues.
    pub(crate) serial: AtomicU64,
}

impl Core {
    /// How long ends of connections wait.
    pub(crate) fn finish_time(&self) -> MutexGuard<'_, FinishTime> {
        self.finish_time
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new(
        info: DeviceInfo,
        config: DeviceConfig,
        clock: Clock,
        random: Random,
    ) -> io::Result<Self> {
        let arena = Arena::new();
        let mut worker = Worker::new(random, config.window);
        let tables = &mut worker.state;
        tables
            .air
            .control_rate(config.rate_control, line_rate(&info));
        tables.note_interface_mtu(info.mtu, Time::ZERO);
        tables.device.secret = config.secret.clone();
        let features = features_of(&config, &info.interface);
        if features != 0 {
            tables.offer(features);
        }
        Ok(Core {
            families: Box::new(families_of(&info.gids)),
            link_monitor: None,
            paths: RecentPaths::default(),
            state: Mutex::new(State {
                former: info.gids.iter().map(|entry| entry.address).collect(),
                current: info.clone(),
                incomplete: false,
            }),
            doorbells: Doorbells::new(&arena, DOORBELLS)?,
            worker_lock: WorkerLock::new(worker, EventFd::nonblocking()?),
            process: Process::current(),
            clock,
            descriptors: Mutex::default(),
            sockets: AtomicU64::new(0),
            polls: AtomicU64::new(0),
            posted_at: AtomicU64::new(u64::MAX),
            gathering: Gathering::new(),
            broken: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            when_gone: Mutex::default(),
            finish_time: Mutex::default(),
            progress_thread: ProgressThread::new()?,
            listeners: Mutex::default(),
            bell: config.local.then(Bell::new).transpose()?.map(Arc::new),
            remote: None,
            steering: OnceLock::new(),
            viewers: OnceLock::new(),
            serial: AtomicU64::new(1),
            arena,
            info,
            config,
        })
    }

    /// As [`Core::new`], for an interface of the kernel's, whose changes are followed.
    pub(crate) fn watching(info: DeviceInfo, config: DeviceConfig) -> io::Result<Self> {
        let of_interface = PathMtu::for_interface_mtu(info.mtu).unwrap_or(info.path_mtu);
        let info = DeviceInfo {
            path_mtu: config.path_mtu.unwrap_or(of_interface),
            ..info
        };
        let mut core = Self::new(info, config, Clock::running(), Random::kernel())?;
        let offers = features_of(&core.config, &core.info.interface) != 0;
        if core.config.daemon.is_none() && offers {
            let callers = Arc::clone(&core.progress_thread.callers);
            let presence = Presence::new(core.info.interface_index, callers);
            core.visit(|worker| worker.state.presence = Some(presence));
        }
        // Where a sandbox forbids it, the device is what it was when it was opened.
        let monitor = LinkMonitor::new(core.info.interface_index);
        core.link_monitor = LinkMonitor::unless_forbidden(monitor)?;
        if core.link_monitor.is_some() {
            // What changed before we listened.
            core.refresh(&mut core.state());
        }
        if let Some(path) = &core.config.daemon {
            if core.config.secret.is_some() {
                return Err(not_sealed());
            }
            let network = runtime_dir::network_namespace()?;
            let index = core.info.interface_index;
            let remote = Arc::new(Remote::connect(path, &core.arena, network, index)?);
            core.serial = AtomicU64::new(remote.first_serial());
            core.visit(|worker| {
                worker.state.remote = Some(Arc::clone(&remote));
                core.note_descriptors(worker);
            });
            core.remote = Some(remote);
        }
        Ok(core)
    }

    /// What it was opened with.
    pub(crate) fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Whether this is the process that opened the device. A child after fork must leave it alone.
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    /// As [`Core::is_ours`], at next to no cost, for the data path.
    #[inline]
    pub(crate) fn seems_ours(&self) -> bool {
        self.process.seems_current()
    }

    /// # Errors
    /// [`Error::Forked`] in a child process.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.is_ours() {
            Ok(())
        } else {
            Err(Error::Forked)
        }
    }

    pub(crate) fn next_serial(&self) -> Serial {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Whether a simulation moves its clock.
    pub(crate) fn is_simulated(&self) -> bool {
        self.clock.is_moved()
    }

    /// Moves the clock of a simulation.
    pub(crate) fn move_clock(&self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.clock.move_to(Time::from_nanos(nanos));
    }

    /// When the worker wants to be run again by itself, as of the last round.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let due = self.worker_lock.due();
        (due != NEVER).then(|| Time::from_nanos(due))
    }

    /// What the device holds on to.
    pub(crate) fn inventory(&self) -> Inventory {
        Inventory {
            ring_bytes: self.arena.used_bytes(),
            ..self.visit(|worker| worker.state.inventory())
        }
    }

    /// From now on peers whose rate is controlled are sent to as fast as this says.
    pub(crate) fn control_rate(&self, rate_control: RateControl) {
        let line_rate = line_rate(&self.info);
        self.visit(|worker| worker.state.air.control_rate(rate_control, line_rate));
    }

    /// From now on peers are offered these features beyond RoCEv2.
    pub(crate) fn offer(&self, features: u64) {
        self.visit(|worker| worker.state.offer(features));
    }

    /// Whether a daemon has the port and the queue pairs.
    pub(crate) fn is_at_daemon(&self) -> bool {
        self.remote.is_some()
    }

    /// From now on all connections of new queue pairs are sealed with this secret.
    pub(crate) fn share_secret(&self, secret: Secret) {
        self.visit(|worker| worker.state.device.secret = Some(secret));
    }

    pub(crate) fn asks_for_air(&self) -> bool {
        self.visit(|worker| worker.state.air.asks_for_air())
    }

    /// From now on peers without a rate controller are sent all that there is.
    pub(crate) fn lift_window(&self) {
        self.visit(|worker| worker.state.scheduler.peers.lift());
    }

    /// Counts a poll of a completion queue. Two threads may lose a count between them, which does
    /// no harm: the number still rises.
    pub(crate) fn note_poll(&self) {
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
    }

    /// Runs the worker if no other thread runs it. `None` if another thread does; that thread will
    /// see what was posted before this call. Does nothing in a child after fork.
    pub(crate) fn try_progress(&self, work: Work) -> Option<Round> {
        self.run(CoreRounds::new(self, work))
    }

    /// Lets requests leave that wait for others to join them, or for a thread to come back.
    pub(crate) fn flush(&self) {
        if !self.doorbells.is_empty() {
            self.try_progress(Work::Transmit);
        }
    }

    /// As [`Core::try_progress`] with all work, for a thread that sleeps next
    /// ([`Core::fall_asleep`]), or wakes the other threads if it does not sleep.
    pub(crate) fn progress_before_sleep(&self) -> Option<Round> {
        self.run(CoreRounds {
            sleeps_next: true,
            ..CoreRounds::new(self, Work::All)
        })
    }

    /// As [`Core::progress_before_sleep`], for a thread of the program's that waits for an event.
    /// ACKs leave at once: the peer's program may wait for one as well, and a thread that wakes
    /// early, and finds little to do, is awake when the reply arrives.
    pub(crate) fn progress_of_waiter(&self) -> Option<Round> {
        self.run(CoreRounds {
            sleeps_next: true,
            keeps_acks: false,
            ..CoreRounds::new(self, Work::All)
        })
    }

    /// As [`Core::progress_of_waiter`], for a thread that handles the events itself: ACKs may wait
    /// for its replies.
    pub(crate) fn progress_of_event_loop(&self) -> Option<Round> {
        self.run(CoreRounds {
            sleeps_next: true,
            replies_soon: true,
            ..CoreRounds::new(self, Work::All)
        })
    }

    fn run(&self, mut rounds: CoreRounds<'_>) -> Option<Round> {
        if self.seems_ours() {
            self.worker_lock.try_run(&mut rounds);
        }
        rounds.last
    }

    /// Calls `call` on the worker, as soon as the worker lock is free, and runs a round of the
    /// worker that transmits what follows from the call.
    pub(crate) fn control<R>(&self, call: impl FnOnce(&mut Worker, Time) -> R) -> R {
        let mut rounds = CoreRounds::new(self, Work::Transmit);
        self.worker_lock.with(&mut rounds, |worker| {
            let now = self.now();
            worker.send_delayed_ack(now);
            call(worker, now)
        })
    }

    /// Lets the worker handle the request of an application's object, with nothing beside it.
    ///
    /// # Errors
    /// As [`Worker::handle`].
    pub(crate) fn ask(&self, control: Control<'_>) -> Result<Reply, Error> {
        self.ask_with(control, Beside::Nothing)
    }

    /// As [`Core::ask`], with what goes beside the request.
    ///
    /// # Errors
    /// As [`Worker::handle`].
    pub(crate) fn ask_with(
        &self,
        control: Control<'_>,
        beside: Beside<'_>,
    ) -> Result<Reply, Error> {
        if let Some(remote) = &self.remote {
            // What was posted before is there when the daemon handles the request.
            self.flush();
            return remote.ask(control, beside);
        }
        if control.moves_sockets() {
            self.control_sockets(|worker, now| worker.handle(now, control, beside))
        } else {
            self.control(|worker, now| worker.handle(now, control, beside))
        }
    }

    /// As [`Core::ask`], but gives up when another thread keeps the worker for `time`. A call at
    /// the end of the process may come from a signal handler that interrupted the thread with the
    /// worker, which then never finishes.
    pub(crate) fn ask_within(
        &self,
        time: Duration,
        control: Control<'_>,
    ) -> Option<Result<Reply, Error>> {
        if let Some(remote) = &self.remote {
            return Some(remote.ask(control, Beside::Nothing));
        }
        let pause = wait_at_most(time, LOCK_PAUSE);
        let mut rounds = CoreRounds::new(self, Work::Transmit);
        self.worker_lock.with_within(&mut rounds, pause, |worker| {
            let now = self.now();
            worker.send_delayed_ack(now);
            worker.handle(now, control, Beside::Nothing)
        })
    }

    /// As [`Core::control`], for what opens or closes sockets. A thread that sleeps on a closed
    /// socket would keep it bound, and would not wake for a new one; so no thread sleeps during the
    /// call.
    pub(crate) fn control_sockets<R>(&self, call: impl FnOnce(&mut Worker, Time) -> R) -> R {
        let pause = wait_at_most(AWAY_TIME_MAX, AWAY_PAUSE);
        let mut rounds = CoreRounds::new(self, Work::Transmit);
        self.worker_lock
            .while_none_sleeps(&mut rounds, pause, |worker| {
                let now = self.now();
                worker.send_delayed_ack(now);
                let result = call(worker, now);
                self.note_descriptors(worker);
                result
            })
    }

    /// Calls `call` on the worker, as soon as the worker lock is free. `call` must leave nothing to
    /// send.
    fn visit<R>(&self, call: impl FnOnce(&mut Worker) -> R) -> R {
        self.worker_lock
            .visit(&mut CoreRounds::new(self, Work::Transmit), call)
    }

    /// The port broke: its descriptors would be ready for ever.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Binds the port, if that was not done, and starts the progress thread.
    ///
    /// # Errors
    /// What the port says, with its `errno`; a wrong `AIRDMA_IMPAIR` is `EINVAL`.
    pub(crate) fn bind(self: &Arc<Self>) -> Result<(), Error> {
        if self.remote.is_some() {
            return self.start_progress_thread();
        }
        self.take_link_changes();
        // Held so that the table does not change under the sockets.
        let state = self.state();
        let is_first = self.visit(|worker| -> Result<bool, Error> {
            if worker.is_bound() {
                return Ok(false);
            }
            let (port, steering) = self.open_port(&state.current.gids)?;
            worker.state.counters.share(&self.info.interface);
            if let Some(steering) = &steering {
                // The first time that it is set: a port is bound once.
                let _ = self.steering.set(Arc::clone(steering));
                if let Some(fd) = steering.departures_fd() {
                    // Refused for want of memory: then packets that go astray tell.
                    let _ = self.progress_thread.watch(fd);
                }
            }
            self.install(worker, port, &state.current.gids, steering);
            Ok(true)
        })?;
        drop(state);
        if is_first {
            self.notify_orphaned_peers();
            self.admit_viewers();
        }
        self.start_progress_thread()
    }

    /// From now on other processes can look at the device.
    fn admit_viewers(self: &Arc<Self>) {
        // Where the system forbids it the device is not seen.
        if let Ok(viewers) = Viewers::open(Arc::downgrade(self), self.info.interface_index)
            && (self.progress_thread.callers)
                .add_as(viewers.fd(), Caller::Viewer as u64)
                .is_ok()
        {
            // The first time that it is set: a port is bound once.
            let _ = self.viewers.set(viewers);
        }
    }

    /// Uses this port instead of sockets; the counters stay in this process.
    pub(crate) fn bind_port(&self, port: Box<dyn Port>) {
        self.visit(|worker| self.install(worker, port, &self.info.gids, None));
    }

    fn install(
        &self,
        worker: &mut Worker,
        port: Box<dyn Port>,
        rows: &[GidEntry],
        steering: Option<Arc<Steering>>,
    ) {
        let rows = addresses_of(rows).into_iter();
        let rows = rows.map(|row| row.map(Neighbour::from)).collect();
        worker.bind(port, rows, steering);
        self.note_descriptors(worker);
        // A thread may be waiting on a completion channel already: it does not know of the sockets,
        // and keeps the progress thread away.
        if self.has_sleepers() {
            self.worker_lock.wake_sleepers();
        }
    }

    fn start_progress_thread(self: &Arc<Self>) -> Result<(), Error> {
        if self.clock.is_moved() {
            return Ok(());
        }
        self.progress_thread
            .start(Arc::clone(self) as Arc<dyn Device>)
            .map_err(|error| Error::system("starting the helper thread of the device", &error))
    }

    /// Sends the ACK that waits for a reply, and publishes the counters, if no thread has the
    /// worker: the process ends.
    pub(crate) fn try_finish(&self) {
        if self.is_ours() {
            let mut rounds = CoreRounds::new(self, Work::Transmit);
            self.worker_lock.try_visit(&mut rounds, |worker| {
                worker.send_delayed_ack(self.now());
                self.count(worker);
            });
        }
    }

    /// The counters, the port's included.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        self.visit(|worker| {
            self.count(worker);
            worker.state.counters.named()
        })
    }

    fn count(&self, worker: &mut Worker) {
        worker.count_port(self.now());
        worker.state.counters.flush();
    }

    /// Adds a queue to those that get the events of the port.
    pub(crate) fn add_listener(&self, events: &Arc<AsyncEvents>) {
        let mut listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(events));
    }

    fn notify_listeners(&self, event: AsyncEvent) {
        let listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for events in listeners.iter().filter_map(Weak::upgrade) {
            events.push((EventOwner::Device, event));
        }
    }
}

/// What peers are offered. Reports cost more than they bring on a wire, unless the peer is on the
/// air.
fn features_of(config: &DeviceConfig, interface: &str) -> u64 {
    if !config.has_air() {
        return if config.sack { feature::SACK } else { 0 };
    }
    let reports = config.air == Air::Ask || interface::is_wireless(interface);
    let optional = [
        (reports, feature::REPORTS),
        (config.bundles, feature::BUNDLES),
    ];
    let optional = optional.into_iter().filter(|(wanted, _)| *wanted);
    optional.fold(feature::SELECTIVE | feature::SACK, |all, (_, one)| {
        all | one
    })
}

/// Rounds of one caller.
struct CoreRounds<'a> {
    core: &'a Core,
    work: Work,
    /// The last one, with what all of them received.
    last: Option<Round>,
    sleeps_next: bool,
    /// Whether ACKs may wait for replies.
    keeps_acks: bool,
    /// Whether the thread itself handles the events that it raises, and so replies soon.
    replies_soon: bool,
}

impl<'a> CoreRounds<'a> {
    fn new(core: &'a Core, work: Work) -> Self {
        CoreRounds {
            core,
            work,
            last: None,
            sleeps_next: false,
            keeps_acks: true,
            replies_soon: false,
        }
    }
}

impl Rounds<Worker> for CoreRounds<'_> {
    fn run(&mut self, worker: &mut Worker) -> Left {
        // Packets go and come in cancellation points.
        let _whole = Uncancelled::new();
        let core = self.core;
        let now = core.now();
        let (keeps_acks, sleeps_next) = (self.keeps_acks, self.sleeps_next);
        let oversleeps = || {
            let late = now + ACK_LATE_MAX;
            core.worker_lock.would_oversleep(late.as_nanos())
        };
        // A program that waits for events replies late, and its peer may do so as well: it would be
        // woken for the reply before its request has ended.
        let replies_late = |raised| raised && !self.replies_soon;
        let keeps_acks =
            |raised| keeps_acks && !replies_late(raised) && (sleeps_next || !oversleeps());
        let mut round = worker.progress(&core.doorbells, now, self.work, keeps_acks);
        round.received += self.last.map_or(0, |last| last.received);
        self.last = Some(round);
        let mut ack_due = round.ack_due;
        if ack_due != Time::NEVER && !self.sleeps_next && !core.is_simulated() {
            // This thread polls again, or another one comes by then.
            ack_due = now + ACK_LATE_MAX;
        }
        let due = round.deadline.min(ack_due).as_nanos();
        Left {
            due: if round.more { 0 } else { due },
            unsent: if round.unsent {
                round.stopped_at.unwrap_or(ROOM_ANYWHERE)
            } else {
                NO_ROOM_WANTED
            },
        }
    }

    fn settle(&mut self) {
        if let Some(round) = self.last
            && (round.broke || round.misrouted || round.unanswered)
        {
            self.core.settle_rare(round);
        }
    }

    fn is_rung(&self) -> bool {
        !self.core.doorbells.is_empty()
    }

    fn sleeps_next(&self) -> bool {
        self.sleeps_next
    }
}

impl Core {
    /// Handles what few rounds have, outside the worker lock.
    #[cold]
    fn settle_rare(&self, round: Round) {
        if round.broke {
            self.broken.store(true, Ordering::SeqCst);
            self.notify_listeners(AsyncEvent::DeviceFatal);
        }
        if round.misrouted {
            self.progress_thread.wake();
        }
        if round.unanswered {
            self.check_unanswered();
        }
    }
}

/// Returns a function that sleeps for `pause` and returns true until `time` has passed since its
/// first call, and false from then on.
fn wait_at_most(time: Duration, pause: Duration) -> impl FnMut() -> bool {
    let mut start = None;
    move || {
        let goes_on = start.get_or_insert_with(Instant::now).elapsed() < time;
        if goes_on {
            std::thread::sleep(pause);
        }
        goes_on
    }
}

#[cfg(test)]
mod tests;
