//! When the kernel does not take what it is given.

use super::*;
use crate::udp::transmit::Attempt;

fn equal_packets(count: usize, destination: Destination) -> TransmitBatch {
    let mut batch = batch();
    for number in 0..count {
        add(&mut batch, &packet(1036, number), destination);
    }
    batch
}

#[test]
fn a_full_send_buffer_keeps_the_rest_in_the_batch() {
    let (mut left, mut right) = pair();
    let mut batch = equal_packets(100, to(RIGHT));
    left.sender.refuse = Some(|attempt: Attempt| (attempt.messages == 2).then_some(libc::EAGAIN));
    left.transmit(&mut batch).unwrap();
    left.transmit(&mut batch).unwrap();
    assert_eq!(batch.len(), 100);
    assert_eq!(left.counters().tx_again, 2);
    assert_eq!(left.counters().tx_errors, 0);

    // Meanwhile more is added behind, and then the kernel takes it all, in order.
    add(&mut batch, &packet(1036, 100), to(RIGHT));
    left.sender.refuse = None;
    left.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    let arrived = receive(&mut right, 101);
    let sent: Vec<_> = (0..101).map(|number| packet(1036, number)).collect();
    assert_eq!(bytes_of(&arrived), sent);
    assert_eq!(right.counters().rx_id_recovered, 0);
}

#[test]
fn packets_sealed_for_one_grouping_leave_correctly_in_another() {
    let (mut left, mut right) = pair();
    let mut batch = equal_packets(10, to(RIGHT));
    left.sender.refuse = Some(|_| Some(libc::EAGAIN));
    left.transmit(&mut batch).unwrap();
    // They were sealed with identifications 0 to 9; without the first three they need 0 to 6.
    batch.advance(3);
    left.sender.refuse = None;
    left.transmit(&mut batch).unwrap();
    let arrived = receive(&mut right, 7);
    assert_eq!(arrived[0].bytes, packet(1036, 3));
    assert_eq!(right.counters().rx_id_recovered, 0);
}

#[test]
fn where_segmentation_fails_plain_sends_take_over_for_good() {
    for errno in [libc::EIO, libc::EINVAL] {
        let (mut left, mut right) = pair();
        left.sender.refuse = Some(if errno == libc::EIO {
            |attempt: Attempt| (attempt.packets > 1).then_some(libc::EIO)
        } else {
            |attempt: Attempt| (attempt.packets > 1).then_some(libc::EINVAL)
        });
        let mut batch = equal_packets(70, to(RIGHT));
        left.transmit(&mut batch).unwrap();
        assert!(batch.is_empty());
        let sent: Vec<_> = (0..70).map(|number| packet(1036, number)).collect();
        assert_eq!(bytes_of(&receive(&mut right, 70)), sent);
        assert!(!left.granted().segmentation);
        let counters = left.counters();
        assert_eq!(counters.tx_segmentation_refused, 1);
        assert_eq!((counters.tx_errors, counters.tx_sends), (0, 70));
        assert_eq!(
            right.counters().rx_id_recovered,
            0,
            "sealed anew, with identification 0"
        );
    }
}

#[test]
fn a_full_send_buffer_in_a_segmentation_test_ends_the_call() {
    let (mut left, _right) = pair();
    left.sender.refuse = Some(|attempt: Attempt| {
        Some(if attempt.packets > 1 {
            libc::EINVAL
        } else {
            libc::EAGAIN
        })
    });
    let mut batch = equal_packets(10, to(RIGHT));
    left.transmit(&mut batch).unwrap();
    assert_eq!(batch.len(), 10);
    assert_eq!(left.counters().tx_again, 1);
    assert!(left.granted().segmentation, "nothing is proven yet");
}

#[test]
fn refused_packets_are_dropped_and_counted_by_reason() {
    type Refuse = fn(Attempt) -> Option<i32>;
    type Count = fn(&PortCounters) -> u64;
    let cases: [(Refuse, Count); 7] = [
        (|_| Some(libc::EMSGSIZE), |seen| seen.tx_too_big),
        (|_| Some(libc::EPERM), |seen| seen.tx_filtered),
        (|_| Some(libc::ENETUNREACH), |seen| seen.tx_unreachable),
        (|_| Some(libc::EHOSTUNREACH), |seen| seen.tx_unreachable),
        (|_| Some(libc::ENOBUFS), |seen| seen.tx_errors),
        (|_| Some(libc::ECONNREFUSED), |seen| seen.tx_errors),
        (|_| Some(libc::EINVAL), |seen| seen.tx_errors),
    ];
    for (number, (refuse, count)) in cases.into_iter().enumerate() {
        let (mut left, _right) = pair();
        left.sender.refuse = Some(refuse);
        let mut batch = equal_packets(70, to(RIGHT));
        left.transmit(&mut batch).unwrap();
        assert!(batch.is_empty(), "case {number}");
        assert_eq!(count(&left.counters()), 70, "case {number}");
        assert_eq!(left.counters().tx_errors, 70, "case {number}");
        assert_eq!(left.counters().tx_packets, 0, "case {number}");
        assert!(left.granted().segmentation, "case {number}");
    }
}

#[test]
fn a_broken_descriptor_is_an_error() {
    let (mut left, _right) = pair();
    left.sender.refuse = Some(|_| Some(libc::EBADF));
    let mut batch = equal_packets(2, to(RIGHT));
    let error = left.transmit(&mut batch).expect_err("EBADF");
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
}

/// Not made up: the real kernel refuses these.
#[test]
fn the_kernel_refuses_destinations_unreachable_by_loopback() {
    let (mut left, mut right) = pair();
    // A source on loopback may not leave the host (EINVAL), and a broadcast needs permission
    // (EACCES).
    let mut batch = equal_packets(5, to("192.0.2.1"));
    for number in 0..5 {
        add(&mut batch, &packet(1036, number), to("255.255.255.255"));
    }
    add(&mut batch, &packet(64, 5), to(RIGHT));
    // Neither of our family nor from an address we have.
    add(&mut batch, &packet(64, 6), to("::1"));
    let unknown = Destination {
        source_index: 9,
        ..to(RIGHT)
    };
    add(&mut batch, &packet(64, 7), unknown);
    add(&mut batch, &packet(64, 8), to(RIGHT));
    left.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    let arrived = receive(&mut right, 2);
    assert_eq!(bytes_of(&arrived), [packet(64, 5), packet(64, 8)]);
    let counters = left.counters();
    assert_eq!(counters.tx_errors, 12, "{counters:?}");
    assert!(
        left.granted().segmentation,
        "the destinations were at fault"
    );
}

/// Larger than any UDP datagram can be.
#[test]
fn a_packet_larger_than_ip_allows_is_refused_by_the_kernel() {
    let (mut left, mut right) = pair();
    let mut batch = batch();
    add(&mut batch, &packet(65_532, 0), to(RIGHT));
    add(&mut batch, &packet(64, 1), to(RIGHT));
    left.transmit(&mut batch).unwrap();
    assert_eq!(bytes_of(&receive(&mut right, 1)), [packet(64, 1)]);
    assert_eq!(left.counters().tx_too_big, 1);
    assert_eq!(left.counters().tx_errors, 1);
}
