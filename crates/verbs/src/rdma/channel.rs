//! Event channels, and the events that come through them.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use airdma_engine::{CmChannel, Error};

use super::abi::*;
use super::devices;
use super::id::Id;
use crate::errno::Errno;
use crate::object::Object;

/// An event channel.
#[repr(C)]
pub struct Channel {
    c: UnsafeCell<rdma_event_channel>,
    engine: Arc<CmChannel>,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Channel {
    type C = rdma_event_channel;
}

impl Channel {
    /// The engine's channel behind a C pointer, to put something in.
    ///
    /// # Errors
    /// `EINVAL` for NULL; `ENODEV` in a child after fork.
    ///
    /// # Safety
    /// As for [`Object::of`].
    pub unsafe fn ours<'a>(raw: *mut rdma_event_channel) -> Result<&'a Arc<CmChannel>, Errno> {
        // SAFETY: the caller's promise.
        let channel = unsafe { Channel::of(raw)? }.engine();
        if !channel.is_ours() {
            return Err(Error::Forked.into());
        }
        Ok(channel)
    }

    /// The engine's channel.
    pub fn engine(&self) -> &Arc<CmChannel> {
        &self.engine
    }
}

/// `rdma_create_event_channel(3)`. As in rdma-core's library, there is none where there is no
/// device.
pub unsafe fn create() -> Result<*mut rdma_event_channel, Errno> {
    devices::check_any()?;
    let engine = CmChannel::new()?;
    let c = UnsafeCell::new(rdma_event_channel { fd: engine.fd() });
    Ok(Box::new(Channel { c, engine }).into_raw())
}

/// `rdma_destroy_event_channel(3)`.
pub unsafe fn destroy(raw: *mut rdma_event_channel) {
    if !raw.is_null() {
        // SAFETY: the caller gives back what `create` returned.
        drop(unsafe { Channel::take(raw) });
    }
}

/// An event for C: the struct, what it points to, and whom it keeps from being destroyed.
#[repr(C)]
pub struct Event {
    c: UnsafeCell<rdma_cm_event>,
    private: Box<[u8]>,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Event {
    type C = rdma_cm_event;
}

impl Event {
    /// An event that tells nothing but that it happened.
    pub fn plain(id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int) -> rdma_cm_event {
        rdma_cm_event {
            id,
            listen_id: std::ptr::null_mut(),
            event,
            status,
            param: rdma_event_param {
                conn: NO_PARAMETERS,
            },
        }
    }

    /// Hands an event to C, with private data in its parameters; both kinds of parameters begin
    /// with them.
    pub fn hand_out(mut c: rdma_cm_event, private: Vec<u8>) -> *mut rdma_cm_event {
        let private = private.into_boxed_slice();
        if !private.is_empty() {
            c.param.conn.private_data = private.as_ptr().cast::<c_void>();
            c.param.conn.private_data_len = u8::try_from(private.len()).unwrap_or(u8::MAX);
        }
        let c = UnsafeCell::new(c);
        Box::new(Event { c, private }).into_raw()
    }
}

/// Parameters of an event that has none.
pub const NO_PARAMETERS: rdma_conn_param = rdma_conn_param {
    private_data: std::ptr::null(),
    private_data_len: 0,
    responder_resources: 0,
    initiator_depth: 0,
    flow_control: 0,
    retry_count: 0,
    rnr_retry_count: 0,
    srq: 0,
    qp_num: 0,
};

/// `rdma_ack_cm_event(3)`: the event is freed.
pub unsafe fn ack(raw: *mut rdma_cm_event) -> Result<c_int, Errno> {
    if raw.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller gives back what it got, and its identifiers still wait for this.
    unsafe {
        let event = Event::take(raw);
        let c = &*event.c.get();
        // A request is an event of the listener; the new identifier is not yet anybody's.
        let owner = if c.listen_id.is_null() {
            c.id
        } else {
            c.listen_id
        };
        Id::of(owner)?.events().completion.acknowledge(1);
        drop(event);
    }
    Ok(0)
}

/// `rdma_event_str(3)`.
pub unsafe fn text(event: rdma_cm_event_type) -> &'static std::ffi::CStr {
    match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        RDMA_CM_EVENT_ADDRINFO_RESOLVED => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        RDMA_CM_EVENT_ADDRINFO_ERROR => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        RDMA_CM_EVENT_USER => c"RDMA_CM_EVENT_USER",
        RDMA_CM_EVENT_INTERNAL => c"RDMA_CM_EVENT_INTERNAL",
        _ => c"UNKNOWN EVENT",
    }
}
