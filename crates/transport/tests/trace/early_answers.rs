//! Answers to READs and atomics that come although earlier ones were lost, between peers that
//! repeat selectively.

use std::time::Duration;

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const RTT: Duration = Duration::from_millis(4);
const P0: u32 = 0xff_fffe;
const P1: u32 = 0xff_ffff;
const READ: Operation = Operation::Read {
    va: REGION_VA,
    rkey: RKEY,
};
const WRITE: Operation = Operation::Write {
    va: REGION_VA,
    rkey: RKEY,
};
const ADD: Operation = Operation::FetchAdd {
    va: REGION_VA,
    rkey: RKEY,
    add: 1,
};

/// A bench with these requests in flight.
fn asked(requests: &[(Operation, u32)]) -> Bench {
    let mut b = Bench::connected();
    b.qp.set_selective(Some(&ReorderMemory::new(1 << 20)));
    for &(operation, length) in requests {
        b.post(operation, length);
    }
    b.sends();
    let told = Acknowledgement {
        expected: Psn::new(P0),
        missing: &[],
        rtt: RTT,
        told_within: Duration::from_millis(1),
    };
    b.qp.handle_acknowledgement(b.now, &told, &mut b.host);
    b
}

fn answer(b: &mut Bench, opcode: Opcode, psn: u32, payload: &[u8]) {
    b.arrives(opcode, psn, payload, |headers| {
        headers.bth.ack_request = false;
        headers.aeth = opcode.has_aeth().then_some(Aeth {
            syndrome: Syndrome::Ack { credits: 31 },
            msn: 0,
        });
        headers.atomic_ack = (opcode == Opcode::RcAtomicAcknowledge).then_some(77);
    });
}

#[test]
fn they_stay_where_they_belong_and_complete_in_their_turn() {
    let mut b = asked(&[(READ, 768), (READ, 512)]);
    answer(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 256]);
    answer(&mut b, Opcode::RcReadResponseLast, 0, &[3; 256]);
    assert_eq!(b.sends(), ["ReadRequest 16777215 A va=0x1100+512"]);
    answer(&mut b, Opcode::RcReadResponseFirst, 1, &[4; 256]);
    answer(&mut b, Opcode::RcReadResponseLast, 2, &[5; 256]);
    assert_eq!(b.sends(), [""; 0], "nothing else is missing");
    assert_eq!(b.log(), [""; 0], "completions are in order");
    // The one that was lost; the rest, which comes again with it, has no use.
    answer(&mut b, Opcode::RcReadResponseFirst, P1, &[2; 256]);
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
    answer(&mut b, Opcode::RcReadResponseLast, 0, &[9; 256]);
    let whole = [[1; 256], [2; 256], [3; 256]].concat();
    assert!(b.host.messages[&0] == whole);
    assert!(b.host.messages[&1] == [[4; 256], [5; 256]].concat());
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.qp.poll_timeout(), None);
    assert_eq!(b.counted(Counter::Timeouts), 0);
}

#[test]
fn one_that_comes_twice_is_placed_once() {
    let mut b = asked(&[(READ, 768)]);
    answer(&mut b, Opcode::RcReadResponseMiddle, P1, &[2; 256]);
    answer(&mut b, Opcode::RcReadResponseMiddle, P1, &[9; 256]);
    assert_eq!(b.counted(Counter::Duplicates), 1);
    answer(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 256]);
    answer(&mut b, Opcode::RcReadResponseLast, 0, &[3; 256]);
    let whole = [[1; 256], [2; 256], [3; 256]].concat();
    assert!(b.host.messages[&0] == whole);
    assert_eq!(b.log(), ["send 0 Success"]);
}

