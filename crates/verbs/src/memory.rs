//! Protection domains and memory regions.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use airdma_engine::{self as engine, Access};

use crate::abi;
use crate::context::Context;
use crate::errno::Errno;
use crate::object::{Object, next_handle};

/// `IBV_ACCESS_OPTIONAL_RANGE`: bits that a device may ignore when it does not know them.
const ACCESS_OPTIONAL: u32 = 0x3ff0_0000;

/// A protection domain.
#[repr(C)]
pub struct Pd {
    c: UnsafeCell<abi::ibv_pd>,
    engine: Arc<engine::Pd>,
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
}

// SAFETY: `c` is the first field.
unsafe impl Object for Mr {
    type C = abi::ibv_mr;
}

/// `ibv_alloc_pd(3)`.
pub unsafe fn alloc_pd(raw: *mut abi::ibv_context) -> Result<*mut abi::ibv_pd, Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(raw) }?;
    let engine = context.device().alloc_pd()?;
    let c = UnsafeCell::new(abi::ibv_pd {
        context: raw,
        handle: next_handle(),
    });
    Ok(Box::new(Pd { c, engine }).into_raw())
}

/// `ibv_dealloc_pd(3)`: EBUSY while something was created from it.
pub unsafe fn dealloc_pd(raw: *mut abi::ibv_pd) -> Result<(), Errno> {
    // SAFETY: the caller's domain, given back if the engine lets it go.
    unsafe {
        Pd::of(raw)?.engine.destroy()?;
        drop(Pd::take(raw));
    }
    Ok(())
}

/// `ibv_reg_mr(3)`.
pub unsafe fn reg_mr(
    pd: *mut abi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain and memory.
    unsafe { register(pd, addr, length, addr as u64, access.cast_unsigned()) }
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
    unsafe { register(pd, addr, length, iova, access.cast_unsigned()) }
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
    unsafe { register(pd, addr, length, iova, access) }
}

/// `ibv_rereg_mr(3)`: not supported; the region stays as it is.
pub unsafe fn rereg_mr(
    _mr: *mut abi::ibv_mr,
    _flags: c_int,
    _pd: *mut abi::ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _access: c_int,
) -> Result<c_int, Errno> {
    // -1 is IBV_REREG_MR_ERR_INPUT: "the old region is valid".
    Err(Errno::UNSUPPORTED)
}

/// `ibv_dereg_mr(3)`.
pub unsafe fn dereg_mr(raw: *mut abi::ibv_mr) -> Result<(), Errno> {
    // SAFETY: the caller's region, given back once the engine does not touch it any more.
    unsafe {
        Mr::of(raw)?.engine.deregister()?;
        drop(Mr::take(raw));
    }
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
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain.
    let pd = unsafe { Pd::of(raw_pd) }?;
    let access = access_of(flags)?;
    let zero_based = access.contains(Access::ZERO_BASED);
    let iova = if zero_based { 0 } else { iova };
    let engine = pd.engine.reg_mr(addr as u64, length, iova, access)?;
    let c = UnsafeCell::new(abi::ibv_mr {
        context: pd.context(),
        pd: raw_pd,
        addr,
        length,
        handle: next_handle(),
        lkey: engine.lkey().0,
        rkey: engine.rkey().0,
    });
    Ok(Box::new(Mr { c, engine }).into_raw())
}

/// The access rights asked for. Unknown optional ones are dropped, other unknown ones refused, and
/// on-demand paging is not offered (`ibv_query_device_ex` says so).
fn access_of(flags: u32) -> Result<Access, Errno> {
    let known = Access::from_bits_truncate(flags);
    if flags & !known.bits() & !ACCESS_OPTIONAL != 0 {
        return Err(Errno::INVALID);
    }
    if known.contains(Access::ON_DEMAND) {
        return Err(Errno::UNSUPPORTED);
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
        assert_eq!(
            access_of(local | abi::IBV_ACCESS_ON_DEMAND),
            Err(Errno::UNSUPPORTED)
        );
    }
}
