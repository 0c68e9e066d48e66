//! Connections by RDMA CM between two devices: messages over queue pair 1, events on channels, then
//! data.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::cm_protocol::{
    Accept, Connect, ConnectRequest, Event, IpAddressing, PortSpace, RejReason, Resolve, Route,
    ServiceId, SidrAnswer, SidrStatus, Takes,
};
use airdma_engine::*;
use common::*;
use std::sync::Arc;
use std::time::Instant;

const PORT: u16 = 7471;

fn service() -> ServiceId {
    ServiceId::of_port(PortSpace::TCP, PORT)
}

fn wanted(from: &End, to: &End) -> Connect<'static> {
    Connect {
        private_data: b"hello",
        ..request_from(from, to.path().gid, service())
    }
}

fn request(channel: &CmChannel, cookie: u64) -> Box<ConnectRequest> {
    match next_event(channel) {
        (to, Event::ConnectRequest(request)) if to == cookie => request,
        other => panic!("{other:?}"),
    }
}

fn accept(end: &End) -> Accept<'static> {
    Accept {
        qpn: end.qp.number(),
        psn: PSN,
        responder_resources: 4,
        initiator_depth: 4,
        rnr_retry_count: 7,
        srq: false,
        private_data: b"welcome",
    }
}

fn ends(left: &Arc<Device>, right: &Arc<Device>) -> (End, End) {
    (
        End::new(left, QpType::Rc, 8192),
        End::new(right, QpType::Rc, 8192),
    )
}

/// The peer's RTU is lost, and its data is not.
#[test]
fn data_of_the_peer_establishes_what_was_accepted() {
    let (left, right) = wired();
    let (active, passive) = ends(&left, &right);
    let (asks, answers) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
    right
        .cm_listen(service(), Takes::RC, None, 8, &answers, 1)
        .unwrap();
    left.cm_connect(&wanted(&active, &passive), &asks, 2)
        .unwrap();
    let request = request(&answers, 1);
    right.cm_hand_over(request.id, &answers, 3).unwrap();
    passive.connect(&active);
    right.cm_accept(request.id, &accept(&passive)).unwrap();
    assert!(matches!(next_event(&asks), (2, Event::ConnectResponse(_))));
    active.connect(&passive);
    active
        .qp
        .post_send(&active.write(&passive, 0, 4096))
        .unwrap();
    active.ok();
    assert!(matches!(
        next_event(&answers),
        (3, Event::Established { .. })
    ));
}

fn connects_transfers_and_disconnects(left: &Arc<Device>, right: &Arc<Device>) {
    let (active, passive) = ends(left, right);
    let (asks, answers) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
    let listener = right
        .cm_listen(service(), Takes::RC, None, 8, &answers, 1)
        .unwrap();
    let id = left
        .cm_connect(&wanted(&active, &passive), &asks, 2)
        .unwrap();

    let request = request(&answers, 1);
    assert_eq!(request.qpn, active.qp.number());
    assert_eq!(request.listener, listener);
    assert_eq!(&request.private_data[..5], b"hello");
    right.cm_hand_over(request.id, &answers, 3).unwrap();
    passive.connect(&active);
    right.cm_accept(request.id, &accept(&passive)).unwrap();

    match next_event(&asks) {
        (2, Event::ConnectResponse(response)) => {
            assert_eq!(response.qpn, passive.qp.number());
            assert_eq!(&response.private_data[..7], b"welcome");
        }
        other => panic!("{other:?}"),
    }
    active.connect(&passive);
    left.cm_ready(id, &[]).unwrap();
    assert!(matches!(
        next_event(&answers),
        (3, Event::Established { .. })
    ));

    let data = pattern(4096, 5);
    active.memory.fill(0, &data);
    active
        .qp
        .post_send(&active.write(&passive, 0, 4096))
        .unwrap();
    active.ok();
    assert_eq!(passive.memory.bytes(0, 4096), data);

    left.cm_disconnect(id, &[]).unwrap();
    assert!(matches!(
        next_event(&answers),
        (3, Event::Disconnected { .. })
    ));
    assert!(matches!(next_event(&asks), (2, Event::Disconnected { .. })));
    right.cm_close(listener);
}

#[test]
fn a_connection_is_made_used_and_ended_over_a_wire() {
    let (left, right) = wired();
    connects_transfers_and_disconnects(&left, &right);
}

#[test]
fn a_connection_is_made_used_and_ended_over_sockets() {
    let (left, right) = sockets("127.0.9.1", "127.0.9.2");
    connects_transfers_and_disconnects(&left, &right);
}

#[test]
fn a_device_connects_to_itself() {
    let (left, _right) = sockets("127.0.9.3", "127.0.9.4");
    connects_transfers_and_disconnects(&left, &left);
}

