//! Queue pairs: creation, attributes, destruction. Posting is in [`post`](crate::post).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use airdma_engine::{
    self as engine, Access, AttrMask, PathMtu, Psn, Qkey, QpAttributes, QpCaps, QpInit, QpState,
    QpType, Qpn,
};

use crate::completion::Cq;
use crate::errno::Errno;
use crate::extended::{self, Xrcd};
use crate::live::{self, Affiliated};
use crate::memory::Pd;
use crate::object::{Object, zeroed};
use crate::shared_receive::Srq;
use crate::work_batch::Batches;
use crate::{abi, address, port};

/// A queue pair.
#[repr(C)]
pub struct Qp {
    /// Begins with an `ibv_qp`, which is what most of C knows.
    c: UnsafeCell<abi::ibv_qp_ex>,
    engine: Arc<engine::Qp>,
    number: u64,
    events: Arc<Affiliated>,
    /// The extended way to post, if it was asked for.
    batches: Option<Batches>,
}

// SAFETY: `c` is the first field, and the plain struct the first field of the extended one.
unsafe impl Object for Qp {
    type C = abi::ibv_qp;
}

impl Qp {
    /// The engine's queue pair.
    #[inline]
    pub fn engine(&self) -> &engine::Qp {
        &self.engine
    }

    /// The engine's queue pair, to be kept.
    pub fn shared_engine(&self) -> &Arc<engine::Qp> {
        &self.engine
    }

    /// The extended way to post, if it was asked for.
    pub fn batches(&self) -> Option<&Batches> {
        self.batches.as_ref()
    }

    /// Its events that are not acknowledged.
    pub fn events(&self) -> &Affiliated {
        &self.events
    }
}

/// `ibv_create_qp(3)`. Writes the granted sizes back.
pub unsafe fn create(
    raw_pd: *mut abi::ibv_pd,
    init: *mut abi::ibv_qp_init_attr,
) -> Result<*mut abi::ibv_qp, Errno> {
    // SAFETY: the caller's domain and struct.
    unsafe { create_with(raw_pd, init, None) }
}

/// Creates a queue pair, with these operations of the extended way to post, if any were asked for.
unsafe fn create_with(
    raw_pd: *mut abi::ibv_pd,
    init: *mut abi::ibv_qp_init_attr,
    operations: Option<u64>,
) -> Result<*mut abi::ibv_qp, Errno> {
    // SAFETY: the caller's domain and struct.
    let (pd, init) = unsafe { (Pd::of(raw_pd)?, init.as_mut().ok_or(Errno::INVALID)?) };
    let qp_type = type_of(init.qp_type)?;
    let batches = operations.map(|operations| Batches::new(qp_type, operations));
    let batches = batches.transpose()?;
    let mut caps = caps_of(&init.cap);
    if operations.is_some_and(|of| of & u64::from(abi::IBV_QP_EX_WITH_ATOMIC_WRITE) != 0) {
        // `ibv_wr_atomic_write` carries its eight bytes inline.
        caps.max_inline = caps.max_inline.max(8);
    }
    // SAFETY: the caller's queues. An initiator of extended connections has nothing to receive.
    let (send_cq, recv_cq, srq) = unsafe {
        let send_cq = Cq::of(init.send_cq)?;
        let recv_cq = if qp_type == QpType::XrcSend {
            send_cq
        } else {
            Cq::of(init.recv_cq)?
        };
        let srq = if init.srq.is_null() {
            None
        } else {
            Some(Arc::clone(Srq::of(init.srq)?.engine()))
        };
        (send_cq, recv_cq, srq)
    };
    let engine = pd.engine().create_qp(QpInit {
        qp_type,
        send_cq: Arc::clone(send_cq.engine()),
        recv_cq: Arc::clone(recv_cq.engine()),
        srq,
        caps,
        signal_all: init.sq_sig_all != 0,
    })?;
    init.cap = c_caps(&engine.caps());
    // SAFETY: integers and raw pointers; all-zero mutex and condition are initialised ones.
    let mut c: abi::ibv_qp = unsafe { zeroed() };
    c.context = pd.context();
    c.qp_context = init.qp_context;
    c.pd = raw_pd;
    c.send_cq = init.send_cq;
    c.recv_cq = init.recv_cq;
    c.srq = init.srq;
    c.qp_type = init.qp_type;
    let (raw, number) = hand_out(c, Arc::clone(&engine), batches);
    engine.set_cookie(number);
    Ok(raw)
}

