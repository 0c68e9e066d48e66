//! The functions of `ibv_cq_ex`, through which completions are polled and read.

use std::ffi::{c_int, c_uint};

use super::entry;
use crate::abi::*;
use crate::polling;

entry! {
    fast fn start_poll(current: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int = polling::start;
    fast fn next_poll(current: *mut ibv_cq_ex) -> c_int = polling::next;
    fast fn end_poll(current: *mut ibv_cq_ex) = polling::end;
    fast fn read_opcode(current: *mut ibv_cq_ex) -> ibv_wc_opcode = polling::opcode;
    fast fn read_vendor_err(current: *mut ibv_cq_ex) -> u32 = polling::vendor_err;
    fast fn read_byte_len(current: *mut ibv_cq_ex) -> u32 = polling::byte_len;
    fast fn read_imm_data(current: *mut ibv_cq_ex) -> u32 = polling::imm_data;
    fast fn read_qp_num(current: *mut ibv_cq_ex) -> u32 = polling::qp_num;
    fast fn read_src_qp(current: *mut ibv_cq_ex) -> u32 = polling::src_qp;
    fast fn read_wc_flags(current: *mut ibv_cq_ex) -> c_uint = polling::wc_flags;
    fast fn read_slid(current: *mut ibv_cq_ex) -> u32 = polling::slid;
    fast fn read_sl(current: *mut ibv_cq_ex) -> u8 = polling::sl;
    fast fn read_dlid_path_bits(current: *mut ibv_cq_ex) -> u8 = polling::dlid_path_bits;
    fast fn read_completion_ts(current: *mut ibv_cq_ex) -> u64 = polling::completion_ts;
    fast fn read_completion_wallclock_ns(current: *mut ibv_cq_ex) -> u64 = polling::completion_wallclock_ns;
}

// No queue is created with these: `ibv_create_cq_ex` answers EOPNOTSUPP.
entry! {
    slot fn read_cvlan(current: *mut ibv_cq_ex) -> u16 = unsupported;
    slot fn read_flow_tag(current: *mut ibv_cq_ex) -> u32 = unsupported;
    slot fn read_tm_info(current: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) = unsupported;
}
