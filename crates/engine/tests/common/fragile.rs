//! A port that breaks when a test wants it to.

use airdma_port::{Capabilities, Port, PortCounters, Received, TransmitBatch};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A port that works until it is told to break.
pub struct Fragile<P> {
    pub port: P,
    pub broken: Arc<AtomicBool>,
}

impl<P: Port> Port for Fragile<P> {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

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
