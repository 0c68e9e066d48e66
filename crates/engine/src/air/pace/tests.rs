use super::*;

fn qp(place: u32) -> QpIndex {
    QpIndex::new(place)
}
use airdma_port::GROUP_BYTES_MAX;
use airdma_transport::rate::{BURST_BYTES_MAX, Occupancy, Reading};
use airdma_wire::{Bth, ICRC_LEN, PathMtu, long_payload};

const USUAL: Weight = Weight::of(0);
const NOW: Time = Time::from_nanos(1_000_000);

fn pace() -> Pace {
    Pace::new(RateControl::Buffers, 1024, NOW).unwrap()
}

#[test]
fn a_burst_leaves_in_one_segmented_send() {
    for payload in [
        PathMtu::M1024.bytes(),
        long_payload(1500, [192, 0, 2, 1].into()),
    ] {
        let packet = Bth::LEN + payload as usize;
        // The last packet may exceed the limit.
        let packets = (BURST_BYTES_MAX as usize).div_ceil(packet);
        let bytes = packets * (packet + ICRC_LEN);
        assert!(bytes <= GROUP_BYTES_MAX, "{packets} of {payload}: {bytes}");
    }
}

#[test]
fn each_has_a_turn_in_the_order_in_which_they_came() {
    let mut pace = pace();
    let mut waits = [false; 3];
    assert!(
        pace.admit((qp(0), USUAL), u64::MAX, &mut waits[0], NOW)
            .is_some()
    );
    for queue_pair in [1, 2, 1].map(qp) {
        let place = &mut waits[queue_pair.place()];
        assert_eq!(pace.admit((queue_pair, USUAL), u64::MAX, place, NOW), None);
    }
    assert_eq!(waits, [false, true, true]);
    assert_eq!(pace.sent(qp(0), NOW, (64, 1), false), Some(qp(1)));
    waits[1] = false;
    // It has more: behind the others.
    assert_eq!(
        pace.admit((qp(0), USUAL), u64::MAX, &mut waits[0], NOW),
        None
    );
    let later = NOW + Duration::from_millis(2);
    assert!(
        pace.admit((qp(1), USUAL), u64::MAX, &mut waits[1], later)
            .is_some()
    );
    assert_eq!(pace.sent(qp(1), later, (64, 1), false), Some(qp(2)));
    assert_eq!(pace.sent(qp(2), NOW, (0, 0), false), Some(qp(0)));
    assert_eq!(pace.sent(qp(0), NOW, (0, 0), false), None);
}

#[test]
fn who_has_more_weight_sends_more_in_its_turn() {
    let mut pace = pace();
    let weights = [0x20, 0x00, 0xa0, 0xe0].map(Weight::of);
    let mut waits = [false; 4];
    let mut sent = [0; 4];
    let mut now = NOW;
    let mut active: VecDeque<QpIndex> = (0..4).map(qp).collect();
    while let Some(queue_pair) = active.pop_front()
        && now < NOW + Duration::from_secs(20)
    {
        let place = queue_pair.place();
        let asks = (queue_pair, weights[place]);
        match pace.admit(asks, u64::MAX, &mut waits[place], now) {
            Some(bytes) => {
                // Not always all of it in one go.
                let bytes = bytes.min(40_000);
                sent[place] += bytes;
                let next = pace.sent(queue_pair, now, (bytes, 1), true);
                active.push_back(queue_pair);
                if let Some(next) = next {
                    waits[next.place()] = false;
                    active.push_back(next);
                }
            }
            None if waits[place] => {}
            None => {
                now = now + Duration::from_millis(1);
                active.push_back(queue_pair);
            }
        }
    }
    let quarter = sent.iter().sum::<u64>() / (1 + 4 + 8 + 16);
    for (bytes, quarters) in sent.iter().zip([1, 4, 8, 16]) {
        let fair = quarters * quarter;
        assert!(bytes.abs_diff(fair) < fair / 20, "{sent:?}");
    }
}

#[test]
fn who_has_sent_a_burst_waits_for_the_pacer_and_is_called_then() {
    let mut pace = pace();
    let mut waits = false;
    let bytes = pace
        .admit((qp(7), USUAL), u64::MAX, &mut waits, NOW)
        .unwrap();
    assert_eq!(pace.sent(qp(7), NOW, (bytes, 1), true), None);
    assert_eq!(pace.admit((qp(7), USUAL), u64::MAX, &mut waits, NOW), None);
    assert!(!waits, "it has the turn");
    let due = pace.due().unwrap();
    assert!(due > NOW && due <= NOW + Duration::from_millis(2));
    assert_eq!(pace.released(NOW), None);
    assert_eq!(pace.released(due), Some(qp(7)));
    assert!(
        pace.admit((qp(7), USUAL), u64::MAX, &mut waits, due)
            .is_some()
    );
}

