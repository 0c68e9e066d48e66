//! READs whose answers carry more than the path MTU (256 bytes here), between peers that have
//! agreed on it.

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const LONG: u32 = 400;
/// As the requester says it.
const EACH: [u8; 4] = [1, 0, 0x01, 0x90];
const P0: u32 = 0xff_fffe;
const P1: u32 = 0xff_ffff;
const READ: Operation = Operation::Read {
    va: REGION_VA,
    rkey: RKEY,
};

/// Takes long packets, and sends them to a peer that answers READs with them, too.
fn bench() -> Bench {
    let mut b = Bench::connected();
    b.qp.set_selective(Some(&ReorderMemory::new(1 << 20)));
    b.qp.set_long_payloads(LONG, LONG, true);
    b
}

fn response(b: &mut Bench, opcode: Opcode, psn: u32, payload: &[u8]) {
    b.arrives(opcode, psn, payload, |headers| {
        headers.bth.ack_request = false;
        headers.aeth = opcode.has_aeth().then_some(Aeth {
            syndrome: Syndrome::Ack { credits: 31 },
            msn: 0,
        });
    });
}

#[test]
fn a_read_asks_for_a_payload_and_takes_as_many_psns() {
    let mut b = bench();
    b.post(READ, 1000);
    b.post(Operation::Send, 1);
    assert_eq!(
        b.sends(),
        [
            "ReadRequest 16777214 A va=0x1000+1000 each=400",
            "SendOnly 1 A [1]"
        ]
    );
    let mut b = bench();
    b.post(READ, 257);
    b.post(READ, 256);
    assert_eq!(
        b.sends(),
        [
            "ReadRequest 16777214 A va=0x1000+257 each=400",
            // One packet of the path MTU does.
            "ReadRequest 16777215 A va=0x1000+256"
        ]
    );
}

#[test]
fn a_very_long_read_is_asked_for_in_pieces_of_whole_packets() {
    let mut b = bench();
    b.post(READ, 100_000);
    assert_eq!(
        b.sends(),
        [
            "ReadRequest 16777214 A va=0x1000+65600 each=400",
            "ReadRequest 162 A va=0x11040+34400 each=400"
        ]
    );
}

#[test]
fn lost_answers_are_asked_for_again_from_the_first_one_on() {
    let whole = [[1; 400].as_slice(), &[2; 400], &[3; 200]].concat();
    let read = || {
        let mut b = bench();
        b.post(READ, 1000);
        b.sends();
        b
    };
    let arrived = |mut b: Bench| {
        assert_eq!(b.log(), ["send 0 Success"]);
        assert!(b.host.messages[&0] == whole);
    };
    // The first.
    let mut b = read();
    response(&mut b, Opcode::RcReadResponseMiddle, P1, &[2; 400]);
    let again = ["ReadRequest 16777214 A va=0x1000+1000 each=400"];
    assert_eq!(b.sends(), again);
    response(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 400]);
    response(&mut b, Opcode::RcReadResponseMiddle, P1, &[2; 400]);
    response(&mut b, Opcode::RcReadResponseLast, 0, &[3; 200]);
    arrived(b);
    // One in the middle.
    let mut b = read();
    response(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 400]);
    response(&mut b, Opcode::RcReadResponseLast, 0, &[3; 200]);
    assert_eq!(b.sends(), ["ReadRequest 16777215 A va=0x1190+600 each=400"]);
    response(&mut b, Opcode::RcReadResponseFirst, P1, &[2; 400]);
    response(&mut b, Opcode::RcReadResponseLast, 0, &[3; 200]);
    arrived(b);
    // The last: nothing shows that but silence, and it fits one usual packet.
    let mut b = read();
    response(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 400]);
    response(&mut b, Opcode::RcReadResponseMiddle, P1, &[2; 400]);
    b.next_timer();
    assert_eq!(b.sends(), ["ReadRequest 0 A va=0x1320+200"]);
    response(&mut b, Opcode::RcReadResponseOnly, 0, &[3; 200]);
    arrived(b);
}

#[test]
fn answers_that_are_not_as_long_as_asked_for_end_the_read() {
    for length in [256, 396, 404] {
        let mut b = bench();
        b.post(READ, 1000);
        b.sends();
        let data = &[1; 500][..length];
        response(&mut b, Opcode::RcReadResponseFirst, P0, data);
        assert_eq!(b.log()[0], "send 0 BadResponse", "{length}");
    }
}

