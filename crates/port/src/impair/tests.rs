#![allow(clippy::unwrap_used)]

use super::*;
use crate::Destination;
use crate::sim::{self, SimPort};

fn rate(ppm: u32) -> Rate {
    Rate::from_ppm(ppm).unwrap()
}

fn ports(spec: &str) -> (Impaired<SimPort>, SimPort) {
    let (left, right) = sim::pair(
        &["10.0.0.1".parse().unwrap()],
        &["10.0.0.2".parse().unwrap()],
    )
    .unwrap();
    (Impaired::new(left, spec.parse().unwrap()), right)
}

fn add(batch: &mut TransmitBatch, number: u32) {
    let destination = Destination {
        address: [10, 0, 0, 2].into(),
        source_index: 0,
        tos: 0,
        hop_limit: 0,
        flow_label: 0,
        bundles: false,
    };
    let room = batch.reserve(64).unwrap();
    room.fill(0);
    room[60..].copy_from_slice(&number.to_be_bytes());
    batch.commit(64, destination);
}

fn drain(port: &mut impl Port, arrived: &mut Vec<u32>) {
    port.receive(usize::MAX, &mut |packet| {
        arrived.push(u32::from_be_bytes(packet.bytes[60..].try_into().unwrap()));
    })
    .unwrap();
}

/// Sends packets 0 to `count` in batches of 50, lets what is held back go, and returns what
/// arrives.
fn run(spec: &str, count: u32) -> (Vec<u32>, Impaired<SimPort>, SimPort) {
    let (mut left, mut right) = ports(spec);
    let mut batch = TransmitBatch::with_capacity(1 << 16, 64);
    let mut arrived = Vec::new();
    for number in 0..count {
        add(&mut batch, number);
        if batch.len() == 50 || number + 1 == count {
            left.transmit(&mut batch).unwrap();
            assert!(batch.is_empty());
            drain(&mut right, &mut arrived);
        }
    }
    for _ in 0..IDLE_POLLS_MAX {
        drain(&mut left, &mut Vec::new());
    }
    drain(&mut right, &mut arrived);
    (arrived, left, right)
}

const COUNT: u32 = 20_000;

/// Ten percent, give or take six standard deviations.
fn about_ten_percent(count: u64) -> bool {
    count.abs_diff(u64::from(COUNT) / 10) < 255
}

#[test]
fn without_impairment_everything_arrives_in_order() {
    let (arrived, left, _) = run("", COUNT);
    assert!(arrived.iter().copied().eq(0..COUNT));
    assert_eq!(left.impaired(), ImpairCounters::default());
}

#[test]
fn dropped_packets_are_missing_and_the_rest_is_in_order() {
    let (arrived, left, _) = run("drop=10%,seed=3", COUNT);
    let dropped = left.impaired().dropped;
    assert!(about_ten_percent(dropped), "{dropped}");
    assert_eq!(arrived.len() as u64 + dropped, u64::from(COUNT));
    assert!(arrived.is_sorted());
}

#[test]
fn repeated_packets_come_twice_in_a_row() {
    let (arrived, left, _) = run("dup=10%,seed=3", COUNT);
    let duplicated = left.impaired().duplicated;
    assert!(about_ten_percent(duplicated), "{duplicated}");
    assert_eq!(arrived.len() as u64, u64::from(COUNT) + duplicated);
    assert!(arrived.is_sorted());
    let pairs = arrived.windows(2).filter(|pair| pair[0] == pair[1]);
    assert_eq!(pairs.count() as u64, duplicated);
}

#[test]
fn reordered_packets_all_arrive_a_little_late() {
    let (mut arrived, left, _) = run("reorder=10%,seed=3", COUNT);
    assert!(about_ten_percent(left.impaired().reordered));
    assert_eq!(arrived.len(), COUNT as usize);
    let late = |(place, number): (usize, &u32)| place as i64 - i64::from(*number);
    let lateness: Vec<_> = arrived.iter().enumerate().map(late).collect();
    let overtaken = lateness.iter().filter(|&&late| late > 0).count() as u64;
    assert!(overtaken >= left.impaired().reordered * 9 / 10);
    assert!(lateness.iter().all(|late| late.abs() <= 16), "bounded");
    arrived.sort_unstable();
    assert!(arrived.iter().copied().eq(0..COUNT));
}

#[test]
fn damaged_packets_are_found_by_the_receiver() {
    let (arrived, left, right) = run("corrupt=10%,seed=3", COUNT);
    let corrupted = left.impaired().corrupted;
    assert!(about_ten_percent(corrupted), "{corrupted}");
    assert_eq!(right.counters().rx_bad_icrc, corrupted);
    assert_eq!(arrived.len() as u64, u64::from(COUNT) - corrupted);
    assert!(arrived.is_sorted());
}

#[test]
fn everything_at_once_is_the_same_for_the_same_seed() {
    let spec = "drop=2%,dup=2%,reorder=2%,corrupt=2%,seed=";
    let (first, ..) = run(&format!("{spec}7"), COUNT);
    let (again, ..) = run(&format!("{spec}7"), COUNT);
    let (other, ..) = run(&format!("{spec}8"), COUNT);
    assert_eq!(first, again);
    assert_ne!(first, other);
}

#[test]
fn held_packets_do_not_wait_for_ever() {
    let (mut left, mut right) = ports("reorder=100%");
    let mut batch = TransmitBatch::with_capacity(4096, 8);
    add(&mut batch, 1);
    left.transmit(&mut batch).unwrap();
    let mut arrived = Vec::new();
    drain(&mut right, &mut arrived);
    assert!(arrived.is_empty());
    for _ in 0..IDLE_POLLS_MAX {
        drain(&mut left, &mut Vec::new());
    }
    drain(&mut right, &mut arrived);
    assert_eq!(arrived, [1]);
}

#[test]
fn a_list_is_understood_in_any_order_and_printed_in_one() {
    let spec: Impairment = " seed=7, corrupt=0.1% ,drop=1%,dup=2.5%,reorder=100%, "
        .parse()
        .unwrap();
    let expected = Impairment {
        drop: rate(10_000),
        duplicate: rate(25_000),
        reorder: rate(1_000_000),
        corrupt: rate(1_000),
        seed: 7,
    };
    assert_eq!(spec, expected);
    assert_eq!(
        spec.to_string(),
        "drop=1%,dup=2.5%,reorder=100%,corrupt=0.1%,seed=7"
    );
    assert_eq!(spec.to_string().parse(), Ok(spec));
    assert_eq!("".parse(), Ok(Impairment::NONE));
}

#[test]
fn what_is_wrong_with_a_list_is_said() {
    let cases = [
        ("drop", "`drop` is not of the form key=value"),
        ("lose=1%", "there is no impairment `lose`"),
        ("drop=1%,drop=2%", "`drop` is given twice"),
        ("drop=1", "`drop=1`: the rate must be a percentage"),
        ("dup=101%", "`dup=101%`"),
        ("dup=-1%", "`dup=-1%`"),
        ("corrupt=NaN%", "`corrupt=NaN%`"),
        ("reorder=%", "`reorder=%`"),
        ("seed=x", "`seed=x`: the seed must be a whole number"),
        ("seed=-1", "`seed=-1`"),
    ];
    for (spec, expected) in cases {
        let error = spec.parse::<Impairment>().expect_err(spec).to_string();
        assert!(error.contains(expected), "{spec}: {error}");
    }
}
