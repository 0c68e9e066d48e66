//! Posting work requests: lists of C structs into the engine's rings, without copying the lists.

use std::mem::offset_of;
use std::slice;

use airdma_engine::{
    self as engine, Datagram, Operation, Qkey, QpType, Qpn, RecvWr, Rkey, SendFlags, SendWr, Sge,
};

use crate::abi;
use crate::address::Ah;
use crate::errno::Errno;
use crate::object::Object;
use crate::queue_pair::Qp;
use crate::window;

/// `ibv_post_send(3)`: posts the list up to the first request that is refused, which `bad` then
/// names.
#[inline]
pub unsafe fn send(
    qp: *mut abi::ibv_qp,
    list: *mut abi::ibv_send_wr,
    bad: *mut *mut abi::ibv_send_wr,
) -> Result<(), Errno> {
    // SAFETY: the caller's.
    unsafe { send_with::<false>(qp, list, bad) }
}

/// `airdma_rd_send`: as [`send`], for datagrams that are repeated until their target has them.
pub unsafe fn send_reliable(
    qp: *mut abi::ibv_qp,
    list: *mut abi::ibv_send_wr,
    bad: *mut *mut abi::ibv_send_wr,
) -> Result<(), Errno> {
    // SAFETY: the caller's.
    unsafe { send_with::<true>(qp, list, bad) }
}

#[inline(always)] // into both
unsafe fn send_with<const RELIABLE: bool>(
    qp: *mut abi::ibv_qp,
    list: *mut abi::ibv_send_wr,
    bad: *mut *mut abi::ibv_send_wr,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let qp = unsafe { Qp::of(qp) }?;
    let qp_type = qp.engine().qp_type();
    let mut post = qp.engine().begin_post_send();
    let mut next = list;
    // SAFETY: the caller's list ends in NULL.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: the members that the operation names are the ones the caller filled.
        let pushed = unsafe { send_request::<RELIABLE>(wr, qp_type) }
            .and_then(|request| post.push(&request).map_err(Errno::from));
        if let Err(errno) = pushed {
            // SAFETY: the caller's pointer.
            unsafe { report(bad, next) };
            return Err(errno);
        }
        next = wr.next;
    }
    Ok(())
}

/// `ibv_post_recv(3)`: as [`send`].
#[inline]
pub unsafe fn receive(
    qp: *mut abi::ibv_qp,
    list: *mut abi::ibv_recv_wr,
    bad: *mut *mut abi::ibv_recv_wr,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let qp = unsafe { Qp::of(qp) }?;
    let mut post = qp.engine().begin_post_recv();
    // SAFETY: the caller's list.
    unsafe { receives(list, bad, |wr| Ok(post.push(wr)?)) }
}

/// Posts a list of receives up to the first that `push` refuses, which `bad` then names.
#[inline]
pub unsafe fn receives(
    list: *mut abi::ibv_recv_wr,
    bad: *mut *mut abi::ibv_recv_wr,
    mut push: impl FnMut(&RecvWr<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut next = list;
    // SAFETY: the caller's list ends in NULL.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: the caller's elements.
        let pushed = unsafe { elements(wr.sg_list, wr.num_sge) }.and_then(|sges| {
            let wr_id = wr.wr_id;
            push(&RecvWr { wr_id, sges })
        });
        if let Err(errno) = pushed {
            // SAFETY: the caller's pointer.
            unsafe { report(bad, next) };
            return Err(errno);
        }
        next = wr.next;
    }
    Ok(())
}

unsafe fn report<T>(bad: *mut *mut T, wr: *mut T) {
    // SAFETY: the caller passes NULL or a pointer to write to.
    if let Some(bad) = unsafe { bad.as_mut() } {
        *bad = wr;
    }
}

