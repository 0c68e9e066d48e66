//! Interfaces that come later, or get their first address later: who listens at all addresses
//! listens there too, as in the kernel. A thread hears of them. It starts with the first such
//! listener, and sleeps.

use airdma_engine::{LinkMonitor, without_signals};

use super::abi::rdma_cm_id;
use super::id::Id;
use super::{connect, devices};
use crate::live;
use crate::object::Object;
use airdma_preload::PerProcess;

#[derive(Default)]
struct Table {
    /// The thread that waits for new interfaces runs.
    hears: bool,
    /// Identifiers that listen at all addresses.
    listeners: Vec<u64>,
}

static TABLE: PerProcess<Table> = PerProcess::new();

/// An identifier listens at all addresses, or is about to.
pub fn watch(cookie: u64) {
    let mut table = TABLE.lock();
    table.listeners.push(cookie);
    if !table.hears {
        // Where the kernel reports no changes, the interfaces that are there now must do.
        table.hears = LinkMonitor::of_all().is_ok_and(|monitor| {
            let thread = std::thread::Builder::new().name("airdma-arrivals".into());
            without_signals(|| thread.spawn(move || follow_changes(&monitor))).is_ok()
        });
    }
}

/// An identifier listens at all addresses no longer.
pub fn forget(cookie: u64) {
    TABLE.lock().listeners.retain(|other| *other != cookie);
}

fn follow_changes(monitor: &LinkMonitor) {
    while monitor.wait().is_ok() {
        let listeners = TABLE.lock().listeners.clone();
        if listeners.is_empty() {
            continue;
        }
        let Ok(all) = devices::all_anew() else {
            // The next message comes when that has changed.
            continue;
        };
        let all: Vec<_> = all.into_iter().map(|(_, device)| device).collect();
        for cookie in listeners {
            // A thread that destroys the identifier waits meanwhile.
            let Some(raw) =
                live::deliver::<rdma_cm_id>(cookie, |events| events.completion.deliver())
            else {
                continue;
            };
            // SAFETY: as said.
            if let Ok(id) = unsafe { Id::of(raw.as_ptr()) } {
                connect::listen_also(id, &all);
                id.events().completion.acknowledge(1);
            }
        }
    }
}
