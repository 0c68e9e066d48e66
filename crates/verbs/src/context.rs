//! An opened device: `ibv_context`, with the extended `verbs_context` in front of it in memory.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use airdma_engine as engine;

use crate::entry::slots;
use crate::errno::Errno;
use crate::object::zeroed;
use crate::{abi, device, token};

/// The value of `context->abi_compat` when a `verbs_context` lies in front of it.
const ABI_IS_EXTENDED: usize = usize::MAX;

/// Completion vectors at most.
const COMPLETION_VECTORS_MAX: i64 = 256;

/// Completion vectors: as many as the machine has processors, as for devices of the kernel, since
/// programs spread their queues over them. All are served by one worker, whose thread the scheduler
/// moves.
pub fn completion_vectors() -> c_int {
    // SAFETY: asks for a number.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    processors.clamp(1, COMPLETION_VECTORS_MAX) as c_int
}

/// An opened device.
#[repr(C)]
pub struct Context {
    verbs: UnsafeCell<abi::verbs_context>,
    device: Arc<engine::Device>,
    /// `context->cmd_fd`: what [`import`] knows the device by, in this process.
    _token: OwnedFd,
}

impl Context {
    /// The context behind a C pointer.
    ///
    /// # Safety
    /// `raw` is NULL or came from [`open`], and is not closed during `'a`.
    pub unsafe fn of<'a>(raw: *mut abi::ibv_context) -> Result<&'a Context, Errno> {
        if raw.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: contexts of ours lie inside a `Context`, at that offset.
        Ok(unsafe { &*outer(raw) })
    }

    /// The engine's device.
    pub fn device(&self) -> &Arc<engine::Device> {
        &self.device
    }
}

/// The whole of which `raw` is a part.
fn outer(raw: *mut abi::ibv_context) -> *mut Context {
    raw.wrapping_byte_sub(offset_of!(abi::verbs_context, context))
        .cast()
}

/// `ibv_open_device(3)`. Takes no socket and starts no thread: the first queue pair does.
pub unsafe fn open(raw_device: *mut abi::ibv_device) -> Result<*mut abi::ibv_context, Errno> {
    let info = device::info(raw_device)?;
    let device = engine::Device::open(&info)?;
    let token = token::create(&device)?;
    Ok(hand_out(raw_device, device, token))
}

/// `ibv_import_device(3)`: the device of a context of this process, by (a duplicate of) its
/// `cmd_fd`, which the new context owns from now on.
pub unsafe fn import(fd: c_int) -> Result<*mut abi::ibv_context, Errno> {
    let device = token::device_of(fd)?;
    let raw_device = device::pointer(&device.info().name).ok_or(Errno(libc::ENODEV))?;
    // SAFETY: a descriptor that holds a token of ours, which the caller gives away.
    let token = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(hand_out(raw_device, device, token))
}

/// A context for C.
pub fn hand_out(
    raw_device: *mut abi::ibv_device,
    device: Arc<engine::Device>,
    token: OwnedFd,
) -> *mut abi::ibv_context {
    // SAFETY: integers, raw pointers, optional functions; an all-zero mutex is an initialised one.
    let mut context: abi::ibv_context = unsafe { zeroed() };
    context.device = raw_device;
    context.ops = slots::context_ops();
    context.cmd_fd = token.as_raw_fd();
    context.async_fd = device.async_fd();
    context.num_comp_vectors = completion_vectors();
    context.abi_compat = ABI_IS_EXTENDED as *mut _;
    let whole = Box::into_raw(Box::new(Context {
        verbs: UnsafeCell::new(slots::verbs_context(context)),
        device,
        _token: token,
    }));
    whole
        .wrapping_byte_add(offset_of!(abi::verbs_context, context))
        .cast()
}

/// `ibv_close_device(3)`. Objects that still exist keep working until they are destroyed.
pub unsafe fn close(raw: *mut abi::ibv_context) -> Result<i32, Errno> {
    if raw.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller gives back what `open` returned.
    drop(unsafe { Box::from_raw(outer(raw)) });
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_context_is_the_last_member_of_the_extended_one() {
        assert_eq!(
            offset_of!(abi::verbs_context, context) + size_of::<abi::ibv_context>(),
            size_of::<abi::verbs_context>()
        );
        assert_eq!(
            offset_of!(abi::verbs_context, sz) + size_of::<usize>(),
            offset_of!(abi::verbs_context, context)
        );
        assert_eq!(offset_of!(Context, verbs), 0);
    }
}
