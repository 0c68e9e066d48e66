//! DMA handles (`ibv_alloc_dmah(3)`): hints about PCIe transactions, for regions that are
//! registered with one. No transaction of this device goes over PCIe, so that a hint is checked,
//! kept and has no effect.

use std::cell::UnsafeCell;
use std::sync::Arc;

use crate::abi;
use crate::context::Context;
use crate::errno::Errno;
use crate::object::Object;

/// A DMA handle.
#[repr(C)]
pub struct DmaHandle {
    c: UnsafeCell<abi::ibv_dmah>,
    users: DmaHandleUse,
}

/// Keeps a DMA handle from being freed.
pub type DmaHandleUse = Arc<()>;

// SAFETY: `c` is the first field.
unsafe impl Object for DmaHandle {
    type C = abi::ibv_dmah;
}

impl DmaHandle {
    /// For a region of a device that `context` has opened, too.
    ///
    /// # Errors
    /// `EINVAL` for a handle of another device.
    pub fn hold(&self, context: &Context) -> Result<DmaHandleUse, Errno> {
        // SAFETY: the field is written at creation only; the handle's context is open as long as
        // the handle exists.
        let own = unsafe { Context::of((*self.c.get()).context) }?;
        if !own.device().is_same_device(context.device()) {
            return Err(Errno::INVALID);
        }
        Ok(Arc::clone(&self.users))
    }
}

/// `ibv_alloc_dmah(3)`.
pub unsafe fn alloc(
    context: *mut abi::ibv_context,
    attr: *mut abi::ibv_dmah_init_attr,
) -> Result<*mut abi::ibv_dmah, Errno> {
    // SAFETY: the caller's context and struct.
    let attr = unsafe {
        Context::of(context)?;
        attr.as_ref().ok_or(Errno::INVALID)?
    };
    let known = abi::IBV_DMAH_INIT_ATTR_MASK_CPU_ID
        | abi::IBV_DMAH_INIT_ATTR_MASK_PH
        | abi::IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;
    let given = |mask: u32| attr.comp_mask & mask != 0;
    if attr.comp_mask & !known != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    let mem_type_max = abi::IBV_TPH_MEM_TYPE_PM as u8;
    if (given(abi::IBV_DMAH_INIT_ATTR_MASK_PH) && attr.ph > PROCESSING_HINT_MAX)
        || (given(abi::IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE) && attr.tph_mem_type > mem_type_max)
        || (given(abi::IBV_DMAH_INIT_ATTR_MASK_CPU_ID) && attr.cpu_id >= libc::CPU_SETSIZE as u32)
    {
        return Err(Errno::INVALID);
    }
    Ok(Box::new(DmaHandle {
        c: UnsafeCell::new(abi::ibv_dmah { context }),
        users: Arc::new(()),
    })
    .into_raw())
}

/// Processing hints are two bits of a transaction (PCIe 6.0, 2.2.7.1.1).
const PROCESSING_HINT_MAX: u8 = 3;

/// `ibv_dealloc_dmah(3)`: EBUSY while a region was registered with it.
pub unsafe fn dealloc(raw: *mut abi::ibv_dmah) -> Result<(), Errno> {
    // SAFETY: the caller's handle, given back if no region has it.
    unsafe {
        if Arc::strong_count(&DmaHandle::of(raw)?.users) != 1 {
            return Err(Errno(libc::EBUSY));
        }
        drop(DmaHandle::take(raw));
    }
    Ok(())
}
