//! READs: pieces, fences, repetitions.

use airdma_sim::{Region, SendWr, Setup, Side};
use airdma_transport::{Access, Counter, Operation, Status};
use airdma_wire::{Opcode, PathMtu};

use crate::scene::{
    assert_untroubled, bad, clean, connected, connected_over, count, ms, open_region, outcomes,
    pattern, post, read_from, sends, sent, us, write_to,
};

#[test]
fn a_long_read_survives_loss_duplication_and_reordering() {
    for seed in 0..6 {
        let link = || clean().drop(0.02).duplicate(0.02).reorder(0.05);
        let mut pair = airdma_sim::Pair::new(seed, link(), link());
        let qp = pair.connect(&Setup::default());
        let data = pattern(300_001, seed);
        let shelf = pair[Side::B].register(&data, Access::REMOTE_READ);
        let landing = open_region(&mut pair, Side::A, data.len());
        post(&mut pair, qp, 1, read_from(&shelf), &landing);
        pair.run_until_idle();
        pair.assert_nothing_left();
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(1, Status::Success)]);
        assert!(pair[Side::A].bytes(&landing) == data);
    }
}

#[test]
fn the_reads_in_flight_stay_within_the_agreed_number() {
    for agreed in [1, 2, 16] {
        let setup = Setup {
            max_rd_atomic: agreed,
            max_dest_rd_atomic: agreed,
            ..Setup::default()
        };
        let (mut pair, qp) = connected(&setup);
        let shelf = open_region(&mut pair, Side::B, 500_000);
        let landing = open_region(&mut pair, Side::A, 500_000);
        for wr_id in 0..3 {
            post(&mut pair, qp, wr_id, read_from(&shelf), &landing);
        }
        pair.run_until_idle();
        pair.assert_nothing_left();
        assert_eq!(sends(&pair, Side::A, qp).len(), 3);
        // Eight pieces of 64 KiB each.
        assert_eq!(sent(&pair, Side::A, Opcode::RcReadRequest), 3 * 8);
        assert_untroubled(&pair, qp);
    }
}

/// READ 1 is answered late, so it is asked for again; the repetition arrives together with READ 2,
/// while its answer still waits. The peer keeps to the agreed one READ in flight all the same.
#[test]
fn a_repeated_read_does_not_count_as_one_more_in_flight() {
    let setup = Setup {
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ..Setup::default()
    };
    let to_b = clean().batch(ms(3));
    let to_a = clean().delay(ms(2));
    let (mut pair, qp) = connected_over(to_b, to_a, &setup);
    let data = pattern(2000, 4);
    let shelf = pair[Side::B].register(&data, Access::REMOTE_READ);
    let landings = [0, 1].map(|_| open_region(&mut pair, Side::A, data.len()));
    for (wr_id, landing) in landings.iter().enumerate() {
        post(&mut pair, qp, wr_id as u64, read_from(&shelf), landing);
    }
    pair.run_until_idle();
    let expected = [0, 1].map(|wr_id| (wr_id, Status::Success));
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    for landing in &landings {
        assert!(pair[Side::A].bytes(landing) == data);
    }
}

/// The write may overtake the answer of the READ if it does not wait, and the READ is repeated
/// after losses: only the fence keeps what it returns.
fn read_then_overwrite(pair: &mut airdma_sim::Pair, qp: usize, cell: &Region, landing: &Region) {
    let fresh = pair[Side::A].register(&[0xff; 4096], Access::empty());
    post(pair, qp, 1, read_from(cell), landing);
    let write = SendWr::new(2, write_to(cell), vec![fresh.all()]);
    pair[Side::A].post_send(qp, write.fenced());
    pair.run_until_idle();
    pair.assert_nothing_left();
}

#[test]
fn a_fenced_write_never_changes_what_an_earlier_read_returns() {
    for seed in 0..40 {
        let mut pair = airdma_sim::Pair::new(seed, bad(0.05), bad(0.05));
        let qp = pair.connect(&Setup {
            mtu: PathMtu::M256,
            ..Setup::default()
        });
        let cell = open_region(&mut pair, Side::B, 4096);
        let landing = pair[Side::A].register(&[1; 4096], Access::LOCAL_WRITE);
        read_then_overwrite(&mut pair, qp, &cell, &landing);
        assert!(pair[Side::A].bytes(&landing) == [0; 4096], "seed {seed}");
        assert!(pair[Side::B].bytes(&cell) == [0xff; 4096]);
    }
}

