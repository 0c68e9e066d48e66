//! The devices behind identifiers. A process opens each once, for all its identifiers, and keeps
//! it: programs compare `id->verbs` and share what they allocate there.

use std::ffi::c_int;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use airdma_engine::{self as engine, LIMITS, LinkMonitor, Path};

use crate::abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_ah_attr, ibv_context, ibv_pd, ibv_xrcd,
    ibv_xrcd_init_attr,
};
use crate::context::{self, Context};
use crate::errno::Errno;
use crate::{device, extended, memory, trace};
use airdma_preload::PerProcess;

use super::removal;

/// The part of librdmacm's record of a device that its rsockets read: see [`super::id::Tail`].
#[repr(C)]
pub struct CmaDevice {
    before: [u64; 9],
    max_qpsize: c_int,
    after: [u8; 64],
}

const _: () = assert!(std::mem::offset_of!(CmaDevice, max_qpsize) == 72);

struct Opened {
    raw: *mut ibv_context,
    device: Arc<engine::Device>,
    /// The domain of queue pairs that were created without one.
    pd: *mut ibv_pd,
    /// The same of extended connections.
    xrcd: *mut ibv_xrcd,
    cma: &'static CmaDevice,
    /// `rdma_get_devices(3)` has shown it to the program.
    is_shown: bool,
}

// SAFETY: contexts and domains of ours may be used by any thread.
unsafe impl Send for Opened {}

/// A child opens devices of its own: its parent's contexts are of no use there, and closing them is
/// not the child's to do.
static OPENED: PerProcess<Table> = PerProcess::new();

#[derive(Default)]
struct Table {
    opened: Vec<Opened>,
    seen: Option<Seen>,
}

/// Up to when all devices that there are have been opened. Looking at all interfaces takes some
/// twenty system calls, and programs like perftest call `rdma_listen` right after the word at which
/// their peers connect: a look at all interfaces each time would refuse them.
struct Seen {
    /// Changes since.
    news: LinkMonitor,
    namespace: Namespace,
}

/// Device and inode of a network namespace.
type Namespace = (u64, u64);

/// The calling thread's.
fn namespace() -> Option<Namespace> {
    let data = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
    Some((data.dev(), data.ino()))
}

impl Seen {
    /// Hears from now on. `None` where a sandbox forbids it: then each call looks for itself.
    fn from_now() -> Option<Self> {
        Some(Seen {
            news: LinkMonitor::of_all().ok()?,
            namespace: namespace()?,
        })
    }
}

/// A device, and the row of its GID table that holds an address.
#[derive(Clone)]
pub struct Place {
    /// For C.
    pub verbs: *mut ibv_context,
    /// The engine's.
    pub device: Arc<engine::Device>,
    /// Row of the address in the GID table.
    pub sgid_index: u8,
    /// For `cma_dev` of identifiers.
    pub cma: &'static CmaDevice,
}

// SAFETY: as for `Opened`.
unsafe impl Send for Place {}

/// Opens the devices that are not open. One that cannot be opened, because its interface is just
/// being removed, does not keep the others from being opened.
///
/// # Errors
/// Why none could be opened.
fn open_all(table: &mut Table) -> Result<(), Errno> {
    let Table { opened, seen } = table;
    let before = seen
        .take()
        .filter(|seen| namespace() == Some(seen.namespace));
    // Changes from here on, while this looks, are reported again.
    let nothing_new = before.as_ref().is_some_and(|seen| !seen.news.drain());
    let now = before.or_else(Seen::from_now);
    if nothing_new {
        *seen = now;
        return Ok(());
    }
    let mut failed = Ok(());
    for info in engine::devices()? {
        let known = |one: &Opened| {
            let open = one.device.info();
            open.name == info.name && open.interface_index == info.interface_index
        };
        if opened.iter().any(known) {
            continue;
        }
        let listed = device::pointer_of(&info);
        // SAFETY: a listed device.
        let raw = match unsafe { context::open(listed) } {
            Ok(raw) => raw,
            Err(errno) => {
                failed = Err(errno);
                continue;
            }
        };
        // SAFETY: just opened.
        let device = Arc::clone(unsafe { Context::of(raw) }?.device());
        removal::watch(&device);
        let max_qpsize = c_int::try_from(LIMITS.max_qp_wr).unwrap_or(c_int::MAX);
        opened.push(Opened {
            raw,
            device,
            pd: ptr::null_mut(),
            xrcd: ptr::null_mut(),
            is_shown: false,
            cma: Box::leak(Box::new(CmaDevice {
                before: [0; 9],
                max_qpsize,
                after: [0; 64],
            })),
        });
    }
    if failed.is_ok() {
        *seen = now;
    }
    if opened.is_empty() { failed } else { Ok(()) }
}

