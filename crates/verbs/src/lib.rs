//! libibverbs' C ABI on airdma: the preload artefact `libairdma.so`.
//!
//! Every C symbol and every function slot is in [`entry`], and goes through one macro there: a
//! panic becomes an error, `AIRDMA_TRACE=verbs` prints the call. The modules beside it hold what
//! the symbols do, which is to translate between the structs of [`abi`] and the engine's objects;
//! protocol lives below. Symbols carry no version, so that they satisfy references to any version
//! of rdma-core's.
//!
//! Nothing runs when the library is loaded: it is preloaded into programs that never touch RDMA.
//!
//! With `--cfg loom` there is no such crate: `tests/loom.rs` builds what it checks by itself.

#![cfg(not(loom))]
#![cfg_attr(
    feature = "rlib",
    allow(dead_code, missing_docs, clippy::missing_safety_doc)
)]

#[allow(
    dead_code,
    non_camel_case_types,
    non_snake_case,
    reason = "generated: the whole of what the public structs refer to, under its C names"
)]
mod abi;
#[cfg(test)]
mod abi_header;
mod address;
mod async_event;
mod blocking;
mod buffer;
mod completion;
mod completion_counter;
mod context;
mod device;
mod device_memory;
mod dma_handle;
mod dmabuf;
mod domain;
mod entry;
mod errno;
mod events;
mod extended;
mod kernel;
mod live;
mod memory;
mod multicast;
mod netlink;
mod object;
mod polling;
mod port;
mod post;
mod queue_pair;
mod rate;
mod rdma;
mod record;
mod redirect;
mod registry;
#[cfg(feature = "rlib")]
pub mod rlib;
mod shared_receive;
mod sync;
mod sysfs;
mod text;
mod token;
mod trace;
mod turn;
mod unknown_verbs;
mod window;
mod work_batch;
