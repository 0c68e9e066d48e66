//! Requests that fail for a reason: both sides' completions, states and events.

use airdma_sim::{Pair, Region, SendWr, Setup, Sge, Side};
use airdma_transport::{
    Access, AttrMask, Counter, Operation, QpAttributes, QpEvent, QpState, Status,
};
use airdma_wire::Rkey;

use crate::scene::{
    connected, count, open_access, open_region, outcomes, pattern, post, read_from, receives,
    sends, state, us, write_to,
};

fn atomic_on(region: &Region, offset: u64) -> Operation {
    Operation::FetchAdd {
        va: region.va + offset,
        rkey: region.rkey(),
        add: 1,
    }
}

/// One refused request between two others, with receives posted on both sides.
fn refused(operation: Operation, length: u32, setup: &Setup, expected: (Status, QpEvent)) {
    let (mut pair, qp) = connected(setup);
    let near = open_region(&mut pair, Side::A, 8192);
    refused_on(&mut pair, qp, operation, near.part(0..length), expected);
}

fn refused_on(
    pair: &mut Pair,
    qp: usize,
    operation: Operation,
    sge: Sge,
    expected: (Status, QpEvent),
) {
    for side in Side::BOTH {
        let region = open_region(pair, side, 64);
        pair[side].post_receive(qp, 50, vec![region.all()]);
        pair[side].post_receive(qp, 51, vec![region.all()]);
    }
    let near = open_region(pair, Side::A, 64);
    post(pair, qp, 1, Operation::Send, &near);
    pair[Side::A].post_send(qp, SendWr::new(2, operation, vec![sge]).unsignalled());
    post(pair, qp, 3, Operation::Send, &near);
    pair.run_until_idle();
    pair.assert_nothing_left();

    let (status, event) = expected;
    let flushed = Status::WrFlushError;
    let outcome = [(1, Status::Success), (2, status), (3, flushed)];
    assert_eq!(outcomes(sends(pair, Side::A, qp)), outcome);
    let outcome = [(50, flushed), (51, flushed)];
    assert_eq!(outcomes(receives(pair, Side::A, qp)), outcome);
    let outcome = [(50, Status::Success), (51, flushed)];
    assert_eq!(outcomes(receives(pair, Side::B, qp)), outcome);
    for side in Side::BOTH {
        assert_eq!(state(pair, side, qp), QpState::Error);
    }
    assert_eq!(pair[Side::B].rings(qp).events, [event]);
    assert_eq!(count(pair, Side::A, qp, Counter::NaksReceived), 1);
    assert_eq!(count(pair, Side::A, qp, Counter::Timeouts), 0);
}

/// A right and an operation that needs it.
type Need = (Access, fn(&Region) -> Operation);

const NEEDS: [Need; 3] = [
    (Access::REMOTE_WRITE, write_to),
    (Access::REMOTE_READ, read_from),
    (Access::REMOTE_ATOMIC, |region| atomic_on(region, 0)),
];

const ACCESS: (Status, QpEvent) = (Status::RemoteAccessError, QpEvent::AccessError);
const INVALID: (Status, QpEvent) = (Status::RemoteInvalidRequest, QpEvent::RequestError);

#[test]
fn an_unknown_key_is_refused() {
    let (va, rkey) = (0x1000, Rkey(0xdead_0001));
    let add = 1;
    for operation in [
        Operation::Write { va, rkey },
        Operation::Read { va, rkey },
        Operation::FetchAdd { va, rkey, add },
    ] {
        refused(operation, 8, &Setup::default(), ACCESS);
    }
}

