//! A dead path, and a path that comes back.

use airdma_sim::{Pair, SendWr, Setup, Side, gbit};
use airdma_transport::{Counter, Operation, QpState, Status, Time};
use airdma_wire::ack_timeout;

use crate::scene::{
    clean, connected, connected_over, count, ms, open_region, outcomes, post, read_from, receives,
    sends, state, us, write_to,
};

#[test]
fn a_cut_link_ends_in_retry_exceeded_and_a_flush() {
    for (timeout, retry_count) in [(8, 0), (8, 7), (14, 7), (1, 3)] {
        let setup = Setup {
            timeout,
            retry_count,
            ..Setup::default()
        };
        let (mut pair, qp) = connected(&setup);
        let source = open_region(&mut pair, Side::A, 5000);
        let target = open_region(&mut pair, Side::B, 5000);
        pair[Side::A].post_receive(qp, 50, vec![source.all()]);
        pair.link(Side::A).set_cut(true);
        post(&mut pair, qp, 0, write_to(&target), &source);
        post(&mut pair, qp, 1, read_from(&target), &source);
        let silent = SendWr::new(2, write_to(&target), vec![source.all()]);
        pair[Side::A].post_send(qp, silent.unsignalled());
        pair.run_until_idle();
        pair.assert_nothing_left();

        let expected = [
            (0, Status::RetryExceeded),
            (1, Status::WrFlushError),
            (2, Status::WrFlushError),
        ];
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
        let flushed = [(50, Status::WrFlushError)];
        assert_eq!(outcomes(receives(&pair, Side::A, qp)), flushed);
        assert_eq!(state(&pair, Side::A, qp), QpState::Error);
        // Four timers for each retry, as IBTA allows.
        let attempts = 4 * u32::from(retry_count + 1);
        assert_eq!(
            count(&pair, Side::A, qp, Counter::Timeouts),
            u64::from(attempts)
        );
        let waited = ack_timeout(timeout).unwrap() * attempts;
        assert!(pair.now() >= Time::ZERO + waited);
        assert!(pair.now() <= Time::ZERO + waited + ms(1));
    }
}

#[test]
fn a_cut_ends_requests_alike_in_either_direction() {
    for side in Side::BOTH {
        let (mut pair, qp) = connected(&Setup::default());
        let source = open_region(&mut pair, Side::A, 1 << 20);
        let target = open_region(&mut pair, Side::B, 1 << 20);
        post(&mut pair, qp, 0, write_to(&target), &source);
        post(&mut pair, qp, 1, read_from(&target), &source);
        pair.run_for(us(200));
        pair.link(side).set_cut(true);
        pair.run_until_idle();
        pair.assert_nothing_left();
        let expected = [(0, Status::RetryExceeded), (1, Status::WrFlushError)];
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
        // Eight tries of four milliseconds.
        assert!(pair.now() < Time::ZERO + ms(45));
    }
}

