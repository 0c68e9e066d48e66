//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use airdma_engine::{self as engine, SrqAttributes, SrqExtension};

use crate::abi;
use crate::completion::Cq;
use crate::errno::Errno;
use crate::extended::Xrcd;
use crate::live::{self, Affiliated};
use crate::memory::Pd;
use crate::object::{Object, next_handle, zeroed};
use crate::post;

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    c: UnsafeCell<abi::ibv_srq>,
    engine: Arc<engine::Srq>,
    number: u64,
    events: Arc<Affiliated>,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Srq {
    type C = abi::ibv_srq;
}

impl Srq {
    /// The engine's queue.
    pub fn engine(&self) -> &Arc<engine::Srq> {
        &self.engine
    }

    /// Its events that are not acknowledged.
    pub fn events(&self) -> &Affiliated {
        &self.events
    }
}

/// `ibv_create_srq(3)`. Writes the granted sizes back.
pub unsafe fn create(
    raw_pd: *mut abi::ibv_pd,
    init: *mut abi::ibv_srq_init_attr,
) -> Result<*mut abi::ibv_srq, Errno> {
    // SAFETY: the caller's domain and struct.
    let (pd, init) = unsafe { (Pd::of(raw_pd)?, init.as_mut().ok_or(Errno::INVALID)?) };
    let engine = pd.engine().create_srq(sizes(&init.attr), None)?;
    grant(&mut init.attr, &engine);
    Ok(hand_out(raw_pd, pd, init.srq_context, engine))
}

/// `ibv_create_srq_ex(3)`: basic queues and those of extended connections.
pub unsafe fn create_ex(
    _context: *mut abi::ibv_context,
    init: *mut abi::ibv_srq_init_attr_ex,
) -> Result<*mut abi::ibv_srq, Errno> {
    // SAFETY: the caller's struct.
    let init = unsafe { init.as_mut() }.ok_or(Errno::INVALID)?;
    let given = |mask: u32| init.comp_mask & mask != 0;
    if init.comp_mask >= abi::IBV_SRQ_INIT_ATTR_RESERVED {
        return Err(Errno::UNSUPPORTED);
    }
    if !given(abi::IBV_SRQ_INIT_ATTR_PD) {
        return Err(Errno::INVALID);
    }
    let srq_type = if given(abi::IBV_SRQ_INIT_ATTR_TYPE) {
        init.srq_type
    } else {
        abi::IBV_SRQT_BASIC
    };
    // SAFETY: the caller's objects.
    let pd = unsafe { Pd::of(init.pd) }?;
    let extension = match srq_type {
        abi::IBV_SRQT_BASIC => None,
        abi::IBV_SRQT_XRC => {
            if !(given(abi::IBV_SRQ_INIT_ATTR_XRCD) && given(abi::IBV_SRQ_INIT_ATTR_CQ)) {
                return Err(Errno::INVALID);
            }
            // SAFETY: the caller's objects.
            let (domain, cq) = unsafe { (Xrcd::of(init.xrcd)?, Cq::of(init.cq)?) };
            Some(SrqExtension {
                domain: Arc::clone(domain.engine()),
                cq: Arc::clone(cq.engine()),
            })
        }
        abi::IBV_SRQT_TM => return Err(Errno::UNSUPPORTED),
        _ => return Err(Errno::INVALID),
    };
    let engine = pd.engine().create_srq(sizes(&init.attr), extension)?;
    grant(&mut init.attr, &engine);
    Ok(hand_out(init.pd, pd, init.srq_context, engine))
}

