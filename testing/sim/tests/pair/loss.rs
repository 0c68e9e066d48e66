//! Single losses, chosen one by one, and the cost of each.

use airdma_sim::{Fate, Pair, Record, Setup, Side};
use airdma_transport::{Counter, Operation, Status, Time};
use airdma_wire::{Opcode, PathMtu, Psn};

use crate::scene::{
    assert_untroubled, clean, connected, connected_over, count, ms, open_access, open_region,
    outcomes, pattern, post, read_from, sends, sent, us, write_to,
};

/// Loses packet `lost` of a WRITE of ten packets.
fn write_that_loses(lost: u64) -> (Pair, usize) {
    let to_b = clean().drop_if(move |number, _| number == lost);
    let (mut pair, qp) = connected_over(to_b, clean(), &Setup::default());
    let data = pattern(10 * 1024, 1);
    let source = pair[Side::A].register(&data, open_access());
    let target = open_region(&mut pair, Side::B, data.len());
    post(&mut pair, qp, 1, write_to(&target), &source);
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert!(pair[Side::B].bytes(&target) == data);
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(1, Status::Success)]);
    (pair, qp)
}

#[test]
fn a_lost_packet_is_answered_by_one_nak_and_repeated_from_there() {
    for lost in 0..9 {
        let (pair, qp) = write_that_loses(lost);
        assert_eq!(count(&pair, Side::B, qp, Counter::NaksSent), 1);
        assert_eq!(count(&pair, Side::B, qp, Counter::OutOfOrder), 9 - lost);
        assert_eq!(count(&pair, Side::A, qp, Counter::Retransmits), 10 - lost);
        assert_eq!(count(&pair, Side::A, qp, Counter::Timeouts), 0);
        assert!(pair[Side::A].losses_signalled > 0);
    }
}

#[test]
fn a_lost_last_packet_is_repeated_by_the_timer() {
    let (pair, qp) = write_that_loses(9);
    assert_eq!(count(&pair, Side::A, qp, Counter::Timeouts), 1);
    assert_eq!(count(&pair, Side::B, qp, Counter::NaksSent), 0);
    // It is unknown what arrived: everything unacknowledged is repeated.
    assert_eq!(count(&pair, Side::A, qp, Counter::Retransmits), 10);
    assert_eq!(count(&pair, Side::B, qp, Counter::Duplicates), 9);
    assert!(pair.now() < Time::ZERO + ms(2));
}

#[test]
fn a_lost_acknowledgement_is_made_up_for_by_the_next() {
    let to_a = clean().drop_if(|number, _| number == 0);
    let (mut pair, qp) = connected_over(clean(), to_a, &Setup::default());
    let source = open_region(&mut pair, Side::A, 100);
    let target = open_region(&mut pair, Side::B, 100);
    post(&mut pair, qp, 1, write_to(&target), &source);
    pair.run_for(us(50));
    post(&mut pair, qp, 2, write_to(&target), &source);
    pair.run_until_idle();
    let expected = [1, 2].map(|wr_id| (wr_id, Status::Success));
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    assert_eq!(count(&pair, Side::A, qp, Counter::Timeouts), 0);
    assert_eq!(count(&pair, Side::A, qp, Counter::Retransmits), 0);
}

