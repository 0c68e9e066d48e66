//! Establishing and ending a connection.

use airdma_sim::{Pair, SendWr, Setup, Side};
use airdma_transport::{
    AttrMask, Counter, InvalidAttribute, Operation, QpAttributes, QpEvent, QpState, QpType, Status,
};
use airdma_wire::Psn;

use crate::scene::{
    bad, clean, connected, count, ms, open_region, outcomes, pattern, post, read_from, receives,
    sends, state, us, write_to,
};

fn reset(pair: &mut Pair, side: Side, qp: usize) {
    let attributes = QpAttributes::default();
    let moved = pair[side].modify(qp, &attributes, AttrMask::STATE);
    moved.unwrap();
}

#[test]
fn ready_to_receive_is_enough_to_answer() {
    let mut pair = Pair::new(1, clean(), clean());
    let setup = Setup::default();
    let qp = pair.create(QpType::Rc, setup.mtu);
    pair.advance(Side::A, qp, &setup, QpState::ReadyToSend);
    pair.advance(Side::B, qp, &setup, QpState::ReadyToReceive);
    let data = pattern(5000, 1);
    let near = pair[Side::A].register(&data, crate::scene::open_access());
    let far = open_region(&mut pair, Side::B, 5000);
    pair[Side::B].post_receive(qp, 9, vec![far.all()]);
    post(&mut pair, qp, 1, Operation::Send, &near);
    post(&mut pair, qp, 2, read_from(&far), &near);
    pair.run_until_idle();
    let expected = [1, 2].map(|wr_id| (wr_id, Status::Success));
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    assert!(pair[Side::B].bytes(&far) == data);
    let established = [QpEvent::CommunicationEstablished];
    assert_eq!(pair[Side::B].rings(qp).events, established);

    pair.advance(Side::B, qp, &setup, QpState::ReadyToSend);
    let wr = SendWr::new(3, write_to(&near), vec![far.all()]);
    pair[Side::B].post_send(qp, wr);
    pair.run_until_idle();
    assert_eq!(outcomes(sends(&pair, Side::B, qp)), [(3, Status::Success)]);
    assert_eq!(pair[Side::B].rings(qp).events, established);
}

#[test]
fn packets_before_ready_to_receive_are_dropped_and_repeated() {
    for early in [QpState::Reset, QpState::Init] {
        let mut pair = Pair::new(1, clean(), clean());
        let setup = Setup::default();
        let qp = pair.create(QpType::Rc, setup.mtu);
        pair.advance(Side::A, qp, &setup, QpState::ReadyToSend);
        pair.advance(Side::B, qp, &setup, early);
        let near = open_region(&mut pair, Side::A, 5000);
        let far = open_region(&mut pair, Side::B, 5000);
        post(&mut pair, qp, 1, write_to(&far), &near);
        pair.run_for(ms(2));
        assert!(count(&pair, Side::B, qp, Counter::DropBadState) >= 5);
        pair.advance(Side::B, qp, &setup, QpState::ReadyToSend);
        pair.run_until_idle();
        pair.assert_nothing_left();
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(1, Status::Success)]);
        assert_eq!(pair[Side::B].rings(qp).events, []);
    }
}

#[test]
fn a_connection_that_failed_works_again_after_a_reset() {
    let (mut pair, qp) = connected(&Setup::default());
    let near = open_region(&mut pair, Side::A, 5000);
    let far = open_region(&mut pair, Side::B, 5000);
    pair.link(Side::A).set_cut(true);
    post(&mut pair, qp, 1, write_to(&far), &near);
    pair.run_until_idle();
    assert_eq!(state(&pair, Side::A, qp), QpState::Error);
    pair.link(Side::A).set_cut(false);

    let again = Setup {
        first_psns: [Psn::new(0x0012_3456), Psn::new(0x0065_4321)],
        ..Setup::default()
    };
    for side in Side::BOTH {
        reset(&mut pair, side, qp);
        pair.advance(side, qp, &again, QpState::ReadyToSend);
    }
    let data = pattern(5000, 7);
    let source = pair[Side::A].register(&data, crate::scene::open_access());
    pair[Side::B].post_receive(qp, 9, vec![far.all()]);
    post(&mut pair, qp, 2, Operation::Send, &source);
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(2, Status::Success)]);
    assert_eq!(
        outcomes(receives(&pair, Side::B, qp)),
        [(9, Status::Success)]
    );
    assert!(pair[Side::B].bytes(&far) == data);
}

#[test]
fn a_reset_forgets_what_was_posted() {
    let (mut pair, qp) = connected(&Setup::default());
    let near = open_region(&mut pair, Side::A, 100_000);
    let far = open_region(&mut pair, Side::B, 100_000);
    pair[Side::A].post_receive(qp, 50, vec![near.all()]);
    post(&mut pair, qp, 1, write_to(&far), &near);
    post(&mut pair, qp, 2, read_from(&far), &near);
    pair.run_for(us(25));
    reset(&mut pair, Side::A, qp);
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert_eq!(sends(&pair, Side::A, qp), []);
    assert_eq!(receives(&pair, Side::A, qp), []);
    assert!(count(&pair, Side::A, qp, Counter::DropBadState) > 0);
}

#[test]
fn a_refused_transition_changes_nothing() {
    let (mut pair, qp) = connected(&Setup::default());
    let before = *pair[Side::A].queue_pair(qp).attributes();
    let attributes = QpAttributes {
        state: QpState::Init,
        port: 1,
        ..QpAttributes::default()
    };
    let mask = AttrMask::STATE | AttrMask::PORT | AttrMask::PKEY_INDEX | AttrMask::ACCESS_FLAGS;
    let refused = pair[Side::A].modify(qp, &attributes, mask);
    let expected = InvalidAttribute::Transition {
        from: QpState::ReadyToSend,
        to: QpState::Init,
    };
    assert_eq!(refused, Err(expected));
    assert_eq!(*pair[Side::A].queue_pair(qp).attributes(), before);
}

/// Both sides reset and reconnect again and again while packets of the last connection are in
/// flight.
#[test]
fn ghosts_of_an_earlier_connection_do_not_harm_the_next() {
    for seed in 0..30 {
        let link = || bad(0.02).reorder_by(0.1, ms(3));
        let mut pair = Pair::new(seed, link(), link());
        let qp = pair.connect(&Setup::default());
        let far = open_region(&mut pair, Side::B, 20_000);
        let mut random = airdma_sim::Random::new(seed);
        for life in 1..=5u8 {
            let source = pair[Side::A].register(&[life; 20_000], crate::scene::open_access());
            post(&mut pair, qp, u64::from(life), write_to(&far), &source);
            post(&mut pair, qp, 100, read_from(&far), &source);
            if life == 5 {
                break;
            }
            pair.run_for(us(random.below(2000)));
            // Far from each other, as connection managers draw them.
            let first_psns = [1, 2].map(|n| Psn::new(u32::from(life) * 0x0010_0000 * n));
            let setup = Setup {
                first_psns,
                ..Setup::default()
            };
            for side in Side::BOTH {
                reset(&mut pair, side, qp);
                pair.advance(side, qp, &setup, QpState::ReadyToSend);
            }
        }
        pair.run_until_idle();
        pair.assert_nothing_left();
        let expected = [(5, Status::Success), (100, Status::Success)];
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
        assert!(pair[Side::B].bytes(&far) == [5; 20_000], "seed {seed}");
    }
}
