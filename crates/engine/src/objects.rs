//! What an application holds: devices, protection domains, regions, queue pairs, completion queues, channels, connections, events.

pub(crate) mod ah;
pub(crate) mod alarm;
pub(crate) mod application_buffer;
pub(crate) mod async_event;
pub(crate) mod channel;
pub(crate) mod cm;
pub(crate) mod completion_counter;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod dm;
pub(crate) mod event_queue;
pub(crate) mod event_wait;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_shared;
pub(crate) mod qp_state;
pub(crate) mod send_batch;
pub(crate) mod send_wqe;
pub(crate) mod srq;
pub(crate) mod urgency;
pub(crate) mod use_count;
pub(crate) mod xrcd;
