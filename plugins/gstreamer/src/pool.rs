//! Buffers that are blocks: what the element in front of a sink writes is sent from where it lies.

use crate::locked;
use crate::outgoing::{Membership, Slot};
use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The blocks of a sink's buffers, by the address of their memory.
#[derive(Clone, Default)]
pub(crate) struct Slots(Arc<Mutex<HashMap<usize, Weak<Slot>>>>);

impl Slots {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Weak<Slot>>> {
        locked(&self.0)
    }

    /// The block of which a buffer is the whole payload.
    pub(crate) fn of(&self, buffer: &gst::BufferRef) -> Option<Arc<Slot>> {
        if buffer.n_memory() != 1 {
            return None;
        }
        let memory = buffer.peek_memory(0);
        let bytes = memory.map_readable().ok()?;
        let slot = self.lock().get(&(bytes.as_ptr() as usize))?.upgrade()?;
        (slot.length == bytes.len()).then_some(slot)
    }
}

/// Memory of a buffer.
struct View {
    start: *mut u8,
    length: usize,
    slots: Slots,
    /// Keeps the block, or its memory while a frame is in it.
    _slot: Arc<Slot>,
}

// SAFETY: the memory is no thread's own.
unsafe impl Send for View {}

impl AsMut<[u8]> for View {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the payload of a block, whose memory outlives the slot. The block's owner does
        // not touch it but to send it, and then has a reference to the buffer, which no element
        // writes then.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.slots.lock().remove(&(self.start as usize));
    }
}

glib::wrapper! {
    pub(crate) struct Pool(ObjectSubclass<Imp>) @extends gst::BufferPool, gst::Object;
}

impl Pool {
    /// A pool of blocks of a sink.
    pub(crate) fn new(membership: &Arc<Membership>, slots: &Slots) -> Pool {
        let pool: Pool = glib::Object::new();
        let blocks = (Arc::clone(membership), slots.clone());
        *pool.imp().lock() = Some(blocks);
        pool
    }
}

#[derive(Default)]
pub(crate) struct Imp(Mutex<Option<(Arc<Membership>, Slots)>>);

impl Imp {
    fn lock(&self) -> MutexGuard<'_, Option<(Arc<Membership>, Slots)>> {
        locked(&self.0)
    }
}

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "GstAirdmaPool";
    type Type = Pool;
    type ParentType = gst::BufferPool;
}

impl ObjectImpl for Imp {}
impl GstObjectImpl for Imp {}

impl BufferPoolImpl for Imp {
    fn alloc_buffer(
        &self,
        _: Option<&gst::BufferPoolAcquireParams>,
    ) -> Result<gst::Buffer, gst::FlowError> {
        let (membership, slots) = self.lock().clone().ok_or(gst::FlowError::Error)?;
        let (_, length, ..) = self.obj().config().params().ok_or(gst::FlowError::Error)?;
        let length = length as usize;
        // Buffers of former formats may be held in front of the sink. Some blocks are left for
        // copies, and for the end.
        let slot = match slots.lock().len() < membership.slots_max {
            true => membership.slot(length),
            false => None,
        };
        let Some((slot, start)) = slot else {
            return gst::Buffer::with_size(length).map_err(|_| gst::FlowError::Error);
        };
        slots.lock().insert(start as usize, Arc::downgrade(&slot));
        let _slot = slot;
        Ok(gst::Buffer::from_mut_slice(View {
            start,
            length,
            slots,
            _slot,
        }))
    }
}
