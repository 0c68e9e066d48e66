//! Interfaces that are gone: identifiers at their devices hear of it
//! (`RDMA_CM_EVENT_DEVICE_REMOVAL`), and listeners at all addresses stop to listen there, as with
//! the kernel's.

use std::collections::BTreeSet;
use std::sync::Arc;

use airdma_engine as engine;

use super::abi::{RDMA_CM_EVENT_DEVICE_REMOVAL, rdma_cm_id};
use super::id::{Id, Listening};
use super::{connect, devices};
use crate::live;
use crate::object::Object;
use airdma_preload::PerProcess;

/// The identifiers of this process, by their cookies.
static IDENTIFIERS: PerProcess<BTreeSet<u64>> = PerProcess::new();

/// An identifier begins.
pub fn enter(cookie: u64) {
    IDENTIFIERS.lock().insert(cookie);
}

/// An identifier ends.
pub fn leave(cookie: u64) {
    IDENTIFIERS.lock().remove(&cookie);
}

/// Watches the interface of a device that was opened for identifiers.
pub fn watch(device: &Arc<engine::Device>) {
    // A device lives as long as a program uses it, and no longer for this.
    let lost = Arc::downgrade(device);
    device.when_gone(move || {
        if let Some(device) = lost.upgrade() {
            tell_all(&device);
            drop(device);
            devices::close_unused();
        }
    });
}

/// Tells the identifiers at a device that its interface is gone. Runs on a thread that holds no
/// lock.
fn tell_all(device: &engine::Device) {
    let identifiers = IDENTIFIERS.lock().clone();
    for cookie in identifiers {
        // `rdma_destroy_id` waits meanwhile.
        let Some(raw) = live::deliver::<rdma_cm_id>(cookie, |events| events.completion.deliver())
        else {
            continue;
        };
        // SAFETY: as said.
        if let Ok(id) = unsafe { Id::of(raw.as_ptr()) } {
            tell(id, device);
            id.events().completion.acknowledge(1);
        }
    }
}

fn tell(id: &Id, device: &engine::Device) {
    let mut state = id.state();
    let is_there = |one: &mut Listening| one.device.is_same_device(device);
    let ended: Vec<_> = state.listeners.extract_if(.., is_there).collect();
    let channel = Arc::clone(&state.channel);
    for listening in &ended {
        connect::stop_listening(&channel, listening);
    }
    let place = state.place.as_ref();
    if place.is_some_and(|place| place.device.is_same_device(device)) {
        channel.post(id.cookie(), RDMA_CM_EVENT_DEVICE_REMOVAL);
    }
}
