//! Packets that carry more than the path MTU (256 bytes here), between peers that have agreed on
//! it.

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const LONG: u32 = 400;
const START: usize = (REGION_VA - 0x1000) as usize;
const LIMITS: RunLimits = RunLimits {
    packets: 8,
    spare: 0,
};
const WRITE: Operation = Operation::Write {
    va: REGION_VA,
    rkey: RKEY,
};

/// Takes packets of up to `taken` bytes, and sends those of `sent`.
fn bench(taken: u32, sent: u32) -> Bench {
    let mut b = Bench::connected();
    b.qp.set_selective(Some(&ReorderMemory::new(1 << 20)));
    b.qp.set_long_payloads(taken, sent, false);
    b
}

fn reth(length: u32) -> Option<Reth> {
    Some(Reth {
        va: REGION_VA,
        rkey: RKEY,
        length,
    })
}

#[test]
fn long_packets_are_sent_and_reads_ask_only_capable_peers() {
    let mut b = bench(LONG, LONG);
    b.post(WRITE, 1000);
    b.post(Operation::Send, 401);
    b.post(Operation::Send, 400);
    b.post(
        Operation::Read {
            va: REGION_VA,
            rkey: RKEY,
        },
        1000,
    );
    assert_eq!(
        b.sends(),
        [
            // With its RETH as long as the next one.
            "WriteFirst 16777214 va=0x1000+1000 [384]",
            "WriteMiddle 16777215 [400]",
            "WriteLast 0 [216]",
            "SendFirst 1 [400]",
            "SendLast 2 [1]",
            "SendOnly 3 [400]",
            "ReadRequest 4 A va=0x1000+1000",
        ]
    );
    // Four answers of the path MTU: the next request has the PSN behind them.
    b.post(Operation::Send, 1);
    assert_eq!(b.sends(), ["SendOnly 8 A [1]"]);
}

#[test]
fn requests_in_progress_keep_their_packet_size() {
    let mut b = bench(LONG, 0);
    b.post(WRITE, 600);
    b.post(WRITE, 600);
    assert_eq!(
        b.sends_one().unwrap(),
        "WriteFirst 16777214 va=0x1000+600 [256]"
    );
    b.qp.set_long_payloads(LONG, LONG, false);
    assert_eq!(b.sends_one().unwrap(), "WriteMiddle 16777215 [256]");
    assert_eq!(b.sends_one().unwrap(), "WriteLast 0 [88]");
    assert_eq!(
        b.sends(),
        ["WriteFirst 1 va=0x1000+600 [384]", "WriteLast 2 A [216]"]
    );
    let all = PsnRange {
        first: Psn::new(0xff_fffe),
        packets: 5,
    };
    let told = Acknowledgement {
        expected: all.first,
        missing: &[all],
        rtt: std::time::Duration::from_millis(4),
        told_within: std::time::Duration::from_millis(1),
    };
    b.now = b.now + std::time::Duration::from_millis(50);
    b.qp.handle_acknowledgement(b.now, &told, &mut b.host);
    assert_eq!(
        b.sends(),
        [
            "WriteFirst 16777214 va=0x1000+600 [256]",
            "WriteMiddle 16777215 [256]",
            "WriteLast 0 [88]",
            "WriteFirst 1 va=0x1000+600 [384]",
            "WriteLast 2 A [216]",
        ]
    );
}

#[test]
fn what_is_full_is_what_the_message_began_with() {
    let mut b = bench(LONG, 0);
    for (psn, first, full) in [(100, 384, 400), (103, 256, 256), (107, 284, 300)] {
        let rest = 1000 - first - full;
        b.write_arrives(Opcode::RcWriteFirst, psn, &[1; 1000][..first], reth(1000));
        // The second comes late, and the one after it goes to its place at once.
        let mut last = psn + 2;
        if rest > full {
            b.write_arrives(Opcode::RcWriteMiddle, last, &[3; 1000][..full], None);
            assert_eq!(
                b.host.memory[START + first + full..][..full],
                [3; 1000][..full]
            );
            last += 1;
        }
        b.write_arrives(Opcode::RcWriteMiddle, psn + 1, &[2; 1000][..full], None);
        let rest = 1000 - first - (last - psn - 1) as usize * full;
        b.write_arrives(Opcode::RcWriteLast, last, &[4; 1000][..rest], None);
        let mut expected = [&[1; 1000][..first], &[2; 1000][..full]].concat();
        expected.resize(1000 - rest, 3);
        expected.resize(1000, 4);
        assert_eq!(b.host.memory[START..][..1000], expected, "{full}");
    }
    assert_eq!(b.counted(Counter::MessagesReceived), 3);
    assert_eq!(b.qp.state(), QpState::ReadyToSend);
}

