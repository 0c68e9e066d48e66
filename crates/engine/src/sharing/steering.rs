//! Steering of packets among several processes at one address
//! (docs/design/006-several-processes.md).
//!
//! Each process has its own socket at each address, in a group of the kernel's (SO_REUSEPORT). The
//! group's BPF [`program`] selects a socket by the range of queue pair numbers and, for
//! connection management, by service and id. The [`registry`] records which process has
//! which range and service.
//!
//! Socket indices in a group change when a socket is closed. A process that leaves in order
//! notifies the others; after a process was killed, another one notices it by a misrouted packet,
//! determines the indices by probes, and attaches a new program. Misrouted packets are forwarded
//! meanwhile.

mod departures;
mod patience;
mod places;
mod program;
mod registry;
mod rows;

use crate::Error;
use crate::sharing::runtime_dir::network_namespace;
use airdma_port::sharing::{Messenger, MessengerSockets, Sharing};
use airdma_port::{BindError, Received, SharedPort, UdpPort};
use airdma_preload::PerProcess;
use airdma_transport::Time;
use airdma_wire::{Gid, Neighbour, Qpn};
use departures::Departures;
use patience::Patience;
use program::{Plan, REQ, SIDR_REP, SIDR_REQ};
pub(crate) use registry::JoinError;
pub(crate) use registry::Member;
use registry::{ListenError, Registry, Seat};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Shortest pause between two repairs; it doubles each time that nothing was wrong.
const REPAIR_PAUSE_MIN: Duration = Duration::from_millis(1);
const REPAIR_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Wait for the lock of the registry before a repair is postponed.
const REPAIR_WAIT: Duration = Duration::from_millis(50);

/// Longest time for which a leaving process receives the packets that are still there: more is an
/// endless flood. The others give up a change after [`REPAIR_WAIT`].
const LAST_LOOKS_TIME: Duration = Duration::from_millis(10);
/// Least number of receive calls meanwhile, with 64 packets each: the process may not be scheduled.
const LAST_LOOKS_MIN: u32 = 16;

/// Attempts to bind an address while another process is dying: 50 ms.
const BIND_TRIES: u32 = 50;
const BIND_PAUSE: Duration = Duration::from_millis(1);

/// The range that a queue pair number is in.
pub(crate) fn range_of(number: Qpn) -> u8 {
    (number.get() >> 12) as u8
}

/// A process's part in steering, for one interface.
pub(crate) struct Steering {
    registry: Registry,
    messenger: Messenger,
    port: u16,
    inner: Mutex<Inner>,
    /// Whether a misrouted packet came.
    wanted: AtomicBool,
    /// Time of the device before which no repair starts, in nanoseconds.
    not_before: AtomicU64,
}

#[derive(Default)]
struct Inner {
    /// Address and socket entry, by row of the GID table.
    rows: Vec<Option<(IpAddr, Seat)>>,
    /// The registry's count of programs at the last check.
    programs: u64,
    pause: Duration,
    /// Whether the last repair found nothing wrong, without probes.
    doubtful: bool,
}

/// Environment of steering: the port, and the handler of packets that arrive meanwhile.
pub(crate) struct Ground<'a> {
    pub(crate) port: &'a mut dyn SharedPort,
    pub(crate) receive: &'a mut dyn FnMut(Received<'_>),
}

impl Ground<'_> {
    /// Receives the packets that came, probes among them.
    fn progress(&mut self) {
        self.take_some();
    }

    /// Receives one batch from all addresses. Returns whether any packet came, whether it was used
    /// or not.
    fn take_some(&mut self) -> bool {
        let before = all_that_came(self.port);
        self.port.look_everywhere();
        // The next round detects a broken port.
        let received = self.port.receive(64, self.receive);
        received.is_ok_and(|received| received > 0 || all_that_came(self.port) != before)
    }

    /// Receives all packets that are there.
    fn take_last(&mut self) {
        let start = Instant::now();
        let mut looks = 0;
        while self.take_some() && (looks < LAST_LOOKS_MIN || start.elapsed() < LAST_LOOKS_TIME) {
            looks += 1;
        }
    }
}

