//! The passive side.

use std::net::Ipv4Addr;

use airdma_cm::*;
use airdma_wire::cm::*;
use airdma_wire::{Gid, PathMtu, Qpn};

use crate::bench::*;

#[test]
fn a_request_tells_all_about_the_peer() {
    let mut b = Bench::listening();
    b.arrives(b.req());
    let Some(Event::ConnectRequest(request)) = b.manager.poll_event() else {
        panic!("no request");
    };
    assert_eq!((request.qpn, request.psn.get()), (PEER_QPN, 9));
    assert_eq!(
        (request.responder_resources, request.initiator_depth),
        (3, 4)
    );
    assert_eq!((request.retry_count, request.rnr_retry_count), (7, 6));
    assert_eq!(
        (request.path_mtu, request.ack_timeout),
        (PathMtu::M2048, 19)
    );
    assert_eq!(request.addressing.unwrap().src_port(), 99);
    assert_eq!(request.private_data.len(), 56);
    assert_eq!(&request.private_data[..6], b"hello\0");
    b.manager.accept(b.now, request.id, &accept()).unwrap();
    let mad = b.sent().unwrap();
    assert_eq!(mad.transaction, 77);
    let CmMessage::Rep(rep) = mad.message else {
        panic!("{mad:?}");
    };
    assert_eq!((rep.local_id, rep.remote_id), (request.id.0, PEER));
    assert_eq!((rep.qpn, rep.psn.get()), (QPN, 5));
    assert_eq!((rep.target_ack_delay, rep.rnr_retry_count), (15, 7));
    assert_eq!(&rep.private_data[..8], b"welcome\0");
}

#[test]
fn a_repeated_request_gets_what_the_first_got_and_no_event() {
    let mut b = Bench::requested();
    b.arrives(b.req());
    assert_eq!(b.sends(), ["MRA us 7 Req 24"]);
    b.manager.accept(b.now, b.id, &accept()).unwrap();
    b.sends();
    b.arrives(b.req());
    assert_eq!(b.sends(), ["REP us 7"]);
    b.arrives(b.rtu());
    b.arrives(b.rtu());
    assert_eq!(b.events(), ["Established 224"]);
    b.arrives(b.req());
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.counted(Counter::Duplicates), 4);
    b.arrives(b.dreq());
    assert_eq!(b.sends(), ["DREP us 7"]);
    b.arrives(b.req());
    assert_eq!(b.sends(), ["REJ 0 7 Req stale connection (10)"]);
}

#[test]
fn a_reply_to_a_proven_peer_is_repeated_fifteen_times() {
    let mut b = Bench::accepted();
    b.arrives(b.mra(About::Rep));
    assert_eq!(b.next_timer(), SERVICE_AND_RESPONSE_MS);
    assert_eq!(b.sends(), ["REP us 7"]);
    for _ in 0..14 {
        assert_eq!(b.next_timer(), RESPONSE_MS);
        assert_eq!(b.sends(), ["REP us 7"]);
    }
    b.next_timer();
    assert_eq!(b.sends(), ["REJ us 7 Other timeout (4)"]);
    assert_eq!(b.events(), ["Unreachable"]);
    assert_eq!(b.next_timer(), TIMEWAIT_MS);
    assert_eq!(b.events(), [""; 0]);
    assert!(b.manager.is_idle());
}

#[test]
fn data_stands_for_a_lost_ready() {
    let mut b = Bench::accepted();
    b.manager.data_arrived(b.now, b.id);
    assert_eq!(b.events(), ["Established 0"]);
    b.manager.data_arrived(b.now, b.id);
    b.arrives(b.rtu());
    assert_eq!(b.events(), [""; 0]);
    assert_eq!(b.manager.poll_timeout(), None);
}

#[test]
fn nobody_listens() {
    let mut b = Bench::new();
    b.arrives(b.req());
    assert_eq!(b.sends(), ["REJ 0 7 Req invalid service id (8)"]);
    assert!(b.manager.is_idle());
    assert_eq!(b.counted(Counter::RejectedInvalidService), 1);
}

#[test]
fn a_path_mtu_above_the_ports_is_refused() {
    let mut b = Bench::listening();
    b.manager.set_path_mtu_max(PathMtu::M1024);
    b.arrives(b.req());
    assert_eq!(b.sends(), ["REJ 0 7 Req invalid path MTU (26)"]);
    assert_eq!(b.events(), [""; 0]);
    assert!(b.manager.connections() == 0);
    assert_eq!(b.counted(Counter::RejectedPathMtu), 1);
    b.manager.set_path_mtu_max(PathMtu::M2048);
    b.arrives(b.req());
    assert_eq!(b.events(), ["ConnectRequest"]);
}

