//! The memory for packets that came before their turn, at either end.
//!
//! A peer has no more of the memory than it leaves to all others (the dynamic thresholds of
//! Choudhury and Hahne, IEEE/ACM Transactions on Networking 1998, with a factor of 1): alone it has
//! half, and of n peers that take what they can get each has one part of n + 1, and one is left.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use airdma_wire::{Headers, Packet};

/// Memory for packets out of order, shared by all its clones.
#[derive(Clone, Debug)]
pub struct ReorderMemory {
    left: Arc<AtomicUsize>,
    /// The part that one peer uses; `None` if it may use all.
    used: Option<Arc<AtomicUsize>>,
}

impl ReorderMemory {
    /// A memory of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        ReorderMemory {
            left: Arc::new(AtomicUsize::new(bytes)),
            used: None,
        }
    }

    /// The same memory, for one more peer.
    pub fn for_peer(&self) -> Self {
        ReorderMemory {
            left: Arc::clone(&self.left),
            used: Some(Arc::new(AtomicUsize::new(0))),
        }
    }

    /// Free bytes.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self, bytes: usize) -> bool {
        let used = self.used.as_ref();
        let used_bytes = used.map_or(0, |used| used.load(Ordering::Relaxed) + bytes);
        let less = |left: usize| left.checked_sub(bytes).filter(|left| used_bytes <= *left);
        let taken = (self.left)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok();
        if taken && let Some(used) = used {
            used.fetch_add(bytes, Ordering::Relaxed);
        }
        taken
    }

    pub(crate) fn give(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
        if let Some(used) = &self.used {
            used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// A packet buffered at the expense of a [`ReorderMemory`].
#[derive(Debug)]
pub(crate) struct Kept {
    packet: HeldPacket,
    memory: ReorderMemory,
}

impl Kept {
    /// Buffers a packet; `None` without memory for it.
    pub(crate) fn new(memory: &ReorderMemory, packet: &Packet<'_>) -> Option<Self> {
        memory.take(HeldPacket::bytes(packet)).then(|| Kept {
            packet: HeldPacket::new(packet),
            memory: memory.clone(),
        })
    }

    pub(crate) fn packet(&self) -> Packet<'_> {
        self.packet.packet()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.memory.give(HeldPacket::bytes(&self.packet()));
    }
}

/// A buffered packet.
#[derive(Debug)]
pub(crate) struct HeldPacket {
    headers: Headers,
    payload: Box<[u8]>,
}

impl HeldPacket {
    pub(super) fn new(packet: &Packet<'_>) -> Self {
        HeldPacket {
            headers: packet.headers,
            payload: packet.payload.into(),
        }
    }

    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet {
            headers: self.headers,
            payload: &self.payload,
        }
    }

    pub(super) fn bytes(packet: &Packet<'_>) -> usize {
        mem::size_of::<HeldPacket>() + packet.payload.len()
    }
}
