//! The function slots of `ibv_context_ops` and `verbs_context`, through which the inline functions
//! of `verbs.h` call. None is left empty: programs call some of them without looking.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::size_of;

use super::entry;
use crate::abi::*;
use crate::{
    completion, device_memory, domain, extended, memory, polling, port, post, queue_pair,
    shared_receive, unknown_verbs, window,
};

/// `context->ops`.
pub fn context_ops() -> ibv_context_ops {
    ibv_context_ops {
        _compat_query_device: Some(super::symbols::ibv_query_device),
        _compat_query_port: Some(super::symbols::ibv_query_port),
        _compat_alloc_pd: Some(retired),
        _compat_dealloc_pd: Some(retired),
        _compat_reg_mr: Some(retired),
        _compat_rereg_mr: Some(retired),
        _compat_dereg_mr: Some(retired),
        alloc_mw: Some(alloc_mw),
        bind_mw: Some(bind_mw),
        dealloc_mw: Some(dealloc_mw),
        _compat_create_cq: Some(retired),
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        _compat_cq_event: Some(retired),
        _compat_resize_cq: Some(retired),
        _compat_destroy_cq: Some(retired),
        _compat_create_srq: Some(retired),
        _compat_modify_srq: Some(retired),
        _compat_query_srq: Some(retired),
        _compat_destroy_srq: Some(retired),
        post_srq_recv: Some(post_srq_recv),
        _compat_create_qp: Some(retired),
        _compat_query_qp: Some(retired),
        _compat_modify_qp: Some(retired),
        _compat_destroy_qp: Some(retired),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        _compat_create_ah: Some(retired),
        _compat_destroy_ah: Some(retired),
        _compat_attach_mcast: Some(retired),
        _compat_detach_mcast: Some(retired),
        _compat_async_event: Some(retired),
    }
}

/// A `verbs_context` around `context`, which is its last member.
pub fn verbs_context(context: ibv_context) -> verbs_context {
    verbs_context {
        free_buf: Some(super::symbols::ibv_free_buf),
        alloc_buf: Some(super::symbols::ibv_alloc_buf),
        dm_export_dmabuf_fd: Some(super::symbols::ibv_dm_export_dmabuf_fd),
        reg_mr_ex: Some(super::symbols::ibv_reg_mr_ex),
        dealloc_dmah: Some(super::symbols::ibv_dealloc_dmah),
        alloc_dmah: Some(super::symbols::ibv_alloc_dmah),
        query_port: Some(query_port),
        advise_mr: Some(advise_mr),
        alloc_null_mr: Some(alloc_null_mr),
        read_counters: Some(read_counters),
        attach_counters_point_flow: Some(attach_counters_point_flow),
        create_counters: Some(create_counters),
        destroy_counters: Some(destroy_counters),
        reg_dm_mr: Some(reg_dm_mr),
        alloc_dm: Some(alloc_dm),
        free_dm: Some(free_dm),
        modify_flow_action_esp: Some(modify_flow_action_esp),
        destroy_flow_action: Some(destroy_flow_action),
        create_flow_action_esp: Some(create_flow_action_esp),
        modify_qp_rate_limit: Some(modify_qp_rate_limit),
        alloc_parent_domain: Some(alloc_parent_domain),
        dealloc_td: Some(dealloc_td),
        alloc_td: Some(alloc_td),
        modify_cq: Some(modify_cq),
        post_srq_ops: Some(post_srq_ops),
        destroy_rwq_ind_table: Some(destroy_rwq_ind_table),
        create_rwq_ind_table: Some(create_rwq_ind_table),
        destroy_wq: Some(destroy_wq),
        modify_wq: Some(modify_wq),
        create_wq: Some(create_wq),
        query_rt_values: Some(query_rt_values),
        create_cq_ex: Some(create_cq_ex),
        priv_: unknown_verbs::table(),
        query_device_ex: Some(query_device_ex),
        ibv_destroy_flow: Some(destroy_flow),
        ABI_placeholder2: Some(placeholder),
        ibv_create_flow: Some(create_flow),
        ABI_placeholder1: Some(placeholder),
        open_qp: Some(open_qp),
        create_qp_ex: Some(create_qp_ex),
        get_srq_num: Some(get_srq_num),
        create_srq_ex: Some(create_srq_ex),
        open_xrcd: Some(open_xrcd),
        close_xrcd: Some(close_xrcd),
        _ABI_placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context,
    }
}

// The data path.
entry! {
    fast fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int = completion::poll;
    fast fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int = completion::request_notification;
    fast fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int = post::send;
    fast fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int = post::receive;
    fast fn post_srq_recv(srq: *mut ibv_srq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr) -> c_int = shared_receive::post_receive;
}