#[test]
fn a_duplicate_is_acknowledged_and_not_applied() {
    let to_b = clean().duplicate(1.0);
    let (mut pair, qp) = connected_over(to_b, clean(), &Setup::default());
    let source = open_region(&mut pair, Side::A, 5000);
    let target = open_region(&mut pair, Side::B, 5000);
    for wr_id in 0..5 {
        pair[Side::B].post_receive(qp, wr_id, vec![target.all()]);
    }
    for wr_id in 0..5 {
        post(&mut pair, qp, wr_id, Operation::Send, &source);
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert_eq!(pair[Side::B].rings(qp).receive_completions.len(), 5);
    let sent = pair[Side::A].port_counters().sent;
    assert_eq!(count(&pair, Side::B, qp, Counter::Duplicates), sent);
    assert_eq!(count(&pair, Side::A, qp, Counter::Retransmits), 0);
}

/// A write that is repeated late must not overwrite what a later one wrote.
#[test]
fn a_late_copy_of_a_write_changes_nothing() {
    let to_b = clean().duplicate(1.0).reorder(0.5);
    let (mut pair, qp) = connected_over(to_b, clean(), &Setup::default());
    let target = open_region(&mut pair, Side::B, 2000);
    for value in 1..=20u8 {
        let source = pair[Side::A].register(&[value; 2000], open_access());
        post(&mut pair, qp, u64::from(value), write_to(&target), &source);
        pair.run_for(us(7));
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert!(pair[Side::B].bytes(&target) == [20; 2000]);
}

#[test]
fn sequence_numbers_wrap_around_on_both_sides() {
    for start in [0x00ff_ffff, 0x00ff_fffe, 0x00ff_ff80, 0x007f_fff0] {
        for lossy in [false, true] {
            let link = || clean().drop(if lossy { 0.03 } else { 0.0 });
            let setup = Setup {
                mtu: PathMtu::M256,
                first_psns: [Psn::new(start), Psn::new(start)],
                ..Setup::default()
            };
            let (mut pair, qp) = connected_over(link(), link(), &setup);
            let data = pattern(100_000, 1);
            let near = pair[Side::A].register(&data, open_access());
            let far = open_region(&mut pair, Side::B, data.len());
            let back = open_region(&mut pair, Side::A, data.len());
            post(&mut pair, qp, 1, write_to(&far), &near);
            pair.run_until_idle();
            post(&mut pair, qp, 2, read_from(&far), &back);
            pair.run_until_idle();
            pair.assert_nothing_left();
            assert!(pair[Side::A].bytes(&back) == data);
            if !lossy {
                assert_untroubled(&pair, qp);
            }
        }
    }
}

#[test]
fn a_bottleneck_with_a_short_queue_is_got_through() {
    let to_b = clean().bottleneck(1_000_000_000, 20_000);
    let (mut pair, qp) = connected_over(to_b, clean(), &Setup::default());
    pair[Side::A].window_bytes = 64 << 10;
    let data = pattern(1 << 20, 1);
    let source = pair[Side::A].register(&data, open_access());
    let target = open_region(&mut pair, Side::B, data.len());
    post(&mut pair, qp, 1, write_to(&target), &source);
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert!(pair[Side::B].bytes(&target) == data);
    assert!(pair.link(Side::A).counters().dropped > 0);
}

#[test]
fn every_damaged_packet_is_found() {
    let (mut pair, qp) = connected_over(
        clean().corrupt(0.2),
        clean().corrupt(0.2),
        &Setup::default(),
    );
    let data = pattern(100_000, 1);
    let near = pair[Side::A].register(&data, open_access());
    let far = open_region(&mut pair, Side::B, data.len());
    let back = open_region(&mut pair, Side::A, data.len());
    post(&mut pair, qp, 1, write_to(&far), &near);
    pair.run_until_idle();
    post(&mut pair, qp, 2, read_from(&far), &back);
    pair.run_until_idle();
    assert!(pair[Side::A].bytes(&back) == data);
    for side in Side::BOTH {
        let damaged = pair.link(side.other()).counters().damaged;
        assert!(damaged > 5);
        assert_eq!(pair[side].port_counters().bad_icrc, damaged);
    }
    assert_eq!(pair.trace().count(|r| r.fate == Fate::Malformed), 0);
}

#[test]
fn a_long_message_is_acknowledged_on_the_way() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = open_region(&mut pair, Side::A, 1 << 20);
    let target = open_region(&mut pair, Side::B, 1 << 20);
    post(&mut pair, qp, 1, write_to(&target), &source);
    pair.run_until_idle();
    let acks = sent(&pair, Side::B, Opcode::RcAcknowledge);
    // One for every 32 KiB.
    assert!((30..=34).contains(&acks), "{acks}");
    assert_untroubled(&pair, qp);
}

/// The ICRC detects the damage that passes the IP layer and changed a covered byte: [`Pair`]
/// asserts it for each packet.
#[test]
fn bits_of_the_whole_packet_may_flip_and_its_end_may_be_missing() {
    let hostile = || clean().corrupt_any(0.05).truncate(0.03);
    let addresses = [["10.5.0.1", "10.5.0.2"], ["fd05::1", "fd05::2"]];
    for addresses in addresses.map(|pair| pair.map(|text| text.parse().unwrap())) {
        let mut pair = Pair::with_addresses(3, addresses, hostile(), hostile());
        let qp = pair.connect(&Setup::default());
        let data = pattern(100_000, 1);
        let near = pair[Side::A].register(&data, open_access());
        let far = open_region(&mut pair, Side::B, data.len());
        post(&mut pair, qp, 1, write_to(&far), &near);
        pair.run_until_idle();
        assert!(pair[Side::B].bytes(&far) == data);
        let refused = |r: &Record| matches!(r.fate, Fate::Refused(_));
        assert!(pair.trace().count(refused) > 0);
        assert!(pair[Side::B].port_counters().bad_icrc > 0);
    }
}