fn all_that_came(port: &dyn SharedPort) -> u64 {
    let counters = port.counters();
    counters.rx_packets + counters.rx_buffers + counters.rx_errors
}

/// The locked registry, with the findings of this change.
struct Change<'a> {
    registry: &'a Registry,
    inner: MutexGuard<'a, Inner>,
    /// Number of sockets whose owners were found dead.
    removed: usize,
    /// Whether socket indices may differ from the registry's.
    in_doubt: bool,
    /// Whether the other processes are notified of attached programs, and repair soon again.
    tells: bool,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        // The next change repairs what this one did not.
        if !self.in_doubt {
            self.registry.finish();
        }
        self.registry.unlock();
    }
}

/// The sockets of all messengers of this process in a network namespace, in which the calling
/// thread is.
fn sockets(namespace: u64) -> io::Result<Arc<MessengerSockets>> {
    static OPEN: PerProcess<HashMap<u64, Weak<MessengerSockets>>> = PerProcess::new();
    let mut open = OPEN.lock();
    if let Some(sockets) = open.get(&namespace).and_then(Weak::upgrade) {
        return Ok(sockets);
    }
    let sockets = Arc::new(MessengerSockets::open()?);
    open.insert(namespace, Arc::downgrade(&sockets));
    Ok(sockets)
}

impl Sharing for Steering {
    fn secret(&self) -> u64 {
        self.registry.secret()
    }

    fn probed(&self, local: IpAddr, place: u16, epoch: u64) {
        self.registry.probed(local, place, epoch);
    }
}

impl Steering {
    /// Joins the processes that share the addresses of an interface, at UDP port `port`.
    ///
    /// # Errors
    /// [`JoinError::Locked`] if a process was stopped while holding the registry's lock; the
    /// system's, if no directory is available.
    pub(crate) fn join(interface_index: u32, port: u16) -> Result<Arc<Self>, JoinError> {
        let namespace = network_namespace()?;
        let registry = Registry::join(interface_index, namespace)?;
        let messenger = Messenger::new(sockets(namespace)?, interface_index, port);
        Ok(Self::with_registry(registry, messenger, port))
    }

    fn with_registry(registry: Registry, messenger: Messenger, port: u16) -> Arc<Self> {
        Arc::new(Steering {
            registry,
            messenger,
            port,
            inner: Mutex::default(),
            wanted: AtomicBool::new(false),
            not_before: AtomicU64::new(0),
        })
    }

    /// The descriptor whose lock shows the others that this process lives.
    pub(crate) fn life(&self) -> RawFd {
        self.registry.life()
    }

