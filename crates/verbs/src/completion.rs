//! Completion channels and completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use airdma_engine::{self as engine, ChannelWait, Completion, CqOptions, GrhHeader, PdUse};

use crate::abi;
use crate::blocking::{self, Attempt, Wait};
use crate::context::{Context, completion_vectors};
use crate::errno::Errno;
use crate::live::{self, Affiliated};
use crate::memory::Pd;
use crate::object::{Object, next_handle, zeroed};
use crate::polling::{self, Polling};

#[repr(C)]
struct Channel {
    c: UnsafeCell<abi::ibv_comp_channel>,
    engine: Arc<engine::Channel>,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Channel {
    type C = abi::ibv_comp_channel;
}

/// A completion queue.
#[repr(C)]
pub struct Cq {
    /// Begins with the fields of an `ibv_cq`, which is what most of C knows.
    c: UnsafeCell<abi::ibv_cq_ex>,
    engine: Arc<engine::Cq>,
    number: u64,
    events: Arc<Affiliated>,
    /// The extended way to poll, if it was asked for.
    polling: Option<Polling>,
    /// The parent domain it was created with.
    _domain: Option<PdUse>,
}

// SAFETY: `c` is the first field, and begins with the fields of the plain struct (asserted below).
unsafe impl Object for Cq {
    type C = abi::ibv_cq;
}

impl Cq {
    /// The engine's queue.
    pub fn engine(&self) -> &Arc<engine::Cq> {
        &self.engine
    }

    /// The extended way to poll, if it was asked for.
    pub fn polling(&self) -> Option<&Polling> {
        self.polling.as_ref()
    }

    /// Its events that are not acknowledged.
    pub fn events(&self) -> &Affiliated {
        &self.events
    }
}

/// `ibv_create_comp_channel(3)`.
pub unsafe fn create_channel(
    raw: *mut abi::ibv_context,
) -> Result<*mut abi::ibv_comp_channel, Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(raw) }?;
    let engine = context.device().create_channel()?;
    let c = UnsafeCell::new(abi::ibv_comp_channel {
        context: raw,
        fd: engine.fd(),
        refcnt: 0,
    });
    Ok(Box::new(Channel { c, engine }).into_raw())
}

/// `ibv_destroy_comp_channel(3)`: EBUSY while a queue uses it.
pub unsafe fn destroy_channel(raw: *mut abi::ibv_comp_channel) -> Result<(), Errno> {
    // SAFETY: the caller's channel, given back if the engine lets it go.
    unsafe {
        Channel::of(raw)?.engine.destroy()?;
        drop(Channel::take(raw));
    }
    Ok(())
}

/// `ibv_create_cq(3)`.
pub unsafe fn create_cq(
    raw_context: *mut abi::ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    raw_channel: *mut abi::ibv_comp_channel,
    vector: c_int,
) -> Result<*mut abi::ibv_cq, Errno> {
    let wanted = Wanted {
        entries: u32::try_from(entries).map_err(|_| Errno::INVALID)?,
        cq_context,
        raw_channel,
        vector: u32::try_from(vector).map_err(|_| Errno::INVALID)?,
        options: CqOptions::default(),
        polling: None,
        domain: None,
    };
    // SAFETY: the caller's objects.
    unsafe { make(raw_context, wanted) }
}

/// `ibv_create_cq_ex(3)`. The locks of a queue for one thread stay: uncontended they cost less than
/// the choice.
pub unsafe fn create_cq_ex(
    raw_context: *mut abi::ibv_context,
    attr: *mut abi::ibv_cq_init_attr_ex,
) -> Result<*mut abi::ibv_cq_ex, Errno> {
    // SAFETY: the caller's struct.
    let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVALID)?;
    let given = |mask: u32| attr.comp_mask & mask != 0;
    let masks = abi::IBV_CQ_INIT_ATTR_MASK_FLAGS | abi::IBV_CQ_INIT_ATTR_MASK_PD;
    let known = abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED | abi::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    if attr.comp_mask & !masks != 0 {
        return Err(Errno::INVALID);
    }
    let flags = if given(abi::IBV_CQ_INIT_ATTR_MASK_FLAGS) {
        attr.flags
    } else {
        0
    };
    if flags & !known != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    let domain = if given(abi::IBV_CQ_INIT_ATTR_MASK_PD) {
        // SAFETY: the caller's domain.
        Some(
            unsafe { Pd::of(attr.parent_domain) }?
                .engine()
                .hold_parent()?,
        )
    } else {
        None
    };
    let wanted = Wanted {
        entries: attr.cqe,
        cq_context: attr.cq_context,
        raw_channel: attr.channel,
        vector: attr.comp_vector,
        options: CqOptions {
            timestamps: polling::needs_timestamps(attr.wc_flags)?,
            ignore_overrun: flags & abi::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
        },
        polling: Some(Polling::new()),
        domain,
    };
    // SAFETY: the caller's objects; the extended struct begins as the plain one.
    Ok(unsafe { make(raw_context, wanted) }?.cast())
}