/// The device that has an address; `scope` is the interface of a link-local one, or 0.
///
/// # Errors
/// `ENODEV` for an address without device, and what opening a device fails with.
pub fn of_address(ip: IpAddr, scope: u32) -> Result<Place, Errno> {
    let mut table = OPENED.lock();
    if let Some(place) = find(&table.opened, ip, scope) {
        return Ok(place);
    }
    open_all(&mut table)?;
    find(&table.opened, ip, scope).ok_or(Errno(libc::ENODEV))
}

fn find(table: &[Opened], ip: IpAddr, scope: u32) -> Option<Place> {
    table.iter().find_map(|opened| {
        if scope != 0 && opened.device.info().interface_index != scope {
            return None;
        }
        let gids = opened.device.current().gids;
        let row = gids
            .iter()
            .position(|row| row.address == ip && !row.is_empty())?;
        Some(Place {
            verbs: opened.raw,
            device: Arc::clone(&opened.device),
            sgid_index: u8::try_from(row).ok()?,
            cma: opened.cma,
        })
    })
}

/// # Errors
/// `ENODEV` where there is no device at all, with words on standard error, once.
pub fn check_any() -> Result<(), Errno> {
    static SEEN: AtomicBool = AtomicBool::new(false);
    static TOLD: Once = Once::new();
    if SEEN.load(Ordering::Relaxed) {
        return Ok(());
    }
    if engine::devices()?.is_empty() {
        TOLD.call_once(|| {
            trace::warn(
                &"there is no device: no interface is up and has an IP address (the loopback interface counts if \
                  AIRDMA_LOOPBACK=1 is set); `airdma devices` lists them",
            );
        });
        return Err(Errno(libc::ENODEV));
    }
    SEEN.store(true, Ordering::Relaxed);
    Ok(())
}

/// Says, once, that an address is this host's, but no device's.
pub fn warn_of_no_device(ip: IpAddr) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let hint = if ip.is_loopback() {
            "the loopback interface is one if AIRDMA_LOOPBACK=1 is set"
        } else {
            "`airdma devices` lists theirs"
        };
        trace::warn(&format_args!("no device has the address {ip}: {hint}"));
    });
}

/// All devices that there are.
///
/// # Errors
/// Those of opening a device.
pub fn all() -> Result<Vec<(*mut ibv_context, Arc<engine::Device>)>, Errno> {
    let mut table = OPENED.lock();
    open_all(&mut table)?;
    let there = there(&mut table);
    Ok(there
        .map(|opened| (opened.raw, Arc::clone(&opened.device)))
        .collect())
}

/// Those whose interfaces are not gone.
fn there(table: &mut Table) -> impl Iterator<Item = &mut Opened> {
    let opened = table.opened.iter_mut();
    opened.filter(|opened| !opened.device.is_gone())
}

/// Closes the devices whose interfaces are gone and that no identifier ever had: a listener at all
/// addresses, on a host whose interfaces come and go, holds no descriptors of those that went. The
/// others stay, as the program may still use their contexts.
pub fn close_unused() {
    let unused: Vec<_> = {
        let mut table = OPENED.lock();
        let is_unused = |opened: &mut Opened| {
            let has_domain = !opened.pd.is_null() || !opened.xrcd.is_null();
            opened.device.is_gone() && !opened.is_shown && !has_domain
        };
        table.opened.extract_if(.., is_unused).collect()
    };
    for opened in unused {
        let Opened { raw, device, .. } = opened;
        drop(device);
        // SAFETY: opened here, and no part of the program has seen it. It fails only for NULL.
        let _ = unsafe { context::close(raw) };
    }
}

