//! The exported symbols.
//!
//! Not here: `ibv_register_driver`, `ibv_read_ibdev_sysfs_file`, the `ibv_cmd_*` and `verbs_*`
//! family and the ioctl helpers. They serve rdma-core's hardware providers, which stay bound to
//! rdma-core's own library.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::entry;
use crate::abi::*;
use crate::record::{RdAttr, ReadWr, RecordAttr, RecordView, RecordWr};
use crate::{
    address, async_event, buffer, completion, completion_counter, context, device, device_memory,
    dma_handle, kernel, memory, multicast, port, post, queue_pair, rate, record, shared_receive,
    sysfs, text,
};

// Devices and contexts.
entry! {
    export fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device = device::list;
    export fn ibv_free_device_list(list: *mut *mut ibv_device) = device::free_list;
    export fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char = device::name;
    export fn ibv_get_device_guid(device: *mut ibv_device) -> u64 = device::guid;
    export fn ibv_get_device_index(device: *mut ibv_device) -> c_int = device::index;
    export fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context = context::open;
    export fn ibv_close_device(context: *mut ibv_context) -> c_int = context::close;
    export fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context = context::import;
}

// Attributes of a device and its port.
entry! {
    export fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int = port::query_device;
    export fn ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr) -> c_int = port::query_port_compat;
    export fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32, port_speed: *mut u64) -> c_int = port::query_port_speed;
    export fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int = port::query_gid;
    export fn ibv_query_gid_type(context: *mut ibv_context, port_num: u8, index: c_uint, gid_type: *mut c_uint) -> c_int = port::query_gid_type;
    export fn _ibv_query_gid_ex(context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry, flags: u32, entry_size: usize) -> c_int = port::query_gid_ex;
    export fn _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize) -> isize = port::query_gid_table;
    export fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut u16) -> c_int = port::query_pkey;
    export fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int = port::pkey_index;
    export fn ibv_get_sysfs_path() -> *const c_char = sysfs::path;
    export fn ibv_read_sysfs_file(dir: *const c_char, file: *const c_char, buf: *mut c_char, size: usize) -> c_int = sysfs::read_file;
}

// Protection domains and memory.
entry! {
    export fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd = memory::alloc_pd;
    export fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int = memory::dealloc_pd;
    export fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd = memory::import_pd;
    export fn ibv_unimport_pd(pd: *mut ibv_pd) = memory::unimport_pd;
    export fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr = memory::reg_mr;
    export fn ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr = memory::reg_mr_iova;
    export fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr = memory::reg_mr_iova2;
    export fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr = memory::reg_dmabuf_mr;
    export fn ibv_reg_mr_ex(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr = memory::reg_mr_ex;
    export fn ibv_rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> c_int = memory::rereg_mr;
    export fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int = memory::dereg_mr;
    export fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr = memory::import_mr;
    export fn ibv_unimport_mr(mr: *mut ibv_mr) = memory::unimport_mr;
    export fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm = device_memory::import;
    export fn ibv_unimport_dm(dm: *mut ibv_dm) = device_memory::unimport;
    export fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int = device_memory::export;
    export fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void = buffer::alloc;
    export fn ibv_free_buf(buf: *mut ibv_buf) = buffer::free;
    export fn ibv_reg_buf_mr(pd: *mut ibv_pd, buf: *mut ibv_buf, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr = memory::reg_buf_mr;
    export fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int = buffer::export;
    export fn ibv_alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah = dma_handle::alloc;
    export fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int = dma_handle::dealloc;
    export fn ibv_fork_init() -> c_int = memory::fork_init;
    export fn ibv_is_fork_initialized() -> c_uint = memory::is_fork_initialized;
    export fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int = memory::fork_range;
    export fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int = memory::fork_range;
}

// Completion queues, channels, asynchronous events.
entry! {
    export fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel = completion::create_channel;
    export fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int = completion::destroy_channel;
    export fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq = completion::create_cq;
    export fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int = completion::resize_cq;
    export fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int = completion::destroy_cq;
    export fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) = completion::ack_cq_events;
    export fn ibv_ack_async_event(event: *mut ibv_async_event) = async_event::ack;
}

// Queue pairs.
entry! {
    export fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp = queue_pair::create;
    export fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int = queue_pair::modify;
    export fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr) -> c_int = queue_pair::query;
    export fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int = queue_pair::data_in_order;
    export fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int = queue_pair::destroy;
    export fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex = queue_pair::to_extended;
    export fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int = unsupported;
    export fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int = unsupported;
    export fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq = shared_receive::create;
    export fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int = shared_receive::modify;
    export fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int = shared_receive::query;
    export fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int = shared_receive::destroy;
}

