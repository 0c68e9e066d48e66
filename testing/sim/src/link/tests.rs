#![allow(clippy::unwrap_used)]

use super::*;

fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// Bytes of IP and UDP headers.
const HEADERS: usize = 28;

fn carried(at: Time, len: usize) -> Carried {
    let mut packet = vec![0; HEADERS + len];
    packet[0] = 0x45;
    Carried {
        at,
        packet,
        original: None,
        number_here: 0,
        late: false,
        trip: Trip {
            number: 0,
            from: 0,
            goal: Goal::Host(1),
            sent: at,
            v6: false,
        },
    }
}

fn arrivals(link: &mut Link, packets: usize, len: usize) -> Vec<u64> {
    let mut random = Random::new(1);
    let mut exits = Vec::new();
    for _ in 0..packets {
        link.enter(carried(Time::ZERO, len), &mut random, &mut exits);
    }
    let leaves = exits.iter().map(|exit| match exit {
        Exit::Leaves(carried) => carried.at.as_nanos(),
        Exit::WaitsAt(..) => panic!("nothing is out of order"),
    });
    leaves.collect()
}

#[test]
fn rate_and_delay_add_up() {
    let mut link = Link::new().rate(gbit(1)).delay(micros(10));
    // 934 + 66 bytes on the line are 8 us at 1 Gb/s.
    assert_eq!(arrivals(&mut link, 3, 934), [18_000, 26_000, 34_000]);
    assert_eq!(link.ready_at(), Time::ZERO);
    arrivals(&mut link, 64, 934);
    assert_eq!(
        link.ready_at().as_nanos(),
        67 * 8_000 - 64 * 1024 * 8,
        "the sender waits until 64 KiB are left"
    );
}

#[test]
fn a_full_bottleneck_drops() {
    let mut link = Link::new().bottleneck(gbit(1), 3_000);
    assert_eq!(
        arrivals(&mut link, 10, 934),
        [8_000, 16_000, 24_000, 32_000]
    );
    assert_eq!(link.counters().dropped, 6);
}

#[test]
fn chance_happens_about_as_often_as_it_was_asked_to() {
    let mut link = Link::new()
        .drop(0.1)
        .duplicate(0.1)
        .reorder(0.1)
        .corrupt(0.1);
    let arrived = arrivals(&mut link, 10_000, 100).len() as u64;
    let counters = link.counters();
    assert_eq!(counters.entered, 10_000);
    assert_eq!(arrived, 10_000 - counters.dropped + counters.duplicated);
    for count in [
        counters.dropped,
        counters.duplicated,
        counters.held_back,
        counters.damaged,
    ] {
        assert!((800..1200).contains(&count), "{counters:?}");
    }
}

#[test]
fn a_cut_link_carries_nothing_and_a_batch_arrives_at_once() {
    let mut link = Link::new().delay(micros(1)).rate(gbit(1)).batch(micros(50));
    assert_eq!(arrivals(&mut link, 3, 934), [50_000; 3]);
    link.set_cut(true);
    assert_eq!(arrivals(&mut link, 3, 934), []);
    assert_eq!(link.fates(), [Fate::Cut]);
    link.set_cut(false);
    assert_eq!(arrivals(&mut link, 3, 934), [50_000; 3]);
}
