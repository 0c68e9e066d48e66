//! Queue pairs for records: one on each host, beside those of the connections, with memory of its
//! own that the judge of records watches.

use crate::host::Host;
use crate::plan::RecordFault;
use crate::reads::ReadEnd;
use crate::world::QKEY;
use airdma_engine::{
    Access, AttrMask, Cq, Mr, Qp, QpAttributes, QpCaps, QpInit, QpState, QpType, Qpn, RecordConfig,
    RecordHandle, ReliableConfig,
};
use airdma_model::records::{Name, Records};
use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most bytes of a message: three packets.
pub(crate) const SLOT: usize = 3072;
/// Places for messages at a target.
pub(crate) const SLOTS: usize = 6;
/// Bytes before and behind them, which no key opens.
const GUARD: usize = 64;
const BYTES: usize = GUARD + SLOT * SLOTS + GUARD;
/// Messages that a source may have posted.
pub(crate) const POSTED_MAX: usize = 4;

/// How peers name the first place of the first registration.
const VA: u64 = 0x2_0000_0000;
/// Distance of the addresses of two registrations.
const VA_STEP: u64 = 0x10_0000;
/// Address of the sources of messages.
const SOURCE_VA: u64 = 0x3_0000_0000;

/// A message without a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    /// The part of the sources that it is in.
    pub(crate) part: usize,
    pub(crate) reliable: Option<Reliable>,
}

/// What is known of a reliable message when it is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reliable {
    /// The host that it goes to.
    pub(crate) to: usize,
    pub(crate) name: Name,
    pub(crate) fault: Option<RecordFault>,
    /// Packets lost between the hosts before.
    pub(crate) lost: u64,
    /// Messages that the target had ended early before.
    pub(crate) ended_early: u64,
}

/// Messages to every other place are reliable.
pub(crate) fn is_reliable(place: usize) -> bool {
    place % 2 == 1
}

/// A small table, so that messages are displaced and records wait for room.
pub(crate) const CONFIG: RecordConfig = RecordConfig {
    open_max: 4,
    closed_max: 9,
    units_max: 64,
    sources_max: 16,
    idle: Duration::from_millis(20),
    age: Duration::from_millis(60),
    strict_last: false,
};

/// The queue pair for records of one host: source and target.
pub(crate) struct RecordEnd {
    pub(crate) qp: Arc<Qp>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) number: Qpn,
    /// `None` while no memory is registered.
    pub(crate) mr: Option<Arc<Mr>>,
    /// The key of the last registration, and the address of its first place.
    pub(crate) key: u32,
    pub(crate) va: u64,
    registrations: u64,
    memory: Box<[u64]>,
    /// Judges what is written here.
    pub(crate) judge: Records,
    /// The message that has each place, from its sending until its record is freed.
    pub(crate) places: [Option<Name>; SLOTS],
    /// Records that are not freed.
    pub(crate) held: Vec<(RecordHandle, Name)>,
    pub(crate) source: Arc<Mr>,
    sources: Box<[u64]>,
    pub(crate) posted: BTreeMap<u64, Posted>,
    /// Messages posted so far that are not reliable, by which they are numbered.
    pub(crate) count: u32,
    /// Reliable ones.
    pub(crate) reliable_count: u32,
    /// Times that messages were closed, or their memory was taken back.
    pub(crate) ended_early: u64,
    pub(crate) reads: ReadEnd,
}

