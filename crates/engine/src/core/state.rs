//! What a device is like as the kernel has it: addresses, GID table, state, speed; and what is done
//! when that changes.
//!
//! How the kernel is asked is in [`crate::host::devices`], when it has news in
//! [`crate::host::link_monitor`], which row an address gets in [`crate::host::gids`].

use super::Core;
use crate::counter_names::EngineCounter;
use crate::host::devices::{look_at, name_of};
use crate::host::gids::{GIDS_MAX, GidEntry, changes};
use crate::host::link_monitor::LinkMonitor;
use crate::host::{neighbour, path};
use crate::worker::Unanswered;
use crate::{AsyncEvent, AttrMask, DeviceInfo, Error, Path, PathMtu};
use airdma_transport::rate::Rate;
use airdma_wire::Neighbour;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{MutexGuard, PoisonError};

/// Run when the interface is gone.
pub(crate) type WhenGone = Box<dyn FnOnce() + Send>;

/// What changes with the interface.
pub(super) struct State {
    /// With the GID table of the device.
    pub(super) current: DeviceInfo,
    /// The address that each row of the table had last.
    pub(super) former: Vec<IpAddr>,
    /// An address could not be used: to be tried again.
    pub(super) incomplete: bool,
}

impl Core {
    /// Readable while the kernel has a notification that no thread has read.
    pub(crate) fn link_changes_fd(&self) -> Option<RawFd> {
        self.link_monitor.as_ref().map(LinkMonitor::fd)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the device is like, as of the last [`Core::take_link_changes`].
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

    /// Whether a path leads to a neighbour on the link, if that makes a difference: where it is
    /// set, and more than RoCEv2 is offered. In a simulation, which asks no kernel, all addresses
    /// of a subnet are.
    pub(crate) fn is_on_link(&self, local: IpAddr, path: &Path, mask: AttrMask) -> bool {
        let remote = path.gid.to_ip();
        if self.clock.is_moved() {
            return subnet(local) == subnet(remote);
        }
        if !mask.contains(AttrMask::AV) || !self.control(|worker, _| worker.state.air.offers_more())
        {
            return false;
        }
        let interface = self.info.interface_index;
        let ask = || Ok::<_, Infallible>(neighbour::is_on_link(interface, local, remote));
        let answer = (self.paths).get((local, remote), |answers| &mut answers.is_on_link, ask);
        answer == Ok(true)
    }

    /// Waits until packets can take a path; see [`neighbour::wait_for`].
    pub(crate) fn wait_for_neighbour(
        &self,
        source: IpAddr,
        destination: IpAddr,
    ) -> Result<(), Error> {
        let ask = || neighbour::wait_for(self.info.interface_index, source, destination);
        self.paths
            .get((source, destination), |answers| &mut answers.can_leave, ask)
    }

    /// Whether a packet can leave at once; see [`neighbour::is_known`].
    pub(crate) fn knows_neighbour(&self, source: IpAddr, destination: IpAddr) -> io::Result<bool> {
        let ask = || match neighbour::is_known(self.info.interface_index, source, destination) {
            Ok(true) => Ok(()),
            other => Err(other),
        };
        let known = self
            .paths
            .get((source, destination), |answers| &mut answers.can_leave, ask);
        known.map_or_else(|other| other, |()| Ok(true))
    }

    /// The path MTU to a peer, if the port's is `of_port`.
    pub(crate) fn path_mtu_to(
        &self,
        of_port: PathMtu,
        source: IpAddr,
        destination: IpAddr,
    ) -> PathMtu {
        // A path MTU of the configuration may exceed the interface's, and leave in fragments.
        if self.link_monitor.is_none() || self.config.path_mtu.is_some() {
            return of_port;
        }
        let index = self.info.interface_index;
        let fits = PathMtu::for_interface_mtu;
        let ask = || path::mtu(index, source, destination, |mtu| fits(mtu) >= Some(of_port));
        match self
            .paths
            .get((source, destination), |answers| &mut answers.mtu, ask)
        {
            Ok(mtu) => of_port.min(fits(mtu).unwrap_or(PathMtu::M256)),
            Err(_) => of_port,
        }
    }

    /// Counts a peer that does not answer if the kernel knows why: packets of the path MTU do not
    /// reach it.
    pub(super) fn check_unanswered(&self) {
        let unanswered = self.visit(|worker| worker.state.unanswered.take());
        let Some(Unanswered {
            local,
            remote,
            packet_bytes,
        }) = unanswered.filter(|_| self.link_monitor.is_some())
        else {
            return;
        };
        let index = self.info.interface_index;
        let mtu = path::mtu(index, local, remote, |mtu| mtu >= packet_bytes);
        if mtu.is_ok_and(|mtu| mtu < packet_bytes) {
            self.visit(|worker| worker.state.counters.count(EngineCounter::NarrowPaths));
        }
    }

    /// Applies the changes of the interface that the kernel has reported, and raises their events.
    /// Returns whether there were reports. Costs a system call if there were none.
    pub(crate) fn take_link_changes(&self) -> bool {
        let Some(monitor) = self.link_monitor.as_ref().filter(|_| self.is_ours()) else {
            return false;
        };
        let mut state = self.state();
        // A thread that finds the socket drained waits at the lock above for the thread that
        // drained it.
        let said_something = monitor.drain();
        if said_something || state.incomplete {
            let events = self.refresh(&mut state);
            drop(state);
            for event in events {
                self.notify_listeners(event);
            }
        }
        said_something
    }

    /// As [`Core::take_link_changes`], by the progress thread, which the watcher woke for that. The
    /// program's own notifications stay, as it may poll their descriptor.
    pub(super) fn apply_link_changes(&self) {
        if self.progress_thread.changed.swap(false, Ordering::SeqCst) {
            let events = self.refresh(&mut self.state());
            for event in events {
                self.notify_listeners(event);
            }
        }
    }

    /// Looks at the interface, and brings the table and the sockets up to date. Returns what is
    /// worth an event.
    pub(super) fn refresh(&self, state: &mut State) -> Vec<AsyncEvent> {
        // If the kernel does not answer, the device stays as it is until the next report.
        let Ok(seen) = look_at(&self.info, &self.config) else {
            return Vec::new();
        };
        let addresses: Vec<_> = seen.gids.iter().map(|entry| entry.address).collect();
        self.paths.clear();
        let was_up = state.current.up;
        let before = std::mem::replace(&mut state.current, seen);
        let mtu = state.current.mtu;
        if before.mtu != mtu {
            self.control(|worker, now| worker.state.note_interface_mtu(mtu, now));
        }
        let path_mtu = state.current.path_mtu;
        if before.path_mtu != path_mtu {
            self.control(|worker, _| {
                if let Some(gsi) = &mut worker.state.gsi {
                    gsi.manager.set_path_mtu_max(path_mtu);
                }
            });
        }
        state.current.gids = before.gids.clone();
        let changes = changes(&before.gids, &state.former, &addresses);
        if changes.is_empty() {
            // What could not be used is gone as well.
            state.incomplete = false;
        } else {
            state.incomplete = !self.control_sockets(|worker, now| {
                let mut complete = true;
                for (row, address) in changes {
                    if worker
                        .set_address(now, row, address.map(Neighbour::from))
                        .is_ok()
                    {
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
        if self.is_new_loss() {
            events.push(AsyncEvent::DeviceFatal);
        }
        events
    }

    /// Whether the interface has gone since the last look: then nothing that used it will ever work
    /// again, and all of it ends.
    fn is_new_loss(&self) -> bool {
        if name_of(self.info.interface_index).is_some() || self.gone.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.control(|worker, now| {
            worker.state.fail_all(now);
            worker.close_listeners(now);
        });
        // The progress thread notifies the listeners, while no lock is held.
        self.progress_thread.wake();
        true
    }

    /// Whether the interface is gone for good: deleted, or in another network namespace.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Lets `call` run, on the progress thread's thread, when the interface is gone.
    pub(crate) fn when_gone(&self, call: WhenGone) {
        let calls = self.when_gone.lock();
        calls.unwrap_or_else(PoisonError::into_inner).push(call);
        if self.is_gone() {
            self.progress_thread.wake();
        }
    }

    /// Runs the functions that were registered for the loss of the interface.
    pub(super) fn run_loss_calls(&self) {
        if !self.is_gone() {
            return;
        }
        let calls = self.when_gone.lock();
        let calls = std::mem::take(&mut *calls.unwrap_or_else(PoisonError::into_inner));
        for call in calls {
            call();
        }
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
}

pub(super) fn families_of(rows: &[GidEntry]) -> [AtomicU8; GIDS_MAX] {
    std::array::from_fn(|index| AtomicU8::new(rows.get(index).map_or(0, family_of)))
}

pub(super) fn addresses_of(rows: &[GidEntry]) -> Vec<Option<IpAddr>> {
    let address = |entry: &GidEntry| (!entry.is_empty()).then_some(entry.address);
    rows.iter().map(address).collect()
}

/// The first 24 bits of an IPv4 address, or 64 of an IPv6 address.
fn subnet(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => u64::from(address.to_bits() >> 8),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    }
}

fn family_of(entry: &GidEntry) -> u8 {
    if entry.address.is_ipv4() { 4 } else { 6 }
}

/// What the interface says of itself.
pub(super) fn line_rate(info: &DeviceInfo) -> Option<Rate> {
    let bits_per_s = u64::from(info.speed_mbps?) * 1_000_000;
    Some(Rate::from_bits_per_s(bits_per_s))
}
