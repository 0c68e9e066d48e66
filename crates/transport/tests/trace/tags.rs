//! Tags of connections between airdma hosts: by them a packet ahead of its turn is as hard to forge
//! as the expected one is on RoCEv2.

use std::time::Duration;

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const SENT: u16 = 0x1555;
const TAKEN: u16 = 0x0abc;
/// The packets that one is taken ahead of, and itself.
const WINDOW: u32 = 8192;
const TAGS: u16 = 1 << TAG_BITS;

fn tagged() -> Bench {
    let mut b = Bench::connected();
    b.qp.set_selective(Some(&ReorderMemory::new(8 << 20)));
    b.qp.set_tags(Tags {
        sent: SENT,
        taken: TAKEN,
    });
    b
}

/// A packet of a WRITE of all the region, with a tag.
fn write(b: &mut Bench, opcode: Opcode, psn: u32, tag: u16) {
    let fill = psn as u8;
    b.arrives(opcode, psn, &[fill; 256], |headers| {
        headers.bth.tag = tag;
        headers.bth.ack_request = false;
        headers.reth = opcode.has_reth().then_some(Reth {
            va: REGION_VA,
            rkey: RKEY,
            length: REGION_LEN as u32,
        });
    });
}

/// The peer is in the middle of a WRITE, and has shown its tag. It is to go on at 101.
fn shown() -> Bench {
    let mut b = tagged();
    write(&mut b, Opcode::RcWriteFirst, 100, TAKEN);
    b
}

fn refused(b: &Bench) -> u32 {
    b.counted(Counter::DropUntagged)
}

#[test]
fn of_all_forged_packets_one_of_2_to_the_24_is_taken() {
    // By its PSN, every packet may be taken that has the right tag.
    let mut b = shown();
    for ahead in (0..WINDOW).rev() {
        write(&mut b, Opcode::RcWriteMiddle, 101 + ahead, TAKEN);
    }
    assert_eq!(refused(&b), 0);
    assert_eq!(b.counted(Counter::DropEarly), 0);
    // Whatever its PSN, none is that has another.
    let mut b = shown();
    let before = (b.host.memory.clone(), format!("{:?}", b.qp));
    for ahead in 0..WINDOW {
        let wrong = 1 + ahead as u16 % (TAGS - 1);
        write(&mut b, Opcode::RcWriteMiddle, 101 + ahead, TAKEN ^ wrong);
    }
    for tag in (0..TAGS).filter(|&tag| tag != TAKEN) {
        for psn in [99, 101, 102, 5_000] {
            write(&mut b, Opcode::RcWriteMiddle, psn, tag);
        }
    }
    assert_eq!(refused(&b), WINDOW + 4 * (u32::from(TAGS) - 1));
    assert!(b.host.memory == before.0, "a byte was placed");
    let mut bth = Bth::new(Opcode::RcWriteMiddle, Qpn::new(QPN), Psn::new(101));
    for tag in (0..TAGS).filter(|&tag| tag != TAKEN) {
        bth.tag = tag;
        assert!(!b.qp.take_middle(b.now, &bth, &[1; 256], &mut b.host));
    }
    assert_eq!(format!("{:?}", b.qp), before.1, "something changed");
    // The share of all pairs of a PSN and a tag that match both.
    let odds = f64::from(WINDOW) / f64::from(1 << 24) / f64::from(TAGS);
    assert!(odds <= 1.0 / f64::from(1 << 24));
}

