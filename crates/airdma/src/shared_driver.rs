//! One thread wakes the tasks of all devices that have listeners and no connections.
//!
//! A program that listens on each of 200 interfaces has 200 devices. A device with a connection has
//! a thread of its own ([`crate::waiting::Driver`]), which runs the device while it waits. The
//! engine runs all others, and this thread distributes their events of the connection manager.

use crate::hub::Hub;
use crate::waiting::{Signal, TICK};
use airdma_engine::{CmChannel, PerProcess, PollSet, without_signals};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::task::Wake;

/// Number of the signal in the set; no descriptor has it.
const SIGNAL: u64 = u64::MAX;

static SHARED: PerProcess<Option<SharedDriver>> = PerProcess::new();

struct SharedDriver {
    set: Arc<PollSet>,
    /// Ends the thread once there is no device.
    signal: Arc<Signal>,
    /// By the descriptor of their events.
    hubs: HashMap<u64, Weak<Hub>>,
}

/// Wakes the tasks of a device from now on.
///
/// # Errors
/// The system's: threads, descriptors.
pub(crate) fn add(hub: &Arc<Hub>) -> io::Result<()> {
    let mut shared = SHARED.lock();
    let driver = match &mut *shared {
        Some(driver) => driver,
        none => none.insert(SharedDriver::start()?),
    };
    let key = key_of(&hub.events);
    driver.set.add_as(hub.events.fd(), key)?;
    driver.hubs.insert(key, Arc::downgrade(hub));
    Ok(())
}

/// Leaves a device to its own thread, or to none.
pub(crate) fn remove(events: &CmChannel) {
    let mut shared = SHARED.lock();
    if let Some(driver) = &mut *shared
        && driver.hubs.remove(&key_of(events)).is_some()
    {
        driver.set.remove(events.fd());
        if driver.hubs.is_empty() {
            driver.signal.wake_by_ref();
            *shared = None;
        }
    }
}

fn key_of(events: &CmChannel) -> u64 {
    u64::from(events.fd().unsigned_abs())
}

impl SharedDriver {
    fn start() -> io::Result<Self> {
        let (set, signal) = (Arc::new(PollSet::out_of_sight()?), Signal::new()?);
        set.add_as(signal.fd(), SIGNAL)?;
        let (its_set, its_signal) = (Arc::clone(&set), Arc::clone(&signal));
        // The application's signal handlers run in its own threads.
        without_signals(|| {
            std::thread::Builder::new()
                .name("airdma-driver".into())
                .spawn(move || run(&its_set, &its_signal))
        })?;
        Ok(SharedDriver {
            set,
            signal,
            hubs: HashMap::new(),
        })
    }
}

/// Runs until the last device is removed.
fn run(set: &PollSet, signal: &Arc<Signal>) {
    loop {
        let Ok(ready) = set.wait() else {
            // The program has closed descriptors that are not its own, say.
            std::thread::sleep(TICK);
            continue;
        };
        let hubs: Vec<_> = match &*SHARED.lock() {
            Some(driver) if Arc::ptr_eq(&driver.signal, signal) => {
                let hubs = ready.filter_map(|key| driver.hubs.get(&key));
                hubs.filter_map(Weak::upgrade).collect()
            }
            Some(_) | None => return,
        };
        for hub in hubs {
            hub.attend(None);
        }
    }
}
