//! A completion as it lies in a completion queue's ring.

use crate::pod::impl_pod;

/// One completion: a whole slot, one cache line.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cqe {
    /// The number the application gave the work request.
    pub wr_id: u64,
    /// Value of `ibv_wc_status`.
    pub status: u8,
    /// Value of `ibv_wc_opcode`.
    pub opcode: u8,
    /// [`Cqe::IMM`] and the other flags.
    pub flags: u8,
    /// Zero.
    pub pad: u8,
    /// Bytes received or read.
    pub byte_len: u32,
    /// With [`Cqe::IMM`], the immediate data as on the wire; with [`Cqe::INVALIDATED`], the key.
    ///
    /// The key is in host byte order.
    pub imm_or_rkey: [u8; 4],
    /// The local queue pair.
    pub qpn: u32,
    /// UD: the remote queue pair.
    pub src_qpn: u32,
    /// Vendor's error detail (`vendor_err`); zero on success.
    pub vendor_error: u32,
    /// When the completion was made, in nanoseconds of the engine's clock; zero if timestamps are
    /// off.
    pub timestamp: u64,
    /// Zero; room for later fields.
    pub reserved: [u64; 3],
}

impl Cqe {
    /// Flag: `imm_or_rkey` is immediate data.
    pub const IMM: u8 = 1;
    /// Flag: `imm_or_rkey` is the local key that the message invalidated.
    pub const INVALIDATED: u8 = 2;
    /// Flag: the first 40 bytes of the receive buffer hold the GRH area.
    pub const GRH: u8 = 4;
    /// Flag: the sender asked for a solicited event.
    pub const SOLICITED: u8 = 8;
    /// Flag, with [`Cqe::GRH`]: that area holds an IPv4 header, not an IPv6 one.
    pub const IPV4: u8 = 16;
    /// Bytes of a completion queue's slot.
    pub const STRIDE: u32 = size_of::<Self>() as u32;
}

impl_pod!(Cqe {
    wr_id: u64,
    status: u8,
    opcode: u8,
    flags: u8,
    pad: u8,
    byte_len: u32,
    imm_or_rkey: [u8; 4],
    qpn: u32,
    src_qpn: u32,
    vendor_error: u32,
    timestamp: u64,
    reserved: [u64; 3],
});

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Cqe>() == 64 && align_of::<Cqe>() == 8);
    assert!(offset_of!(Cqe, status) == 8 && offset_of!(Cqe, opcode) == 9);
    assert!(offset_of!(Cqe, flags) == 10 && offset_of!(Cqe, byte_len) == 12);
    assert!(offset_of!(Cqe, imm_or_rkey) == 16 && offset_of!(Cqe, qpn) == 20);
    assert!(offset_of!(Cqe, src_qpn) == 24 && offset_of!(Cqe, vendor_error) == 28);
    assert!(offset_of!(Cqe, timestamp) == 32 && offset_of!(Cqe, reserved) == 40);
};
