#![allow(clippy::unwrap_used)]

use super::*;
use airdma_wire::sealed::SEALED_OPCODE;

fn to(source_index: u8) -> Destination {
    Destination {
        address: [192, 0, 2, 1].into(),
        source_index,
        tos: 0,
        hop_limit: 0,
        flow_label: 0,
        bundles: false,
    }
}

fn add(batch: &mut TransmitBatch, len: usize, fill: u8, destination: Destination) -> bool {
    let Some(room) = batch.reserve(len) else {
        return false;
    };
    room.fill(fill);
    batch.commit(len, destination);
    true
}

fn contents(batch: &TransmitBatch) -> Vec<(usize, u8, u8)> {
    batch
        .packets()
        .map(|(bytes, destination)| (bytes.len(), bytes[0], destination.source_index))
        .collect()
}

#[test]
fn a_packet_may_be_shorter_than_its_reservation() {
    let mut batch = TransmitBatch::with_capacity(200, 4);
    batch.reserve(100).unwrap().fill(9);
    batch.commit(16, to(0));
    assert!(add(&mut batch, 100, 8, to(0)));
    assert_eq!(contents(&batch), [(16, 9, 0), (100, 8, 0)]);
    assert_eq!((batch.len(), batch.bytes()), (2, 124));
}

/// rxe of Linux 6.1 reads a BTH from any datagram, and its kernel panics without one.
#[test]
fn nothing_shorter_than_a_bth_leaves() {
    for len in [0, 4, 8, 12] {
        let committed = std::panic::catch_unwind(|| {
            let mut batch = TransmitBatch::with_capacity(400, 4);
            batch.reserve(100).unwrap().fill(9);
            batch.commit(len, to(0));
        });
        assert_eq!(committed.is_ok(), len == 12, "{len} bytes");
        let committed = std::panic::catch_unwind(|| {
            let mut batch = TransmitBatch::with_capacity(400, 4);
            assert!(add(&mut batch, 16, 9, to(0)));
            batch.reserve_run(len, 2);
            batch.commit_run(len, 2);
        });
        assert_eq!(committed.is_ok(), len == 12, "a run of {len} bytes");
    }
}

#[test]
fn the_last_send_has_room_until_it_is_full_or_ends() {
    let mut batch = TransmitBatch::with_capacity(200_000, 200);
    assert_eq!(batch.room_of_last_send(), None);
    for more in (1..62).rev() {
        assert!(add(&mut batch, 1036, 1, to(0)));
        assert_eq!(batch.room_of_last_send(), Some((more, 1036)));
    }
    assert!(add(&mut batch, 1036, 1, to(0)));
    assert_eq!(batch.room_of_last_send(), None, "62 packets are the most");
    assert!(add(&mut batch, 1036, 1, to(0)));
    assert_eq!(batch.room_of_last_send(), Some((61, 1036)));
    assert!(add(&mut batch, 1040, 1, to(0)));
    assert_eq!(batch.room_of_last_send(), Some((61, 1040)));
    assert!(add(&mut batch, 1036, 1, to(0)));
    assert_eq!(batch.room_of_last_send(), None, "a shorter one ends it");
    assert!(add(&mut batch, 16, 1, to(1)));
    assert_eq!(batch.room_of_last_send(), Some((63, 16)));
    batch.advance(62);
    assert_eq!(batch.room_of_last_send(), Some((63, 16)));
}

#[test]
fn it_is_full_by_bytes_and_by_packets() {
    let mut batch = TransmitBatch::with_capacity(100, 3);
    assert!(batch.reserve(97).is_none());
    assert!(batch.reserve(usize::MAX).is_none());
    assert!(batch.reserve(96).is_some(), "96 bytes and an ICRC");
    assert!(add(&mut batch, 16, 1, to(0)));
    assert!(add(&mut batch, 16, 2, to(0)));
    assert!(batch.reserve(60).is_none());
    assert!(add(&mut batch, 16, 3, to(0)));
    assert!(batch.reserve(12).is_none(), "three packets are the most");
    batch.clear();
    assert!(batch.is_empty());
    assert_eq!(batch.bytes(), 0);
    assert!(batch.reserve(96).is_some());
}

#[test]
fn what_waits_moves_to_the_front_when_the_space_behind_runs_out() {
    let mut batch = TransmitBatch::with_capacity(100, 8);
    // As a ring would be used: never empty, and twenty times round.
    assert!(add(&mut batch, 16, 0, to(0)));
    for round in 1..100_u8 {
        assert!(add(&mut batch, 16, round, to(round)), "round {round}");
        assert_eq!(batch.bytes(), 40);
        let before = round - 1;
        assert_eq!(contents(&batch), [(16, before, before), (16, round, round)]);
        batch.advance(1);
        assert_eq!(batch.bytes(), 20);
    }
}

#[test]
fn wire_bytes_are_contiguous_and_sealed_once_for_each_id() {
    let mut batch = TransmitBatch::with_capacity(1000, 8);
    let flow = Flow::new(
        "192.0.2.2".parse().unwrap(),
        "192.0.2.1".parse().unwrap(),
        4791,
        4791,
    )
    .unwrap();
    let mut icrcs = IcrcCache::new(1000);
    for number in 0..3 {
        assert!(add(&mut batch, 16, number, to(0)));
    }
    for number in 0..3 {
        batch.seal(number, &flow, number as u16, &mut icrcs);
    }
    let first = batch.wire_bytes(0, 3).to_vec();
    assert_eq!(first.len(), 60);
    // Sealing for another identification changes the ICRC, and back again restores it.
    batch.seal(1, &flow, 0, &mut icrcs);
    assert_ne!(batch.wire_bytes(0, 3), first);
    batch.seal(1, &flow, 1, &mut icrcs);
    assert_eq!(batch.wire_bytes(0, 3), first);
}