#[test]
fn nothing_is_buffered_before_the_peer_has_shown_its_tag() {
    let mut b = tagged();
    write(&mut b, Opcode::RcWriteFirst, 100, 0);
    let before = b.host.memory.clone();
    for tag in [0, TAKEN, 77] {
        write(&mut b, Opcode::RcWriteMiddle, 102, tag);
    }
    assert!(b.host.memory == before);
    assert_eq!(b.counted(Counter::DropEarly), 3);
    // It is missing as any that is lost.
    let mut missing = [PsnRange {
        first: Psn::new(0),
        packets: 0,
    }];
    assert_eq!(b.qp.take_report(&mut missing), Some((Psn::new(101), 1)));
    assert_eq!(missing[0].packets, 2);
    // In its turn a packet is taken as on RoCEv2, with any tag.
    write(&mut b, Opcode::RcWriteMiddle, 101, 77);
    write(&mut b, Opcode::RcWriteMiddle, 102, TAKEN);
    write(&mut b, Opcode::RcWriteMiddle, 104, TAKEN);
    assert_eq!(b.counted(Counter::DropEarly), 3, "the peer has shown it");
    write(&mut b, Opcode::RcWriteMiddle, 103, 77);
    assert_eq!(refused(&b), 1);
}

#[test]
fn a_report_about_what_was_sent_shows_the_tag_too() {
    let mut b = tagged();
    b.post(Operation::Send, 600);
    b.sends();
    let mut told = |expected: u32| {
        let told = Acknowledgement {
            expected: Psn::new(expected),
            missing: &[],
            rtt: Duration::from_millis(1),
            told_within: Duration::from_millis(1),
        };
        b.qp.handle_acknowledgement(b.now, &told, &mut b.host);
        b.acknowledged(0, Syndrome::Ack { credits: 31 });
        refused(&b)
    };
    assert_eq!(told(2), 0, "ahead of all that was sent");
    let mut b = tagged();
    b.post(Operation::Send, 600);
    b.sends();
    let told = Acknowledgement {
        expected: Psn::new(0xff_ffff),
        missing: &[],
        rtt: Duration::from_millis(1),
        told_within: Duration::from_millis(1),
    };
    b.qp.handle_acknowledgement(b.now, &told, &mut b.host);
    b.acknowledged(0, Syndrome::Ack { credits: 31 });
    assert_eq!(refused(&b), 1);
    assert_eq!(b.log(), [""; 0], "no forged ACK completes anything");
}

#[test]
fn early_answers_need_the_tag() {
    const READ: Operation = Operation::Read {
        va: REGION_VA,
        rkey: RKEY,
    };
    let mut b = tagged();
    b.post(READ, 1024);
    b.sends();
    let answer = |b: &mut Bench, opcode: Opcode, psn: u32, tag: u16| {
        b.arrives(opcode, psn, &[psn as u8; 256], |headers| {
            headers.bth.tag = tag;
            headers.bth.ack_request = false;
            headers.aeth = opcode.has_aeth().then_some(Aeth {
                syndrome: Syndrome::Ack { credits: 31 },
                msn: 1,
            });
        });
    };
    let before = b.host.messages[&0].clone();
    answer(&mut b, Opcode::RcReadResponseMiddle, 0, TAKEN);
    assert!(b.host.messages[&0] == before, "not shown yet");
    assert_eq!(b.counted(Counter::DropEarly), 1);
    answer(&mut b, Opcode::RcReadResponseFirst, 0xff_fffe, TAKEN);
    let before = b.host.messages[&0].clone();
    answer(&mut b, Opcode::RcReadResponseMiddle, 0, TAKEN ^ 1);
    assert!(b.host.messages[&0] == before);
    answer(&mut b, Opcode::RcReadResponseMiddle, 0, TAKEN);
    assert_eq!(b.host.messages[&0][512..768], [0; 256]);
    answer(&mut b, Opcode::RcReadResponseMiddle, 0xff_ffff, TAKEN);
    answer(&mut b, Opcode::RcReadResponseLast, 1, TAKEN);
    assert_eq!(b.log(), ["send 0 Success"]);
}

