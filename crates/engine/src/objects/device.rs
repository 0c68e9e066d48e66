//! An opened device.

mod opened;

use crate::PathMtu;
use crate::clock::Clock;
use crate::control::{Beside, Control, NewCompletionQueue, QueueControl, Reply, WRONG_REPLY};
use crate::core::{Core, not_sealed};
use crate::counter_names::{SOCKET_START, SocketCounter};
use crate::environment::Snapshot;
use crate::host::interface::InterfaceQuery;
use crate::host::neighbour;
use crate::objects::pd::check_path;
use crate::progress::poll_set::PollSet;
use crate::queues::async_event::AsyncEvents;
use crate::queues::cq_shared::ChannelEvents;
use crate::queues::cq_shared::CqOptions;
use crate::random::Random;
use crate::seal::Secret;
use crate::sharing::counters_file::CountersFile;
use crate::{
    AsyncEvent, AsyncWait, Channel, CompletionCounter, CounterUnit, Cq, DeviceConfig, DeviceInfo,
    Dm, Error, EventWait, LIMITS, Limits, Path, Pd, Xrcd,
};
use airdma_port::Port;
use airdma_shm::{Cqe, RingConsumer, RingProducer, ring};
use opened::{OPEN, Opened, find_open, finish_at_exit, hold_while_forking};
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

/// An address on an Ethernet link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// MAC address of the interface there.
    pub mac: [u8; 6],
    /// The VLAN, if the device is on the interface of one.
    pub vlan: Option<u16>,
}

/// One opened device, as `ibv_open_device` gives it: each call of [`Device::open`] returns a new
/// one with its own queue of asynchronous events, while the worker behind it is shared by all of
/// this process and interface.
pub struct Device {
    shared: Arc<SharedCore>,
    pub(crate) events: Arc<AsyncEvents>,
    /// Readable while an event waits, or the kernel says something about the interface.
    async_fd: PollSet,
}

/// The worker of an interface with its helper thread. Goes when the last device on it does.
struct SharedCore {
    core: Arc<Core>,
    pds: AtomicU32,
    completion_counters: AtomicU32,
    ahs: AtomicU32,
    /// The counters file, for what the library for socket programs counts.
    counters: OnceLock<Option<CountersFile>>,
}

impl Device {
    /// Opens a device as the environment asks ([`DeviceConfig::from_environment`]). Sockets are
    /// bound and threads started at the first queue pair only.
    ///
    /// While the process has the interface open, each further device on it has the worker, the GID
    /// table and the configuration of the first: also where that is one of [`Device::open_with`],
    /// which takes precedence over the environment.
    ///
    /// # Errors
    /// Those of [`DeviceConfig::from_environment`] and of the system (descriptors, memory).
    /// `InvalidInput`: the interface is open, and a variable has changed since.
    pub fn open(info: &DeviceInfo) -> io::Result<Arc<Device>> {
        Self::open_as(info, None)
    }

    /// As [`Device::open`], as `config` says: the environment is not read.
    ///
    /// # Errors
    /// Those of the system (descriptors, memory). `InvalidInput`: the interface is open with
    /// another configuration.
    pub fn open_with(info: &DeviceInfo, config: &DeviceConfig) -> io::Result<Arc<Device>> {
        Self::open_as(info, Some(config))
    }

