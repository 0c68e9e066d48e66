//! The exported symbols of librdmacm. Its rsockets (`rsocket(3)`) are not here: the genuine ones
//! run on these.

use std::ffi::{c_char, c_int, c_void};

use libc::sockaddr;

use super::entry;
use crate::abi::*;
use crate::rdma::abi::*;
use crate::rdma::{
    addrinfo, addrinfo_event, channel, connect, devices, endpoint, id, multicast, option,
    queue_pair, resolve,
};

// Channels, identifiers and events. `rdma_get_cm_event` blocks: see `blocking`.
entry! {
    export fn rdma_create_event_channel() -> *mut rdma_event_channel = channel::create;
    export fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) = channel::destroy;
    export fn rdma_create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space) -> c_int = id::create;
    export fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int = id::destroy;
    export fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int = id::migrate;
    export fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int = channel::ack;
    export fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char = channel::text;
    export fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context = devices::list;
    export fn rdma_free_devices(list: *mut *mut ibv_context) = devices::free_list;
    export fn rdma_set_option(id: *mut rdma_cm_id, level: c_int, optname: c_int, optval: *mut c_void, optlen: usize) -> c_int = option::set;
}

// Addresses and routes.
entry! {
    export fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int = resolve::bind;
    export fn rdma_resolve_addr(id: *mut rdma_cm_id, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, timeout_ms: c_int) -> c_int = resolve::resolve_address;
    export fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int = resolve::resolve_route;
    export fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 = resolve::source_port;
    export fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 = resolve::destination_port;
    export fn rdma_getaddrinfo(node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, res: *mut *mut rdma_addrinfo) -> c_int = addrinfo::get;
    export fn rdma_resolve_addrinfo(id: *mut rdma_cm_id, node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo) -> c_int = addrinfo_event::resolve;
    export fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int = addrinfo_event::query;
    export fn rdma_write_cm_event(id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int, arg: u64) -> c_int = addrinfo_event::write;
    export fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) = addrinfo::free;
}

// Connections.
entry! {
    export fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int = connect::listen;
    export fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int = connect::connect;
    export fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int = connect::accept;
    export fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int = connect::reject;
    export fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int = connect::reject_ece;
    export fn rdma_establish(id: *mut rdma_cm_id) -> c_int = connect::establish;
    export fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int = connect::notify;
    export fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int = connect::disconnect;
    export fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int = connect::set_local_ece;
    export fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int = connect::get_remote_ece;
    export fn rdma_create_ep(id: *mut *mut rdma_cm_id, res: *mut rdma_addrinfo, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int = endpoint::create;
    export fn rdma_destroy_ep(id: *mut rdma_cm_id) = endpoint::destroy;
    export fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int = endpoint::get_request;
}

// Queue pairs and groups.
entry! {
    export fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int = queue_pair::create;
    export fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int = queue_pair::create_ex;
    export fn rdma_destroy_qp(id: *mut rdma_cm_id) = queue_pair::destroy;
    export fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int = queue_pair::create_srq;
    export fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int = queue_pair::create_srq_ex;
    export fn rdma_destroy_srq(id: *mut rdma_cm_id) = queue_pair::destroy_srq;
    export fn rdma_init_qp_attr(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> c_int = queue_pair::init_attr;
    export fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int = multicast::join;
    export fn rdma_join_multicast_ex(id: *mut rdma_cm_id, mc_join_attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> c_int = multicast::join_ex;
    export fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int = multicast::leave;
}
