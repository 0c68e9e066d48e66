//! Checks of every captured packet by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use airdma_captures::{self as captures, CAPTURES, Captured, NEGATIVE, NEGATIVE_SENDER};
use airdma_wire::{
    Deth, IdSpaces, IpPseudo, NakCode, Opcode, Packet, Qkey, Qpn, ROCE_PORT, Syndrome, icrc,
    icrc_of_ip_packet,
};

#[test]
fn every_capture_there_is_is_listed() {
    let names_in = |folder: &str| {
        let entries = fs::read_dir(captures::vectors().join(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let captures =
            names.filter(|name| Path::new(name).extension().is_some_and(|e| e == "pcap"));
        captures
            .map(|name| format!("{folder}{name}"))
            .collect::<Vec<_>>()
    };
    let found: BTreeSet<_> = [names_in(""), names_in("rxe-6.1/")]
        .concat()
        .into_iter()
        .collect();
    let listed = CAPTURES
        .iter()
        .map(|(name, _)| format!("{name}.pcap"))
        .collect();
    assert_eq!(found, listed);

    let total = |names: fn(&str) -> bool| -> usize {
        CAPTURES
            .iter()
            .filter(|(name, _)| names(name))
            .map(|(_, count)| count)
            .sum()
    };
    assert_eq!(total(|name| name.starts_with("rxe-6.1/")), 418);
    assert_eq!(total(|name| !name.starts_with("rxe-6.1/")), 470);
    assert_eq!(captures::all_packets().count(), 888);
}

#[test]
fn every_packet_decodes_and_encodes_to_the_same_bytes() {
    for (name, captured) in captures::all_packets() {
        let packet = Packet::parse(captured.transport()).unwrap();
        assert!(packet.headers.fit_opcode());

        let mut bytes = vec![0; captured.transport().len()];
        let len = packet.headers.emit(&mut bytes);
        let pad_at = len + packet.payload.len();
        bytes[len..pad_at].copy_from_slice(packet.payload);
        assert_eq!(bytes.len() - pad_at, usize::from(packet.headers.bth.pad));
        assert_eq!(bytes, captured.transport(), "{name}");
    }
}

/// Whether the ICRC fits the IP header that the packet travelled with.
fn icrc_fits(captured: &Captured) -> bool {
    let of_bytes = icrc_of_ip_packet(&captured.ip_packet).unwrap();
    let of_fields = icrc(
        &captured.ip,
        captured.source_port,
        ROCE_PORT,
        captured.transport(),
    );
    assert_eq!(of_bytes, of_fields);
    of_bytes == captured.icrc
}

#[test]
fn every_icrc_verifies_except_those_of_the_negative_sender() {
    let mut failed = BTreeMap::new();
    for (name, captured) in captures::all_packets() {
        let fits = icrc_fits(&captured);
        let negative = NEGATIVE.contains(&name) && captured.source() == NEGATIVE_SENDER;
        assert_eq!(fits, !negative, "{name}");
        *failed.entry(name).or_insert(0) += u32::from(!fits);
    }
    failed.retain(|_, count| *count > 0);
    assert_eq!(failed, BTreeMap::from(NEGATIVE.map(|name| (name, 15))));
}

/// The identification that the ICRC was computed for, recovered as by a receiver that cannot see
/// it.
fn recovered_id(captured: &Captured, spaces: &mut IdSpaces) -> Option<u16> {
    let transport = captured.transport();
    let sum = icrc(
        &captured.ip_with_id_0(),
        captured.source_port,
        ROCE_PORT,
        transport,
    );
    spaces.recover(transport.len(), captured.icrc ^ sum)
}

#[test]
fn the_identification_is_recovered_from_every_ipv4_packet() {
    let mut spaces = IdSpaces::new(4200);
    let mut recovered = 0;
    let mut distinct = BTreeSet::new();
    for (name, captured) in captures::all_packets().filter(|(name, _)| !NEGATIVE.contains(name)) {
        if let Some(id) = captured.id() {
            assert_eq!(recovered_id(&captured, &mut spaces), Some(id), "{name}");
            recovered += 1;
            distinct.insert(id);
        }
    }
    assert_eq!(recovered, 626);
    assert_eq!(distinct.len(), 524);
}

/// The capture's faulty sender assumed identification 0 or a wrong one, or a clear DF bit.
///
/// In the first two cases a receiver recovers an identification, but not the one on the wire.
#[test]
fn the_negative_captures_show_what_their_sender_assumed() {
    let mut spaces = IdSpaces::new(4200);
    let mut assumed = |name: &str| {
        let packets = captures::packets(name);
        let wrong = packets
            .iter()
            .filter(|captured| captured.source() == NEGATIVE_SENDER);
        let ids: BTreeSet<_> = wrong
            .map(|captured| {
                let id = recovered_id(captured, &mut spaces);
                assert_ne!(id, captured.id());
                id
            })
            .collect();
        ids.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(assumed("tap-rc-connected"), [Some(0)]);
    assert_eq!(assumed("tap-rc-wrongid"), [Some(7)]);
    assert_eq!(assumed("tap-rc-plain"), [None]);

    for captured in captures::packets("tap-rc-plain") {
        if let (
            IpPseudo::V4 {
                src: NEGATIVE_SENDER,
                dst,
                ..
            },
            at,
        ) = (captured.ip, 28)
        {
            let ip = IpPseudo::V4 {
                src: NEGATIVE_SENDER,
                dst,
                id: 0,
                dont_fragment: false,
            };
            let sum = icrc(
                &ip,
                captured.source_port,
                ROCE_PORT,
                &captured.ip_packet[at..],
            );
            assert_eq!(sum, captured.icrc);
        }
    }
}

#[test]
fn the_opcodes_are_those_that_an_independent_decoder_counts() {
    let mut counts = BTreeMap::new();
    for (_, captured) in captures::all_packets() {
        let opcode = Packet::parse(captured.transport()).unwrap().opcode();
        *counts.entry(opcode).or_insert(0) += 1;
    }
    let expected = [
        (Opcode::RcSendFirst, 51),
        (Opcode::RcSendMiddle, 94),
        (Opcode::RcSendLast, 51),
        (Opcode::RcSendLastImm, 1),
        (Opcode::RcSendOnly, 196),
        (Opcode::RcSendOnlyImm, 4),
        (Opcode::RcWriteFirst, 5),
        (Opcode::RcWriteMiddle, 6),
        (Opcode::RcWriteLast, 3),
        (Opcode::RcWriteLastImm, 2),
        (Opcode::RcWriteOnly, 15),
        (Opcode::RcWriteOnlyImm, 4),
        (Opcode::RcReadRequest, 33),
        (Opcode::RcReadResponseFirst, 12),
        (Opcode::RcReadResponseMiddle, 20),
        (Opcode::RcReadResponseLast, 14),
        (Opcode::RcReadResponseOnly, 15),
        (Opcode::RcAcknowledge, 271),
        (Opcode::RcAtomicAcknowledge, 10),
        (Opcode::RcCompareSwap, 3),
        (Opcode::RcFetchAdd, 7),
        (Opcode::UcSendFirst, 1),
        (Opcode::UcSendMiddle, 1),
        (Opcode::UcSendLast, 1),
        (Opcode::UcSendOnly, 2),
        (Opcode::UcSendOnlyImm, 1),
        (Opcode::UcWriteFirst, 2),
        (Opcode::UcWriteMiddle, 2),
        (Opcode::UcWriteLast, 1),
        (Opcode::UcWriteLastImm, 1),
        (Opcode::UdSendOnly, 53),
        (Opcode::UdSendOnlyImm, 6),
    ];
    assert_eq!(counts, BTreeMap::from(expected));
}

#[test]
fn refusals_are_decoded() {
    let syndromes = |name: &str| {
        let packets = captures::packets(name);
        let aeths = packets.iter().filter_map(|captured| {
            Packet::parse(captured.transport())
                .unwrap()
                .headers
                .aeth
                .map(|aeth| aeth.syndrome)
        });
        aeths.collect::<Vec<_>>()
    };
    let ack = Syndrome::Ack {
        credits: Syndrome::CREDITS_UNUSED,
    };
    let nak = Syndrome::Nak;
    assert_eq!(
        syndromes("rxe-6.1/rc_nak_access_read"),
        [nak(NakCode::RemoteAccessError)]
    );
    assert_eq!(
        syndromes("rxe-6.1/rc_nak_access_write"),
        [nak(NakCode::RemoteAccessError)]
    );
    assert_eq!(
        syndromes("rxe-6.1/rc_nak_recv_too_short"),
        [nak(NakCode::RemoteOperationalError)]
    );
    assert!(syndromes("rxe-6.1/rc_loss").contains(&nak(NakCode::PsnSequenceError)));

    let rnr = syndromes("rxe-6.1/rc_rnr");
    assert_eq!(rnr.last(), Some(&ack));
    assert!(
        rnr[..rnr.len() - 1]
            .iter()
            .all(|&s| s == Syndrome::RnrNak { timer: 20 })
    );
    assert!(rnr.len() > 1);
}

#[test]
fn connection_management_goes_to_queue_pair_1() {
    let mut datagrams = 0;
    for (name, captured) in captures::all_packets() {
        let packet = Packet::parse(captured.transport()).unwrap();
        if packet.headers.bth.dest_qpn != Qpn::GSI {
            continue;
        }
        assert_eq!(packet.opcode(), Opcode::UdSendOnly, "{name}");
        let deth = Deth {
            qkey: Qkey(0x8001_0000),
            src_qpn: Qpn::GSI,
        };
        assert_eq!(packet.headers.deth, Some(deth), "{name}");
        assert_eq!(packet.payload.len(), 256, "{name}");
        datagrams += 1;
    }
    assert_eq!(datagrams, 47);
}
