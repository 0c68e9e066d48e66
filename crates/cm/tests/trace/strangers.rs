//! Datagrams with forged addresses harm only their sender.

use std::net::Ipv4Addr;
use std::time::Duration;

use airdma_cm::*;
use airdma_wire::cm::*;
use airdma_wire::{Gid, Qpn};

use crate::bench::*;

/// A request from an address that is not its sender's; each `n` gives another address.
fn forged(b: &Bench, n: u32) -> (Gid, Req) {
    let address = Ipv4Addr::from(0x0a01_0000 + n);
    let remote = Gid::from(address);
    let mut req = b.req();
    req.local_id = 0x8000_0000 + n;
    req.primary.local_gid = remote;
    let local = b.route.local.to_ip();
    let addressing = IpAddressing::new(address.into(), 99, local).unwrap();
    req.private_data[..IpAddressing::LEN].copy_from_slice(&addressing.to_bytes());
    (remote, req)
}

fn forge(b: &mut Bench, n: u32) {
    let (remote, req) = forged(b, n);
    b.arrives_from(remote, req);
}

/// A program that accepts every request; returns the connections.
fn accept_all(b: &mut Bench) -> Vec<ConnectionId> {
    let mut accepted = Vec::new();
    while let Some(event) = b.manager.poll_event() {
        if let Event::ConnectRequest(request) = event {
            b.manager.taken(request.id);
            b.manager.accept(b.now, request.id, &accept()).unwrap();
            accepted.push(request.id);
        }
    }
    accepted
}

/// Lets time pass.
fn wait(b: &mut Bench, time: Duration) {
    let until = b.now + time;
    while let Some(due) = b.manager.poll_timeout().filter(|due| *due <= until) {
        b.now = due;
        b.manager.handle_timeout(due);
    }
    b.now = until;
}

/// Connects the bench's own peer, which sends its RTU within a round trip.
fn connects(b: &mut Bench) -> bool {
    b.arrives(b.req());
    let Some(&id) = accept_all(b).last() else {
        return false;
    };
    b.sends();
    b.id = id;
    b.arrives(b.rtu());
    b.events() == ["Established 224"]
}

#[test]
fn an_honest_request_gets_in_behind_a_flood() {
    let mut b = Bench::listening();
    for n in 0..160 {
        forge(&mut b, n);
    }
    assert!(connects(&mut b));
    assert_eq!(b.counted(Counter::HalfOpenEvicted), 153);
}

#[test]
fn a_trickle_of_forged_requests_keeps_no_listener_busy() {
    let mut b = Bench::with(|config| config.half_open_max = 16);
    b.manager.listen(SERVICE, Takes::RC, None, 8).unwrap();
    for n in 0..160 {
        forge(&mut b, n);
        accept_all(&mut b);
    }
    // 1.6 requests a second.
    for n in 160..300 {
        wait(&mut b, Duration::from_millis(625));
        forge(&mut b, n);
        accept_all(&mut b);
        b.sends();
    }
    assert!(connects(&mut b));
    assert!(b.manager.connections() <= 17);
}

#[test]
fn accepted_connections_wait_two_seconds_and_are_not_too_many() {
    let mut b = Bench::new();
    let listener = b.manager.listen(SERVICE, Takes::RC, None, 8).unwrap();
    b.manager.limit_answered(listener, 3);
    for n in 0..3 {
        forge(&mut b, n);
    }
    let first = accept_all(&mut b)[0];
    assert_eq!(b.sends().len(), 3);
    forge(&mut b, 3);
    assert_eq!(b.events(), ["ConnectRequest"]);
    b.manager.accept(b.now, b.id, &accept()).unwrap();
    assert_eq!(
        b.manager.poll_event(),
        Some(Event::Unreachable { id: first })
    );
    assert_eq!(
        b.manager.accept(b.now, first, &accept()),
        Err(CmError::Unknown)
    );
    wait(&mut b, Duration::from_secs(2));
    assert_eq!(b.events(), ["Unreachable"; 3]);
    b.sends();
    assert!(b.manager.is_idle());
}

