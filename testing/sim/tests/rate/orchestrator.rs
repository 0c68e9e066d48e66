//! The buffer orchestrator on paths of one hop.

use std::time::Duration;

use airdma_sim::Time;
use airdma_transport::rate::{Aim, BufferOrchestrator, Rate, RateController};

use crate::path::{Path, Seen, Setup, mbit, ms, restless, steady};

fn throughput(setup: Setup) -> Path<BufferOrchestrator> {
    Path::new(BufferOrchestrator::new(Aim::Throughput), setup)
}

fn latency(setup: Setup) -> Path<BufferOrchestrator> {
    Path::new(BufferOrchestrator::new(Aim::Latency), setup)
}

fn report(name: &str, seen: &mut Seen) {
    let (used, lost, longest) = (seen.utilisation() * 100.0, seen.lost, seen.queue_longest);
    let (median, p99, most) = (seen.wait_ms(0.5), seen.wait_ms(0.99), seen.wait_ms(1.0));
    eprintln!(
        "{name:44} used {used:5.1} %, lost {lost:8} B, queue {longest:8} B, wait {median:5.1} / {p99:5.1} / {most:5.1} ms"
    );
}

fn changing(seed: u64) -> Setup {
    Setup {
        line: restless(seed, mbit(650), mbit(50), mbit(1_000)),
        feedback_ms: (1, 25),
        feedback_loss: 0.3,
        seed,
        ..Setup::default()
    }
}

#[test]
fn a_steady_line_fills_soon_with_its_queue_at_the_target() {
    let mut path = throughput(Setup::default());
    let ramp = path.time_to_line_rate();
    path.run(ms(100));
    let mut seen = path.run(ms(5_000));
    report(&format!("steady (full after {ramp:?})"), &mut seen);
    assert!(ramp <= ms(40), "{ramp:?}");
    assert!(seen.utilisation() > 0.999 && seen.lost == 0);
    let target = mbit(650).bytes_in(ms(4));
    assert!(
        seen.queue_longest < target * 3 / 2,
        "{}",
        seen.queue_longest
    );
}

#[test]
fn a_changing_line_stays_full_with_late_and_lost_feedback() {
    for seed in 0..4 {
        let mut path = throughput(changing(seed));
        path.run(ms(200));
        let mut seen = path.run(ms(10_000));
        report(&format!("changing, seed {seed}"), &mut seen);
        assert!(seen.utilisation() >= 0.95, "seed {seed}");
        assert_eq!(seen.lost, 0, "seed {seed}");
    }
}

#[test]
fn for_latency_the_queue_is_short_and_the_line_still_busy() {
    for seed in 0..4 {
        let mut path = latency(changing(seed));
        path.run(ms(200));
        let mut seen = path.run(ms(10_000));
        report(&format!("latency, seed {seed}"), &mut seen);
        assert!(seen.utilisation() >= 0.85, "seed {seed}");
        assert!(seen.wait_ms(0.99) < 10.0, "seed {seed}");
        assert_eq!(seen.lost, 0, "seed {seed}");
    }
}

#[test]
fn a_queue_that_nobody_shows_is_seen_by_how_long_packets_take() {
    for (aim, seed) in [(Aim::Throughput, 1), (Aim::Latency, 2)] {
        let setup = Setup {
            line: restless(seed, mbit(650), mbit(50), mbit(1_000)),
            is_queue_seen: false,
            feedback_ms: (1, 5),
            feedback_loss: 0.3,
            ..Setup::default()
        };
        let mut path = Path::new(BufferOrchestrator::new(aim), setup);
        path.run(ms(500));
        let mut seen = path.run(ms(20_000));
        report(&format!("hidden queue, {aim:?}, seed {seed}"), &mut seen);
        assert!(seen.utilisation() >= 0.90, "{aim:?}");
        assert!(seen.wait_ms(0.99) < 15.0, "{aim:?}");
        assert_eq!(seen.lost, 0, "{aim:?}");
    }
}

#[test]
fn a_hidden_queue_does_not_grow_over_time() {
    let setup = Setup {
        line: steady(mbit(100)),
        is_queue_seen: false,
        ..Setup::default()
    };
    let mut path = throughput(setup);
    path.run(ms(30_000));
    let mut seen = path.run(ms(10_000));
    report("hidden queue, steady, after 30 s", &mut seen);
    assert!(seen.utilisation() > 0.97 && seen.wait_ms(0.99) < 10.0);
}

