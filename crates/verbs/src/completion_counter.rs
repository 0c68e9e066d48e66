//! Completion counters (`ibv_create_comp_cntr(3)`).

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use airdma_engine::{self as engine, CountedOperations, CounterUnit, LIMITS};

use crate::context::Context;
use crate::errno::Errno;
use crate::object::{Object, next_handle};
use crate::queue_pair::Qp;
use crate::{abi, port};

#[repr(C)]
struct Counter {
    c: UnsafeCell<abi::ibv_comp_cntr>,
    engine: Arc<engine::CompletionCounter>,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Counter {
    type C = abi::ibv_comp_cntr;
}

/// `ibv_query_comp_cntr_caps(3)`: fills as much as the caller's struct has room for.
pub unsafe fn query_caps(
    context: *mut abi::ibv_context,
    caps: *mut abi::ibv_comp_cntr_caps,
    size: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's context.
    unsafe { Context::of(context) }?;
    if caps.is_null() {
        return Err(Errno::INVALID);
    }
    let full = abi::ibv_comp_cntr_caps {
        max_value: u64::MAX,
        max_counters: LIMITS.max_completion_counters,
        supported_qp_attach_ops: CountedOperations::all().bits(),
    };
    // SAFETY: the caller's struct has `size` bytes.
    unsafe { port::copy_sized(&full, caps, size) };
    Ok(())
}

/// `ibv_create_comp_cntr(3)`.
pub unsafe fn create(
    raw: *mut abi::ibv_context,
    attr: *mut abi::ibv_comp_cntr_init_attr,
) -> Result<*mut abi::ibv_comp_cntr, Errno> {
    // SAFETY: the caller's context and struct.
    let (context, attr) = unsafe { (Context::of(raw)?, attr.as_ref().ok_or(Errno::INVALID)?) };
    if attr.comp_mask != 0 || attr.flags != 0 {
        return Err(Errno::INVALID);
    }
    let unit = match attr.type_ {
        abi::IBV_COMP_CNTR_TYPE_WRS => CounterUnit::Requests,
        abi::IBV_COMP_CNTR_TYPE_BYTES => CounterUnit::Bytes,
        _ => return Err(Errno::UNSUPPORTED),
    };
    let engine = context.device().create_completion_counter(unit)?;
    let c = UnsafeCell::new(abi::ibv_comp_cntr {
        context: raw,
        handle: next_handle(),
    });
    Ok(Box::new(Counter { c, engine }).into_raw())
}

/// `ibv_destroy_comp_cntr(3)`: EBUSY while it is attached to a queue pair.
pub unsafe fn destroy(raw: *mut abi::ibv_comp_cntr) -> Result<(), Errno> {
    // SAFETY: the caller's counter, given back if no queue pair has it.
    unsafe {
        Counter::of(raw)?.engine.destroy()?;
        drop(Counter::take(raw));
    }
    Ok(())
}

/// `ibv_set_comp_cntr(3)`.
pub unsafe fn set(raw: *mut abi::ibv_comp_cntr, value: u64) -> Result<(), Errno> {
    // SAFETY: the caller's counter.
    let counter = unsafe { Counter::of(raw) }?;
    counter.engine.successes().store(value, Ordering::Release);
    Ok(())
}

/// `ibv_set_err_comp_cntr(3)`.
pub unsafe fn set_failures(raw: *mut abi::ibv_comp_cntr, value: u64) -> Result<(), Errno> {
    // SAFETY: the caller's counter.
    let counter = unsafe { Counter::of(raw) }?;
    counter.engine.failures().store(value, Ordering::Release);
    Ok(())
}

/// `ibv_inc_comp_cntr(3)`.
pub unsafe fn add(raw: *mut abi::ibv_comp_cntr, amount: u64) -> Result<(), Errno> {
    // SAFETY: the caller's counter.
    let counter = unsafe { Counter::of(raw) }?;
    counter
        .engine
        .successes()
        .fetch_add(amount, Ordering::AcqRel);
    Ok(())
}

/// `ibv_inc_err_comp_cntr(3)`.
pub unsafe fn add_failures(raw: *mut abi::ibv_comp_cntr, amount: u64) -> Result<(), Errno> {
    // SAFETY: the caller's counter.
    let counter = unsafe { Counter::of(raw) }?;
    counter
        .engine
        .failures()
        .fetch_add(amount, Ordering::AcqRel);
    Ok(())
}

/// `ibv_read_comp_cntr(3)`.
pub unsafe fn read(raw: *mut abi::ibv_comp_cntr, value: *mut u64) -> Result<(), Errno> {
    // SAFETY: the caller's counter and integer.
    unsafe {
        let counter = Counter::of(raw)?;
        let value = value.as_mut().ok_or(Errno::INVALID)?;
        *value = counter.engine.successes().load(Ordering::Acquire);
    }
    Ok(())
}

/// `ibv_read_err_comp_cntr(3)`.
pub unsafe fn read_failures(raw: *mut abi::ibv_comp_cntr, value: *mut u64) -> Result<(), Errno> {
    // SAFETY: the caller's counter and integer.
    unsafe {
        let counter = Counter::of(raw)?;
        let value = value.as_mut().ok_or(Errno::INVALID)?;
        *value = counter.engine.failures().load(Ordering::Acquire);
    }
    Ok(())
}

/// `ibv_qp_attach_comp_cntr(3)`. What the peer reads and writes is not counted.
pub unsafe fn attach(
    qp: *mut abi::ibv_qp,
    raw: *mut abi::ibv_comp_cntr,
    attr: *mut abi::ibv_qp_attach_comp_cntr_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's objects.
    let (qp, counter, attr) = unsafe {
        (
            Qp::of(qp)?,
            Counter::of(raw)?,
            attr.as_ref().ok_or(Errno::INVALID)?,
        )
    };
    if attr.comp_mask != 0 {
        return Err(Errno::INVALID);
    }
    let operations = CountedOperations::from_bits(attr.op_mask).ok_or(Errno::UNSUPPORTED)?;
    qp.engine().attach_counter(operations, &counter.engine)?;
    Ok(())
}