#[test]
fn all_that_is_sent_has_the_tag_and_is_otherwise_what_it_was() {
    let mut plain = Bench::connected();
    let mut b = tagged();
    for b in [&mut plain, &mut b] {
        b.qp.set_selective(None);
        let write = Operation::Write {
            va: REGION_VA,
            rkey: RKEY,
        };
        b.post(write, 5_000);
        b.arrives(Opcode::RcReadRequest, 100, &[], |headers| {
            headers.bth.tag = TAKEN;
            headers.reth = Some(Reth {
                va: REGION_VA,
                rkey: RKEY,
                length: 5_000,
            });
        });
    }
    let mut seen = 0;
    while let Some(mut bytes) = plain.sends_bytes() {
        let header = bytes.first_chunk_mut().unwrap();
        Bth::mark(header, SENT);
        assert_eq!(b.sends_bytes(), Some(bytes));
        seen += 1;
    }
    assert_eq!(seen, 40);
    let mut out = [0; 4096];
    b.post(Operation::Send, 5_000);
    assert!(b.sends_bytes().is_some());
    let limits = RunLimits {
        packets: 8,
        spare: 0,
    };
    let run =
        b.qp.poll_run(b.now, u32::MAX, limits, &mut b.host, &mut out);
    let run = run.unwrap();
    for packet in out.chunks(run.len + ICRC_LEN).take(run.packets) {
        let bth = Bth::from_bytes(packet.first_chunk().unwrap()).unwrap();
        assert_eq!(bth.tag, SENT);
    }
}

/// The engine offers each packet from the middle of a message to `take_middle` first.
fn middle(b: &mut Bench, opcode: Opcode, psn: u32, tag: u16) {
    let mut bth = Bth::new(opcode, Qpn::new(QPN), Psn::new(psn));
    bth.tag = tag;
    let payload = [psn as u8; 256];
    if !b.qp.take_middle(b.now, &bth, &payload, &mut b.host) {
        b.arrives(opcode, psn, &payload, |headers| headers.bth = bth);
    }
}

#[test]
fn a_write_that_began_without_tags_shows_it_by_its_next_packet() {
    let mut b = tagged();
    write(&mut b, Opcode::RcWriteFirst, 100, 0);
    middle(&mut b, Opcode::RcWriteMiddle, 101, 77);
    middle(&mut b, Opcode::RcWriteMiddle, 102, TAKEN);
    middle(&mut b, Opcode::RcWriteMiddle, 104, TAKEN);
    assert_eq!(b.counted(Counter::DropEarly), 0, "it is kept");
    middle(&mut b, Opcode::RcWriteMiddle, 103, 77);
    assert_eq!(refused(&b), 1);
}

#[test]
fn so_does_a_read() {
    let mut b = tagged();
    let (va, rkey) = (REGION_VA, RKEY);
    b.post(Operation::Read { va, rkey }, 2048);
    b.sends();
    b.arrives(
        Opcode::RcReadResponseFirst,
        0xff_fffe,
        &[1; 256],
        |headers| {
            headers.bth.ack_request = false;
            headers.aeth = Some(Aeth {
                syndrome: Syndrome::Ack { credits: 31 },
                msn: 1,
            });
        },
    );
    middle(&mut b, Opcode::RcReadResponseMiddle, 0xff_ffff, TAKEN);
    middle(&mut b, Opcode::RcReadResponseMiddle, 1, TAKEN);
    assert_eq!(b.counted(Counter::DropEarly), 0, "it is placed");
    middle(&mut b, Opcode::RcReadResponseMiddle, 0, 77);
    assert_eq!(refused(&b), 1);
}

/// A queue pair in SQD may get another path: the host there has not agreed on anything.
#[test]
fn a_peer_at_another_address_need_not_have_the_tag() {
    let mut b = shown();
    write(&mut b, Opcode::RcWriteMiddle, 101, 0);
    assert_eq!(refused(&b), 1);
    b.qp.forget_peer_tag();
    write(&mut b, Opcode::RcWriteMiddle, 101, 0);
    write(&mut b, Opcode::RcWriteMiddle, 103, 0);
    assert_eq!((refused(&b), b.qp.tag()), (1, SENT));
    // What was agreed on before counts again when it is agreed on again.
    b.qp.set_tags(Tags {
        sent: SENT,
        taken: TAKEN,
    });
    write(&mut b, Opcode::RcWriteMiddle, 102, TAKEN);
    write(&mut b, Opcode::RcWriteMiddle, 104, 0);
    assert_eq!(refused(&b), 2);
}