impl RecordEnd {
    /// `content` is what peers may read.
    pub(crate) fn new(host: &Host, content: Vec<u8>) -> RecordEnd {
        let device = host.device.device();
        let cq = device.create_cq(64, None).expect("a completion queue");
        let qp = host.pd.create_qp(QpInit {
            qp_type: QpType::Ud,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            caps: QpCaps {
                max_send_wr: POSTED_MAX as u32,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: true,
        });
        let qp = qp.expect("a queue pair");
        let steps = [
            (
                QpState::Init,
                AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
            ),
            (QpState::ReadyToReceive, AttrMask::empty()),
            (QpState::ReadyToSend, AttrMask::SQ_PSN),
        ];
        for (state, mask) in steps {
            let attributes = QpAttributes {
                state,
                port: 1,
                qkey: QKEY,
                ..QpAttributes::default()
            };
            let moved = qp.modify(&attributes, AttrMask::STATE | mask);
            moved.expect("a datagram queue pair comes up");
        }
        qp.enable_records(CONFIG).expect("it takes none yet");
        qp.enable_reliable(ReliableConfig::default())
            .expect("it repeats none yet");
        let memory = vec![0_u64; BYTES / 8].into_boxed_slice();
        let sources = vec![0_u64; SLOT * POSTED_MAX / 8].into_boxed_slice();
        let at = sources.as_ptr().expose_provenance() as u64;
        let source = host
            .pd
            .reg_mr(at, SLOT * POSTED_MAX, SOURCE_VA, Access::empty());
        let held_max = (CONFIG.open_max + CONFIG.closed_max) as usize;
        let mut end = RecordEnd {
            number: qp.number(),
            qp,
            cq,
            mr: None,
            key: 0,
            va: VA,
            registrations: 0,
            judge: Records::new(VA - GUARD as u64, &[0; BYTES], held_max),
            memory,
            places: [None; SLOTS],
            held: Vec::new(),
            source: source.expect("memory that is there"),
            sources,
            posted: BTreeMap::new(),
            count: 0,
            reliable_count: 0,
            ended_early: 0,
            reads: ReadEnd::new(host, content, held_max),
        };
        end.register(host);
        end
    }

    /// Registers the memory for records, under another key and other addresses each time.
    pub(crate) fn register(&mut self, host: &Host) {
        let at = self.memory.as_ptr().expose_provenance() as u64 + GUARD as u64;
        let mr = host.pd.reg_record_mr(at, SLOT * SLOTS, None);
        let mr = mr.expect("memory that is there");
        self.va = VA + self.registrations * VA_STEP;
        self.registrations += 1;
        host.device.move_records(&mr, self.va);
        self.key = mr.rkey().0;
        self.mr = Some(mr);
    }

    /// Address of the first place, as the judge knows it.
    pub(crate) fn first_va() -> u64 {
        VA
    }

    /// The same address as the judge knows it: that of the first registration.
    pub(crate) fn judged(va: u64) -> u64 {
        VA + (va - VA) % VA_STEP
    }

    /// Lets the judge check the memory.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        let at = std::ptr::with_exposed_provenance(self.memory.as_ptr().expose_provenance());
        // SAFETY: the allocation has that many bytes, alive with `self`. The device, which writes
        // to them, runs only when this thread calls it, and the slice does not outlive such a call.
        let bytes = unsafe { std::slice::from_raw_parts(at, BYTES) };
        self.judge.check(bytes)
    }

    /// A part of the sources that no posted message has.
    pub(crate) fn free_source(&self) -> Option<usize> {
        (0..POSTED_MAX).find(|part| self.posted.values().all(|other| other.part != *part))
    }

    /// Stores a message in a part of the sources; returns how a request names it.
    pub(crate) fn fill(&mut self, part: usize, message: &[u8]) -> u64 {
        let Range { start, end } = part * SLOT..part * SLOT + message.len();
        assert!(end <= SLOT * POSTED_MAX);
        let at = self.sources.as_ptr().expose_provenance() + start;
        let to = std::ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: in bounds, and no other thread runs.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), to, message.len()) };
        SOURCE_VA + start as u64
    }

    /// Destroys everything.
    ///
    /// # Errors
    /// An object cannot be destroyed.
    pub(crate) fn take_down(self) -> Result<(), String> {
        let gone = |error| format!("taking records down: {error}");
        self.qp.destroy().map_err(gone)?;
        for mr in self.mr.iter().chain([&self.source]) {
            mr.deregister().map_err(gone)?;
        }
        self.reads.take_down()?;
        self.cq.destroy().map_err(gone)
    }
}