/// `ibv_create_qp_ex(3)`. Targets of extended connections are created in such a domain and have
/// neither protection domain nor queues.
pub unsafe fn create_ex(
    context: *mut abi::ibv_context,
    init: *mut abi::ibv_qp_init_attr_ex,
) -> Result<*mut abi::ibv_qp, Errno> {
    // SAFETY: the caller's struct.
    let attr = unsafe { init.as_mut() }.ok_or(Errno::INVALID)?;
    let given = |mask: u32| attr.comp_mask & mask != 0;
    if attr.qp_type == abi::IBV_QPT_XRC_RECV {
        if !given(abi::IBV_QP_INIT_ATTR_XRCD) {
            return Err(Errno::INVALID);
        }
        // SAFETY: the caller's domain.
        let domain = unsafe { Xrcd::of(attr.xrcd) }?;
        let engine = domain.engine().create_target_qp()?;
        extended::enter_target(&engine);
        let (raw, number) = hand_out_target(context, attr.qp_context, Arc::clone(&engine));
        engine.set_cookie(number);
        return Ok(raw);
    }
    let known = abi::IBV_QP_INIT_ATTR_PD
        | abi::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let flags_given = given(abi::IBV_QP_INIT_ATTR_CREATE_FLAGS);
    if !given(abi::IBV_QP_INIT_ATTR_PD) {
        return Err(Errno::INVALID);
    }
    if attr.comp_mask >= ATTR_UNKNOWN {
        return Err(Errno::INVALID);
    }
    if attr.comp_mask & !known != 0 || (flags_given && attr.create_flags != 0) {
        return Err(Errno::UNSUPPORTED);
    }
    let operations = given(abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags);
    // SAFETY: the extended struct begins with the plain one (`verbs.h` casts it so itself).
    unsafe { create_with(attr.pd, init.cast(), operations) }
}

/// `ibv_open_qp(3)`: one more handle of a target queue pair. Its asynchronous events go to the
/// handle that created it.
pub unsafe fn open(
    context: *mut abi::ibv_context,
    attr: *mut abi::ibv_qp_open_attr,
) -> Result<*mut abi::ibv_qp, Errno> {
    // SAFETY: the caller's struct.
    let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVALID)?;
    let given = |mask: u32| attr.comp_mask & mask == mask;
    if attr.comp_mask >= abi::IBV_QP_OPEN_ATTR_RESERVED {
        return Err(Errno::UNSUPPORTED);
    }
    let needed =
        abi::IBV_QP_OPEN_ATTR_NUM | abi::IBV_QP_OPEN_ATTR_XRCD | abi::IBV_QP_OPEN_ATTR_TYPE;
    if !given(needed) || attr.qp_type != abi::IBV_QPT_XRC_RECV {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's domain.
    let domain = unsafe { Xrcd::of(attr.xrcd) }?;
    let engine = extended::open_target(attr.qp_num, domain.engine())?;
    let qp_context = if given(abi::IBV_QP_OPEN_ATTR_CONTEXT) {
        attr.qp_context
    } else {
        ptr::null_mut()
    };
    Ok(hand_out_target(context, qp_context, engine).0)
}

fn hand_out_target(
    context: *mut abi::ibv_context,
    qp_context: *mut c_void,
    engine: Arc<engine::Qp>,
) -> (*mut abi::ibv_qp, u64) {
    // SAFETY: as in `create`.
    let mut c: abi::ibv_qp = unsafe { zeroed() };
    c.context = context;
    c.qp_context = qp_context;
    c.qp_type = abi::IBV_QPT_XRC_RECV;
    hand_out(c, engine, None)
}