#[test]
fn a_middle_packet_in_its_turn_brings_those_that_waited_for_it() {
    let mut b = asked(&[(READ, 1024)]);
    answer(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 256]);
    answer(&mut b, Opcode::RcReadResponseMiddle, 0, &[3; 256]);
    assert!(!take_middle(&mut b, P1), "others wait");
    answer(&mut b, Opcode::RcReadResponseMiddle, P1, &[2; 256]);
    answer(&mut b, Opcode::RcReadResponseLast, 1, &[4; 256]);
    assert_eq!(b.log(), ["send 0 Success"]);
}

fn take_middle(b: &mut Bench, psn: u32) -> bool {
    let bth = Bth {
        ack_request: false,
        ..Bth::new(Opcode::RcReadResponseMiddle, Qpn::new(1), Psn::new(psn))
    };
    b.qp.take_middle(b.now, &bth, &[2; 256], &mut b.host)
}

#[test]
fn answers_behind_a_repeated_middle_packet_are_in_flight() {
    let mut b = asked(&[(READ, 1024), (READ, 8)]);
    executed(&mut b, 3);
    b.next_timer();
    assert_eq!(b.sends().len(), 1);
    b.now = b.now + RTT;
    answer(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 256]);
    b.now = b.now + RTT;
    assert!(take_middle(&mut b, P1));
    b.now = b.now + RTT / 2;
    answer(&mut b, Opcode::RcReadResponseOnly, 2, &[4; 8]);
    assert_eq!(b.sends(), [""; 0]);
}

#[test]
fn lost_atomic_results_are_requested_again() {
    let mut b = asked(&[(ADD, 8), (WRITE, 8), (READ, 8), (WRITE, 8)]);
    answer(&mut b, Opcode::RcReadResponseOnly, 0, &[7; 8]);
    // By the request that the peer knows.
    let again = b.sends();
    assert_eq!(again.len(), 1);
    assert!(again[0].starts_with("FetchAdd 16777214 "), "{again:?}");
    assert_eq!(b.log(), [""; 0]);
    answer(&mut b, Opcode::RcAtomicAcknowledge, P0, &[]);
    let done = [0, 1, 2].map(|request| format!("send {request} Success"));
    assert_eq!(b.log(), done, "nobody said that the last one is");
    assert!(b.host.messages[&0] == 77_u64.to_ne_bytes());
}

#[test]
fn what_is_lost_again_is_asked_for_again_a_round_trip_later() {
    let mut b = asked(&[(READ, 512), (READ, 512)]);
    answer(&mut b, Opcode::RcReadResponseLast, 1, &[4; 256]);
    assert_eq!(
        b.sends(),
        [
            "ReadRequest 16777214 va=0x1000+512",
            "ReadRequest 0 A va=0x1000+512",
        ]
    );
    // The first of the repeated packets are lost, too; it is too early to request them again.
    answer(&mut b, Opcode::RcReadResponseFirst, 0, &[3; 256]);
    assert_eq!(b.sends(), [""; 0]);
    b.now = b.now + RTT * 2;
    answer(&mut b, Opcode::RcReadResponseLast, P1, &[2; 256]);
    assert_eq!(b.sends(), ["ReadRequest 16777214 A va=0x1000+512"]);
    answer(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 256]);
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
}

#[test]
fn the_probe_is_for_the_oldest_that_is_missing() {
    let mut b = asked(&[(READ, 512), (READ, 8)]);
    answer(&mut b, Opcode::RcReadResponseOnly, 0, &[3; 8]);
    assert_eq!(b.sends().len(), 1);
    b.next_timer();
    assert_eq!(b.sends(), ["ReadRequest 16777214 A va=0x1000+512"]);
    assert_eq!(b.counted(Counter::Timeouts), 0);
}

fn executed(b: &mut Bench, expected: u32) {
    let told = Acknowledgement {
        expected: Psn::new(expected),
        missing: &[],
        rtt: RTT,
        told_within: Duration::from_millis(1),
    };
    b.qp.handle_acknowledgement(b.now, &told, &mut b.host);
}

