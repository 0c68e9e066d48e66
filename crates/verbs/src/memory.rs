//! Protection domains and memory regions.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use airdma_engine::{self as engine, Access, Prefetch, RegionChange};

use crate::buffer::Buffer;
use crate::context::Context;
use crate::dma_handle::{DmaHandle, DmaHandleUse};
use crate::dmabuf::Mapping;
use crate::errno::Errno;
use crate::object::{Object, next_handle};
use crate::registry::Registry;
use crate::{abi, domain, post};

/// `IBV_ACCESS_OPTIONAL_RANGE`: bits that a device may ignore when it does not know them.
const ACCESS_OPTIONAL: u32 = 0x3ff0_0000;

/// A protection domain.
#[repr(C)]
pub struct Pd {
    c: UnsafeCell<abi::ibv_pd>,
    engine: Arc<engine::Pd>,
    /// The thread domain that a parent domain names, or NULL.
    td: *mut abi::ibv_td,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Pd {
    type C = abi::ibv_pd;
}

impl Pd {
    /// The engine's domain.
    pub fn engine(&self) -> &Arc<engine::Pd> {
        &self.engine
    }

    /// A domain for C, which gives it back with `ibv_dealloc_pd`.
    pub fn hand_out(
        context: *mut abi::ibv_context,
        engine: Arc<engine::Pd>,
        td: *mut abi::ibv_td,
    ) -> *mut abi::ibv_pd {
        let handle = next_handle();
        PDS.enter(handle, &engine);
        let c = UnsafeCell::new(abi::ibv_pd { context, handle });
        Box::new(Pd { c, engine, td }).into_raw()
    }

    /// The context it was allocated from.
    pub fn context(&self) -> *mut abi::ibv_context {
        // SAFETY: the field is written at creation only.
        unsafe { (*self.c.get()).context }
    }
}

#[repr(C)]
struct Mr {
    c: UnsafeCell<abi::ibv_mr>,
    engine: Arc<engine::Mr>,
    _holds: Holds,
}

/// What a region holds until it is deregistered.
#[derive(Default)]
struct Holds {
    /// The handle that it was registered with.
    _dma_handle: Option<DmaHandleUse>,
    /// Its memory, if that is of a dmabuf.
    _mapping: Option<Mapping>,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Mr {
    type C = abi::ibv_mr;
}

impl Mr {
    fn hand_out(
        c: UnsafeCell<abi::ibv_mr>,
        engine: Arc<engine::Mr>,
        holds: Holds,
    ) -> *mut abi::ibv_mr {
        Box::new(Mr {
            c,
            engine,
            _holds: holds,
        })
        .into_raw()
    }
}

/// `ibv_alloc_pd(3)`.
pub unsafe fn alloc_pd(raw: *mut abi::ibv_context) -> Result<*mut abi::ibv_pd, Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(raw) }?;
    let engine = context.device().alloc_pd()?;
    Ok(Pd::hand_out(raw, engine, ptr::null_mut()))
}

/// `ibv_dealloc_pd(3)`: EBUSY while something was created from it.
pub unsafe fn dealloc_pd(raw: *mut abi::ibv_pd) -> Result<(), Errno> {
    // SAFETY: the caller's domain, given back if the engine lets it go.
    unsafe {
        let pd = Pd::of(raw)?;
        pd.engine.destroy()?;
        domain::release_td(pd.td);
        PDS.leave((*raw).handle);
        drop(Pd::take(raw));
    }
    Ok(())
}

/// `ibv_import_pd(3)`: the domain that another context of this process allocated.
pub unsafe fn import_pd(
    raw: *mut abi::ibv_context,
    handle: u32,
) -> Result<*mut abi::ibv_pd, Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(raw) }?;
    let engine = PDS.find(handle).ok_or(Errno(libc::ENOENT))?;
    if !context.device().is_same_device(engine.device()) {
        return Err(Errno::INVALID);
    }
    let c = UnsafeCell::new(abi::ibv_pd {
        context: raw,
        handle,
    });
    let td = ptr::null_mut();
    Ok(Box::new(Pd { c, engine, td }).into_raw())
}

/// `ibv_unimport_pd(3)`: the importer's handle goes, the domain stays.
pub unsafe fn unimport_pd(raw: *mut abi::ibv_pd) {
    if !raw.is_null() {
        // SAFETY: the caller gives back what `import_pd` returned.
        drop(unsafe { Pd::take(raw) });
    }
}

