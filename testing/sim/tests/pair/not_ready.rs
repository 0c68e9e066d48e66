//! Receives that are posted late: RNR NAKs, waits and their end.

use airdma_sim::{Pair, Setup, Side};
use airdma_transport::{Counter, Operation, QpState, Status, Time};
use airdma_wire::{NakCode, Opcode, Syndrome, rnr_timer};

use crate::scene::{
    bad, clean, connected, connected_over, count, ms, open_access, open_region, outcomes, pattern,
    post, receives, sends, state, us,
};

#[test]
fn a_late_receive_is_waited_for() {
    let (mut pair, qp) = connected(&Setup::default());
    let data = pattern(3000, 1);
    let source = pair[Side::A].register(&data, open_access());
    let target = open_region(&mut pair, Side::B, data.len());
    post(&mut pair, qp, 1, Operation::Send, &source);
    pair.run_for(ms(20));
    assert_eq!(sends(&pair, Side::A, qp), []);
    pair[Side::B].post_receive(qp, 5, vec![target.all()]);
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(1, Status::Success)]);
    assert!(pair[Side::B].bytes(&target) == data);
    // 640 us between two attempts, and no attempt in between.
    let naks = count(&pair, Side::A, qp, Counter::RnrNaksReceived);
    assert!((25..=32).contains(&naks), "{naks}");
    assert_eq!(count(&pair, Side::A, qp, Counter::Timeouts), 0);
}

#[test]
fn the_requester_waits_as_long_as_the_nak_says() {
    for min_rnr_timer in [1, 14, 20, 0] {
        let setup = Setup {
            min_rnr_timer,
            ..Setup::default()
        };
        let (mut pair, qp) = connected(&setup);
        let source = open_region(&mut pair, Side::A, 10);
        let target = open_region(&mut pair, Side::B, 10);
        post(&mut pair, qp, 1, Operation::Send, &source);
        pair.run_until("a NAK", |pair| {
            count(pair, Side::A, qp, Counter::RnrNaksReceived) == 1
        });
        let refused_at = pair.now();
        pair[Side::B].post_receive(qp, 5, vec![target.all()]);
        pair.run_until("a second attempt", |pair| {
            count(pair, Side::A, qp, Counter::Retransmits) == 1
        });
        assert_eq!(
            pair.now().duration_since(refused_at),
            rnr_timer(min_rnr_timer)
        );
    }
}

#[test]
fn the_requester_gives_up_after_rnr_retry_attempts() {
    for rnr_retry in [0, 1, 6] {
        let setup = Setup {
            rnr_retry,
            ..Setup::default()
        };
        let (mut pair, qp) = connected(&setup);
        let source = open_region(&mut pair, Side::A, 10);
        for wr_id in 0..3 {
            post(&mut pair, qp, wr_id, Operation::Send, &source);
        }
        pair.run_until_idle();
        pair.assert_nothing_left();
        let expected = [
            (0, Status::RnrRetryExceeded),
            (1, Status::WrFlushError),
            (2, Status::WrFlushError),
        ];
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
        let naks = count(&pair, Side::B, qp, Counter::RnrNaksSent);
        assert_eq!(naks, u64::from(rnr_retry) + 1);
        assert_eq!(state(&pair, Side::A, qp), QpState::Error);
        assert_eq!(state(&pair, Side::B, qp), QpState::ReadyToSend);
    }
}

#[test]
fn the_count_starts_anew_after_each_message() {
    let setup = Setup {
        rnr_retry: 2,
        ..Setup::default()
    };
    let (mut pair, qp) = connected(&setup);
    let source = open_region(&mut pair, Side::A, 10);
    let target = open_region(&mut pair, Side::B, 10);
    for wr_id in 0..10 {
        post(&mut pair, qp, wr_id, Operation::Send, &source);
    }
    for wr_id in 0..10 {
        let naks = count(&pair, Side::B, qp, Counter::RnrNaksSent);
        pair.run_until("the second NAK", |pair| {
            count(pair, Side::B, qp, Counter::RnrNaksSent) == naks + 2
        });
        pair[Side::B].post_receive(qp, wr_id, vec![target.all()]);
    }
    pair.run_until_idle();
    let expected: Vec<_> = (0..10).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
}

