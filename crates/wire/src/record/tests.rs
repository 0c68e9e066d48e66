#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::{Psn, Qkey, Qpn, Rkey};

fn headers(imm: Option<[u8; 4]>) -> RecordHeaders {
    RecordHeaders {
        bth: Bth::new(Opcode::UdSendOnly, Qpn::new(0x51_2345), Psn::new(7)),
        deth: Deth {
            qkey: Qkey(0x1111_2222),
            src_qpn: Qpn::new(0x61_0002),
        },
        reth: Reth {
            va: 0x0102_0304_0506_0708,
            rkey: Rkey(0xaabb_ccdd),
            length: 5000,
        },
        rceth: Rceth {
            id: 9,
            offset: 2840,
            unit: 1420,
            round: 0,
        },
        is_send: false,
        token: None,
        read: None,
        imm,
    }
}

fn packet(headers: &RecordHeaders, payload: &[u8]) -> Vec<u8> {
    let mut headers = *headers;
    headers.bth.pad = (payload.len().wrapping_neg() % 4) as u8;
    let mut bytes = vec![0; 100];
    let start = headers.emit(&mut bytes);
    bytes.truncate(start);
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[test]
fn the_layout_is_that_of_the_picture() {
    let bytes = packet(&headers(Some([1, 2, 3, 4])), b"abcde");
    let expected = [
        &[0xc0, 0x70, 0xff, 0xff, 0, 0x51, 0x23, 0x45, 0, 0, 0, 7][..],
        &[0x11, 0x11, 0x22, 0x22, 0, 0x61, 0, 2],
        &[1, 2, 3, 4, 5, 6, 7, 8, 0xaa, 0xbb, 0xcc, 0xdd],
        &[0, 0, 0x13, 0x88, 0, 0, 0, 9, 0, 0, 0x0b, 0x18],
        &[0x05, 0x8c, 0x11, 0, 1, 2, 3, 4],
        b"abcde\0\0\0",
    ]
    .concat();
    assert_eq!(bytes, expected);
}

#[test]
fn a_packet_of_an_acknowledged_message_has_a_token() {
    let mut sent = headers(Some([1, 2, 3, 4]));
    sent.bth.ack_request = true;
    sent.rceth.round = 0x7f;
    (sent.is_send, sent.token) = (true, Some(0x1122_3344_5566_7788));
    let bytes = packet(&sent, b"abcd");
    assert_eq!(bytes[8], 0x80, "AckReq");
    let expected = [
        &[0x05, 0x8c, 0x17, 0x7f][..],
        &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88],
        &[1, 2, 3, 4],
        b"abcd",
    ]
    .concat();
    assert_eq!(bytes[44..], expected);
    assert_eq!(
        RecordPacket::parse(&bytes[..52]),
        Err(ParseError::Truncated)
    );
}

fn ack() -> RecordAck {
    RecordAck {
        bth: Bth::new(Opcode::UdSendOnly, Qpn::new(0x61_0002), Psn::new(7)),
        deth: Deth {
            qkey: Qkey(0),
            src_qpn: Qpn::new(0x51_2345),
        },
        id: 9,
        token: 0x1122_3344_5566_7788,
        answer: RecordAnswer::NotReady,
        round: 0x7f,
        base: 2,
        map: 1 << 127 | 0b10,
    }
}

#[test]
fn the_layout_of_an_answer_is_that_of_its_picture() {
    let mut bytes = [0; RECORD_ACK_LEN];
    assert_eq!(ack().emit(&mut bytes), RECORD_ACK_LEN);
    let expected = [
        &[0xc1, 0x40, 0xff, 0xff, 0, 0x61, 0, 2, 0, 0, 0, 7][..],
        &[0, 0, 0, 0, 0, 0x51, 0x23, 0x45],
        &[
            0, 0, 0, 9, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0, 2,
        ],
        &[0x12, 0x7f, 0, 0],
        &[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
    ]
    .concat();
    assert_eq!(bytes[..], expected);
    assert_eq!(RecordAck::parse(&bytes), Ok(ack()));
    assert_eq!(
        crate::Packet::parse(&bytes),
        Err(ParseError::UnknownOpcode(RECORD_ACK_OPCODE))
    );
}

#[test]
fn an_answer_of_another_form_is_refused() {
    let mut good = [0; RECORD_ACK_LEN + 4];
    ack().emit(&mut good);
    let with = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        RecordAck::parse(&bytes[..RECORD_ACK_LEN])
    };
    for len in 0..RECORD_ACK_LEN {
        assert_eq!(RecordAck::parse(&good[..len]), Err(ParseError::Truncated));
    }
    assert_eq!(RecordAck::parse(&good), Err(ParseError::BadLength));
    assert_eq!(with(0, 0xc0), Err(ParseError::UnknownOpcode(0xc0)));
    assert_eq!(with(1, 1), Err(ParseError::BadVersion(1)));
    assert_eq!(with(36, 0x22), Err(ParseError::BadVersion(0x22)));
    assert_eq!(with(36, 0x16), Err(ParseError::BadVersion(0x16)));
    assert_eq!(with(38, 0xff), Ok(ack()), "what is reserved is ignored");
}

