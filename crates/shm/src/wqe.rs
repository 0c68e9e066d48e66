//! Work requests as they lie in a send or receive queue's ring.
//!
//! ```text
//! slot of a send queue                       slot of a receive queue
//! +--------------------------+ 0             +--------------------------+ 0
//! | SendWqe (96 bytes)       |               | RecvWqe (16 bytes)       |
//! +--------------------------+ 96            +--------------------------+ 16
//! | Sge 0 (16) | inline data |               | Sge 0 (16)               |
//! | Sge 1      |             |               | Sge 1                    |
//! | ...        |             |               | ...                      |
//! +--------------------------+ stride        +--------------------------+ stride
//! ```
//!
//! Integers are in host byte order (both processes run on one machine); byte arrays are in network
//! byte order.

use crate::pod::{Pod, impl_pod};

/// A header that a scatter/gather list (or inline data) follows in its slot.
pub trait Wqe: Pod {}

/// One entry of a scatter/gather list: a piece of registered memory of the process that posted it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sge {
    /// Address in the poster's address space (or the offset in a zero-based region).
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}

/// Header of a send queue's slot. Fields that an operation does not use are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SendWqe {
    /// The application's own number, returned in the completion.
    pub wr_id: u64,
    /// Which operation: its number in `ibv_wr_opcode`.
    pub operation: u8,
    /// [`SendWqe::SIGNALLED`] and the other flags.
    pub flags: u8,
    /// Entries of the gather list (scatter list of a READ or an atomic); unused with
    /// [`SendWqe::INLINE`].
    pub sge_count: u16,
    /// With [`SendWqe::INLINE`]: bytes of inline data.
    ///
    /// Otherwise unused: the entries of the list give the length of the message.
    pub length: u32,
    /// Immediate data, as it goes on the wire.
    pub imm: [u8; 4],
    /// Remote key of READ, WRITE and atomics; the key to invalidate; the key of the window to bind.
    pub rkey: u32,
    /// Remote address of READ, WRITE and atomics; first address of the window to bind.
    pub remote_va: u64,
    /// Compare and swap: the new value. Fetch and add: the addend. Bind: the access rights.
    pub swap_add: u64,
    /// Compare and swap: the value that must be there. Bind: the window's length.
    pub compare: u64,
    /// UD: GID of the destination.
    pub dest_gid: [u8; 16],
    /// UD: queue pair number of the destination.
    pub dest_qpn: u32,
    /// UD: Q_Key to send with.
    pub dest_qkey: u32,
    /// UD: flow label (20 bits).
    pub flow_label: u32,
    /// UD: which of the port's GIDs is the source.
    pub sgid_index: u8,
    /// UD: index of the port's GID that is the source.
    pub traffic_class: u8,
    /// UD: hop limit.
    pub hop_limit: u8,
    /// Zero.
    pub pad: u8,
    /// XRC: number of the peer's shared receive queue.
    pub srqn: u32,
    /// Bind: key of the region that the window lies in.
    pub bind_lkey: u32,
    /// Bind: the window's new key.
    pub bind_rkey: u32,
    /// Zero; room for later fields.
    pub reserved: u32,
}

impl SendWqe {
    /// Flag: success makes a completion (failure always does).
    pub const SIGNALLED: u8 = 1;
    /// Flag: the receiver's completion is a solicited event.
    pub const SOLICITED: u8 = 2;
    /// Flag: starts only when the READs and atomics before it are done.
    pub const FENCE: u8 = 4;
    /// Flag: the message lies in the slot; there is no gather list.
    pub const INLINE: u8 = 8;
    /// Flag: a datagram is repeated until its target has it.
    pub const RELIABLE: u8 = 16;

    /// Bytes of a send queue's slot with room for `max_sge` entries or `max_inline` bytes,
    /// whichever takes more.
    ///
    /// A multiple of 16. Values beyond any real limit saturate, and [`crate::ring()`] refuses them.
    #[must_use]
    pub const fn stride(max_sge: u32, max_inline: u32) -> u32 {
        let list = sge_bytes(max_sge);
        let inline = max_inline.saturating_add(15) & !15;
        let room = if list > inline { list } else { inline };
        (size_of::<Self>() as u32).saturating_add(room) & !15
    }
}