    fn change(&self, mut patience: Patience, progress: &mut dyn FnMut()) -> Option<Change<'_>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.registry.try_lock() {
                let unfinished = self.registry.begin();
                let removed = self.registry.remove_dead();
                return Some(Change {
                    registry: &self.registry,
                    inner,
                    removed,
                    in_doubt: unfinished || removed > 0,
                    tells: true,
                });
            }
            // The holder of the lock may wait for this process's answer.
            progress();
            if !patience.pauses(self.registry.changer()) {
                return None;
            }
        }
    }

    /// Binds the addresses of the GID table with `open`, and notifies the others.
    ///
    /// # Errors
    /// Errors of `open`; [`BindError::AddressInUse`] if a process is there that is not in the
    /// registry, or keeps it locked.
    pub(crate) fn bind(
        self: &Arc<Self>,
        addresses: &[Option<IpAddr>],
        mut open: impl FnMut() -> Result<UdpPort, BindError>,
    ) -> Result<UdpPort, BindError> {
        let mut stranger = None;
        for _ in 0..BIND_TRIES {
            let Some(mut change) = self.change(Patience::new(), &mut || {}) else {
                return Err(locked(addresses, self.registry.changer()));
            };
            let mut port = open()?;
            stranger = addresses
                .iter()
                .zip(0..)
                .find(|&(address, row)| {
                    let known = address.is_none_or(|address| change.is_known(address));
                    port.has_company(row) && !known
                })
                .and_then(|(address, _)| *address);
            if stranger.is_none() {
                port.set_sharing(Arc::clone(self) as _);
                for (row, address) in addresses.iter().enumerate() {
                    if let Some(address) = address {
                        let company = port.has_company(row as u8);
                        change.add_socket(row, *address, company);
                    }
                }
                let mut ground = Ground {
                    port: &mut port,
                    receive: &mut |_| {},
                };
                self.settle(&mut change, &mut ground);
                self.announce_arrival(&change);
                return Ok(port);
            }
            drop(port);
            drop(change);
            // The address may belong to a process that is exiting.
            std::thread::sleep(BIND_PAUSE);
        }
        Err(BindError::AddressInUse {
            address: stranger.unwrap_or(first(addresses)),
            port: self.port,
        })
    }

    /// Changes or removes the address of a row of the GID table.
    ///
    /// # Errors
    /// The address cannot be used; the old one is gone all the same, unless the registry stays
    /// locked (`EAGAIN`).
    pub(crate) fn set_address(
        &self,
        row: u8,
        address: Option<Neighbour>,
        ground: &mut Ground<'_>,
    ) -> io::Result<()> {
        let mut change = self
            .change(Patience::new(), &mut || ground.progress())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))?;
        let index = usize::from(row);
        if let Some((old, seat)) = change.inner.rows.get_mut(index).and_then(Option::take) {
            change.registry.remove_socket(seat, old);
            change.attach(row, old, ground);
        }
        ground.port.set_address(row, address)?;
        let Some(address) = address.and_then(Neighbour::ip) else {
            return Ok(());
        };
        let company = ground.port.has_company(row);
        if company && !change.is_known(address) {
            ground.port.set_address(row, None)?;
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        change.add_socket(index, address, company);
        self.settle(&mut change, ground);
        self.announce_arrival(&change);
        Ok(())
    }

    /// Leases a range of queue pair numbers.
    pub(crate) fn lease(&self, ground: &mut Ground<'_>) -> Option<u8> {
        let mut change = self.change(Patience::new(), &mut || ground.progress())?;
        let range = change.registry.lease()?;
        self.settle(&mut change, ground);
        Some(range)
    }

    /// Makes this process one of those that answer requests for services without a listener.
    pub(crate) fn manage(&self, ground: &mut Ground<'_>) {
        // Without the lock the others learn of it with the next program.
        self.registry.manage();
        if let Some(mut change) = self.change(Patience::new(), &mut || ground.progress()) {
            self.settle(&mut change, ground);
        }
    }

    /// Registers a listener for a service, at one address or (`None`) at all.
    ///
    /// # Errors
    /// `EADDRINUSE` if another process has it; `ENOMEM`; `EAGAIN` if a process keeps the registry
    /// locked.
    pub(crate) fn listen(
        &self,
        service: u64,
        address: Option<Gid>,
        ground: &mut Ground<'_>,
    ) -> Result<(), Error> {
        let mut change = self
            .change(Patience::new(), &mut || ground.progress())
            .ok_or_else(|| Error::System {
                message: "another process keeps the list of listeners locked: is it stopped?"
                    .into(),
                errno: libc::EAGAIN,
            })?;
        change
            .registry
            .listen(service, address.map(Gid::to_ip))
            .map_err(|error| match error {
                ListenError::InUse => Error::System {
                    message: "another process listens to the port".into(),
                    errno: libc::EADDRINUSE,
                },
                ListenError::Full => Error::NoMemory("too many listeners on this host"),
            })?;
        self.settle(&mut change, ground);
        Ok(())
    }

    /// Closes a listener. Retransmitted requests still come here until another process listens:
    /// their connections are ours.
    pub(crate) fn close_listener(&self, service: u64, address: Option<Gid>) {
        self.registry
            .close_listener(service, address.map(Gid::to_ip));
    }

    /// Leaves in order: from then on no packet is steered here.
    pub(crate) fn leave(&self, ground: &mut Ground<'_>) {
        // Now, so that the others only wait for the rest.
        ground.take_last();
        let Some(mut change) =
            self.change(Patience::at_most(REPAIR_WAIT), &mut || ground.progress())
        else {
            // The others then handle it as a death.
            return;
        };
        let rows = std::mem::take(&mut change.inner.rows);
        let rows: Vec<_> = (0..)
            .zip(rows)
            .filter_map(|(row, seat)| Some((row, seat?)))
            .collect();
        for &(_, (address, seat)) in &rows {
            change.registry.remove_socket(seat, address);
        }
        change.registry.leave();
        for &(row, (address, _)) in &rows {
            change.attach_for(row, address, 1, ground);
        }
        // These packets are forwarded. As long as this process's sockets exist, the indices differ
        // from the registry's, so the lock is kept.
        ground.take_last();
        for (row, _) in rows {
            let _ = ground.port.set_address(row, None);
        }
    }

    /// Owner of queue pair `number`, if it is another process.
    pub(crate) fn owner_of_number(&self, number: Qpn) -> Option<Member> {
        let owner = self.registry.owner(range_of(number))?;
        (owner != self.registry.me()).then_some(owner)
    }

    /// Owner of a management datagram to queue pair 1, if it is another process.
    pub(crate) fn owner_of_datagram(
        &self,
        local: Neighbour,
        mad: &[u8],
        manages: bool,
    ) -> Option<Member> {
        let local = local.ip()?;
        let word = |at: usize| {
            mad.get(at..at + 2)
                .map(|word| u16::from_be_bytes([word[0], word[1]]))
        };
        let tag = match word(16)? {
            REQ | SIDR_REQ => {
                let service = u64::from_be_bytes(mad.get(32..40)?.try_into().ok()?);
                let listeners = self.registry.listeners(local);
                let of_service = listeners.iter().find(|&&(other, _)| other == service);
                let owner = match of_service {
                    Some(&(_, owner)) => owner,
                    None if manages => return None,
                    None => self.registry.manager(local)?.owner,
                };
                return (owner != self.registry.me()).then_some(owner);
            }
            SIDR_REP => mad.get(24)?,
            _ => mad.get(28)?,
        };
        let owner = self.registry.owner(*tag)?;
        (owner != self.registry.me()).then_some(owner)
    }

    /// Forwards a packet to its owner. One that was already forwarded is dropped, since its owner
    /// is unknown.
    pub(crate) fn forward(&self, packet: &Received<'_>, to: Member) {
        if packet.forwarded {
            return;
        }
        let local = packet.destination.ip();
        let place = local.and_then(|local| self.registry.place_of(to, local));
        if let Some(place) = place {
            self.messenger
                .forward(packet, place, self.registry.secret());
        }
    }

    /// Records a misrouted packet; returns whether a repair is due now.
    pub(crate) fn note_misrouted(&self, now: Time) -> bool {
        let due = now.as_nanos() >= self.not_before.load(Ordering::Relaxed);
        if due {
            self.wanted.store(true, Ordering::Relaxed);
        }
        due
    }

    /// Whether [`Steering::repair`] must be called.
    pub(crate) fn wants_repair(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Determines why misrouted packets come here, and repairs it.
    pub(crate) fn repair(&self, now: Time, ground: &mut Ground<'_>) {
        self.wanted.store(false, Ordering::Relaxed);
        let pause = match self.change(Patience::at_most(REPAIR_WAIT), &mut || ground.progress()) {
            None => REPAIR_PAUSE_MAX,
            Some(mut change) => {
                let programs = change.registry.programs();
                let is_news = change.in_doubt || change.inner.programs != programs;
                if change.inner.programs != programs && !change.in_doubt {
                    // Another process was faster.
                    change.inner.programs = programs;
                } else {
                    // Without a known fault the packets may be forged, and the other processes get
                    // such, too: notified of each other's programs, they would repair for ever.
                    change.tells = change.in_doubt;
                    change.in_doubt |= change.inner.doubtful;
                    change.inner.doubtful = !change.in_doubt;
                    self.settle(&mut change, ground);
                }
                let pause = if is_news {
                    REPAIR_PAUSE_MIN
                } else {
                    (change.inner.pause * 2).clamp(REPAIR_PAUSE_MIN, REPAIR_PAUSE_MAX)
                };
                change.inner.pause = pause;
                pause
            }
        };
        let next = now.as_nanos().saturating_add(pause.as_nanos() as u64);
        self.not_before.store(next, Ordering::Relaxed);
    }

    /// Readable when a process left; [`Steering::process_left`] tells whether one did, and then
    /// [`Steering::remove_departed`] must be called.
    pub(crate) fn departures_fd(&self) -> Option<RawFd> {
        Some(self.registry.departures()?.fd())
    }

    /// Whether a process left since the last call.
    pub(crate) fn process_left(&self) -> bool {
        self.registry.departures().is_some_and(Departures::take)
    }

    /// Removes what a process left behind. False if there was nothing: the process may not have
    /// ended completely.
    pub(crate) fn remove_departed(&self, ground: &mut Ground<'_>) -> bool {
        let Some(mut change) =
            self.change(Patience::at_most(REPAIR_WAIT), &mut || ground.progress())
        else {
            return false;
        };
        let programs = change.registry.programs();
        let was_told = change.inner.programs != programs;
        change.inner.programs = programs;
        if change.in_doubt {
            self.settle(&mut change, ground);
            return true;
        }
        was_told
    }

    /// Attaches programs that match the registry to this process's addresses, after probes if the
    /// indices are in doubt.
    fn settle(&self, change: &mut Change<'_>, ground: &mut Ground<'_>) {
        if change.in_doubt {
            self.probe(change, ground);
        }
        let rows: Vec<_> = (0..).zip(change.inner.rows.clone()).collect();
        for (row, seat) in rows {
            if let Some((address, _)) = seat {
                change.attach(row, address, ground);
            }
        }
        change.inner.programs = change.registry.programs();
    }
}

