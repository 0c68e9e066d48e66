//! The port breaks for good: posted requests complete, with an event for each object.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/fragile.rs"]
mod fragile;

use airdma_engine::*;
use airdma_port::sim;
use common::*;
use fragile::Fragile;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn what_is_posted_is_flushed_when_the_port_breaks() {
    let (left, right) = (IpAddr::from(LEFT), IpAddr::from(RIGHT));
    let (port, far) = sim::pair(&[left], &[right]).unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let fragile = Fragile {
        port,
        broken: Arc::clone(&broken),
    };
    let (left, right) = wired_on((left, Box::new(fragile)), (right, Box::new(far)));
    let (left, right) = pair_on(&left, &right, 64);
    left.send(Operation::Send, 0, 8);
    // The receiver has posted nothing, so this is answered with RNR NAKs for ever; only the port's
    // end ends it.
    left.recv(7, 8, 8);
    broken.store(true, Ordering::Relaxed);
    let (first, second) = (left.complete(), left.complete());
    assert_eq!([first.status, second.status], [Status::WrFlushError; 2]);
    assert_eq!(counter(&left.device, "port_failures"), 1);
    drop(right);
}
