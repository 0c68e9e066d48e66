//! The state that an application's object and the worker share beside the rings: states, alarms,
//! events.

pub(crate) mod alarm;
pub(crate) mod application_buffer;
pub(crate) mod async_event;
pub(crate) mod attached_counters;
pub(crate) mod cm_channel;
pub(crate) mod cm_owners;
pub(crate) mod cq_shared;
pub(crate) mod cq_watch;
pub(crate) mod event_queue;
pub(crate) mod gathering;
pub(crate) mod qp_caps;
pub(crate) mod qp_shared;
pub(crate) mod qp_state;
pub(crate) mod record_shared;
pub(crate) mod send_wqe;
pub(crate) mod sge_list;
pub(crate) mod shared_page;
pub(crate) mod srq_shared;
pub(crate) mod urgency;
pub(crate) mod use_count;
pub(crate) mod work_request;
pub(crate) mod write_watch;