#[test]
fn a_range_beyond_the_region_is_refused_without_any_access() {
    for operation in [write_to, read_from] {
        let (mut pair, qp) = connected(&Setup::default());
        let data = pattern(4000, 1);
        let target = pair[Side::B].register(&data, open_access());
        let near = open_region(&mut pair, Side::A, 4001);
        refused_on(&mut pair, qp, operation(&target), near.all(), ACCESS);
        assert!(pair[Side::B].bytes(&target) == data);
        assert!(pair[Side::A].bytes(&near).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn an_address_near_the_end_of_the_space_does_not_wrap() {
    let (mut pair, qp) = connected(&Setup::default());
    let target = open_region(&mut pair, Side::B, 64);
    let near = open_region(&mut pair, Side::A, 64);
    let write = Operation::Write {
        va: u64::MAX - 3,
        rkey: target.rkey(),
    };
    refused_on(&mut pair, qp, write, near.all(), ACCESS);
}

#[test]
fn a_region_without_the_right_is_refused() {
    let all = open_access();
    for (needed, operation) in NEEDS {
        let (mut pair, qp) = connected(&Setup::default());
        let target = pair[Side::B].register(&[3; 8], all - needed);
        let near = open_region(&mut pair, Side::A, 8);
        refused_on(&mut pair, qp, operation(&target), near.all(), ACCESS);
        assert_eq!(pair[Side::B].bytes(&target), [3; 8]);
    }
}

#[test]
fn what_a_queue_pair_does_not_grant_is_an_invalid_request() {
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    for (needed, operation) in NEEDS {
        let setup = Setup {
            access: all - needed,
            ..Setup::default()
        };
        let (mut pair, qp) = connected(&setup);
        let target = pair[Side::B].register(&[3; 8], open_access());
        let near = open_region(&mut pair, Side::A, 8);
        refused_on(&mut pair, qp, operation(&target), near.all(), INVALID);
        assert_eq!(pair[Side::B].bytes(&target), [3; 8]);
    }
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let (mut pair, qp) = connected(&Setup::default());
    let target = open_region(&mut pair, Side::B, 64);
    let near = open_region(&mut pair, Side::A, 8);
    refused_on(&mut pair, qp, atomic_on(&target, 4), near.all(), INVALID);
}

#[test]
fn a_key_that_cannot_be_invalidated_fails_the_send() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = open_region(&mut pair, Side::A, 8);
    let target = open_region(&mut pair, Side::B, 8);
    pair[Side::B].post_receive(qp, 50, vec![target.all()]);
    post(
        &mut pair,
        qp,
        1,
        Operation::SendInvalidate(Rkey(77)),
        &source,
    );
    pair.run_until_idle();
    pair.assert_nothing_left();
    let outcome = [(1, Status::RemoteAccessError)];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), outcome);
    let received = receives(&pair, Side::B, qp);
    assert_eq!(received.len(), 1);
    assert_ne!(received[0].status, Status::Success);
}

#[test]
fn a_message_longer_than_the_receive_fails_on_both_sides() {
    for length in [101, 1500, 5000] {
        let (mut pair, qp) = connected(&Setup::default());
        let source = pair[Side::A].register(&vec![9; length], Access::empty());
        let target = open_region(&mut pair, Side::B, 200);
        pair[Side::B].post_receive(qp, 50, vec![target.part(0..100)]);
        post(&mut pair, qp, 1, Operation::Send, &source);
        pair.run_until_idle();
        pair.assert_nothing_left();
        let outcome = [(1, Status::RemoteInvalidRequest)];
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), outcome);
        let outcome = [(50, Status::LocalLengthError)];
        assert_eq!(outcomes(receives(&pair, Side::B, qp)), outcome);
        assert!(pair[Side::B].bytes(&target)[100..] == [0; 100]);
    }
}

#[test]
fn a_receive_without_local_write_fails_on_both_sides() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = open_region(&mut pair, Side::A, 100);
    let target = pair[Side::B].register(&[5; 100], Access::empty());
    pair[Side::B].post_receive(qp, 50, vec![target.all()]);
    post(&mut pair, qp, 1, Operation::Send, &source);
    pair.run_until_idle();
    pair.assert_nothing_left();
    let outcome = [(1, Status::RemoteOperationError)];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), outcome);
    let outcome = [(50, Status::LocalProtectionError)];
    assert_eq!(outcomes(receives(&pair, Side::B, qp)), outcome);
    assert_eq!(pair[Side::B].bytes(&target), [5; 100]);
    assert_eq!(pair[Side::B].rings(qp).events, [QpEvent::Fatal]);
}

#[test]
fn a_request_whose_own_memory_is_bad_is_not_sent() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = open_region(&mut pair, Side::A, 100);
    let target = open_region(&mut pair, Side::B, 200);
    post(&mut pair, qp, 1, write_to(&target), &source);
    pair.run_until_idle();
    let beyond = vec![source.part(0..101)];
    pair[Side::A].post_send(qp, SendWr::new(2, write_to(&target), beyond));
    post(&mut pair, qp, 3, write_to(&target), &source);
    pair.run_until_idle();
    pair.assert_nothing_left();
    let outcome = [
        (1, Status::Success),
        (2, Status::LocalProtectionError),
        (3, Status::WrFlushError),
    ];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), outcome);
    assert_eq!(pair[Side::A].port_counters().sent, 1);
    assert_eq!(state(&pair, Side::B, qp), QpState::ReadyToSend);
}

