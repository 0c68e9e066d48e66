//! What the threads of a process share of one device: the worker, who runs it ([`crate::relay`]), and what it is run with.

use crate::air::RateControl;
use crate::async_event::{AsyncEvents, EventOwner};
use crate::clock::Clock;
use crate::devices::look_at;
use crate::eventfd::EventFd;
use crate::gids::{GIDS_MAX, GidEntry, changes};
use crate::gsi::Gsi;
use crate::helper::Helper;
use crate::news::News;
use crate::process::Process;
use crate::qp_shared::DOORBELLS;
use crate::random::Random;
use crate::relay::{Left, NEVER, NO_ROOM_WANTED, ROOM_ANYWHERE, Relay, Rounds};
use crate::simulated::Inventory;
use crate::steering::{self, JoinError, Steering};
use crate::wait::{Descriptors, Waited};
use crate::wills::Estate;
use crate::worker::{Round, Work, Worker};
use crate::{AsyncEvent, DeviceInfo, Error, Uncancelled};
use airdma_port::impair::{Impaired, Impairment};
use airdma_port::{BindError, Port, UdpConfig, UdpPort};
use airdma_shm::{Arena, Doorbells};
use airdma_transport::Time;
use airdma_transport::rate::Rate;
use airdma_wire::air::feature;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Those who sleep are on their way out at once; one that is not (a stopped thread) must not hold up the others for ever.
const AWAY_TIME_MAX: Duration = Duration::from_secs(1);
const AWAY_PAUSE: Duration = Duration::from_micros(20);
/// Between two tries to get the worker, for those who do not wait for ever, and between two rounds while time passes.
const LOCK_PAUSE: Duration = Duration::from_micros(100);

pub(crate) struct Core {
    pub(crate) info: DeviceInfo,
    /// What the device is like, as far as the kernel was asked.
    state: Mutex<State>,
    /// Family of the last address of each row of the GID table, for those who cannot wait: 0 for none, 4 or 6.
    families: Box<[AtomicU8; GIDS_MAX]>,
    /// Says when to ask again; none where the port is not the kernel's.
    news: Option<News>,
    pub(crate) arena: Arena,
    pub(crate) doorbells: Doorbells,
    relay: Relay<Worker>,
    /// The process that made it; after a fork the child has no helper, and maybe a worker locked for ever.
    process: Process,
    clock: Clock,
    /// The port's descriptors, once it is bound. They change while nobody sleeps on them.
    descriptors: Mutex<Vec<RawFd>>,
    /// Rises with each poll of a completion queue: whether somebody polls.
    pub(crate) polls: AtomicU64,
    /// The port broke: its descriptors would be ready for ever.
    broken: AtomicBool,
    pub(crate) helper: Helper,
    /// Who is told when the port breaks.
    listeners: Mutex<Vec<Weak<AsyncEvents>>>,
    /// Where other processes have the same addresses, once the port is bound.
    steering: OnceLock<Arc<Steering>>,
    /// Serial numbers for protection domains and completion queues.
    serial: AtomicU64,
}

/// What changes with the interface.
struct State {
    /// With the GID table of the device.
    current: DeviceInfo,
    /// The address that each row of the table had last.
    former: Vec<IpAddr>,
    /// An address could not be used: to be tried again.
    incomplete: bool,
}

/// Sockets, and what is shared with other processes.
type Opened = (Box<dyn Port>, Option<Arc<Steering>>);

fn families_of(rows: &[GidEntry]) -> [AtomicU8; GIDS_MAX] {
    std::array::from_fn(|index| AtomicU8::new(rows.get(index).map_or(0, family_of)))
}

fn addresses_of(rows: &[GidEntry]) -> Vec<Option<IpAddr>> {
    let address = |entry: &GidEntry| (!entry.is_empty()).then_some(entry.address);
    rows.iter().map(address).collect()
}

fn family_of(entry: &GidEntry) -> u8 {
    if entry.address.is_ipv4() { 4 } else { 6 }
}

/// Ceiling of the window to one peer, in bytes, from the environment.
fn window_asked_for() -> Option<u32> {
    let asked = std::env::var("AIRDMA_WINDOW_BYTES").ok()?;
    asked.parse().ok()
}

/// Whether something that peers can be offered beyond RoCEv2 is asked for in the environment.
fn is_asked_for(name: &str) -> bool {
    std::env::var(name).is_ok_and(|asked| asked == "1")
}