#[test]
fn an_answer_is_no_longer_than_what_it_answers() {
    let mut shortest = headers(None);
    (shortest.is_send, shortest.token) = (true, Some(0));
    assert!(packet(&shortest, &[]).len() >= RECORD_ACK_LEN);
}

#[test]
fn what_is_wrong_is_said() {
    let good = packet(&headers(Some([0; 4])), b"abcd");
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let error = |bytes: &[u8]| RecordPacket::parse(bytes).unwrap_err();
    for len in 0..RECORD_HEADERS_LEN + IMMEDIATE_LEN {
        assert_eq!(error(&good[..len]), ParseError::Truncated, "{len}");
    }
    assert_eq!(error(&with(0, 0x64)), ParseError::UnknownOpcode(0x64));
    assert_eq!(error(&with(1, 0x41)), ParseError::BadVersion(1));
    assert_eq!(error(&with(46, 0x21)), ParseError::BadVersion(2));
    assert_eq!(error(&good[..good.len() - 1]), ParseError::BadLength);
    let empty = packet(&headers(None), &[]);
    assert!(RecordPacket::parse(&empty).unwrap().payload.is_empty());
    let mut padded = empty;
    padded[1] |= 0x10;
    assert_eq!(error(&padded), ParseError::BadPad);
    let reserved = with(47, 0xff);
    assert_eq!(
        RecordPacket::parse(&reserved).unwrap().payload,
        b"abcd",
        "what is reserved is not looked at"
    );
}

#[test]
fn hosts_that_do_not_know_records_see_an_unknown_opcode() {
    let bytes = packet(&headers(None), b"abcd");
    assert_eq!(
        crate::Packet::parse(&bytes),
        Err(ParseError::UnknownOpcode(RECORD_OPCODE))
    );
}

#[test]
fn a_packet_fills_the_interface_mtu_of_both_families() {
    let v4 = Neighbour::from([192, 0, 2, 1]);
    let v6 = Neighbour::from(std::net::Ipv6Addr::LOCALHOST);
    let ethernet = Neighbour::ethernet([2, 0, 0, 0, 0, 1], 1);
    let with_all = |payload: u32, network: usize| {
        network + RECORD_HEADERS_LEN + IMMEDIATE_LEN + payload as usize + ICRC_LEN
    };
    assert_eq!(record_payload(1500, v4), 1416);
    assert_eq!(with_all(1416, IPV4_LEN + UDP_LEN), 1500);
    assert_eq!(record_payload(1500, v6), 1396);
    assert_eq!(with_all(1396, IPV6_LEN + UDP_LEN), 1500);
    assert_eq!(record_payload(1500, ethernet), 1404);
    assert_eq!(record_payload(1503, v4), 1416, "whole words");
    assert_eq!(record_payload(9000, v4), RECORD_PAYLOAD_MAX);
    assert_eq!(record_payload(80, v4), 0);
    let longest = RECORD_HEADERS_LEN + IMMEDIATE_LEN + RECORD_PAYLOAD_MAX as usize;
    assert_eq!(
        longest,
        HEADERS_LEN_MAX + PathMtu::M4096.bytes() as usize,
        "no longer than the longest packet of RoCEv2"
    );
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        (va, length, id, offset, unit) in any::<(u64, u32, u32, u32, u16)>(),
        (rkey, qkey, imm, solicited) in any::<(u32, u32, Option<[u8; 4]>, bool)>(),
        (is_send, token, round) in any::<(bool, Option<u64>, u8)>(),
        payload in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut written = headers(imm);
        written.bth.solicited = solicited;
        written.deth.qkey = Qkey(qkey);
        written.reth = Reth { va, rkey: Rkey(rkey), length };
        written.rceth = Rceth { id, offset, unit, round };
        (written.is_send, written.token) = (is_send, token);
        let bytes = packet(&written, &payload);
        let read = RecordPacket::parse(&bytes).unwrap();
        written.bth.pad = read.headers.bth.pad;
        prop_assert_eq!(read, RecordPacket { headers: written, payload: &payload });
        prop_assert_eq!(written.len() + payload.len() + usize::from(written.bth.pad), bytes.len());
    }
}
