//! One host of a world: a device of the engine, its objects, and the memory that its program and its peers use.

use crate::delays::Delays;
use airdma_engine::simulated::{Inventory, Simulated, interface, set_nonblocking};
use airdma_engine::{
    Access, Channel, Cq, Mr, Pd, Qp, QpEvent, Qpn, RateControl, Srq, SrqAttributes,
};
use airdma_model::Alarm;
use airdma_port::sim::{Carrier, Frame, carried};
use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

/// What a stretch of memory is for.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Where the first slot is.
    pub at: usize,
    /// Bytes of a slot.
    pub slot: usize,
    /// How many there are.
    pub slots: usize,
}

impl Area {
    /// All of it.
    pub fn range(self) -> Range<usize> {
        self.at..self.at + self.slot * self.slots
    }
}

/// Bytes between areas that nobody grants.
const GUARD: usize = 256;

/// What is sent.
pub const SOURCES: Area = Area {
    at: GUARD,
    slot: 4096,
    slots: 6,
};
/// Where messages arrive: 2,048 bytes and room for the header of a datagram.
pub const RECEIVES: Area = Area {
    at: 25 * 1024,
    slot: 2088,
    slots: 24,
};
/// Of those, what the program uses; the others are for the end of the world, so that everybody can be served.
pub const RECEIVES_USED: usize = 16;
/// Where answers arrive.
pub const LANDINGS: Area = Area {
    at: 75 * 1024,
    slot: 4096,
    slots: 4,
};
/// What peers write and read.
pub const TARGETS: Area = Area {
    at: 92 * 1024,
    slot: 8192,
    slots: 1,
};
/// What peers do atomics on.
pub const CELLS: Area = Area {
    at: 101 * 1024,
    slot: 8,
    slots: 8,
};

const BYTES: usize = 102 * 1024;

/// How a region is registered.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Of what.
    pub area: Area,
    /// With which rights.
    pub access: Access,
    /// In the second protection domain, which no queue pair uses.
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
    .union(Access::REMOTE_READ);

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

/// Names for some of them.
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

/// A region as it is registered now, or was last.
pub struct Registered {
    /// `None` once it was deregistered.
    pub mr: Option<Arc<Mr>>,
    /// Its key.
    pub key: u32,
    /// Its first address.
    pub va: u64,
}

/// The host.
pub struct Host {
    /// The device.
    pub device: Simulated,
    /// Where its packets lie.
    pub carrier: Carrier,
    /// Packets to itself.
    pub to_itself: VecDeque<Frame>,
    /// Its address.
    pub address: IpAddr,
    /// Protection domain of everything but foreign regions.
    pub pd: Arc<Pd>,
    foreign: Arc<Pd>,
    /// By number of [`REGIONS`].
    pub regions: Vec<Registered>,
    /// Completion queues.
    pub cqs: Vec<Arc<Cq>>,
    /// For both.
    pub channel: Arc<Channel>,
    /// The shared receive queue, until it is destroyed.
    pub srq: Option<Arc<Srq>>,
    /// What the judge knows of the completion queues.
    pub alarms: [Alarm; 2],
    /// The alarm of the shared queue, and how low that may have been since.
    pub limit: Option<(usize, usize)>,
    /// It runs.
    pub alive: bool,
    /// Packets that came to it with damage that its port must find.
    pub harmed: u64,
    /// How long its packets waited for the port.
    pub port_waits: Delays,
    /// Since when they do.
    pub waits_since: Option<Duration>,
    /// What the device held on to before there was anything.
    pub nothing: Inventory,
    memory: Box<[u64]>,
    sources: Vec<Option<u64>>,
    receives: Vec<Option<u64>>,
    landings: Vec<Option<u64>>,
}

/// What a host offers its peers beyond RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Air {
    /// Nothing.
    Nothing,
    /// Air mode, to who asks.
    Answers,
    /// Air mode, and it asks.
    Asks,
}