#[test]
fn a_listener_takes_nothing_but_its_kind() {
    let mut b = Bench::new();
    b.manager.listen(SERVICE, Takes::RC, None, 8).unwrap();
    let uc = Req {
        transport: TransportService::Uc,
        ..b.req()
    };
    b.arrives(uc);
    assert_eq!(b.sends(), ["REJ 0 7 Req invalid transport service (9)"]);
    b.arrives(SidrReq {
        service_id: SERVICE,
        ..crate::sidr::request(&b)
    });
    assert_eq!(b.sends(), ["SIDR_REP 1 0x0 0"]);
    assert_eq!(b.events(), [""; 0]);
    assert_eq!(b.counted(Counter::RejectedInvalidService), 2);
    let mut b = Bench::new();
    b.manager
        .listen(SERVICE, Takes::Datagrams, None, 8)
        .unwrap();
    b.arrives(b.req());
    assert_eq!(b.sends(), ["REJ 0 7 Req invalid transport service (9)"]);
    assert_eq!(b.events(), [""; 0]);
    assert!(b.manager.is_idle());
}

#[test]
fn who_names_an_address_goes_before_who_takes_all() {
    let mut b = Bench::new();
    let all = b.manager.listen(SERVICE, Takes::RC, None, 8).unwrap();
    let one = b
        .manager
        .listen(SERVICE, Takes::RC, Some(b.route.local), 8)
        .unwrap();
    let again = b.manager.listen(SERVICE, Takes::RC, None, 8);
    assert_eq!(again, Err(CmError::ServiceInUse));
    let mut req = b.req();
    for expected in [one, all] {
        b.arrives(req);
        let Some(Event::ConnectRequest(request)) = b.manager.poll_event() else {
            panic!("no request");
        };
        assert_eq!(request.listener, expected);
        b.manager.close(b.now, one);
        req.local_id += 1;
        req.qpn = Qpn::new(req.qpn.get() + 1);
    }
}

#[test]
fn a_refused_request_stays_refused() {
    let mut b = Bench::requested();
    b.manager
        .reject(b.now, b.id, RejReason::CONSUMER, b"no")
        .unwrap();
    assert_eq!(b.sends(), ["REJ us 7 Req consumer (28)"]);
    b.arrives(b.req());
    let Some(CmMessage::Rej(rej)) = b.sent().map(|mad| mad.message) else {
        panic!("no REJ");
    };
    assert_eq!(&rej.private_data[..3], b"no\0");
    assert_eq!(b.events(), [""; 0]);
    // As long as the peer may repeat its message: sixteen times 4.3 s.
    assert_eq!(b.next_timer(), 68_719);
    assert!(b.manager.is_idle());
}

#[test]
fn a_peer_that_gives_up_takes_its_request_along() {
    let mut rej = Bench::requested().rej(RejReason::TIMEOUT);
    rej.remote_id = 0;
    // The program has not seen the request, and gets no event.
    let mut b = Bench::listening();
    b.arrives(b.req());
    b.arrives(rej);
    assert_eq!(b.events(), [""; 0]);
    // The program has seen the request.
    let mut b = Bench::requested();
    b.arrives(rej);
    assert_eq!(b.events(), ["Rejected timeout (4) 148"]);
    let late = b.manager.accept(b.now, b.id, &accept());
    assert_eq!(late, Err(CmError::Unknown));
    b.next_timer();
    assert!(b.manager.is_idle());
}

#[test]
fn a_request_whose_path_is_not_the_one_it_came_by_is_dropped() {
    let mut b = Bench::listening();
    let mut req = b.req();
    req.primary.local_gid = Gid::from(Ipv4Addr::new(10, 0, 0, 3));
    b.arrives(req);
    req = b.req();
    req.primary.remote_gid = Gid::from(Ipv4Addr::new(10, 0, 0, 3));
    b.arrives(req);
    assert_eq!(b.counted(Counter::DropWrongPeer), 2);
    req = b.req();
    req.private_data[1] = 0x50;
    b.arrives(req);
    req = b.req();
    req.local_id = 0;
    b.arrives(req);
    assert_eq!(b.counted(Counter::DropMalformed), 2);
    assert!(b.manager.is_idle());
}

/// A peer that was asked to wait repeats its message that much later, so the refusal is kept that
/// much longer.
#[test]
fn a_refusal_outlives_the_wait_that_was_asked_for() {
    let mut b = Bench::requested();
    b.arrives(b.req());
    assert_eq!(b.sends(), ["MRA us 7 Req 24"]);
    let reason = RejReason::CONSUMER;
    b.manager.reject(b.now, b.id, reason, b"").unwrap();
    assert_eq!(b.sends(), ["REJ us 7 Req consumer (28)"]);
    assert_eq!(b.next_timer(), 137_438);
    assert!(b.manager.is_idle());
}

#[test]
fn a_request_that_names_other_addresses_is_dropped() {
    let mut b = Bench::listening();
    let last = IpAddressing::LEN - 1;
    // The source address ends before the destination begins.
    for at in [last, last - 16] {
        let mut forged = b.req();
        forged.private_data[at] ^= 1;
        b.arrives(forged);
    }
    assert_eq!(b.counted(Counter::DropWrongPeer), 2);
    assert_eq!(b.events(), [""; 0]);
    assert_eq!(b.sends(), [""; 0]);
    assert!(b.manager.is_idle());
}
