//! The devices that this process has open: the interface by which each is found again, and what
//! `fork` and the end of the process do to them.

use super::SharedCore;
use crate::core::Core;
use crate::environment::Snapshot;
use crate::{DeviceConfig, DeviceInfo};
use airdma_preload::Process;
use std::cell::UnsafeCell;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The workers of this process. A dead entry is one whose devices are gone, or which belongs to the
/// parent of a fork.
pub(super) static OPEN: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// What is known of a worker without a reference to it: the thread that drops the last reference
/// takes the worker down.
pub(super) struct Opened {
    process: Process,
    interface_index: u32,
    interface: String,
    /// The variables that it was opened by; none if a program gave its configuration.
    environment: Option<Snapshot>,
    pub(super) shared: Weak<SharedCore>,
}

/// The worker of that interface, if this process has one.
pub(super) fn find_open<'open>(
    open: &'open [Opened],
    info: &DeviceInfo,
) -> Option<(&'open Opened, Arc<SharedCore>)> {
    let is_of_interface = |opened: &&Opened| {
        (opened.interface_index, &opened.interface) == (info.interface_index, &info.interface)
            && opened.process.is_current()
    };
    let mut found = open.iter().filter(is_of_interface);
    found.find_map(|opened| Some((opened, opened.shared.upgrade()?)))
}

impl Opened {
    pub(super) fn new(shared: &Arc<SharedCore>, environment: Option<Snapshot>) -> Self {
        let info = &shared.core.info;
        Opened {
            process: Process::current(),
            interface_index: info.interface_index,
            interface: info.interface.clone(),
            environment,
            shared: Arc::downgrade(shared),
        }
    }

    /// Checks that the device works as a further opening asks for: as `config` says, or as the
    /// environment does, unless a program gave the configuration.
    ///
    /// # Errors
    /// `InvalidInput`, with what differs.
    pub(super) fn check_same(&self, core: &Core, config: Option<&DeviceConfig>) -> io::Result<()> {
        let different = match (config, &self.environment) {
            (Some(config), _) => core.config().differences(config),
            (None, Some(environment)) => environment.changes(&Snapshot::take()),
            (None, None) => Vec::new(),
        };
        if different.is_empty() {
            return Ok(());
        }
        let message = format!(
            "this process has {} open with another configuration ({}): open it with the same one, \
             or close all its devices first",
            self.interface,
            different.join(", ")
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }
}

/// Locks the list of workers while the process forks. The child has only the thread that forked,
/// and reads the list whenever it opens a path that may belong to a device; the lock must not be
/// held by a thread that the child does not have.
pub(super) fn hold_while_forking() {
    /// Held from before a fork until after it, in both processes.
    struct Held(UnsafeCell<Option<MutexGuard<'static, Vec<Opened>>>>);
    // SAFETY: touched only by the thread that forks, between the C library's calls around `fork`,
    // which it makes one at a time.
    unsafe impl Sync for Held {}
    static HELD: Held = Held(UnsafeCell::new(None));

    extern "C" fn before() {
        let guard = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as for `Held`: the lock makes this thread the only one here.
        unsafe { *HELD.0.get() = Some(guard) };
    }
    extern "C" fn after() {
        // SAFETY: as above, in the thread (or its copy) that took the lock.
        drop(unsafe { (*HELD.0.get()).take() });
    }
    extern "C" fn in_child() {
        // SAFETY: as above.
        let Some(open) = (unsafe { (*HELD.0.get()).take() }) else {
            return;
        };
        for shared in open.iter().filter_map(|opened| opened.shared.upgrade()) {
            shared.core.abandon();
            // The parent still uses the object; the child must not run its destructor.
            std::mem::forget(shared);
        }
    }
    static REGISTERED: std::sync::Once = std::sync::Once::new();
    // SAFETY: plain functions that live as long as the library.
    REGISTERED.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(after), Some(in_child));
    });
}

/// Many programs end without closing their devices; an ACK that waits, and what was counted last,
/// must not be lost with them.
pub(super) fn finish_at_exit() {
    extern "C" fn finish_all() {
        // A thread that holds a lock at exit keeps it: then they are lost, and nothing hangs.
        let Ok(open) = OPEN.try_lock() else { return };
        for shared in open.iter().filter_map(|opened| opened.shared.upgrade()) {
            shared.core.try_finish();
            // Dropping the last reference here would end the progress thread in the middle of the
            // process's own end.
            std::mem::forget(shared);
        }
    }
    static REGISTERED: std::sync::Once = std::sync::Once::new();
    // SAFETY: the handler is a plain function that lives as long as the library.
    REGISTERED.call_once(|| unsafe {
        libc::atexit(finish_all);
    });
}