#[test]
fn a_write_with_immediate_is_placed_once_and_awaits_a_receive() {
    let (mut pair, qp) = connected(&Setup::default());
    let data = pattern(5000, 1);
    let source = pair[Side::A].register(&data, open_access());
    let target = open_region(&mut pair, Side::B, data.len());
    let write = Operation::WriteImm {
        va: target.va,
        rkey: target.rkey(),
        imm: [1, 2, 3, 4],
    };
    post(&mut pair, qp, 1, write, &source);
    pair.run_for(ms(3));
    assert_eq!(sends(&pair, Side::A, qp), []);
    pair[Side::B].post_receive(qp, 5, Vec::new());
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert!(pair[Side::B].bytes(&target) == data);
    let received = receives(&pair, Side::B, qp);
    assert_eq!(outcomes(received), [(5, Status::Success)]);
    assert_eq!(
        (received[0].byte_len, received[0].imm),
        (5000, Some([1, 2, 3, 4]))
    );
    // Only the last packet is repeated: the others were acknowledged by the NAK.
    let retransmits = count(&pair, Side::A, qp, Counter::Retransmits);
    let naks = count(&pair, Side::A, qp, Counter::RnrNaksReceived);
    assert_eq!(retransmits, naks);
}

#[test]
fn late_receives_on_a_bad_link_lose_nothing() {
    for seed in 0..20 {
        let mut pair = Pair::new(seed, bad(0.04), bad(0.04));
        let qp = pair.connect(&Setup {
            min_rnr_timer: 5,
            ..Setup::default()
        });
        let data = pattern(10_000, seed);
        let source = pair[Side::A].register(&data, open_access());
        let target = open_region(&mut pair, Side::B, data.len());
        for wr_id in 0..10 {
            let part = wr_id as u32 * 1000;
            let wr = airdma_sim::SendWr::new(
                wr_id,
                Operation::Send,
                vec![source.part(part..part + 1000)],
            );
            pair[Side::A].post_send(qp, wr);
        }
        for wr_id in 0..10 {
            pair.run_for(us(300));
            let part = wr_id as u32 * 1000;
            let sge = target.part(part..part + 1000);
            pair[Side::B].post_receive(qp, wr_id, vec![sge]);
        }
        pair.run_until_idle();
        pair.assert_nothing_left();
        assert!(pair[Side::B].bytes(&target) == data, "seed {seed}");
        assert_eq!(receives(&pair, Side::B, qp).len(), 10);
    }
}

#[test]
fn a_lost_rnr_nak_is_made_up_for_by_the_timer() {
    let to_a = clean().drop_if(|number, _| number == 0);
    let (mut pair, qp) = connected_over(clean(), to_a, &Setup::default());
    let source = open_region(&mut pair, Side::A, 10);
    let target = open_region(&mut pair, Side::B, 10);
    post(&mut pair, qp, 1, Operation::Send, &source);
    pair.run_for(us(100));
    pair[Side::B].post_receive(qp, 5, vec![target.all()]);
    pair.run_until_idle();
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(1, Status::Success)]);
    assert_eq!(count(&pair, Side::A, qp, Counter::Timeouts), 1);
    assert!(pair.now() < Time::ZERO + ms(3));
}

#[test]
fn an_rnr_nak_acknowledges_what_came_before_it() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = open_region(&mut pair, Side::A, 10);
    let target = open_region(&mut pair, Side::B, 10);
    pair[Side::B].post_receive(qp, 5, vec![target.all()]);
    for wr_id in 0..2 {
        post(&mut pair, qp, wr_id, Operation::Send, &source);
    }
    pair.run_for(us(300));
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(0, Status::Success)]);
    let refused = pair.trace().records().filter_map(|record| record.headers);
    let refused = refused.filter_map(|headers| headers.aeth);
    let syndromes: Vec<Syndrome> = refused.map(|aeth| aeth.syndrome).collect();
    assert!(syndromes.contains(&Syndrome::RnrNak { timer: 12 }));
    assert!(!syndromes.contains(&Syndrome::Nak(NakCode::PsnSequenceError)));
    assert!(crate::scene::sent(&pair, Side::B, Opcode::RcAcknowledge) > 0);
}
