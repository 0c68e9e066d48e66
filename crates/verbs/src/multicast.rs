//! Multicast groups. RoCE has no LIDs: only the GID counts.

use airdma_engine::Gid;

use crate::abi;
use crate::errno::Errno;
use crate::object::Object;
use crate::queue_pair::Qp;

/// `ibv_attach_mcast(3)`.
pub unsafe fn attach(
    qp: *mut abi::ibv_qp,
    gid: *const abi::ibv_gid,
    _lid: u16,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair and union.
    let (qp, gid) = unsafe { (Qp::of(qp)?, gid_of(gid)?) };
    Ok(qp.engine().attach_multicast(gid)?)
}

/// `ibv_detach_mcast(3)`.
pub unsafe fn detach(
    qp: *mut abi::ibv_qp,
    gid: *const abi::ibv_gid,
    _lid: u16,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair and union.
    let (qp, gid) = unsafe { (Qp::of(qp)?, gid_of(gid)?) };
    Ok(qp.engine().detach_multicast(gid)?)
}

/// # Safety
/// `gid` is null or points to a GID.
unsafe fn gid_of(gid: *const abi::ibv_gid) -> Result<Gid, Errno> {
    // SAFETY: the caller's promise; every bit pattern is a GID, which may lie anywhere in a packed
    // struct.
    (!gid.is_null())
        .then(|| Gid(unsafe { gid.cast::<[u8; 16]>().read_unaligned() }))
        .ok_or(Errno::INVALID)
}
