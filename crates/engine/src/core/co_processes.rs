//! Other processes at the addresses of a device: those that get packets of this one, those that
//! died, and a child after a fork.
//!
//! [`crate::sharing::steering`] records which processes are at an address and which packets belong
//! to each; [`crate::sharing::orphan_notices`] keeps notices to the peers of processes that died.

use super::{Core, LOCK_PAUSE};
use crate::host::presence::Presence;
use crate::progress::progress_thread::Caller;
use crate::sharing::orphan_notices::OrphanNotices;
use crate::sharing::steering::Steering;
use crate::worker::Work;
use crate::worker::gsi::Gsi;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Core {
    /// Whether [`Core::repair`] should be called.
    pub(crate) fn wants_repair(&self) -> bool {
        self.steering
            .get()
            .is_some_and(|steering| steering.wants_repair())
    }

    /// Finds out why packets of other processes come to this one: some milliseconds at most.
    pub(crate) fn repair(&self) {
        self.control(|worker, now| worker.repair(now));
    }

    /// Handles what the progress thread was woken for: changes of the interface, of the processes
    /// that share its addresses, of those that look at the device, or of peers that ask whether
    /// this process runs.
    pub(crate) fn apply_changes(&self) {
        self.apply_link_changes();
        self.run_loss_calls();
        self.remove_departed();
        self.accept_callers();
    }

    fn accept_callers(&self) {
        let callers = &self.progress_thread.callers;
        for caller in callers.ready().into_iter().flatten() {
            if caller == Caller::Peer as u64 {
                self.visit(|worker| {
                    worker.state.presence.iter_mut().for_each(Presence::answer);
                });
            } else if let Some(viewers) = self.viewers.get()
                && viewers.accept().is_err()
            {
                // It would be ready for ever: a device without descriptors shows itself no more.
                callers.remove(viewers.fd());
            }
        }
    }

    /// Takes over what a process at the same addresses had, if one may have ended.
    fn remove_departed(&self) {
        let process_left = |steering: &Arc<Steering>| steering.process_left();
        if !self.steering.get().is_some_and(process_left) {
            return;
        }
        // They may still be exiting. The device makes progress meanwhile.
        for pause in [0, 1, 5, 20] {
            self.progress_for(Duration::from_millis(pause));
            if self.control(|worker, now| worker.remove_departed(now)) {
                break;
            }
        }
        self.notify_orphaned_peers();
    }

    /// Runs the worker for `time`. No caller waits for what comes meanwhile.
    fn progress_for(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.try_progress(Work::All);
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    /// Peers of processes that died at these addresses hear of it.
    pub(super) fn notify_orphaned_peers(&self) {
        let orphans = OrphanNotices::of(self.info.interface_index);
        if !orphans.notices.is_empty() {
            let info = self.current();
            self.control(|worker, now| {
                worker.open_gsi(now, info.guid, info.path_mtu, info.interface_index);
                if let Some(gsi) = &mut worker.state.gsi {
                    gsi.send_orphan_notices(now, &orphans.notices);
                }
            });
        }
        orphans.settled();
    }

    /// Tells the processes that share the addresses that this one is gone. The device is of no use
    /// after that.
    pub(crate) fn leave(&self) {
        if self.steering.get().is_some() {
            self.visit(|worker| worker.leave(self.now()));
        }
    }

    /// In the child of a fork, which has the device no more than it has the progress thread: what
    /// would make the parent seem to live, or hold its place at an address, is closed. Something
    /// harmless takes the numbers of those descriptors.
    pub(crate) fn abandon(&self) {
        let close = |fd: RawFd| {
            // SAFETY: plain integers; the new descriptor is the device's own, which nothing uses in
            // this process.
            let taken = unsafe { libc::dup3(self.worker_lock.wake().fd(), fd, libc::O_CLOEXEC) };
            if taken < 0 {
                // The call fails for a number above the program's limit, which no new descriptor
                // gets. SAFETY: a descriptor of the device, which nothing uses in this process.
                unsafe { libc::close(fd) };
            }
        };
        if let Some(steering) = self.steering.get() {
            close(steering.life());
        }
        if let Some(remote) = &self.remote {
            close(remote.lifeline());
        }
        if let Some(viewers) = self.viewers.get() {
            close(viewers.fd());
        }
        if self.steering.get().is_some() || self.remote.is_some() {
            // Held by a thread of the parent's at worst, and then they stay open.
            if let Ok(descriptors) = self.descriptors.try_lock() {
                descriptors.iter().copied().for_each(close);
            }
        }
        self.worker_lock.peek(|worker| {
            worker.lifelines().into_iter().for_each(close);
            let gsi = worker.state.gsi.as_ref();
            gsi.and_then(Gsi::notice_file_fd)
                .into_iter()
                .for_each(close);
        });
    }
}
