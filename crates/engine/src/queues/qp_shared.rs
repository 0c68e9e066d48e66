//! What the application's side and the worker's side of a queue pair share, beside the rings.

use crate::index::{Doorbell, QpIndex};
use crate::queues::application_buffer::ApplicationBuffer;
use crate::queues::qp_state::PublishedState;
use crate::queues::record_shared::RecordShared;
use crate::queues::urgency::Urgency;
use crate::queues::write_watch::WriteWatch;
use crate::{QpCaps, QpState, QpType, Qpn};
use airdma_shm::RingProducer;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

pub(crate) struct QpShared {
    pub(crate) number: Qpn,
    /// Its place in the worker's table.
    pub(crate) index: QpIndex,
    pub(crate) qp_type: QpType,
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
    /// Whether this is a datagram queue pair that seals what it sends.
    pub(crate) seals_datagrams: bool,
    /// Whether a daemon has the worker, which is told of each receive: it knows when the queue pair
    /// is in ERROR, and this process learns of it later.
    pub(crate) is_at_daemon: bool,
    pub(crate) cookie: AtomicU64,
    pub(crate) state: PublishedState,
    pub(crate) urgency: Urgency,
    pub(crate) application_buffer: ApplicationBuffer,
    pub(crate) writes: WriteWatch,
    pub(crate) send: Mutex<RingProducer>,
    pub(crate) recv: Mutex<RingProducer>,
    /// Whether it repeats datagrams, where a request asks for it.
    pub(crate) is_reliable: AtomicBool,
    /// Its records, once it takes some.
    pub(crate) records: OnceLock<Arc<RecordShared>>,
}

impl QpShared {
    pub(crate) fn new(
        number: Qpn,
        index: QpIndex,
        init: (QpType, QpCaps, bool),
        send: RingProducer,
        recv: RingProducer,
    ) -> Self {
        let (qp_type, caps, signal_all) = init;
        QpShared {
            number,
            index,
            qp_type,
            caps,
            signal_all,
            seals_datagrams: false,
            is_at_daemon: false,
            cookie: AtomicU64::new(0),
            state: PublishedState::new(QpState::Reset),
            urgency: Urgency::new(),
            application_buffer: ApplicationBuffer::new(),
            writes: WriteWatch::new(),
            send: Mutex::new(send),
            recv: Mutex::new(recv),
            is_reliable: AtomicBool::new(false),
            records: OnceLock::new(),
        }
    }

    pub(crate) fn doorbell(&self) -> Doorbell {
        self.index.doorbell()
    }
}
