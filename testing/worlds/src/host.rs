//! One host of a world: a device of the engine, its objects, and the memory of its program and
//! peers.

use crate::delays::Delays;
use crate::one_host::OneHost;
use airdma_engine::simulated::{Inventory, Simulated, interface, set_nonblocking};
use airdma_engine::{
    Access, Channel, Cq, Mr, Pd, Qp, QpEvent, Qpn, RateControl, Srq, SrqAttributes,
};
use airdma_model::Alarm;
use airdma_port::Port;
use airdma_port::sim::{Carrier, Frame, carried};
use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

/// A part of the memory with one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Offset of the first slot.
    pub at: usize,
    /// Bytes of a slot.
    pub slot: usize,
    /// Number of slots.
    pub slots: usize,
}

impl Area {
    /// Range of the whole area.
    pub fn range(self) -> Range<usize> {
        self.at..self.at + self.slot * self.slots
    }
}

/// Bytes between areas, which no region grants.
const GUARD: usize = 256;

/// Sources of messages.
pub const SOURCES: Area = Area {
    at: GUARD,
    slot: 4096,
    slots: 6,
};
/// Receive buffers: 2,048 bytes and room for the header of a datagram.
pub const RECEIVES: Area = Area {
    at: 25 * 1024,
    slot: 2088,
    slots: 24,
};
/// Receive buffers that the program uses; the others serve waiting senders at the end of the world.
pub const RECEIVES_USED: usize = 16;
/// Landing places of READ and atomic results.
pub const LANDINGS: Area = Area {
    at: 75 * 1024,
    slot: 4096,
    slots: 4,
};
/// Targets of the peers' reads and writes.
pub const TARGETS: Area = Area {
    at: 92 * 1024,
    slot: 8192,
    slots: 1,
};
/// Targets of the peers' atomics.
pub const CELLS: Area = Area {
    at: 101 * 1024,
    slot: 8,
    slots: 8,
};

const BYTES: usize = 102 * 1024;

/// Registration of a region.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The registered area.
    pub area: Area,
    /// Access rights.
    pub access: Access,
    /// Registered in the second protection domain, which no queue pair uses.
    pub foreign: bool,
}

const fn layout(area: Area, access: Access) -> Layout {
    Layout {
        area,
        access,
        foreign: false,
    }
}

const RW: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::FLUSH_GLOBAL);

/// The regions of every host.
pub const REGIONS: [Layout; 7] = [
    layout(SOURCES, Access::empty()),
    layout(RECEIVES, Access::LOCAL_WRITE),
    layout(LANDINGS, Access::LOCAL_WRITE),
    layout(TARGETS, RW.union(Access::MW_BIND)),
    layout(TARGETS, Access::REMOTE_READ),
    layout(
        CELLS,
        Access::LOCAL_WRITE
            .union(Access::REMOTE_ATOMIC)
            .union(Access::REMOTE_READ),
    ),
    Layout {
        area: TARGETS,
        access: RW,
        foreign: true,
    },
];

/// Indices of some of them.
pub mod region {
    #![allow(missing_docs)]
    pub const SOURCES: usize = 0;
    pub const RECEIVES: usize = 1;
    pub const LANDINGS: usize = 2;
    pub const TARGETS: usize = 3;
    pub const READ_ONLY: usize = 4;
    pub const CELLS: usize = 5;
    pub const FOREIGN: usize = 6;
}

/// A region's current or last registration.
pub struct Registered {
    /// `None` once deregistered.
    pub mr: Option<Arc<Mr>>,
    /// Its key.
    pub key: u32,
    /// Its first address.
    pub va: u64,
}

/// A host.
pub struct Host {
    /// Its device.
    pub device: Simulated,
    /// Packets between device and network.
    pub carrier: Carrier,
    /// Packets addressed to itself.
    pub to_itself: VecDeque<Frame>,
    /// Its address.
    pub address: IpAddr,
    /// Protection domain of everything but foreign regions.
    pub pd: Arc<Pd>,
    foreign: Arc<Pd>,
    /// Regions, by index of [`REGIONS`].
    pub regions: Vec<Registered>,
    /// Completion queues.
    pub cqs: Vec<Arc<Cq>>,
    /// Channel of both.
    pub channel: Arc<Channel>,
    /// The shared receive queue, until it is destroyed.
    pub srq: Option<Arc<Srq>>,
    /// The judge's state of the completion queues' notifications.
    pub alarms: [Alarm; 2],
    /// Limit of the shared queue, and the lowest level it may have reached since it was set.
    pub limit: Option<(usize, usize)>,
    /// Whether it runs.
    pub alive: bool,
    /// Damaged packets that arrived, which its port must detect.
    pub harmed: u64,
    /// Delays of its packets in front of the port.
    pub port_waits: Delays,
    /// Start of the present delay.
    pub waits_since: Option<Duration>,
    /// Objects that the device held before any was made.
    pub nothing: Inventory,
    memory: Box<[u64]>,
    sources: Vec<Option<u64>>,
    receives: Vec<Option<u64>>,
    landings: Vec<Option<u64>>,
}

