//! The capabilities of a device and of its one port, its GID table and its P_Key table.

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::{cmp, ptr};

use airdma_engine::{DeviceInfo, Limits, PathMtu, RATE_LIMIT_KBPS_MAX};

use crate::context::Context;
use crate::errno::Errno;
use crate::object::zeroed;
use crate::{abi, address, device, rate};

/// The only port number.
pub const PORT: u8 = 1;

/// The default P_Key, full member: the only one RoCE has.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// `enum ibv_gid_type_sysfs`, which `ibv_query_gid_type` answers in: RoCE v2.
const GID_TYPE_SYSFS_ROCE_V2: c_uint = 1;

/// Vendor identifier of software devices, as rxe reports it: no IEEE organisation has it.
pub const VENDOR_SOFTWARE: u32 = 0x00ff_ffff;

/// Page sizes: every power of two from 4 KiB up, as regions need no translation table.
const PAGE_SIZE_CAP: u64 = !0xfff;

/// Local CA ACK delay, 4.096 us x 2^15 = 134 ms: what a descheduled software responder may take.
const LOCAL_CA_ACK_DELAY: u8 = 15;

/// `IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS`.
pub const PORT_CAP_FLAGS: u32 = abi::IBV_PORT_CM_SUP | abi::IBV_PORT_IP_BASED_GIDS;

/// `IBV_QPF_GRH_REQUIRED`: address vectors need a GRH on RoCE.
const PORT_FLAG_GRH_REQUIRED: u8 = 1;

/// PortInfo:PortPhysicalState.
const PHYS_STATE_DISABLED: u8 = 3;
const PHYS_STATE_LINK_UP: u8 = 5;

/// Clock of the completions' timestamps: nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

/// `IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT`: on-demand memory, also the whole address space at
/// once.
const ODP_GENERAL: u64 = 1 << 0 | 1 << 1;

/// Operations of each service on on-demand memory: all that it has.
const ODP_DATAGRAM: u32 =
    abi::IBV_ODP_SUPPORT_SEND | abi::IBV_ODP_SUPPORT_RECV | abi::IBV_ODP_SUPPORT_SRQ_RECV;
const ODP_CONNECTED: u32 = ODP_DATAGRAM
    | abi::IBV_ODP_SUPPORT_WRITE
    | abi::IBV_ODP_SUPPORT_READ
    | abi::IBV_ODP_SUPPORT_ATOMIC
    | abi::IBV_ODP_SUPPORT_FLUSH
    | abi::IBV_ODP_SUPPORT_ATOMIC_WRITE;