#[test]
fn packets_of_a_wrong_length_are_refused() {
    let refused = |taken: u32, packets: &[(Opcode, usize)]| {
        let mut b = bench(taken, 0);
        for (psn, &(opcode, length)) in (100..).zip(packets) {
            let reth = opcode.is_first().then_some(reth(2000)).flatten();
            b.write_arrives(opcode, psn, &[1; 1000][..length], reth);
        }
        b.qp.state() == QpState::Error
    };
    use Opcode::{RcWriteFirst as First, RcWriteLast as Last, RcWriteMiddle as Middle};
    assert!(!refused(LONG, &[(First, 384), (Middle, 400)]));
    assert!(refused(LONG, &[(First, 388)]), "others would be longer");
    assert!(!refused(LONG, &[(First, 252), (Middle, 268)]));
    assert!(refused(LONG, &[(First, 252), (Middle, 252)]));
    assert!(!refused(LONG, &[(First, 116), (Middle, 132)]));
    assert!(refused(LONG, &[(First, 112)]), "half of the path MTU");
    assert!(refused(LONG, &[(First, 0)]));
    assert!(refused(0, &[(First, 252)]), "nothing was agreed on");
    assert!(refused(LONG, &[(First, 384), (Middle, 384)]));
    assert!(refused(LONG, &[(First, 384), (Middle, 256)]));
    assert!(refused(LONG, &[(First, 256), (Middle, 400)]));
    assert!(refused(LONG, &[(First, 256), (Middle, 272)]));
    assert!(refused(LONG, &[(First, 256), (Last, 400)]));
    assert!(refused(0, &[(First, 384)]), "nothing was agreed on");
    assert!(!refused(0, &[(First, 256), (Middle, 256)]));
}

#[test]
fn only_packets_may_be_as_long_as_what_is_taken() {
    for (taken, length, status) in [
        (LONG, 400, QpState::ReadyToSend),
        (LONG, 404, QpState::Error),
        (0, 400, QpState::Error),
    ] {
        let mut b = bench(taken, 0);
        b.post_receive(1, 1000);
        b.arrives(Opcode::RcSendOnly, 100, &[1; 1000][..length], |_| {});
        assert_eq!(b.qp.state(), status, "{taken} {length}");
    }
}

#[test]
fn packets_of_a_send_are_as_long_as_its_first() {
    let mut b = bench(LONG, 0);
    b.post_receive(1, 1000);
    b.arrives(Opcode::RcSendFirst, 100, &[1; 400], |_| {});
    b.arrives(Opcode::RcSendMiddle, 101, &[2; 400], |_| {});
    b.arrives(Opcode::RcSendLast, 102, &[3; 200], |_| {});
    assert_eq!(b.counted(Counter::MessagesReceived), 1);
    assert_eq!(b.qp.state(), QpState::ReadyToSend);
}

#[test]
fn a_first_packet_that_could_be_a_usual_one_is_not_sent() {
    // 256 bytes would say that the path MTU is meant.
    for (sent, first) in [(272, 256), (276, 260)] {
        let mut b = bench(LONG, sent);
        b.post(WRITE, 1000);
        let expected = format!("WriteFirst 16777214 va=0x1000+1000 [{first}]");
        assert_eq!(b.sends_one().unwrap(), expected);
        let middle = if first == 256 { 256 } else { 276 };
        let expected = format!("WriteMiddle 16777215 [{middle}]");
        assert_eq!(b.sends_one().unwrap(), expected);
    }
}

#[test]
fn a_run_is_of_packets_as_long_as_those_of_its_message() {
    let mut b = bench(LONG, 0);
    b.post(WRITE, 4 * 256);
    let mut out = vec![0; 64 * 1024];
    for full in [256, LONG as usize] {
        b.sends_one().unwrap();
        let run =
            b.qp.poll_run(b.now, b.credit, LIMITS, &mut b.host, &mut out)
                .unwrap();
        assert_eq!((run.packets, run.len), (2, Bth::LEN + full));
        b.sends_one().unwrap();
        b.qp.set_long_payloads(LONG, LONG, false);
        b.post(WRITE, 4 * LONG - 16);
    }
}
