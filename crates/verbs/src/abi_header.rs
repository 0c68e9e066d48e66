//! `abi.rs` and `rdma/abi.rs` agree with rdma-core's headers: with the layout of release 65, which
//! `tests/rdma-core-65-layout.txt` records, and with the installed header, in which a C compiler
//! checks the same sizes and offsets. An older header has less: `verbs_context` begins later, some
//! structs end earlier, and those of `newest` do not exist.

#![allow(clippy::unwrap_used)]

#[path = "../../engine/tests/common/skipped.rs"]
mod skipped;

use skipped::skipped;
#[cfg(target_arch = "x86_64")]
use std::collections::BTreeMap;
use std::io::Write;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use crate::abi::*;
use crate::rdma::abi::*;

/// A struct as Rust compiled it.
struct Layout {
    name: &'static str,
    size: usize,
    fields: Vec<(&'static str, usize)>,
    grows: Grows,
}

/// Where later releases add fields.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grows {
    Never,
    AtEnd,
    AtFront,
}

/// `struct NAME { FIELDS }` as [`Layout`].
macro_rules! layouts {
    ($grows:ident, $($name:ident { $($field:ident),* $(,)? })*) => {
        [$(Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: vec![$((stringify!($field), offset_of!($name, $field))),*],
            grows: Grows::$grows,
        }),*]
    };
}

impl Layout {
    /// The `_Static_assert`s of C that an installed header has to hold.
    fn assertions(&self) -> String {
        let Layout { name, size, .. } = self;
        let relation = if self.grows == Grows::Never {
            "=="
        } else {
            "<="
        };
        let mut text = format!(
            "_Static_assert(sizeof(struct {name}) {relation} {size}, \"size of {name}\");\n"
        );
        for (field, offset) in &self.fields {
            let field = field.trim_end_matches('_');
            let place = format!("offsetof(struct {name}, {field})");
            let condition = if self.grows == Grows::AtFront {
                format!("sizeof(struct {name}) - {place} == {}", size - offset)
            } else {
                format!("{place} == {offset}")
            };
            text.push_str(&format!(
                "_Static_assert({condition}, \"offset of {name}.{field}\");\n"
            ));
        }
        text
    }

    /// Its size and offsets, under the names of the record.
    #[cfg(target_arch = "x86_64")]
    fn facts(&self) -> Vec<(String, usize)> {
        let size = (self.name.to_owned(), self.size);
        let fields = self.fields.iter().map(|(field, offset)| {
            let field = field.trim_end_matches('_');
            (format!("{}.{field}", self.name), *offset)
        });
        [size].into_iter().chain(fields).collect()
    }
}

/// Structs that every release since 34 has.
fn structs() -> Vec<Layout> {
    let mut all = Vec::new();
    all.extend(layouts! { Never,
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
    });
    all.extend(layouts! { AtEnd,
        ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, pkey_tbl_len, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2 }
        ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_send, wr_start, wr_complete, wr_abort }
    });
    all.extend(layouts! { AtFront,
        verbs_context {
            query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow,
            create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp,
            destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain,
            dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table,
            destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex, query_device_ex,
            ibv_destroy_flow, ibv_create_flow, open_qp, create_qp_ex, get_srq_num, create_srq_ex,
            open_xrcd, close_xrcd, sz, context
        }
    });
    all
}

/// Structs of release 65 that older headers do not have.
fn newest() -> Vec<Layout> {
    let mut all = Vec::new();
    all.extend(layouts! { Never,
        ibv_mr_init_attr { length, access, comp_mask, iova, addr, fd, fd_offset, dmah, buf }
        ibv_dmah { context }
        ibv_dmah_init_attr { comp_mask, cpu_id, ph, tph_mem_type }
        ibv_comp_cntr { context, handle }
        ibv_comp_cntr_caps { max_value, max_counters, supported_qp_attach_ops }
        ibv_comp_cntr_init_attr { comp_mask, type_, flags }
        ibv_qp_attach_comp_cntr_attr { comp_mask, op_mask }
    });
    all.extend(layouts! { AtFront,
        verbs_context { free_buf, alloc_buf, dm_export_dmabuf_fd, reg_mr_ex, dealloc_dmah, alloc_dmah }
    });
    all
}

