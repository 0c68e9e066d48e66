#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::{NakCode, Psn, Qkey, Qpn, Syndrome};

fn bth() -> impl Strategy<Value = Bth> {
    let opcode = prop::sample::select(Opcode::ALL);
    let flags = any::<[bool; 5]>();
    (
        opcode,
        flags,
        0u8..4,
        any::<u16>(),
        any::<u32>(),
        any::<u32>(),
    )
        .prop_map(
            |(opcode, [solicited, migreq, fecn, becn, ack_request], pad, pkey, qpn, psn)| Bth {
                opcode,
                solicited,
                migreq,
                pad,
                pkey,
                fecn,
                becn,
                dest_qpn: Qpn::new(qpn),
                ack_request,
                psn: Psn::new(psn),
                tag: 0,
            },
        )
}

fn aeth() -> impl Strategy<Value = Aeth> {
    (any::<u8>(), 0u32..1 << 24).prop_map(|(syndrome, msn)| Aeth {
        syndrome: syndrome.into(),
        msn,
    })
}

fn imm_number(imm: [u8; 4]) -> u32 {
    u32::from_be_bytes(imm) & 0x00ff_ffff
}

/// The headers that each opcode requires, with any content.
fn headers() -> impl Strategy<Value = Headers> {
    let deth = any::<(u32, u32)>().prop_map(|(qkey, qpn)| Deth {
        qkey: Qkey(qkey),
        src_qpn: Qpn::new(qpn),
    });
    let reth = any::<(u64, u32, u32)>().prop_map(|(va, rkey, length)| Reth {
        va,
        rkey: Rkey(rkey),
        length,
    });
    let atomic_eth =
        any::<(u64, u32, u64, u64)>().prop_map(|(va, rkey, swap_add, compare)| AtomicEth {
            va,
            rkey: Rkey(rkey),
            swap_add,
            compare,
        });
    let rest = any::<(u64, [u8; 4], u32)>();
    (bth(), deth, reth, atomic_eth, aeth(), rest).prop_map(
        |(bth, deth, reth, atomic_eth, aeth, (original, imm, rkey))| {
            let opcode = bth.opcode;
            Headers {
                bth,
                deth: opcode.has_deth().then_some(deth),
                xrceth: opcode.has_xrceth().then_some(XrcEth {
                    srqn: imm_number(imm),
                }),
                feth: opcode.has_feth().then_some(Feth {
                    placement: imm[0] & 0xf,
                    selectivity: imm[1] & 3,
                }),
                reth: opcode.has_reth().then_some(reth),
                atomic_eth: opcode.has_atomic_eth().then_some(atomic_eth),
                aeth: opcode.has_aeth().then_some(aeth),
                atomic_ack: opcode.has_atomic_ack().then_some(original),
                imm: opcode.has_imm().then_some(imm),
                ieth: opcode.has_ieth().then_some(Rkey(rkey)),
            }
        },
    )
}

/// A packet's bytes, its headers, and its payload; the pad count is the one that the payload needs.
fn packet() -> impl Strategy<Value = (Vec<u8>, Headers, Vec<u8>)> {
    (headers(), prop::collection::vec(any::<u8>(), 0..80)).prop_map(|(mut headers, payload)| {
        let pad = payload.len().wrapping_neg() % 4;
        headers.bth.pad = pad as u8;
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.extend_from_slice(&payload);
        bytes.extend_from_slice(&[0; 3][..pad]);
        (bytes, headers, payload)
    })
}

