//! Asynchronous events.

use std::ffi::c_int;
use std::ptr::NonNull;

use airdma_engine::{AsyncEvent, AsyncWait, QpEvent};

use crate::blocking::{self, Attempt, Wait};
use crate::completion::{Cq, count_in};
use crate::context::Context;
use crate::errno::Errno;
use crate::live::{self, Affiliated};
use crate::object::Object;
use crate::queue_pair::Qp;
use crate::shared_receive::Srq;
use crate::{abi, port};

type Element = abi::ibv_async_event__bindgen_ty_1;

/// One attempt of `ibv_get_async_event(3)`, which blocks unless `context->async_fd` has
/// `O_NONBLOCK`. `slept` is what `ppoll(2)` said since the last attempt.
pub unsafe fn get(
    context: *mut abi::ibv_context,
    out: *mut abi::ibv_async_event,
    slept: Option<c_int>,
) -> Attempt {
    let new = || {
        // SAFETY: the caller's context.
        let context = unsafe { Context::of(context) }?;
        if out.is_null() {
            return Err(Errno::INVALID);
        }
        Ok(Wait::Async(AsyncWait::new(context.device())))
    };
    blocking::attempt(slept, new, Wait::asynchronous, |event| {
        // An event whose object was destroyed meanwhile never happened.
        let Some(translated) = translate(&event) else {
            return false;
        };
        // SAFETY: the caller's struct.
        unsafe { out.write(translated) };
        true
    })
}

/// `ibv_ack_async_event(3)`.
pub unsafe fn ack(event: *mut abi::ibv_async_event) {
    // SAFETY: the caller passes an event that `get` filled and that is not acknowledged yet, so the
    // object still waits for it.
    unsafe {
        let Some(event) = event.as_ref() else { return };
        match event.event_type {
            abi::IBV_EVENT_CQ_ERR => {
                if let Ok(cq) = Cq::of(event.element.cq) {
                    count_in(&raw mut (*event.element.cq).async_events_completed, 1);
                    cq.events().asynchronous.acknowledge(1);
                }
            }
            abi::IBV_EVENT_QP_FATAL
            | abi::IBV_EVENT_QP_REQ_ERR
            | abi::IBV_EVENT_QP_ACCESS_ERR
            | abi::IBV_EVENT_COMM_EST
            | abi::IBV_EVENT_SQ_DRAINED
            | abi::IBV_EVENT_PATH_MIG
            | abi::IBV_EVENT_PATH_MIG_ERR
            | abi::IBV_EVENT_QP_LAST_WQE_REACHED => {
                if let Ok(qp) = Qp::of(event.element.qp) {
                    count_in(&raw mut (*event.element.qp).events_completed, 1);
                    qp.events().asynchronous.acknowledge(1);
                }
            }
            abi::IBV_EVENT_SRQ_ERR | abi::IBV_EVENT_SRQ_LIMIT_REACHED => {
                if let Ok(srq) = Srq::of(event.element.srq) {
                    count_in(&raw mut (*event.element.srq).events_completed, 1);
                    srq.events().asynchronous.acknowledge(1);
                }
            }
            _ => {}
        }
    }
}

/// The C event, counted for its object; `None` if the object is gone.
fn translate(event: &AsyncEvent) -> Option<abi::ibv_async_event> {
    let count = |events: &Affiliated| events.asynchronous.deliver();
    let port = Element {
        port_num: c_int::from(port::PORT),
    };
    let (element, event_type) = match event {
        AsyncEvent::Qp { cookie, event, .. } => {
            let qp = live::deliver(*cookie, count).map(NonNull::as_ptr)?;
            (Element { qp }, qp_event(*event))
        }
        AsyncEvent::CqError { cookie } => {
            let cq = live::deliver(*cookie, count).map(NonNull::as_ptr)?;
            (Element { cq }, abi::IBV_EVENT_CQ_ERR)
        }
        AsyncEvent::SrqLimitReached { cookie } => {
            let srq = live::deliver(*cookie, count).map(NonNull::as_ptr)?;
            (Element { srq }, abi::IBV_EVENT_SRQ_LIMIT_REACHED)
        }
        AsyncEvent::PortActive => (port, abi::IBV_EVENT_PORT_ACTIVE),
        AsyncEvent::PortError => (port, abi::IBV_EVENT_PORT_ERR),
        AsyncEvent::GidChange => (port, abi::IBV_EVENT_GID_CHANGE),
        AsyncEvent::DeviceFatal => (port, abi::IBV_EVENT_DEVICE_FATAL),
    };
    Some(abi::ibv_async_event {
        element,
        event_type,
    })
}

fn qp_event(event: QpEvent) -> abi::ibv_event_type {
    match event {
        QpEvent::Fatal => abi::IBV_EVENT_QP_FATAL,
        QpEvent::AccessError => abi::IBV_EVENT_QP_ACCESS_ERR,
        QpEvent::RequestError => abi::IBV_EVENT_QP_REQ_ERR,
        QpEvent::CommunicationEstablished => abi::IBV_EVENT_COMM_EST,
        QpEvent::SendQueueDrained => abi::IBV_EVENT_SQ_DRAINED,
        QpEvent::LastWqeReached => abi::IBV_EVENT_QP_LAST_WQE_REACHED,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use airdma_engine::Qpn;
    use std::sync::Arc;

    #[test]
    fn an_event_of_a_queue_pair_names_it_until_acknowledged() {
        let mut place = 0u64;
        let object = NonNull::from(&mut place);
        let events = Arc::new(Affiliated::default());
        let cookie = live::number();
        live::enter(cookie, object, &events);
        let event = AsyncEvent::Qp {
            number: Qpn::new(17),
            cookie,
            event: QpEvent::AccessError,
        };
        let translated = translate(&event).unwrap();
        assert_eq!(translated.event_type, abi::IBV_EVENT_QP_ACCESS_ERR);
        // SAFETY: the member that was written.
        let qp = unsafe { translated.element.qp };
        assert_eq!(qp.cast(), object.as_ptr());
        live::leave(cookie);
        assert!(translate(&event).is_none());
        events.asynchronous.acknowledge(1);
        events.wait_acknowledged();
    }

    #[test]
    fn port_events_name_the_port() {
        let event = translate(&AsyncEvent::PortError).unwrap();
        assert_eq!(event.event_type, abi::IBV_EVENT_PORT_ERR);
        // SAFETY: the member that was written.
        assert_eq!(unsafe { event.element.port_num }, 1);
    }
}