#[test]
fn who_leaves_holds_nobody_up() {
    let mut pace = pace();
    let mut waits = [false; 3];
    for (queue_pair, waits) in (0..).map(qp).zip(&mut waits) {
        pace.admit((queue_pair, USUAL), u64::MAX, waits, NOW);
    }
    assert_eq!(pace.leave(qp(1)), None);
    assert_eq!(pace.leave(qp(0)), Some(qp(2)));
    assert_eq!(pace.leave(qp(2)), None);
    assert!(
        pace.admit((qp(5), USUAL), u64::MAX, &mut false, NOW)
            .is_some()
    );
}

/// Reports of a peer that received at 50 MB/s until its program stopped 4 ms ago.
fn stopped(pace: &mut Pace) {
    received(pace, 50_000, 600_000);
}

/// Reports of a peer that receives at 50 MB/s, of which `stay` bytes a ms stay in its program's
/// buffer of `capacity`.
fn received(pace: &mut Pace, stay: u64, capacity: u64) {
    pace.admit((qp(0), USUAL), u64::MAX, &mut false, NOW);
    pace.sent(qp(0), NOW, (60_000, 60), false);
    for ms in [0, 4, 8, 12, 16] {
        let told = Told {
            at_us: ms * 1_000,
            received_bytes: 10_000 + u64::from(ms.min(12)) * 50_000,
            marked_bytes: 0,
            missed_packets: 0,
        };
        let occupancy = Occupancy {
            bytes: (told.received_bytes - 10_000) / 50_000 * stay,
            capacity: Some(capacity),
        };
        let feedback = Feedback {
            socket: Reading {
                drained_bytes: told.received_bytes,
                ..Reading::default()
            },
            application: Some(Reading {
                occupancy,
                drained_bytes: 0,
            }),
            ..Feedback::default()
        };
        let now = NOW + Duration::from_millis(ms.into());
        pace.tick(now, Some(QueueFill::default()));
        pace.take_feedback(now, told, feedback);
    }
}

#[test]
fn a_stopped_program_delays_only_queue_pairs_with_much_to_send() {
    let mut pace = pace();
    let now = NOW + Duration::from_millis(17);
    let packet = PACKET_LEN_MAX as u64;
    stopped(&mut pace);
    assert_eq!(pace.controller.rate(), Rate::ZERO);
    let mut waits = [false; 3];
    assert_eq!(
        pace.admit((qp(0), USUAL), u64::MAX, &mut waits[0], now),
        None
    );
    assert_eq!(pace.waiting, Waiting::ForRate);
    for _ in 0..4 {
        let admitted = pace.admit((qp(1), USUAL), packet, &mut waits[1], now);
        assert_eq!(admitted, Some(packet));
        assert_eq!(pace.sent(qp(1), now, (200, 1), false), None);
    }
    assert_eq!(pace.called(), Some(qp(0)), "it is as it was");
    assert_eq!(pace.waiting, Waiting::ForRate);
    // That queue pair has more than a packet.
    assert_eq!(
        pace.admit((qp(2), USUAL), packet, &mut waits[2], now),
        Some(packet)
    );
    assert_eq!(pace.sent(qp(2), now, (packet, 1), true), None);
    assert_eq!(
        pace.admit((qp(2), USUAL), u64::MAX, &mut waits[2], now),
        None
    );
    assert_eq!(waits, [false, false, true]);
    // Nor faster than the line and the socket accept.
    let passed = (0..1_000).take_while(|_| {
        let admitted = pace.admit((qp(1), USUAL), packet, &mut waits[1], now);
        admitted.is_some() && pace.sent(qp(1), now, (packet, 1), false).is_none()
    });
    assert!((1..50).contains(&passed.count()));
}

#[test]
fn in_and_out_of_turn_bytes_share_the_rate_of_the_path() {
    let mut pace = pace();
    received(&mut pace, 10_000, 1_200_000);
    let [slow, fast] = [
        pace.controller.rate(),
        pace.controller.rate_beside_program().unwrap(),
    ];
    let share = slow.bytes_per_s() as f64 / fast.bytes_per_s() as f64;
    assert!((0.2..0.9).contains(&share), "{slow:?} of {fast:?}");
    let time = Duration::from_millis(200);
    let mut sent = [0; 2];
    let mut waits = [false; 2];
    for us in (0..time.as_micros() as u64).step_by(100) {
        let now = NOW + Duration::from_micros(17_000 + us);
        for (queue_pair, wanted) in [(0, u64::MAX), (1, 1_000), (1, 1_000), (1, 1_000)] {
            let queue_pair = qp(queue_pair);
            let place = queue_pair.place();
            let asks = (queue_pair, USUAL);
            if let Some(bytes) = pace.admit(asks, wanted, &mut waits[place], now) {
                let bytes = bytes.min(wanted);
                sent[place] += bytes;
                if let Some(next) = pace.sent(queue_pair, now, (bytes, 1), false) {
                    waits[next.place()] = false;
                }
            }
        }
    }
    let all = fast.bytes_in(time + Duration::from_millis(4));
    assert!(
        sent[1] > 0 && sent.iter().sum::<u64>() <= all,
        "{sent:?} of {all}"
    );
}