fn first(addresses: &[Option<IpAddr>]) -> IpAddr {
    let first = addresses.iter().flatten().next().copied();
    first.unwrap_or(IpAddr::from([0; 4]))
}

/// Error for a process that keeps the registry of these addresses locked.
pub(crate) fn locked(addresses: &[Option<IpAddr>], process: u32) -> BindError {
    let address = first(addresses);
    BindError::SharingLocked { address, process }
}

impl Change<'_> {
    /// Whether the registry has a process at the address.
    fn is_known(&self, address: IpAddr) -> bool {
        self.registry.seated(address).next().is_some()
    }

    /// Adds this process's socket at an address, the last one of its group.
    fn add_socket(&mut self, row: usize, address: IpAddr, company: bool) {
        let place = self.registry.seated(address).count();
        // The registry has a process there that is not.
        self.in_doubt |= (place > 0) != company;
        let rows = &mut self.inner.rows;
        rows.resize(rows.len().max(row + 1), None);
        // Without an entry the other processes do not know of this one, which then gets packets by
        // chance.
        rows[row] = self
            .registry
            .add_socket(address, place as u16)
            .map(|seat| (address, seat));
    }

    fn attach(&self, row: u8, address: IpAddr, ground: &mut Ground<'_>) {
        self.attach_for(row, address, 2, ground);
    }

    /// Attaches a program if at least `least` sockets are at the address: a single one gets
    /// everything without.
    fn attach_for(&self, row: u8, address: IpAddr, least: usize, ground: &mut Ground<'_>) {
        let places: HashMap<_, _> = self
            .registry
            .seated(address)
            .map(|seated| (seated.owner.number(), seated.place))
            .collect();
        if places.len() < least {
            return;
        }
        let place = |owner: Member| places.get(&owner.number()).copied();
        let mut plan = Plan {
            ranges: self
                .registry
                .owners()
                .filter_map(|(range, owner)| Some((range, place(owner)?)))
                .collect(),
            services: self
                .registry
                .listeners(address)
                .into_iter()
                .filter_map(|(service, owner)| Some((service, place(owner)?)))
                .collect(),
            manager: self.registry.manager(address).map(|seated| seated.place),
        };
        let attached = ground.port.attach_steering(row, &plan.clone().assemble());
        if attached.is_err() {
            // Too long for this kernel: requests are then forwarded.
            plan.services.clear();
            let _ = ground.port.attach_steering(row, &plan.assemble());
        }
        if self.tells {
            self.registry.count_program();
        }
    }
}

#[cfg(test)]
mod tests;