/// A REP is as long as a REQ, 308 bytes with IP: four times the bytes of the request, over a second
/// and a half.
#[test]
fn one_forged_request_brings_four_datagrams_at_most() {
    for (timeout, repeats) in [(12, 15), (31, 15), (20, 0)] {
        let mut b = Bench::listening();
        let (remote, mut req) = forged(&b, 1);
        req.local_response_timeout = timeout;
        req.cm_retries_max = repeats;
        b.arrives_from(remote, req);
        accept_all(&mut b);
        wait(&mut b, Duration::from_secs(3_600));
        assert_eq!(b.sends().len(), 4, "REP, and three more");
        assert_eq!(b.events(), ["Unreachable"]);
        assert!(b.manager.is_idle());
    }
}

#[test]
fn a_program_that_ends_what_it_accepted_adds_nothing_to_that() {
    for repeats in 0..=3_u32 {
        for destroys in [true, false] {
            let mut b = Bench::listening();
            forge(&mut b, 1);
            let id = accept_all(&mut b)[0];
            wait(&mut b, Duration::from_millis(500) * repeats);
            if destroys {
                b.manager.destroy(b.now, id);
            } else {
                b.manager.disconnect(b.now, id, &[]).unwrap();
            }
            wait(&mut b, Duration::from_secs(3_600));
            let sent = b.sends();
            assert!(sent.len() <= 4, "{sent:?}");
        }
    }
}

#[test]
fn a_repeated_request_has_one_place_and_each_gets_one_answer() {
    let mut b = Bench::listening();
    for _ in 0..20 {
        forge(&mut b, 1);
    }
    assert_eq!(b.sends().len(), 19, "a receipt for each repetition");
    assert_eq!((b.manager.connections(), accept_all(&mut b).len()), (1, 1));
    b.sends();
    for _ in 0..20 {
        forge(&mut b, 1);
    }
    assert_eq!(b.sends().len(), 20);
}

#[test]
fn no_datagram_of_a_stranger_has_more_than_one_answer() {
    let mut b = Bench::established();
    let unserved = Req {
        service_id: ServiceId::of_port(PortSpace::TCP, 1),
        ..b.req()
    };
    let unknown = 0x1234_5678;
    let mut rep = b.rep();
    rep.remote_id = unknown;
    let mut rtu = b.rtu();
    rtu.remote_id = unknown;
    let mut dreq = b.dreq();
    dreq.remote_id = unknown;
    let mut drep = b.drep();
    drep.remote_id = unknown;
    let mut rej = b.rej(RejReason::CONSUMER);
    rej.remote_id = unknown;
    let mut mra = b.mra(About::Rep);
    mra.remote_id = unknown;
    let sidr = crate::sidr::request(&b);
    let count = |what: &str, b: &mut Bench| {
        wait(b, Duration::from_secs(3_600));
        let sent = b.sends();
        assert!(sent.len() <= 1, "{what}: {sent:?}");
    };
    let mut other = unserved;
    other.local_id += 1;
    b.arrives(other);
    count("a request for no service", &mut b);
    b.arrives(rep);
    count("a reply", &mut b);
    b.arrives(rtu);
    count("a last word", &mut b);
    b.arrives(dreq);
    count("a disconnect", &mut b);
    b.arrives(drep);
    count("its answer", &mut b);
    b.arrives(rej);
    count("a refusal", &mut b);
    b.arrives(mra);
    count("a receipt", &mut b);
    b.arrives(sidr);
    count("a question", &mut b);
    assert_eq!(b.events(), [""; 0]);
    let own = b.id;
    assert_eq!(b.manager.disconnect(b.now, own, b""), Ok(()));
}

#[test]
fn a_peer_that_shows_that_it_is_there_has_its_time() {
    let mut b = Bench::accepted();
    assert_eq!(b.next_timer(), 500);
    assert_eq!(b.sends(), ["REP us 7"]);
    // The peer's program is slow, and the peer knows the manager's id.
    b.arrives(b.mra(About::Rep));
    for n in 0..100 {
        forge(&mut b, n);
    }
    wait(&mut b, Duration::from_secs(60));
    assert_eq!(b.sends(), [""; 0]);
    b.arrives(b.rtu());
    assert!(b.events().contains(&"Established 224".to_owned()));
}

