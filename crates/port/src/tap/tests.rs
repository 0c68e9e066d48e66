#![allow(clippy::unwrap_used)]

use super::*;
use crate::sim;

const LEFT: [u8; 4] = [10, 0, 0, 1];
const RIGHT: [u8; 4] = [10, 0, 0, 2];

fn ports() -> [Box<dyn Port>; 2] {
    let (left, right) = sim::pair(&[LEFT.into()], &[RIGHT.into()]).unwrap();
    [Box::new(left), Box::new(right)]
}

fn sink(filter: Filter, snap: usize, bytes_max: usize) -> Arc<Sink> {
    Arc::new(Sink::new(filter, snap, bytes_max))
}

fn tap(port: &mut Box<dyn Port>, address: [u8; 4], sink: &Arc<Sink>) {
    assert!(add(port, &[Some(address.into())], Arc::clone(sink)));
}

/// A packet of `len` bytes for a queue pair number.
fn post(batch: &mut TransmitBatch, number: u8, len: usize) {
    let destination = Destination {
        address: RIGHT.into(),
        source_index: 0,
        tos: 0x6a,
        hop_limit: 0,
        flow_label: 0,
        bundles: false,
    };
    let room = batch.reserve(len).unwrap();
    room.fill(0);
    room[7] = number;
    batch.commit(len, destination);
}

fn records(sink: &Sink) -> Vec<(RecordHeader, Vec<u8>)> {
    let mut taken = Vec::new();
    sink.take(&mut taken);
    let (mut rest, mut found) = (&taken[..], Vec::new());
    while let Some((header, after)) = rest.split_first_chunk() {
        let mut header = RecordHeader::parse(header).unwrap();
        let (packet, after) = after.split_at(header.captured as usize);
        let mut packet = packet.to_vec();
        complete(&mut header, &mut packet, sink.snap);
        found.push((header, packet));
        rest = after;
    }
    found
}

/// Sends packets for these numbers, and receives them at the other end.
fn exchange([left, right]: &mut [Box<dyn Port>; 2], numbers: &[u8], len: usize) {
    let mut batch = TransmitBatch::with_capacity(1 << 16, 64);
    numbers
        .iter()
        .for_each(|number| post(&mut batch, *number, len));
    left.transmit(&mut batch).unwrap();
    let received = right.receive(64, &mut |_| ()).unwrap();
    assert_eq!(received, numbers.len());
}

#[test]
fn what_is_sent_is_what_is_received_with_a_right_icrc() {
    let mut ports = ports();
    let sinks = [(); 2].map(|()| sink(Filter::default(), SNAP_MAX, 1 << 20));
    tap(&mut ports[0], LEFT, &sinks[0]);
    tap(&mut ports[1], RIGHT, &sinks[1]);
    exchange(&mut ports, &[7, 9], 64);
    let [sent, received] = sinks.map(|sink| records(&sink));
    assert_eq!((sent.len(), received.len()), (2, 2));
    for ((sent, one), (received, other)) in sent.iter().zip(&received) {
        assert!(sent.is_sent && !received.is_sent);
        assert_eq!((sent.captured, sent.original), (96, 96));
        assert_eq!(one, other);
        let (packet, icrc) = one.split_at(92);
        assert_eq!(icrc_of_ip_packet(packet).unwrap().to_le_bytes(), icrc);
        assert_eq!(
            (packet[1], &packet[12..20]),
            (0x6a, &[LEFT, RIGHT].concat()[..])
        );
    }
}

#[test]
fn a_filter_admits_peers_and_numbers() {
    let mut ports = ports();
    let filter = |peer: [u8; 4]| Filter {
        peers: vec![peer.into()],
        numbers: vec![9],
    };
    let (of_peer, of_other) = (
        sink(filter(RIGHT), 64, 1 << 20),
        sink(filter(LEFT), 64, 1 << 20),
    );
    tap(&mut ports[0], LEFT, &of_peer);
    tap(&mut ports[0], LEFT, &of_other);
    exchange(&mut ports, &[7, 9, 8], 64);
    let found = records(&of_peer);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].0.captured, found[0].0.original), (64, 96));
    assert_eq!(found[0].1[35], 9);
    assert!(records(&of_other).is_empty());
}

