//! The queue pairs of identifiers, and their way through the states.

use std::ffi::c_int;
use std::ptr;

use airdma_engine::{AttrMask, Gid, Path};

use super::abi::*;
use super::connect::HOP_LIMIT;
use super::devices;
use super::id::{Id, State};
use crate::abi::*;
use crate::errno::Errno;
use crate::object::{Object, zeroed};
use crate::{address, completion, queue_pair, shared_receive};

/// `rdma_create_qp(3)`.
pub unsafe fn create(
    raw: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier, domain and struct.
    unsafe {
        let init = init.as_mut().ok_or(Errno::INVALID)?;
        let mut extended: ibv_qp_init_attr_ex = zeroed();
        extended.qp_context = init.qp_context;
        extended.send_cq = init.send_cq;
        extended.recv_cq = init.recv_cq;
        extended.srq = init.srq;
        extended.cap = init.cap;
        extended.qp_type = init.qp_type;
        extended.sq_sig_all = init.sq_sig_all;
        extended.comp_mask = IBV_QP_INIT_ATTR_PD;
        extended.pd = pd;
        let result = create_ex(raw, &raw mut extended)?;
        init.cap = extended.cap;
        // Programs look there for what they did not name.
        init.send_cq = extended.send_cq;
        init.recv_cq = extended.recv_cq;
        Ok(result)
    }
}

/// `rdma_create_qp_ex(3)`.
pub unsafe fn create_ex(
    raw: *mut rdma_cm_id,
    init: *mut ibv_qp_init_attr_ex,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and struct.
    unsafe {
        let id = Id::ours(raw)?;
        let init = init.as_mut().ok_or(Errno::INVALID)?;
        let c = &mut *id.c();
        if c.verbs.is_null() || !c.qp.is_null() || c.qp_type != init.qp_type {
            return Err(Errno::INVALID);
        }
        let is_target = init.qp_type == IBV_QPT_XRC_RECV;
        if !is_target && (init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || init.pd.is_null()) {
            init.comp_mask |= IBV_QP_INIT_ATTR_PD;
            init.pd = c.pd;
        }
        if is_target {
            // A target has no protection domain.
            init.comp_mask &= !IBV_QP_INIT_ATTR_PD;
            if init.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
                init.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
                init.xrcd = devices::default_extended_domain(c.verbs)?;
            }
        }
        if !is_target && (*init.pd).context != c.verbs {
            return Err(Errno::INVALID);
        }
        if init.srq.is_null() {
            init.srq = c.srq;
        }
        if !is_target {
            create_queues(c, init)?;
        }
        let qp = match queue_pair::create_ex(c.verbs, init).and_then(|qp| {
            let begun = begin(id, qp);
            if let Err(errno) = begun {
                let _ = queue_pair::destroy(qp);
                return Err(errno);
            }
            Ok(qp)
        }) {
            Ok(qp) => qp,
            Err(errno) => {
                destroy_queues(c);
                return Err(errno);
            }
        };
        c.qp = qp;
        if !is_target {
            c.pd = init.pd;
        }
    }
    Ok(0)
}

/// The completion queues that the program did not name, each with a channel.
unsafe fn create_queues(c: &mut rdma_cm_id, init: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    let has_receives = init.qp_type != IBV_QPT_XRC_SEND;
    // SAFETY: the identifier's open context.
    unsafe {
        let (verbs, context) = (c.verbs, ptr::from_mut(c).cast());
        let make = |entries: u32| -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
            let entries = c_int::try_from(entries.max(1)).map_err(|_| Errno::INVALID)?;
            let channel = completion::create_channel(verbs)?;
            match completion::create_cq(verbs, entries, context, channel, 0) {
                Ok(cq) => Ok((channel, cq)),
                Err(errno) => {
                    let _ = completion::destroy_channel(channel);
                    Err(errno)
                }
            }
        };
        let made = (|| {
            if init.recv_cq.is_null() && has_receives {
                (c.recv_cq_channel, c.recv_cq) = make(init.cap.max_recv_wr)?;
                init.recv_cq = c.recv_cq;
            }
            if init.send_cq.is_null() {
                (c.send_cq_channel, c.send_cq) = make(init.cap.max_send_wr)?;
                init.send_cq = c.send_cq;
            }
            Ok(())
        })();
        if made.is_err() {
            destroy_queues(c);
        }
        made
    }
}