#[test]
fn memory_that_goes_away_in_the_middle_of_a_send_ends_it() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = open_region(&mut pair, Side::A, 1 << 20);
    let target = open_region(&mut pair, Side::B, 1 << 20);
    post(&mut pair, qp, 1, write_to(&target), &source);
    pair.run_for(us(300));
    pair[Side::A].deregister(&source);
    pair.run_until_idle();
    pair.assert_nothing_left();
    let outcome = [(1, Status::LocalProtectionError)];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), outcome);
}

#[test]
fn a_target_that_goes_away_in_the_middle_of_a_write_ends_it() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = pair[Side::A].register(&vec![9; 1 << 20], Access::empty());
    let target = open_region(&mut pair, Side::B, 1 << 20);
    post(&mut pair, qp, 1, write_to(&target), &source);
    pair.run_for(us(300));
    pair[Side::B].deregister(&target);
    let before = pair[Side::B].bytes(&target).to_vec();
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert!(pair[Side::B].bytes(&target) == before);
    let outcome = [(1, Status::RemoteAccessError)];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), outcome);
}

#[test]
fn a_read_into_memory_that_may_not_be_written_fails_here_only() {
    let (mut pair, qp) = connected(&Setup::default());
    let shelf = open_region(&mut pair, Side::B, 100);
    let landing = pair[Side::A].register(&[5; 100], Access::empty());
    post(&mut pair, qp, 1, read_from(&shelf), &landing);
    pair.run_until_idle();
    pair.assert_nothing_left();
    let outcome = [(1, Status::LocalProtectionError)];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), outcome);
    assert_eq!(pair[Side::A].bytes(&landing), [5; 100]);
    assert_eq!(state(&pair, Side::B, qp), QpState::ReadyToSend);
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let setup = Setup {
        max_rd_atomic: 4,
        max_dest_rd_atomic: 2,
        ..Setup::default()
    };
    let (mut pair, qp) = connected(&setup);
    let shelf = open_region(&mut pair, Side::B, 64 << 10);
    let landing = open_region(&mut pair, Side::A, 64 << 10);
    for wr_id in 0..4 {
        post(&mut pair, qp, wr_id, read_from(&shelf), &landing);
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    let done = sends(&pair, Side::A, qp);
    assert!(
        done.iter()
            .any(|c| c.status == Status::RemoteInvalidRequest)
    );
    assert!(done[0].status == Status::Success && done[1].status == Status::Success);
}

fn move_to(pair: &mut Pair, side: Side, qp: usize, state: QpState) {
    let attributes = QpAttributes {
        state,
        ..QpAttributes::default()
    };
    let moved = pair[side].modify(qp, &attributes, AttrMask::STATE);
    moved.unwrap();
}

#[test]
fn the_error_state_flushes_what_is_posted_and_what_will_be() {
    let (mut pair, qp) = connected(&Setup::default());
    let near = open_region(&mut pair, Side::A, 100_000);
    let far = open_region(&mut pair, Side::B, 100_000);
    pair[Side::A].post_receive(qp, 50, vec![near.all()]);
    post(&mut pair, qp, 1, write_to(&far), &near);
    pair.run_for(us(20));
    move_to(&mut pair, Side::A, qp, QpState::Error);
    post(&mut pair, qp, 2, write_to(&far), &near);
    pair[Side::A].post_receive(qp, 51, vec![near.all()]);
    pair.run_until_idle();
    pair.assert_nothing_left();
    let flushed = Status::WrFlushError;
    let outcome = [(1, flushed), (2, flushed)];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), outcome);
    let outcome = [(50, flushed), (51, flushed)];
    assert_eq!(outcomes(receives(&pair, Side::A, qp)), outcome);
    assert_eq!(state(&pair, Side::B, qp), QpState::ReadyToSend);
}

#[test]
fn a_half_received_message_is_flushed_first() {
    let (mut pair, qp) = connected(&Setup::default());
    let near = open_region(&mut pair, Side::A, 100_000);
    let far = open_region(&mut pair, Side::B, 100_000);
    for wr_id in 50..53 {
        pair[Side::B].post_receive(qp, wr_id, vec![far.all()]);
    }
    post(&mut pair, qp, 1, Operation::Send, &near);
    pair.run_for(us(30));
    move_to(&mut pair, Side::B, qp, QpState::Error);
    pair.run_until_idle();
    let outcome = [50, 51, 52].map(|wr_id| (wr_id, Status::WrFlushError));
    assert_eq!(outcomes(receives(&pair, Side::B, qp)), outcome);
    let outcome = [(1, Status::RetryExceeded)];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), outcome);
}