#[test]
fn one_source_has_a_share_of_the_places() {
    let mut b = Bench::new();
    b.manager.listen(SERVICE, Takes::RC, None, 512).unwrap();
    b.arrives(b.req());
    let (remote, mut req) = forged(&b, 1);
    for n in 0..1_000 {
        req.local_id += 1;
        req.qpn = Qpn::new(2 + n);
        b.arrives_from(remote, req);
    }
    // The source has half of the places while no other wants them; beyond, its own are evicted, of
    // which it may have a quarter.
    assert_eq!(b.manager.connections(), 512 / 2);
    b.arrives_from(remote, req);
    assert_eq!(b.events()[0], "ConnectRequest");
    assert!(connects_again(&mut b));
}

/// As many requests as `cmtime -c 2000` makes.
#[test]
fn one_host_opens_two_thousand_connections_at_once() {
    let mut b = Bench::new();
    b.manager.listen(SERVICE, Takes::RC, None, 4096).unwrap();
    let mut req = b.req();
    for n in 0..2_000 {
        (req.local_id, req.qpn) = (PEER + n, Qpn::new(0x100 + n));
        b.arrives(req);
    }
    assert_eq!(accept_all(&mut b).len(), 2_000);
    assert_eq!(b.manager.counter(Counter::HalfOpenEvicted), 0);
}

/// Connects a host that has no connection, from its own address; returns whether it succeeds.
fn newcomer_connects(b: &mut Bench, n: u32) -> bool {
    let (remote, req) = forged(b, n);
    b.arrives_from(remote, req);
    let Some(&id) = accept_all(b).last() else {
        return false;
    };
    let rtu = Rtu {
        local_id: req.local_id,
        remote_id: id.0,
        private_data: [0; Rtu::PRIVATE_DATA_LEN],
    };
    b.arrives_from(remote, rtu);
    b.events().contains(&"Established 224".to_owned())
}

/// A host with a connection, or one that knows its address, sends 32 requests a second and no RTU.
#[test]
fn a_peer_that_is_connected_keeps_no_newcomer_out() {
    let mut b = Bench::new();
    let listener = b.manager.listen(SERVICE, Takes::RC, None, 512).unwrap();
    b.manager.limit_answered(listener, 64);
    assert!(connects(&mut b));
    let mut req = b.req();
    for n in 1..=64 {
        (req.local_id, req.qpn) = (PEER + n, Qpn::new(0x100 + n));
        b.arrives(req);
    }
    assert_eq!(accept_all(&mut b).len(), 64);
    assert!(newcomer_connects(&mut b, 1));
}

/// Each peer reports that its program is slow, which gives it 137 seconds.
#[test]
fn receipts_of_strangers_keep_no_newcomer_out() {
    let mut b = Bench::new();
    let listener = b.manager.listen(SERVICE, Takes::RC, None, 512).unwrap();
    b.manager.limit_answered(listener, 64);
    let mut req = b.req();
    for n in 0..64 {
        (req.local_id, req.qpn) = (PEER + n, Qpn::new(0x100 + n));
        b.arrives(req);
        b.id = accept_all(&mut b)[0];
        let mut mra = b.mra(About::Rep);
        mra.local_id = PEER + n;
        b.arrives(mra);
    }
    assert!(newcomer_connects(&mut b, 1));
    wait(&mut b, Duration::from_secs(60));
    assert!(newcomer_connects(&mut b, 2));
}

#[test]
fn peers_that_are_connected_fill_no_table_for_good() {
    for half_open_max in [8, 8_192] {
        let mut b = Bench::with(|config| config.half_open_max = half_open_max);
        let backlog = if half_open_max == 8 { 512 } else { 8 };
        b.manager.listen(SERVICE, Takes::RC, None, backlog).unwrap();
        assert!(connects(&mut b));
        let mut req = b.req();
        for n in 1..=20 {
            (req.local_id, req.qpn) = (PEER + n, Qpn::new(0x100 + n));
            b.arrives(req);
        }
        forge(&mut b, 1);
        let mut places = Vec::new();
        while let Some(event) = b.manager.poll_event() {
            if let Event::ConnectRequest(request) = event {
                places.push(request.route.remote);
            }
        }
        assert_eq!(places.len(), 8);
        assert_ne!(places.last(), Some(&b.route.remote));
    }
}