unsafe fn destroy_queues(c: &mut rdma_cm_id) {
    // SAFETY: what `create_queues` made, or rsockets, which have one queue for both; each destroyed
    // once. That of a shared receive queue goes with it.
    unsafe {
        let is_one = c.send_cq == c.recv_cq;
        if !c.send_cq.is_null() {
            if !is_one {
                let _ = completion::destroy_cq(c.send_cq);
                destroy_channel(c.send_cq_channel);
            }
            c.send_cq = ptr::null_mut();
            c.send_cq_channel = ptr::null_mut();
        }
        if !c.recv_cq.is_null() && c.srq.is_null() {
            let _ = completion::destroy_cq(c.recv_cq);
            destroy_channel(c.recv_cq_channel);
            c.recv_cq = ptr::null_mut();
            c.recv_cq_channel = ptr::null_mut();
        }
    }
}

unsafe fn destroy_channel(channel: *mut ibv_comp_channel) {
    if !channel.is_null() {
        // SAFETY: the channel of a queue that is gone.
        let _ = unsafe { completion::destroy_channel(channel) };
    }
}

/// `rdma_destroy_qp(3)`.
pub unsafe fn destroy(raw: *mut rdma_cm_id) {
    // SAFETY: the caller's identifier and its queue pair.
    unsafe {
        let Ok(id) = Id::of(raw) else { return };
        let c = &mut *id.c();
        if !c.qp.is_null() {
            let _ = queue_pair::destroy(c.qp);
            c.qp = ptr::null_mut();
        }
        destroy_queues(c);
    }
}

/// `rdma_create_srq(3)`.
pub unsafe fn create_srq(
    raw: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier, domain and struct.
    unsafe {
        let init = init.as_mut().ok_or(Errno::INVALID)?;
        let mut extended: ibv_srq_init_attr_ex = zeroed();
        extended.srq_context = init.srq_context;
        extended.attr = init.attr;
        extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        let c = Id::ours(raw)?.c();
        extended.srq_type = if (*c).qp_type == IBV_QPT_XRC_RECV {
            IBV_SRQT_XRC
        } else {
            IBV_SRQT_BASIC
        };
        extended.pd = pd;
        let result = create_srq_ex(raw, &raw mut extended)?;
        init.attr = extended.attr;
        Ok(result)
    }
}

