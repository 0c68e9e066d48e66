//! Devices, workers, memory regions, queues and progress: everything between the protocol
//! (`airdma-transport`) and a front end such as the C ABI. The worker of a device runs in the
//! application's process, on its threads and one of this crate.
//!
//! How a front end uses it: [`devices`] lists the interfaces, [`Device::open`] opens one, a [`Pd`]
//! registers memory ([`Pd::reg_mr`]) and creates queue pairs ([`Pd::create_qp`]), a [`Cq`] is
//! polled for completions, and a [`Channel`] blocks until an armed completion queue has one. Errors
//! carry the `errno` of the man pages.
//!
//! With `--cfg loom` there is no such crate: `tests/loom` builds the protocols between threads by
//! themselves.
#![cfg(not(loom))]

#[cfg(test)]
extern crate self as airdma_engine;

mod air;
mod clock;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
mod config;
mod control;
mod core;
mod counter_names;
mod daemon;
mod environment;
mod error;
mod host;
mod index;
mod inventory;
mod limits;
mod memory;
mod objects;
mod progress;
mod queues;
mod random;
mod remote;
mod seal;
mod sharing;
#[doc(hidden)]
pub mod simulated;
mod sync;
mod tables;
mod worker;

pub use airdma_port::impair::Impairment;
pub use airdma_port::selftest;
pub use airdma_port::tap;
pub use airdma_preload::PerProcess;
pub use airdma_shm::{Sge, memory_file};
pub use airdma_transport::{
    Access, AttrMask, Bind, Completion, CompletionOpcode, Datagram, Ended, GrhHeader,
    InvalidAttribute, Operation, Path, QpAttributes, QpEvent, QpState, QpType, RATE_LIMIT_KBPS_MAX,
    RECORD_READS_MAX, RETRY_FOR_EVER, Record, RecordConfig, RecordHandle, ReliableConfig, Status,
};
pub use airdma_wire::{Feth, Gid, Lkey, PathMtu, Psn, Qkey, Qpn, Rkey};
pub use config::{Air, DeviceConfig, PortKind, RateControl, Window as PeerWindow};
#[doc(hidden)]
pub use control::check_control_bytes;
pub use core::report::VERSION as REPORT_VERSION;
pub use core::viewers::{CAPTURING, NAME_PREFIX as VIEW_NAME_PREFIX};
pub use counter_names::SocketCounter;
pub use daemon::Daemon;
pub use error::{Error, errno_of};
pub use host::devices::DeviceInfo;
pub use host::gids::GidEntry;
pub use host::link_monitor::LinkMonitor;
pub use limits::{LIMITS, Limits};
pub use memory::RegionChange;
pub use objects::ah::Ah;
pub use objects::channel::Channel;
#[doc(hidden)]
pub use remote::check_bytes as check_daemon_bytes;

pub use objects::completion_counter::{CompletionCounter, CounterUnit};
pub use objects::cq::Cq;
pub use objects::device::Device;
pub use objects::device::LinkAddress;
pub use objects::device_list::{all_devices, counters_of, devices};
pub use objects::dm::Dm;
pub use objects::event_wait::{AsyncWait, ChannelWait, CmWait, EventWait};
pub use objects::mr::Mr;
pub use objects::mw::{Mw, MwType};
pub use objects::pd::{Pd, PdUse, Prefetch};
pub use objects::post::{RecvPost, SendPost};
pub use objects::qp::{Qp, QpInit};
pub use objects::send_batch::SendBatch;
pub use objects::srq::{Srq, SrqAttributes, SrqExtension, SrqPost};
pub use objects::xrcd::Xrcd;
pub use progress::poll_set::PollSet;
pub use progress::progress_thread::without_signals;
pub use progress::slice::offered as short_slices_offered;
pub use queues::async_event::AsyncEvent;
pub use queues::attached_counters::CountedOperations;
pub use queues::cm_channel::{CmChannel, CmNews};
pub use queues::cq_shared::CqOptions;
pub use queues::qp_caps::QpCaps;
pub use queues::work_request::{DatagramRead, RecvWr, SendFlags, SendWr};
pub use random::random_u32;
pub use seal::Secret;
pub use sharing::runtime_dir;
pub use tables::cq_table::monotonic;

/// What the calls and events of RDMA CM are made of.
pub mod cm_protocol {
    pub use airdma_cm::*;
    pub use airdma_wire::cm::{
        IpAddressing, PortSpace, RejReason, Rep, ServiceId, SidrStatus, TransportService,
    };
}