/// A peer's id is 24 bits: a guess of it alone must not reach a connection.
#[test]
fn a_refusal_that_names_no_id_of_ours_ends_no_connection() {
    for mut b in [Bench::established(), Bench::answered(), Bench::connected()] {
        let mut rej = b.rej(RejReason::TIMEOUT);
        rej.remote_id = 0;
        b.arrives(rej);
        assert_eq!((b.events(), b.sends()), (vec![], vec![]));
    }
    // A peer that has not received the reply does not know the manager's id.
    for mut b in [Bench::requested(), Bench::accepted()] {
        let mut rej = b.rej(RejReason::TIMEOUT);
        rej.remote_id = 0;
        b.arrives(rej);
        assert_eq!(b.events(), ["Rejected timeout (4) 148"]);
    }
}

/// All ids of 24 bits can soon be tried if unknown ids are answered and those of another peer are
/// not.
#[test]
fn an_id_of_another_peers_connection_is_answered_like_none() {
    for port in [4791, 50_000] {
        let mut b = Bench::established();
        b.port = port;
        let (stranger, own) = (Gid::from(Ipv4Addr::new(10, 9, 9, 9)), b.id);
        let mut answers = Vec::new();
        for id in [own.0, own.0 ^ 1] {
            let (mut rep, mut rtu, mut dreq) = (b.rep(), b.rtu(), b.dreq());
            (rep.remote_id, rtu.remote_id, dreq.remote_id) = (id, id, id);
            b.arrives_from(stranger, rep);
            b.arrives_from(stranger, rtu);
            b.arrives_from(stranger, dreq);
            b.id = ConnectionId(id);
            answers.push(b.sends());
        }
        assert_eq!(answers[0], answers[1]);
        assert_eq!(answers[0].len(), 3);
        assert_eq!(b.events(), [""; 0]);
        assert_eq!(b.manager.disconnect(b.now, own, b""), Ok(()));
    }
}

/// Completes the first request of the bench's peer, which is still there.
fn connects_again(b: &mut Bench) -> bool {
    b.arrives(b.req());
    b.sends().len() == 2
}

#[test]
fn strangers_take_no_place_of_a_peer_that_is_connected() {
    let mut b = Bench::established();
    let mut req = b.req();
    req.local_id = 8;
    req.qpn = Qpn::new(0x23);
    b.arrives(req);
    for n in 0..1_000 {
        forge(&mut b, n);
    }
    let known = b.manager.poll_event();
    let Some(Event::ConnectRequest(request)) = known else {
        panic!("{known:?}");
    };
    assert_eq!(request.qpn, Qpn::new(0x23));
    b.manager.accept(b.now, request.id, &accept()).unwrap();
    // Strangers have half of the places while they want them, and no more.
    accept_all(&mut b);
    for n in 0..8 {
        req.local_id += 1;
        req.qpn = Qpn::new(0x24 + n);
        b.arrives(req);
    }
    for n in 0..1_000 {
        forge(&mut b, 2_000 + n);
    }
    let mut own = 0;
    while let Some(event) = b.manager.poll_event() {
        if let Event::ConnectRequest(request) = event {
            own += usize::from(request.route.remote == b.route.remote);
        }
    }
    assert_eq!(own, 4);
}

#[test]
fn a_forged_request_ends_no_connection() {
    let mut b = Bench::established();
    let old = b.id;
    let mut req = b.req();
    for _ in 0..3 {
        req.local_id += 1;
        b.arrives(req);
    }
    accept_all(&mut b);
    b.sends();
    wait(&mut b, Duration::from_secs(3_600));
    let sent = b.sends();
    assert!(sent.iter().all(|line| line.starts_with("REP")), "{sent:?}");
    assert_eq!(b.events(), ["Unreachable"; 3]);
    assert_eq!(b.manager.disconnect(b.now, old, b""), Ok(()));
    b.id = old;
    assert_eq!(b.sends(), ["DREQ us 7 0x22"]);
}

