//! The way to the network goes away for good: what was posted completes, and everybody is told.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use airdma_port::{Port, PortCounters, Received, TransmitBatch, sim};
use common::*;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A port that works until it is told to break.
struct Fragile<P> {
    port: P,
    broken: Arc<AtomicBool>,
}

impl<P: Port> Port for Fragile<P> {
    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        self.port.transmit(batch)
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        self.port.receive(budget, handle)
    }

    fn wait_descriptors(&self, out: &mut Vec<RawFd>) {
        self.port.wait_descriptors(out);
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

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
    // The receiver has posted nothing, so this is answered with RNR NAKs for ever; only the port's end ends it.
    left.recv(7, 8, 8);
    broken.store(true, Ordering::Relaxed);
    let (first, second) = (left.complete(), left.complete());
    assert_eq!([first.status, second.status], [Status::WrFlushError; 2]);
    assert_eq!(counter(&left.device, "port_failures"), 1);
    drop(right);
}