// Address handles and multicast.
entry! {
    export fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah = address::create;
    export fn ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> *mut ibv_ah = address::create_from_wc;
    export fn ibv_init_ah_from_wc(context: *mut ibv_context, port_num: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, ah_attr: *mut ibv_ah_attr) -> c_int = address::init_from_wc;
    export fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int = address::destroy;
    export fn ibv_resolve_eth_l2_from_gid(context: *mut ibv_context, attr: *mut ibv_ah_attr, eth_mac: *mut u8, vid: *mut u16) -> c_int = address::resolve_ethernet;
    export fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int = multicast::attach;
    export fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int = multicast::detach;
}

// Completion counters.
entry! {
    export fn _ibv_query_comp_cntr_caps(context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, caps_size: usize) -> c_int = completion_counter::query_caps;
    export fn ibv_create_comp_cntr(context: *mut ibv_context, cc_attr: *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr = completion_counter::create;
    export fn ibv_destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> c_int = completion_counter::destroy;
    export fn ibv_set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int = completion_counter::set;
    export fn ibv_set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int = completion_counter::set_failures;
    export fn ibv_inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int = completion_counter::add;
    export fn ibv_inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int = completion_counter::add_failures;
    export fn ibv_read_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int = completion_counter::read;
    export fn ibv_read_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int = completion_counter::read_failures;
    export fn ibv_qp_attach_comp_cntr(qp: *mut ibv_qp, comp_cntr: *mut ibv_comp_cntr, attr: *mut ibv_qp_attach_comp_cntr_attr) -> c_int = completion_counter::attach;
}

// Write-Record (`airdma/verbs_record.h`).
entry! {
    export fn airdma_record_enable(qp: *mut ibv_qp, attr: *const RecordAttr) -> c_int = record::enable;
    export fn airdma_record_reg(pd: *mut ibv_pd, addr: *mut c_void, length: usize, source: *const ibv_gid) -> *mut ibv_mr = record::register;
    export fn airdma_record_reg_group(pd: *mut ibv_pd, addr: *mut c_void, length: usize, group: *const ibv_gid, key: u32, source: *const ibv_gid) -> *mut ibv_mr = record::register_group;
    export fn airdma_record_reg_read(pd: *mut ibv_pd, addr: *mut c_void, length: usize, source: *const ibv_gid) -> *mut ibv_mr = record::register_read;
    export fn airdma_record_read_from(qp: *mut ibv_qp, wr: *const ReadWr, handle: *mut u64) -> c_int = record::read_from;
    export fn airdma_record_post(qp: *mut ibv_qp, wr: *const RecordWr) -> c_int = record::post;
    export fn airdma_rd_enable(qp: *mut ibv_qp, attr: *const RdAttr) -> c_int = record::enable_reliable;
    export fn airdma_rd_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int = post::send_reliable;
    export fn airdma_record_read(qp: *mut ibv_qp, handle: u64, record: *mut RecordView) -> c_int = record::read;
    export fn airdma_record_map(qp: *mut ibv_qp, handle: u64, bits: *mut u64, words: usize) -> c_int = record::map;
    export fn airdma_record_free(qp: *mut ibv_qp, handle: u64) -> c_int = record::free;
    export fn airdma_record_peek(qp: *mut ibv_qp, rkey: u32, addr: u64, record: *mut RecordView, bits: *mut u64, words: usize) -> c_int = record::peek;
    export fn airdma_record_close(qp: *mut ibv_qp, rkey: u32, addr: u64) -> c_int = record::close;
}

// Texts, rates, kernel structs.
entry! {
    export fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char = text::wr_opcode;
    export fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char = text::wc_status;
    export fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char = text::node_type;
    export fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char = text::port_state;
    export fn ibv_event_type_str(event: ibv_event_type) -> *const c_char = text::event_type;
    export fn ibv_rate_to_mult(rate: ibv_rate) -> c_int = rate::to_multiple;
    export fn mult_to_ibv_rate(mult: c_int) -> ibv_rate = rate::from_multiple;
    export fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int = rate::to_mbps;
    export fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate = rate::from_mbps;
    export fn ibv_copy_ah_attr_from_kern(dst: *mut ibv_ah_attr, src: *mut ib_uverbs_ah_attr) = kernel::copy_ah_attr;
    export fn ibv_copy_qp_attr_from_kern(dst: *mut ibv_qp_attr, src: *mut ib_uverbs_qp_attr) = kernel::copy_qp_attr;
    export fn ibv_copy_path_rec_from_kern(dst: *mut ibv_sa_path_rec, src: *mut ib_user_path_rec) = kernel::copy_path_from;
    export fn ibv_copy_path_rec_to_kern(dst: *mut ib_user_path_rec, src: *mut ibv_sa_path_rec) = kernel::copy_path_to;
}
