//! Two hosts and the cable between them.

use std::fs;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{LabError, Tried, checked};
use crate::host::Host;
use crate::interrupts::Interrupts;
use crate::namespace::Namespace;
use crate::netlink::Route;
use crate::runtime_dir::RuntimeDir;
use crate::soft_interrupts::{SoftInterrupts, are_apart};

/// Name of the cable's ends on both hosts.
pub const INTERFACE: &str = "eth0";

/// Properties of the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cable {
    /// MTU of both ends, in bytes.
    pub mtu: u32,
    /// Whether segmented (GSO) packets cross in one piece, as on a veth; otherwise each packet
    /// crosses alone.
    pub segmented: bool,
    /// One of this number of packets is lost at random, either way; none if 0.
    pub lost_one_in: u32,
}

impl Default for Cable {
    fn default() -> Cable {
        Cable {
            mtu: 1500,
            segmented: true,
            lost_one_in: 0,
        }
    }
}

/// Two hosts joined by a veth pair, which both end with this object or the process.
#[derive(Debug)]
pub struct Lab {
    /// One host.
    pub a: Host,
    /// The other.
    pub b: Host,
    /// The cable.
    pub cable: Cable,
    pub(crate) interrupts: Interrupts,
    soft_interrupts: OnceLock<SoftInterrupts>,
    runtime: RuntimeDir,
}

impl Lab {
    /// Makes the hosts and waits until packets can cross. Requires [`crate::enter`]; from then on
    /// SIGINT ends waits with [`LabError::Interrupted`].
    pub fn new(cable: Cable) -> Result<Lab, LabError> {
        let runtime = RuntimeDir::new().tried("making a folder for what programs keep")?;
        let cores = cores();
        let variable = (
            "XDG_RUNTIME_DIR".to_owned(),
            runtime.path().display().to_string(),
        );
        let host = |number: u8| {
            Ok(Host {
                namespace: Namespace::new().tried("making a network namespace")?,
                ipv4: IpAddr::V4(Ipv4Addr::new(10, 77, 0, number)),
                ipv6: IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into())),
                core: cores[usize::from(number - 1) % cores.len()],
                variables: vec![variable.clone()],
            })
        };
        let (a, b) = (host(1)?, host(2)?);
        let lab = Lab {
            soft_interrupts: OnceLock::new(),
            a,
            b,
            cable,
            interrupts: Interrupts::block().tried("waiting for signals")?,
            runtime,
        };
        lab.connect()?;
        Ok(lab)
    }

    /// The folder that programs on the hosts have as XDG_RUNTIME_DIR.
    pub fn runtime(&self) -> &Path {
        self.runtime.path()
    }

    /// Two cores for host A and two for host B, the first of each its own; none on a machine with
    /// fewer.
    pub fn core_pairs(&self) -> Option<[[usize; 2]; 2]> {
        let own = [self.a.core, self.b.core];
        let mut others = cores().into_iter().filter(|core| !own.contains(core));
        let pairs = [[own[0], others.next()?], [own[1], others.next()?]];
        (own[0] != own[1]).then_some(pairs)
    }

    /// Number of cores of both hosts together: 1 or 2.
    pub fn cores(&self) -> usize {
        if self.a.core == self.b.core { 1 } else { 2 }
    }

    /// Counts of soft interrupts on the cores of both hosts. The first call takes a tenth of a
    /// second: it measures how this kernel charges them.
    pub(crate) fn soft_interrupts(&self) -> Result<&SoftInterrupts, LabError> {
        if self.soft_interrupts.get().is_none() {
            let apart = self.probe().tried("sending to the other host")?;
            let cores = vec![self.a.core, self.b.core];
            // Another thread may have measured the same meanwhile.
            let _ = self.soft_interrupts.set(SoftInterrupts::new(cores, apart));
        }
        Ok(self.soft_interrupts.get().expect("set above"))
    }

    /// Whether soft interrupts are not charged to programs. Without information from the kernel
    /// they are.
    fn probe(&self) -> io::Result<bool> {
        let receiver = self.on_b(|| UdpSocket::bind((self.b.ipv4, 0)))?;
        let to = receiver.local_addr()?;
        self.on_a(|| {
            let sender = UdpSocket::bind((self.a.ipv4, 0))?;
            sender.connect(to)?;
            Ok(are_apart(&sender).unwrap_or(false))
        })
    }

    /// Runs `work` on host a; sockets that it makes stay there.
    pub fn on_a<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.a.namespace.within(work)
    }

    /// Runs `work` on host b.
    pub fn on_b<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.b.namespace.within(work)
    }

    fn connect(&self) -> Result<(), LabError> {
        let far = self.b.namespace.raw();
        for host in [&self.a, &self.b] {
            // Without this the link-local addresses would be unusable for the first second or two.
            let dad = || fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
            // No file where the kernel has no IPv6.
            let _ = host.namespace.within(dad);
        }
        let mtu = self.cable.mtu;
        self.a
            .namespace
            .within(|| Route::open()?.add_veth(INTERFACE, mtu, far))
            .tried("making a veth pair")?;
        for host in [&self.a, &self.b] {
            host.namespace
                .within(|| self.configure(host))
                .tried(format!("giving {INTERFACE} its addresses"))?;
        }
        for (host, name) in [(&self.a, 'a'), (&self.b, 'b')] {
            let up = host.namespace.within(|| wait_up(INTERFACE));
            if !up.tried("waiting for the carrier")? {
                return Err(LabError::Down(name));
            }
            if self.cable.lost_one_in > 0 {
                host.drop_one_in(self.cable.lost_one_in)?;
            }
        }
        Ok(())
    }

    fn configure(&self, host: &Host) -> io::Result<()> {
        configure(INTERFACE, host.ipv4, host.ipv6, self.cable.segmented)
    }
}

/// Adds addresses to an interface in the namespace of the calling thread, and brings it up.
/// `segmented`: as in [`Cable`].
pub fn configure(name: &str, ipv4: IpAddr, ipv6: IpAddr, segmented: bool) -> io::Result<()> {
    let mut route = Route::open()?;
    let index = interface(name)?;
    if !segmented {
        route.forbid_segmented(index)?;
    }
    route.add_address(index, ipv4, 24)?;
    // An older kernel, or one without IPv6, refuses the address; no measurement needs it.
    let _ = route.add_address(index, ipv6, 64);
    route.set_up(interface("lo")?)?;
    route.set_up(index)
}

/// Index of an interface, in the namespace of the calling thread.
pub fn interface(name: &str) -> io::Result<u32> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: a C string that lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Waits until packets can cross from an interface in the namespace of the calling thread; false
/// after ten seconds.
///
/// The kernel reports a changed carrier at most once a second. Until then the port is down.
pub fn wait_up(name: &str) -> io::Result<bool> {
    let mut route = Route::open()?;
    let index = interface(name)?;
    let deadline = Instant::now() + UP;
    while !route.is_up(index)? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        thread::sleep(POLL);
    }
    Ok(true)
}

/// Cores that this process may use; at least one.
pub fn cores() -> Vec<usize> {
    // SAFETY: plain data that the call fills.
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        match checked(libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set)) {
            Ok(_) => set,
            // More than 1,024 cores: the first two suffice.
            Err(_) => return vec![0, 1],
        }
    };
    // SAFETY: the numbers are below the set's size.
    let has = |core: &usize| unsafe { libc::CPU_ISSET(*core, &set) };
    (0..libc::CPU_SETSIZE as usize).filter(has).collect()
}

const UP: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
