//! Rate between two hosts that agreed, on a line slower than they are.

use crate::common::*;
use crate::is_middle;
use crate::wires::{Line, TICK, Wires};
use airdma_engine::*;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const LEN: usize = 512 * 1024;

/// 100 Mb/s.
const RATE: usize = 1250;
/// 24 ms of it.
const CAPACITY: usize = 300_000;

pub fn line(seen: bool) -> Line {
    Line::new(RATE, CAPACITY, seen)
}

/// Two hosts behind such a line, which have agreed.
pub fn wires(control: RateControl, line: Line) -> Wires {
    let mut wires = Wires::with([Some(control); 2], LEN);
    wires.quietly(5 * MS);
    wires.line = Some(line);
    wires
}

/// Sends without end for this time, between these ends. Returns the used share of the line's rate.
pub fn saturate(wires: &mut Wires, ends: &[(&End, &End)], time: Duration) -> f64 {
    let carried = |wires: &Wires| wires.line.as_ref().unwrap().carried;
    let before = carried(wires);
    let mut under_way = vec![0_u32; ends.len()];
    for _ in 0..time.as_millis() {
        for ((from, to), under_way) in ends.iter().zip(&mut under_way) {
            while let Some(completion) = from.try_complete() {
                assert_eq!(completion.status, Status::Success);
                // It may belong to an earlier call.
                *under_way = under_way.saturating_sub(1);
            }
            while *under_way < 4 {
                from.qp.post_send(&from.write(to, 0, LEN)).unwrap();
                *under_way += 1;
            }
        }
        wires.quietly(MS);
    }
    let most = RATE as f64 * (time.as_nanos() / TICK.as_nanos()) as f64;
    (carried(wires) - before) as f64 / most
}

/// One queue pair: the used share of the line after a while, the longest queue then, in ms, and the
/// drops.
fn one(control: RateControl, seen: bool) -> (f64, usize, usize) {
    // A hidden queue is estimated from round trips, and may overflow once before.
    let learning = if seen { 100 * MS } else { 1000 * MS };
    let mut wires = wires(control, line(seen));
    let others = pair(&wires);
    let ends = [(&others.0, &others.1)];
    saturate(&mut wires, &ends, learning);
    let line = wires.line.as_mut().unwrap();
    line.longest = 0;
    if !seen {
        line.dropped = 0;
    }
    let used = saturate(&mut wires, &ends, 400 * MS);
    let line = wires.line.unwrap();
    (used, line.longest / RATE / 10, line.dropped)
}

/// One more pair of queue pairs.
pub fn pair(wires: &Wires) -> (End, End) {
    let [left, right] =
        (wires.hosts.each_ref()).map(|host| End::new(host.device.device(), QpType::Rc, LEN));
    left.connect(&right);
    right.connect(&left);
    (left, right)
}

#[test]
fn the_queue_in_front_of_the_line_is_never_empty_and_never_long() {
    let (used, longest_ms, dropped) = one(RateControl::Buffers, true);
    assert!(used > 0.97, "{used}");
    assert!((4..12).contains(&longest_ms), "{longest_ms} ms");
    assert_eq!(dropped, 0);
}

#[test]
fn for_latency_the_queue_is_shorter_still() {
    let (used, longest_ms, dropped) = one(RateControl::Latency, true);
    assert!(used > 0.85, "{used}");
    assert!(longest_ms < 6, "{longest_ms} ms");
    assert_eq!(dropped, 0);
}

#[test]
fn a_queue_that_nobody_can_look_into_is_known_by_the_round_trip() {
    let (used, longest_ms, dropped) = one(RateControl::Buffers, false);
    assert!(used > 0.9, "{used}");
    assert!(longest_ms < 20, "{longest_ms} ms");
    assert_eq!(dropped, 0);
}

#[test]
fn a_window_alone_fills_the_queue() {
    let mut wires = wires(RateControl::Window, line(true));
    let (left, right) = pair(&wires);
    let used = saturate(&mut wires, &[(&left, &right)], 500 * MS);
    assert!(used > 0.9, "{used}");
    let line = wires.line.unwrap();
    assert!(line.longest > 9 * CAPACITY / 10, "{}", line.longest);
    assert!(line.dropped > 0);
}

/// Bytes that the left host sent to this end.
fn sent_to(wires: &Wires, right: &End) -> usize {
    let number = right.qp.number().get().to_be_bytes();
    let is_to = |(from, bytes): &&(usize, Vec<u8>)| *from == 0 && bytes[5..8] == number[1..];
    let sent = wires.sent.iter().filter(is_to);
    sent.map(|(_, bytes)| bytes.len()).sum()
}

#[test]
fn peers_that_share_a_queue_get_equal_bytes() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let first = pair(&wires);
    saturate(&mut wires, &[(&first.0, &first.1)], 300 * MS);
    let second = wires.pair_at_second_address(LEN);
    let ends = [(&first.0, &first.1), (&second.0, &second.1)];
    saturate(&mut wires, &ends, 500 * MS);
    let sent = |wires: &Wires| ends.map(|(_, right)| sent_to(wires, right));
    let before = sent(&wires);
    let used = saturate(&mut wires, &ends, 1000 * MS);
    assert!(used > 0.95, "{used}");
    let after = sent(&wires);
    let [first, second] = [0, 1].map(|index| (after[index] - before[index]) as f64);
    assert!((0.8..1.25).contains(&(first / second)), "{first} {second}");
}

