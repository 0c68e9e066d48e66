//! Memory windows.

use std::cell::UnsafeCell;
use std::sync::Arc;

use airdma_engine::{
    self as engine, Access, Bind, Lkey, MwType, Operation, Rkey, SendFlags, SendWr,
};

use crate::abi;
use crate::errno::Errno;
use crate::memory::Pd;
use crate::object::{Object, next_handle};
use crate::queue_pair::Qp;

#[repr(C)]
struct Mw {
    c: UnsafeCell<abi::ibv_mw>,
    engine: Arc<engine::Mw>,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Mw {
    type C = abi::ibv_mw;
}

/// `ibv_alloc_mw(3)`.
pub unsafe fn alloc(
    raw_pd: *mut abi::ibv_pd,
    mw_type: abi::ibv_mw_type,
) -> Result<*mut abi::ibv_mw, Errno> {
    // SAFETY: the caller's domain.
    let pd = unsafe { Pd::of(raw_pd) }?;
    let kind = match mw_type {
        abi::IBV_MW_TYPE_1 => MwType::One,
        abi::IBV_MW_TYPE_2 => MwType::Two,
        _ => return Err(Errno::INVALID),
    };
    let engine = pd.engine().alloc_mw(kind)?;
    let c = UnsafeCell::new(abi::ibv_mw {
        context: pd.context(),
        pd: raw_pd,
        rkey: engine.first_rkey().0,
        handle: next_handle(),
        type_: mw_type,
    });
    Ok(Box::new(Mw { c, engine }).into_raw())
}

/// `ibv_dealloc_mw(3)`: bound or not.
pub unsafe fn dealloc(raw: *mut abi::ibv_mw) -> Result<(), Errno> {
    // SAFETY: the caller's window, given back once no key of it opens anything.
    unsafe {
        Mw::of(raw)?.engine.destroy()?;
        drop(Mw::take(raw));
    }
    Ok(())
}

/// `ibv_bind_mw(3)`, for windows of type 1: posts the bind, and gives the window its next key.
pub unsafe fn bind(
    qp: *mut abi::ibv_qp,
    raw: *mut abi::ibv_mw,
    request: *mut abi::ibv_mw_bind,
) -> Result<(), Errno> {
    // SAFETY: the caller's objects.
    let (qp, mw, request) = unsafe {
        (
            Qp::of(qp)?,
            Mw::of(raw)?,
            request.as_ref().ok_or(Errno::INVALID)?,
        )
    };
    let info = &request.bind_info;
    if mw.engine.mw_type() != MwType::One
        || info.mw_access_flags & abi::IBV_ACCESS_ZERO_BASED != 0
        || (info.mr.is_null() && info.length != 0)
    {
        return Err(Errno::INVALID);
    }
    // SAFETY: the window's public fields; the application may read them meanwhile, as with any
    // provider.
    let (window, pd) = unsafe { ((*raw).rkey, (*raw).pd) };
    // SAFETY: the caller's region, if any.
    if unsafe { info.mr.as_ref() }.is_some_and(|mr| mr.pd != pd) {
        return Err(Errno(libc::EPERM));
    }
    let new_key = next_key(window);
    let flags = SendFlags::from_bits(request.send_flags).ok_or(Errno::INVALID)?;
    // SAFETY: the caller's region, if any.
    let operation = unsafe { operation(window, new_key, info) }?;
    qp.engine().post_send(&SendWr {
        wr_id: request.wr_id,
        operation,
        sges: &[],
        flags,
        datagram: None,
        srqn: 0,
    })?;
    // SAFETY: the window's public field.
    unsafe { (*raw).rkey = new_key };
    Ok(())
}

/// The bind that a work request asks for.
///
/// # Safety
/// The region is NULL or the caller's.
pub unsafe fn operation(
    window: u32,
    new_key: u32,
    info: &abi::ibv_mw_bind_info,
) -> Result<Operation, Errno> {
    let access = Access::from_bits(info.mw_access_flags).ok_or(Errno::INVALID)?;
    // SAFETY: the caller's promise.
    let region = unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey);
    Ok(Operation::BindWindow(Bind {
        window: Rkey(window),
        new_key: Rkey(new_key),
        region: Lkey(region),
        va: info.addr,
        length: info.length,
        access,
    }))
}

/// `ibv_inc_rkey(3)`: the low eight bits count.
fn next_key(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_count_in_their_low_bits_only() {
        assert_eq!(next_key(0x1234_56fe), 0x1234_56ff);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
    }
}