/// How fast peers are sent to whose rate is controlled, from the environment.
fn rate_control_asked_for() -> io::Result<RateControl> {
    let Ok(asked) = std::env::var("AIRDMA_RATE") else {
        return Ok(RateControl::default());
    };
    RateControl::from_name(&asked).ok_or_else(|| {
        let message =
            format!("AIRDMA_RATE is {asked:?}; it may be buffers, latency, dctcp, dcqcn or window");
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })
}

/// Whether packets may leave in bundles, to peers that take them, from the environment.
fn bundles_asked_for() -> io::Result<bool> {
    match std::env::var("AIRDMA_AGGREGATE").as_deref() {
        Ok("datagrams") => Ok(true),
        Ok("segments") | Err(_) => Ok(false),
        Ok(asked) => {
            let message = format!("AIRDMA_AGGREGATE is {asked:?}; it may be segments or datagrams");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }
}

/// What the interface says of itself.
fn line_rate(info: &DeviceInfo) -> Option<Rate> {
    let bits_per_s = u64::from(info.speed_mbps?) * 1_000_000;
    Some(Rate::from_bits_per_s(bits_per_s))
}

impl Core {
    pub(crate) fn new(info: DeviceInfo, clock: Clock, random: Random) -> io::Result<Self> {
        let arena = Arena::new();
        // A simulation is the same wherever it runs.
        let asks = !clock.is_moved();
        let mut worker = Worker::new(random, window_asked_for().filter(|_| asks));
        let tables = &mut worker.tables;
        let rate_control = if asks {
            rate_control_asked_for()?
        } else {
            RateControl::default()
        };
        tables.control_rate(rate_control, line_rate(&info));
        if asks && is_asked_for("AIRDMA_AIR") {
            tables.offer(feature::SELECTIVE);
            if bundles_asked_for()? {
                tables.offer(feature::BUNDLES);
            }
        }
        if asks && is_asked_for("AIRDMA_SACK") {
            tables.offer(feature::SACK);
        }
        Ok(Core {
            families: Box::new(families_of(&info.gids)),
            news: None,
            state: Mutex::new(State {
                former: info.gids.iter().map(|entry| entry.address).collect(),
                current: info.clone(),
                incomplete: false,
            }),
            doorbells: Doorbells::new(&arena, DOORBELLS)?,
            relay: Relay::new(worker, EventFd::nonblocking()?),
            process: Process::current(),
            clock,
            descriptors: Mutex::default(),
            polls: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            helper: Helper::new()?,
            listeners: Mutex::default(),
            steering: OnceLock::new(),
            serial: AtomicU64::new(1),
            arena,
            info,
        })
    }

    /// As [`Core::new`], for an interface of the kernel's, whose changes are followed.
    pub(crate) fn watching(info: DeviceInfo) -> io::Result<Self> {
        let mut core = Self::new(info, Clock::running(), Random::Kernel)?;
        // Where a sandbox forbids it, the device is what it was when it was opened.
        core.news = News::new(core.info.interface_index).ok();
        if core.news.is_some() {
            // What changed before we listened.
            core.look(&mut core.state());
        }
        Ok(core)
    }

    /// Readable while the kernel has said something that nobody took in.
    pub(crate) fn news_fd(&self) -> Option<RawFd> {
        self.news.as_ref().map(News::fd)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the device is like, as of the last [`Core::take_news`].
    pub(crate) fn current(&self) -> DeviceInfo {
        self.state().current.clone()
    }

    /// The address in that row of the GID table.
    pub(crate) fn address(&self, row: u8) -> Option<IpAddr> {
        let state = self.state();
        let entry = state.current.gids.get(usize::from(row))?;
        (!entry.is_empty()).then_some(entry.address)
    }

    /// Whether the row of the GID table has, or had, an IPv4 address; `None` if it never had one.
    pub(crate) fn source_was_ipv4(&self, row: u8) -> Option<bool> {
        match self.families[usize::from(row)].load(Ordering::Relaxed) {
            0 => None,
            family => Some(family == 4),
        }
    }

    /// Takes in what the kernel has said about the interface, and tells everybody what changed. Returns whether it had said
    /// anything. Costs a system call if not.
    pub(crate) fn take_news(&self) -> bool {
        let Some(news) = self.news.as_ref().filter(|_| self.is_ours()) else {
            return false;
        };
        let mut state = self.state();
        // Who finds nothing to drain waits for the one that is at it.
        let said_something = news.drain();
        if said_something || state.incomplete {
            let events = self.look(&mut state);
            drop(state);
            for event in events {
                self.tell_all(event);
            }
        }
        said_something
    }

    /// Looks at the interface, and brings the table and the sockets up to date. Returns what is worth an event.
    fn look(&self, state: &mut State) -> Vec<AsyncEvent> {
        // If the kernel does not say, the device stays as it was until there is news again.
        let Ok(seen) = look_at(&self.info) else {
            return Vec::new();
        };
        let addresses: Vec<_> = seen.gids.iter().map(|entry| entry.address).collect();
        let was_up = state.current.up;
        let before = std::mem::replace(&mut state.current, seen);
        state.current.gids = before.gids.clone();
        let changes = changes(&before.gids, &state.former, &addresses);
        if changes.is_empty() {
            // What could not be used is gone as well.
            state.incomplete = false;
        } else {
            state.incomplete = !self.control_sockets(|worker, now| {
                let mut complete = true;
                for (row, address) in changes {
                    if worker.set_address(now, row, address).is_ok() {
                        self.note_address(state, row, address);
                    } else {
                        // Another program has it: it is not ours to offer, now.
                        complete = false;
                    }
                }
                complete
            });
        }
        let mut events = Vec::new();
        match (was_up, state.current.up) {
            (false, true) => events.push(AsyncEvent::PortActive),
            (true, false) => events.push(AsyncEvent::PortError),
            (true, true) | (false, false) => {}
        }
        if before.gids != state.current.gids {
            events.push(AsyncEvent::GidChange);
        }
        events
    }

    fn note_address(&self, state: &mut State, row: u8, address: Option<IpAddr>) {
        let index = usize::from(row);
        while state.current.gids.len() <= index {
            state.current.gids.push(GidEntry::EMPTY);
            state.former.push(GidEntry::EMPTY.address);
        }
        let entry = address.map_or(GidEntry::EMPTY, GidEntry::from);
        state.current.gids[index] = entry;
        if !entry.is_empty() {
            state.former[index] = entry.address;
            self.families[index].store(family_of(&entry), Ordering::Relaxed);
        }
    }

    /// Whether this is the process that opened the device. A child after fork must leave it alone.
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    /// The same at next to no cost, for the data path.
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

    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Moves the clock of a simulation.
    pub(crate) fn move_clock(&self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.clock.move_to(Time::from_nanos(nanos));
    }

    /// When the worker wants to be run again by itself, as of the last round.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let due = self.relay.due();
        (due != NEVER).then(|| Time::from_nanos(due))
    }

    /// What the device holds on to.
    pub(crate) fn inventory(&self) -> Inventory {
        Inventory {
            ring_bytes: self.arena.used_bytes(),
            ..self.visit(|worker| worker.tables.inventory())
        }
    }

    /// From now on peers whose rate is controlled are sent to as fast as this says.
    pub(crate) fn control_rate(&self, rate_control: RateControl) {
        let line_rate = line_rate(&self.info);
        self.visit(|worker| worker.tables.control_rate(rate_control, line_rate));
    }

    /// From now on peers are offered these features beyond RoCEv2.
    pub(crate) fn offer(&self, features: u64) {
        self.visit(|worker| worker.tables.offer(features));
    }

    /// From now on peers without a rate controller are sent all that there is.
    pub(crate) fn lift_window(&self) {
        self.visit(|worker| worker.tables.peers.lift());
    }

    /// Somebody polls a completion queue. A count lost between two threads does no harm: it still rises.
    pub(crate) fn note_poll(&self) {
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
    }

    /// Runs the worker if nobody else does. `None` if somebody does; they will see to what was posted before this call.
    /// Nothing at all happens in a child after fork.
    pub(crate) fn try_progress(&self, work: Work) -> Option<Round> {
        self.run(CoreRounds::new(self, work))
    }

    /// The same for one who goes to bed next ([`Core::fall_asleep`]), or wakes the others when he does not.
    pub(crate) fn progress_before_sleep(&self) -> Option<Round> {
        self.run(CoreRounds {
            goes_to_bed: true,
            ..CoreRounds::new(self, Work::All)
        })
    }

    fn run(&self, mut rounds: CoreRounds<'_>) -> Option<Round> {
        if self.seems_ours() {
            self.relay.try_run(&mut rounds);
        }
        rounds.last
    }

    /// Does something with the worker, whoever has it now, and lets the device draw the consequences at once.
    pub(crate) fn control<R>(&self, call: impl FnOnce(&mut Worker, Time) -> R) -> R {
        let mut rounds = CoreRounds::new(self, Work::Transmit);
        self.relay
            .with(&mut rounds, |worker| call(worker, self.now()))
    }

    /// As [`Core::control`], unless somebody keeps the worker for so long: whoever calls at the end of a process may have
    /// interrupted him, and never give him the time to finish.
    pub(crate) fn control_within<R>(
        &self,
        time: Duration,
        call: impl FnOnce(&mut Worker, Time) -> R,
    ) -> Option<R> {
        let pause = wait_at_most(time, LOCK_PAUSE);
        let mut rounds = CoreRounds::new(self, Work::Transmit);
        self.relay
            .with_within(&mut rounds, pause, |worker| call(worker, self.now()))
    }

    /// As [`Core::control`], for what opens or closes sockets. Who sleeps on a closed one would keep it bound, and not hear
    /// of a new one: so nobody sleeps meanwhile.
    pub(crate) fn control_sockets<R>(&self, call: impl FnOnce(&mut Worker, Time) -> R) -> R {
        let pause = wait_at_most(AWAY_TIME_MAX, AWAY_PAUSE);
        let mut rounds = CoreRounds::new(self, Work::Transmit);
        self.relay.with_nobody_asleep(&mut rounds, pause, |worker| {
            let result = call(worker, self.now());
            self.note_descriptors(worker);
            result
        })
    }

    /// Looks at the worker, or does something with it that leaves nothing to send.
    fn visit<R>(&self, call: impl FnOnce(&mut Worker) -> R) -> R {
        self.relay
            .visit(&mut CoreRounds::new(self, Work::Transmit), call)
    }

    fn note_descriptors(&self, worker: &Worker) {
        let mut descriptors = self
            .descriptors
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        descriptors.clear();
        worker.descriptors(&mut descriptors);
    }

    /// Whether somebody sleeps until there is work. If not, whoever is about to will see what was done before this call.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.relay.has_sleepers()
    }

    /// Sleeps until the port has something, a timer is due, something is to be done, or `also` is readable. Does not sleep at all
    /// if there is something to do. Returns whether `also` is readable.
    ///
    /// # Errors
    /// `EINTR`.
    pub(crate) fn sleep(&self, descriptors: &mut Descriptors, also: RawFd) -> io::Result<bool> {
        match self.fall_asleep(descriptors, also) {
            Some(timeout) => {
                let waited = descriptors.wait(timeout);
                self.wake_up(descriptors, waited)
            }
            None => Ok(false),
        }
    }

    /// The first half of [`Core::sleep`]: names the descriptors to sleep on, and the time after which to wake (`None`: never).
    /// Whoever gets them owes a [`Core::wake_up`] or a [`Core::leave_bed`]. `None` if there is something to do.
    pub(crate) fn fall_asleep(
        &self,
        descriptors: &mut Descriptors,
        also: RawFd,
    ) -> Option<Option<Duration>> {
        let now = || self.now().as_nanos();
        let due = self.relay.fall_asleep(|| !self.doorbells.is_empty(), now)?;
        self.list(descriptors, also);
        let timeout = (due != NEVER).then(|| Duration::from_nanos(due.saturating_sub(now())));
        Some(timeout)
    }

    /// The second half of [`Core::sleep`].
    pub(crate) fn wake_up(
        &self,
        descriptors: &Descriptors,
        waited: io::Result<Waited>,
    ) -> io::Result<bool> {
        let ready = waited.map(|waited| waited == Waited::Ready);
        let called = matches!(ready, Ok(true)) && descriptors.is_ready(0);
        self.relay.wake_up(called);
        Ok(ready? && descriptors.is_ready(1))
    }

    /// A thread sleeps no more.
    pub(crate) fn leave_bed(&self) {
        self.relay.leave_bed();
    }

    /// A thread that was blocked on a completion channel, and ran the worker, leaves.
    pub(crate) fn stop_waiting(&self) {
        self.helper.standby.leave(&self.relay, &self.helper.wake);
    }

    /// The helper sleeps with `nap` while there are such threads.
    pub(crate) fn stand_by(&self, nap: impl FnOnce()) {
        self.helper.standby.stand_by(&self.relay, nap);
    }

    /// What a sleeper sleeps on: `wake`, `also`, and the port's.
    fn list(&self, descriptors: &mut Descriptors, also: RawFd) {
        let unsent = self.relay.unsent();
        descriptors.clear();
        descriptors.add(self.relay.wake().fd());
        descriptors.add(also);
        if self.broken.load(Ordering::SeqCst) {
            return;
        }
        let port = self
            .descriptors
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for &fd in port.iter() {
            if unsent == fd || unsent == ROOM_ANYWHERE {
                descriptors.add_writable(fd);
            } else {
                descriptors.add(fd);
            }
        }
    }

    /// Binds the port, if that was not done, and starts the helper.
    ///
    /// # Errors
    /// What the port says, with its `errno`; a wrong `AIRDMA_IMPAIR` is `EINVAL`.
    pub(crate) fn bind(self: &Arc<Self>) -> Result<(), Error> {
        self.take_news();
        // Held so that the table does not change under the sockets.
        let state = self.state();
        let is_first = self.visit(|worker| -> Result<bool, Error> {
            if worker.is_bound() {
                return Ok(false);
            }
            let (port, steering) = self.open_port(&state.current.gids)?;
            worker.tables.counters.share(&self.info);
            if let Some(steering) = &steering {
                // The first time that it is set: a port is bound once.
                let _ = self.steering.set(Arc::clone(steering));
                if let Some(fd) = steering.departures_fd() {
                    // Refused for want of memory: then packets that go astray tell.
                    let _ = self.helper.watch(fd);
                }
            }
            self.install(worker, port, &state.current.gids, steering);
            Ok(true)
        })?;
        drop(state);
        if is_first {
            self.speak_for_the_dead();
        }
        self.start_helper()
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
        worker.bind(port, addresses_of(rows), steering);
        self.note_descriptors(worker);
        // A thread may be waiting on a completion channel already: it does not know of the sockets, and keeps the helper away.
        if self.has_sleepers() {
            self.relay.wake_sleepers();
        }
    }

    /// The sockets; with other processes, where there can be any, and else for this one alone.
    fn open_port(&self, rows: &[GidEntry]) -> Result<Opened, Error> {
        let addresses = addresses_of(rows);
        let config = UdpConfig {
            segmentation: std::env::var_os("AIRDMA_SEGMENTATION")
                .is_none_or(|value| value != "off"),
            ..UdpConfig::default()
        };
        let bind_error = |error: BindError| Error::System {
            errno: error.errno(),
            message: error.to_string(),
        };
        let steering = match Steering::join(self.info.interface_index, config.port) {
            Ok(steering) => Some(steering),
            Err(JoinError::Locked(process)) => {
                return Err(bind_error(steering::locked(&addresses, process)));
            }
            // Then the addresses are this process's alone, or nobody's.
            Err(JoinError::Impossible) => None,
        };
        let open = || {
            let config = UdpConfig {
                share: steering.is_some(),
                ..config.clone()
            };
            UdpPort::bind_table(&addresses, self.info.interface_index, config)
        };
        let port = match &steering {
            Some(steering) => steering.bind(&addresses, open),
            None => open(),
        };
        let port = port.map_err(bind_error)?;
        let Ok(spec) = std::env::var("AIRDMA_IMPAIR") else {
            return Ok((Box::new(port), steering));
        };
        let impairment: Impairment = spec.parse().map_err(|error| Error::System {
            errno: libc::EINVAL,
            message: format!("AIRDMA_IMPAIR: {error}"),
        })?;
        Ok((Box::new(Impaired::new(port, impairment)), steering))
    }

    /// Whether [`Core::heal`] is to be called.
    pub(crate) fn wants_healing(&self) -> bool {
        self.steering
            .get()
            .is_some_and(|steering| steering.wants_healing())
    }

    /// Finds out why packets of other processes come to this one: some milliseconds at most.
    pub(crate) fn heal(&self) {
        self.control(|worker, now| worker.heal(now));
    }

    /// Somebody who shares the addresses may have ended: if so, what they had is taken over.
    pub(crate) fn look_after_others(&self) {
        let somebody_left = |steering: &Arc<Steering>| steering.somebody_left();
        if !self.steering.get().is_some_and(somebody_left) {
            return;
        }
        // They may be on their way out only. The device goes on meanwhile.
        for pause in [0, 1, 5, 20] {
            self.progress_for(Duration::from_millis(pause));
            if self.control(|worker, now| worker.mourn(now)) {
                break;
            }
        }
        self.speak_for_the_dead();
    }

    /// Lets time pass, in which nobody has to wait for what comes.
    fn progress_for(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.try_progress(Work::All);
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    /// Peers of processes that died at these addresses hear of it.
    fn speak_for_the_dead(&self) {
        let estate = Estate::of(self.info.interface_index);
        if !estate.words.is_empty() {
            self.control(|worker, now| {
                worker.open_gsi(now, self.info.guid, self.info.interface_index);
                if let Some(gsi) = &mut worker.tables.gsi {
                    gsi.say(now, &estate.words);
                }
            });
        }
        estate.settled();
    }

    /// Tells the processes that share the addresses that this one is gone. The device is of no use after that.
    pub(crate) fn leave(&self) {
        if self.steering.get().is_some() {
            self.visit(|worker| worker.leave(self.now()));
        }
    }

    /// In the child of a fork, which has the device no more than it has the helper: what would make the parent seem to live,
    /// or hold its place at an address, is closed. Something harmless takes the numbers of those descriptors.
    pub(crate) fn abandon(&self) {
        let close = |fd: RawFd| {
            // SAFETY: plain integers; the new descriptor is one of ours, which nobody uses in this process.
            unsafe { libc::dup3(self.relay.wake().fd(), fd, libc::O_CLOEXEC) };
        };
        if let Some(steering) = self.steering.get() {
            close(steering.life());
            // Held by a thread of the parent's at worst, and then they stay open.
            if let Ok(descriptors) = self.descriptors.try_lock() {
                descriptors.iter().copied().for_each(close);
            }
        }
        self.relay.peek(|worker| {
            let gsi = worker.tables.gsi.as_ref();
            gsi.and_then(Gsi::will_fd).into_iter().for_each(close);
        });
    }

    fn start_helper(self: &Arc<Self>) -> Result<(), Error> {
        if self.clock.is_moved() {
            return Ok(());
        }
        self.helper
            .start(self)
            .map_err(|error| Error::system("starting the helper thread of the device", &error))
    }

    /// Publishes the counters if nobody has the worker.
    pub(crate) fn try_count(&self) {
        if self.is_ours() {
            let mut rounds = CoreRounds::new(self, Work::Transmit);
            self.relay
                .try_visit(&mut rounds, |worker| self.count(worker));
        }
    }

    /// The counters, the port's included.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        self.visit(|worker| {
            self.count(worker);
            worker.tables.counters.named()
        })
    }

    fn count(&self, worker: &mut Worker) {
        worker.count_port(self.now());
        worker.tables.counters.flush();
    }

    /// Adds to those who hear of what happens to the port.
    pub(crate) fn add_listener(&self, events: &Arc<AsyncEvents>) {
        let mut listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(events));
    }

    fn tell_all(&self, event: AsyncEvent) {
        let listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for events in listeners.iter().filter_map(Weak::upgrade) {
            events.push((EventOwner::Device, event));
        }
    }
}