#[test]
fn queue_pairs_to_one_peer_get_equal_bytes() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let pairs = [pair(&wires), pair(&wires), pair(&wires)];
    let ends: Vec<_> = pairs.iter().map(|(left, right)| (left, right)).collect();
    let used = saturate(&mut wires, &ends, 500 * MS);
    assert!(used > 0.9, "{used}");
    let counts: Vec<_> = (ends.iter())
        .map(|(_, right)| sent_to(&wires, right) as f64)
        .collect();
    let most = counts.iter().copied().fold(0.0, f64::max);
    let least = counts.iter().copied().fold(f64::MAX, f64::min);
    assert!(least > 0.9 * most, "{counts:?}");
}

#[test]
fn drops_in_front_of_the_line_change_the_rate_at_once() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let (left, right) = pair(&wires);
    let ends = [(&left, &right)];
    saturate(&mut wires, &ends, 200 * MS);
    // A tenth of the rate, and then all of it again.
    wires.line.as_mut().unwrap().bytes_per_tick = RATE / 10;
    saturate(&mut wires, &ends, 300 * MS);
    let line = wires.line.as_mut().unwrap();
    assert_eq!(line.dropped, 0);
    line.bytes_per_tick = RATE;
    saturate(&mut wires, &ends, 100 * MS);
    let used = saturate(&mut wires, &ends, 200 * MS);
    assert!(used > 0.95, "{used}");
}

#[test]
fn after_a_pause_it_goes_on_as_before() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let (left, right) = pair(&wires);
    let ends = [(&left, &right)];
    for _ in 0..2 {
        saturate(&mut wires, &ends, 100 * MS);
        let used = saturate(&mut wires, &ends, 200 * MS);
        assert!(used > 0.95, "{used}");
        wires.quietly(3000 * MS);
        while left.try_complete().is_some() {}
    }
    assert_eq!(wires.line.unwrap().dropped, 0);
}

/// Bytes received by the right host's last report.
fn told_bytes(wires: &Wires) -> u64 {
    let is_report = |(from, bytes): &&(usize, Vec<u8>)| {
        *from == 1 && bytes[5..8] == [0, 0, 1] && bytes[20 + 16..][..2] == [0, 2]
    };
    let (_, report) = wires.sent.iter().rfind(is_report).unwrap();
    u64::from_be_bytes(report[20 + 68..][..8].try_into().unwrap())
}

#[test]
fn each_received_packet_is_reported_once_whatever_is_lost() {
    const LEN: usize = 400 * 1024;
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    let (mut middle, mut came) = (0, 0);
    wires.pass(200 * MS, &mut |from, bytes| {
        let is_lost = is_middle(from, bytes) && {
            middle += 1;
            middle % 50 == 7
        };
        if from == 0 && !is_lost && bytes[5..8] != [0, 0, 1] {
            // Without ICRC, with all other headers.
            came += bytes.len() as u64 - 4 + 46;
        }
        is_lost
    });
    wires.ends[0].ok();
    assert_eq!(told_bytes(&wires), came);
}

#[test]
fn a_long_round_trip_is_measured_and_losses_are_resent_once() {
    const LEN: usize = 400 * 1024;
    let mut wires = Wires::new([true, true], LEN);
    // 300 ms there and back.
    wires.away = 1500;
    wires.quietly(1500 * MS);
    // It is unknown before the first measurement.
    let write = wires.ends[0].write(&wires.ends[1], 0, 8);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(1500 * MS);
    wires.ends[0].ok();
    let before = wires.hosts[0].count("retransmits");
    let mut middle = 0;
    for _ in 0..4 {
        let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
        wires.ends[0].qp.post_send(&write).unwrap();
    }
    wires.pass(8000 * MS, &mut |from, bytes| {
        is_middle(from, bytes) && {
            middle += 1;
            middle == 900
        }
    });
    for _ in 0..4 {
        wires.ends[0].ok();
    }
    let again = wires.hosts[0].count("retransmits") - before;
    assert!((1..=3).contains(&again), "{again}");
}

#[test]
fn all_queue_pairs_detect_a_dead_host_in_parallel() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let pairs: Vec<_> = (0..50).map(|_| pair(&wires)).collect();
    let ends: Vec<_> = pairs.iter().map(|(left, right)| (left, right)).collect();
    saturate(&mut wires, &ends, 100 * MS);
    wires.pass(6500 * MS, &mut |_, _| true);
    for (left, _) in &ends {
        let completions = std::iter::from_fn(|| left.try_complete());
        let last = completions.last().map(|last| last.status);
        assert_eq!(last, Some(Status::WrFlushError), "the last was flushed");
    }
}
