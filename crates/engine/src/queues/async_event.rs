//! Asynchronous events of a device.

use crate::queues::event_queue::EventQueue;
use airdma_transport::QpEvent;
use airdma_wire::Qpn;

/// What happened, and to whom. Events of an object that is destroyed are taken out of the queue.
#[derive(Clone, Copy, Debug)]
pub enum AsyncEvent {
    /// A queue pair: fatal error, access error, request error, communication established, drained.
    Qp {
        /// Its number.
        number: Qpn,
        /// What [`crate::Qp::set_cookie`] was given.
        cookie: u64,
        /// What happened.
        event: QpEvent,
    },
    /// A completion queue overflowed (`IBV_EVENT_CQ_ERR`).
    CqError {
        /// What [`crate::Cq::set_cookie`] was given (at first the cookie of its channel, else 0).
        cookie: u64,
    },
    /// Fewer receives are left in a shared receive queue than its limit
    /// (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached {
        /// What [`crate::Srq::set_cookie`] was given.
        cookie: u64,
    },
    /// The port came up (`IBV_EVENT_PORT_ACTIVE`).
    PortActive,
    /// The port went down (`IBV_EVENT_PORT_ERR`).
    PortError,
    /// The addresses of the interface changed, and with them the GID table
    /// (`IBV_EVENT_GID_CHANGE`).
    GidChange,
    /// The port failed for good, or the interface is gone (`IBV_EVENT_DEVICE_FATAL`).
    DeviceFatal,
}

/// Owner of an event, which is dropped with its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOwner {
    Qp(Qpn),
    /// By [`crate::queues::cq_shared::CqShared::id`].
    Cq(u64),
    /// By [`crate::queues::srq_shared::SrqShared::id`].
    Srq(u64),
    Device,
}

/// The asynchronous events of one opened device.
pub(crate) type AsyncEvents = EventQueue<(EventOwner, AsyncEvent)>;
