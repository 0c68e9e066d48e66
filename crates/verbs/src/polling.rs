//! The extended way to poll (`ibv_create_cq_ex(3)`): completions one at a time, field by field.

use std::sync::{Mutex, MutexGuard, PoisonError};

use airdma_engine::monotonic;

use crate::abi;
use crate::completion::{Cq, work_completion};
use crate::context::Context;
use crate::entry::polling as slots;
use crate::errno::Errno;
use crate::object::Object;
use crate::turn::Turn;

/// The completion that `read_*` functions read, between `start_poll` and `end_poll`.
pub struct Polling {
    current: Turn<Current>,
    /// Held by the thread that polls, so that others wait for their turn.
    lock: Mutex<()>,
}

struct Current {
    _held: MutexGuard<'static, ()>,
    wc: abi::ibv_wc,
    timestamp: u64,
}

/// The fields that can be asked for. The others belong to raw Ethernet and tag matching.
const FIELDS: u32 = abi::IBV_WC_EX_WITH_BYTE_LEN
    | abi::IBV_WC_EX_WITH_IMM
    | abi::IBV_WC_EX_WITH_QP_NUM
    | abi::IBV_WC_EX_WITH_SRC_QP
    | abi::IBV_WC_EX_WITH_SLID
    | abi::IBV_WC_EX_WITH_SL
    | abi::IBV_WC_EX_WITH_DLID_PATH_BITS
    | TIMESTAMPS;

const TIMESTAMPS: u32 =
    abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Whether a queue with these fields needs timestamps.
///
/// # Errors
/// `EOPNOTSUPP` for a field that there is not.
pub fn needs_timestamps(wc_flags: u64) -> Result<bool, Errno> {
    if wc_flags & !u64::from(FIELDS) != 0 {
        return Err(Errno::UNSUPPORTED);
    }
    Ok(wc_flags & u64::from(TIMESTAMPS) != 0)
}

impl Polling {
    /// Nothing polled yet.
    pub fn new() -> Self {
        Polling {
            current: Turn::new(),
            lock: Mutex::new(()),
        }
    }

    /// Fills in the functions of the C struct.
    pub fn fill(c: &mut abi::ibv_cq_ex) {
        c.start_poll = Some(slots::start_poll);
        c.next_poll = Some(slots::next_poll);
        c.end_poll = Some(slots::end_poll);
        c.read_opcode = Some(slots::read_opcode);
        c.read_vendor_err = Some(slots::read_vendor_err);
        c.read_byte_len = Some(slots::read_byte_len);
        c.read_imm_data = Some(slots::read_imm_data);
        c.read_qp_num = Some(slots::read_qp_num);
        c.read_src_qp = Some(slots::read_src_qp);
        c.read_wc_flags = Some(slots::read_wc_flags);
        c.read_slid = Some(slots::read_slid);
        c.read_sl = Some(slots::read_sl);
        c.read_dlid_path_bits = Some(slots::read_dlid_path_bits);
        c.read_completion_ts = Some(slots::read_completion_ts);
        c.read_cvlan = Some(slots::read_cvlan);
        c.read_flow_tag = Some(slots::read_flow_tag);
        c.read_tm_info = Some(slots::read_tm_info);
        c.read_completion_wallclock_ns = Some(slots::read_completion_wallclock_ns);
    }
}

/// The queue behind a C pointer and what it polls.
unsafe fn polling<'a>(raw: *mut abi::ibv_cq_ex) -> Result<(&'a Cq, &'a Polling), Errno> {
    // SAFETY: the caller's queue, whose extended struct begins with the plain one.
    let cq = unsafe { Cq::of(raw.cast()) }?;
    Ok((cq, cq.polling().ok_or(Errno::INVALID)?))
}

/// The completion in the calling thread's hand.
#[inline]
unsafe fn current<'a>(raw: *mut abi::ibv_cq_ex) -> Option<&'a mut Current> {
    // SAFETY: the caller's queue.
    unsafe { polling(raw) }.ok()?.1.current.mine()
}

/// The next completion of the queue. ENOENT when there is none.
#[inline]
unsafe fn take(raw: *mut abi::ibv_cq_ex, cq: &Cq) -> Result<(abi::ibv_wc, u64), Errno> {
    let mut taken = None;
    cq.engine().poll_stamped(1, |completion, timestamp| {
        taken = Some((work_completion(&completion), timestamp));
    })?;
    let (wc, timestamp) = taken.ok_or(Errno(libc::ENOENT))?;
    // SAFETY: the caller's queue; these public fields belong to the thread whose turn it is.
    unsafe {
        (*raw).wr_id = wc.wr_id;
        (*raw).status = wc.status;
    }
    Ok((wc, timestamp))
}