#[inline]
unsafe fn send_request<const RELIABLE: bool>(
    wr: &abi::ibv_send_wr,
    qp_type: QpType,
) -> Result<SendWr<'_>, Errno> {
    let mut flags = SendFlags::from_bits(wr.send_flags)
        .filter(|flags| !flags.contains(SendFlags::RELIABLE))
        .ok_or(Errno::INVALID)?;
    if RELIABLE {
        flags |= SendFlags::RELIABLE;
    }
    // SAFETY: the caller filled the members that the service and the operation name.
    let (datagram, operation, sges) = unsafe {
        let datagram = match qp_type {
            QpType::Ud => Some(datagram(wr)?),
            QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcReceive | QpType::RawPacket => {
                None
            }
        };
        (datagram, operation(wr)?, elements(wr.sg_list, wr.num_sge)?)
    };
    let srqn = if qp_type == QpType::XrcSend {
        // SAFETY: the member for extended connections.
        unsafe { wr.qp_type.xrc.remote_srqn }
    } else {
        0
    };
    Ok(SendWr {
        wr_id: wr.wr_id,
        operation,
        sges,
        flags,
        datagram,
        srqn,
    })
}

/// The destination of a datagram.
unsafe fn datagram(wr: &abi::ibv_send_wr) -> Result<Datagram, Errno> {
    // SAFETY: the member for datagrams, and a handle of the caller.
    unsafe {
        let ud = &wr.wr.ud;
        Ok(Datagram {
            path: Ah::of(ud.ah)?.path(),
            qpn: Qpn::new(ud.remote_qpn),
            qkey: Qkey(ud.remote_qkey),
        })
    }
}

#[inline]
unsafe fn operation(wr: &abi::ibv_send_wr) -> Result<Operation, Errno> {
    // SAFETY: each arm reads the members that `verbs.h` assigns to the operation.
    unsafe {
        let imm = wr.__bindgen_anon_1.imm_data.to_ne_bytes();
        let (va, rkey) = (wr.wr.rdma.remote_addr, Rkey(wr.wr.rdma.rkey));
        Ok(match wr.opcode {
            abi::IBV_WR_SEND => Operation::Send,
            abi::IBV_WR_SEND_WITH_IMM => Operation::SendImm(imm),
            abi::IBV_WR_SEND_WITH_INV => {
                Operation::SendInvalidate(Rkey(wr.__bindgen_anon_1.invalidate_rkey))
            }
            abi::IBV_WR_RDMA_WRITE => Operation::Write { va, rkey },
            abi::IBV_WR_RDMA_WRITE_WITH_IMM => Operation::WriteImm { va, rkey, imm },
            abi::IBV_WR_RDMA_READ => Operation::Read { va, rkey },
            abi::IBV_WR_ATOMIC_CMP_AND_SWP => Operation::CompareSwap {
                va: wr.wr.atomic.remote_addr,
                rkey: Rkey(wr.wr.atomic.rkey),
                compare: wr.wr.atomic.compare_add,
                swap: wr.wr.atomic.swap,
            },
            abi::IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::FetchAdd {
                va: wr.wr.atomic.remote_addr,
                rkey: Rkey(wr.wr.atomic.rkey),
                add: wr.wr.atomic.compare_add,
            },
            abi::IBV_WR_ATOMIC_WRITE => Operation::AtomicWrite { va, rkey },
            abi::IBV_WR_LOCAL_INV => {
                Operation::LocalInvalidate(Rkey(wr.__bindgen_anon_1.invalidate_rkey))
            }
            abi::IBV_WR_BIND_MW => {
                let bind = &wr.__bindgen_anon_2.bind_mw;
                let mw = bind.mw.as_ref().ok_or(Errno::INVALID)?;
                if mw.type_ != abi::IBV_MW_TYPE_2 {
                    return Err(Errno::INVALID);
                }
                window::operation(mw.rkey, bind.rkey, &bind.bind_info)?
            }
            abi::IBV_WR_TSO => return Err(Errno::UNSUPPORTED),
            _ => return Err(Errno::INVALID),
        })
    }
}

/// A scatter/gather list as the engine takes it: the C array itself. More elements than any queue
/// takes are refused before one of them is looked at: such a count is a mistake, and the array
/// hardly as long.
#[inline]
pub unsafe fn elements<'a>(list: *mut abi::ibv_sge, count: i32) -> Result<&'a [Sge], Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVALID)?;
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() || count > engine::LIMITS.max_sge as usize {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's array has `count` elements, of the same layout (asserted below).
    Ok(unsafe { slice::from_raw_parts(list.cast(), count) })
}

