//! Guarantees of the medium to its driver.

use core::time::Duration;

use airdma_sim::Random;
use airdma_sim::wifi::{Access, Load, Medium, Outcome, Profile, Rival, StationId};
use airdma_transport::Time;

fn cell(profile: Profile) -> (Medium, StationId, StationId) {
    let mut medium = Medium::new(profile);
    let (a, b) = (medium.add_station(), medium.add_station());
    medium.set_snr(a, b, 20.0);
    let rival = Rival {
        ppdu: Duration::from_micros(700),
        load: Load::OnOff {
            on: Duration::from_millis(3),
            off: Duration::from_millis(7),
        },
    };
    medium.add_rival(rival, Access::BEST_EFFORT);
    (medium, a, b)
}

/// Packets both ways every 100 us for half a second, with the medium advanced every `step`.
fn run(seed: u64, step: Option<Duration>) -> Vec<Outcome> {
    let (mut medium, a, b) = cell(Profile::AX_80);
    let (mut random, mut out) = (Random::new(seed), Vec::new());
    let mut now = Time::ZERO;
    for packet in 0..5_000 {
        let at = Time::ZERO + Duration::from_micros(100) * packet;
        while let Some(next) = medium.poll_at().filter(|&next| next <= at) {
            now = match step {
                Some(step) => (now + step).min(at).max(now),
                None => next,
            };
            medium.advance(now, &mut random, &mut out);
        }
        medium.advance(at, &mut random, &mut out);
        now = at;
        for (from, to) in [(a, b), (b, a)] {
            let entered = medium.enqueue(at, from, to, 1500, u64::from(packet));
            entered.expect("it is not saturated");
        }
    }
    let end = now + Duration::from_secs(1);
    medium.advance(end, &mut random, &mut out);
    out
}

#[test]
fn a_seed_says_all() {
    assert_eq!(run(1, None), run(1, None));
    assert_ne!(run(1, None), run(2, None));
}

/// An emulator may call only every few milliseconds: the results are the same.
#[test]
fn how_often_one_looks_changes_nothing() {
    let closely = run(1, None);
    assert_eq!(closely, run(1, Some(Duration::from_micros(7))));
    assert_eq!(closely, run(1, Some(Duration::from_millis(5))));
    assert_eq!(closely.len(), 10_000);
}

#[test]
fn outcomes_are_not_told_before_they_happen() {
    let (mut medium, a, b) = cell(Profile::AC_80);
    let (mut random, mut out) = (Random::new(3), Vec::new());
    for token in 0..1_000 {
        medium.enqueue(Time::ZERO, a, b, 1500, token).expect("room");
    }
    let mut last = Time::ZERO;
    for step in 0..10_000u64 {
        let now = Time::from_nanos(step * 13_000);
        medium.advance(now, &mut random, &mut out);
        for outcome in out.drain(..) {
            assert!(outcome.at <= now && outcome.at >= last);
            last = outcome.at;
        }
        assert!(medium.poll_at().is_none_or(|at| at >= now));
    }
    assert!(last > Time::ZERO);
}

/// An idle medium takes a packet at the next slot, without backoff: AIFS has long passed.
#[test]
fn an_idle_medium_is_taken_at_once() {
    let mut medium = Medium::new(Profile::AC_80.steady());
    let (a, b) = (medium.add_station(), medium.add_station());
    medium.fix_mcs(a, Some(9));
    let (mut random, mut out) = (Random::new(3), Vec::new());
    let now = Time::from_nanos(5_000_000);
    medium.advance(now, &mut random, &mut out);
    assert_eq!(medium.poll_at(), None);
    medium.enqueue(now, a, b, 1500, 1).expect("room");
    while let Some(at) = medium.poll_at() {
        medium.advance(at, &mut random, &mut out);
    }
    // The PPDU is 44 us and four symbols.
    let ppdu_ns = 44_000 + 5 * 3_600;
    let took = out[0].at.duration_since(now).as_nanos() as u64;
    assert!((ppdu_ns..=ppdu_ns + 9_000).contains(&took), "{took}");
    // A single MPDU is answered by an Ack of 28 us, not by a block ack.
    let airtime = medium.airtime();
    assert_eq!(airtime.answered_ns, ppdu_ns + 16_000 + 28_000);
    assert_eq!(airtime.busy_ns(), airtime.answered_ns);
}

#[test]
#[should_panic(expected = "longer than an MPDU")]
fn what_no_frame_can_carry_is_refused_loudly() {
    let (mut medium, a, b) = cell(Profile::AC_80);
    let _ = medium.enqueue(Time::ZERO, a, b, 11_401, 0);
}