static PDS: Registry<engine::Pd> = Registry::new();
static MRS: Registry<engine::Mr> = Registry::new();

/// `ibv_reg_mr(3)`.
pub unsafe fn reg_mr(
    pd: *mut abi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain and memory.
    unsafe { register(pd, addr, length, addr as u64, access.cast_unsigned(), None) }
}

/// `ibv_reg_mr_iova(3)`.
pub unsafe fn reg_mr_iova(
    pd: *mut abi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain and memory.
    unsafe { register(pd, addr, length, iova, access.cast_unsigned(), None) }
}

/// `ibv_reg_mr_iova2`, which the `ibv_reg_mr` macro calls for access flags that are not constant.
pub unsafe fn reg_mr_iova2(
    pd: *mut abi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain and memory.
    unsafe { register(pd, addr, length, iova, access, None) }
}

/// `ibv_reg_dmabuf_mr(3)`: memory of a dmabuf that can be mapped, which the CPU then copies.
///
/// `EOPNOTSUPP` for one that cannot be mapped (memory of most graphics cards).
pub unsafe fn reg_dmabuf_mr(
    raw_pd: *mut abi::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    flags: c_int,
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain.
    let pd = unsafe { Pd::of(raw_pd) }?;
    let access = access_of(flags.cast_unsigned())?;
    let impossible = Access::ON_DEMAND | Access::ZERO_BASED | Access::MW_BIND | Access::HUGETLB;
    if access.intersects(impossible) {
        return Err(Errno::INVALID);
    }
    let mapping = Mapping::new(fd, offset, length, iova, access)?;
    let engine = pd.engine.reg_mr(mapping.address(), length, iova, access)?;
    let holds = Holds {
        _dma_handle: None,
        _mapping: Some(mapping),
    };
    // As rdma-core has it: no address of the process, but where it lies in the dmabuf.
    let range = (ptr::without_provenance_mut(offset as usize), length);
    Ok(hand_out_with(raw_pd, pd, range, engine, holds))
}

