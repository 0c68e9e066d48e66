//! Rate control and fading on the medium.

use core::time::Duration;

use airdma_sim::wifi::traffic::OneWay;
use airdma_sim::wifi::{Interference, Medium, Profile};

fn flow(profile: Profile, snr_db: f64, seed: u64) -> OneWay {
    let mut medium = Medium::new(profile);
    let (from, to) = (medium.add_station(), medium.add_station());
    medium.set_snr(from, to, snr_db);
    OneWay::new(medium, from, to, seed)
}

fn fixed(profile: Profile, snr_db: f64, mcs: u8) -> f64 {
    let mut flow = flow(profile, snr_db, 1);
    flow.medium.fix_mcs(flow.from, Some(mcs));
    flow.run_for(Duration::from_secs(1)).goodput_mbit
}

#[test]
fn it_converges_to_the_best_scheme() {
    for profile in [Profile::AC_80, Profile::AX_160, Profile::BE_320] {
        for snr_db in [3.5, 9.5, 16.0, 20.0, 25.0, 45.0] {
            let schemes = 0..=profile.phy.mcs_max();
            let best = schemes
                .map(|mcs| fixed(profile.clone().steady(), snr_db, mcs))
                .fold(0.0, f64::max);
            let mut flow = flow(profile.clone().steady(), snr_db, 2);
            flow.run_for(Duration::from_secs(1));
            let seen = flow.run_for(Duration::from_secs(1)).goodput_mbit;
            eprintln!(
                "{} at {snr_db} dB: best fixed {best:.0}, seen {seen:.0} Mb/s",
                profile.name
            );
            assert!(seen > 0.9 * best, "{} at {snr_db} dB", profile.name);
        }
    }
}

/// Within 400 ms of a step of 20 dB the goodput is that of the new SNR.
#[test]
fn it_follows_a_step() {
    let mut flow = flow(Profile::AC_80.steady(), 30.0, 3);
    let (from, to) = (flow.from, flow.to);
    flow.run_for(Duration::from_secs(1));
    let strong = flow.run_for(Duration::from_secs(1)).goodput_mbit;
    for _ in 0..3 {
        flow.medium.set_snr(from, to, 10.0);
        flow.run_for(Duration::from_millis(400));
        let weak = flow.run_for(Duration::from_millis(200));
        assert!(weak.goodput_mbit > 0.85 * fixed(Profile::AC_80.steady(), 10.0, 3));
        assert!(weak.lost < 0.01, "{}", weak.lost);
        flow.medium.set_snr(from, to, 30.0);
        flow.run_for(Duration::from_millis(400));
        let again = flow.run_for(Duration::from_millis(200)).goodput_mbit;
        assert!(again > 0.85 * strong, "{again} of {strong}");
    }
}

/// SMUFF (NSDI 2024, figure 10): the goodput changes by more than a factor of two within 40 ms in
/// less than 1 % of the cases.
#[test]
fn the_rate_rarely_changes_by_half_in_40_ms() {
    for (profile, snr_db) in [(Profile::AC_80, 25.0), (Profile::AC_80, 20.0)] {
        let mut flow = flow(profile.clone(), snr_db, 4);
        flow.run_for(Duration::from_secs(1));
        let window = Duration::from_millis(40);
        let rates: Vec<f64> = (0..1_000)
            .map(|_| flow.run_for(window).goodput_mbit)
            .collect();
        let changed = |pair: &&[f64]| pair[1] > 2.0 * pair[0] || pair[1] < 0.5 * pair[0];
        let changes = rates.windows(2).filter(changed).count();
        let (low, high) = rates.iter().fold((f64::MAX, 0.0f64), |(low, high), &rate| {
            (low.min(rate), high.max(rate))
        });
        eprintln!(
            "{} at {snr_db} dB: {low:.0} to {high:.0} Mb/s, {changes} of 1,000 changes",
            profile.name
        );
        assert!(changes < 10, "{changes}");
        assert!(high > 1.3 * low, "it moves");
    }
}

/// At the edge of the cell losses come through; ten dB further in they do not.
#[test]
fn losses_come_through_at_the_edge_only() {
    let lost = |snr_db| {
        let mut flow = flow(Profile::AC_80, snr_db, 5);
        flow.run_for(Duration::from_secs(1));
        flow.run_for(Duration::from_secs(5)).lost
    };
    let (edge, near, inside) = (lost(-1.0), lost(1.0), lost(12.0));
    eprintln!("lost at -1 dB {edge:.4}, at 1 dB {near:.4}, at 12 dB {inside:.6}");
    assert!(edge > 0.02 && edge < 0.98);
    assert!(near > 0.0 && near < edge);
    assert!(inside < 1e-4);
}

/// Bursts of noise longer than all retries together: the loss that the MAC does not repair.
#[test]
fn bursts_of_noise_lose_what_retries_do_not_repair() {
    let lost = |interference| {
        let profile = Profile {
            interference,
            ..Profile::AC_80
        };
        let mut flow = flow(profile, 12.0, 6);
        flow.run_for(Duration::from_secs(1));
        flow.run_for(Duration::from_secs(10)).lost
    };
    let noisy = lost(Some(Interference {
        rise_db: 15.0,
        on: Duration::from_millis(20),
        off: Duration::from_millis(500),
    }));
    let quiet = lost(None);
    eprintln!("lost with bursts {noisy:.5}, without {quiet:.6}");
    assert!((2e-4..1e-2).contains(&noisy));
    assert!(quiet < noisy / 10.0);
}
