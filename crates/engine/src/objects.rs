//! What an application holds: devices, protection domains, regions, queue pairs, completion queues,
//! channels, connections, events.

pub(crate) mod ah;
pub(crate) mod channel;
pub(crate) mod cm;
pub(crate) mod completion_counter;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod device_list;
pub(crate) mod dm;
pub(crate) mod event_wait;
pub(crate) mod finish;
pub(crate) mod mr;
pub(crate) mod multicast;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod records;
pub(crate) mod send_batch;
pub(crate) mod srq;
pub(crate) mod xrcd;
