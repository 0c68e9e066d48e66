//! `rdma_set_option(3)`.

use std::ffi::{c_int, c_void};

use super::abi::*;
use super::id::{Id, Phase};
use crate::errno::Errno;

/// `rdma_set_option(3)`. What concerns InfiniBand's subnets (`RDMA_OPTION_IB`) is `ENOSYS`, as the
/// kernel says of RoCE.
pub unsafe fn set(
    raw: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and value.
    unsafe {
        let id = Id::ours(raw)?;
        let mut state = id.state();
        match (level, name) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
                state.options.tos = read(value, length)?;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                let reuse = read::<c_int>(value, length)? != 0;
                // An identifier that could bind its address only as a shared one stays shared.
                if !reuse && state.phase != Phase::Idle {
                    return Err(Errno::INVALID);
                }
                state.options.reuse = reuse;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                let own_family = read::<c_int>(value, length)? != 0;
                if !matches!(state.phase, Phase::Idle | Phase::Bound) {
                    return Err(Errno::INVALID);
                }
                state.options.own_family = own_family;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                let code: u8 = read(value, length)?;
                if code > ACK_TIMEOUT_MAX || id.is_datagram() {
                    return Err(Errno::INVALID);
                }
                state.options.ack_timeout = (code != 0).then_some(code);
            }
            _ => return Err(Errno(libc::ENOSYS)),
        }
    }
    Ok(0)
}

const ACK_TIMEOUT_MAX: u8 = 31;

/// # Safety
/// `value` is NULL or points to `length` bytes.
unsafe fn read<T: Copy>(value: *const c_void, length: usize) -> Result<T, Errno> {
    if value.is_null() || length != size_of::<T>() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's promise; integers have no bad bits.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}