const _: () = {
    assert!(size_of::<Sge>() == size_of::<abi::ibv_sge>());
    assert!(align_of::<Sge>() == align_of::<abi::ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(abi::ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(abi::ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(abi::ibv_sge, lkey));
    assert!(SendFlags::FENCE.bits() == abi::IBV_SEND_FENCE);
    assert!(SendFlags::SIGNALLED.bits() == abi::IBV_SEND_SIGNALED);
    assert!(SendFlags::SOLICITED.bits() == abi::IBV_SEND_SOLICITED);
    assert!(SendFlags::INLINE.bits() == abi::IBV_SEND_INLINE);
};

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::object::zeroed;
    use std::ptr;

    fn request(opcode: abi::ibv_wr_opcode) -> abi::ibv_send_wr {
        // SAFETY: integers and raw pointers.
        let mut wr: abi::ibv_send_wr = unsafe { zeroed() };
        wr.opcode = opcode;
        wr
    }

    #[test]
    fn atomics_take_their_own_members() {
        let mut wr = request(abi::IBV_WR_ATOMIC_CMP_AND_SWP);
        wr.wr.atomic.remote_addr = 0x1000;
        wr.wr.atomic.rkey = 5;
        wr.wr.atomic.compare_add = 6;
        wr.wr.atomic.swap = 7;
        // SAFETY: the members of the operation are filled.
        let operation = unsafe { operation(&wr) };
        let expected = Operation::CompareSwap {
            va: 0x1000,
            rkey: Rkey(5),
            compare: 6,
            swap: 7,
        };
        assert_eq!(operation, Ok(expected));
    }

    #[test]
    fn immediate_data_keeps_its_bytes() {
        let mut wr = request(abi::IBV_WR_SEND_WITH_IMM);
        wr.__bindgen_anon_1.imm_data = 0x0102_0304_u32.to_be();
        // SAFETY: the members of the operation are filled.
        let operation = unsafe { operation(&wr) };
        assert_eq!(operation, Ok(Operation::SendImm([1, 2, 3, 4])));
    }

    #[test]
    fn later_operations_are_unsupported_and_others_invalid() {
        // SAFETY: nothing but the operation is looked at.
        unsafe {
            assert_eq!(
                operation(&request(abi::IBV_WR_TSO)),
                Err(Errno::UNSUPPORTED)
            );
            assert_eq!(operation(&request(77)), Err(Errno::INVALID));
        }
    }

    #[test]
    fn a_datagram_without_address_handle_is_refused() {
        let wr = request(abi::IBV_WR_SEND);
        // SAFETY: the handle is NULL, and nothing else is followed.
        let refused = unsafe { send_request::<false>(&wr, QpType::Ud) };
        assert_eq!(refused.err(), Some(Errno::INVALID));
    }

    #[test]
    fn a_list_that_is_not_there_is_refused_unless_it_is_empty() {
        // SAFETY: NULL is not followed.
        unsafe {
            assert_eq!(elements(ptr::null_mut(), 0), Ok(&[][..]));
            assert_eq!(elements(ptr::null_mut(), 1), Err(Errno::INVALID));
            assert_eq!(elements(ptr::null_mut(), -1), Err(Errno::INVALID));
        }
    }

    #[test]
    fn a_list_longer_than_any_queue_takes_is_refused_unseen() {
        let mut list = [Sge::default(); 32];
        // SAFETY: 32 elements are there, and more than that are not looked at.
        unsafe {
            let list = list.as_mut_ptr().cast();
            assert_eq!(elements(list, 32).map(<[Sge]>::len), Ok(32));
            assert_eq!(elements(list, 33), Err(Errno::INVALID));
            assert_eq!(elements(list, i32::MAX), Err(Errno::INVALID));
        }
    }

    #[test]
    fn flags_that_do_not_exist_are_refused() {
        let mut wr = request(abi::IBV_WR_SEND);
        wr.send_flags = 1 << 9;
        // SAFETY: refused before anything is followed.
        let refused = unsafe { send_request::<false>(&wr, QpType::Rc) };
        assert_eq!(refused.err(), Some(Errno::INVALID));
    }
}
