//! The extended way to post sends (`ibv_wr_post(3)`): a batch of requests that is built call by
//! call, and posted whole or not at all.

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::Arc;

use airdma_engine::{
    self as engine, Datagram, Feth, Operation, Qkey, QpType, Qpn, Rkey, SendBatch, SendFlags, Sge,
};

use crate::abi;
use crate::address::Ah;
use crate::entry::work_requests as slots;
use crate::errno::Errno;
use crate::object::Object;
use crate::post;
use crate::queue_pair::Qp;
use crate::turn::Turn;
use crate::window;

/// The extended interface of a queue pair: the operations that were requested when it was created.
pub struct Batches {
    allowed: u64,
    /// The batch of the thread that is between `wr_start` and `wr_complete`. It holds the lock of
    /// the send queue.
    open: Turn<Batch>,
}

struct Batch {
    /// Borrows from `_qp`, and is dropped before it.
    requests: SendBatch<'static>,
    _qp: Arc<engine::Qp>,
    /// A mistake found here; the engine's batch keeps those that it finds.
    error: Option<Errno>,
}

/// Operations that each service has, as `ibv_qp_create_send_ops_flags`.
fn operations_of(qp_type: QpType) -> u64 {
    let sends = abi::IBV_QP_EX_WITH_SEND | abi::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let writes = abi::IBV_QP_EX_WITH_RDMA_WRITE | abi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let local = abi::IBV_QP_EX_WITH_LOCAL_INV | abi::IBV_QP_EX_WITH_BIND_MW;
    let answered = abi::IBV_QP_EX_WITH_RDMA_READ
        | abi::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | abi::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | abi::IBV_QP_EX_WITH_ATOMIC_WRITE
        | abi::IBV_QP_EX_WITH_FLUSH
        | abi::IBV_QP_EX_WITH_SEND_WITH_INV;
    u64::from(match qp_type {
        QpType::Rc | QpType::XrcSend => sends | writes | local | answered,
        QpType::Uc => sends | writes | local,
        QpType::Ud => sends,
        QpType::RawPacket => abi::IBV_QP_EX_WITH_SEND,
        QpType::XrcReceive => 0,
    })
}

impl Batches {
    /// The state of a queue pair with these operations (`send_ops_flags`).
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an operation that the service does not have.
    pub fn new(qp_type: QpType, allowed: u64) -> Result<Batches, Errno> {
        if allowed & !operations_of(qp_type) != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        Ok(Batches {
            allowed,
            open: Turn::new(),
        })
    }

    /// Fills in the functions of the C struct.
    pub fn fill(c: &mut abi::ibv_qp_ex) {
        c.wr_atomic_cmp_swp = Some(slots::wr_atomic_cmp_swp);
        c.wr_atomic_fetch_add = Some(slots::wr_atomic_fetch_add);
        c.wr_bind_mw = Some(slots::wr_bind_mw);
        c.wr_local_inv = Some(slots::wr_local_inv);
        c.wr_rdma_read = Some(slots::wr_rdma_read);
        c.wr_rdma_write = Some(slots::wr_rdma_write);
        c.wr_rdma_write_imm = Some(slots::wr_rdma_write_imm);
        c.wr_send = Some(slots::wr_send);
        c.wr_send_imm = Some(slots::wr_send_imm);
        c.wr_send_inv = Some(slots::wr_send_inv);
        c.wr_send_tso = Some(slots::wr_send_tso);
        c.wr_set_ud_addr = Some(slots::wr_set_ud_addr);
        c.wr_set_xrc_srqn = Some(slots::wr_set_xrc_srqn);
        c.wr_set_inline_data = Some(slots::wr_set_inline_data);
        c.wr_set_inline_data_list = Some(slots::wr_set_inline_data_list);
        c.wr_set_sge = Some(slots::wr_set_sge);
        c.wr_set_sge_list = Some(slots::wr_set_sge_list);
        c.wr_start = Some(slots::wr_start);
        c.wr_complete = Some(slots::wr_complete);
        c.wr_abort = Some(slots::wr_abort);
        c.wr_atomic_write = Some(slots::wr_atomic_write);
        c.wr_flush = Some(slots::wr_flush);
    }
}