#[test]
fn a_full_queue_counts_what_it_loses() {
    let mut ports = ports();
    let sink = sink(Filter::default(), SNAP_MAX, 300);
    tap(&mut ports[0], LEFT, &sink);
    exchange(&mut ports, &[1, 2, 3, 4], 64);
    let lost: Vec<_> = records(&sink)
        .iter()
        .map(|(header, _)| header.lost)
        .collect();
    assert_eq!(lost, [0, 0, 2]);
    exchange(&mut ports, &[5], 64);
    assert_eq!(records(&sink)[0].0.lost, 0);
}

#[test]
fn a_packet_is_cut_anywhere() {
    // 28 bytes of IP and UDP, 64 of the packet, 4 of the ICRC.
    for snap in [0, 1, 27, 28, 29, 91, 92, 93, 95, 96, 97] {
        let mut ports = ports();
        let [whole, cut] = [SNAP_MAX, snap].map(|snap| sink(Filter::default(), snap, 1 << 20));
        tap(&mut ports[0], LEFT, &whole);
        tap(&mut ports[0], LEFT, &cut);
        exchange(&mut ports, &[7, 9], 64);
        let (whole, cut) = (records(&whole), records(&cut));
        assert_eq!((whole.len(), cut.len()), (2, 2), "{snap}");
        for ((_, whole), (header, cut)) in whole.iter().zip(&cut) {
            assert_eq!(
                (header.captured, header.original),
                (snap.min(96) as u32, 96)
            );
            assert_eq!(**cut, whole[..snap.min(96)], "{snap}");
        }
    }
}

#[test]
fn a_full_queue_has_the_room_that_it_was_given() {
    let mut ports = ports();
    // No power of two.
    let bytes_max = 100 << 10;
    let sink = sink(Filter::default(), SNAP_MAX, bytes_max);
    tap(&mut ports[0], LEFT, &sink);
    let mut taken = Vec::new();
    for _ in 0..4 {
        for _ in 0..20 {
            exchange(&mut ports, &[7; 16], 1024);
        }
        sink.take(&mut taken);
        assert!(taken.len() > bytes_max - 2048, "{}", taken.len());
        // The last one, of no packet, says what was lost.
        let room = bytes_max + 2 * RECORD_HEADER_LEN;
        assert!(taken.capacity() <= room, "{}", taken.capacity());
    }
}

#[test]
fn packets_that_did_not_leave_are_copied_once() {
    let [left, _right] = ports();
    let sink = sink(Filter::default(), SNAP_MAX, 1 << 20);
    let mut tap = Tap {
        inner: left,
        sinks: vec![Arc::clone(&sink)],
        addresses: vec![Some(LEFT.into())],
        unsent: 0,
    };
    let mut batch = TransmitBatch::with_capacity(1 << 16, 64);
    post(&mut batch, 1, 64);
    tap.copy_sent(&batch);
    tap.unsent = batch.len();
    post(&mut batch, 2, 64);
    tap.transmit(&mut batch).unwrap();
    assert_eq!(records(&sink).len(), 2);
    assert_eq!(tap.unsent, 0);
}

#[test]
fn the_last_reader_takes_the_tap_away() {
    let mut ports = ports();
    let sinks = [(); SINKS_MAX].map(|()| sink(Filter::default(), 64, 1 << 20));
    sinks.iter().for_each(|sink| tap(&mut ports[0], LEFT, sink));
    let further = Arc::clone(&sinks[0]);
    assert!(!add(&mut ports[0], &[], further));
    for sink in &sinks {
        assert!(ports[0].tap().is_some());
        remove(&mut ports[0], sink);
    }
    assert!(ports[0].tap().is_none());
    exchange(&mut ports, &[1], 64);
}
