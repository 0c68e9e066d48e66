use proptest::prelude::*;
use std::collections::VecDeque;

use super::*;
use crate::rate::{Pacer, Permit};

const MS: Duration = Duration::from_millis(1);
const MB: u64 = 1_000_000;

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn occupancy(bytes: u64) -> Option<Occupancy> {
    let capacity = Some(2 * MB);
    Some(Occupancy { bytes, capacity })
}

fn feedback(ms: u64, bytes: u64, drained_bytes: u64) -> Feedback {
    Feedback {
        at: at(ms),
        socket: Reading {
            occupancy: Occupancy {
                bytes,
                capacity: Some(2 * MB),
            },
            drained_bytes,
        },
        application: None,
    }
}

/// A sender at 80 MB/s with a queue at its target, and a receiver that keeps up; its next tick is
/// at 41 ms.
fn busy() -> BufferOrchestrator {
    let mut controller = BufferOrchestrator::new(Aim::Throughput);
    controller.handle_rtt(at(0), 4 * MS);
    controller.handle_sent(at(1), 64 * 1024);
    controller.handle_feedback(at(5), &feedback(1, 0, 64 * 1024));
    controller.handle_sent(at(1), 640_000 - 64 * 1024);
    for tick in 1..10 {
        controller.handle_timeout(at(1 + tick * 4), occupancy(320_000));
        controller.handle_feedback(at(2 + tick * 4), &feedback(tick * 4, 0, tick * 320_000));
        controller.handle_sent(at(2 + tick * 4), 320_000);
    }
    controller
}

#[test]
fn before_any_feedback_one_segmented_send_may_leave_at_once() {
    let mut controller = BufferOrchestrator::new(Aim::Throughput);
    assert_eq!(controller.window(), FIRST_BYTES);
    assert_eq!(controller.poll_timeout(), None);
    let mut pacer = Pacer::new(at(0));
    let permit = pacer.poll(at(0), controller.rate(), FIRST_BYTES);
    assert_eq!(permit, Permit::Now(FIRST_BYTES));
    controller.handle_sent(at(0), FIRST_BYTES);
    assert_eq!(controller.poll_timeout(), Some(at(4)));
}

#[test]
fn the_first_feedback_sets_the_rate_and_opens_the_window() {
    let mut controller = BufferOrchestrator::new(Aim::Throughput);
    controller.handle_sent(at(0), 64 * 1024);
    controller.handle_rtt(at(10), 10 * MS);
    controller.handle_feedback(at(10), &feedback(2, 0, 60_000));
    // 60 kB in 2 ms, and half of its buffer of 2 MB may fill within a round trip.
    let expected = Rate::from_bytes_per_s(30 * MB + 100 * MB);
    // The path itself is not known to be any faster.
    assert!(controller.rate() <= expected && controller.rate() >= Rate::from_bytes_per_s(30 * MB));
    assert!(controller.window() > 64 * 1024);
}

#[test]
fn with_all_buffers_at_target_the_rate_is_the_slowest_ones() {
    let controller = busy();
    let rate = controller.rate().bytes_per_s();
    assert!((79 * MB..=81 * MB).contains(&rate), "{rate}");
    assert_eq!(controller.absurd(), 0);
}

#[test]
fn a_queue_above_target_slows_the_sender_by_the_excess() {
    let mut controller = busy();
    controller.handle_timeout(at(41), occupancy(480_000));
    // v fell an eighth of the way to 40 MB/s, and 160 kB and more are too much for 4 ms.
    let rate = controller.rate().bytes_per_s();
    assert!((20 * MB..35 * MB).contains(&rate), "{rate}");
    controller.handle_sent(at(41), 0);
    controller.handle_timeout(at(45), occupancy(900_000));
    assert_eq!(controller.rate(), Rate::ZERO);
}

