//! What the application's side and the worker's side of a queue pair share, beside the rings.

use crate::{QpCaps, QpState, QpType, Qpn};
use airdma_shm::RingProducer;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// State of a queue pair as the poster sees it, when it is gone: larger than any [`QpState`].
const STATE_GONE: u8 = u8::MAX;

/// Doorbells of a device. Where there are more queue pairs, those whose places are equal modulo this share one.
pub(crate) const DOORBELLS: u32 = airdma_shm::DOORBELLS_MAX;

pub(crate) struct QpShared {
    pub(crate) number: Qpn,
    /// Its place in the worker's table.
    pub(crate) index: u32,
    pub(crate) qp_type: QpType,
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
    pub(crate) cookie: AtomicU64,
    state: AtomicU8,
    /// Whether packets are under way (RC): their answer will make somebody run the worker.
    pub(crate) busy: AtomicBool,
    /// Value of the polls' counter at the last post (UD).
    pub(crate) ran_at: AtomicU64,
    pub(crate) send: Mutex<RingProducer>,
    pub(crate) recv: Mutex<RingProducer>,
}

impl QpShared {
    pub(crate) fn new(
        number: Qpn,
        index: u32,
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
            cookie: AtomicU64::new(0),
            state: AtomicU8::new(QpState::Reset as u8),
            busy: AtomicBool::new(false),
            ran_at: AtomicU64::new(u64::MAX),
            send: Mutex::new(send),
            recv: Mutex::new(recv),
        }
    }

    pub(crate) fn doorbell(&self) -> u32 {
        self.index % DOORBELLS
    }

    /// The state the worker last said; `None` once destroyed.
    pub(crate) fn state(&self) -> Option<QpState> {
        QpState::from_number(self.state.load(Ordering::Acquire).into())
    }

    /// The worker says the state. True if it is another one. Once destroyed it stays so.
    pub(crate) fn set_state(&self, state: QpState) -> bool {
        // A plain load first: this runs once per packet, and a write would take the line from the poster.
        let before = self.state.load(Ordering::Relaxed);
        if before == state as u8 || before == STATE_GONE {
            return false;
        }
        self.state.store(state as u8, Ordering::SeqCst);
        true
    }

    pub(crate) fn set_gone(&self) {
        self.state.store(STATE_GONE, Ordering::SeqCst);
    }

    pub(crate) fn set_busy(&self, busy: bool) {
        if self.busy.load(Ordering::Relaxed) != busy {
            self.busy.store(busy, Ordering::Relaxed);
        }
    }
}