impl Batch {
    fn new(engine: &Arc<engine::Qp>) -> Batch {
        let qp = Arc::clone(engine);
        // SAFETY: the queue pair outlives the batch, which stands before it in the struct and is
        // dropped first; the `Arc` keeps it where it is.
        let requests =
            unsafe { std::mem::transmute::<SendBatch<'_>, SendBatch<'static>>(qp.begin_batch()) };
        Batch {
            requests,
            _qp: qp,
            error: None,
        }
    }

    fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    fn commit(self) -> Result<(), Errno> {
        match self.error {
            None => Ok(self.requests.commit()?),
            Some(errno) => Err(errno),
        }
    }
}

/// The batches of a queue pair that was created for them.
unsafe fn batches<'a>(qp: *mut abi::ibv_qp_ex) -> Result<(&'a Qp, &'a Batches), Errno> {
    // SAFETY: the caller's queue pair, whose extended struct begins with the plain one.
    let qp = unsafe { Qp::of(qp.cast()) }?;
    Ok((qp, qp.batches().ok_or(Errno::INVALID)?))
}

/// The batch that the calling thread builds. Without one the call has no way to report, and does
/// nothing.
unsafe fn batch<'a>(qp: *mut abi::ibv_qp_ex) -> Option<&'a mut Batch> {
    // SAFETY: the caller's queue pair.
    unsafe { batches(qp) }.ok()?.1.open.mine()
}

/// `ibv_wr_start`: other threads wait until `ibv_wr_complete` or `ibv_wr_abort`.
pub unsafe fn start(qp: *mut abi::ibv_qp_ex) {
    // SAFETY: the caller's queue pair.
    let Ok((qp, batches)) = (unsafe { batches(qp) }) else {
        return;
    };
    if let Some(batch) = batches.open.mine() {
        // Started twice: what was begun before cannot be right.
        return batch.fail(Errno::INVALID);
    }
    // SAFETY: the batch holds the lock of the send queue.
    unsafe { batches.open.begin(Batch::new(qp.shared_engine())) };
}

/// `ibv_wr_complete`: posts all, or reports the first error and posts nothing.
pub unsafe fn complete(qp: *mut abi::ibv_qp_ex) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let (_, batches) = unsafe { batches(qp) }?;
    batches.open.end().ok_or(Errno::INVALID)?.commit()
}

/// `ibv_wr_abort`.
pub unsafe fn abort(qp: *mut abi::ibv_qp_ex) {
    // SAFETY: the caller's queue pair.
    if let Ok((_, batches)) = unsafe { batches(qp) } {
        drop(batches.open.end());
    }
}

/// Begins a request, which takes `wr_id` and `wr_flags` as they are now. Whether its data are
/// inline is for the setters to say. An operation that was not asked for when the queue pair was
/// created is EINVAL.
unsafe fn begin(raw: *mut abi::ibv_qp_ex, flag: u32, operation: Result<Operation, Errno>) {
    // SAFETY: the caller's queue pair and its public fields.
    unsafe {
        let Ok((_, batches)) = batches(raw) else {
            return;
        };
        let Some(batch) = batches.open.mine() else {
            return;
        };
        if batches.allowed & u64::from(flag) == 0 {
            return batch.fail(Errno::INVALID);
        }
        match (operation, SendFlags::from_bits((*raw).wr_flags)) {
            (Ok(operation), Some(flags)) => batch.requests.begin((*raw).wr_id, operation, flags),
            (Err(errno), _) => batch.fail(errno),
            (Ok(_), None) => batch.fail(Errno::INVALID),
        }
    }
}

/// Defines the builders that only name an operation.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*), $flag:ident = $operation:expr;)*) => {$(
        $(#[$doc])*
        pub unsafe fn $name(qp: *mut abi::ibv_qp_ex $(, $arg: $ty)*) {
            // SAFETY: the caller's queue pair.
            unsafe { begin(qp, abi::$flag, Ok($operation)) }
        }
    )*};
}

