//! Atomics are executed exactly once, whatever the link does.

use airdma_sim::{Pair, Region, SendWr, Setup, Side};
use airdma_transport::{Counter, Operation, Status};
use airdma_wire::Opcode;

use crate::scene::{
    assert_untroubled, bad, clean, connected, connected_over, count, open_region, outcomes, sends,
    sent,
};

fn fetch_add(word: &Region, add: u64) -> Operation {
    Operation::FetchAdd {
        va: word.va,
        rkey: word.rkey(),
        add,
    }
}

fn compare_swap(word: &Region, compare: u64, swap: u64) -> Operation {
    Operation::CompareSwap {
        va: word.va,
        rkey: word.rkey(),
        compare,
        swap,
    }
}

fn value(pair: &Pair, side: Side, region: &Region) -> u64 {
    u64::from_ne_bytes(pair[side].bytes(region).try_into().unwrap())
}

#[test]
fn fetch_add_and_compare_swap_return_the_original_value() {
    let (mut pair, qp) = connected(&Setup::default());
    let word = open_region(&mut pair, Side::B, 8);
    pair[Side::B]
        .bytes_mut(&word)
        .copy_from_slice(&5u64.to_ne_bytes());
    let steps = [
        (fetch_add(&word, 3), 5, 8),
        (fetch_add(&word, u64::MAX), 8, 7),
        (compare_swap(&word, 7, 100), 7, 100),
        (compare_swap(&word, 7, 200), 100, 100),
    ];
    for (wr_id, (operation, original, after)) in steps.into_iter().enumerate() {
        let landing = open_region(&mut pair, Side::A, 8);
        let wr = SendWr::new(wr_id as u64, operation, vec![landing.all()]);
        pair[Side::A].post_send(qp, wr);
        pair.run_until_idle();
        assert_eq!(value(&pair, Side::A, &landing), original);
        assert_eq!(value(&pair, Side::B, &word), after);
    }
    pair.assert_nothing_left();
    assert!(sends(&pair, Side::A, qp).iter().all(|c| c.byte_len == 8));
    assert_untroubled(&pair, qp);
}

/// All originals that the queue pairs saw must be the steps of one sum.
#[test]
fn fetch_adds_of_several_queue_pairs_linearise_on_a_bad_link() {
    for seed in 0..10 {
        let mut pair = Pair::new(seed, bad(0.05), bad(0.05));
        let qps: Vec<usize> = (0..3).map(|_| pair.connect(&Setup::default())).collect();
        let word = open_region(&mut pair, Side::B, 8);
        let mut landings = Vec::new();
        for wr_id in 0..40u64 {
            let landing = open_region(&mut pair, Side::A, 8);
            let wr = SendWr::new(wr_id, fetch_add(&word, 1), vec![landing.all()]);
            pair[Side::A].post_send(qps[wr_id as usize % 3], wr);
            landings.push(landing);
        }
        pair.run_until_idle();
        pair.assert_nothing_left();
        assert_eq!(value(&pair, Side::B, &word), 40);
        let mut originals: Vec<u64> = landings
            .iter()
            .map(|landing| value(&pair, Side::A, landing))
            .collect();
        originals.sort_unstable();
        assert_eq!(originals, (0..40).collect::<Vec<u64>>());
    }
}

#[test]
fn a_lost_answer_is_given_again_without_adding_again() {
    let mut first = true;
    let to_a = clean().drop_if(move |_, packet| {
        packet.opcode() == Opcode::RcAtomicAcknowledge && std::mem::take(&mut first)
    });
    let (mut pair, qp) = connected_over(clean(), to_a, &Setup::default());
    let word = open_region(&mut pair, Side::B, 8);
    let landings = [0, 1, 2].map(|_| open_region(&mut pair, Side::A, 8));
    for (wr_id, landing) in landings.iter().enumerate() {
        let wr = SendWr::new(wr_id as u64, fetch_add(&word, 10), vec![landing.all()]);
        pair[Side::A].post_send(qp, wr);
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert_eq!(value(&pair, Side::B, &word), 30);
    let originals = landings.map(|landing| value(&pair, Side::A, &landing));
    assert_eq!(originals, [0, 10, 20]);
    assert!(count(&pair, Side::B, qp, Counter::Duplicates) > 0);
    assert!(sent(&pair, Side::B, Opcode::RcAtomicAcknowledge) > 3);
}

#[test]
fn every_answer_lost_once_still_adds_once() {
    let to_a = clean().drop_if(|number, _| number % 2 == 0);
    let setup = Setup {
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ..Setup::default()
    };
    let (mut pair, qp) = connected_over(clean(), to_a, &setup);
    let word = open_region(&mut pair, Side::B, 8);
    let landing = open_region(&mut pair, Side::A, 8);
    for wr_id in 0..10 {
        let wr = SendWr::new(wr_id, fetch_add(&word, 1), vec![landing.all()]);
        pair[Side::A].post_send(qp, wr);
    }
    pair.run_until_idle();
    let expected: Vec<_> = (0..10).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    assert_eq!(value(&pair, Side::B, &word), 10);
    assert_eq!(value(&pair, Side::A, &landing), 9);
}