/// Rounds of one caller.
struct CoreRounds<'a> {
    core: &'a Core,
    work: Work,
    /// The last one, with what all of them received.
    last: Option<Round>,
    goes_to_bed: bool,
}

impl<'a> CoreRounds<'a> {
    fn new(core: &'a Core, work: Work) -> Self {
        CoreRounds {
            core,
            work,
            last: None,
            goes_to_bed: false,
        }
    }
}

impl Rounds<Worker> for CoreRounds<'_> {
    fn run(&mut self, worker: &mut Worker) -> Left {
        // Packets go and come in cancellation points.
        let _whole = Uncancelled::new();
        let core = self.core;
        let mut round = worker.progress(&core.doorbells, core.now(), self.work);
        round.received += self.last.map_or(0, |last| last.received);
        self.last = Some(round);
        let wanted = round.stopped_at.unwrap_or(ROOM_ANYWHERE);
        Left {
            due: if round.more {
                0
            } else {
                round.deadline.map_or(NEVER, Time::as_nanos)
            },
            unsent: if round.unsent { wanted } else { NO_ROOM_WANTED },
        }
    }

    fn settle(&mut self) {
        let Some(round) = self.last else { return };
        if round.broke {
            self.core.broken.store(true, Ordering::SeqCst);
            self.core.tell_all(AsyncEvent::DeviceFatal);
        }
        if round.misrouted {
            self.core.helper.wake();
        }
    }

    fn is_rung(&self) -> bool {
        !self.core.doorbells.is_empty()
    }

    fn goes_to_bed(&self) -> bool {
        self.goes_to_bed
    }
}

/// Pauses, until so much time has passed since the first.
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