/// The arguments of both calls that create a queue.
struct Wanted {
    entries: u32,
    cq_context: *mut c_void,
    raw_channel: *mut abi::ibv_comp_channel,
    vector: u32,
    options: CqOptions,
    polling: Option<Polling>,
    domain: Option<PdUse>,
}

unsafe fn make(
    raw_context: *mut abi::ibv_context,
    wanted: Wanted,
) -> Result<*mut abi::ibv_cq, Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(raw_context) }?;
    let raw_channel = wanted.raw_channel;
    if wanted.vector >= completion_vectors().cast_unsigned() {
        return Err(Errno::INVALID);
    }
    let number = live::number();
    let channel = if raw_channel.is_null() {
        None
    } else {
        // SAFETY: the caller's channel.
        let channel = unsafe { Channel::of(raw_channel) }?;
        Some((Arc::clone(&channel.engine), number))
    };
    let device = context.device();
    let engine = device.create_cq_with(wanted.entries, channel, wanted.options)?;
    engine.set_cookie(number);
    // SAFETY: integers and raw pointers; all-zero mutex and condition are initialised ones.
    let mut c: abi::ibv_cq_ex = unsafe { zeroed() };
    c.context = raw_context;
    c.channel = raw_channel;
    c.cq_context = wanted.cq_context;
    c.handle = next_handle();
    c.cqe = c_int::try_from(engine.capacity()).unwrap_or(c_int::MAX);
    if wanted.polling.is_some() {
        Polling::fill(&mut c);
    }
    let events = Arc::new(Affiliated::default());
    let raw = Box::new(Cq {
        c: UnsafeCell::new(c),
        engine,
        number,
        events: Arc::clone(&events),
        polling: wanted.polling,
        _domain: wanted.domain,
    })
    .into_raw();
    if let Some(object) = NonNull::new(raw) {
        live::enter(number, object, &events);
    }
    // SAFETY: the caller's channel, if any.
    unsafe { count_user(raw_channel, 1) };
    Ok(raw)
}

/// `ibv_resize_cq(3)`: what is in the queue stays.
pub unsafe fn resize_cq(raw: *mut abi::ibv_cq, entries: c_int) -> Result<(), Errno> {
    // SAFETY: the caller's queue.
    let cq = unsafe { Cq::of(raw) }?;
    let entries = u32::try_from(entries).map_err(|_| Errno::INVALID)?;
    cq.engine.resize(entries)?;
    // SAFETY: the public field follows, as rdma-core's library has it.
    unsafe { (*raw).cqe = c_int::try_from(cq.engine.capacity()).unwrap_or(c_int::MAX) };
    Ok(())
}

/// `ibv_destroy_cq(3)`: EBUSY while a queue pair uses it; waits for outstanding acknowledgements.
pub unsafe fn destroy_cq(raw: *mut abi::ibv_cq) -> Result<(), Errno> {
    // SAFETY: the caller's queue, given back if the engine lets it go.
    unsafe {
        let cq = Cq::of(raw)?;
        cq.engine.destroy()?;
        live::retire(cq.number, &cq.events);
        count_user((*raw).channel, -1);
        drop(Cq::take(raw));
    }
    Ok(())
}

