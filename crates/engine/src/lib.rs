//! Devices, workers, memory regions, queues and progress: everything between the protocol (`airdma-transport`)
//! and a front end such as the C ABI. This crate is the in-process mode: the worker lives in the application.
//!
//! How a front end uses it: [`devices`] lists the interfaces, [`Device::open`] opens one, a [`Pd`] registers
//! memory ([`Pd::reg_mr`]) and creates queue pairs ([`Pd::create_qp`]), a [`Cq`] is polled for completions, and a
//! [`Channel`] blocks until an armed completion queue has one. Errors carry the `errno` of the man pages.
//!
//! With `--cfg loom` there is no such crate: `tests/loom` builds the protocols between threads by themselves.
#![cfg(not(loom))]

mod active;
mod ah;
mod air;
mod alarm;
mod application_buffer;
mod async_event;
mod channel;
mod clock;
mod cm;
mod completion_counter;
mod core;
mod counters;
mod counters_file;
mod cq;
mod cq_table;
mod device;
mod devices;
mod dm;
mod error;
mod event_queue;
mod event_wait;
mod eventfd;
mod finish;
mod gids;
mod gsi;
mod helper;
mod interface;
#[cfg(test)]
#[path = "../tests/common/isolated.rs"]
mod isolated;
mod limits;
mod memory;
mod memory_file;
mod mr;
mod multicast;
mod mw;
mod neighbour;
mod news;
mod pd;
mod peers;
mod poll_set;
mod post;
mod process;
mod qp;
mod qp_host;
mod qp_shared;
mod qp_state;
mod qp_table;
mod random;
mod raw_frames;
mod relay;
pub mod runtime_dir;
mod seal;
mod send_batch;
mod send_wqe;
#[doc(hidden)]
pub mod simulated;
mod slice;
mod source_port;
mod srq;
mod srq_table;
mod standby;
mod steering;
mod sync;
mod tables;
mod timers;
mod uncancelled;
mod urgency;
mod use_count;
mod wait;
mod wills;
mod withheld;
mod worker;
mod xrcd;

pub use ah::Ah;
pub use air::RateControl;
pub use airdma_port::selftest;
pub use airdma_shm::Sge;
pub use airdma_transport::{
    Access, AttrMask, Bind, Completion, CompletionOpcode, Datagram, GrhHeader, InvalidAttribute,
    Operation, Path, QpAttributes, QpEvent, QpState, QpType, Status,
};
pub use airdma_wire::{Gid, Lkey, PathMtu, Psn, Qkey, Qpn, Rkey};
pub use async_event::AsyncEvent;
pub use channel::Channel;
pub use cm::{CmChannel, CmNews};
pub use completion_counter::{CompletionCounter, CountedOperations, CounterUnit};
pub use counters::counters_of;
pub use cq::{Cq, CqOptions};
pub use cq_table::monotonic;
pub use device::Device;
pub use device::LinkAddress;
pub use devices::{DeviceInfo, all_devices, devices};
pub use dm::Dm;
pub use error::Error;
pub use event_wait::{AsyncWait, ChannelWait, CmWait, EventWait};
pub use gids::GidEntry;
pub use helper::without_signals;
pub use limits::{LIMITS, Limits};
pub use memory::RegionChange;
pub use memory_file::memory_file;
pub use mr::Mr;
pub use mw::{Mw, MwType};
pub use news::News;
pub use pd::{Pd, PdUse, Prefetch};
pub use post::{RecvPost, SendPost};
pub use process::Process;
pub use qp::{Qp, QpCaps, QpInit, RecvWr, SendFlags, SendWr};
pub use send_batch::SendBatch;
pub use srq::{Srq, SrqAttributes, SrqExtension, SrqPost};
pub use uncancelled::Uncancelled;
pub use xrcd::Xrcd;

/// What the calls and events of RDMA CM are made of.
pub mod cm_protocol {
    pub use airdma_cm::*;
    pub use airdma_wire::cm::{
        IpAddressing, PortSpace, RejReason, Rep, ServiceId, SidrStatus, TransportService,
    };
}