/// `ibv_start_poll`: other threads wait until `ibv_end_poll`. ENOENT when there is no completion,
/// and then no `ibv_end_poll` is due. EINVAL within a poll of the same thread.
#[inline]
pub unsafe fn start(
    raw: *mut abi::ibv_cq_ex,
    attr: *mut abi::ibv_poll_cq_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's struct and queue.
    let (cq, polling) = unsafe {
        if attr.as_ref().is_some_and(|attr| attr.comp_mask != 0) {
            return Err(Errno::INVALID);
        }
        polling(raw)?
    };
    if polling.current.mine().is_some() {
        return Err(Errno::INVALID);
    }
    let held = polling.lock.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the guard lies in the object that it locks, and goes when the poll ends, before that.
    let _held = unsafe { std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(held) };
    // SAFETY: the caller's queue; this thread has the lock.
    unsafe {
        let (wc, timestamp) = take(raw, cq)?;
        polling.current.begin(Current {
            _held,
            wc,
            timestamp,
        });
    }
    Ok(())
}

/// `ibv_next_poll`: ENOENT when there is none; `ibv_end_poll` is due all the same. EINVAL outside
/// of a poll.
#[inline]
pub unsafe fn next(raw: *mut abi::ibv_cq_ex) -> Result<(), Errno> {
    // SAFETY: the caller's queue; this thread has the lock.
    unsafe {
        let (cq, polling) = polling(raw)?;
        let current = polling.current.mine().ok_or(Errno::INVALID)?;
        (current.wc, current.timestamp) = take(raw, cq)?;
    }
    Ok(())
}

/// `ibv_end_poll`.
#[inline]
pub unsafe fn end(raw: *mut abi::ibv_cq_ex) {
    // SAFETY: the caller's queue.
    if let Ok((_, polling)) = unsafe { polling(raw) } {
        drop(polling.current.end());
    }
}

/// Defines the functions that read one field of the completion in the thread's hand; 0 if there is
/// none.
macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident -> $ty:ty = |$state:ident| $value:expr;)*) => {$(
        $(#[$doc])*
        #[inline]
        pub unsafe fn $name(raw: *mut abi::ibv_cq_ex) -> $ty {
            // SAFETY: the caller's queue.
            match unsafe { current(raw) } {
                Some($state) => $value,
                None => 0,
            }
        }
    )*};
}

fields! {
    /// `ibv_wc_read_opcode`.
    opcode -> u32 = |state| state.wc.opcode;
    /// `ibv_wc_read_vendor_err`.
    vendor_err -> u32 = |state| state.wc.vendor_err;
    /// `ibv_wc_read_byte_len`.
    byte_len -> u32 = |state| state.wc.byte_len;
    // SAFETY: both members are integers of four bytes.
    /// `ibv_wc_read_imm_data` and `ibv_wc_read_invalidated_rkey`.
    imm_data -> u32 = |state| unsafe { state.wc.__bindgen_anon_1.imm_data };
    /// `ibv_wc_read_qp_num`.
    qp_num -> u32 = |state| state.wc.qp_num;
    /// `ibv_wc_read_src_qp`.
    src_qp -> u32 = |state| state.wc.src_qp;
    /// `ibv_wc_read_wc_flags`.
    wc_flags -> u32 = |state| state.wc.wc_flags;
    /// `ibv_wc_read_slid`.
    slid -> u32 = |state| u32::from(state.wc.slid);
    /// `ibv_wc_read_sl`.
    sl -> u8 = |state| state.wc.sl;
    /// `ibv_wc_read_dlid_path_bits`.
    dlid_path_bits -> u8 = |state| state.wc.dlid_path_bits;
    /// `ibv_wc_read_completion_ts`: in units of `hca_core_clock`, which are nanoseconds.
    completion_ts -> u64 = |state| state.timestamp;
    /// `ibv_wc_read_completion_wallclock_ns`: since 1970.
    completion_wallclock_ns -> u64 = |state| wall_clock(state.timestamp);
}

/// The time of day at a moment of the monotonic clock.
fn wall_clock(timestamp: u64) -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let ago = monotonic().saturating_sub(timestamp);
    u64::try_from(since.as_nanos())
        .unwrap_or(u64::MAX)
        .saturating_sub(ago)
}

/// `ibv_query_rt_values_ex(3)`: the clock of the completions, all of it in `tv_nsec`, as adapters
/// have it. Programs that compare it with `ibv_wc_read_completion_ts` read that member alone, or
/// add the seconds.
pub unsafe fn query_rt_values(
    context: *mut abi::ibv_context,
    values: *mut abi::ibv_values_ex,
) -> Result<(), Errno> {
    // SAFETY: the caller's context and struct.
    let values = unsafe {
        Context::of(context)?;
        values.as_mut().ok_or(Errno::INVALID)?
    };
    values.comp_mask &= abi::IBV_VALUES_MASK_RAW_CLOCK;
    if values.comp_mask != 0 {
        values.raw_clock.tv_sec = 0;
        values.raw_clock.tv_nsec = monotonic().cast_signed();
    }
    Ok(())
}