/// Senders at one queue, each with endless data from `begin` ms on. Returns the bytes of each after
/// `ms`.
fn together(begin: &[u64], ms: u64) -> Vec<u64> {
    const LINE: u64 = 80_000;
    let mut senders: Vec<_> = (begin.iter())
        .map(|_| {
            (
                BufferOrchestrator::new(Aim::Throughput),
                Pacer::new(at(0)),
                0,
                0,
            )
        })
        .collect();
    let (mut queue, mut left) = (VecDeque::new(), 0);
    let mut waiting = 0;
    for now in 0..ms {
        // Now one comes first, now another.
        let time = at(now);
        let first = (now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % begin.len();
        for index in (first..begin.len()).chain(0..first) {
            let (controller, pacer, sent, got) = &mut senders[index];
            if controller.poll_timeout().is_some_and(|due| due <= time) {
                controller.handle_left(left);
                controller.handle_timeout(time, occupancy(waiting));
            }
            // It is told of each 10 ms, a round trip of 4 ms later.
            if now % 10 == index as u64 && *got > 0 {
                controller.handle_rtt(time, 4 * MS);
                controller.handle_feedback(time, &feedback(now, 0, *got));
            }
            let under_way = *sent - *got;
            if now >= begin[index]
                && let Permit::Now(bytes) = pacer.poll(time, controller.rate(), u64::MAX)
            {
                let bytes = bytes
                    .min(controller.window().saturating_sub(under_way))
                    .min(2 * MB - waiting);
                if bytes > 0 {
                    pacer.spend(bytes);
                    controller.handle_sent(time, bytes);
                    *sent += bytes;
                    waiting += bytes;
                    queue.push_back((index, bytes));
                }
            }
        }
        let mut credit = LINE;
        while let Some((index, bytes)) = queue.front_mut() {
            let taken = credit.min(*bytes);
            (credit, *bytes) = (credit - taken, *bytes - taken);
            (waiting, left) = (waiting - taken, left + taken);
            senders[*index].3 += taken;
            if *bytes > 0 {
                break;
            }
            queue.pop_front();
        }
    }
    senders.into_iter().map(|(_, _, _, got)| got).collect()
}

#[test]
fn a_late_sender_at_a_full_queue_gets_an_equal_share() {
    for begin in [
        &[0, 0][..],
        &[0, 500],
        &[0, 300, 600],
        &[0, 10, 200, 400, 600, 700, 800, 900],
    ] {
        let [before, after] = [2_000, 4_000].map(|ms| together(begin, ms));
        let got: Vec<u64> = after
            .iter()
            .zip(&before)
            .map(|(after, before)| after - before)
            .collect();
        let sum: u64 = got.iter().sum();
        let equal = sum / got.len() as u64;
        assert!(
            sum > 2_000 * 80_000 / 100 * 98,
            "{begin:?}: the line stands idle: {sum}"
        );
        for share in &got {
            assert!(share.abs_diff(equal) < equal / 10, "{begin:?}: {got:?}");
        }
    }
}

/// Packets to this host itself pass no interface, and others' queues are not theirs.
#[test]
fn a_queue_that_our_packets_do_not_pass_holds_nobody_back() {
    for others in [0, 40_000] {
        let mut controller = BufferOrchestrator::new(Aim::Throughput);
        let mut came = 0;
        for ms in 0..2_000 {
            if controller.poll_timeout().is_some_and(|due| due <= at(ms)) {
                controller.handle_left(ms * others);
                controller.handle_timeout(at(ms), occupancy(0));
            }
            if ms % 10 == 9 {
                controller.handle_rtt(at(ms), MS);
                controller.handle_feedback(at(ms), &feedback(ms, 0, came));
            }
            let bytes = controller
                .rate()
                .bytes_in(MS)
                .min(controller.window() / 10)
                .min(MB);
            controller.handle_sent(at(ms), bytes);
            came += bytes;
        }
        let rate = controller.rate();
        assert!(rate > Rate::from_bytes_per_s(400 * MB), "{rate:?}");
    }
}

#[test]
fn who_has_little_to_send_keeps_its_share_for_when_it_has_more() {
    let mut controller = busy();
    for tick in 10..60 {
        let now = 1 + tick * 4;
        controller.handle_sent(at(now - 2), 1_000);
        controller.handle_left(tick * 320_000);
        controller.handle_timeout(at(now), occupancy(300_000));
        controller.handle_feedback(at(now), &feedback(now - 1, 0, 2_880_000 + tick * 1_000));
    }
    assert_eq!(controller.share, WHOLE);
}

#[test]
fn an_empty_queue_at_most_doubles_the_rate_per_tick() {
    let mut controller = busy();
    controller.handle_timeout(at(41), occupancy(0));
    let rate = controller.rate().bytes_per_s();
    assert!((150 * MB..=321 * MB).contains(&rate), "{rate}");
}

#[test]
fn a_full_receiver_stops_the_sender_for_as_long_as_it_says_so() {
    let mut controller = busy();
    for tick in 0..500 {
        let now = 42 + tick * 4;
        controller.handle_feedback(at(now), &feedback(now - 2, 2 * MB, 2_880_000));
        controller.handle_timeout(at(now + 1), occupancy(0));
        assert_eq!(controller.rate(), Rate::ZERO);
    }
    let later = 42 + 2_000;
    controller.handle_feedback(at(later), &feedback(later - 2, 0, 4_880_000));
    let rate = controller.rate();
    assert!(rate > Rate::from_bytes_per_s(40 * MB));
    // Not even the pause makes it start anew.
    controller.handle_sent(at(later), 1_000);
    assert_eq!(controller.rate(), rate);
}

#[test]
fn a_program_that_has_no_buffer_any_more_holds_nobody_back() {
    let mut controller = busy();
    let mut told = feedback(40, 0, 2_880_000);
    told.application = Some(feedback(40, 2 * MB, 880_000).socket);
    controller.handle_feedback(at(42), &told);
    assert_eq!(controller.rate(), Rate::ZERO);
    controller.handle_feedback(at(46), &feedback(44, 0, 2_880_000));
    let rate = controller.rate();
    assert!(rate > Rate::from_bytes_per_s(40 * MB), "{rate:?}");
}

#[test]
fn a_full_receiver_that_says_no_more_is_asked() {
    let mut controller = busy();
    controller.handle_feedback(at(42), &feedback(40, 2 * MB, 2_880_000));
    assert_eq!(controller.rate(), Rate::ZERO);
    let mut last = at(42);
    while let Some(now) = controller.poll_timeout() {
        controller.handle_timeout(now, occupancy(0));
        last = now;
    }
    assert_eq!(controller.rate(), PROBE_RATE);
    assert!(last < at(200), "{last:?}");
}

#[test]
fn silence_holds_then_halves_the_rate_until_feedback() {
    let mut controller = busy();
    let rate = controller.rate();
    let mut rates = Vec::new();
    for tick in 0..200 {
        controller.handle_timeout(at(41 + tick * 4), occupancy(320_000));
        controller.handle_sent(at(41 + tick * 4), 320_000);
        rates.push((41 + tick * 4, controller.rate()));
    }
    let at_ms = |ms| rates.iter().find(|&&(at, _)| at >= ms).unwrap().1;
    assert_eq!(at_ms(130), rate);
    assert!(at_ms(150) <= rate.times(1, 2));
    assert!(at_ms(175) <= rate.times(1, 4));
    assert_eq!(rates.last().unwrap().1, PROBE_RATE);
    assert_eq!(controller.window(), FIRST_BYTES);
    controller.handle_feedback(at(900), &feedback(890, 0, 70 * MB));
    assert!(controller.rate() > rate.times(1, 2));
}

#[test]
fn the_timer_rests_when_nothing_is_under_way() {
    let mut controller = busy();
    controller.handle_feedback(at(42), &feedback(40, 0, 10 * MB));
    controller.handle_timeout(at(45), occupancy(0));
    controller.handle_timeout(at(49), occupancy(0));
    assert_eq!(controller.poll_timeout(), None);
    controller.handle_sent(at(80), 1_000);
    assert_eq!(controller.poll_timeout(), Some(at(84)));
}

#[test]
fn after_a_second_without_traffic_everything_is_measured_anew() {
    let mut controller = busy();
    controller.handle_feedback(at(42), &feedback(40, 0, 10 * MB));
    assert!(controller.window() > FIRST_BYTES);
    controller.handle_sent(at(1_043), 1_000);
    assert_eq!(controller.window(), FIRST_BYTES);
    assert_eq!(controller.rate(), Rate::of(FIRST_BYTES, FIRST_TIME));
}

#[test]
fn what_cannot_be_true_is_bounded_and_counted() {
    let mut controller = busy();
    let rate = controller.rate();
    // More in it than fits, and a total that went back.
    controller.handle_feedback(at(42), &feedback(50, 3 * MB, 4 * MB));
    controller.handle_feedback(at(43), &feedback(55, 0, 1));
    assert_eq!(controller.absurd(), 2);
    // It took a terabyte out since: a tenth more than before, no more than that.
    for ms in [60, 70] {
        controller.handle_feedback(at(ms), &feedback(ms, 0, 1 << (ms - 20)));
    }
    controller.handle_timeout(at(71), occupancy(320_000));
    assert!(
        controller.rate() <= rate.times(5, 4),
        "{:?}",
        controller.rate()
    );
}

#[test]
fn readings_that_were_overtaken_are_ignored() {
    let mut controller = busy();
    let rate = controller.rate();
    controller.handle_feedback(at(42), &feedback(20, 2 * MB, 0));
    assert_eq!((controller.rate(), controller.absurd()), (rate, 0));
}

/// Something that happens to a controller.
#[derive(Clone, Debug)]
enum Happening {
    Passes(u64),
    Sent(u64),
    Rtt(Duration),
    Feedback(Feedback),
    Left(u64),
    Tick(Option<Occupancy>),
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        0..100_000_u64,
        0..10_000_000_000_u64,
        any::<u64>(),
        Just(u64::MAX),
    ]
}

