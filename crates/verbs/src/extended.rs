//! Domains of extended reliable connections (XRC), and target queue pairs opened by number.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;

use airdma_engine as engine;

use crate::abi;
use crate::context::Context;
use crate::errno::Errno;
use crate::object::Object;
use airdma_preload::PerProcess;

/// A domain.
#[repr(C)]
pub struct Xrcd {
    c: UnsafeCell<abi::ibv_xrcd>,
    engine: Arc<engine::Xrcd>,
    /// The file that names it, if one does.
    file: Option<File>,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Xrcd {
    type C = abi::ibv_xrcd;
}

impl Xrcd {
    /// The engine's domain.
    pub fn engine(&self) -> &Arc<engine::Xrcd> {
        &self.engine
    }
}

/// A file, by device and inode, and the interface whose domain it names.
type File = (u64, u64, u32);

/// The domains that a file names, and how often each is open.
static NAMED: PerProcess<BTreeMap<File, (Arc<engine::Xrcd>, usize)>> = PerProcess::new();

/// `ibv_open_xrcd(3)`. Opening the same file again in the same process returns the same domain;
/// with a descriptor of -1 the domain is new.
pub unsafe fn open(
    raw: *mut abi::ibv_context,
    attr: *mut abi::ibv_xrcd_init_attr,
) -> Result<*mut abi::ibv_xrcd, Errno> {
    // SAFETY: the caller's context and struct.
    let (context, attr) = unsafe { (Context::of(raw)?, attr.as_ref().ok_or(Errno::INVALID)?) };
    if attr.comp_mask >= abi::IBV_XRCD_INIT_ATTR_RESERVED {
        return Err(Errno::UNSUPPORTED);
    }
    if attr.comp_mask != abi::IBV_XRCD_INIT_ATTR_FD | abi::IBV_XRCD_INIT_ATTR_OFLAGS {
        return Err(Errno::INVALID);
    }
    let (file, engine) = if attr.fd == -1 {
        (None, context.device().open_xrcd()?)
    } else {
        let (device, inode) = identity(attr.fd)?;
        let file = (device, inode, context.device().info().interface_index);
        (Some(file), open_named(context, file, attr.oflags)?)
    };
    let c = UnsafeCell::new(abi::ibv_xrcd { context: raw });
    Ok(Box::new(Xrcd { c, engine, file }).into_raw())
}

/// Opens a domain by its file, as `open(2)` does: without `O_CREAT` the domain must exist (EAGAIN,
/// as the kernel has it), with `O_EXCL` it must not (EINVAL).
fn open_named(context: &Context, file: File, flags: c_int) -> Result<Arc<engine::Xrcd>, Errno> {
    let mut named = NAMED.lock();
    if let Some((domain, opened)) = named.get_mut(&file) {
        if flags & libc::O_EXCL != 0 {
            return Err(Errno::INVALID);
        }
        *opened += 1;
        return Ok(Arc::clone(domain));
    }
    if flags & libc::O_CREAT == 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let domain = context.device().open_xrcd()?;
    named.insert(file, (Arc::clone(&domain), 1));
    Ok(domain)
}

fn identity(fd: c_int) -> Result<(u64, u64), Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call fills the struct or fails.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return Err(Errno::current());
    }
    // SAFETY: it was filled.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_dev, stat.st_ino))
}

/// `ibv_close_xrcd(3)`: EBUSY for the last one who has it open, while queues or queue pairs use it.
pub unsafe fn close(raw: *mut abi::ibv_xrcd) -> Result<(), Errno> {
    // SAFETY: the caller's domain, given back if the engine lets it go.
    unsafe {
        let xrcd = Xrcd::of(raw)?;
        let mut named = NAMED.lock();
        match xrcd
            .file
            .and_then(|file| Some((file, named.get_mut(&file)?)))
        {
            Some((_, (_, opened))) if *opened > 1 => *opened -= 1,
            Some((file, _)) => {
                xrcd.engine.destroy()?;
                named.remove(&file);
            }
            None => xrcd.engine.destroy()?,
        }
        drop(Xrcd::take(raw));
    }
    Ok(())
}

/// Target queue pairs by interface and number, and how many handles stand for each.
type Targets = BTreeMap<(u32, u32), (Arc<engine::Qp>, usize)>;

static TARGETS: PerProcess<Targets> = PerProcess::new();

fn key_of(qp: &engine::Qp) -> (u32, u32) {
    (qp.device().info().interface_index, qp.number().get())
}

/// A target queue pair was created.
pub fn enter_target(qp: &Arc<engine::Qp>) {
    TARGETS.lock().insert(key_of(qp), (Arc::clone(qp), 1));
}

/// The target queue pair of that number in that domain, opened once more (`ibv_open_qp(3)`).
pub fn open_target(number: u32, domain: &engine::Xrcd) -> Result<Arc<engine::Qp>, Errno> {
    let mut targets = TARGETS.lock();
    let key = (domain.device().info().interface_index, number);
    let (qp, opened) = targets.get_mut(&key).ok_or(Errno(libc::ENOENT))?;
    if !qp.is_target_of(domain) {
        return Err(Errno(libc::ENOENT));
    }
    *opened += 1;
    Ok(Arc::clone(qp))
}

/// A handle of a target queue pair goes; the last one takes the queue pair with it.
pub fn close_target(qp: &engine::Qp) -> Result<(), Errno> {
    let mut targets = TARGETS.lock();
    let key = key_of(qp);
    if let Some((_, opened)) = targets.get_mut(&key)
        && *opened > 1
    {
        *opened -= 1;
        return Ok(());
    }
    qp.destroy()?;
    targets.remove(&key);
    Ok(())
}
