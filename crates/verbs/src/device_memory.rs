//! Device memory.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use std::sync::Arc;

use airdma_engine as engine;

use crate::abi;
use crate::context::Context;
use crate::entry::slots;
use crate::errno::Errno;
use crate::memory::{self, Pd};
use crate::object::{Object, next_handle};
use crate::registry::Registry;

#[repr(C)]
struct Dm {
    c: UnsafeCell<abi::ibv_dm>,
    engine: Arc<engine::Dm>,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Dm {
    type C = abi::ibv_dm;
}

static DMS: Registry<engine::Dm> = Registry::new();

/// `ibv_alloc_dm(3)`.
pub unsafe fn alloc(
    raw: *mut abi::ibv_context,
    attr: *mut abi::ibv_alloc_dm_attr,
) -> Result<*mut abi::ibv_dm, Errno> {
    // SAFETY: the caller's context and struct.
    let (context, attr) = unsafe { (Context::of(raw)?, attr.as_ref().ok_or(Errno::INVALID)?) };
    if attr.comp_mask != 0 {
        return Err(Errno::INVALID);
    }
    let engine = context.device().alloc_dm(attr.length, attr.log_align_req)?;
    let handle = next_handle();
    DMS.enter(handle, &engine);
    Ok(hand_out(raw, handle, engine))
}

fn hand_out(
    context: *mut abi::ibv_context,
    handle: u32,
    engine: Arc<engine::Dm>,
) -> *mut abi::ibv_dm {
    let c = UnsafeCell::new(abi::ibv_dm {
        context,
        memcpy_to_dm: Some(slots::memcpy_to_dm),
        memcpy_from_dm: Some(slots::memcpy_from_dm),
        comp_mask: 0,
        handle,
    });
    Box::new(Dm { c, engine }).into_raw()
}

/// `ibv_free_dm(3)`: EBUSY while regions of it are registered.
pub unsafe fn free(raw: *mut abi::ibv_dm) -> Result<(), Errno> {
    // SAFETY: the caller's memory, given back if no region holds it.
    unsafe {
        Dm::of(raw)?.engine.destroy()?;
        DMS.leave((*raw).handle);
        drop(Dm::take(raw));
    }
    Ok(())
}

/// `ibv_import_dm(3)`: the memory that another context of this process allocated.
pub unsafe fn import(raw: *mut abi::ibv_context, handle: u32) -> Result<*mut abi::ibv_dm, Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(raw) }?;
    let engine = DMS.find(handle).ok_or(Errno(libc::ENOENT))?;
    if !context.device().is_same_device(engine.device()) {
        return Err(Errno::INVALID);
    }
    Ok(hand_out(raw, handle, engine))
}

/// `ibv_unimport_dm(3)`: the importer's handle goes, the memory stays.
pub unsafe fn unimport(raw: *mut abi::ibv_dm) {
    if !raw.is_null() {
        // SAFETY: the caller gives back what `import` returned.
        drop(unsafe { Dm::take(raw) });
    }
}

/// `ibv_dm_export_dmabuf_fd(3)`: the memory is not one that other devices can be given.
pub unsafe fn export(dm: *mut abi::ibv_dm) -> Result<c_int, Errno> {
    // SAFETY: the caller's memory.
    unsafe { Dm::of(dm) }?;
    Err(Errno::UNSUPPORTED)
}

/// `ibv_memcpy_to_dm(3)`.
pub unsafe fn copy_to(
    dm: *mut abi::ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's memory of both kinds.
    unsafe {
        let dm = Dm::of(dm)?;
        // Before the caller's memory is believed to be as long.
        if from.is_null() || length > dm.engine.len() {
            return Err(Errno::INVALID);
        }
        dm.engine
            .write(offset, slice::from_raw_parts(from.cast(), length))?;
    }
    Ok(())
}

/// `ibv_memcpy_from_dm(3)`.
pub unsafe fn copy_from(
    to: *mut c_void,
    dm: *mut abi::ibv_dm,
    offset: u64,
    length: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's memory of both kinds.
    unsafe {
        let dm = Dm::of(dm)?;
        if to.is_null() || length > dm.engine.len() {
            return Err(Errno::INVALID);
        }
        dm.engine
            .read(offset, slice::from_raw_parts_mut(to.cast(), length))?;
    }
    Ok(())
}

/// `ibv_reg_dm_mr(3)`.
pub unsafe fn register(
    raw_pd: *mut abi::ibv_pd,
    dm: *mut abi::ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's objects.
    let (pd, dm) = unsafe { (Pd::of(raw_pd)?, Dm::of(dm)?) };
    let access = memory::access_of(access)?;
    let engine = pd.engine().reg_dm_mr(&dm.engine, offset, length, access)?;
    Ok(memory::hand_out(
        raw_pd,
        pd,
        (std::ptr::null_mut(), length),
        engine,
    ))
}

/// The functions in `ibv_dm` have the types that `slots` defines.
const _: Option<unsafe extern "C" fn(*mut abi::ibv_dm, u64, *const c_void, usize) -> c_int> =
    Some(slots::memcpy_to_dm);