fn any_occupancy() -> impl Strategy<Value = Occupancy> {
    (number(), proptest::option::of(number()))
        .prop_map(|(bytes, capacity)| Occupancy { bytes, capacity })
}

fn any_reading() -> impl Strategy<Value = Reading> {
    (any_occupancy(), number()).prop_map(|(occupancy, drained_bytes)| Reading {
        occupancy,
        drained_bytes,
    })
}

fn any_feedback() -> impl Strategy<Value = Feedback> {
    let application = proptest::option::of(any_reading());
    (number(), any_reading(), application).prop_map(|(nanos, socket, application)| Feedback {
        at: Time::from_nanos(nanos),
        socket,
        application,
    })
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        number().prop_map(Happening::Passes),
        number().prop_map(Happening::Sent),
        number().prop_map(|nanos| Happening::Rtt(Duration::from_nanos(nanos))),
        any_feedback().prop_map(Happening::Feedback),
        number().prop_map(Happening::Left),
        proptest::option::of(any_occupancy()).prop_map(Happening::Tick),
    ]
}

proptest! {
    /// Whatever a peer and a kernel say: no overflow (tests check arithmetic), rates and windows
    /// within their bounds, never zero for ever, and honest readings bring the rate back.
    #[test]
    fn no_feedback_breaks_it_nor_stops_it_for_ever(
        aim in prop_oneof![Just(Aim::Throughput), Just(Aim::Latency)],
        happenings in proptest::collection::vec(happening(), 1..200),
    ) {
        let mut controller = BufferOrchestrator::new(aim);
        let mut pacer = Pacer::new(Time::ZERO);
        let mut now = Time::ZERO;
        for happening in happenings {
            match happening {
                Happening::Passes(nanos) => now = now + Duration::from_nanos(nanos % 3_000_000_000),
                Happening::Sent(bytes) => {
                    controller.handle_sent(now, bytes);
                    pacer.spend(bytes);
                }
                Happening::Rtt(sample) => controller.handle_rtt(now, sample),
                Happening::Feedback(feedback) => controller.handle_feedback(now, &feedback),
                Happening::Left(bytes) => controller.handle_left(bytes),
                Happening::Tick(send_queue) => controller.handle_timeout(now, send_queue),
            }
            prop_assert!(controller.rate() <= Rate::MAX);
            prop_assert!(controller.window() >= FIRST_BYTES);
            let _ = pacer.poll(now, controller.rate(), 1 << 16);
        }
        // No more reports arrive, and the queue is empty.
        controller.handle_sent(now, 1);
        for _ in 0..10_000 {
            let Some(at) = controller.poll_timeout() else { break };
            now = at;
            controller.handle_timeout(now, Some(Occupancy::default()));
        }
        prop_assert!(controller.rate() >= PROBE_RATE);
    }
}
