//! The interface for the crates `fuzz-bodies` and `callgrind`: the structs, the symbols, and a
//! context on any device. Without the hooks of the C library, which are for programs that preload
//! it.

use std::sync::Arc;

use airdma_engine as engine;

use crate::errno::Errno;
use crate::{context, device, token};

pub mod abi {
    pub use crate::abi::*;
}

pub mod symbols {
    pub use crate::entry::symbols::*;
}

/// `ibv_open_device(3)` for a device that is none of this host's. Its `verbs_context` lies in front
/// of it, as always.
///
/// # Errors
/// Those of the system (descriptors).
pub fn open(device: &Arc<engine::Device>) -> Result<*mut abi::ibv_context, i32> {
    let token = token::create(device).map_err(|Errno(errno)| errno)?;
    let raw = device::pointer_of(device.info());
    Ok(context::hand_out(raw, Arc::clone(device), token))
}
