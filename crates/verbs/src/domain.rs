//! Parent domains and thread domains.
//!
//! A thread domain promises that its objects are used by one thread at a time, so that a provider
//! may leave locks out (`ibv_alloc_td(3)`). Ours stay: uncontended they cost less than the choice.
//! Custom allocators of a parent domain are accepted and never called, as its manual page allows:
//! rings lie in memory that other processes can be given.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi;
use crate::context::Context;
use crate::errno::Errno;
use crate::memory::Pd;
use crate::object::Object;

/// A thread domain.
#[repr(C)]
pub struct Td {
    c: UnsafeCell<abi::ibv_td>,
    /// Parent domains that name it.
    users: AtomicU32,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Td {
    type C = abi::ibv_td;
}

/// `ibv_alloc_td(3)`.
pub unsafe fn alloc_td(
    context: *mut abi::ibv_context,
    attr: *mut abi::ibv_td_init_attr,
) -> Result<*mut abi::ibv_td, Errno> {
    // SAFETY: the caller's context and struct.
    unsafe {
        Context::of(context)?;
        if attr.as_ref().ok_or(Errno::INVALID)?.comp_mask != 0 {
            return Err(Errno::INVALID);
        }
    }
    let c = UnsafeCell::new(abi::ibv_td { context });
    let users = AtomicU32::new(0);
    Ok(Box::new(Td { c, users }).into_raw())
}

/// `ibv_dealloc_td(3)`: EBUSY while a parent domain names it.
pub unsafe fn dealloc_td(raw: *mut abi::ibv_td) -> Result<(), Errno> {
    // SAFETY: the caller's domain, given back unless a parent domain names it.
    unsafe {
        if Td::of(raw)?.users.load(Ordering::Acquire) != 0 {
            return Err(Errno(libc::EBUSY));
        }
        drop(Td::take(raw));
    }
    Ok(())
}

/// `ibv_alloc_parent_domain(3)`; `ibv_dealloc_pd(3)` gives it back.
pub unsafe fn alloc_parent(
    raw_context: *mut abi::ibv_context,
    attr: *mut abi::ibv_parent_domain_init_attr,
) -> Result<*mut abi::ibv_pd, Errno> {
    // SAFETY: the caller's context and struct.
    let attr = unsafe {
        Context::of(raw_context)?;
        attr.as_ref().ok_or(Errno::INVALID)?
    };
    // No device has to reach the memory of a confidential guest: its allocations are as others.
    let known = abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | abi::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    if attr.comp_mask & !known != 0 {
        return Err(Errno::INVALID);
    }
    let allocators = attr.comp_mask & abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
    if allocators && (attr.alloc.is_none() || attr.free.is_none()) {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's domains.
    let (pd, td) = unsafe {
        let td = if attr.td.is_null() {
            None
        } else {
            Some(Td::of(attr.td)?)
        };
        (Pd::of(attr.pd)?, td)
    };
    if !ptr::eq(pd.context(), raw_context) {
        return Err(Errno::INVALID);
    }
    let engine = pd.engine().parent_domain()?;
    if let Some(td) = td {
        td.users.fetch_add(1, Ordering::AcqRel);
    }
    Ok(Pd::hand_out(raw_context, engine, attr.td))
}

/// A parent domain that named this thread domain is gone.
///
/// # Safety
/// `td` is NULL or the domain that the parent domain was allocated with.
pub unsafe fn release_td(td: *mut abi::ibv_td) {
    // SAFETY: the caller's promise; the parent domain kept it from being given back.
    if let Ok(td) = unsafe { Td::of(td) } {
        td.users.fetch_sub(1, Ordering::AcqRel);
    }
}