#[test]
fn a_probe_requests_a_missing_answer_though_all_is_executed() {
    let mut b = asked(&[(READ, 8), (WRITE, 8)]);
    executed(&mut b, 0);
    b.next_timer();
    assert_eq!(b.sends(), ["ReadRequest 16777214 A va=0x1000+8"]);
    assert_eq!(b.counted(Counter::Timeouts), 0);
    answer(&mut b, Opcode::RcReadResponseOnly, P0, &[3; 8]);
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
}

#[test]
fn what_goes_on_behind_a_lost_answer_does_not_put_its_probe_off() {
    let mut b = asked(&[(READ, 8), (WRITE, 8)]);
    executed(&mut b, 0);
    let mut asked_again = Vec::new();
    for psn in 0..8 {
        b.now = b.now + RTT / 2;
        while b.qp.poll_timeout().is_some_and(|at| at <= b.now) {
            b.qp.handle_timeout(b.now, &mut b.host);
        }
        b.post(WRITE, 8);
        let sent = b.sends();
        asked_again.extend(sent.into_iter().filter(|line| line.starts_with("Read")));
        executed(&mut b, psn + 1);
    }
    assert_eq!(asked_again, ["ReadRequest 16777214 va=0x1000+8"]);
    assert_eq!(b.counted(Counter::Timeouts), 0);
}

#[test]
fn the_last_result_stays_where_requests_share_memory() {
    let mut b = asked(&[(READ, 512), (ADD, 8)]);
    b.host.sharing = true;
    answer(&mut b, Opcode::RcReadResponseLast, P1, &[2; 256]);
    answer(&mut b, Opcode::RcAtomicAcknowledge, 0, &[]);
    assert!(b.host.messages[&0][256..] == [2; 256], "its own packets");
    assert!(b.host.messages[&1] != 77_u64.to_ne_bytes(), "not yet");
    assert_eq!(b.sends(), ["ReadRequest 16777214 A va=0x1000+512"]);
    answer(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 256]);
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
    assert!(b.host.messages[&1] == 77_u64.to_ne_bytes());
}

#[test]
fn shared_memory_is_checked_once_for_each_request() {
    for (sharing, questions) in [(false, 3), (true, 2)] {
        let mut b = Bench::connected_with(QpAttributes {
            max_rd_atomic: 3,
            ..attributes()
        });
        b.qp.set_selective(Some(&ReorderMemory::new(1 << 20)));
        b.host.sharing = sharing;
        for _ in 0..3 {
            b.post(READ, 1024);
        }
        b.sends();
        for index in 0..4 {
            for first in [2, 6] {
                answer(
                    &mut b,
                    Opcode::RcReadResponseMiddle,
                    first + index,
                    &[7; 256],
                );
            }
        }
        assert_eq!(b.host.asked_for_sharing, questions);
        for psn in [P0, P1, 0, 1] {
            answer(&mut b, Opcode::RcReadResponseMiddle, psn, &[1; 256]);
        }
        let done = [0, 1, 2].map(|request| format!("send {request} Success"));
        assert_eq!(b.log(), done);
        assert!(b.host.messages[&2] == [7; 1024]);
        assert_eq!(b.host.asked_for_sharing, questions);
    }
}

#[test]
fn an_answer_waits_no_longer_than_who_is_in_its_way() {
    let mut b = asked(&[(READ, 8), (READ, 768)]);
    b.host.sharing = true;
    answer(&mut b, Opcode::RcReadResponseMiddle, 0, &[2; 256]);
    assert!(b.host.messages[&1][256..512] != [2; 256], "not yet");
    answer(&mut b, Opcode::RcReadResponseOnly, P0, &[1; 8]);
    answer(&mut b, Opcode::RcReadResponseLast, 1, &[3; 256]);
    assert!(b.host.messages[&1][512..] == [3; 256]);
    answer(&mut b, Opcode::RcReadResponseFirst, P1, &[1; 256]);
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
}

