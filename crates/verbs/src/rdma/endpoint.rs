//! Calls that wait for their events, and endpoints (`rdma_create_ep(3)`).

use std::ffi::c_int;
use std::ptr;

use airdma_engine::{CmWait, EventWait};

use super::abi::*;
use super::channel::{self, Channel};
use super::event;
use super::id::{self, Id, Phase, Template};
use super::{connect, queue_pair, resolve};
use crate::abi::{ibv_pd, ibv_qp_init_attr};
use crate::errno::Errno;
use crate::object::Object;

/// Milliseconds that `rdma_create_ep` gives the resolution of addresses and routes.
const TIMEOUT_MS: c_int = 2000;

/// Acknowledges the event that the last call of a synchronous identifier left.
pub unsafe fn acknowledge(raw: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's identifier.
    unsafe {
        if Id::of(raw)?.is_synchronous() && !(*raw).event.is_null() {
            channel::ack((*raw).event)?;
            (*raw).event = ptr::null_mut();
        }
    }
    Ok(())
}

/// A synchronous identifier waits for the event of the call; others do not.
pub unsafe fn complete(raw: *mut rdma_cm_id) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier.
    unsafe {
        if !Id::of(raw)?.is_synchronous() {
            return Ok(0);
        }
        acknowledge(raw)?;
        (*raw).event = wait((*raw).channel)?;
        let event = &*(*raw).event;
        outcome(event.event, event.status)
    }
}

/// The answer of the synchronous call that this event ends.
fn outcome(event: rdma_cm_event_type, status: c_int) -> Result<c_int, Errno> {
    match (event, status) {
        // First: the reason is the peer's to choose.
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, 0) => Ok(0),
        (_, status) => Err(Errno(status.abs())),
    }
}

unsafe fn wait(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: the identifier's channel.
    let channel = unsafe { Channel::of(channel)? };
    let mut wait = CmWait::new(channel.engine());
    loop {
        let (cookie, news) = wait.wait()?;
        // SAFETY: the program's identifiers.
        if let Some(event) = unsafe { event::translate(cookie, news) } {
            return Ok(event);
        }
    }
}

/// `rdma_create_ep(3)`.
pub unsafe fn create(
    out: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's structs.
    unsafe {
        let info = info.as_ref().ok_or(Errno::INVALID)?;
        if out.is_null() {
            return Err(Errno::INVALID);
        }
        let space = rdma_port_space::try_from(info.ai_port_space).map_err(|_| Errno::INVALID)?;
        let qp_type = u32::try_from(info.ai_qp_type).map_err(|_| Errno::INVALID)?;
        id::type_of(space)?;
        let raw = id::make(ptr::null_mut(), ptr::null_mut(), space, qp_type)?;
        let made = if info.ai_flags & RAI_PASSIVE != 0 {
            passive(raw, info, pd, init)
        } else {
            active(raw, info, pd, init)
        };
        match made {
            Ok(_) => {
                out.write(raw);
                Ok(0)
            }
            Err(errno) => {
                destroy(raw);
                Err(errno)
            }
        }
    }
}

unsafe fn passive(
    raw: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's structs.
    unsafe {
        resolve::bind(raw, info.ai_src_addr)?;
        if let Some(init) = init.as_ref() {
            let mut init = *init;
            init.qp_type = (*raw).qp_type;
            Id::of(raw)?.state().template = Some(Template { pd, init });
        }
        Ok(0)
    }
}

unsafe fn active(
    raw: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's structs.
    unsafe {
        resolve::resolve_address(raw, info.ai_src_addr, info.ai_dst_addr, TIMEOUT_MS)?;
        resolve::resolve_route(raw, TIMEOUT_MS)?;
        if let Some(init) = init.as_mut() {
            init.qp_type = (*raw).qp_type;
            queue_pair::create(raw, pd, init)?;
        }
        Ok(0)
    }
}

/// `rdma_destroy_ep(3)`: with what belongs to it.
pub unsafe fn destroy(raw: *mut rdma_cm_id) {
    // SAFETY: the caller's identifier, given back here.
    unsafe {
        if raw.is_null() {
            return;
        }
        if !(*raw).qp.is_null() {
            queue_pair::destroy(raw);
        }
        if !(*raw).srq.is_null() {
            queue_pair::destroy_srq(raw);
        }
        let _ = id::destroy(raw);
    }
}

/// `rdma_get_request(3)`.
pub unsafe fn get_request(raw: *mut rdma_cm_id, out: *mut *mut rdma_cm_id) -> Result<c_int, Errno> {
    // SAFETY: the caller's listener and place.
    unsafe {
        let listener = Id::ours(raw)?;
        let listens = listener.state().phase == Phase::Listening;
        // An identifier that does not listen would wait for ever.
        if !listener.is_synchronous() || !listens || out.is_null() {
            return Err(Errno::INVALID);
        }
        acknowledge(raw)?;
        let event = wait((*raw).channel)?;
        if (*event).status != 0 {
            let status = (*event).status;
            channel::ack(event)?;
            return Err(Errno(status.abs()));
        }
        if (*event).event != RDMA_CM_EVENT_CONNECT_REQUEST {
            channel::ack(event)?;
            return Err(Errno::INVALID);
        }
        let new = (*event).id;
        let template = listener.state().template;
        let prepared = (|| {
            if let Some(template) = template {
                let mut init = template.init;
                queue_pair::create(new, template.pd, &raw mut init)?;
            }
            id::migrate(new, ptr::null_mut())
        })();
        if let Err(errno) = prepared {
            channel::ack(event)?;
            let _ = connect::reject(new, ptr::null(), 0);
            destroy(new);
            return Err(errno);
        }
        // It carries the private data of the request until the next call.
        (*new).event = event;
        out.write(new);
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_none_the_less_for_its_reason() {
        let refused = Err(Errno(libc::ECONNREFUSED));
        // The reason is a number of the peer's: 0 is none that there is.
        assert_eq!(outcome(RDMA_CM_EVENT_REJECTED, 0), refused);
        assert_eq!(outcome(RDMA_CM_EVENT_REJECTED, 28), refused);
        assert_eq!(outcome(RDMA_CM_EVENT_ESTABLISHED, 0), Ok(0));
        let silent = outcome(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
        assert_eq!(silent, Err(Errno(libc::ETIMEDOUT)));
    }
}