/// As [`all`], for a caller that knows of a change: the kernel notifies one socket after the other,
/// and that of [`Seen`] may be the last.
///
/// # Errors
/// As [`all`].
pub fn all_anew() -> Result<Vec<(*mut ibv_context, Arc<engine::Device>)>, Errno> {
    OPENED.lock().seen = None;
    all()
}

/// Those that this process has opened, for its exit handler; none if that has interrupted who opens
/// one.
pub fn opened() -> Vec<Arc<engine::Device>> {
    let Some(table) = OPENED.try_lock() else {
        return Vec::new();
    };
    let opened = table.opened.iter();
    opened.map(|opened| Arc::clone(&opened.device)).collect()
}

/// The domain of queue pairs that were created without one, one for each device.
///
/// # Errors
/// `ENOMEM`.
pub fn default_domain(verbs: *mut ibv_context) -> Result<*mut ibv_pd, Errno> {
    let mut table = OPENED.lock();
    let found = table.opened.iter_mut().find(|opened| opened.raw == verbs);
    let opened = found.ok_or(Errno(libc::ENODEV))?;
    if opened.pd.is_null() {
        // SAFETY: an open context.
        opened.pd = unsafe { memory::alloc_pd(verbs) }?;
    }
    Ok(opened.pd)
}

/// The domain of extended connections that were created without one, one for each device.
///
/// # Errors
/// `ENOMEM`.
pub fn default_extended_domain(verbs: *mut ibv_context) -> Result<*mut ibv_xrcd, Errno> {
    let mut table = OPENED.lock();
    let found = table.opened.iter_mut().find(|opened| opened.raw == verbs);
    let opened = found.ok_or(Errno(libc::ENODEV))?;
    if opened.xrcd.is_null() {
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: -1,
            oflags: libc::O_CREAT,
        };
        // SAFETY: an open context.
        opened.xrcd = unsafe { extended::open(verbs, &raw mut attr) }?;
    }
    Ok(opened.xrcd)
}

/// The path of an address vector that names no peer, in a default domain: rsockets for datagrams
/// make one there, by LID, with which queue pairs send to themselves. Elsewhere such a vector is
/// refused, as RoCE has no LIDs.
pub fn loopback(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Option<Path> {
    if attr.is_global != 0 || attr.dlid != 0 || u32::from(attr.port_num) != 1 {
        return None;
    }
    let device = {
        let table = OPENED.lock();
        let opened = table.opened.iter().find(|opened| opened.pd == pd)?;
        Arc::clone(&opened.device)
    };
    let gids = device.current().gids;
    let row = gids.iter().position(|row| !row.is_empty())?;
    Some(Path {
        gid: gids[row].gid,
        sgid_index: u8::try_from(row).ok()?,
        hop_limit: 1,
        ..Path::default()
    })
}

/// `rdma_get_devices(3)`: a NULL-terminated array.
pub unsafe fn list(count: *mut c_int) -> Result<*mut *mut ibv_context, Errno> {
    let mut table = OPENED.lock();
    open_all(&mut table)?;
    let shown = there(&mut table).map(|opened| {
        opened.is_shown = true;
        opened.raw
    });
    let devices: Vec<_> = shown.collect();
    drop(table);
    if devices.is_empty() {
        return Err(Errno(libc::ENODEV));
    }
    // SAFETY: plain allocation; zeroed, so the array ends in NULL.
    let array: *mut *mut ibv_context =
        unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_context>()) }.cast();
    if array.is_null() {
        return Err(Errno::NO_MEMORY);
    }
    for (index, raw) in devices.iter().enumerate() {
        // SAFETY: there is room for every device and the terminator.
        unsafe { array.add(index).write(*raw) };
    }
    if !count.is_null() {
        // SAFETY: the caller passes a valid pointer or NULL.
        unsafe { *count = c_int::try_from(devices.len()).unwrap_or(c_int::MAX) };
    }
    Ok(array)
}

/// `rdma_free_devices(3)`: the array goes, the devices stay open.
pub unsafe fn free_list(list: *mut *mut ibv_context) {
    // SAFETY: `list` came from `calloc` in `list`, or is NULL.
    unsafe { libc::free(list.cast()) }
}