#[test]
fn a_link_that_comes_back_in_time_costs_nothing_but_time() {
    let link = || clean().rate(gbit(1));
    let (mut pair, qp) = connected_over(link(), link(), &Setup::default());
    let source = open_region(&mut pair, Side::A, 200_000);
    let target = open_region(&mut pair, Side::B, 200_000);
    for wr_id in 0..4 {
        post(&mut pair, qp, wr_id, write_to(&target), &source);
    }
    for _ in 0..3 {
        pair.run_for(ms(2));
        pair.link(Side::A).set_cut(true);
        pair.link(Side::B).set_cut(true);
        pair.run_for(ms(4));
        pair.link(Side::A).set_cut(false);
        pair.link(Side::B).set_cut(false);
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    let expected: Vec<_> = (0..4).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
}

#[test]
fn without_a_timer_a_loss_is_for_ever_but_nothing_spins() {
    let setup = Setup {
        timeout: 0,
        ..Setup::default()
    };
    let to_b = clean().drop_if(|number, _| number == 0);
    let (mut pair, qp) = connected_over(to_b, clean(), &setup);
    let source = open_region(&mut pair, Side::A, 10);
    let target = open_region(&mut pair, Side::B, 10);
    post(&mut pair, qp, 0, write_to(&target), &source);
    pair.run_until_idle();
    assert_eq!(sends(&pair, Side::A, qp), []);
    // The next request shows the gap.
    post(&mut pair, qp, 1, write_to(&target), &source);
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert_eq!(sends(&pair, Side::A, qp).len(), 2);
}

#[test]
fn a_timer_shorter_than_the_path_only_costs_repetitions() {
    let setup = Setup {
        // 262 us; the way there and back takes 1 ms.
        timeout: 6,
        ..Setup::default()
    };
    let link = || clean().delay(us(490));
    let (mut pair, qp) = connected_over(link(), link(), &setup);
    let near = open_region(&mut pair, Side::A, 20_000);
    let far = open_region(&mut pair, Side::B, 20_000);
    for wr_id in 0..10 {
        let operation = if wr_id % 2 == 0 {
            write_to(&far)
        } else {
            read_from(&far)
        };
        post(&mut pair, qp, wr_id, operation, &near);
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    let expected: Vec<_> = (0..10).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    assert!(count(&pair, Side::A, qp, Counter::Timeouts) > 0);
}

#[test]
fn a_peer_in_the_error_state_answers_nothing() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = open_region(&mut pair, Side::A, 10);
    let attributes = airdma_transport::QpAttributes {
        state: QpState::Error,
        ..airdma_transport::QpAttributes::default()
    };
    let mask = airdma_transport::AttrMask::STATE;
    pair[Side::B].modify(qp, &attributes, mask).unwrap();
    post(&mut pair, qp, 0, Operation::Send, &source);
    pair.run_until_idle();
    let expected = [(0, Status::RetryExceeded)];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    assert_eq!(count(&pair, Side::B, qp, Counter::DropBadState), 32);
}

#[test]
fn other_connections_go_on_when_one_ends() {
    let mut pair = Pair::new(1, clean(), clean());
    let short = Setup {
        timeout: 5,
        retry_count: 1,
        ..Setup::default()
    };
    let qps = [pair.connect(&short), pair.connect(&Setup::default())];
    let source = open_region(&mut pair, Side::A, 5000);
    let target = open_region(&mut pair, Side::B, 5000);
    pair.link(Side::A).set_cut(true);
    for qp in qps {
        post(&mut pair, qp, 0, write_to(&target), &source);
    }
    pair.run_for(ms(3));
    pair.link(Side::A).set_cut(false);
    pair.run_until_idle();
    pair.assert_nothing_left();
    let outcome = qps.map(|qp| sends(&pair, Side::A, qp)[0].status);
    assert_eq!(outcome, [Status::RetryExceeded, Status::Success]);
}

/// B goes when all its work is done, and its last acknowledgement is lost.
fn peer_that_goes(repeats_last_ack: bool) -> Status {
    let to_a = clean().drop_if(|number, _| number == 0);
    let (mut pair, qp) = connected_over(clean(), to_a, &Setup::default());
    let source = open_region(&mut pair, Side::A, 10);
    let target = open_region(&mut pair, Side::B, 10);
    pair[Side::B].post_receive(qp, 5, vec![target.all()]);
    post(&mut pair, qp, 0, Operation::Send, &source);
    pair.run_until("the message is there", |pair| {
        pair[Side::B].rings(qp).receives_outstanding() == 0
    });
    if repeats_last_ack {
        pair[Side::B].repeat_last_ack(qp);
    }
    pair.run_for(ms(0));
    let attributes = airdma_transport::QpAttributes::default();
    let mask = airdma_transport::AttrMask::STATE;
    pair[Side::B].modify(qp, &attributes, mask).unwrap();
    pair.run_until_idle();
    sends(&pair, Side::A, qp)[0].status
}

#[test]
fn a_peer_that_goes_says_once_more_what_arrived() {
    assert_eq!(peer_that_goes(false), Status::RetryExceeded);
    assert_eq!(peer_that_goes(true), Status::Success);
}
