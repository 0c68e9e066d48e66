//! What a device can do at most: the values `ibv_query_device` reports. Every one is enforced.

use airdma_wire::{HEADERS_LEN_MAX, PathMtu};

/// Room for any packet, BTH to pad.
pub(crate) const PACKET_LEN_MAX: usize = HEADERS_LEN_MAX + PathMtu::M4096.bytes() as usize + 3;

/// Limits of a device. They are the same for every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs per device and process: the low 20 bits of a queue pair number are its slot.
    pub max_qp: u32,
    /// Work requests per send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather elements per work request.
    pub max_sge: u32,
    /// Scatter/gather elements of an RDMA READ.
    pub max_sge_rd: u32,
    /// Bytes that a work request may carry inline.
    pub max_inline: u32,
    /// Completion queues per device and process.
    pub max_cq: u32,
    /// Entries per completion queue.
    pub max_cqe: u32,
    /// Memory regions per device and process: the high 20 bits of a key are its slot.
    pub max_mr: u32,
    /// Memory windows per device and process: they share the slots of the regions.
    pub max_mw: u32,
    /// Bytes of device memory per allocation.
    pub max_dm_size: u64,
    /// Shared receive queues per device and process.
    pub max_srq: u32,
    /// Work requests per shared receive queue.
    pub max_srq_wr: u32,
    /// Bytes per memory region.
    pub max_mr_size: u64,
    /// Protection domains per device and process.
    pub max_pd: u32,
    /// Completion counters per device and process.
    pub max_completion_counters: u32,
    /// Address handles per device and process.
    pub max_ah: u32,
    /// RDMA READ and atomic requests outstanding per queue pair, each way.
    pub max_rd_atomic: u8,
    /// Multicast groups per device and process.
    pub max_mcast_grp: u32,
    /// Queue pairs per multicast group.
    pub max_mcast_qp_attach: u32,
    /// Bytes of the largest message of a reliable connection (IBTA 9.7.2: 2^31; we stop one short,
    /// as hardware does).
    pub max_message: u32,
    /// P_Keys per port: RoCE has the default one only.
    pub max_pkeys: u16,
    /// Ports per device.
    pub ports: u8,
}

/// The limits of every device.
pub const LIMITS: Limits = Limits {
    max_qp: 1 << 20,
    max_qp_wr: 16_384,
    max_sge: 32,
    max_sge_rd: 32,
    max_inline: 512,
    max_cq: 1 << 20,
    max_cqe: 1 << 20,
    max_mr: 1 << 20,
    max_mw: 1 << 20,
    max_dm_size: 1 << 20,
    max_srq: 1 << 20,
    max_srq_wr: 1 << 15,
    max_mr_size: 1 << 46,
    max_pd: 65_536,
    max_completion_counters: 1 << 20,
    max_ah: 1 << 20,
    max_rd_atomic: 128,
    max_mcast_grp: 8192,
    max_mcast_qp_attach: 56,
    max_message: (1 << 31) - 1,
    max_pkeys: 1,
    ports: 1,
};