#[test]
fn a_peer_that_reuses_its_queue_pair_connects_at_once() {
    let mut b = Bench::established();
    let old = b.id;
    let mut req = b.req();
    req.local_id = 8;
    b.arrives(req);
    let new = accept_all(&mut b)[0];
    b.sends();
    let mut rtu = b.rtu();
    (rtu.local_id, rtu.remote_id) = (8, new.0);
    b.arrives(rtu);
    assert_eq!(b.events(), ["Established 224"]);
    assert_eq!(b.counted(Counter::StaleEnded), 1);
    b.id = old;
    assert_eq!(b.sends(), ["DREQ us 7 0x22"]);
    b.arrives(b.drep());
    assert_eq!(b.events(), ["Disconnected 224"]);
    b.id = new;
    assert_eq!(b.manager.disconnect(b.now, new, b""), Ok(()));
}

/// A request names the queue pair with which a peer is about to answer.
#[test]
fn a_forged_request_spoils_no_reply() {
    let mut b = Bench::listening();
    b.connect();
    let own = b.id;
    b.sends();
    let mut req = b.req();
    req.local_id = 99;
    b.arrives(req);
    assert_eq!(b.events(), ["ConnectRequest"]);
    b.id = own;
    b.arrives(b.rep());
    assert_eq!(b.events(), ["ConnectResponse 0x22 196"]);
}

#[test]
fn a_forged_question_takes_no_place_of_an_honest_one() {
    let mut b = Bench::new();
    let service_id = crate::sidr::request(&b).service_id;
    b.manager
        .listen(service_id, Takes::Datagrams, None, 4)
        .unwrap();
    for n in 0..160 {
        let (remote, req) = forged(&b, n);
        let mut question = crate::sidr::request(&b);
        question.request_id = 1_000 + n;
        let addressing = &req.private_data[..IpAddressing::LEN];
        question.private_data[..IpAddressing::LEN].copy_from_slice(addressing);
        b.arrives_from(remote, question);
    }
    b.arrives(crate::sidr::request(&b));
    let mut asked = Vec::new();
    while let Some(event) = b.manager.poll_event() {
        if let Event::SidrRequest(request) = event {
            asked.push(request.route.remote);
        }
    }
    assert_eq!((asked.len(), asked.last()), (4, Some(&b.route.remote)));
    assert_eq!(b.manager.resolutions(), 4);
    // Requests that the program has polled may be evicted, too; it gets an event.
    let (remote, _) = forged(&b, 500);
    let mut question = crate::sidr::request(&b);
    question.request_id = 9;
    question.private_data = [0; SidrReq::PRIVATE_DATA_LEN];
    let addressing = IpAddressing::new(remote.to_ip(), 1, b.route.local.to_ip()).unwrap();
    question.private_data[..IpAddressing::LEN].copy_from_slice(&addressing.to_bytes());
    b.arrives_from(remote, question);
    assert_eq!(b.events(), ["SidrRequest", "SidrWithdrawn"]);
}

/// A program without privileges on the peer's host has its address but not its port, which is
/// taken.
#[test]
fn a_peer_at_the_port_of_roce_speaks_from_no_other() {
    for is_active in [false, true] {
        let mut b = if is_active {
            Bench::connected()
        } else {
            Bench::established()
        };
        b.port = 50_000;
        b.arrives(b.dreq());
        b.arrives(b.rej(RejReason::CONSUMER));
        assert_eq!(b.counted(Counter::DropWrongPeer), 2);
        assert_eq!((b.events(), b.sends()), (vec![], vec![]));
        b.port = 4791;
        b.arrives(b.dreq());
        assert_eq!(b.events(), ["Disconnected 220"]);
    }
}

/// Kernels and NICs spread their datagrams over source ports.
#[test]
fn a_peer_at_another_port_may_change_it() {
    let mut b = Bench::listening();
    b.port = 50_000;
    b.arrives(b.req());
    b.id = accept_all(&mut b)[0];
    b.sends();
    b.port = 60_000;
    b.arrives(b.rtu());
    assert_eq!(b.events(), ["Established 224"]);
    b.port = 4791;
    b.arrives(b.dreq());
    assert_eq!(b.events(), ["Disconnected 220"]);
}