/// A queue pair for C, the struct filled in but for what the engine knows, and the number of events
/// that are its own.
fn hand_out(
    mut c: abi::ibv_qp,
    engine: Arc<engine::Qp>,
    batches: Option<Batches>,
) -> (*mut abi::ibv_qp, u64) {
    let number = live::number();
    c.handle = engine.number().get();
    c.qp_num = engine.number().get();
    c.state = engine.state() as abi::ibv_qp_state;
    let events = Arc::new(Affiliated::default());
    // SAFETY: integers, raw pointers, optional functions.
    let mut extended: abi::ibv_qp_ex = unsafe { zeroed() };
    extended.qp_base = c;
    if batches.is_some() {
        Batches::fill(&mut extended);
    }
    let raw = Box::new(Qp {
        c: UnsafeCell::new(extended),
        engine,
        number,
        events: Arc::clone(&events),
        batches,
    })
    .into_raw();
    if let Some(object) = NonNull::new(raw) {
        live::enter(number, object, &events);
    }
    (raw, number)
}

/// `ibv_qp_to_qp_ex(3)`: NULL unless the queue pair was created with `send_ops_flags`.
pub unsafe fn to_extended(raw: *mut abi::ibv_qp) -> Result<*mut abi::ibv_qp_ex, Errno> {
    // SAFETY: the caller's queue pair.
    match unsafe { Qp::of(raw) }?.batches {
        Some(_) => Ok(raw.cast()),
        None => Err(Errno::UNSUPPORTED),
    }
}

/// `ibv_destroy_qp(3)`: waits for outstanding acknowledgements.
pub unsafe fn destroy(raw: *mut abi::ibv_qp) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair, given back if the engine lets it go.
    unsafe {
        let qp = Qp::of(raw)?;
        match qp.engine.qp_type() {
            QpType::XrcReceive => extended::close_target(&qp.engine)?,
            QpType::Rc | QpType::Uc | QpType::Ud | QpType::XrcSend | QpType::RawPacket => {
                qp.engine.destroy()?;
            }
        }
        live::retire(qp.number, &qp.events);
        drop(Qp::take(raw));
    }
    Ok(())
}

/// `ibv_modify_qp(3)`.
pub unsafe fn modify(
    raw: *mut abi::ibv_qp,
    attr: *mut abi::ibv_qp_attr,
    mask: c_int,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair and struct.
    let (qp, attr) = unsafe { (Qp::of(raw)?, attr.as_ref().ok_or(Errno::INVALID)?) };
    let mask = AttrMask::from_bits(mask.cast_unsigned()).ok_or(Errno::INVALID)?;
    let mask = mask - without_meaning(qp.engine.qp_type());
    let mut known = *attr;
    if mask.contains(AttrMask::AV) {
        known.ah_attr = address::without_lid(&attr.ah_attr, qp.engine.device());
    }
    let mut attributes = attributes_of(&known, mask)?;
    if mask.contains(AttrMask::AV) && attributes.path.traffic_class == 0 {
        attributes.path.traffic_class = address::class_of_connections(qp.engine.device());
    }
    if mask.contains(AttrMask::AV) {
        qp.engine.device().wait_for_path(&attributes.path)?;
    }
    qp.engine.modify(&attributes, mask)?;
    if mask.contains(AttrMask::STATE) {
        // SAFETY: the public field follows the state, as rdma-core's library has it.
        unsafe { (*raw).state = attr.qp_state };
    }
    Ok(())
}

/// `ibv_modify_qp_rate_limit(3)`: in RTS. The typical length of packets, by which a NIC tunes its
/// pacer, changes nothing here.
pub unsafe fn limit_rate(
    raw: *mut abi::ibv_qp,
    attr: *mut abi::ibv_qp_rate_limit_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair and struct.
    let (qp, attr) = unsafe { (Qp::of(raw)?, attr.as_ref().ok_or(Errno::INVALID)?) };
    let shapes = attr.max_burst_sz != 0 || attr.typical_pkt_sz != 0;
    if attr.comp_mask != 0 || shapes && attr.rate_limit == 0 {
        return Err(Errno::INVALID);
    }
    qp.engine.limit_rate(attr.rate_limit, attr.max_burst_sz)?;
    Ok(())
}