#[test]
fn a_port_without_listener_refuses() {
    let (left, right) = wired();
    let (active, passive) = ends(&left, &right);
    // The other side has a connection manager, and another service.
    let (asks, answers) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
    let other = ServiceId::of_port(PortSpace::TCP, PORT + 1);
    right
        .cm_listen(other, Takes::RC, None, 8, &answers, 1)
        .unwrap();
    left.cm_connect(&wanted(&active, &passive), &asks, 2)
        .unwrap();
    match next_event(&asks) {
        (2, Event::Rejected { reason, .. }) => {
            assert_eq!(reason, RejReason::INVALID_SERVICE_ID);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_listens_may_refuse_with_a_reason_of_its_own() {
    let (left, right) = wired();
    let (active, passive) = ends(&left, &right);
    let (asks, answers) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
    right
        .cm_listen(service(), Takes::RC, None, 8, &answers, 1)
        .unwrap();
    left.cm_connect(&wanted(&active, &passive), &asks, 2)
        .unwrap();
    let request = request(&answers, 1);
    right
        .cm_reject(request.id, RejReason::CONSUMER, b"no")
        .unwrap();
    match next_event(&asks) {
        (
            2,
            Event::Rejected {
                reason,
                private_data,
                ..
            },
        ) => {
            assert_eq!(reason, RejReason::CONSUMER);
            assert_eq!(&private_data[..2], b"no");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn events_before_a_request_is_taken_over_are_kept() {
    let (left, right) = wired();
    let (active, passive) = ends(&left, &right);
    let (asks, answers) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
    right
        .cm_listen(service(), Takes::RC, None, 8, &answers, 1)
        .unwrap();
    let id = left
        .cm_connect(&wanted(&active, &passive), &asks, 2)
        .unwrap();
    let request = request(&answers, 1);
    passive.connect(&active);
    right.cm_accept(request.id, &accept(&passive)).unwrap();
    next_event(&asks);
    left.cm_ready(id, &[]).unwrap();
    let start = Instant::now();
    while !answers.has_news() {
        assert!(start.elapsed() < PATIENCE);
    }
    // The event waits under the listener's cookie.
    let own = CmChannel::new().unwrap();
    right.cm_hand_over(request.id, &own, 3).unwrap();
    assert!(matches!(next_event(&own), (3, Event::Established { .. })));
    assert!(!answers.has_news());
    // Then to a third channel.
    own.post(3, 17);
    answers.post(3, 18);
    own.move_to(&answers, 3);
    assert_eq!(answers.pop(), Some((3, CmNews::Own(17))));
    assert_eq!(answers.take(3), [CmNews::Own(18)]);
}

#[test]
fn a_service_has_one_listener_and_is_free_when_that_is_closed() {
    let (_left, right) = wired();
    let channel = CmChannel::new().unwrap();
    let listener = right
        .cm_listen(service(), Takes::RC, None, 8, &channel, 1)
        .unwrap();
    let second = right.cm_listen(service(), Takes::RC, None, 8, &channel, 2);
    assert_eq!(second.unwrap_err().errno(), libc::EADDRINUSE);
    right.cm_close(listener);
    right
        .cm_listen(service(), Takes::RC, None, 8, &channel, 3)
        .unwrap();
}

#[test]
fn a_datagram_service_is_found() {
    let (left, right) = wired();
    let end = End::new(&right, QpType::Ud, 4096);
    let (asks, answers) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
    let service = ServiceId::of_port(PortSpace::UDP, PORT);
    right
        .cm_listen(service, Takes::Datagrams, None, 8, &answers, 1)
        .unwrap();
    let local = left.info().gids[0].gid;
    let remote = end.path().gid;
    let resolve = Resolve {
        route: Route {
            local,
            remote,
            traffic_class: 0,
        },
        service_id: service,
        addressing: IpAddressing::new(local.to_ip(), 4711, remote.to_ip()),
        private_data: &[],
    };
    left.cm_resolve(&resolve, &asks, 2).unwrap();
    let id = match next_event(&answers) {
        (1, Event::SidrRequest(request)) => request.id,
        other => panic!("{other:?}"),
    };
    let answer = SidrAnswer {
        status: SidrStatus::VALID,
        qpn: end.qp.number(),
        qkey: Qkey(0x0123_4567),
        private_data: &[],
    };
    right.cm_answer(id, &answer).unwrap();
    match next_event(&asks) {
        (2, Event::SidrResponse(response)) => {
            assert_eq!(response.status, SidrStatus::VALID);
            assert_eq!(response.qpn, end.qp.number());
            assert_eq!(response.qkey, Qkey(0x0123_4567));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_fetched_request_of_a_closed_listener_is_rejected() {
    let (left, right) = wired();
    let (active, passive) = ends(&left, &right);
    let (asks, answers) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
    let listener = right
        .cm_listen(service(), Takes::RC, None, 8, &answers, 1)
        .unwrap();
    left.cm_connect(&wanted(&active, &passive), &asks, 2)
        .unwrap();
    let request = request(&answers, 1);
    right.cm_close(listener);
    match next_event(&asks) {
        (2, Event::Rejected { reason, .. }) => assert_eq!(reason, RejReason::CONSUMER),
        other => panic!("{other:?}"),
    }
    let late = right.cm_hand_over(request.id, &answers, 3);
    assert_eq!(late.unwrap_err().errno(), libc::EINVAL);
}
