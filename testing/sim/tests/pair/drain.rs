//! The send queue drain state: started requests end, and no new one starts.

use airdma_sim::{Pair, SendWr, Setup, Side};
use airdma_transport::{AttrMask, QpAttributes, QpEvent, QpState, Status};

use crate::scene::{
    bad, clean, connected, connected_over, open_region, outcomes, post, read_from, sends, us,
    write_to,
};

fn move_to(pair: &mut Pair, qp: usize, state: QpState) {
    let attributes = QpAttributes {
        state,
        en_sqd_async_notify: true,
        ..QpAttributes::default()
    };
    let mask = match state {
        QpState::SendQueueDrain => AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
        QpState::Reset
        | QpState::Init
        | QpState::ReadyToReceive
        | QpState::ReadyToSend
        | QpState::SendQueueError
        | QpState::Error => AttrMask::STATE,
    };
    pair[Side::A].modify(qp, &attributes, mask).unwrap();
}

#[test]
fn what_was_begun_ends_and_what_was_not_waits() {
    let (mut pair, qp) = connected(&Setup::default());
    let near = open_region(&mut pair, Side::A, 300_000);
    let far = open_region(&mut pair, Side::B, 300_000);
    for wr_id in 0..3 {
        post(&mut pair, qp, wr_id, write_to(&far), &near);
    }
    pair.run_for(us(30));
    move_to(&mut pair, qp, QpState::SendQueueDrain);
    assert_eq!(pair[Side::A].rings(qp).events, []);
    pair.run_until_idle();
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(0, Status::Success)]);
    let drained = [QpEvent::SendQueueDrained];
    assert_eq!(pair[Side::A].rings(qp).events, drained);
    move_to(&mut pair, qp, QpState::ReadyToSend);
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert_eq!(sends(&pair, Side::A, qp).len(), 3);
    assert_eq!(pair[Side::A].rings(qp).events, drained);
}

#[test]
fn an_idle_queue_is_drained_at_once() {
    let (mut pair, qp) = connected(&Setup::default());
    move_to(&mut pair, qp, QpState::SendQueueDrain);
    assert_eq!(pair[Side::A].rings(qp).events, [QpEvent::SendQueueDrained]);
}

#[test]
fn a_drain_ends_on_a_bad_link_too() {
    for seed in 0..10 {
        let mut pair = Pair::new(seed, bad(0.05), bad(0.05));
        let qp = pair.connect(&Setup::default());
        let near = open_region(&mut pair, Side::A, 100_000);
        let far = open_region(&mut pair, Side::B, 100_000);
        for wr_id in 0..4 {
            let operation = if wr_id % 2 == 0 {
                write_to(&far)
            } else {
                read_from(&far)
            };
            post(&mut pair, qp, wr_id, operation, &near);
        }
        pair.run_for(us(150));
        move_to(&mut pair, qp, QpState::SendQueueDrain);
        pair.run_until_idle();
        let drained = [QpEvent::SendQueueDrained];
        assert_eq!(pair[Side::A].rings(qp).events, drained, "seed {seed}");
        move_to(&mut pair, qp, QpState::ReadyToSend);
        pair.run_until_idle();
        pair.assert_nothing_left();
        assert_eq!(sends(&pair, Side::A, qp).len(), 4);
    }
}

/// Unsignalled requests ask for no acknowledgement while others wait behind them; a drain in
/// between must not wait for an acknowledgement that was never requested.
#[test]
fn a_drain_behind_unsignalled_requests_needs_no_timer() {
    let setup = Setup {
        timeout: 0,
        ..Setup::default()
    };
    // So slow that the port makes the sender wait in the middle of the queue.
    let to_b = clean().rate(10_000_000);
    let (mut pair, qp) = connected_over(to_b, clean(), &setup);
    let near = open_region(&mut pair, Side::A, 1000);
    let far = open_region(&mut pair, Side::B, 1000);
    for wr_id in 0..100 {
        let wr = SendWr::new(wr_id, write_to(&far), vec![near.all()]);
        pair[Side::A].post_send(qp, wr.signalled_if(wr_id == 99));
    }
    pair.run_for(us(500));
    move_to(&mut pair, qp, QpState::SendQueueDrain);
    pair.run_until_idle();
    let drained = [QpEvent::SendQueueDrained];
    assert_eq!(pair[Side::A].rings(qp).events, drained);
}
