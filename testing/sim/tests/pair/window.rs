//! The shared window: it may be small, and no wait for it may last until the timer.

use airdma_sim::{Pair, SendWr, Setup, Side};
use airdma_transport::{Access, Operation, Status, Time};
use airdma_wire::PathMtu;

use crate::scene::{
    assert_untroubled, clean, connected, ms, open_region, outcomes, pattern, post, read_from,
    sends, us, write_to,
};

#[test]
fn any_window_lets_messages_through() {
    for window in [1, 100, 1024, 1025, 2048, 5000, 64 << 10] {
        let (mut pair, qp) = connected(&Setup::default());
        for side in Side::BOTH {
            pair[side].window_bytes = window;
        }
        let data = pattern(150_000, 1);
        let source = pair[Side::A].register(&data, Access::empty());
        let target = open_region(&mut pair, Side::B, data.len());
        post(&mut pair, qp, 1, write_to(&target), &source);
        pair.run_until_idle();
        pair.assert_nothing_left();
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(1, Status::Success)]);
        assert!(pair[Side::B].bytes(&target) == data);
        assert_untroubled(&pair, qp);
    }
}

#[test]
fn a_read_longer_than_the_window_is_asked_for_in_pieces() {
    let (mut pair, qp) = connected(&Setup::default());
    pair[Side::A].window_bytes = 70_000;
    let data = pattern(500_000, 1);
    let shelf = pair[Side::B].register(&data, Access::REMOTE_READ);
    let landing = open_region(&mut pair, Side::A, data.len());
    post(&mut pair, qp, 1, read_from(&shelf), &landing);
    let mut in_flight_max = 0;
    pair.run_until("the READ is done", |pair| {
        let in_flight = pair[Side::A].queue_pair(qp).in_flight_bytes();
        in_flight_max = in_flight_max.max(in_flight);
        !sends(pair, Side::A, qp).is_empty()
    });
    pair.run_until_idle();
    assert!(pair[Side::A].bytes(&landing) == data);
    assert!(in_flight_max <= 70_000 + (64 << 10), "{in_flight_max}");
    assert_untroubled(&pair, qp);
}

/// Small messages fill the window by their number of packets. The last one that fits must ask for
/// an acknowledgement, or nothing moves until the timer.
#[test]
fn small_unsignalled_messages_do_not_wait_for_the_timer() {
    for (mtu, window) in [
        (PathMtu::M256, 512),
        (PathMtu::M1024, 2048),
        (PathMtu::M1024, 10_000),
        (PathMtu::M4096, 64 << 10),
    ] {
        let setup = Setup {
            mtu,
            ..Setup::default()
        };
        let (mut pair, qp) = connected(&setup);
        pair[Side::A].window_bytes = window;
        let source = pair[Side::A].register(b"x", Access::empty());
        let target = open_region(&mut pair, Side::B, 1);
        for wr_id in 0..100 {
            let wr = SendWr::new(wr_id, write_to(&target), vec![source.all()]);
            pair[Side::A].post_send(qp, wr.signalled_if(wr_id == 99));
        }
        pair.run_until_idle();
        pair.assert_nothing_left();
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(99, Status::Success)]);
        assert_untroubled(&pair, qp);
    }
}

/// The same without any timer: a hang would be for ever.
#[test]
fn small_unsignalled_messages_need_no_timer_at_all() {
    let setup = Setup {
        timeout: 0,
        ..Setup::default()
    };
    let (mut pair, qp) = connected(&setup);
    pair[Side::A].window_bytes = 16 << 10;
    let source = pair[Side::A].register(&[7; 100], Access::empty());
    let target = open_region(&mut pair, Side::B, 100);
    for wr_id in 0..300 {
        let wr = SendWr::new(wr_id, write_to(&target), vec![source.all()]);
        pair[Side::A].post_send(qp, wr.signalled_if(wr_id % 100 == 99));
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    let expected = [99, 199, 299].map(|wr_id| (wr_id, Status::Success));
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
}

/// An unsignalled request that was the last of the queue when it left is acknowledged, also when
/// others follow later.
#[test]
fn requests_posted_one_by_one_need_no_timer() {
    let setup = Setup {
        timeout: 0,
        ..Setup::default()
    };
    let (mut pair, qp) = connected(&setup);
    let source = pair[Side::A].register(&[7; 100], Access::empty());
    let target = open_region(&mut pair, Side::B, 100);
    for wr_id in 0..20 {
        let wr = SendWr::new(wr_id, write_to(&target), vec![source.all()]);
        pair[Side::A].post_send(qp, wr.unsignalled());
        pair.run_for(us(3));
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert_eq!(pair[Side::A].rings(qp).unsignalled, 20);
}

#[test]
fn queue_pairs_that_share_a_window_all_finish() {
    let mut pair = Pair::new(1, clean(), clean());
    for side in Side::BOTH {
        pair[side].window_bytes = 8 << 10;
    }
    let data = pattern(60_000, 1);
    let source = pair[Side::A].register(&data, open_access_local());
    let target = open_region(&mut pair, Side::B, data.len());
    let qps: Vec<usize> = (0..6).map(|_| pair.connect(&Setup::default())).collect();
    for &qp in &qps {
        post(&mut pair, qp, 1, write_to(&target), &source);
        post(&mut pair, qp, 2, read_from(&target), &source);
        let last = SendWr::new(3, write_to(&target), vec![source.part(0..9)]);
        pair[Side::A].post_send(qp, last.unsignalled());
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    for qp in qps {
        let expected = [1, 2].map(|wr_id| (wr_id, Status::Success));
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    }
}

fn open_access_local() -> Access {
    Access::LOCAL_WRITE
}

/// A window that others have filled closes after the last packet of a message has left without
/// asking for an acknowledgement; it must not stay closed.
#[test]
fn a_window_closed_by_others_opens_again() {
    let setup = Setup {
        timeout: 0,
        ..Setup::default()
    };
    let mut pair = Pair::new(1, clean(), clean());
    pair[Side::A].window_bytes = 4 << 10;
    let qps = [pair.connect(&setup), pair.connect(&setup)];
    let source = pair[Side::A].register(&[7; 16], Access::empty());
    let target = open_region(&mut pair, Side::B, 16);
    for wr_id in 0..50 {
        for qp in qps {
            let wr = SendWr::new(wr_id, write_to(&target), vec![source.all()]);
            pair[Side::A].post_send(qp, wr.signalled_if(wr_id == 49));
        }
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
}

#[test]
fn the_clock_stands_still_while_nothing_happens() {
    let (mut pair, qp) = connected(&Setup::default());
    pair.run_until_idle();
    assert_eq!(pair.now(), Time::ZERO);
    pair.run_for(ms(5));
    assert_eq!(pair.now().as_nanos(), 5_000_000);
    let empty = Operation::Write {
        va: 0,
        rkey: airdma_wire::Rkey(0),
    };
    pair[Side::A].post_send(qp, SendWr::new(1, empty, Vec::new()));
    pair.run_until_idle();
    assert!(pair.now() < Time::ZERO + ms(6));
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(1, Status::Success)]);
}
