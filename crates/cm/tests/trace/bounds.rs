//! The bounds of a manager under a flood.

use airdma_cm::*;
use airdma_wire::Qpn;

use crate::bench::*;

fn request(b: &mut Bench, n: u32) {
    let mut req = b.req();
    req.local_id += n;
    req.qpn = Qpn::new(req.qpn.get() + n);
    b.arrives(req);
}

#[test]
fn requests_beyond_the_backlog_take_the_places_of_the_oldest() {
    let mut b = Bench::new();
    b.manager.listen(SERVICE, Takes::RC, None, 3).unwrap();
    for n in 0..5 {
        request(&mut b, n);
    }
    // The program gets no event about the first two, which it has not seen.
    assert_eq!(b.events(), ["ConnectRequest"; 3]);
    assert_eq!(b.counted(Counter::HalfOpenEvicted), 2);
    assert_eq!(b.sends(), [""; 0]);
    b.manager.taken(b.id);
    request(&mut b, 5);
    assert_eq!(b.events(), ["ConnectRequest"]);
    b.manager.accept(b.now, b.id, &accept()).unwrap();
    request(&mut b, 6);
    assert_eq!(b.events(), ["ConnectRequest"]);
    assert_eq!(b.counted(Counter::HalfOpenEvicted), 2);
    // One that was polled gives way, too. It gets an event, unless the program has fetched it.
    for fetched in [false, true] {
        request(&mut b, 7 + u32::from(fetched));
        let evicted = b.manager.poll_evicted().unwrap();
        let Evicted::Connection(id) = evicted else {
            panic!("{evicted:?}");
        };
        if !fetched {
            b.manager.withdraw(evicted);
        }
        let told: &[_] = match fetched {
            false => &["ConnectRequest", "Rejected timeout (4) 0"],
            true => &["ConnectRequest"],
        };
        assert_eq!(b.events(), told);
        let accepted = b.manager.accept(b.now, id, &accept());
        assert_eq!(accepted.is_ok(), fetched);
    }
}

#[test]
fn half_open_connections_have_a_limit_over_all_listeners() {
    let mut b = Bench::with(|config| config.half_open_max = 2);
    b.manager.listen(SERVICE, Takes::RC, None, 100).unwrap();
    for n in 0..3 {
        request(&mut b, n);
    }
    assert_eq!(b.events(), ["ConnectRequest"; 2]);
    b.manager.accept(b.now, b.id, &accept()).unwrap();
    request(&mut b, 3);
    assert_eq!(b.events(), ["ConnectRequest", "Rejected timeout (4) 0"]);
    request(&mut b, 4);
    assert_eq!(b.events(), ["Unreachable", "ConnectRequest"]);
    // A request that the program has taken waits for its answer.
    b.manager.taken(b.id);
    request(&mut b, 5);
    assert_eq!(b.events(), ["ConnectRequest", "Rejected timeout (4) 0"]);
    b.manager.taken(b.id);
    request(&mut b, 6);
    assert_eq!(b.events(), [""; 0]);
    assert_eq!(b.counted(Counter::DropHalfOpenFull), 1);
}

#[test]
fn the_oldest_of_too_many_ended_connections_goes_first() {
    let mut b = Bench::with(|config| config.resting_max = 2);
    b.manager.listen(SERVICE, Takes::RC, None, 100).unwrap();
    for n in 0..3 {
        request(&mut b, n);
        b.events();
        b.manager.accept(b.now, b.id, &accept()).unwrap();
        let mut dreq = b.dreq();
        dreq.local_id += n;
        b.arrives(dreq);
        let seen = b.events();
        let expected = ["Disconnected 220", "TimewaitExit"];
        assert_eq!(seen, expected[..1 + usize::from(n == 2)]);
    }
    assert_eq!(b.manager.connections(), 2);
    assert_eq!(b.counted(Counter::RestingEvicted), 1);
}

#[test]
fn connections_and_answers_have_limits() {
    let mut b = Bench::with(|config| {
        config.connections_max = 1;
        config.transmits_max = 1;
    });
    b.connect();
    let more = b.manager.connect(b.now, &b.wanted());
    assert_eq!(more, Err(CmError::TooManyConnections));
    request(&mut b, 0);
    assert_eq!(b.counted(Counter::DropTransmitFull), 1);
    assert_eq!(b.sends(), ["REQ us"]);
}

#[test]
fn a_flood_leaves_established_connections_alone() {
    let mut b = Bench::established();
    for n in 1..10_000 {
        request(&mut b, n);
    }
    assert_eq!(b.manager.connections(), 9);
    let own = b.id;
    assert_eq!(b.manager.disconnect(b.now, own, b""), Ok(()));
    assert_eq!(b.sends(), ["DREQ us 7 0x22"]);
}

#[test]
fn ids_differ_between_managers_and_do_not_come_back() {
    let mut b = Bench::new();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        b.connect();
        assert!(seen.insert(b.id));
        b.manager.destroy(b.now, b.id);
        b.sends();
    }
    let mut other = Bench::with(|config| config.seed = 2);
    other.connect();
    assert!(!seen.contains(&other.id));
}
