//! Two hosts of a world that are processes of one host: their packets go through rings
//! (`AIRDMA_LOCAL=1` for programs).
//!
//! The sockets, rings and descriptors are those of the kernel; time, random numbers and the network
//! on which they find each other are the world's, so that a seed gives the same packets again. The
//! link between the two loses and delays nothing, as the kernel's between processes.

use airdma_port::local::{Bell, LocalPort, Meeting, Source};
use airdma_port::sim::SimPort;
use airdma_port::{Capabilities, Port, PortCounters, QueueFill, Received, TransmitBatch};
use airdma_wire::Neighbour;
use core::time::Duration;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The hosts that are processes of one host.
pub const PROCESSES: usize = 2;

/// What the two have in common.
pub struct OneHost {
    directory: PathBuf,
    now: Arc<AtomicU64>,
    processes: Vec<Arc<Process>>,
}

impl OneHost {
    /// A host without processes.
    pub fn new() -> OneHost {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("airdma-world-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a directory for sockets");
        OneHost {
            directory,
            now: Arc::new(AtomicU64::new(0)),
            processes: Vec::new(),
        }
    }

    /// The port of the next process, over its packets on the network.
    pub fn add(&mut self, network: SimPort, address: IpAddr, seed: u64) -> OneAtATime {
        let meeting = Meeting::open(&self.directory).expect("a socket");
        let bell = Arc::new(Bell::new().expect("a descriptor"));
        let source = Source::Simulation {
            now: Arc::clone(&self.now),
            seed,
        };
        let addresses = [Some(Neighbour::from(address))];
        let waker = Arc::clone(&bell);
        let port = LocalPort::from_source(network, &addresses, meeting, waker, source);
        let process = Arc::new(Process(Mutex::new(Inside {
            bell,
            port: Some(port),
            arrived: VecDeque::new(),
            is_allowed: false,
            sent: 0,
            received: 0,
            offered: 0,
            served: 0,
        })));
        self.processes.push(Arc::clone(&process));
        OneAtATime(process)
    }

    /// Moves the clock.
    pub fn move_clock(&self, now: Duration) {
        self.now.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Lets a process receive one more packet, as when its thread wakes.
    pub fn allow(&self, process: usize) {
        let (sent, _) = self.carried();
        let mut inside = self.processes[process].lock();
        (inside.is_allowed, inside.offered) = (true, sent);
        inside.bell.will_sleep();
        inside.bell.woke();
    }

    /// Whether packets may wait for a process.
    pub fn has_packets(&self, process: usize) -> bool {
        let (sent, _) = self.carried();
        let inside = self.processes[process].lock();
        sent != inside.served || !inside.arrived.is_empty()
    }

    /// Packets that went into rings, and out of them.
    pub fn carried(&self) -> (u64, u64) {
        let mut carried = (0, 0);
        for process in &self.processes {
            let inside = process.lock();
            carried = (carried.0 + inside.sent, carried.1 + inside.received);
        }
        carried
    }

    /// Ends a process, as the kernel sees it: its descriptors are closed.
    pub fn kill(&self, process: usize) {
        let mut inside = self.processes[process].lock();
        inside.port = None;
        inside.arrived.clear();
    }

    /// Lets a process write garbage into the rings that it writes to.
    pub fn damage(&self, process: usize, by: u32) {
        if let Some(port) = &mut self.processes[process].lock().port {
            port.damage_rings(by);
        }
    }
}

impl Drop for OneHost {
    fn drop(&mut self) {
        for process in 0..self.processes.len() {
            self.kill(process);
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// One process: its port, and the packets that it has not handled.
struct Process(Mutex<Inside>);

struct Inside {
    /// `None` once killed.
    port: Option<LocalPort<SimPort>>,
    bell: Arc<Bell>,
    arrived: VecDeque<Arrived>,
    is_allowed: bool,
    /// Packets for rings, those that found no room included.
    sent: u64,
    /// Packets from rings.
    received: u64,
    /// Packets that both had sent when this one was last allowed to receive. One that has both ends
    /// of a connection has a ring to itself.
    offered: u64,
    /// Packets that both had sent when nothing waited here.
    served: u64,
}

/// A packet as it was received.
struct Arrived {
    source: Neighbour,
    source_port: u16,
    destination: Neighbour,
    tos: u8,
    ttl: u8,
    flow_label: u32,
    bundled: bool,
    bytes: Vec<u8>,
}

impl Process {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The port of a process, which hands on one packet for each permission, so that the judge sees
/// what each does.
pub struct OneAtATime(Arc<Process>);

impl Inside {
    fn count(&mut self) {
        if let Some(port) = &self.port {
            let counters = port.counters();
            self.sent = counters.tx_local + counters.tx_local_full;
            self.received = counters.rx_local;
        }
    }

    /// The next packet, if it may be received.
    fn next(&mut self, budget: usize) -> io::Result<Option<Arrived>> {
        if !std::mem::take(&mut self.is_allowed) {
            return Ok(None);
        }
        if let Some(port) = &mut self.port
            && self.arrived.is_empty()
        {
            port.receive(budget, &mut |received| {
                self.arrived.push_back(Arrived {
                    source: received.source,
                    source_port: received.source_port,
                    destination: received.destination,
                    tos: received.tos,
                    ttl: received.ttl,
                    flow_label: received.flow_label,
                    bundled: received.bundled,
                    bytes: received.bytes.to_vec(),
                });
            })?;
        }
        self.count();
        let next = self.arrived.pop_front();
        if next.is_none() {
            self.served = self.offered;
        }
        Ok(next)
    }
}

impl Port for OneAtATime {
    fn capabilities(&self) -> Capabilities {
        let inside = self.0.lock();
        let port = inside.port.as_ref();
        port.expect("asked before the process ends").capabilities()
    }

    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        let mut inside = self.0.lock();
        let Some(port) = &mut inside.port else {
            batch.clear();
            return Ok(());
        };
        let sent = port.transmit(batch);
        inside.count();
        sent
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let next = self.0.lock().next(budget)?;
        let Some(arrived) = next else {
            return Ok(0);
        };
        handle(Received {
            source: arrived.source,
            source_port: arrived.source_port,
            destination: arrived.destination,
            tos: arrived.tos,
            ttl: arrived.ttl,
            flow_label: arrived.flow_label,
            forwarded: false,
            bundled: arrived.bundled,
            bytes: &arrived.bytes,
            following: None,
        });
        Ok(1)
    }

    fn wait_descriptors(&self, out: &mut Vec<RawFd>) {
        if let Some(port) = &self.0.lock().port {
            port.wait_descriptors(out);
        }
    }

    fn counters(&self) -> PortCounters {
        let inside = self.0.lock();
        inside
            .port
            .as_ref()
            .map_or_else(PortCounters::default, Port::counters)
    }

    fn send_queue(&mut self) -> Option<QueueFill> {
        self.0.lock().port.as_mut()?.send_queue()
    }

    fn receive_queue(&mut self, source_index: u8) -> Option<QueueFill> {
        self.0.lock().port.as_mut()?.receive_queue(source_index)
    }
}
