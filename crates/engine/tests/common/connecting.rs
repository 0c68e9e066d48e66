//! Connections by RDMA CM.

use super::{End, PATIENCE, PSN};
use airdma_engine::cm_protocol::{
    Connect, Event, IpAddressing, Route, ServiceId, TransportService,
};
use airdma_engine::{CmChannel, CmNews, Gid, PathMtu};
use std::time::Instant;

/// A request for a connection of the queue pair of `from`.
pub fn request_from(from: &End, remote: Gid, service_id: ServiceId) -> Connect<'static> {
    let local = from.path().gid;
    Connect {
        route: Route {
            local,
            remote,
            traffic_class: 0,
        },
        service_id,
        transport: TransportService::Rc,
        qpn: from.qp.number(),
        psn: PSN,
        path_mtu: PathMtu::M1024,
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        ack_timeout: 14,
        flow_label: 0,
        addressing: IpAddressing::new(local.to_ip(), 4711, remote.to_ip()),
        private_data: &[],
    }
}

/// Waits for an event as C programs do: on the descriptor, while no other thread runs the worker.
pub fn next_event(channel: &CmChannel) -> (u64, Event) {
    let start = Instant::now();
    loop {
        match channel.pop() {
            Some((cookie, CmNews::Event(event))) => return (cookie, event),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        assert!(start.elapsed() < PATIENCE, "no event");
        let mut descriptor = libc::pollfd {
            fd: channel.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor.
        unsafe { libc::poll(&raw mut descriptor, 1, 1000) };
    }
}
