//! Address information that is told by an event: `rdma_resolve_addrinfo(3)`,
//! `rdma_query_addrinfo(3)`; and the program's own events: `rdma_write_cm_event(3)`.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::ptr;

use super::abi::*;
use super::addrinfo;
use super::endpoint::complete;
use super::id::Id;
use crate::errno::Errno;

/// Events of a program's own that wait at one identifier at most.
const USER_EVENTS_MAX: usize = 4096;

/// The resolution of an identifier, and the events that the program has written to it.
#[derive(Default)]
pub struct Written {
    resolution: Resolution,
    /// Status and argument of each event of the program's own that it has not fetched, the oldest
    /// first.
    user_events: VecDeque<(c_int, u64)>,
}

#[derive(Default)]
enum Resolution {
    #[default]
    None,
    /// The list is the program's once it asks for it.
    Done(List),
}

struct List(*mut rdma_addrinfo);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: a list of `addrinfo::get` that the program did not ask for.
        unsafe { addrinfo::free(self.0) };
    }
}

impl Written {
    /// Status and argument of the user event that is fetched now.
    pub fn next_user_event(&mut self) -> (c_int, u64) {
        self.user_events.pop_front().unwrap_or_default()
    }
}

/// `rdma_resolve_addrinfo(3)`. As rdma-core's library does, it asks the C library's resolver before
/// it returns; the services of an InfiniBand subnet manager (`RAI_SA`) do not exist on Ethernet.
pub unsafe fn resolve(
    raw: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and struct.
    let (id, flags) = unsafe {
        let flags = hints.as_ref().map_or(0, |hints| hints.ai_flags);
        (Id::ours(raw)?, flags)
    };
    if flags & RAI_SA != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    if matches!(id.state().written.resolution, Resolution::Done(_)) {
        return Err(Errno(libc::EBUSY));
    }
    let mut list = ptr::null_mut();
    // SAFETY: the caller's strings and struct.
    match unsafe { addrinfo::get(node, service, hints, &raw mut list) } {
        0 => {}
        libc::EAI_MEMORY => return Err(Errno::NO_MEMORY),
        // -1, nothing to resolve, is EAI_BADFLAGS too.
        libc::EAI_BADFLAGS | libc::EAI_SOCKTYPE | libc::EAI_FAMILY => return Err(Errno::INVALID),
        // No such name, or no answer.
        _ => return Err(Errno(libc::EADDRNOTAVAIL)),
    }
    {
        let mut state = id.state();
        state.written.resolution = Resolution::Done(List(list));
        let number = RDMA_CM_EVENT_ADDRINFO_RESOLVED;
        state.channel.post(id.cookie(), number);
    }
    // SAFETY: the caller's identifier.
    unsafe { complete(raw) }
}

/// `rdma_query_addrinfo(3)`: once for each resolution; `rdma_freeaddrinfo` frees the list.
pub unsafe fn query(raw: *mut rdma_cm_id, out: *mut *mut rdma_addrinfo) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier.
    let id = unsafe { Id::ours(raw)? };
    if out.is_null() {
        return Err(Errno::INVALID);
    }
    let resolution = std::mem::take(&mut id.state().written.resolution);
    match resolution {
        Resolution::None => Err(Errno(libc::ENOENT)),
        Resolution::Done(mut list) => {
            // SAFETY: the caller's place; the list is freed by the program.
            unsafe { out.write(std::mem::replace(&mut list.0, ptr::null_mut())) };
            Ok(0)
        }
    }
}

/// `rdma_write_cm_event(3)`.
pub unsafe fn write(
    raw: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    argument: u64,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier.
    let id = unsafe { Id::ours(raw)? };
    if event != RDMA_CM_EVENT_USER {
        return Err(Errno::INVALID);
    }
    let mut state = id.state();
    if state.written.user_events.len() >= USER_EVENTS_MAX {
        return Err(Errno::NO_MEMORY);
    }
    state.written.user_events.push_back((status, argument));
    state.channel.post(id.cookie(), RDMA_CM_EVENT_USER);
    Ok(0)
}