/// Header of a receive queue's slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecvWqe {
    /// The application's own number, returned in the completion.
    pub wr_id: u64,
    /// Entries of the scatter list.
    pub sge_count: u32,
    /// Zero.
    pub pad: u32,
}

impl RecvWqe {
    /// Bytes of a receive queue's slot with room for `max_sge` entries. A multiple of 16; saturates
    /// like [`SendWqe::stride`].
    #[must_use]
    pub const fn stride(max_sge: u32) -> u32 {
        (size_of::<Self>() as u32).saturating_add(sge_bytes(max_sge)) & !15
    }
}

const fn sge_bytes(count: u32) -> u32 {
    count.saturating_mul(size_of::<Sge>() as u32)
}

impl_pod!(Sge {
    addr: u64,
    length: u32,
    lkey: u32
});
impl_pod!(SendWqe {
    wr_id: u64,
    operation: u8,
    flags: u8,
    sge_count: u16,
    length: u32,
    imm: [u8; 4],
    rkey: u32,
    remote_va: u64,
    swap_add: u64,
    compare: u64,
    dest_gid: [u8; 16],
    dest_qpn: u32,
    dest_qkey: u32,
    flow_label: u32,
    sgid_index: u8,
    traffic_class: u8,
    hop_limit: u8,
    pad: u8,
    srqn: u32,
    bind_lkey: u32,
    bind_rkey: u32,
    reserved: u32,
});
impl_pod!(RecvWqe {
    wr_id: u64,
    sge_count: u32,
    pad: u32
});
impl Wqe for SendWqe {}
impl Wqe for RecvWqe {}

// Two processes, perhaps of different builds, agree on this layout.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Sge>() == 16);
    assert!(offset_of!(Sge, length) == 8 && offset_of!(Sge, lkey) == 12);

    assert!(size_of::<SendWqe>() == 96 && align_of::<SendWqe>() == 8);
    assert!(offset_of!(SendWqe, operation) == 8 && offset_of!(SendWqe, flags) == 9);
    assert!(offset_of!(SendWqe, sge_count) == 10 && offset_of!(SendWqe, length) == 12);
    assert!(offset_of!(SendWqe, imm) == 16 && offset_of!(SendWqe, rkey) == 20);
    assert!(offset_of!(SendWqe, remote_va) == 24 && offset_of!(SendWqe, swap_add) == 32);
    assert!(offset_of!(SendWqe, compare) == 40 && offset_of!(SendWqe, dest_gid) == 48);
    assert!(offset_of!(SendWqe, dest_qpn) == 64 && offset_of!(SendWqe, dest_qkey) == 68);
    assert!(offset_of!(SendWqe, flow_label) == 72 && offset_of!(SendWqe, sgid_index) == 76);
    assert!(offset_of!(SendWqe, srqn) == 80 && offset_of!(SendWqe, bind_lkey) == 84);
    assert!(offset_of!(SendWqe, bind_rkey) == 88 && offset_of!(SendWqe, reserved) == 92);

    assert!(size_of::<RecvWqe>() == 16 && align_of::<RecvWqe>() == 8);
    assert!(offset_of!(RecvWqe, sge_count) == 8);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn stride_holds_the_larger_of_list_and_inline_data() {
        assert_eq!(SendWqe::stride(0, 0), 96);
        assert_eq!(SendWqe::stride(4, 0), 96 + 64);
        assert_eq!(SendWqe::stride(4, 65), 96 + 80);
        assert_eq!(SendWqe::stride(1, 12), 96 + 16);
        assert_eq!(RecvWqe::stride(3), 16 + 48);
    }

    #[test]
    fn absurd_strides_saturate_and_stay_whole() {
        assert_eq!(SendWqe::stride(u32::MAX, 1), 0xffff_fff0);
        assert_eq!(SendWqe::stride(1, u32::MAX), 0xffff_fff0);
        assert_eq!(RecvWqe::stride(u32::MAX), 0xffff_fff0);
    }
}
