//! To an address without a proof no message of air mode is sent: the request may have been forged.

use crate::common::*;
use crate::wires::{Wires, reset};
use crate::{BTH_AND_DETH, MS, inject_into};
use airdma_engine::cm_protocol::{
    Accept, Connect, ConnectionId, Event, IpAddressing, PortSpace, Route, ServiceId, Takes,
    TransportService,
};
use airdma_engine::*;
use airdma_wire::air::{AIR_CLASS, Hello, feature, hello};
use std::sync::Arc;

const SERVICE: u16 = 7471;

/// Messages between airdma hosts that the right host has sent.
fn said(wires: &Wires) -> usize {
    let from_right = wires.sent.iter().filter(|(from, _)| *from == 1);
    let mads = from_right.filter(|(_, bytes)| bytes[5..8] == [0, 0, 1]);
    mads.filter(|(_, bytes)| bytes[BTH_AND_DETH + 1] == AIR_CLASS)
        .count()
}

/// The right host has accepted a connection requested in the name of the left one, which does not
/// know of air mode.
fn accepted() -> (Wires, Arc<CmChannel>, ConnectionId) {
    let mut wires = Wires::new([false, true], 4096);
    wires.ends.iter().for_each(reset);
    wires.quietly(2000 * MS);
    let channels = [(); 2].map(|()| CmChannel::new().unwrap());
    let service_id = ServiceId::of_port(PortSpace::TCP, SERVICE);
    let devices = wires.hosts.each_ref().map(|host| host.device.device());
    let right = &channels[1];
    devices[1]
        .cm_listen(service_id, Takes::RC, None, 8, right, 1)
        .unwrap();
    let gids = wires.ends.each_ref().map(|end| end.path().gid);
    let wanted = Connect {
        route: Route {
            local: gids[0],
            remote: gids[1],
            traffic_class: 0,
        },
        service_id,
        transport: TransportService::Rc,
        qpn: wires.ends[0].qp.number(),
        psn: PSN,
        path_mtu: PathMtu::M1024,
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        ack_timeout: 14,
        flow_label: 0,
        addressing: IpAddressing::new(gids[0].to_ip(), 4711, gids[1].to_ip()),
        private_data: &[],
    };
    let id = devices[0].cm_connect(&wanted, &channels[0], 2).unwrap();
    wires.quietly(2 * MS);
    let devices = wires.hosts.each_ref().map(|host| host.device.device());
    let Some((_, CmNews::Event(Event::ConnectRequest(request)))) = right.pop() else {
        panic!("a request");
    };
    devices[1].cm_hand_over(request.id, right, 3).unwrap();
    wires.ends[1].connect(&wires.ends[0]);
    let accept = Accept {
        qpn: wires.ends[1].qp.number(),
        psn: PSN,
        responder_resources: 4,
        initiator_depth: 4,
        rnr_retry_count: 7,
        srq: false,
        private_data: &[],
    };
    devices[1].cm_accept(request.id, &accept).unwrap();
    wires.sent.clear();
    (wires, Arc::clone(&channels[0]), id)
}

#[test]
fn a_forged_connection_request_causes_no_hello() {
    let (mut wires, _channel, _) = accepted();
    // The host at that address sent no request, and is silent.
    wires.quietly(1500 * MS);
    assert_eq!(said(&wires), 0);
}

#[test]
fn an_rtu_proves_the_peers_presence() {
    let (mut wires, channel, id) = accepted();
    wires.quietly(5 * MS);
    assert_eq!(said(&wires), 0);
    assert!(channel.pop().is_some(), "it was accepted");
    wires.ends[0].connect(&wires.ends[1]);
    wires.hosts[0].device.device().cm_ready(id, &[]).unwrap();
    wires.quietly(2 * MS);
    assert_eq!(said(&wires), 1);
    wires.quietly(1000 * MS);
    assert_eq!(said(&wires), 4);
}

#[test]
fn so_does_data_though_that_message_is_lost() {
    let (mut wires, _channel, _) = accepted();
    wires.ends[0].connect(&wires.ends[1]);
    let write = wires.ends[0].write(&wires.ends[1], 0, 4096);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(2 * MS);
    wires.ends[0].ok();
    assert_eq!(said(&wires), 1);
}

#[test]
fn a_question_from_there_is_answered_by_as_much_and_no_more() {
    let (mut wires, _channel, _) = accepted();
    let question = Hello {
        asks: true,
        features: feature::SELECTIVE,
        sender: (wires.ends[0].qp.number().get() >> 12 & 0xff) << 24,
        instance: 9,
        nonce: 7,
        ..Hello::default()
    };
    for number in 1..=3 {
        inject_into(&wires, 1, &hello(&question, 0));
        wires.quietly(2 * MS);
        assert_eq!(said(&wires), number);
    }
    wires.quietly(1000 * MS);
    assert_eq!(said(&wires), 3);
}