#[test]
fn data_for_the_queue_pair_of_a_reply_stands_for_the_last_word() {
    let mut b = Bench::accepted();
    b.manager.data_arrived_at(b.now, PEER_QPN);
    assert_eq!(b.events(), [""; 0]);
    b.manager.data_arrived_at(b.now, QPN);
    b.manager.data_arrived_at(b.now, QPN);
    assert_eq!(b.events(), ["Established 0"]);
}

/// An id is 24 bits, and 2^24 datagrams are soon sent. A transaction has 32 more.
#[test]
fn an_answer_that_does_not_name_the_transaction_is_none() {
    let mut b = Bench::connecting();
    let own = b.transaction;
    b.transaction ^= 1 << 40;
    b.arrives(b.rep());
    b.arrives(b.rej(RejReason::CONSUMER));
    b.arrives(b.mra(About::Req));
    assert_eq!((b.events(), b.sends()), (vec![], vec![]));
    assert_eq!(b.counted(Counter::DropWrongId), 3);
    b.transaction = own;
    b.arrives(b.rep());
    assert_eq!(b.events(), ["ConnectResponse 0x22 196"]);
}

/// Likewise a refusal in the name of the requesting or accepting peer, which has the transaction of
/// the request.
#[test]
fn a_refusal_that_does_not_name_the_transaction_is_none() {
    for mut b in [Bench::requested(), Bench::accepted(), Bench::answered()] {
        b.transaction ^= 1 << 40;
        for remote_id in [b.id.0, 0] {
            let mut rej = b.rej(RejReason::TIMEOUT);
            rej.remote_id = remote_id;
            b.arrives(rej);
        }
        assert_eq!((b.events(), b.sends()), (vec![], vec![]));
    }
}

/// A host that was asked once knows one transaction, but none of the others.
#[test]
fn a_transaction_does_not_tell_that_of_another_request() {
    let mut b = Bench::connecting();
    let first = b.transaction;
    b.connect();
    b.sends();
    assert_ne!(first >> 32, b.transaction >> 32);
}

/// A kernel sends from other ports than 4791; a bogus reply from there changes nothing.
#[test]
fn a_forged_reply_ties_a_peer_to_no_port() {
    let mut b = Bench::connecting();
    b.port = 50_000;
    b.arrives(b.rep());
    b.port = 4791;
    let mut forged = b.rep();
    forged.local_id = PEER + 1;
    b.arrives(forged);
    b.events();
    b.manager.ready(b.id, b"").unwrap();
    b.port = 50_000;
    b.arrives(b.dreq());
    assert_eq!(b.events(), ["Disconnected 220"]);
}

/// A stranger names the queue pair of another host, connected to a local one, in that host's name.
#[test]
fn what_a_peer_answered_is_no_answer_to_a_forged_request() {
    let mut b = Bench::established();
    let (remote, ours) = (b.route.remote, Qpn::new(0x33));
    assert_eq!(b.manager.has_answered(QPN, remote, PEER_QPN), Some(true));
    let mut req = b.req();
    req.local_id = PEER + 1;
    b.arrives(req);
    assert_eq!(b.events(), ["ConnectRequest"]);
    // The queue pair is connected before its number is sent.
    let has_answered = |b: &Bench| b.manager.has_answered(ours, remote, PEER_QPN);
    assert_eq!(has_answered(&b), Some(false));
    let with = Accept {
        qpn: ours,
        ..accept()
    };
    b.manager.accept(b.now, b.id, &with).unwrap();
    assert_eq!(has_answered(&b), Some(false));
    let mut rtu = b.rtu();
    rtu.local_id = PEER + 1;
    b.arrives(rtu);
    assert_eq!(has_answered(&b), Some(true));
}

/// A process exits after it accepted a request: the notice of its exit goes to a peer that proved
/// nothing else.
#[test]
fn an_orphan_notice_goes_at_most_twice_to_an_unproven_peer() {
    for (b, said) in [(Bench::accepted(), 2), (Bench::established(), 3)] {
        let notice = b.manager.orphan_notice(b.id).unwrap();
        let mut heir = Bench::new();
        heir.manager.send_orphan_notice(heir.now, &notice);
        wait(&mut heir, Duration::from_secs(3_600));
        assert_eq!(heir.sends().len(), said);
    }
}
