//! Multicast groups. On Ethernet there is no subnet manager to ask: the GID of a group is its
//! address, and the queue pair joins when it is attached (IGMP and MLD).

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;

use airdma_engine::{Gid, Path};
use libc::sockaddr;

use super::abi::*;
use super::address;
use super::channel::Event;
use super::connect::HOP_LIMIT;
use super::endpoint::complete;
use super::id::{Id, Phase};
use crate::abi::ibv_gid;
use crate::address as handles;
use crate::errno::Errno;
use crate::multicast;

/// A group that an identifier has joined.
#[derive(Clone, Copy)]
pub struct Membership {
    number: u32,
    group: SocketAddr,
    context: *mut c_void,
    /// Send only: the queue pair is not attached.
    only_sends: bool,
    attached: bool,
}

/// Own events from here on say that a group was joined: the rest is the number of the membership.
const JOINED: u32 = 0x100;

/// Queue pair number of every group.
const GROUP_QPN: u32 = 0x00ff_ffff;

/// The membership that an own event is about.
pub fn group_of(number: u32) -> Option<u32> {
    number.checked_sub(JOINED)
}

/// `rdma_join_multicast(3)`.
pub unsafe fn join(
    raw: *mut rdma_cm_id,
    group: *mut sockaddr,
    context: *mut c_void,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and address.
    unsafe { join_as(raw, group, context, false) }
}

/// `rdma_join_multicast_ex(3)`.
pub unsafe fn join_ex(
    raw: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and struct.
    unsafe {
        let attr = attr.as_ref().ok_or(Errno::INVALID)?;
        let known = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask & !known != 0 || attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS == 0 {
            return Err(Errno::INVALID);
        }
        let flags = if attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS != 0 {
            attr.join_flags
        } else {
            RDMA_MC_JOIN_FLAG_FULLMEMBER
        };
        match flags {
            RDMA_MC_JOIN_FLAG_FULLMEMBER => join_as(raw, attr.addr, context, false),
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => join_as(raw, attr.addr, context, true),
            _ => Err(Errno::INVALID),
        }
    }
}

unsafe fn join_as(
    raw: *mut rdma_cm_id,
    group: *mut sockaddr,
    context: *mut c_void,
    only_sends: bool,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and address.
    let (id, group) = unsafe { (Id::ours(raw)?, address::read(group)?.ok_or(Errno::INVALID)?) };
    let mut state = id.state();
    let is_bound = !matches!(state.phase, Phase::Idle | Phase::Listening);
    let may_join = is_bound && state.place.is_some() && id.is_datagram();
    if !may_join || !group.ip().is_multicast() {
        return Err(Errno::INVALID);
    }
    // Each once: the event of a membership that was left may still be on the way.
    let number = state.joins;
    state.joins = number.checked_add(1).ok_or(Errno::NO_MEMORY)?;
    let own_event = JOINED.checked_add(number).ok_or(Errno::NO_MEMORY)?;
    state.groups.push(Membership {
        number,
        group,
        context,
        only_sends,
        attached: false,
    });
    state.channel.post(id.cookie(), own_event);
    drop(state);
    // SAFETY: the caller's identifier.
    unsafe { complete(raw) }
}

/// The event: where to send, and the queue pair is attached.
pub unsafe fn joined(id: &Id, number: u32) -> Option<*mut rdma_cm_event> {
    let mut state = id.state();
    let place = state.place.clone()?;
    let traffic_class = state.options.tos;
    // Left meanwhile?
    let membership = state.groups.iter_mut().find(|one| one.number == number)?;
    let gid = Gid::from(membership.group.ip());
    // SAFETY: the program's queue pair.
    let attached = unsafe {
        let qp = (*id.c()).qp;
        if qp.is_null() || membership.only_sends {
            Ok(())
        } else {
            let attached = multicast::attach(qp, &ibv_gid { raw: gid.0 }, 0);
            membership.attached = attached.is_ok();
            attached
        }
    };
    let (event, status) = match attached {
        Ok(()) => (RDMA_CM_EVENT_MULTICAST_JOIN, 0),
        Err(errno) => (RDMA_CM_EVENT_MULTICAST_ERROR, -errno.0),
    };
    let mut event = Event::plain(id.c(), event, status);
    event.param.ud = rdma_ud_param {
        // The man page: the context of the join.
        private_data: membership.context,
        private_data_len: 0,
        ah_attr: handles::attr_of(&Path {
            gid,
            sgid_index: place.sgid_index,
            traffic_class,
            hop_limit: HOP_LIMIT,
            flow_label: 0,
        }),
        qp_num: GROUP_QPN,
        qkey: RDMA_UDP_QKEY,
    };
    Some(Event::hand_out(event, Vec::new()))
}

/// `rdma_leave_multicast(3)`.
pub unsafe fn leave(raw: *mut rdma_cm_id, group: *mut sockaddr) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and address.
    let (id, group) = unsafe { (Id::ours(raw)?, address::read(group)?.ok_or(Errno::INVALID)?) };
    let mut state = id.state();
    let is_this = |one: &Membership| one.group.ip() == group.ip();
    let index = state.groups.iter().position(is_this);
    let index = index.ok_or(Errno(libc::EADDRNOTAVAIL))?;
    let membership = state.groups.remove(index);
    drop(state);
    // SAFETY: the program's queue pair.
    unsafe {
        let qp = (*id.c()).qp;
        if membership.attached && !qp.is_null() {
            let gid = ibv_gid {
                raw: Gid::from(group.ip()).0,
            };
            multicast::detach(qp, &raw const gid, 0)?;
        }
    }
    Ok(0)
}