/// Features that a host offers its peers beyond RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Air {
    /// None (`AIRDMA_AIR=0`).
    Nothing,
    /// What hosts on a wire offer: all, of which air mode only to peers that ask for it.
    Wired,
    /// Air mode.
    Radio,
}

impl Host {
    /// A host with its regions and queues.
    pub fn new(index: usize, address: IpAddr, seed: u64, air: Air) -> Host {
        Host::within(index, address, seed, air, None)
    }

    /// The same; or a process of the host `of`.
    pub(crate) fn within(
        index: usize,
        address: IpAddr,
        seed: u64,
        air: Air,
        of: Option<&mut OneHost>,
    ) -> Host {
        let info = interface(&format!("sim{index}"), 1 + index as u32, address);
        let (port, carrier) = carried(&[address]).expect("a descriptor");
        let port: Box<dyn Port> = match of {
            Some(host) => Box::new(host.add(port, address, seed)),
            None => Box::new(port),
        };
        let simulated = Simulated::open(info, port, seed).expect("a device in memory");
        match air {
            Air::Nothing => {}
            Air::Wired => simulated.offer_wired(RateControl::Buffers),
            Air::Radio => simulated.offer_air(RateControl::Buffers),
        }
        let nothing = simulated.inventory();
        let device = simulated.device();
        let pd = device.alloc_pd().expect("a domain");
        let foreign = device.alloc_pd().expect("a domain");
        let channel = device.create_channel().expect("a channel");
        set_nonblocking(channel.fd());
        set_nonblocking(device.async_fd());
        let cq = |cookie| {
            let signalled = Some((Arc::clone(&channel), cookie));
            device
                .create_cq(1024, signalled)
                .expect("a completion queue")
        };
        let cqs = vec![cq(0), cq(1)];
        let sizes = SrqAttributes {
            max_wr: 16,
            max_sge: 4,
            limit: 0,
        };
        let srq = pd.create_srq(sizes, None).expect("a shared receive queue");
        let mut memory = vec![0u64; BYTES / 8].into_boxed_slice();
        for (word, number) in memory.iter_mut().zip(seed..) {
            *word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        memory.as_mut_ptr().expose_provenance();
        let mut host = Host {
            device: simulated,
            carrier,
            to_itself: VecDeque::new(),
            address,
            pd,
            foreign,
            regions: Vec::new(),
            cqs,
            channel,
            srq: Some(srq),
            alarms: [Alarm::default(); 2],
            limit: None,
            alive: true,
            harmed: 0,
            port_waits: Delays::default(),
            waits_since: None,
            nothing,
            memory,
            sources: vec![None; SOURCES.slots],
            receives: vec![None; RECEIVES.slots],
            landings: vec![None; LANDINGS.slots],
        };
        for number in 0..REGIONS.len() {
            let registered = host.register(number, 0);
            host.regions.push(registered);
        }
        host
    }

    /// Registers a region; `times` makes its addresses differ from those of earlier registrations.
    pub fn register(&self, number: usize, times: u64) -> Registered {
        let Layout {
            area,
            access,
            foreign,
        } = REGIONS[number];
        let range = area.range();
        let va = 0x1000_0000 * (number as u64 + 1) + 0x10_0000 * times;
        let pd = if foreign { &self.foreign } else { &self.pd };
        let mr = pd.reg_mr(self.address_of(range.start), range.len(), va, access);
        let mr = mr.expect("memory that is there");
        Registered {
            key: mr.lkey().0,
            mr: Some(mr),
            va,
        }
    }

    fn address_of(&self, at: usize) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64 + at as u64
    }

    /// Address of an offset in this process, for inline data.
    pub fn pointer(&self, at: usize) -> u64 {
        self.address_of(at)
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        let at = std::ptr::with_exposed_provenance(self.memory.as_ptr().expose_provenance());
        // SAFETY: the range has that many bytes, alive with `self`. The device, which writes to
        // them, runs only when this thread calls it, and the slice does not outlive such a call: it
        // borrows the host.
        unsafe { std::slice::from_raw_parts(at, BYTES) }
    }

    /// Stores bytes as the program does.
    pub fn store(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.address_of(at) as usize);
        // SAFETY: in bounds, and no other thread runs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Takes a free slot of an area for a request; returns its offset.
    pub fn take(&mut self, area: Area, id: u64) -> Option<usize> {
        let slots = self.slots(area);
        let free = slots.iter().position(Option::is_none)?;
        slots[free] = Some(id);
        Some(area.at + free * area.slot)
    }

    /// Number of slots of an area in use.
    pub fn taken(&mut self, area: Area) -> usize {
        self.slots(area).iter().flatten().count()
    }