operations! {
    /// `ibv_wr_send`.
    send(), IBV_QP_EX_WITH_SEND = Operation::Send;
    /// `ibv_wr_send_imm`.
    send_imm(imm: u32), IBV_QP_EX_WITH_SEND_WITH_IMM = Operation::SendImm(imm.to_ne_bytes());
    /// `ibv_wr_send_inv`.
    send_inv(rkey: u32), IBV_QP_EX_WITH_SEND_WITH_INV = Operation::SendInvalidate(Rkey(rkey));
    /// `ibv_wr_rdma_write`.
    write(rkey: u32, va: u64), IBV_QP_EX_WITH_RDMA_WRITE = Operation::Write { va, rkey: Rkey(rkey) };
    /// `ibv_wr_rdma_write_imm`.
    write_imm(rkey: u32, va: u64, imm: u32), IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM =
        Operation::WriteImm { va, rkey: Rkey(rkey), imm: imm.to_ne_bytes() };
    /// `ibv_wr_rdma_read`.
    read(rkey: u32, va: u64), IBV_QP_EX_WITH_RDMA_READ = Operation::Read { va, rkey: Rkey(rkey) };
    /// `ibv_wr_atomic_cmp_swp`.
    compare_swap(rkey: u32, va: u64, compare: u64, swap: u64), IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP =
        Operation::CompareSwap { va, rkey: Rkey(rkey), compare, swap };
    /// `ibv_wr_atomic_fetch_add`.
    fetch_add(rkey: u32, va: u64, add: u64), IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD =
        Operation::FetchAdd { va, rkey: Rkey(rkey), add };
    /// `ibv_wr_local_inv`.
    local_inv(rkey: u32), IBV_QP_EX_WITH_LOCAL_INV = Operation::LocalInvalidate(Rkey(rkey));
}

/// `ibv_wr_atomic_write`: the eight bytes are copied now.
pub unsafe fn atomic_write(qp: *mut abi::ibv_qp_ex, rkey: u32, va: u64, data: *const c_void) {
    let rkey = Rkey(rkey);
    let operation = if data.is_null() {
        Err(Errno::INVALID)
    } else {
        Ok(Operation::AtomicWrite { va, rkey })
    };
    // SAFETY: the caller's queue pair and eight bytes.
    unsafe {
        begin(qp, abi::IBV_QP_EX_WITH_ATOMIC_WRITE, operation);
        if let Some(batch) = batch(qp)
            && !data.is_null()
        {
            let data: &[u8] = slice::from_raw_parts(data.cast(), 8);
            batch.requests.set_inline([data]);
        }
    }
}

/// `ibv_wr_bind_mw`, for windows of type 2.
pub unsafe fn bind_mw(
    qp: *mut abi::ibv_qp_ex,
    mw: *mut abi::ibv_mw,
    rkey: u32,
    info: *const abi::ibv_mw_bind_info,
) {
    // SAFETY: the caller's queue pair, window and struct.
    unsafe {
        let operation = match (mw.as_ref(), info.as_ref()) {
            (Some(mw), Some(info)) if mw.type_ == abi::IBV_MW_TYPE_2 => {
                window::operation(mw.rkey, rkey, info)
            }
            _ => Err(Errno::INVALID),
        };
        begin(qp, abi::IBV_QP_EX_WITH_BIND_MW, operation);
    }
}

/// `ibv_wr_send_tso`: frames of raw Ethernet.
pub unsafe fn send_tso(qp: *mut abi::ibv_qp_ex, _header: *mut c_void, _size: u16, _mss: u16) {
    // SAFETY: the caller's queue pair.
    if let Some(batch) = unsafe { batch(qp) } {
        batch.fail(Errno::UNSUPPORTED);
    }
}

/// `ibv_wr_flush`.
pub unsafe fn flush(
    qp: *mut abi::ibv_qp_ex,
    rkey: u32,
    va: u64,
    length: usize,
    placement: u8,
    level: u8,
) {
    // `enum ibv_placement_type` and `enum ibv_selectivity_level` have the values of the wire.
    let is_known = placement != 0 && placement & !(Feth::GLOBAL | Feth::PERSISTENT) == 0;
    let has_level = matches!(level, Feth::RANGE | Feth::REGION);
    let operation = match u32::try_from(length) {
        Ok(length) if is_known && has_level => Ok(Operation::Flush {
            va,
            rkey: Rkey(rkey),
            length,
            what: Feth {
                placement,
                selectivity: level,
            },
        }),
        Ok(_) | Err(_) => Err(Errno::INVALID),
    };
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, abi::IBV_QP_EX_WITH_FLUSH, operation) }
}