/// Constants of release 65 that older headers do not have.
fn newest_constants() -> Vec<(String, usize)> {
    let constants = |pairs: &[(&str, u32)]| -> Vec<(String, usize)> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), *value as usize))
            .collect()
    };
    macro_rules! named {
        ($($name:ident),* $(,)?) => { constants(&[$((stringify!($name), $name as u32)),*]) };
    }
    named![
        IBV_REG_MR_MASK_IOVA,
        IBV_REG_MR_MASK_ADDR,
        IBV_REG_MR_MASK_FD,
        IBV_REG_MR_MASK_FD_OFFSET,
        IBV_REG_MR_MASK_DMAH,
        IBV_REG_MR_MASK_BUF,
        IBV_QP_ATTACH_COMP_CNTR_OP_SEND,
        IBV_QP_ATTACH_COMP_CNTR_OP_RECV,
        IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
        IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ,
        IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
        IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE,
        IBV_COMP_CNTR_TYPE_WRS,
        IBV_COMP_CNTR_TYPE_BYTES,
        IBV_TPH_MEM_TYPE_VM,
        IBV_TPH_MEM_TYPE_PM,
        IBV_DMAH_INIT_ATTR_MASK_CPU_ID,
        IBV_DMAH_INIT_ATTR_MASK_PH,
        IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE,
        RDMA_CM_EVENT_ADDRINFO_RESOLVED,
        RDMA_CM_EVENT_ADDRINFO_ERROR,
        RDMA_CM_EVENT_USER,
        RDMA_CM_EVENT_INTERNAL,
        RAI_SA,
        RAI_DNS,
    ]
}

/// The record of release 65: name and number.
#[cfg(target_arch = "x86_64")]
fn recorded() -> BTreeMap<&'static str, usize> {
    include_str!("../tests/rdma-core-65-layout.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, number)| (name, number.parse().unwrap()))
        .collect()
}

fn includes() -> String {
    String::from(
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n\
         #include <rdma/rdma_cma.h>\n#include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_sa.h>\n",
    )
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

#[cfg(target_arch = "x86_64")]
#[test]
fn structs_and_constants_are_those_of_release_65() {
    let recorded = recorded();
    let layouts = structs().into_iter().chain(newest());
    let ours: Vec<_> = layouts
        .flat_map(|layout| layout.facts())
        .chain(newest_constants())
        .collect();
    let differ: Vec<_> = ours
        .iter()
        .filter(|(name, value)| recorded.get(name.as_str()) != Some(value))
        .map(|(name, value)| {
            format!(
                "{name}: {value}, recorded {:?}",
                recorded.get(name.as_str())
            )
        })
        .collect();
    assert!(differ.is_empty(), "{differ:#?}");
    let checked: Vec<_> = ours.iter().map(|(name, _)| name.as_str()).collect();
    let unchecked: Vec<_> = recorded
        .keys()
        .filter(|name| !checked.contains(name))
        .collect();
    assert!(unchecked.is_empty(), "only recorded: {unchecked:?}");
}

#[test]
fn the_installed_header_has_the_layout_that_was_generated() {
    let headers = complaints("#include <infiniband/verbs.h>\n");
    if headers.as_deref() != Some("") {
        return skipped("no C compiler, or no libibverbs headers");
    }
    let assertions: String = structs().iter().map(Layout::assertions).collect();
    assert_eq!(complaints(&(includes() + &assertions)).unwrap(), "");
}

/// Tests in C are compiled with headers that may be older than release 65.
#[test]
fn the_declarations_for_tests_in_c_are_those_of_release_65() {
    if complaints("#include <rdma/rdma_cma.h>\n").as_deref() != Some("") {
        return skipped("no C compiler, or no librdmacm headers");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/newer.h");
    let mut text = format!("{}#include \"{path}\"\n", includes());
    let is_declared = |layout: &Layout| layout.grows == Grows::Never;
    for layout in newest().iter().filter(|layout| is_declared(layout)) {
        text.push_str(&layout.assertions());
    }
    for (name, value) in newest_constants() {
        if include_str!("../tests/c/newer.h").contains(&name) {
            text.push_str(&format!("_Static_assert({name} == {value}, \"{name}\");\n"));
        }
    }
    assert_eq!(complaints(&text).unwrap(), "");
}

#[test]
fn a_wrong_size_is_noticed() {
    let layout = Layout {
        name: "s",
        size: 5,
        fields: vec![("a", 0)],
        grows: Grows::Never,
    };
    let text = format!(
        "#include <stddef.h>\nstruct s {{ int a; }};\n{}",
        layout.assertions()
    );
    if let Some(complaint) = complaints(&text) {
        assert!(complaint.contains("size of s"), "{complaint}");
    }
}