/// Waits a moment for the answers to what was posted.
pub unsafe fn finish(raw: *mut abi::ibv_qp) {
    // SAFETY: the caller's queue pair.
    if let Ok(qp) = unsafe { Qp::of(raw) } {
        qp.engine.finish();
    }
}

/// `ibv_query_qp(3)`. Everything is answered, whatever the mask; the public field follows the state
/// where the mask asks for it, as rdma-core's library has it (UCX compares the field).
pub unsafe fn query(
    raw: *mut abi::ibv_qp,
    attr: *mut abi::ibv_qp_attr,
    mask: c_int,
    init: *mut abi::ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let qp = unsafe { Qp::of(raw) }?;
    if attr.is_null() || init.is_null() {
        return Err(Errno::INVALID);
    }
    let attributes = qp.engine.query()?;
    let cap = c_caps(&qp.engine.caps());
    // SAFETY: the caller's structs.
    unsafe {
        attr.write(c_attributes(&attributes, qp.engine.qp_type(), cap));
        init.write(abi::ibv_qp_init_attr {
            qp_context: (*raw).qp_context,
            send_cq: (*raw).send_cq,
            recv_cq: (*raw).recv_cq,
            srq: (*raw).srq,
            cap,
            qp_type: (*raw).qp_type,
            sq_sig_all: c_int::from(qp.engine.signal_all()),
        });
        if mask & abi::IBV_QP_STATE as c_int != 0 {
            (*raw).state = attributes.state as abi::ibv_qp_state;
        }
    }
    Ok(())
}

/// `ibv_query_qp_data_in_order(3)`: no, a retransmission may write earlier bytes again.
pub unsafe fn data_in_order(
    _qp: *mut abi::ibv_qp,
    _operation: abi::ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

/// The first bit of `ibv_qp_init_attr_mask` that has no meaning.
const ATTR_UNKNOWN: u32 = abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS << 1;

fn type_of(qp_type: abi::ibv_qp_type) -> Result<QpType, Errno> {
    match qp_type {
        abi::IBV_QPT_RC => Ok(QpType::Rc),
        abi::IBV_QPT_UD => Ok(QpType::Ud),
        abi::IBV_QPT_UC => Ok(QpType::Uc),
        abi::IBV_QPT_XRC_SEND => Ok(QpType::XrcSend),
        // A target has no protection domain: `create_ex` makes it.
        abi::IBV_QPT_XRC_RECV => Err(Errno::INVALID),
        abi::IBV_QPT_RAW_PACKET => Ok(QpType::RawPacket),
        abi::IBV_QPT_DRIVER => Err(Errno::UNSUPPORTED),
        _ => Err(Errno::INVALID),
    }
}

fn caps_of(cap: &abi::ibv_qp_cap) -> QpCaps {
    QpCaps {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    }
}

fn c_caps(caps: &QpCaps) -> abi::ibv_qp_cap {
    abi::ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline,
    }
}