#[test]
fn a_sealed_packet_leaves_with_an_icrc_of_zero() {
    let mut batch = TransmitBatch::with_capacity(1000, 8);
    let address = |text: &str| text.parse().unwrap();
    let (from, peer) = (address("192.0.2.2"), address("192.0.2.1"));
    let flow = Flow::new(from, peer, 4791, 4791).unwrap();
    let mut icrcs = IcrcCache::new(1000);
    for first in [SEALED_OPCODE, SEALED_OPCODE ^ 1] {
        batch.reserve(16).unwrap().fill(first);
        batch.commit(16, to(0));
    }
    for (number, is_zero) in [(0, true), (1, false)] {
        batch.seal(number, &flow, 3, &mut icrcs);
        let icrc = &batch.wire_bytes(number, 1)[16..];
        assert_eq!(icrc == [0; ICRC_LEN], is_zero);
    }
}

#[test]
fn a_run_may_be_shorter_than_its_reservation() {
    let mut batch = TransmitBatch::with_capacity(200, 8);
    assert!(add(&mut batch, 28, 1, to(1)));
    assert!(add(&mut batch, 16, 2, to(2)));
    let room = batch.reserve_run(16, 3);
    assert_eq!(room.len(), 3 * 20, "each with room for its ICRC");
    for (fill, packet) in (3..).zip(room.chunks_mut(20)) {
        packet.fill(fill);
    }
    batch.commit_run(16, 2);
    assert!(add(&mut batch, 16, 9, to(3)));
    let all = [(28, 1, 1), (16, 2, 2), (16, 3, 2), (16, 4, 2), (16, 9, 3)];
    assert_eq!(contents(&batch), all);
    assert_eq!(batch.bytes(), 32 + 4 * 20);
    batch.advance(2);
    assert_eq!(contents(&batch), all[2..]);
}

#[test]
fn a_run_has_no_more_packets_than_there_is_room_for() {
    // By bytes: 90 - 20 are three packets and a half.
    let mut batch = TransmitBatch::with_capacity(90, 8);
    assert!(add(&mut batch, 16, 0, to(0)));
    assert_eq!(batch.reserve_run(16, 8).len(), 3 * 20);
    // By packets.
    let mut batch = TransmitBatch::with_capacity(1000, 3);
    assert!(add(&mut batch, 16, 0, to(0)));
    assert_eq!(batch.reserve_run(16, 8).len(), 2 * 20);
    batch.commit_run(16, 2);
    assert_eq!(batch.reserve_run(16, 8).len(), 0);
    batch.commit_run(16, 0);
    assert_eq!(batch.len(), 3);
}

#[test]
fn a_summed_run_gets_the_icrcs_of_its_bytes() {
    const LEN: usize = 1_036;
    let mut batch = TransmitBatch::with_capacity(8_000, 8);
    assert!(add(&mut batch, LEN, 1, to(0)));
    for (fill, packet) in (2..).zip(batch.reserve_run(LEN, 2).chunks_mut(LEN + 4)) {
        let (bytes, trailer) = packet.split_at_mut(LEN);
        bytes.fill(fill);
        trailer.copy_from_slice(&crc32fast::hash(bytes).to_le_bytes());
    }
    batch.commit_summed_run(LEN, 2);
    let here = "192.0.2.9".parse().unwrap();
    let flow = Flow::new(here, "192.0.2.1".parse().unwrap(), 4_791, 4_791).unwrap();
    let mut icrcs = IcrcCache::new(2_048);
    // The second time the kernel has refused the first packet, and the others have other
    // identifications.
    for ids in [[0, 1, 2], [9, 0, 1]] {
        for (index, id) in ids.into_iter().enumerate() {
            batch.seal(index, &flow, id, &mut icrcs);
            let bytes = vec![index as u8 + 1; LEN];
            let icrc = icrcs.icrc(&flow, id, &bytes).to_le_bytes();
            assert_eq!(batch.wire_bytes(index, 1), [&bytes[..], &icrc].concat());
        }
    }
}

#[test]
#[should_panic(expected = "reserved were 40 bytes")]
fn a_run_longer_than_its_reservation_is_refused() {
    let mut batch = TransmitBatch::with_capacity(200, 8);
    assert!(add(&mut batch, 16, 0, to(0)));
    batch.reserve_run(16, 2);
    batch.commit_run(16, 3);
}

#[test]
#[should_panic(expected = "no packet before this run")]
fn a_run_needs_a_packet_before_it() {
    let mut batch = TransmitBatch::with_capacity(200, 8);
    batch.reserve_run(16, 2);
    batch.commit_run(16, 2);
}

#[test]
#[should_panic(expected = "padded to four bytes")]
fn a_packet_without_its_pad_is_refused() {
    let mut batch = TransmitBatch::with_capacity(100, 8);
    batch.reserve(20).unwrap();
    batch.commit(18, to(0));
}

#[test]
#[should_panic(expected = "reserved were 0")]
fn a_packet_cannot_be_committed_twice() {
    let mut batch = TransmitBatch::with_capacity(100, 8);
    batch.reserve(20).unwrap();
    batch.commit(20, to(0));
    batch.commit(20, to(0));
}
