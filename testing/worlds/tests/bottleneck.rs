//! Devices that share a marking queue: the results of `airdma sim congestion`.

use airdma_engine::RateControl;
use airdma_sim::Marking;
use airdma_worlds::bottleneck::{Bottleneck, Setting};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const RAMP: Marking = Marking::Ramp {
    kmin: 5_000,
    kmax: 200_000,
    pmax: 0.01,
};

fn four(control: RateControl, air: bool, marking: Marking) -> Bottleneck {
    Bottleneck::new(Setting {
        senders: 4,
        air,
        control,
        line_mbps: 10_000,
        marking,
        apart: MS,
    })
}

#[test]
fn dcqcn_gives_fair_shares_and_a_short_queue() {
    let mut bottleneck = four(RateControl::Dcqcn, false, RAMP);
    bottleneck.run(40 * MS);
    let seen = bottleneck.run(40 * MS);
    assert!(seen.fairness() > 0.95, "{seen:?}");
    assert!(seen.sum_mbps() > 8_500.0, "{seen:?}");
    assert!(seen.queue_bytes[2] < 500_000, "{seen:?}");
    assert_eq!(seen.dropped, 0);
}

#[test]
fn fixed_windows_fill_the_queue() {
    let mut bottleneck = four(RateControl::Window, false, RAMP);
    bottleneck.run(20 * MS);
    let seen = bottleneck.run(10 * MS);
    assert!(seen.queue_bytes[1] > 800_000, "{seen:?}");
}

#[test]
fn dctcp_keeps_the_queue_at_the_threshold() {
    let k = 100_000;
    let mut bottleneck = four(RateControl::Dctcp, true, Marking::Above(k));
    bottleneck.run(100 * MS);
    let seen = bottleneck.run(150 * MS);
    assert!(seen.fairness() > 0.8, "{seen:?}");
    assert!(seen.sum_mbps() > 9_000.0, "{seen:?}");
    assert!((k / 3..2 * k).contains(&seen.queue_bytes[0]), "{seen:?}");
    assert_eq!(seen.dropped, 0);
}
