//! Transfers in a simulated Wi-Fi cell: throughput, shares and loss by the way of sending.

use airdma_engine::{PathMtu, RateControl};
use airdma_sim::wifi::Profile;
use airdma_worlds::cell::*;
use std::time::Duration;

const TIME: Duration = Duration::from_millis(400);
const AIR: Sender = Sender::air(RateControl::Buffers);

fn setting(snr_db: &[f64]) -> Setting {
    Setting {
        profile: Profile::AC_80,
        snr_db: snr_db.to_vec(),
        loss: 0.0,
        seed: 7,
    }
}

#[test]
fn queue_pairs_share_the_rate_of_their_host() {
    let load = Load {
        queue_pairs: 4,
        ..Load::USUAL
    };
    let seen = throughput(&setting(&[35.0]), AIR, load, TIME);
    assert_eq!(seen.shares_mbit.len(), 4);
    let sum: f64 = seen.shares_mbit.iter().sum();
    assert!((sum / seen.mbit - 1.0).abs() < 1e-9, "{seen:?}");
    for share in &seen.shares_mbit {
        assert!((share * 4.0 / sum - 1.0).abs() < 0.1, "{seen:?}");
    }
}

#[test]
fn two_hosts_both_reach_a_third() {
    let load = Load {
        hosts: 2,
        ..Load::USUAL
    };
    let setting = setting(&[35.0]);
    let seen = throughput(&setting, AIR, load, TIME);
    let line = line_rate(&setting, 2, TIME);
    assert_eq!(seen.shares_mbit.len(), 2);
    for share in &seen.shares_mbit {
        assert!((0.3 * line..0.6 * line).contains(share), "{seen:?} {line}");
    }
}

#[test]
fn a_sender_without_rate_control_fills_the_queue_and_gets_less() {
    let without = Sender {
        has_window: false,
        ..Sender::ROCE
    };
    let small = Load {
        message_bytes: 4096,
        ..Load::USUAL
    };
    let setting = setting(&[35.0]);
    let of = |sender, load| throughput(&setting, sender, load, TIME);
    let (collapsed, held) = (of(without, Load::USUAL), of(AIR, Load::USUAL));
    assert!(collapsed.overflowed > 1000, "{collapsed:?}");
    assert_eq!(held.overflowed, 0);
    assert!(collapsed.mbit < 0.7 * held.mbit);
    // Small messages in flight fit.
    let fits = of(without, small);
    assert_eq!(fits.overflowed, 0);
    assert!(fits.mbit > 1.3 * collapsed.mbit, "{fits:?}");
}

#[test]
fn fragments_fill_frames_and_are_lost_together() {
    let bundled = Sender {
        bundles: true,
        ..AIR
    };
    let long = Sender {
        path_mtu: PathMtu::M4096,
        ..AIR
    };
    let setting = setting(&[35.0]);
    let plain = throughput(&setting, AIR, Load::USUAL, 4 * TIME).mbit;
    // A 4,096-byte datagram is lost with any of its three fragments. Bundles stop at
    // such loss.
    for (sender, left) in [(bundled, 0.99), (long, 0.99_f64.powi(3))] {
        let seen = throughput(&setting, sender, Load::USUAL, 4 * TIME);
        assert!(seen.mbit > 0.97 * plain, "{seen:?}, plain {plain}");
        let lossy = Setting {
            loss: 0.01,
            ..setting.clone()
        };
        let lossy = throughput(&lossy, sender, Load::USUAL, 4 * TIME);
        assert!(lossy.mbit < left * seen.mbit, "{lossy:?}");
    }
}

#[test]
fn read_responses_are_longer_than_the_path_mtu() {
    let asked = Load {
        reads: true,
        ..Load::USUAL
    };
    let setting = setting(&[35.0]);
    let [reads, writes] = [asked, Load::USUAL].map(|load| throughput(&setting, AIR, load, TIME));
    // With 1,024 bytes in each response it is 0.71, with 1,452 it is 0.78.
    assert!(reads.mbit > 0.74 * writes.mbit, "{reads:?} {writes:?}");
    assert_eq!(reads.overflowed, 0);
}

#[test]
fn a_signal_that_fades_takes_the_goodput_along() {
    let steps = |snr_db| line_rate(&setting(&[snr_db]), 1, TIME);
    let (near, far) = (steps(35.0), steps(8.0));
    // Half of the time near, then far.
    let walk = setting(&[35.0, 35.0, 8.0, 8.0]);
    let line = line_rate(&walk, 1, TIME);
    assert!(far < 0.5 * near);
    // Half of the sum, less the radio's search for a slower rate.
    let half = (near + far) / 2.0;
    assert!((0.7 * half..1.05 * half).contains(&line), "{line} {half}");
    let seen = throughput(&walk, AIR, Load::USUAL, TIME);
    // It queues less than a full queue, of which the radio loses some until it has found the slower
    // rate.
    assert!((0.7 * line..1.05 * half).contains(&seen.mbit), "{seen:?}");
}

#[test]
fn a_foreground_takes_its_part() {
    let load = Load {
        foreground_mbit: 160,
        ..Load::USUAL
    };
    let setting = setting(&[35.0]);
    let alone = throughput(&setting, AIR, Load::USUAL, TIME);
    let beside = throughput(&setting, AIR, load, TIME);
    let [arrives, high_ms] = beside.foreground;
    assert!(arrives > 0.95, "{beside:?}");
    assert!((1.0..15.0).contains(&high_ms), "{beside:?}");
    assert!(beside.mbit < alone.mbit - 100.0, "{beside:?}");
    assert_eq!(alone.foreground, [0.0, 0.0]);
}