#[test]
fn what_waits_and_is_wrong_shows_in_its_turn() {
    let mut b = asked(&[(READ, 512), (READ, 8)]);
    b.host.sharing = true;
    answer(&mut b, Opcode::RcReadResponseOnly, 0, &[2; 7]);
    answer(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 256]);
    assert_eq!(b.log(), [""; 0]);
    answer(&mut b, Opcode::RcReadResponseLast, P1, &[1; 256]);
    assert_eq!(b.log(), ["send 0 Success", "send 1 BadResponse"]);
}

#[test]
fn what_waits_is_bounded_and_given_back() {
    let memory = ReorderMemory::new(1000);
    let mut b = Bench::connected();
    b.qp.set_selective(Some(&memory));
    b.host.sharing = true;
    for length in [8, 1024] {
        b.post(READ, length);
    }
    b.sends();
    for psn in [P1, 0, 1, 2] {
        answer(&mut b, Opcode::RcReadResponseMiddle, psn, &[2; 256]);
    }
    assert!(b.counted(Counter::DropEarly) > 0);
    assert!(memory.left() < 1000);
    let again = b.sends();
    assert_eq!(again[0], "ReadRequest 16777214 va=0x1000+8");
    assert!(again[1].starts_with("ReadRequest 1 "), "{again:?}");
    answer(&mut b, Opcode::RcReadResponseOnly, P0, &[1; 8]);
    assert_eq!(memory.left(), 1000);
    answer(&mut b, Opcode::RcReadResponseMiddle, 1, &[2; 256]);
    b.modify(QpState::Error);
    assert_eq!(memory.left(), 1000);
}

#[test]
fn answers_without_memory_are_requested_again() {
    let mut b = Bench::connected_with(QpAttributes {
        timeout: 0,
        ..attributes()
    });
    b.qp.set_selective(Some(&ReorderMemory::new(0)));
    b.host.sharing = true;
    for length in [8, 1024] {
        b.post(READ, length);
    }
    b.sends();
    for psn in [P1, 0, 1] {
        answer(&mut b, Opcode::RcReadResponseMiddle, psn, &[2; 256]);
    }
    assert_eq!(b.counted(Counter::DropEarly), 3);
    assert_eq!(
        b.sends(),
        [
            "ReadRequest 16777214 va=0x1000+8",
            "ReadRequest 16777215 A va=0x1000+1024",
        ]
    );
    // They arrive again, and the one before them is lost again: a packet is requested at most once
    // in a round trip.
    for psn in [P1, 0, 1, 2] {
        answer(&mut b, Opcode::RcReadResponseMiddle, psn, &[2; 256]);
    }
    assert_eq!(b.sends(), [""; 0]);
    b.next_timer();
    assert_eq!(b.sends()[0], "ReadRequest 16777214 A va=0x1000+8");
    answer(&mut b, Opcode::RcReadResponseOnly, P0, &[1; 8]);
    for psn in [P1, 0, 1] {
        answer(&mut b, Opcode::RcReadResponseMiddle, psn, &[2; 256]);
    }
    answer(&mut b, Opcode::RcReadResponseLast, 2, &[2; 256]);
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
}

#[test]
fn what_is_wrong_is_not_placed_and_shows_in_its_turn() {
    for (opcode, length) in [
        (Opcode::RcReadResponseLast, 255),
        (Opcode::RcAtomicAcknowledge, 0),
    ] {
        let mut b = asked(&[(READ, 512), (READ, 8)]);
        let before = b.host.messages[&0].clone();
        answer(&mut b, opcode, P1, &[1; 255][..length]);
        assert_eq!(b.counted(Counter::DropMalformed), 1);
        assert!(b.host.messages[&0] == before);
        answer(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 256]);
        assert_eq!(b.log(), [""; 0]);
        answer(&mut b, opcode, P1, &[1; 255][..length]);
        assert_eq!(b.log()[0], "send 0 BadResponse");
    }
}