    /// Releases the slots of a request that has ended.
    pub fn give_back(&mut self, id: u64) {
        for slots in [&mut self.sources, &mut self.receives, &mut self.landings] {
            for slot in slots.iter_mut().filter(|slot| **slot == Some(id)) {
                *slot = None;
            }
        }
    }

    /// Moves the landing slot of one request to another.
    pub fn hand_over(&mut self, from: u64, to: u64) {
        for slot in self.landings.iter_mut().filter(|slot| **slot == Some(from)) {
            *slot = Some(to);
        }
    }

    fn slots(&mut self, area: Area) -> &mut Vec<Option<u64>> {
        match area.at {
            at if at == SOURCES.at => &mut self.sources,
            at if at == RECEIVES.at => &mut self.receives,
            _ => &mut self.landings,
        }
    }

    /// Address of an offset by a region's key.
    pub fn va(&self, number: usize, at: usize) -> u64 {
        self.regions[number].va + (at - REGIONS[number].area.at) as u64
    }

    /// Destroys all objects except the device; queue pairs and windows are gone already.
    ///
    /// # Errors
    /// An object cannot be destroyed.
    pub fn take_down(&mut self) -> Result<(), String> {
        for registered in &mut self.regions {
            if let Some(mr) = registered.mr.take() {
                mr.deregister()
                    .map_err(|error| format!("deregistering: {error}"))?;
            }
        }
        if let Some(srq) = self.srq.take() {
            srq.destroy()
                .map_err(|error| format!("the shared receive queue: {error}"))?;
        }
        for cq in self.cqs.drain(..) {
            cq.destroy()
                .map_err(|error| format!("a completion queue: {error}"))?;
        }
        self.channel
            .destroy()
            .map_err(|error| format!("the channel: {error}"))?;
        for pd in [&self.pd, &self.foreign] {
            pd.destroy()
                .map_err(|error| format!("a protection domain: {error}"))?;
        }
        Ok(())
    }
}

/// One end of a connection.
pub struct End {
    /// `None` once destroyed.
    pub qp: Option<Arc<Qp>>,
    /// Index of its host.
    pub host: usize,
    /// Its number.
    pub number: Qpn,
    /// Capacities of its send and receive queue.
    pub granted: (u32, u32),
    /// Its window, if it has one.
    pub window: Option<Window>,
    /// Whether it is in the drained state.
    pub drained: bool,
    /// Whether it was moved to the drained state and has not reported it.
    pub draining: bool,
    /// Time until which packets of an earlier connection may arrive; [`Duration::MAX`] if they
    /// still may.
    pub haunted: Option<Duration>,
    /// Asynchronous events received.
    pub events: Vec<QpEvent>,
    /// Events that must come, by what its peer was told.
    pub owed: Vec<QpEvent>,
}

/// A memory window of type 2.
pub struct Window {
    /// The window object.
    pub mw: Arc<airdma_engine::Mw>,
    /// Its key after all posted requests.
    pub key: u32,
    /// Memory that it opens after them: first address and length.
    pub opens: Option<(u64, u32)>,
    /// Key and range by the completions seen; `None` if a request was flushed that may have been
    /// executed.
    pub settled: Option<Opened>,
    /// The last executed request, in the order of posting.
    settled_by: u64,
    /// Binds and invalidations without a completion, and the window's state after each.
    pub pending: Vec<(u64, Opened)>,
    /// Outstanding requests of the peer that use its key, and whether they read.
    pub users: Vec<(u64, bool)>,
}

/// A window's key, and the first address and length of what it opens.
pub type Opened = (u32, Option<(u64, u32)>);

impl Window {
    /// A window that opens nothing yet.
    pub fn new(mw: Arc<airdma_engine::Mw>) -> Self {
        let key = mw.first_rkey().0;
        Window {
            mw,
            key,
            opens: None,
            settled: Some((key, None)),
            settled_by: 0,
            pending: Vec::new(),
            users: Vec::new(),
        }
    }

    /// Whether it is certain what it opens.
    pub fn is_known(&self) -> bool {
        self.pending.is_empty() && self.settled.is_some()
    }

    /// Settles a request about this window: executed, refused, or (`None`) uncertain.
    pub fn settle(&mut self, id: u64, done: Option<bool>) {
        self.users.retain(|&(user, _)| user != id);
        let Some(index) = self.pending.iter().position(|&(other, _)| other == id) else {
            return;
        };
        let (_, after) = self.pending.remove(index);
        match done {
            // The peer invalidates too, and may report it when later requests have long completed
            // here.
            Some(true) if id > self.settled_by => {
                self.settled = Some(after);
                self.settled_by = id;
            }
            Some(_) => {}
            None => self.settled = None,
        }
        if let (true, Some((key, opens))) = (self.pending.is_empty(), self.settled) {
            (self.key, self.opens) = (key, opens);
        }
    }
}