#[test]
fn a_read_in_progress_keeps_its_payload() {
    let mut b = bench();
    b.post(READ, 1000);
    b.sends();
    b.post(READ, 1000);
    // The interface takes less from now on.
    b.qp.set_long_payloads(300, 300, true);
    assert_eq!(b.sends(), ["ReadRequest 1 A va=0x1000+1000 each=300"]);
    b.next_timer();
    let all = [
        "ReadRequest 16777214 A va=0x1000+1000 each=400",
        "ReadRequest 1 A va=0x1000+1000 each=300",
    ];
    while b.counted(Counter::Timeouts) == 0 {
        b.sends();
        b.next_timer();
    }
    assert_eq!(b.sends(), all);
    // The peer, started anew, say, knows no long answers.
    b.post(READ, 300);
    b.qp.set_long_payloads(300, 300, false);
    response(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 400]);
    response(&mut b, Opcode::RcReadResponseMiddle, P1, &[1; 400]);
    response(&mut b, Opcode::RcReadResponseLast, 0, &[1; 200]);
    assert_eq!(b.sends(), ["ReadRequest 5 A va=0x1000+300"]);
}

#[test]
fn a_read_is_answered_as_it_asks_and_so_are_its_duplicates() {
    let mut b = bench();
    b.read_arrives_with(100, REGION_VA, 1000, &EACH);
    let whole = [
        "ReadResponseFirst 100 msn=1 [400]",
        "ReadResponseMiddle 101 [400]",
        "ReadResponseLast 102 msn=1 [200]",
    ];
    assert_eq!(b.sends(), whole);
    b.read_arrives_with(103, REGION_VA, 300, &EACH);
    assert_eq!(b.sends(), ["ReadResponseOnly 103 msn=2 [300]"]);
    // What is said later changes nothing of what was granted.
    b.qp.set_long_payloads(0, 0, false);
    b.read_arrives_with(100, REGION_VA, 1000, &EACH);
    let again = whole.map(|line| line.replace("msn=1", "msn=2"));
    assert_eq!(b.sends(), again);
    b.read_arrives_with(101, REGION_VA + 400, 600, &EACH);
    assert_eq!(
        b.sends(),
        [
            "ReadResponseFirst 101 msn=2 [400]",
            "ReadResponseLast 102 msn=2 [200]"
        ]
    );
    b.read_arrives(102, REGION_VA + 800, 200);
    assert_eq!(b.sends(), ["ReadResponseOnly 102 msn=2 [200]"]);
    // By the path MTU it would have begun there.
    b.read_arrives(101, REGION_VA + 256, 744);
    assert_eq!(b.sends(), [""; 0]);
    b.read_arrives_with(104, REGION_VA, 600, &EACH);
    b.read_arrives(106, REGION_VA, 300);
    assert_eq!(
        b.sends(),
        [
            "ReadResponseFirst 104 msn=3 [400]",
            "ReadResponseLast 105 msn=3 [200]",
            "ReadResponseFirst 106 msn=4 [256]",
            "ReadResponseLast 107 msn=4 [44]"
        ]
    );
}

#[test]
fn a_long_read_and_an_atomic_are_repeated_in_order() {
    let mut b = bench();
    let add = |b: &mut Bench| {
        b.arrives(Opcode::RcFetchAdd, 102, &[], |headers| {
            headers.atomic_eth = Some(AtomicEth {
                va: REGION_VA + 0x1000,
                rkey: RKEY,
                swap_add: 1,
                compare: 0,
            });
        });
    };
    b.read_arrives_with(100, REGION_VA, 600, &EACH);
    add(&mut b);
    let first = b.sends();
    assert_eq!(
        first[..2],
        [
            "ReadResponseFirst 100 msn=1 [400]",
            "ReadResponseLast 101 msn=1 [200]"
        ]
    );
    assert!(first[2].starts_with("AtomicAcknowledge 102 msn=2 original="));
    add(&mut b);
    b.read_arrives_with(100, REGION_VA, 600, &EACH);
    let again = b.sends();
    assert_eq!(again[2..], first[2..], "executed once");
    assert!(again[0].starts_with("ReadResponseFirst 100 "));
}

#[test]
fn a_read_that_comes_early_keeps_the_psns_of_its_long_answers() {
    let mut b = bench();
    b.read_arrives_with(101, REGION_VA, 1000, &EACH);
    b.write_arrives(
        Opcode::RcWriteOnly,
        104,
        &[7; 8],
        Some(Reth {
            va: REGION_VA + 0x1000,
            rkey: RKEY,
            length: 8,
        }),
    );
    let mut missing = [PsnRange {
        first: Psn::new(0),
        packets: 0,
    }; 4];
    let (expected, count) = b.qp.take_report(&mut missing).unwrap();
    assert_eq!((expected.get(), count), (100, 1));
    assert_eq!((missing[0].first.get(), missing[0].packets), (100, 1));
    b.arrives(Opcode::RcWriteOnly, 100, &[], |headers| {
        headers.reth = Some(Reth::default());
    });
    assert_eq!(
        b.sends(),
        [
            "ReadResponseFirst 101 msn=2 [400]",
            "ReadResponseMiddle 102 [400]",
            "ReadResponseLast 103 msn=2 [200]",
        ]
    );
    let (expected, count) = b.qp.take_report(&mut missing).unwrap();
    assert_eq!((expected.get(), count), (105, 0));
}

