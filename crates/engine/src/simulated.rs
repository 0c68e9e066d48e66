//! Devices in virtual time, for simulations and tests: made, moved in time, connected, counted.
//!
//! No thread but the caller's runs it, its clock stands still until it is moved, and its keys and
//! numbers come from a seed: so everything that it does can be repeated. All the rest is the device
//! that programs use.

use crate::clock::Clock;
use crate::config::RateControl;
use crate::core::Core;
pub use crate::inventory::Inventory;
use crate::random::Random;
use crate::worker::Work;
use crate::{Device, DeviceConfig, DeviceInfo, GidEntry, Mr, PathMtu, Qp, QpAttributes};
use airdma_port::Port;
use airdma_transport::Time;
use airdma_wire::air::feature;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Rounds at one moment after which a device counts as one that never comes to rest.
const ROUNDS_MAX: u32 = 1_000_000;

/// An interface that is up, has this address and a path MTU of 1,024 bytes, and exists only in the
/// simulation.
pub fn interface(name: &str, index: u32, address: IpAddr) -> DeviceInfo {
    DeviceInfo {
        name: format!("airdma_{name}"),
        interface: name.to_owned(),
        interface_index: index,
        mtu: 1500,
        mac: [2, 0, 0, 0, 0, index as u8],
        guid: u64::from(index),
        gids: vec![GidEntry::from(address)],
        path_mtu: PathMtu::M1024,
        up: true,
        speed_mbps: None,
    }
}

/// A device whose time the owner moves.
pub struct Simulated {
    device: Arc<Device>,
}

impl Simulated {
    /// A device on this port.
    ///
    /// # Errors
    /// Those of the system (descriptors, memory).
    pub fn open(info: DeviceInfo, port: Box<dyn Port>, seed: u64) -> io::Result<Self> {
        let clock = Clock::Moved(AtomicU64::new(0));
        let core = Core::new(
            info,
            DeviceConfig::of_simulation(),
            clock,
            Random::Seeded(seed),
        )?;
        let device = Device::on_port(core, port)?;
        Ok(Simulated { device })
    }

    /// From now on peers are offered what goes beyond RoCEv2, and sent to as fast as this says
    /// (`AIRDMA_AIR=1` and `AIRDMA_RATE` for programs).
    pub fn offer_air(&self, rate_control: RateControl) {
        self.control_rate(rate_control);
        let features = feature::SELECTIVE | feature::SACK | feature::REPORTS;
        self.device.core().offer(features);
    }

    /// From now on peers are offered what goes beyond RoCEv2 on a wire, and the rest if they ask
    /// for it (the default of programs, on an interface that is not wireless).
    pub fn offer_wired(&self, rate_control: RateControl) {
        self.control_rate(rate_control);
        let features = feature::SELECTIVE | feature::SACK;
        self.device.core().offer(features);
    }

    /// From now on peers are offered ACK packets that say what is missing (`AIRDMA_SACK=1` for
    /// programs).
    pub fn offer_sack(&self) {
        self.device.core().offer(feature::SACK);
    }

    /// From now on peers are offered bundles of packets, beside what [`offer_air`](Self::offer_air)
    /// says (`AIRDMA_AGGREGATE=datagrams` for programs).
    pub fn offer_bundles(&self) {
        self.device.core().offer(feature::BUNDLES);
    }

    /// From now on peers whose rate is controlled are sent to as fast as this says (`AIRDMA_RATE`
    /// for programs).
    pub fn control_rate(&self, rate_control: RateControl) {
        self.device.core().control_rate(rate_control);
    }

    /// From now on the interface has this MTU.
    pub fn set_interface_mtu(&self, mtu: u32) {
        let core = self.device.core();
        core.control(|worker, now| worker.state.note_interface_mtu(mtu, now));
    }

    /// From now on peers without a rate controller are sent all that there is, as by NICs that know
    /// of no window. Before anything is connected.
    pub fn lift_window(&self) {
        self.device.core().lift_window();
    }

    /// From now on peers name the memory of a region for records by addresses from `iova` on, which
    /// are the same in each run.
    pub fn move_records(&self, mr: &Mr, iova: u64) {
        let core = self.device.core();
        core.control(|worker, _| {
            let memory = &mut worker.state.device.memory;
            memory.move_records(mr.rkey().0, iova);
        });
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Moves its clock to `now` (since it was opened; never back). Nothing happens.
    pub fn move_clock(&self, now: Duration) {
        self.device.core().move_clock(now);
    }

    /// Moves its clock to `now`, and runs everything that is due by then.
    pub fn run(&self, now: Duration) {
        let core = self.device.core();
        core.move_clock(now);
        for _ in 0..ROUNDS_MAX {
            let more = core.try_progress(Work::All).is_some_and(|round| round.more);
            if !more {
                return;
            }
        }
        panic!("the device does not come to rest at {now:?}");
    }

    /// When it wants to be run again although nothing has come; `None` if never.
    pub fn deadline(&self) -> Option<Duration> {
        let deadline = self.device.core().deadline();
        deadline.map(|at| Duration::from_nanos(Time::as_nanos(at)))
    }

    /// What it holds on to.
    pub fn inventory(&self) -> Inventory {
        self.device.core().inventory()
    }
}

/// Makes the calls that wait for an event of this descriptor return `EAGAIN` when there is none.
pub fn set_nonblocking(fd: RawFd) {
    // SAFETY: plain integers; a descriptor that is none is refused.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
    }
}

/// As [`Qp::connect`], for tests.
///
/// # Panics
/// If a transition is refused.
pub fn connect(qp: &Qp, attributes: &QpAttributes) {
    qp.connect(attributes)
        .expect("all that the transitions ask for");
}