impl Host {
    /// A host with its regions and queues.
    pub fn new(index: usize, address: IpAddr, seed: u64, air: Air) -> Host {
        let info = interface(&format!("sim{index}"), 1 + index as u32, address);
        let (port, carrier) = carried(&[address]).expect("a descriptor");
        let simulated = Simulated::open(info, Box::new(port), seed).expect("a device in memory");
        match air {
            Air::Nothing => {}
            Air::Answers => simulated.offer_air_to_who_asks(RateControl::Buffers),
            Air::Asks => simulated.offer_air(RateControl::Buffers),
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

    /// Registers a region; `times` makes its addresses differ from those that it had before.
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

    /// Where something lies in this process, for inline data.
    pub fn pointer(&self, at: usize) -> u64 {
        self.address_of(at)
    }

    /// All bytes, as they are now.
    pub fn bytes(&self) -> &[u8] {
        let at = std::ptr::with_exposed_provenance(self.memory.as_ptr().expose_provenance());
        // SAFETY: that many bytes, alive with `self`. The device, which writes to them, runs only when this thread calls it,
        // and the slice does not outlive such a call: it borrows the host.
        unsafe { std::slice::from_raw_parts(at, BYTES) }
    }

    /// Stores bytes as the program would.
    pub fn store(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.address_of(at) as usize);
        // SAFETY: in bounds, and nobody else runs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Takes a free slot of an area for a request, and returns where it is.
    pub fn take(&mut self, area: Area, id: u64) -> Option<usize> {
        let slots = self.slots(area);
        let free = slots.iter().position(Option::is_none)?;
        slots[free] = Some(id);
        Some(area.at + free * area.slot)
    }

    /// How many slots of an area are in use.
    pub fn taken(&mut self, area: Area) -> usize {
        self.slots(area).iter().flatten().count()
    }

    /// The request is over.
    pub fn give_back(&mut self, id: u64) {
        for slots in [&mut self.sources, &mut self.receives, &mut self.landings] {
            for slot in slots.iter_mut().filter(|slot| **slot == Some(id)) {
                *slot = None;
            }
        }
    }

    /// The landing of one request is another's from now on.
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

    /// The address by which a region's key opens a place in memory.
    pub fn va(&self, number: usize, at: usize) -> u64 {
        self.regions[number].va + (at - REGIONS[number].area.at) as u64
    }

    /// Destroys all but the device; queue pairs and windows are gone already.
    ///
    /// # Errors
    /// Something does not let itself be destroyed.
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
    /// `None` once it was destroyed.
    pub qp: Option<Arc<Qp>>,
    /// Host.
    pub host: usize,
    /// Its number.
    pub number: Qpn,
    /// Requests that its send and receive queue take.
    pub granted: (u32, u32),
    /// Its window, if it has one.
    pub window: Option<Window>,
    /// In the drained state.
    pub drained: bool,
    /// It was told to drain, and has not said that it did.
    pub draining: bool,
    /// Packets of an earlier connection may have come to it until then; without end if they still may.
    pub haunted: Option<Duration>,
    /// Asynchronous events that it had.
    pub events: Vec<QpEvent>,
    /// Events that it must have had, by what its peer was told.
    pub owed: Vec<QpEvent>,
}

/// A memory window of type 2.
pub struct Window {
    /// The window.
    pub mw: Arc<airdma_engine::Mw>,
    /// Its key, with all that was posted to it.
    pub key: u32,
    /// What it opens then: first address and length.
    pub opens: Option<(u64, u32)>,
    /// Its key and what it opens, as far as completions were seen; `None` if one was flushed that may have been done.
    pub settled: Option<Opened>,
    /// The last request that was done, by when it was posted.
    settled_by: u64,
    /// Binds and invalidations whose end was not seen, and what the window is after each.
    pub pending: Vec<(u64, Opened)>,
    /// Requests of the peer that go by its key and are not over, and whether they read.
    pub users: Vec<(u64, bool)>,
}

/// A window's key, and the first address and length of what it opens.
pub type Opened = (u32, Option<(u64, u32)>);

impl Window {
    /// One that opens nothing yet.
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

    /// A request is over, if it was one about this window: done, refused, or (`None`) perhaps the one, perhaps the other.
    pub fn settle(&mut self, id: u64, done: Option<bool>) {
        self.users.retain(|&(user, _)| user != id);
        let Some(index) = self.pending.iter().position(|&(other, _)| other == id) else {
            return;
        };
        let (_, after) = self.pending.remove(index);
        match done {
            // The peer invalidates too, and may see that it has when later requests are long done here.
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