#[test]
fn a_line_at_a_hundredth_loses_nothing_and_refills_at_once() {
    let line = |now: Time| {
        let is_slow = (1_000_000_000..2_000_000_000).contains(&now.as_nanos());
        mbit(if is_slow { 6 } else { 650 })
    };
    let setup = Setup {
        line: Box::new(line),
        queue_bytes: 1 << 20,
        feedback_ms: (2, 10),
        ..Setup::default()
    };
    let mut path = throughput(setup);
    path.run(ms(1_000));
    let mut slow = path.run(ms(1_000));
    report("line at 1 %", &mut slow);
    assert_eq!(slow.lost, 0);
    assert!(slow.utilisation() > 0.95);
    let back = path.time_to_line_rate();
    eprintln!("back at the line's rate after {back:?}");
    assert!(back <= ms(80), "{back:?}");
}

#[test]
fn a_program_that_stops_reading_stops_the_sender() {
    let application = |now: Time| {
        let stands = (1_000_000_000..4_000_000_000).contains(&now.as_nanos());
        if stands { Rate::ZERO } else { mbit(2_000) }
    };
    let setup = Setup {
        application: Box::new(application),
        application_bytes: 2 << 20,
        feedback_ms: (2, 4),
        ..Setup::default()
    };
    let mut path = throughput(setup);
    path.run(ms(1_000));
    let first = path.run(ms(200));
    let stalled = path.run(ms(2_800));
    eprintln!(
        "stalled: lost {} B, then {} B in 2.8 s",
        first.lost, stalled.carried
    );
    assert_eq!(first.lost + stalled.lost, 0);
    assert!(stalled.carried < 64 * 1024, "{}", stalled.carried);
    let back = path.time_to_line_rate();
    eprintln!("back at the line's rate after {back:?}");
    assert!(back <= ms(50), "{back:?}");
}

#[test]
fn a_slow_program_sets_the_rate_and_never_runs_dry() {
    for (feedback_ms, every, bytes) in [
        ((2, 4), 2, 2 << 20),
        ((2, 4), 6, 256 << 10),
        ((1, 25), 6, 2 << 20),
        ((25, 25), 6, 2 << 20),
    ] {
        let setup = Setup {
            application: steady(mbit(200)),
            application_bytes: bytes,
            feedback_ms,
            feedback_every: ms(every),
            feedback_loss: 0.3,
            ..Setup::default()
        };
        let mut path = throughput(setup);
        let first = path.run(ms(500));
        let seen = path.run(ms(5_000));
        let share = seen.received as f64 / mbit(200).bytes_in(ms(5_000)) as f64 * 100.0;
        let lost = first.lost + seen.lost;
        eprintln!(
            "slow program, feedback {feedback_ms:?} every {every} ms: {share:.1} %, lost {lost}"
        );
        assert!(share >= 98.0 && lost == 0, "{share} {lost}");
    }
}

#[test]
fn a_program_that_reads_large_pieces_never_waits() {
    // 20 MB/s, a megabyte each 50 ms, in one step of the model.
    let mut taken = 0;
    let application = move |now: Time| {
        let pieces = now.as_nanos() / 50_000_000;
        let takes = pieces > taken;
        taken = pieces;
        Rate::of(u64::from(takes) * 1_000_000, Duration::from_micros(20))
    };
    let setup = Setup {
        application: Box::new(application),
        application_bytes: 16_000_000,
        feedback_ms: (2, 4),
        feedback_every: ms(10),
        ..Setup::default()
    };
    let mut path = throughput(setup);
    let first = path.run(ms(2_000));
    let seen = path.run(ms(5_000));
    let (share, lost) = (seen.received as f64 / 1e8, first.lost + seen.lost);
    eprintln!("program that takes pieces: {share:.3}, lost {lost}");
    assert!(share >= 0.98 && lost == 0, "{share} {lost}");
}

#[test]
fn without_feedback_the_rate_is_held_and_then_decays_to_a_probe() {
    let setup = Setup {
        is_deaf: |now| (1_000_000_000..3_000_000_000).contains(&now.as_nanos()),
        ..Setup::default()
    };
    let mut path = throughput(setup);
    path.run(ms(1_000));
    path.run(ms(50));
    let held = path.controller.rate();
    assert!(held > mbit(400), "{held:?}");
    path.run(ms(900));
    let probe = path.controller.rate();
    assert_eq!(probe, Rate::from_bytes_per_s(64 * 1024));
    path.run(ms(1_050));
    let back = path.time_to_line_rate();
    eprintln!("after two seconds without feedback: line rate after {back:?}");
    assert!(back <= Duration::from_millis(200), "{back:?}");
}

#[test]
fn an_intermittent_sender_keeps_its_rate_without_a_timer() {
    let setup = Setup {
        offers: |now| now.as_nanos() % 500_000_000 < 100_000_000,
        ..Setup::default()
    };
    let mut path = throughput(setup);
    for _ in 0..4 {
        path.run(ms(50));
        let seen = path.run(ms(40));
        assert!(seen.utilisation() > 0.99, "{}", seen.utilisation());
        path.run(ms(400));
        assert_eq!(
            (path.queue_bytes(), path.controller.poll_timeout()),
            (0, None)
        );
        path.run(ms(10));
    }
}
