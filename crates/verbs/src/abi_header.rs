//! The installed header agrees with `abi.rs`: the sizes and offsets that Rust compiled with are
//! checked by a C compiler, so that a newer rdma-core that changes the ABI is noticed. `abi.rs` is
//! that of rdma-core 65; an older header has less: `verbs_context` begins later, and others end
//! earlier.

#![allow(clippy::unwrap_used)]

#[path = "../../engine/tests/common/skipped.rs"]
mod skipped;

use skipped::skipped;
use std::io::Write;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use crate::abi::*;
use crate::rdma::abi::*;

/// `struct NAME { FIELDS }` as lines of `_Static_assert`.
macro_rules! assertions {
    ($text:ident, $($name:ident { $($field:ident),* $(,)? })*) => {$(
        assert_size(&mut $text, stringify!($name), "==", size_of::<$name>());
        $(assert_offset(&mut $text, stringify!($name), stringify!($field), offset_of!($name, $field));)*
    )*};
}

/// The same for a struct that has got fields at its end since.
macro_rules! assertions_of_front {
    ($text:ident, $($name:ident { $($field:ident),* $(,)? })*) => {$(
        assert_size(&mut $text, stringify!($name), "<=", size_of::<$name>());
        $(assert_offset(&mut $text, stringify!($name), stringify!($field), offset_of!($name, $field));)*
    )*};
}

/// The same for a struct that has got fields at its front since.
macro_rules! assertions_of_end {
    ($text:ident, $($name:ident { $($field:ident),* $(,)? })*) => {$(
        assert_size(&mut $text, stringify!($name), "<=", size_of::<$name>());
        $(assert_distance(&mut $text, stringify!($name), stringify!($field), size_of::<$name>() - offset_of!($name, $field));)*
    )*};
}

fn assert_size(text: &mut String, name: &str, relation: &str, size: usize) {
    let message = format!("size of {name}");
    text.push_str(&format!(
        "_Static_assert(sizeof(struct {name}) {relation} {size}, \"{message}\");\n"
    ));
}

fn assert_distance(text: &mut String, name: &str, field: &str, distance: usize) {
    let message = format!("{name}.{field} from its end");
    text.push_str(&format!(
        "_Static_assert(sizeof(struct {name}) - offsetof(struct {name}, {field}) == {distance}, \"{message}\");\n"
    ));
}

fn assert_offset(text: &mut String, name: &str, field: &str, offset: usize) {
    let message = format!("offset of {name}.{field}");
    text.push_str(&format!(
        "_Static_assert(offsetof(struct {name}, {field}) == {offset}, \"{message}\");\n"
    ));
}

fn program() -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n\
         #include <rdma/rdma_cma.h>\n#include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_sa.h>\n",
    );
    assertions! { text,
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_context_ops { alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        ibv_device_attr { fw_ver, node_guid, max_mr_size, vendor_id, max_qp, max_qp_wr, device_cap_flags, max_sge, max_cqe, max_qp_rd_atom, atomic_cap, max_ah, max_pkeys, local_ca_ack_delay, phys_port_cnt }
        ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, device_cap_flags_ex, phys_port_cnt_ex }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed }
        rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq, recv_cq_channel, recv_cq, srq, pd, qp_type }
        rdma_route { addr, path_rec, num_paths }
        rdma_ib_addr { sgid, dgid, pkey }
        rdma_event_channel { fd }
        rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq, qp_num }
        rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        rdma_cm_event { id, listen_id, event, status, param }
        rdma_addrinfo { ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr, ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len, ai_connect, ai_next }
        rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex { qp_context, cap, sq_sig_all, comp_mask, pd, create_flags, send_ops_flags }
        ibv_qp_attr { qp_state, cur_qp_state, path_mtu, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, sq_draining, max_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, rate_limit }
        ibv_ah { context, pd, handle }
        ibv_ah_attr { grh, dlid, sl, is_global, port_num }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_grh { sgid, dgid }
        ibv_sge { addr, length, lkey }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr, qp_type }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits }
        ibv_async_event { element, event_type }
        ibv_sa_path_rec { dgid, flow_label, pkey, mtu, preference }
        ib_uverbs_qp_attr { qp_state, ah_attr, max_send_wr, pkey_index, alt_timeout }
        ib_user_path_rec { dgid, flow_label, mtu, pkey, preference }
    }
    assertions_of_front! { text,
        ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, pkey_tbl_len, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2 }
        ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_send, wr_start, wr_complete, wr_abort }
    }
    assertions_of_end! { text,
        verbs_context {
            query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow,
            create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp,
            destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain,
            dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table,
            destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex, query_device_ex,
            ibv_destroy_flow, ibv_create_flow, open_qp, create_qp_ex, get_srq_num, create_srq_ex,
            open_xrcd, close_xrcd, sz, context
        }
    }
    text
}

/// The compiler's complaints about a C program, empty if there are none; `None` without a compiler
/// or the headers.
fn complaints(program: &str) -> Option<String> {
    let mut compiler = Command::new("cc")
        .args(["-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    compiler
        .stdin
        .take()
        .unwrap()
        .write_all(program.as_bytes())
        .unwrap();
    let output = compiler.wait_with_output().unwrap();
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_installed_header_has_the_layout_that_was_generated() {
    let headers = complaints("#include <infiniband/verbs.h>\n");
    if headers.as_deref() != Some("") {
        return skipped("no C compiler, or no libibverbs headers");
    }
    assert_eq!(complaints(&program()).unwrap(), "");
}

#[test]
fn a_wrong_size_is_noticed() {
    let mut text = String::from("struct s { int a; };\n");
    assert_size(&mut text, "s", "==", 5);
    if let Some(complaint) = complaints(&text) {
        assert!(complaint.contains("size of s"), "{complaint}");
    }
}