/// `ibv_wr_set_ud_addr`.
pub unsafe fn set_ud_addr(
    qp: *mut abi::ibv_qp_ex,
    ah: *mut abi::ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the caller's queue pair and handle.
    unsafe {
        let Some(batch) = batch(qp) else { return };
        match Ah::of(ah) {
            Ok(ah) => batch.requests.set_datagram(Datagram {
                path: ah.path(),
                qpn: Qpn::new(remote_qpn),
                qkey: Qkey(remote_qkey),
            }),
            Err(errno) => batch.fail(errno),
        }
    }
}

/// `ibv_wr_set_xrc_srqn`.
pub unsafe fn set_xrc_srqn(qp: *mut abi::ibv_qp_ex, srqn: u32) {
    // SAFETY: the caller's queue pair.
    if let Some(batch) = unsafe { batch(qp) } {
        batch.requests.set_srqn(srqn);
    }
}

/// `ibv_wr_set_inline_data`.
pub unsafe fn set_inline_data(qp: *mut abi::ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller's queue pair and memory.
    unsafe {
        let Some(batch) = batch(qp) else { return };
        match bytes(addr, length) {
            Ok(data) => batch.requests.set_inline([data]),
            Err(errno) => batch.fail(errno),
        }
    }
}

/// `ibv_wr_set_inline_data_list`.
pub unsafe fn set_inline_data_list(
    qp: *mut abi::ibv_qp_ex,
    count: usize,
    list: *const abi::ibv_data_buf,
) {
    // SAFETY: the caller's queue pair, list and memory.
    unsafe {
        let Some(batch) = batch(qp) else { return };
        if list.is_null() && count != 0 {
            return batch.fail(Errno::INVALID);
        }
        // Checked before the array is read: more pieces than bytes that fit.
        if count > engine::LIMITS.max_inline as usize {
            return batch.fail(Errno::NO_MEMORY);
        }
        let list: &[abi::ibv_data_buf] = if count == 0 {
            &[]
        } else {
            slice::from_raw_parts(list, count)
        };
        let mut pieces = list.iter().map(|piece| bytes(piece.addr, piece.length));
        if let Some(errno) = pieces.find_map(Result::err) {
            return batch.fail(errno);
        }
        let pieces = list.iter().map(|piece| bytes(piece.addr, piece.length));
        batch.requests.set_inline(pieces.flatten());
    }
}

/// The caller's memory, of a length that inline data can have on this device.
unsafe fn bytes<'a>(addr: *mut c_void, length: usize) -> Result<&'a [u8], Errno> {
    if length == 0 {
        return Ok(&[]);
    }
    if addr.is_null() {
        return Err(Errno::INVALID);
    }
    if length > engine::LIMITS.max_inline as usize {
        return Err(Errno::NO_MEMORY);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { slice::from_raw_parts(addr.cast(), length) })
}

/// `ibv_wr_set_sge`.
pub unsafe fn set_sge(qp: *mut abi::ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller's queue pair.
    if let Some(batch) = unsafe { batch(qp) } {
        batch.requests.set_sges(&[Sge { addr, length, lkey }]);
    }
}

/// `ibv_wr_set_sge_list`.
pub unsafe fn set_sge_list(qp: *mut abi::ibv_qp_ex, count: usize, list: *const abi::ibv_sge) {
    // SAFETY: the caller's queue pair and list.
    unsafe {
        let Some(batch) = batch(qp) else { return };
        let count = c_int::try_from(count).map_err(|_| Errno::INVALID);
        match count.and_then(|count| post::elements(list.cast_mut(), count)) {
            Ok(sges) => batch.requests.set_sges(sges),
            Err(errno) => batch.fail(errno),
        }
    }
}