/// One attempt of `ibv_get_cq_event(3)`, which blocks unless the channel's descriptor has
/// `O_NONBLOCK`. `slept` is what `ppoll(2)` said since the last attempt.
pub unsafe fn get_cq_event(
    raw: *mut abi::ibv_comp_channel,
    cq: *mut *mut abi::ibv_cq,
    cq_context: *mut *mut c_void,
    slept: Option<c_int>,
) -> Attempt {
    let new = || {
        // SAFETY: the caller's channel.
        let channel = unsafe { Channel::of(raw) }?;
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno::INVALID);
        }
        Ok(Wait::Channel(ChannelWait::new(&channel.engine)))
    };
    blocking::attempt(slept, new, Wait::channel, |number| {
        let owner = live::deliver::<abi::ibv_cq>(number, |events| events.completion.deliver());
        // An event whose queue was destroyed meanwhile never happened.
        let Some(owner) = owner else { return false };
        // SAFETY: the queue waits for this event's acknowledgement before it goes; the rest is the
        // caller's.
        unsafe {
            *cq = owner.as_ptr();
            *cq_context = (*owner.as_ptr()).cq_context;
        }
        true
    })
}

/// Adds to a public field of a C object that counts acknowledged events, which programs may read
/// (UCX's tests do). Before the events are acknowledged: the object may be gone afterwards.
///
/// # Safety
/// The field of an object that the caller holds.
pub unsafe fn count_in(field: *mut u32, count: u32) {
    // SAFETY: the caller's promise; no other code of this library accesses the field.
    unsafe { AtomicU32::from_ptr(field) }.fetch_add(count, Ordering::Relaxed);
}

/// `ibv_ack_cq_events(3)`.
pub unsafe fn ack_cq_events(raw: *mut abi::ibv_cq, count: c_uint) {
    // SAFETY: the caller's queue.
    if let Ok(cq) = unsafe { Cq::of(raw) } {
        // SAFETY: the caller's queue.
        unsafe { count_in(&raw mut (*raw).comp_events_completed, count) };
        cq.events.completion.acknowledge(count);
    }
}

/// `ibv_poll_cq(3)`.
#[inline]
pub unsafe fn poll(
    raw: *mut abi::ibv_cq,
    count_max: c_int,
    wc: *mut abi::ibv_wc,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's queue.
    let cq = unsafe { Cq::of(raw) }?;
    let room = usize::try_from(count_max).map_err(|_| Errno::INVALID)?;
    if room != 0 && wc.is_null() {
        return Err(Errno::INVALID);
    }
    let mut next = wc;
    let count = cq.engine.poll(room, |completion| {
        // SAFETY: the caller's array has `room` elements, and the engine gives no more completions.
        unsafe {
            next.write(work_completion(&completion));
            next = next.add(1);
        }
    })?;
    // At most `count_max`.
    Ok(count as c_int)
}

/// `ibv_req_notify_cq(3)`.
#[inline]
pub unsafe fn request_notification(
    raw: *mut abi::ibv_cq,
    solicited_only: c_int,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue.
    unsafe { Cq::of(raw) }?.engine.arm(solicited_only != 0)?;
    Ok(())
}

#[inline]
pub fn work_completion(completion: &Completion) -> abi::ibv_wc {
    let mut wc_flags = 0;
    let mut extra = abi::ibv_wc__bindgen_ty_1 { imm_data: 0 };
    let sl = completion.grh.map_or(0, packet_type);
    if completion.grh.is_some() {
        wc_flags |= abi::IBV_WC_GRH;
    }
    if let Some(imm) = completion.imm {
        wc_flags |= abi::IBV_WC_WITH_IMM;
        extra.imm_data = u32::from_ne_bytes(imm);
    }
    if let Some(key) = completion.invalidated {
        wc_flags |= abi::IBV_WC_WITH_INV;
        extra.invalidated_rkey = key.0;
    }
    abi::ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as abi::ibv_wc_status,
        opcode: completion.opcode as abi::ibv_wc_opcode,
        vendor_err: 0,
        byte_len: completion.byte_len,
        __bindgen_anon_1: extra,
        qp_num: completion.qpn.get(),
        src_qp: completion.src_qpn.get(),
        wc_flags,
        pkey_index: 0,
        slid: 0,
        sl,
        dlid_path_bits: 0,
    }
}

/// The value of `sl` of a datagram. RoCE has no service level; hardware tells the kind of packet
/// there, and UCX 1.13 (Debian 12) drops datagrams over IPv4 without it: bit 3 for RoCEv2, then 1
/// for IPv6 and 2 for IPv4.
fn packet_type(header: GrhHeader) -> u8 {
    const ROCE_V2: u8 = 8;
    match header {
        GrhHeader::Ipv6 => ROCE_V2 | 1,
        GrhHeader::Ipv4 => ROCE_V2 | 2,
    }
}