/// `ibv_reg_mr_ex`: the other ways to register in one.
///
/// Memory of a dmabuf (`IBV_REG_MR_MASK_FD`) is registered by [`reg_dmabuf_mr`].
pub unsafe fn reg_mr_ex(
    raw_pd: *mut abi::ibv_pd,
    attr: *mut abi::ibv_mr_init_attr,
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain and struct.
    let (pd, attr) = unsafe { (Pd::of(raw_pd)?, attr.as_ref().ok_or(Errno::INVALID)?) };
    let given = |mask: u32| attr.comp_mask & u64::from(mask) != 0;
    let other_device = abi::IBV_REG_MR_MASK_FD | abi::IBV_REG_MR_MASK_FD_OFFSET;
    let of_dmabuf = other_device | abi::IBV_REG_MR_MASK_IOVA;
    let known = abi::IBV_REG_MR_MASK_IOVA
        | abi::IBV_REG_MR_MASK_ADDR
        | abi::IBV_REG_MR_MASK_DMAH
        | abi::IBV_REG_MR_MASK_BUF;
    if given(abi::IBV_REG_MR_MASK_BUF) && given(other_device) {
        return Err(Errno::INVALID);
    }
    if attr.comp_mask == u64::from(of_dmabuf) {
        // SAFETY: the caller's domain.
        return unsafe {
            reg_dmabuf_mr(
                raw_pd,
                attr.fd_offset,
                attr.length,
                attr.iova,
                attr.fd,
                attr.access,
            )
        };
    }
    if attr.comp_mask & !u64::from(known) != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    let on_demand = attr.access.cast_unsigned() & abi::IBV_ACCESS_ON_DEMAND != 0;
    if !given(abi::IBV_REG_MR_MASK_ADDR) || (on_demand && given(abi::IBV_REG_MR_MASK_DMAH)) {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's buffer and handle.
    let dma_handle = unsafe {
        if given(abi::IBV_REG_MR_MASK_BUF)
            && !Buffer::of(attr.buf)?.contains(raw_pd, attr.addr, attr.length)
        {
            return Err(Errno::INVALID);
        }
        if given(abi::IBV_REG_MR_MASK_DMAH) {
            let context = Context::of(pd.context())?;
            Some(DmaHandle::of(attr.dmah)?.hold(context)?)
        } else {
            None
        }
    };
    let iova = if given(abi::IBV_REG_MR_MASK_IOVA) {
        attr.iova
    } else {
        attr.addr as u64
    };
    let access = attr.access.cast_unsigned();
    // SAFETY: the caller's domain and memory.
    unsafe { register(raw_pd, attr.addr, attr.length, iova, access, dma_handle) }
}

/// `ibv_reg_buf_mr(3)`.
pub unsafe fn reg_buf_mr(
    pd: *mut abi::ibv_pd,
    buf: *mut abi::ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Result<*mut abi::ibv_mr, Errno> {
    let mut attr = abi::ibv_mr_init_attr {
        length,
        access,
        comp_mask: u64::from(abi::IBV_REG_MR_MASK_ADDR | abi::IBV_REG_MR_MASK_BUF),
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: ptr::null_mut(),
        buf,
    };
    // SAFETY: the caller's domain and buffer.
    unsafe { reg_mr_ex(pd, &raw mut attr) }
}

/// `ibv_rereg_mr(3)`. Every failure is -1, `IBV_REREG_MR_ERR_INPUT`: the region is as it was.
pub unsafe fn rereg_mr(
    raw: *mut abi::ibv_mr,
    flags: c_int,
    raw_pd: *mut abi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Result<c_int, Errno> {
    let flags = flags.cast_unsigned();
    let changes = |flag: u32| flags & flag != 0;
    if flags == 0 || flags & !abi::IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's region, and its domain if the flag says that there is one.
    let (mr, pd) = unsafe {
        let pd = if changes(abi::IBV_REREG_MR_CHANGE_PD) {
            Some(Pd::of(raw_pd)?)
        } else {
            None
        };
        (Mr::of(raw)?, pd)
    };
    let mut change = RegionChange::default();
    if changes(abi::IBV_REREG_MR_CHANGE_TRANSLATION) {
        if addr.is_null() || length == 0 {
            return Err(Errno::INVALID);
        }
        change.translation = Some((addr as u64, length));
    }
    if changes(abi::IBV_REREG_MR_CHANGE_ACCESS) {
        change.access = Some(access_of(access.cast_unsigned())?);
    }
    mr.engine.reregister(pd.map(Pd::engine), &change)?;
    // SAFETY: the region's public fields, which are the caller's to read after this call.
    unsafe {
        if pd.is_some() {
            (*raw).pd = raw_pd;
            (*raw).context = (*raw_pd).context;
        }
        if change.translation.is_some() {
            (*raw).addr = addr;
            (*raw).length = length;
        }
    }
    Ok(0)
}

/// `ibv_dereg_mr(3)`: EBUSY while memory windows are bound in it.
pub unsafe fn dereg_mr(raw: *mut abi::ibv_mr) -> Result<(), Errno> {
    // SAFETY: the caller's region, given back once the engine does not touch it any more.
    unsafe {
        Mr::of(raw)?.engine.deregister()?;
        MRS.leave((*raw).handle);
        drop(Mr::take(raw));
    }
    Ok(())
}

/// `ibv_import_mr(3)`: the region that another context of this process registered. Its address is
/// not told.
pub unsafe fn import_mr(raw_pd: *mut abi::ibv_pd, handle: u32) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain.
    let pd = unsafe { Pd::of(raw_pd) }?;
    let engine = MRS.find(handle).ok_or(Errno(libc::ENOENT))?;
    if !engine.is_of(&pd.engine) {
        return Err(Errno::INVALID);
    }
    let c = describe(raw_pd, pd, (ptr::null_mut(), 0), handle, &engine);
    Ok(Mr::hand_out(c, engine, Holds::default()))
}

/// `ibv_unimport_mr(3)`: the importer's handle goes, the region stays.
pub unsafe fn unimport_mr(raw: *mut abi::ibv_mr) {
    if !raw.is_null() {
        // SAFETY: the caller gives back what `import_mr` returned.
        drop(unsafe { Mr::take(raw) });
    }
}

/// `ibv_alloc_null_mr(3)`.
pub unsafe fn alloc_null_mr(raw_pd: *mut abi::ibv_pd) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain.
    let pd = unsafe { Pd::of(raw_pd) }?;
    let engine = pd.engine.alloc_null_mr()?;
    let mr = hand_out(raw_pd, pd, (ptr::null_mut(), usize::MAX), engine);
    // SAFETY: just made. It has the greatest length, and is nothing that a peer may name.
    unsafe { (*mr).rkey = 0 };
    Ok(mr)
}

/// `ibv_advise_mr(3)`.
pub unsafe fn advise_mr(
    raw_pd: *mut abi::ibv_pd,
    advice: abi::ib_uverbs_advise_mr_advice,
    flags: u32,
    list: *mut abi::ibv_sge,
    count: u32,
) -> Result<(), Errno> {
    // SAFETY: the caller's domain and list.
    let (pd, sges) = unsafe {
        let count = c_int::try_from(count).map_err(|_| Errno::INVALID)?;
        (Pd::of(raw_pd)?, post::elements(list, count)?)
    };
    if flags & !abi::IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0 || sges.is_empty() {
        return Err(Errno::INVALID);
    }
    let flush = flags & abi::IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0;
    let pages = match advice {
        abi::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH => Prefetch::Read,
        abi::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => Prefetch::Write,
        abi::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Prefetch::Present,
        _ => return Err(Errno::UNSUPPORTED),
    };
    pd.engine.prefetch(sges, pages, flush)?;
    Ok(())
}

/// `ibv_fork_init(3)`: no page is ever pinned for DMA, so there is nothing to prepare.
pub unsafe fn fork_init() -> Result<(), Errno> {
    Ok(())
}

/// `ibv_is_fork_initialized(3)`.
pub unsafe fn is_fork_initialized() -> c_uint {
    abi::IBV_FORK_UNNEEDED
}

/// `ibv_dontfork_range` and `ibv_dofork_range`, for hardware providers.
pub unsafe fn fork_range(_base: *mut c_void, _size: usize) -> Result<(), Errno> {
    Ok(())
}

unsafe fn register(
    raw_pd: *mut abi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
    dma_handle: Option<DmaHandleUse>,
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain.
    let pd = unsafe { Pd::of(raw_pd) }?;
    let access = access_of(flags)?;
    let zero_based = access.contains(Access::ZERO_BASED);
    let iova = if zero_based { 0 } else { iova };
    let engine = pd.engine.reg_mr(addr as u64, length, iova, access)?;
    let holds = Holds {
        _dma_handle: dma_handle,
        _mapping: None,
    };
    Ok(hand_out_with(raw_pd, pd, (addr, length), engine, holds))
}

/// A region for C, which gives it back with `ibv_dereg_mr`.
pub fn hand_out(
    raw_pd: *mut abi::ibv_pd,
    pd: &Pd,
    range: (*mut c_void, usize),
    engine: Arc<engine::Mr>,
) -> *mut abi::ibv_mr {
    hand_out_with(raw_pd, pd, range, engine, Holds::default())
}

fn hand_out_with(
    raw_pd: *mut abi::ibv_pd,
    pd: &Pd,
    range: (*mut c_void, usize),
    engine: Arc<engine::Mr>,
    holds: Holds,
) -> *mut abi::ibv_mr {
    let handle = next_handle();
    MRS.enter(handle, &engine);
    let c = describe(raw_pd, pd, range, handle, &engine);
    Mr::hand_out(c, engine, holds)
}

fn describe(
    raw_pd: *mut abi::ibv_pd,
    pd: &Pd,
    (addr, length): (*mut c_void, usize),
    handle: u32,
    engine: &engine::Mr,
) -> UnsafeCell<abi::ibv_mr> {
    UnsafeCell::new(abi::ibv_mr {
        context: pd.context(),
        pd: raw_pd,
        addr,
        length,
        handle,
        lkey: engine.lkey().0,
        rkey: engine.rkey().0,
    })
}

/// The access rights asked for. Unknown optional ones are dropped, other unknown ones refused.
pub fn access_of(flags: u32) -> Result<Access, Errno> {
    let known = Access::from_bits_truncate(flags);
    if flags & !known.bits() & !ACCESS_OPTIONAL != 0 {
        return Err(Errno::INVALID);
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_access_bits_are_accepted_and_others_are_not() {
        let local = abi::IBV_ACCESS_LOCAL_WRITE;
        assert_eq!(access_of(local), Ok(Access::LOCAL_WRITE));
        assert_eq!(access_of(local | 1 << 29), Ok(Access::LOCAL_WRITE));
        let relaxed = local | abi::IBV_ACCESS_RELAXED_ORDERING;
        assert!(access_of(relaxed).is_ok());
        assert_eq!(access_of(local | 1 << 30), Err(Errno::INVALID));
        assert!(access_of(local | abi::IBV_ACCESS_ON_DEMAND).is_ok());
    }
}
