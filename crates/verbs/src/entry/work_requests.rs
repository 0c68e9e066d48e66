//! The functions of `ibv_qp_ex`, through which `ibv_wr_*` build requests.

use std::ffi::{c_int, c_void};

use super::entry;
use crate::abi::*;
use crate::work_batch;

entry! {
    fast fn wr_start(qp: *mut ibv_qp_ex) = work_batch::start;
    fast fn wr_complete(qp: *mut ibv_qp_ex) -> c_int = work_batch::complete;
    fast fn wr_abort(qp: *mut ibv_qp_ex) = work_batch::abort;
    fast fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64) = work_batch::compare_swap;
    fast fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) = work_batch::fetch_add;
    fast fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void) = work_batch::atomic_write;
    fast fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info) = work_batch::bind_mw;
    fast fn wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) = work_batch::local_inv;
    fast fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) = work_batch::read;
    fast fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) = work_batch::write;
    fast fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: u32) = work_batch::write_imm;
    fast fn wr_send(qp: *mut ibv_qp_ex) = work_batch::send;
    fast fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) = work_batch::send_imm;
    fast fn wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) = work_batch::send_inv;
    fast fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) = work_batch::set_ud_addr;
    fast fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) = work_batch::set_xrc_srqn;
    fast fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) = work_batch::set_inline_data;
    fast fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf) = work_batch::set_inline_data_list;
    fast fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) = work_batch::set_sge;
    fast fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) = work_batch::set_sge_list;
    fast fn wr_send_tso(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) = work_batch::send_tso;
    fast fn wr_flush(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, len: usize, placement: u8, level: u8) = work_batch::flush;
}