    /// With `config`, or the environment's configuration.
    fn open_as(info: &DeviceInfo, config: Option<&DeviceConfig>) -> io::Result<Arc<Device>> {
        hold_while_forking();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|opened| opened.shared.strong_count() > 0);
        let shared = match find_open(&open, info) {
            Some((opened, shared)) => {
                let same = opened.check_same(&shared.core, config);
                // Before the reference, which may be the last one by now.
                drop(open);
                same?;
                return Self::with_core(shared);
            }
            None => {
                let environment = config.is_none().then(Snapshot::take);
                let config = match config {
                    Some(config) => config.clone(),
                    None => DeviceConfig::from_environment()?,
                };
                let shared = Arc::new(SharedCore::new(Core::watching(info.clone(), config)?));
                finish_at_exit();
                open.push(Opened::new(&shared, environment));
                shared
            }
        };
        drop(open);
        Self::with_core(shared)
    }

    /// Seals every connection of queue pairs that are created from now on with a secret that both
    /// hosts have (`AIRDMA_SECRET` for programs): their packets are encrypted and authenticated, as
    /// are the datagrams of connection management, and hosts without the secret reach nothing.
    /// Datagrams (UD) are sealed between two queue pairs at a time; those to multicast groups are
    /// refused.
    ///
    /// # Errors
    /// `InvalidInput` for a secret of less than 16 bytes; `Unsupported` for a device of a daemon.
    pub fn share_secret(&self, secret: &[u8]) -> io::Result<()> {
        if self.core().is_at_daemon() {
            return Err(not_sealed());
        }
        self.core().share_secret(Secret::from_bytes(secret)?);
        Ok(())
    }

    /// A device on any port, for tests: it is not shared, and its counters stay in this process.
    /// The port's addresses are those of the GID table.
    ///
    /// # Errors
    /// Those of the system (descriptors, memory, threads).
    #[doc(hidden)]
    pub fn with_port(info: DeviceInfo, port: Box<dyn Port>) -> io::Result<Arc<Device>> {
        Self::with_port_and(info, port, DeviceConfig::from_environment()?)
    }

    /// As [`Device::with_port`], without Hello: plain RoCEv2, as towards other implementations.
    ///
    /// # Errors
    /// Those of the system (descriptors, memory, threads).
    #[doc(hidden)]
    pub fn plain_with_port(info: DeviceInfo, port: Box<dyn Port>) -> io::Result<Arc<Device>> {
        let air = crate::Air::Off;
        let config = DeviceConfig {
            air,
            ..DeviceConfig::from_environment()?
        };
        Self::with_port_and(info, port, config)
    }

    fn with_port_and(
        info: DeviceInfo,
        port: Box<dyn Port>,
        config: DeviceConfig,
    ) -> io::Result<Arc<Device>> {
        let core = Core::new(info, config, Clock::running(), Random::kernel())?;
        Self::on_port(core, port)
    }

    /// The device of a worker that belongs to it alone.
    pub(crate) fn on_port(core: Core, port: Box<dyn Port>) -> io::Result<Arc<Device>> {
        let shared = Arc::new(SharedCore::new(core));
        shared.core.bind_port(port);
        Self::with_core(shared)
    }

    fn with_core(shared: Arc<SharedCore>) -> io::Result<Arc<Device>> {
        let events = Arc::new(AsyncEvents::out_of_sight()?);
        let async_fd = PollSet::new()?;
        async_fd.add(events.fd())?;
        if let Some(fd) = shared.core.link_changes_fd() {
            async_fd.add(fd)?;
        }
        shared.core.add_listener(&events);
        Ok(Arc::new(Device {
            shared,
            events,
            async_fd,
        }))
    }

    /// Adds to a counter of the library for socket programs, which all processes on this device
    /// share. The first call opens their file.
    pub fn count_sockets(&self, counter: SocketCounter, amount: u64) {
        let open = || CountersFile::open(&self.info().interface).ok();
        if let Some(file) = self.shared.counters.get_or_init(open) {
            file.add(SOCKET_START + counter as usize, amount);
        }
    }

    /// Whether this end asks its peers for air mode: on a wireless interface, or because the
    /// configuration says so.
    pub fn asks_for_air(&self) -> bool {
        self.core().asks_for_air()
    }

    /// What was known of the device when its worker was created. Name, interface and GUID stay as
    /// they are; see [`Device::current`] for the rest.
    pub fn info(&self) -> &DeviceInfo {
        &self.core().info
    }

    /// What the device is like now: state, MTU, GID table. In a child after fork: what it was when
    /// it was opened.
    pub fn current(&self) -> DeviceInfo {
        if !self.core().is_ours() {
            // A thread of the parent may hold the lock for ever here.
            return self.info().clone();
        }
        self.core().take_link_changes();
        self.core().current()
    }

    /// Whether the interface is gone for good, as far as the kernel was listened to: deleted, or
    /// moved to another network namespace. The device never works again.
    pub fn is_gone(&self) -> bool {
        self.core().is_gone()
    }

    /// Lets `call` run when the interface is gone for good, on a thread that holds nothing. A
    /// device that has neither queue pairs nor connections has no such thread, and what was asked
    /// for then is never run.
    pub fn when_gone(&self, call: impl FnOnce() + Send + 'static) {
        self.core().when_gone(Box::new(call));
    }

    /// What the users of an interface see of it, if this process has it open.
    pub(crate) fn current_of(info: &DeviceInfo) -> Option<DeviceInfo> {
        let shared = {
            let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
            find_open(&open, info)?.1
        };
        shared.core.take_link_changes();
        Some(shared.core.current())
    }

    /// What the device can do at most.
    pub fn limits(&self) -> &'static Limits {
        &LIMITS
    }

    /// The counters of this process's worker by name, since it was created. Empty in a child after
    /// fork.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        match self.core().check_process() {
            Ok(()) => self.core().counters(),
            Err(_) => Vec::new(),
        }
    }

    /// Lets requests leave that wait for others to join them, or for an event loop to come back
    /// ([`ChannelWait::of_event_loop`](crate::ChannelWait::of_event_loop)).
    pub fn flush(&self) {
        self.core().flush();
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// `ENOMEM` when [`Limits::max_pd`] exist.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, Error> {
        self.core().check_process()?;
        take_one(
            &self.shared.pds,
            LIMITS.max_pd,
            "no more protection domains: see max_pd of the device",
        )?;
        Ok(Arc::new(Pd::new(Arc::clone(self))))
    }

    /// Creates a completion counter, both values of which are 0.
    ///
    /// # Errors
    /// `ENOMEM` when [`Limits::max_completion_counters`] exist; `ENODEV` in a child after fork.
    pub fn create_completion_counter(
        self: &Arc<Self>,
        unit: CounterUnit,
    ) -> Result<Arc<CompletionCounter>, Error> {
        self.core().check_process()?;
        take_one(
            &self.shared.completion_counters,
            LIMITS.max_completion_counters,
            "no more completion counters",
        )?;
        Ok(Arc::new(CompletionCounter::new(Arc::clone(self), unit)))
    }

    /// Opens a domain of extended connections.
    ///
    /// # Errors
    /// `ENODEV` in a child after fork.
    pub fn open_xrcd(self: &Arc<Self>) -> Result<Arc<Xrcd>, Error> {
        self.core().check_process()?;
        Ok(Arc::new(Xrcd::new(Arc::clone(self))))
    }

    /// Allocates `length` bytes of device memory, zeroed, aligned to two to the power of
    /// `align_log2`. In a child after fork it works too: the memory is no part of the device's
    /// worker.
    ///
    /// # Errors
    /// `EINVAL` for no bytes or an alignment above 4096, `ENOMEM` above [`Limits::max_dm_size`].
    pub fn alloc_dm(self: &Arc<Self>, length: usize, align_log2: u32) -> Result<Arc<Dm>, Error> {
        Dm::alloc(self, length, align_log2).map(Arc::new)
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    /// Those of the system (descriptors).
    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<Channel>, Error> {
        self.core().check_process()?;
        let events = ChannelEvents::new()
            .map_err(|error| Error::system("creating a completion channel", &error))?;
        Ok(Arc::new(Channel::new(self, events)))
    }

    /// Creates a completion queue of at least `entries` entries ([`Cq::capacity`] tells how many).
    /// With a channel, an armed queue signals it; [`Channel::wait_event`] then returns the cookie
    /// given here.
    ///
    /// # Errors
    /// `EINVAL` for zero or more than [`Limits::max_cqe`] entries, or a destroyed channel;
    /// `ENOMEM`.
    pub fn create_cq(
        self: &Arc<Self>,
        entries: u32,
        channel: Option<(Arc<Channel>, u64)>,
    ) -> Result<Arc<Cq>, Error> {
        self.create_cq_with(entries, channel, CqOptions::default())
    }

    /// As [`Device::create_cq`], with options.
    ///
    /// # Errors
    /// As [`Device::create_cq`].
    pub fn create_cq_with(
        self: &Arc<Self>,
        entries: u32,
        channel: Option<(Arc<Channel>, u64)>,
        options: CqOptions,
    ) -> Result<Arc<Cq>, Error> {
        let core = self.core();
        core.check_process()?;
        let (producer, consumer) = self.cq_memory(entries)?;
        if let Some((channel, _)) = &channel {
            channel.users.acquire("the completion channel")?;
        }
        let mut made = None;
        let call = QueueControl::CreateCompletions {
            serial: core.next_serial(),
            cookie: channel.as_ref().map_or(0, |&(_, cookie)| cookie),
            options,
        };
        let channel = channel.map(|(channel, _)| channel);
        let beside = Beside::CompletionQueue(NewCompletionQueue {
            ring: producer,
            channel: channel.as_ref().map(|channel| Arc::clone(&channel.events)),
            events: Arc::clone(&self.events),
            made: &mut made,
        });
        let reply = core.ask_with(Control::Queue { call }, beside);
        match (reply, made) {
            (Ok(Reply::CompletionQueue { index }), Some(shared)) => Ok(Arc::new(Cq::new(
                Arc::clone(self),
                index,
                shared,
                consumer,
                channel,
            ))),
            (reply, _) => {
                if let Some(channel) = channel {
                    channel.users.release();
                }
                Err(reply.err().unwrap_or(WRONG_REPLY))
            }
        }
    }

    /// The ring of a completion queue.
    pub(crate) fn cq_memory(&self, entries: u32) -> Result<(RingProducer, RingConsumer), Error> {
        if !(1..=LIMITS.max_cqe).contains(&entries) {
            return Err(Error::Invalid(
                "a completion queue has 1 to max_cqe entries",
            ));
        }
        ring(&self.core().arena, entries, Cqe::STRIDE)
            .map_err(|error| Error::system("memory for a completion queue", &error))
    }

    /// Where the first link of a path leads: what the kernel has behind the address or its gateway,
    /// for which it asks if need be (three seconds at most).
    ///
    /// # Errors
    /// As [`Pd::create_ah`]; `ENETUNREACH`, `EHOSTUNREACH`, and others of the system; `ENODEV` in a
    /// child after fork.
    pub fn resolve(&self, path: &Path) -> Result<LinkAddress, Error> {
        let core = self.core();
        core.check_process()?;
        check_path(core, path)?;
        let source = core.address(path.sgid_index);
        let source = source.ok_or(Error::Invalid("the source address is gone"))?;
        let (info, destination) = (self.current(), path.gid.to_ip());
        let is_own = info.gids.iter().any(|row| row.address == destination);
        let mac = if is_own {
            info.mac
        } else {
            neighbour::resolve(info.interface_index, source, destination)?
        };
        let query = InterfaceQuery::new()
            .map_err(|error| Error::system("asking for the interface", &error))?;
        let vlan = query.vlan(&info.interface);
        Ok(LinkAddress { mac, vlan })
    }

    /// Waits until packets can take a path, a second at most: where the kernel must resolve an
    /// address on the link (ARP, NDP), a path leads nowhere before the answer.
    ///
    /// # Errors
    /// As [`Pd::create_ah`]; `ENETUNREACH` or `EHOSTUNREACH`, as the kernel's routes say;
    /// `ETIMEDOUT` if no host has the address.
    pub fn wait_for_path(&self, path: &Path) -> Result<(), Error> {
        let core = self.core();
        core.check_process()?;
        check_path(core, path)?;
        let source = core.address(path.sgid_index);
        let source = source.ok_or(Error::Invalid("the source address is gone"))?;
        if core.is_simulated() {
            // The kernel knows nothing of its network.
            return Ok(());
        }
        core.wait_for_neighbour(source, path.gid.to_ip())
    }

    /// Whether a packet from one of the device's addresses to `destination` can leave at once.
    /// Where not, [`Device::ask_for_neighbour`] and look again.
    ///
    /// # Errors
    /// What the kernel says of the route (`ENETUNREACH`, `EHOSTUNREACH`), and others of the system;
    /// `ENODEV` in a child after fork.
    pub fn knows_neighbour(&self, source: IpAddr, destination: IpAddr) -> Result<bool, Error> {
        self.core().check_process()?;
        self.core()
            .knows_neighbour(source, destination)
            .map_err(|error| Error::system("asking the kernel for the way", &error))
    }

    /// Path MTU for a new connection: the port's, or less where the kernel knows that a longer
    /// packet does not reach the peer (a route's MTU, a router's ICMP error). If the configuration
    /// sets the path MTU (`AIRDMA_MTU`), that one.
    pub fn path_mtu_to(&self, source: IpAddr, destination: IpAddr) -> PathMtu {
        self.core()
            .path_mtu_to(self.current().path_mtu, source, destination)
    }

    /// Lets the kernel ask on the link for the way to `destination`. Does not wait.
    pub fn ask_for_neighbour(&self, source: IpAddr, destination: IpAddr) {
        neighbour::ask(self.info().interface_index, source, destination);
    }

    /// The descriptor of the asynchronous events: readable while one waits, and then
    /// [`Device::wait_async_event`] does not block. It belongs to the device: do not close it, and
    /// do not read it. `O_NONBLOCK` set on it is honoured.
    pub fn async_fd(&self) -> RawFd {
        self.async_fd.fd()
    }

    /// The next asynchronous event; blocks until there is one.
    ///
    /// # Errors
    /// `EAGAIN` when there is none and the descriptor has `O_NONBLOCK`, `EINTR`; `ENODEV` in a
    /// child after fork.
    pub fn wait_async_event(self: &Arc<Self>) -> io::Result<AsyncEvent> {
        AsyncWait::new(self).wait()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.shared.core
    }

    /// Whether both are the same device, opened once or twice.
    pub fn is_same_device(&self, other: &Device) -> bool {
        self.is_same_worker(other)
    }

    pub(crate) fn is_same_worker(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(crate) fn give_back_completion_counter(&self) {
        self.shared
            .completion_counters
            .fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn give_back_pd(&self) {
        self.shared.pds.fetch_sub(1, Ordering::Relaxed);
    }

    /// # Errors
    /// `ENOMEM` when [`Limits::max_ah`] exist.
    pub(crate) fn take_ah(&self) -> Result<(), Error> {
        take_one(
            &self.shared.ahs,
            LIMITS.max_ah,
            "no more address handles: see max_ah of the device",
        )
    }

    pub(crate) fn give_back_ah(&self) {
        self.shared.ahs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SharedCore {
    fn new(core: Core) -> Self {
        SharedCore {
            core: Arc::new(core),
            pds: AtomicU32::new(0),
            completion_counters: AtomicU32::new(0),
            ahs: AtomicU32::new(0),
            counters: OnceLock::new(),
        }
    }
}

impl Drop for SharedCore {
    fn drop(&mut self) {
        if self.core.is_ours() {
            self.core.progress_thread.stop();
            if let Some(viewers) = self.core.viewers.get() {
                viewers.close();
            }
            self.core.linger();
            if let Some(remote) = &self.core.remote {
                remote.close_connections();
            }
            self.core.leave();
            // The last counts, to the file.
            self.core.counters();
        }
    }
}

fn take_one(count: &AtomicU32, max: u32, full: &'static str) -> Result<(), Error> {
    let more = |count: u32| (count < max).then_some(count + 1);
    match count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::NoMemory(full)),
    }
}

#[cfg(test)]
mod tests;