fn lreth(payload: u16, is_equal: bool) -> [u8; 4] {
    Lreth { payload, is_equal }.to_bytes()
}

/// What a READ of 1,000 bytes gets with this behind its RETH, in its turn or before it.
fn answered(taken: u32, lreth: &[u8], early: bool) -> (Vec<String>, QpState) {
    let mut b = Bench::connected();
    b.qp.set_selective(Some(&ReorderMemory::new(1 << 20)));
    b.qp.set_long_payloads(taken, 0, false);
    b.read_arrives_with(100 + u32::from(early), REGION_VA, 1000, lreth);
    if early {
        assert_eq!(b.sends(), [""; 0]);
        b.arrives(Opcode::RcWriteOnly, 100, &[], |headers| {
            headers.reth = Some(Reth::default());
        });
    }
    (b.sends(), b.qp.state())
}

#[test]
fn what_no_agreement_allows_is_refused_in_its_turn() {
    let each = |payload: u16| lreth(payload, false).to_vec();
    let mut wrong: Vec<Vec<u8>> = [0, 1, 2, 4, 252, 255, 256, 257, 258, 398, 399, 401, 404]
        .map(each)
        .to_vec();
    wrong.extend([4096, 4100, 0x8000, 65_535].map(each));
    wrong.extend([
        vec![1],
        vec![1, 0, 1],
        vec![3, 0, 1, 0x90],
        lreth(128, true).to_vec(),
        lreth(130, true).to_vec(),
        lreth(404, true).to_vec(),
        vec![2, 0, 1],
        [EACH, EACH].concat(),
        vec![1; 1000],
    ]);
    for lreth in wrong {
        let refused = |psn| {
            (
                vec![format!("Acknowledge {psn} NAK InvalidRequest")],
                QpState::Error,
            )
        };
        assert_eq!(answered(LONG, &lreth, false), refused(100), "{lreth:?}");
        assert_eq!(answered(LONG, &lreth, true), refused(101), "{lreth:?}");
    }
    assert_eq!(answered(LONG, &each(260), false).0.len(), 4);
    // Nothing was agreed on.
    for each in [256, 260, 400] {
        for is_equal in [false, true] {
            let lreth = lreth(each, is_equal);
            assert_eq!(answered(0, &lreth, false).1, QpState::Error, "{each}");
        }
    }
}

#[test]
fn nothing_but_a_read_says_what_its_answers_carry() {
    let mut b = bench();
    b.arrives(Opcode::RcFetchAdd, 100, &EACH, |headers| {
        headers.atomic_eth = Some(AtomicEth {
            va: REGION_VA,
            rkey: RKEY,
            swap_add: 1,
            compare: 0,
        });
    });
    assert_eq!(b.sends(), ["Acknowledge 100 NAK InvalidRequest"]);
}

#[test]
fn runs_of_answers_are_of_long_packets_and_taken_as_such() {
    let mut b = bench();
    b.read_arrives_with(100, REGION_VA, 5 * LONG, &EACH);
    b.sends_one().unwrap();
    let mut out = vec![0; 64 * 1024];
    let limits = airdma_transport::RunLimits {
        packets: 8,
        spare: 0,
    };
    let run =
        b.qp.poll_run(b.now, b.credit, limits, &mut b.host, &mut out);
    let run = run.unwrap();
    assert_eq!((run.packets, run.len), (3, Bth::LEN + LONG as usize));
    assert_eq!(b.sends(), ["ReadResponseLast 104 msn=1 [400]"]);
    let (bth, _) = out.split_first_chunk().unwrap();
    assert_eq!(Bth::from_bytes(bth).unwrap().psn, Psn::new(101));
    assert!(out[Bth::LEN..][..400] == b.host.memory[400..800]);

    let mut b = bench();
    b.post(READ, 3 * LONG);
    b.sends();
    response(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 400]);
    let bth = Bth::new(Opcode::RcReadResponseMiddle, Qpn::new(QPN), Psn::new(P1));
    let usual = b.qp.take_middle(b.now, &bth, &[2; 256], &mut b.host);
    let long = b.qp.take_middle(b.now, &bth, &[2; 400], &mut b.host);
    assert_eq!((usual, long), (false, true));
    response(&mut b, Opcode::RcReadResponseLast, 0, &[3; 400]);
    assert_eq!(b.log(), ["send 0 Success"]);
    assert!(b.host.messages[&0][400..800] == [2; 400]);
}