#[test]
fn small_senders_leave_the_line_in_order_when_a_program_stops() {
    let mut pace = pace();
    let now = NOW + Duration::from_millis(17);
    let packet = PACKET_LEN_MAX as u64;
    let mut waits = [false; 5];
    pace.admit((qp(0), USUAL), u64::MAX, &mut waits[0], NOW);
    for (queue_pair, wanted) in [(1, packet), (2, u64::MAX), (3, packet), (4, packet)] {
        let place = &mut waits[queue_pair as usize];
        assert_eq!(
            pace.admit((qp(queue_pair), USUAL), wanted, place, NOW),
            None
        );
    }
    assert_eq!(pace.ask_beside(), None, "it is the line that sets the rate");
    stopped(&mut pace);
    assert_eq!(pace.called(), Some(qp(1)), "the first one is done");
    assert_eq!(pace.controller.rate(), Rate::ZERO);
    waits[1] = false;
    assert_eq!(
        pace.admit((qp(1), USUAL), u64::MAX, &mut waits[1], now),
        None
    );
    assert_eq!(pace.waiting, Waiting::ForRate);

    assert_eq!(pace.ask_beside(), Some(qp(3)));
    let not_the_first = pace.admit((qp(4), USUAL), packet, &mut waits[4], now);
    assert_eq!(not_the_first, None);
    let admitted = pace.admit((qp(3), USUAL), packet, &mut waits[3], now);
    assert_eq!(admitted, Some(packet));
    assert_eq!(pace.sent(qp(3), now, (200_000, 1), false), None);
    // So much that the others wait for the pacer, and are called in time.
    assert_eq!(pace.next_beside(), Some(qp(4)));
    assert_eq!(pace.admit((qp(4), USUAL), packet, &mut waits[4], now), None);
    assert_eq!(waits, [false, false, true, false, true]);
    let due = pace.beside_at.unwrap();
    assert!(due > now && pace.due().unwrap() <= due);
    assert_eq!(pace.ask_beside(), Some(qp(4)));
    let admitted = pace.admit((qp(4), USUAL), packet, &mut waits[4], due);
    assert_eq!(admitted, Some(packet));
    assert_eq!(pace.sent(qp(4), due, (64, 1), false), None);
    assert_eq!(pace.next_beside(), None);
    assert_eq!((pace.waiting(), pace.called()), (2, Some(qp(1))));
}

#[test]
fn a_peer_whose_clock_went_back_began_anew() {
    let mut pace = pace();
    let mut told = |at_us, received_bytes| {
        let told = Told {
            at_us,
            received_bytes,
            marked_bytes: 0,
            missed_packets: 0,
        };
        pace.take_feedback(NOW, told, Feedback::default());
        pace.told_us
    };
    assert_eq!(told(60_000_000, 10_000), 60_000_000);
    assert_eq!(told(60_006_000, 10_000), 60_006_000);
    // More bytes than before, by a clock that shows less.
    assert_eq!(told(2_000, 64_000), 2_000);
    assert_eq!(told(8_000, 500_000), 8_000);
    // It wraps after 71 minutes.
    assert_eq!(told(u32::MAX / 2, 600_000), u64::from(u32::MAX / 2));
    assert_eq!(told(u32::MAX - 10, 700_000), u64::from(u32::MAX - 10));
    assert_eq!(told(20, 700_000), u64::from(u32::MAX) + 21);
}

#[test]
fn what_is_missed_is_lost_for_who_counts_losses() {
    let window_after = |missed_packets| {
        let mut pace = Pace::new(RateControl::Dctcp, 1024, NOW).unwrap();
        pace.admit((qp(0), USUAL), u64::MAX, &mut false, NOW);
        pace.sent(qp(0), NOW, (60_000, 60), false);
        let told = Told {
            at_us: 1_000,
            received_bytes: 30_000,
            marked_bytes: 0,
            missed_packets,
        };
        pace.take_feedback(NOW + Duration::from_millis(5), told, Feedback::default());
        pace.window()
    };
    assert!(window_after(10) < window_after(0));
}