/// The extended struct begins with the fields of the plain one.
const _: () = {
    use std::mem::offset_of;
    type Plain = abi::ibv_cq;
    type Extended = abi::ibv_cq_ex;
    assert!(offset_of!(Plain, cq_context) == offset_of!(Extended, cq_context));
    assert!(offset_of!(Plain, cqe) == offset_of!(Extended, cqe));
    assert!(
        offset_of!(Plain, async_events_completed) == offset_of!(Extended, async_events_completed)
    );
};

/// Keeps the public count of a channel's queues.
unsafe fn count_user(channel: *mut abi::ibv_comp_channel, change: c_int) {
    if channel.is_null() {
        return;
    }
    // SAFETY: the caller's channel; other threads may count too.
    let count =
        unsafe { std::sync::atomic::AtomicI32::from_ptr(ptr::addr_of_mut!((*channel).refcnt)) };
    count.fetch_add(change, std::sync::atomic::Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use airdma_engine::{CompletionOpcode, Qpn, Rkey, Status};

    fn receive() -> Completion {
        Completion {
            byte_len: 48,
            grh: Some(GrhHeader::Ipv4),
            src_qpn: Qpn::new(9),
            ..Completion::with_status(
                7,
                CompletionOpcode::Receive,
                Status::Success,
                Qpn::new(0x11),
            )
        }
    }

    #[test]
    fn a_datagram_receive_says_grh_and_source() {
        let wc = work_completion(&receive());
        assert_eq!(wc.wr_id, 7);
        assert_eq!(wc.opcode, abi::IBV_WC_RECV);
        assert_eq!(wc.status, abi::IBV_WC_SUCCESS);
        assert_eq!((wc.byte_len, wc.qp_num, wc.src_qp), (48, 0x11, 9));
        assert_eq!(wc.wc_flags, abi::IBV_WC_GRH);
        assert_eq!(wc.sl & 7, 2);
        let ipv6 = Completion {
            grh: Some(GrhHeader::Ipv6),
            ..receive()
        };
        assert_eq!(work_completion(&ipv6).sl & 7, 1);
    }

    #[test]
    fn immediate_data_stays_in_network_order() {
        let wc = work_completion(&Completion {
            imm: Some([1, 2, 3, 4]),
            ..receive()
        });
        assert_eq!(wc.wc_flags, abi::IBV_WC_GRH | abi::IBV_WC_WITH_IMM);
        // SAFETY: both members are integers of four bytes.
        let imm = unsafe { wc.__bindgen_anon_1.imm_data };
        assert_eq!(imm, 0x0102_0304_u32.to_be());
    }

    #[test]
    fn an_invalidated_key_is_a_number() {
        let wc = work_completion(&Completion {
            grh: None,
            invalidated: Some(Rkey(0x1234)),
            ..receive()
        });
        assert_eq!(wc.wc_flags, abi::IBV_WC_WITH_INV);
        // SAFETY: both members are integers of four bytes.
        assert_eq!(unsafe { wc.__bindgen_anon_1.invalidated_rkey }, 0x1234);
    }

    #[test]
    fn statuses_and_opcodes_have_the_numbers_of_the_header() {
        assert_eq!(Status::RetryExceeded as u32, abi::IBV_WC_RETRY_EXC_ERR);
        assert_eq!(
            Status::RnrRetryExceeded as u32,
            abi::IBV_WC_RNR_RETRY_EXC_ERR
        );
        assert_eq!(Status::WrFlushError as u32, abi::IBV_WC_WR_FLUSH_ERR);
        assert_eq!(Status::RemoteAccessError as u32, abi::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(
            CompletionOpcode::ReceiveWriteImm as u32,
            abi::IBV_WC_RECV_RDMA_WITH_IMM
        );
        assert_eq!(CompletionOpcode::FetchAdd as u32, abi::IBV_WC_FETCH_ADD);
        assert_eq!(CompletionOpcode::Record as u32, abi::IBV_WC_DRIVER1);
        assert_eq!(CompletionOpcode::ReceiveRecord as u32, abi::IBV_WC_DRIVER2);
    }
}