/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL | IB_UVERBS_DEVICE_ATOMIC_WRITE`. No memory is known to be
/// persistent (bit 39).
const CAPS_EXTENDED: u64 = 1 << 38 | 1 << 40;

/// Services whose queue pairs can have a rate limit.
const PACED_SERVICES: u32 = 1 << abi::IBV_QPT_RC
    | 1 << abi::IBV_QPT_UC
    | 1 << abi::IBV_QPT_XRC_SEND
    | 1 << abi::IBV_QPT_RAW_PACKET;

/// Rows of the GID table at least.
const GID_TABLE_LEN_MIN: usize = 16;

/// EINVAL unless `port` is the port.
pub fn check_port(port: impl Into<u32>) -> Result<(), Errno> {
    if port.into() == u32::from(PORT) {
        Ok(())
    } else {
        Err(Errno::INVALID)
    }
}

/// `ibv_query_device(3)`.
pub unsafe fn query_device(
    context: *mut abi::ibv_context,
    attr: *mut abi::ibv_device_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) }?;
    if attr.is_null() {
        return Err(Errno::INVALID);
    }
    let device = context.device();
    // SAFETY: the caller's struct.
    unsafe { attr.write(device_attr(device.info(), device.limits())) };
    Ok(())
}

/// `ibv_query_device_ex(3)`: fills as much as the caller's struct has room for.
pub unsafe fn query_device_ex(
    context: *mut abi::ibv_context,
    input: *const abi::ibv_query_device_ex_input,
    attr: *mut abi::ibv_device_attr_ex,
    size: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's context and input.
    let (context, unknown) = unsafe {
        (
            Context::of(context)?,
            input.as_ref().is_some_and(|input| input.comp_mask != 0),
        )
    };
    let size_min = offset_of!(abi::ibv_device_attr_ex, comp_mask) + size_of::<u32>();
    if unknown || attr.is_null() || size < size_min {
        return Err(Errno::INVALID);
    }
    let device = context.device();
    // SAFETY: plain integers.
    let mut full: abi::ibv_device_attr_ex = unsafe { zeroed() };
    full.orig_attr = device_attr(device.info(), device.limits());
    full.device_cap_flags_ex = u64::from(full.orig_attr.device_cap_flags) | CAPS_EXTENDED;
    full.phys_port_cnt_ex = u32::from(full.orig_attr.phys_port_cnt);
    full.max_dm_size = device.limits().max_dm_size;
    full.completion_timestamp_mask = u64::MAX;
    full.hca_core_clock = CLOCK_KHZ;
    full.odp_caps = abi::ibv_odp_caps {
        general_caps: ODP_GENERAL,
        per_transport_caps: abi::ibv_odp_caps__bindgen_ty_1 {
            rc_odp_caps: ODP_CONNECTED,
            uc_odp_caps: ODP_DATAGRAM | abi::IBV_ODP_SUPPORT_WRITE,
            ud_odp_caps: ODP_DATAGRAM,
        },
    };
    full.xrc_odp_caps = ODP_CONNECTED;
    full.packet_pacing_caps = abi::ibv_packet_pacing_caps {
        qp_rate_limit_min: 1,
        qp_rate_limit_max: RATE_LIMIT_KBPS_MAX,
        supported_qpts: PACED_SERVICES,
    };
    // SAFETY: the caller's struct has `size` bytes.
    unsafe { copy_sized(&full, attr, size) };
    Ok(())
}

/// The exported `ibv_query_port`: the caller's struct may end before `port_cap_flags2`.
pub unsafe fn query_port_compat(
    context: *mut abi::ibv_context,
    port: u8,
    attr: *mut abi::_compat_ibv_port_attr,
) -> Result<(), Errno> {
    let size = offset_of!(abi::ibv_port_attr, port_cap_flags2);
    // SAFETY: the caller's promise; the compatible struct is the front of the full one.
    unsafe { query_port(context, port, attr.cast(), size) }
}

/// The `query_port` slot: fills as much as the caller's struct has room for.
pub unsafe fn query_port(
    context: *mut abi::ibv_context,
    port: u8,
    attr: *mut abi::ibv_port_attr,
    size: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) }?;
    check_port(port)?;
    if attr.is_null() {
        return Err(Errno::INVALID);
    }
    let device = context.device();
    let full = port_attr(&device.current(), device.limits());
    // SAFETY: the caller's struct has `size` bytes.
    unsafe { copy_sized(&full, attr, size) };
    Ok(())
}

/// `ibv_query_port_speed(3)`: in units of 100 Mb/s.
pub unsafe fn query_port_speed(
    context: *mut abi::ibv_context,
    port: u32,
    speed: *mut u64,
) -> Result<(), Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) }?;
    check_port(port)?;
    if speed.is_null() {
        return Err(Errno::INVALID);
    }
    let mbps = context.device().current().speed_mbps;
    // SAFETY: the caller's integer.
    unsafe { speed.write(u64::from(mbps.unwrap_or(rate::MBPS_UNKNOWN)).div_ceil(100)) };
    Ok(())
}

/// `ibv_query_gid(3)`: all zero for an empty row.
pub unsafe fn query_gid(
    context: *mut abi::ibv_context,
    port: u8,
    index: c_int,
    gid: *mut abi::ibv_gid,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) }?;
    check_port(port)?;
    let index = usize::try_from(index).map_err(|_| Errno::INVALID)?;
    let info = context.device().current();
    if gid.is_null() || index >= gid_table_len(&info) {
        return Err(Errno::INVALID);
    }
    let raw = info.gids.get(index).map_or([0; 16], |row| row.gid.0);
    // SAFETY: the caller's union.
    unsafe { gid.write(abi::ibv_gid { raw }) };
    Ok(0)
}

/// `ibv_query_gid_type`, which `ibv_devinfo` calls.
pub unsafe fn query_gid_type(
    context: *mut abi::ibv_context,
    port: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) }?;
    check_port(port)?;
    if gid_type.is_null() || index as usize >= gid_table_len(&context.device().current()) {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's integer.
    unsafe { gid_type.write(GID_TYPE_SYSFS_ROCE_V2) };
    Ok(0)
}

/// `ibv_query_gid_ex(3)`.
pub unsafe fn query_gid_ex(
    context: *mut abi::ibv_context,
    port: u32,
    index: u32,
    entry: *mut abi::ibv_gid_entry,
    flags: u32,
    size: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) }?;
    check_port(port)?;
    if flags != 0 || entry.is_null() {
        return Err(Errno::INVALID);
    }
    let info = context.device().current();
    if index as usize >= gid_table_len(&info) {
        return Err(Errno::INVALID);
    }
    // As the kernel answers for a row without an address.
    let row = gid_entries(&info).find(|row| row.gid_index == index);
    let row = row.ok_or(Errno(libc::ENODATA))?;
    // SAFETY: the caller's struct has `size` bytes.
    unsafe { copy_sized(&row, entry, size) };
    Ok(())
}

/// `ibv_query_gid_table(3)`: the rows that are not empty; a table that is too short for all is an
/// error.
pub unsafe fn query_gid_table(
    context: *mut abi::ibv_context,
    entries: *mut abi::ibv_gid_entry,
    count_max: usize,
    flags: u32,
    size: usize,
) -> Result<usize, Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { Context::of(context) }?;
    let info = context.device().current();
    let rows: Vec<_> = gid_entries(&info).collect();
    if flags != 0 || entries.is_null() || rows.len() > count_max {
        return Err(Errno::INVALID);
    }
    for (index, row) in rows.iter().enumerate() {
        // SAFETY: the caller's array has `count_max` elements of `size` bytes each.
        unsafe { copy_sized(row, entries.wrapping_byte_add(index * size), size) };
    }
    Ok(rows.len())
}

/// `ibv_query_pkey(3)`.
pub unsafe fn query_pkey(
    context: *mut abi::ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's context.
    unsafe { Context::of(context) }?;
    check_port(port)?;
    if index != 0 || pkey.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's integer.
    unsafe { pkey.write(DEFAULT_PKEY.to_be()) };
    Ok(0)
}

/// `ibv_get_pkey_index(3)`.
pub unsafe fn pkey_index(
    context: *mut abi::ibv_context,
    port: u8,
    pkey: u16,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's context.
    unsafe { Context::of(context) }?;
    check_port(port)?;
    if u16::from_be(pkey) == DEFAULT_PKEY {
        Ok(0)
    } else {
        Err(Errno::INVALID)
    }
}

fn device_attr(info: &DeviceInfo, limits: &Limits) -> abi::ibv_device_attr {
    // SAFETY: plain integers.
    let mut attr: abi::ibv_device_attr = unsafe { zeroed() };
    device::write_text(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr.node_guid = info.guid.to_be();
    attr.sys_image_guid = info.guid.to_be();
    attr.max_mr_size = limits.max_mr_size;
    attr.page_size_cap = PAGE_SIZE_CAP;
    attr.vendor_id = VENDOR_SOFTWARE;
    attr.max_qp = clamp(limits.max_qp);
    attr.max_qp_wr = clamp(limits.max_qp_wr);
    attr.device_cap_flags = abi::IBV_DEVICE_UD_AV_PORT_ENFORCE
        | abi::IBV_DEVICE_CURR_QP_STATE_MOD
        | abi::IBV_DEVICE_SYS_IMAGE_GUID
        | abi::IBV_DEVICE_RC_RNR_NAK_GEN
        | abi::IBV_DEVICE_SRQ_RESIZE
        | abi::IBV_DEVICE_PORT_ACTIVE_EVENT
        | abi::IBV_DEVICE_MEM_MGT_EXTENSIONS
        | abi::IBV_DEVICE_XRC
        | abi::IBV_DEVICE_MEM_WINDOW
        | abi::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    attr.max_sge = clamp(limits.max_sge);
    attr.max_sge_rd = clamp(limits.max_sge_rd);
    attr.max_cq = clamp(limits.max_cq);
    attr.max_cqe = clamp(limits.max_cqe);
    attr.max_mr = clamp(limits.max_mr);
    attr.max_mw = clamp(limits.max_mw);
    attr.max_pd = clamp(limits.max_pd);
    attr.max_srq = clamp(limits.max_srq);
    attr.max_srq_wr = clamp(limits.max_srq_wr);
    attr.max_srq_sge = clamp(limits.max_sge);
    attr.max_qp_rd_atom = c_int::from(limits.max_rd_atomic);
    attr.max_qp_init_rd_atom = c_int::from(limits.max_rd_atomic);
    attr.max_res_rd_atom = clamp(u64::from(limits.max_rd_atomic) * u64::from(limits.max_qp));
    attr.atomic_cap = abi::IBV_ATOMIC_HCA;
    attr.max_mcast_grp = clamp(limits.max_mcast_grp);
    attr.max_mcast_qp_attach = clamp(limits.max_mcast_qp_attach);
    attr.max_total_mcast_qp_attach =
        clamp(u64::from(limits.max_mcast_grp) * u64::from(limits.max_mcast_qp_attach));
    attr.max_ah = clamp(limits.max_ah);
    attr.max_pkeys = limits.max_pkeys;
    attr.local_ca_ack_delay = LOCAL_CA_ACK_DELAY;
    attr.phys_port_cnt = limits.ports;
    attr
}

fn port_attr(info: &DeviceInfo, limits: &Limits) -> abi::ibv_port_attr {
    // SAFETY: plain integers.
    let mut attr: abi::ibv_port_attr = unsafe { zeroed() };
    let (width, speed) = rate::link(info.speed_mbps);
    (attr.state, attr.phys_state) = if info.up {
        (abi::IBV_PORT_ACTIVE, PHYS_STATE_LINK_UP)
    } else {
        (abi::IBV_PORT_DOWN, PHYS_STATE_DISABLED)
    };
    attr.max_mtu = PathMtu::M4096 as abi::ibv_mtu;
    attr.active_mtu = info.path_mtu as abi::ibv_mtu;
    attr.lid = address::lid_of(info);
    attr.gid_tbl_len = clamp(gid_table_len(info));
    attr.port_cap_flags = PORT_CAP_FLAGS;
    attr.max_msg_sz = limits.max_message;
    attr.pkey_tbl_len = limits.max_pkeys;
    attr.max_vl_num = 1;
    attr.active_width = width;
    attr.active_speed = speed;
    attr.active_speed_ex = u32::from(speed);
    attr.link_layer = abi::IBV_LINK_LAYER_ETHERNET as u8;
    attr.flags = PORT_FLAG_GRH_REQUIRED;
    attr
}

/// Rows of the GID table, empty ones included: addresses that come later have a place, as with
/// hardware.
fn gid_table_len(info: &DeviceInfo) -> usize {
    info.gids.len().max(GID_TABLE_LEN_MIN)
}

/// The rows that are not empty.
fn gid_entries(info: &DeviceInfo) -> impl Iterator<Item = abi::ibv_gid_entry> {
    let interface_index = info.interface_index;
    (0..)
        .zip(&info.gids)
        .filter(|(_, row)| !row.is_empty())
        .map(move |(gid_index, row)| abi::ibv_gid_entry {
            gid: abi::ibv_gid { raw: row.gid.0 },
            gid_index,
            port_num: u32::from(PORT),
            gid_type: abi::IBV_GID_TYPE_ROCE_V2,
            ndev_ifindex: interface_index,
        })
}

/// A number for a C `int`: our limits fit, more is as good as the largest.
fn clamp(value: impl TryInto<c_int>) -> c_int {
    value.try_into().unwrap_or(c_int::MAX)
}

/// Copies the front of `value` into a caller's struct of `size` bytes, and zeros what we do not
/// know.
///
/// # Safety
/// `to` is valid for writes of `size` bytes; `T` is plain data without padding that matters.
pub unsafe fn copy_sized<T>(value: &T, to: *mut T, size: usize) {
    let known = cmp::min(size, size_of::<T>());
    // SAFETY: `known` is at most the size of either side, the rest is inside the caller's struct.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to.cast(), known);
        ptr::write_bytes(to.cast::<u8>().add(known), 0, size - known);
    }
}

#[cfg(test)]
mod tests;