proptest! {
    #[test]
    fn a_packet_reads_back_as_it_was_written((bytes, headers, payload) in packet()) {
        let packet = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(packet.headers, headers);
        prop_assert_eq!(packet.payload, &payload[..]);
        // The payload lies in the received bytes.
        prop_assert!(bytes.as_ptr_range().contains(&packet.payload.as_ptr()) || payload.is_empty());
    }

    #[test]
    fn emit_writes_len_bytes_and_no_more(headers in headers(), fill in any::<u8>()) {
        let mut out = [fill; HEADERS_LEN_MAX + 8];
        let len = headers.emit(&mut out);
        prop_assert_eq!(len, headers.len());
        prop_assert!((Bth::LEN..=HEADERS_LEN_MAX).contains(&len));
        prop_assert!(out[len..].iter().all(|&byte| byte == fill));
    }

    #[test]
    fn every_cut_packet_is_refused_or_has_less_payload((bytes, headers, payload) in packet()) {
        for len in 0..bytes.len() {
            match Packet::parse(&bytes[..len]) {
                Ok(packet) => {
                    prop_assert_eq!(packet.headers, headers);
                    prop_assert!(packet.payload.len() < payload.len() || payload.is_empty());
                }
                Err(ParseError::Truncated) => prop_assert!(len < headers.len()),
                Err(ParseError::BadLength) => prop_assert!(!len.is_multiple_of(4)),
                Err(ParseError::BadPad) => {
                    prop_assert!(len < headers.len() + usize::from(headers.bth.pad));
                }
                Err(other @ (ParseError::UnknownOpcode(_) | ParseError::BadVersion(_))) => {
                    prop_assert!(false, "{}", other);
                }
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert!(packet.headers.fit_opcode());
            let len = packet.headers.len() + packet.payload.len();
            prop_assert_eq!(len + usize::from(packet.headers.bth.pad), bytes.len());
        }
    }

    /// Arbitrary bytes hardly ever have an opcode, version 0 and a good length; these do.
    #[test]
    fn nearly_valid_bytes_read_back_except_for_reserved_bits(
        opcode in prop::sample::select(Opcode::ALL),
        words in prop::collection::vec(any::<[u8; 4]>(), 3..30),
    ) {
        let mut bytes = words.concat();
        bytes[0] = opcode as u8;
        bytes[1] &= 0xf0;
        match Packet::parse(&bytes) {
            Ok(packet) => {
                let mut again = [0; HEADERS_LEN_MAX];
                let len = packet.headers.emit(&mut again);
                let mut expected = bytes[..len].to_vec();
                expected[4] &= 0xc0;
                expected[8] &= 0x80;
                if opcode.has_deth() {
                    expected[16] = 0;
                }
                if opcode.has_xrceth() {
                    expected[12] = 0;
                }
                if opcode.has_feth() {
                    let at = Bth::LEN + usize::from(opcode.has_xrceth()) * XrcEth::LEN;
                    expected[at..at + 3].fill(0);
                    expected[at + 3] &= 0x3f;
                }
                prop_assert_eq!(&again[..len], &expected[..]);
            }
            Err(error) => {
                prop_assert!(matches!(error, ParseError::Truncated | ParseError::BadPad));
            }
        }
    }
}

#[test]
fn each_header_has_the_layout_of_the_specification() {
    let write = Packet::parse(&[
        0x0b,
        0b1001_0000,
        0x12,
        0x34,
        0x80,
        0x01,
        0x02,
        0x03,
        0x80,
        0x0a,
        0x0b,
        0x0c, // BTH
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        0xaa,
        0xbb,
        0xcc,
        0xdd,
        0,
        0,
        0,
        3, // RETH
        9,
        8,
        7,
        6, // ImmDt
        0xd0,
        0xd1,
        0xd2,
        0xff, // payload and pad
    ]);
    let mut bth = Bth::new(
        Opcode::RcWriteOnlyImm,
        Qpn::new(0x010203),
        Psn::new(0x0a0b0c),
    );
    (bth.solicited, bth.migreq, bth.pad, bth.pkey) = (true, false, 1, 0x1234);
    (bth.fecn, bth.ack_request) = (true, true);
    let mut headers = Headers::new(bth);
    headers.reth = Some(Reth {
        va: 0x0102030405060708,
        rkey: Rkey(0xaabbccdd),
        length: 3,
    });
    headers.imm = Some([9, 8, 7, 6]);
    assert_eq!(
        write,
        Ok(Packet {
            headers,
            payload: &[0xd0, 0xd1, 0xd2]
        })
    );

    let atomic = AtomicEth::from_bytes(&[
        0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4,
    ]);
    let expected = AtomicEth {
        va: 1,
        rkey: Rkey(2),
        swap_add: 3,
        compare: 4,
    };
    assert_eq!(atomic, expected);

    let deth = Deth::from_bytes(&[0x80, 1, 0, 0, 0xee, 0, 0, 1]);
    assert_eq!(
        deth,
        Deth {
            qkey: Qkey(0x80010000),
            src_qpn: Qpn::GSI
        }
    );
    assert_eq!(deth.to_bytes(), [0x80, 1, 0, 0, 0, 0, 0, 1]);

    let mut extended = Headers::new(Bth::new(Opcode::XrcSendOnlyImm, Qpn::new(1), Psn::new(2)));
    extended.xrceth = Some(XrcEth { srqn: 0x0012_3456 });
    extended.imm = Some([9, 8, 7, 6]);
    let mut bytes = [0; 20];
    assert_eq!(extended.emit(&mut bytes), 20);
    assert_eq!(bytes[12..], [0, 0x12, 0x34, 0x56, 9, 8, 7, 6]);
    bytes[12] = 0xee;
    assert_eq!(Packet::parse(&bytes).unwrap().headers, extended);

    let mut ack = Headers::new(Bth::new(
        Opcode::RcAtomicAcknowledge,
        Qpn::new(1),
        Psn::new(2),
    ));
    ack.aeth = Some(Aeth {
        syndrome: Syndrome::Ack { credits: 0x1f },
        msn: 7,
    });
    ack.atomic_ack = Some(0x1122334455667788);
    let mut bytes = [0; 24];
    assert_eq!(ack.emit(&mut bytes), 24);
    assert_eq!(
        bytes[12..],
        [
            0x1f, 0, 0, 7, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88
        ]
    );
}

#[test]
fn every_syndrome_byte_reads_back() {
    for byte in 0..=u8::MAX {
        assert_eq!(u8::from(Syndrome::from(byte)), byte);
    }
    assert_eq!(
        Syndrome::from(0x1f),
        Syndrome::Ack {
            credits: Syndrome::CREDITS_UNUSED
        }
    );
    assert_eq!(Syndrome::from(0x34), Syndrome::RnrNak { timer: 20 });
    assert_eq!(
        Syndrome::from(0x60),
        Syndrome::Nak(NakCode::PsnSequenceError)
    );
    assert_eq!(Syndrome::from(0x61), Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(
        Syndrome::from(0x62),
        Syndrome::Nak(NakCode::RemoteAccessError)
    );
    assert_eq!(
        Syndrome::from(0x63),
        Syndrome::Nak(NakCode::RemoteOperationalError)
    );
    assert_eq!(
        Syndrome::from(0x64),
        Syndrome::Nak(NakCode::InvalidRdRequest)
    );
    assert_eq!(Syndrome::from(0x65), Syndrome::Nak(NakCode::Reserved(5)));
    assert_eq!(Syndrome::from(0x40), Syndrome::Reserved(0x40));
    assert_eq!(Syndrome::from(0x80), Syndrome::Reserved(0x80));
}

#[test]
fn bytes_that_are_no_packet_say_why() {
    let send_only = |flags: u8, len: usize| {
        let mut bytes = vec![0; len];
        (bytes[0], bytes[1]) = (Opcode::RcSendOnly as u8, flags);
        bytes
    };
    let error = |bytes: &[u8]| Packet::parse(bytes).unwrap_err();
    assert_eq!(error(&[]), ParseError::Truncated);
    assert_eq!(error(&send_only(0, 11)), ParseError::Truncated);
    assert_eq!(error(&send_only(0x03, 12)), ParseError::BadVersion(3));
    assert_eq!(error(&send_only(0x30, 12)), ParseError::BadPad);
    assert_eq!(error(&send_only(0, 13)), ParseError::BadLength);
    assert!(Packet::parse(&send_only(0x30, 16)).is_ok());

    let mut bytes = send_only(0, 12);
    bytes[0] = 0x15;
    assert_eq!(error(&bytes), ParseError::UnknownOpcode(0x15));
    bytes[0] = Opcode::RcCompareSwap as u8;
    bytes.resize(Bth::LEN + AtomicEth::LEN - 4, 0);
    assert_eq!(error(&bytes), ParseError::Truncated);
}

#[test]
fn the_longest_headers_are_those_of_an_atomic() {
    let len = |opcode: Opcode| {
        Bth::LEN
            + usize::from(opcode.has_deth()) * 8
            + usize::from(opcode.has_xrceth()) * 4
            + usize::from(opcode.has_feth()) * 4
            + usize::from(opcode.has_reth()) * 16
            + usize::from(opcode.has_atomic_eth()) * 28
            + usize::from(opcode.has_aeth()) * 4
            + usize::from(opcode.has_atomic_ack()) * 8
            + usize::from(opcode.has_imm()) * 4
            + usize::from(opcode.has_ieth()) * 4
    };
    assert_eq!(
        Opcode::ALL.iter().map(|&opcode| len(opcode)).max(),
        Some(HEADERS_LEN_MAX)
    );
}

#[test]
#[should_panic(expected = "RcSendOnly")]
#[cfg(debug_assertions)]
fn headers_that_do_not_fit_their_opcode_are_a_mistake() {
    let mut headers = Headers::new(Bth::new(Opcode::RcSendOnly, Qpn::new(1), Psn::new(2)));
    headers.imm = Some([0; 4]);
    headers.emit(&mut [0; HEADERS_LEN_MAX]);
}