/// The attributes that `mask` names. Programs leave garbage in the others.
fn attributes_of(attr: &abi::ibv_qp_attr, mask: AttrMask) -> Result<QpAttributes, Errno> {
    let mut out = QpAttributes::default();
    if mask.contains(AttrMask::STATE) {
        out.state = state_of(attr.qp_state)?;
    }
    if mask.contains(AttrMask::CUR_STATE) {
        out.cur_state = state_of(attr.cur_qp_state)?;
    }
    if mask.contains(AttrMask::PATH_MTU) {
        let code = u8::try_from(attr.path_mtu).map_err(|_| Errno::INVALID)?;
        out.path_mtu = PathMtu::from_enum(code).ok_or(Errno::INVALID)?;
    }
    if mask.contains(AttrMask::AV) {
        out.path = address::path_of(&attr.ah_attr)?;
    }
    if mask.contains(AttrMask::PORT) {
        port::check_port(attr.port_num)?;
    }
    if mask.contains(AttrMask::PKEY_INDEX) && attr.pkey_index != 0 {
        return Err(Errno::INVALID);
    }
    if mask.contains(AttrMask::ACCESS_FLAGS) {
        out.access = Access::from_bits(attr.qp_access_flags).ok_or(Errno::INVALID)?;
    }
    out.path_mig_state = u8::try_from(attr.path_mig_state).unwrap_or_default();
    out.qkey = Qkey(attr.qkey);
    out.rq_psn = Psn::new(attr.rq_psn);
    out.sq_psn = Psn::new(attr.sq_psn);
    out.dest_qpn = Qpn::new(attr.dest_qp_num);
    out.pkey_index = attr.pkey_index;
    out.port = attr.port_num;
    out.max_rd_atomic = attr.max_rd_atomic;
    out.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    out.min_rnr_timer = attr.min_rnr_timer;
    out.timeout = attr.timeout;
    // Larger values are refused, and one of them means something else to the engine.
    out.retry_count = attr.retry_cnt.min(RETRIES_MAX + 1);
    out.rnr_retry = attr.rnr_retry;
    out.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
    out.rate_limit_kbps = attr.rate_limit;
    Ok(out)
}

/// Largest retry count (IBTA 9.7.5.2.8).
const RETRIES_MAX: u8 = 7;

/// Attributes that the two halves of an extended connection have no use for: programs give both
/// halves the same, and the kernel's uverbs leaves these out.
fn without_meaning(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::XrcSend => AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
        QpType::XrcReceive => {
            AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY
        }
        QpType::Rc | QpType::Uc | QpType::Ud | QpType::RawPacket => AttrMask::empty(),
    }
}

fn state_of(state: abi::ibv_qp_state) -> Result<QpState, Errno> {
    QpState::from_number(state).ok_or(Errno::INVALID)
}

fn c_attributes(
    attributes: &QpAttributes,
    qp_type: QpType,
    cap: abi::ibv_qp_cap,
) -> abi::ibv_qp_attr {
    // SAFETY: plain integers.
    let mut attr: abi::ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = attributes.state as abi::ibv_qp_state;
    attr.cur_qp_state = attr.qp_state;
    attr.path_mtu = attributes.path_mtu as abi::ibv_mtu;
    attr.path_mig_state = abi::ibv_mig_state::from(attributes.path_mig_state);
    attr.qkey = attributes.qkey.0;
    attr.rq_psn = attributes.rq_psn.get();
    attr.sq_psn = attributes.sq_psn.get();
    attr.dest_qp_num = attributes.dest_qpn.get();
    attr.qp_access_flags = attributes.access.bits();
    attr.cap = cap;
    match qp_type {
        QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcReceive => {
            attr.ah_attr = address::attr_of(&attributes.path);
        }
        QpType::Ud | QpType::RawPacket => {}
    }
    attr.pkey_index = attributes.pkey_index;
    attr.en_sqd_async_notify = u8::from(attributes.en_sqd_async_notify);
    attr.sq_draining = u8::from(attributes.sq_draining);
    attr.max_rd_atomic = attributes.max_rd_atomic;
    attr.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
    attr.min_rnr_timer = attributes.min_rnr_timer;
    attr.port_num = attributes.port;
    attr.timeout = attributes.timeout;
    attr.retry_cnt = attributes.retry_count;
    attr.rnr_retry = attributes.rnr_retry;
    attr.rate_limit = attributes.rate_limit_kbps;
    attr
}

/// The extended creation struct begins with the plain one.
const _: () = {
    use std::mem::offset_of;
    type Plain = abi::ibv_qp_init_attr;
    type Extended = abi::ibv_qp_init_attr_ex;
    assert!(offset_of!(Plain, qp_context) == offset_of!(Extended, qp_context));
    assert!(offset_of!(Plain, cap) == offset_of!(Extended, cap));
    assert!(offset_of!(Plain, sq_sig_all) == offset_of!(Extended, sq_sig_all));
    assert!(
        size_of::<*mut c_void>() == 8,
        "the ABI here is that of 64-bit systems"
    );
};

#[cfg(test)]
mod tests;