// Extended calls that work.
entry! {
    slot fn query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut ibv_port_attr, port_attr_len: usize) -> c_int = port::query_port;
    slot fn query_device_ex(context: *mut ibv_context, input: *const ibv_query_device_ex_input, attr: *mut ibv_device_attr_ex, attr_size: usize) -> c_int = port::query_device_ex;
    slot fn create_qp_ex(context: *mut ibv_context, qp_init_attr_ex: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp = queue_pair::create_ex;
}

// Shared receive queues, extended connections, windows, memory of other kinds, domains.
entry! {
    slot fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int = polling::query_rt_values;
    slot fn create_cq_ex(context: *mut ibv_context, init_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex = completion::create_cq_ex;
    slot fn alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw = window::alloc;
    slot fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int = window::bind;
    slot fn dealloc_mw(mw: *mut ibv_mw) -> c_int = window::dealloc;
    slot fn advise_mr(pd: *mut ibv_pd, advice: ib_uverbs_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sges: u32) -> c_int = memory::advise_mr;
    slot fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr = memory::alloc_null_mr;
    slot fn reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint) -> *mut ibv_mr = device_memory::register;
    slot fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm = device_memory::alloc;
    slot fn free_dm(dm: *mut ibv_dm) -> c_int = device_memory::free;
    slot fn alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd = domain::alloc_parent;
    slot fn dealloc_td(td: *mut ibv_td) -> c_int = domain::dealloc_td;
    slot fn alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td = domain::alloc_td;
    slot fn modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int = queue_pair::limit_rate;
    slot fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp = queue_pair::open;
    slot fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int = shared_receive::number;
    slot fn create_srq_ex(context: *mut ibv_context, srq_init_attr_ex: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq = shared_receive::create_ex;
    slot fn open_xrcd(context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd = extended::open;
    slot fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int = extended::close;
    slot fn memcpy_to_dm(dm: *mut ibv_dm, dm_offset: u64, host_addr: *const c_void, length: usize) -> c_int = device_memory::copy_to;
    slot fn memcpy_from_dm(host_addr: *mut c_void, dm: *mut ibv_dm, dm_offset: u64, length: usize) -> c_int = device_memory::copy_from;
}

// Not in this version.
entry! {
    slot fn read_counters(counters: *mut ibv_counters, counters_value: *mut u64, ncounters: u32, flags: u32) -> c_int = unsupported;
    slot fn attach_counters_point_flow(counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow) -> c_int = unsupported;
    slot fn create_counters(context: *mut ibv_context, init_attr: *mut ibv_counters_init_attr) -> *mut ibv_counters = unsupported;
    slot fn destroy_counters(counters: *mut ibv_counters) -> c_int = unsupported;
    slot fn modify_flow_action_esp(action: *mut ibv_flow_action, attr: *mut ibv_flow_action_esp_attr) -> c_int = unsupported;
    slot fn destroy_flow_action(action: *mut ibv_flow_action) -> c_int = unsupported;
    slot fn create_flow_action_esp(context: *mut ibv_context, attr: *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action = unsupported;
    slot fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = unsupported;
    slot fn post_srq_ops(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad_op: *mut *mut ibv_ops_wr) -> c_int = unsupported;
    slot fn destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int = unsupported;
    slot fn create_rwq_ind_table(context: *mut ibv_context, init_attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table = unsupported;
    slot fn destroy_wq(wq: *mut ibv_wq) -> c_int = unsupported;
    slot fn modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int = unsupported;
    slot fn create_wq(context: *mut ibv_context, wq_init_attr: *mut ibv_wq_init_attr) -> *mut ibv_wq = unsupported;
    slot fn destroy_flow(flow: *mut ibv_flow) -> c_int = unsupported;
    slot fn create_flow(qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr) -> *mut ibv_flow = unsupported;
    slot fn retired() -> *mut c_void = unsupported;
    slot fn placeholder() = unsupported;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::zeroed;

    #[test]
    fn no_slot_is_empty() {
        // SAFETY: the context is integers, raw pointers, optional functions and a mutex.
        let mut context: ibv_context = unsafe { zeroed() };
        context.ops = context_ops();
        let verbs = verbs_context(context);
        let words = size_of::<verbs_context>() / size_of::<usize>();
        let first_data =
            std::mem::offset_of!(verbs_context, _ABI_placeholder3) / size_of::<usize>();
        // SAFETY: the struct is that many words of initialised pointers up to `first_data`.
        let slots = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(&verbs).cast::<usize>(), words)
        };
        for (index, slot) in slots[..first_data].iter().enumerate() {
            assert!(*slot != 0, "slot {index} of verbs_context");
        }
        let ops = std::mem::offset_of!(verbs_context, context.ops) / size_of::<usize>();
        let count = size_of::<ibv_context_ops>() / size_of::<usize>();
        for (index, slot) in slots[ops..ops + count].iter().enumerate() {
            assert!(*slot != 0, "slot {index} of ibv_context_ops");
        }
    }
}