#[test]
fn a_fence_waits_for_the_answer_and_nothing_else() {
    let (mut pair, qp) = connected(&Setup::default());
    let cell = open_region(&mut pair, Side::B, 64);
    let near = open_region(&mut pair, Side::A, 64);
    post(&mut pair, qp, 1, write_to(&cell), &near);
    let write = SendWr::new(2, write_to(&cell), vec![near.all()]);
    pair[Side::A].post_send(qp, write.fenced());
    pair.run_for(us(1));
    assert_eq!(
        sent(&pair, Side::A, Opcode::RcWriteOnly),
        2,
        "a write waits for no earlier write"
    );
    pair.run_until_idle();

    post(&mut pair, qp, 3, read_from(&cell), &near);
    let write = SendWr::new(4, write_to(&cell), vec![near.all()]);
    pair[Side::A].post_send(qp, write.fenced());
    pair.run_for(us(1));
    assert_eq!(sent(&pair, Side::A, Opcode::RcWriteOnly), 2);
    pair.run_until("the READ is done", |pair| {
        sends(pair, Side::A, qp).len() == 3
    });
    assert_eq!(sent(&pair, Side::A, Opcode::RcWriteOnly), 3);
    pair.run_until_idle();
    assert_untroubled(&pair, qp);
}

#[test]
fn a_lost_read_response_costs_the_rest_of_its_piece_only() {
    let to_a = clean().drop_if(|number, _| number == 10);
    let (mut pair, qp) = connected_over(clean(), to_a, &Setup::default());
    let data = pattern(64 << 10, 2);
    let shelf = pair[Side::B].register(&data, Access::REMOTE_READ);
    let landing = open_region(&mut pair, Side::A, data.len());
    post(&mut pair, qp, 1, read_from(&shelf), &landing);
    pair.run_until_idle();
    assert!(pair[Side::A].bytes(&landing) == data);
    assert_eq!(count(&pair, Side::A, qp, Counter::Timeouts), 0);
    assert_eq!(count(&pair, Side::A, qp, Counter::Retransmits), 1);
    assert_eq!(sent(&pair, Side::B, Opcode::RcReadResponseFirst), 2);
    let again = pair.trace().records().filter_map(|record| record.headers);
    let lengths: Vec<u32> = again.filter_map(|h| h.reth).map(|r| r.length).collect();
    // Each request is seen twice: when it is sent and when it is delivered.
    assert_eq!(lengths, [65536, 65536, 54 << 10, 54 << 10]);
}

#[test]
fn memory_that_goes_away_ends_a_read_that_is_being_answered() {
    let (mut pair, qp) = connected(&Setup::default());
    let data = pattern(1 << 20, 2);
    let shelf = pair[Side::B].register(&data, Access::REMOTE_READ);
    let landing = open_region(&mut pair, Side::A, data.len());
    post(&mut pair, qp, 1, read_from(&shelf), &landing);
    pair.run_for(us(200));
    pair[Side::B].deregister(&shelf);
    pair.run_until_idle();
    pair.assert_nothing_left();
    let expected = [(1, Status::RemoteAccessError)];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    assert_eq!(count(&pair, Side::A, qp, Counter::Timeouts), 0);
    let arrived = pair[Side::A].bytes(&landing);
    let good = arrived.iter().zip(&data).take_while(|(a, b)| a == b);
    let good = good.count();
    assert!(good > 1024 && arrived[good..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_read_without_the_right_to_read_is_never_sent() {
    let setup = Setup {
        max_rd_atomic: 0,
        ..Setup::default()
    };
    let (mut pair, qp) = connected(&setup);
    let shelf = open_region(&mut pair, Side::B, 64);
    let landing = open_region(&mut pair, Side::A, 64);
    post(&mut pair, qp, 1, read_from(&shelf), &landing);
    let expected = [(1, Status::LocalQpOperationError)];
    pair.run_until_idle();
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    assert_eq!(pair[Side::A].port_counters().sent, 0);
}

#[test]
fn an_empty_read_needs_no_key() {
    let (mut pair, qp) = connected(&Setup::default());
    let nowhere = Operation::Read {
        va: 0,
        rkey: airdma_wire::Rkey(0),
    };
    pair[Side::A].post_send(qp, SendWr::new(1, nowhere, Vec::new()));
    pair.run_until_idle();
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(1, Status::Success)]);
    assert_eq!(sent(&pair, Side::B, Opcode::RcReadResponseOnly), 1);
}