/// `rdma_create_srq_ex(3)`.
pub unsafe fn create_srq_ex(
    raw: *mut rdma_cm_id,
    init: *mut ibv_srq_init_attr_ex,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and struct.
    unsafe {
        let id = Id::ours(raw)?;
        let init = init.as_mut().ok_or(Errno::INVALID)?;
        let c = &mut *id.c();
        if c.verbs.is_null() || !c.srq.is_null() {
            return Err(Errno::INVALID);
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || init.pd.is_null() {
            init.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            init.pd = c.pd;
        }
        let is_extended =
            init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && init.srq_type == IBV_SRQT_XRC;
        if is_extended && init.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 {
            init.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
            init.xrcd = devices::default_extended_domain(c.verbs)?;
        }
        if is_extended && init.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 {
            let mut with: ibv_qp_init_attr_ex = zeroed();
            with.qp_type = IBV_QPT_XRC_RECV;
            with.cap.max_recv_wr = init.attr.max_wr;
            // Only receives: the send queue counts as named.
            with.send_cq = ptr::dangling_mut();
            create_queues(c, &mut with)?;
            init.cq = with.recv_cq;
            init.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
        }
        match shared_receive::create_ex(c.verbs, init) {
            Ok(srq) => {
                c.srq = srq;
            }
            Err(errno) => {
                destroy_queues(c);
                return Err(errno);
            }
        }
    }
    Ok(0)
}

/// `rdma_destroy_srq(3)`.
pub unsafe fn destroy_srq(raw: *mut rdma_cm_id) {
    // SAFETY: the caller's identifier and its queue.
    unsafe {
        let Ok(id) = Id::of(raw) else { return };
        let c = &mut *id.c();
        if !c.srq.is_null() {
            let _ = shared_receive::destroy(c.srq);
            c.srq = ptr::null_mut();
        }
        destroy_queues(c);
    }
}

/// A new queue pair goes to INIT, one of datagrams to RTS.
unsafe fn begin(id: &Id, qp: *mut ibv_qp) -> Result<(), Errno> {
    let state = id.state();
    // SAFETY: a live queue pair.
    unsafe {
        if !id.is_datagram() {
            return step(qp, id, &state, IBV_QPS_INIT);
        }
        step(qp, id, &state, IBV_QPS_INIT)?;
        step(qp, id, &state, IBV_QPS_RTR)?;
        step(qp, id, &state, IBV_QPS_RTS)
    }
}

/// The identifier's queue pair, if it has one, goes to RTS, with what the peer told.
pub unsafe fn ready(id: &Id, state: &State) -> Result<(), Errno> {
    // SAFETY: the program's queue pair.
    unsafe {
        let qp = (*id.c()).qp;
        if qp.is_null() {
            return Ok(());
        }
        // Now it is known what the peer may do.
        step(qp, id, state, IBV_QPS_INIT)?;
        step(qp, id, state, IBV_QPS_RTR)?;
        step(qp, id, state, IBV_QPS_RTS)
    }
}

/// Lets the requests that the program has posted to the identifier's queue pair leave, and waits
/// for their answers if the peer is there.
pub unsafe fn finish(id: &Id) {
    // SAFETY: the program's queue pair.
    unsafe {
        let qp = (*id.c()).qp;
        if !qp.is_null() && !id.is_datagram() {
            queue_pair::finish(qp);
        }
    }
}

/// The identifier's queue pair, if it has one, goes to ERROR.
pub unsafe fn fail(id: &Id) {
    // SAFETY: the program's queue pair.
    unsafe {
        let qp = (*id.c()).qp;
        if !qp.is_null() && !id.is_datagram() {
            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = IBV_QPS_ERR;
            // It may be in RESET, which has nothing to flush.
            let _ = queue_pair::modify(qp, &raw mut attr, STATE);
        }
    }
}

unsafe fn step(qp: *mut ibv_qp, id: &Id, state: &State, to: ibv_qp_state) -> Result<(), Errno> {
    // SAFETY: a live queue pair.
    unsafe {
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = to;
        let mask = fill(id, state, &mut attr)?;
        queue_pair::modify(qp, &raw mut attr, mask)
    }
}

/// `rdma_init_qp_attr(3)`: what `attr->qp_state` wants, and which of it.
pub unsafe fn init_attr(
    raw: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and structs.
    unsafe {
        let id = Id::ours(raw)?;
        if attr.is_null() || mask.is_null() {
            return Err(Errno::INVALID);
        }
        let state = id.state();
        let mut filled: ibv_qp_attr = zeroed();
        filled.qp_state = (*attr).qp_state;
        mask.write(fill(id, &state, &mut filled)?);
        attr.write(filled);
    }
    Ok(0)
}

const STATE: c_int = AttrMask::STATE.bits().cast_signed();

/// Fills in the attributes that a state needs for a queue pair of this identifier. Before the peer
/// is known, INIT grants it nothing.
fn fill(id: &Id, state: &State, attr: &mut ibv_qp_attr) -> Result<c_int, Errno> {
    let place = state.place.as_ref().ok_or(Errno::INVALID)?;
    let mut mask = AttrMask::STATE;
    let is_datagram = id.is_datagram();
    match attr.qp_state {
        IBV_QPS_INIT => {
            attr.port_num = 1;
            mask = mask | AttrMask::PKEY_INDEX | AttrMask::PORT;
            if is_datagram {
                attr.qkey = RDMA_UDP_QKEY;
                mask |= AttrMask::QKEY;
            } else {
                if let Some(peer) = &state.peer {
                    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
                    if peer.responder_resources > 0 {
                        attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
                    }
                }
                mask |= AttrMask::ACCESS_FLAGS;
            }
        }
        IBV_QPS_RTR if is_datagram => {}
        IBV_QPS_RTR => {
            let peer = state.peer.as_ref().ok_or(Errno::INVALID)?;
            let destination = state.destination.ok_or(Errno::INVALID)?;
            attr.ah_attr = address::attr_of(&Path {
                gid: Gid::from(destination.ip()),
                sgid_index: place.sgid_index,
                traffic_class: state.options.tos,
                hop_limit: HOP_LIMIT,
                flow_label: peer.flow_label,
            });
            attr.path_mtu = peer.path_mtu as ibv_mtu;
            attr.dest_qp_num = peer.qpn.get();
            attr.rq_psn = state.psn.get();
            attr.max_dest_rd_atomic = peer.responder_resources;
            // The kernel's value: 655 ms, the longest.
            attr.min_rnr_timer = 0;
            mask = mask
                | AttrMask::AV
                | AttrMask::PATH_MTU
                | AttrMask::DEST_QPN
                | AttrMask::RQ_PSN
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::MIN_RNR_TIMER;
        }
        IBV_QPS_RTS if is_datagram => {
            attr.sq_psn = state.psn.get();
            mask |= AttrMask::SQ_PSN;
        }
        IBV_QPS_RTS => {
            let peer = state.peer.as_ref().ok_or(Errno::INVALID)?;
            attr.sq_psn = peer.psn.get();
            attr.timeout = state.options.ack_timeout.unwrap_or(peer.ack_timeout);
            attr.retry_cnt = peer.retry_count;
            attr.rnr_retry = peer.rnr_retry_count;
            attr.max_rd_atomic = peer.initiator_depth;
            mask = mask
                | AttrMask::SQ_PSN
                | AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::MAX_QP_RD_ATOMIC;
        }
        _ => return Err(Errno::INVALID),
    }
    Ok(mask.bits().cast_signed())
}