fn hand_out(
    raw_pd: *mut abi::ibv_pd,
    pd: &Pd,
    srq_context: *mut std::ffi::c_void,
    engine: Arc<engine::Srq>,
) -> *mut abi::ibv_srq {
    let number = live::number();
    engine.set_cookie(number);
    // SAFETY: integers and raw pointers; all-zero mutex and condition are initialised ones.
    let mut c: abi::ibv_srq = unsafe { zeroed() };
    c.context = pd.context();
    c.srq_context = srq_context;
    c.pd = raw_pd;
    c.handle = next_handle();
    let events = Arc::new(Affiliated::default());
    let raw = Box::new(Srq {
        c: UnsafeCell::new(c),
        engine,
        number,
        events: Arc::clone(&events),
    })
    .into_raw();
    if let Some(object) = NonNull::new(raw) {
        live::enter(number, object, &events);
    }
    raw
}

/// `ibv_modify_srq(3)`: both or neither.
pub unsafe fn modify(
    srq: *mut abi::ibv_srq,
    attr: *mut abi::ibv_srq_attr,
    mask: c_int,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue and struct.
    let (srq, attr) = unsafe { (Srq::of(srq)?, attr.as_ref().ok_or(Errno::INVALID)?) };
    let mask = mask.cast_unsigned();
    if mask & !(abi::IBV_SRQ_MAX_WR | abi::IBV_SRQ_LIMIT) != 0 {
        return Err(Errno::INVALID);
    }
    let resizes = mask & abi::IBV_SRQ_MAX_WR != 0;
    let limits = mask & abi::IBV_SRQ_LIMIT != 0;
    if resizes && limits && attr.srq_limit > attr.max_wr {
        return Err(Errno::INVALID);
    }
    if resizes {
        srq.engine.resize(attr.max_wr)?;
    }
    if limits {
        srq.engine.set_limit(attr.srq_limit)?;
    }
    Ok(())
}

/// `ibv_query_srq(3)`.
pub unsafe fn query(srq: *mut abi::ibv_srq, attr: *mut abi::ibv_srq_attr) -> Result<(), Errno> {
    // SAFETY: the caller's queue.
    let srq = unsafe { Srq::of(srq) }?;
    if attr.is_null() {
        return Err(Errno::INVALID);
    }
    let is = srq.engine.query();
    // SAFETY: the caller's struct.
    unsafe {
        attr.write(abi::ibv_srq_attr {
            max_wr: is.max_wr,
            max_sge: is.max_sge,
            srq_limit: is.limit,
        });
    }
    Ok(())
}

/// `ibv_destroy_srq(3)`: EBUSY while queue pairs use it; waits for outstanding acknowledgements.
pub unsafe fn destroy(raw: *mut abi::ibv_srq) -> Result<(), Errno> {
    // SAFETY: the caller's queue, given back if the engine lets it go.
    unsafe {
        let srq = Srq::of(raw)?;
        srq.engine.destroy()?;
        live::retire(srq.number, &srq.events);
        drop(Srq::take(raw));
    }
    Ok(())
}

/// `ibv_get_srq_num(3)`.
pub unsafe fn number(srq: *mut abi::ibv_srq, out: *mut u32) -> Result<(), Errno> {
    // SAFETY: the caller's queue and integer.
    unsafe {
        let number = Srq::of(srq)?.engine.number();
        *out.as_mut().ok_or(Errno::INVALID)? = number;
    }
    Ok(())
}

/// `ibv_post_srq_recv(3)`: posts the list up to the first request that is refused, which `bad` then
/// names.
#[inline]
pub unsafe fn post_receive(
    srq: *mut abi::ibv_srq,
    list: *mut abi::ibv_recv_wr,
    bad: *mut *mut abi::ibv_recv_wr,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue.
    let srq = unsafe { Srq::of(srq) }?;
    let mut posting = srq.engine.begin_post();
    // SAFETY: the caller's list.
    unsafe { post::receives(list, bad, |wr| Ok(posting.push(wr)?)) }
}

fn sizes(attr: &abi::ibv_srq_attr) -> SrqAttributes {
    SrqAttributes {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        limit: 0,
    }
}

fn grant(attr: &mut abi::ibv_srq_attr, engine: &engine::Srq) {
    let granted = engine.query();
    attr.max_wr = granted.max_wr;
    attr.max_sge = granted.max_sge;
}
