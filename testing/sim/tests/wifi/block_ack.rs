//! Windows, retries, lifetimes, and the order of delivered packets.

use core::time::Duration;

use airdma_sim::Random;
use airdma_sim::wifi::traffic::OneWay;
use airdma_sim::wifi::{Cause, Fate, Medium, Outcome, Profile, StationId};
use airdma_transport::Time;

struct Cell {
    medium: Medium,
    from: StationId,
    to: StationId,
    random: Random,
    out: Vec<Outcome>,
}

impl Cell {
    fn new(profile: Profile, mcs: u8, snr_db: f64) -> Self {
        let mut medium = Medium::new(profile);
        let (from, to) = (medium.add_station(), medium.add_station());
        medium.set_snr(from, to, snr_db);
        medium.fix_mcs(from, Some(mcs));
        Cell {
            medium,
            from,
            to,
            random: Random::new(2),
            out: Vec::new(),
        }
    }

    fn enqueue(&mut self, now: Time, tokens: core::ops::Range<u64>) {
        for token in tokens {
            let (from, to) = (self.from, self.to);
            let entered = self.medium.enqueue(now, from, to, 1500, token);
            entered.expect("room");
        }
    }

    fn run_until_idle(&mut self) -> Time {
        let mut now = Time::ZERO;
        while let Some(at) = self.medium.poll_at() {
            now = at;
            self.medium.advance(at, &mut self.random, &mut self.out);
        }
        now
    }
}

#[test]
fn a_packet_is_sent_seven_times_and_then_lost() {
    let mut cell = Cell::new(Profile::AC_80.steady(), 9, -30.0);
    cell.enqueue(Time::ZERO, 0..1);
    cell.run_until_idle();
    assert_eq!(cell.out.len(), 1);
    assert_eq!(cell.out[0].fate, Fate::Lost(Cause::Retries));
    let counters = cell.medium.counters(cell.from);
    assert_eq!(counters.mpdus_sent, 7);
    assert_eq!(counters.given_up, 1);
    assert_eq!(cell.medium.backlog(cell.from).packets, 0);
    assert_eq!(cell.medium.backlog(cell.from).bytes, 0);
    // The requests to continue without it end, too.
    assert_eq!(counters.requests, 7);
}

#[test]
fn the_receiver_goes_on_behind_what_was_given_up() {
    let mut cell = Cell::new(Profile::AC_80.steady(), 9, -30.0);
    cell.enqueue(Time::ZERO, 0..10);
    let now = cell.run_until_idle();
    assert_eq!(cell.out.len(), 10);
    let (from, to) = (cell.from, cell.to);
    cell.medium.set_snr(from, to, 40.0);
    cell.enqueue(now, 10..20);
    cell.run_until_idle();
    let delivered: Vec<u64> = cell.out[10..].iter().map(|outcome| outcome.token).collect();
    assert_eq!(delivered, (10..20).collect::<Vec<u64>>());
    assert!(cell.out[10..].iter().all(|o| o.fate == Fate::Delivered));
}

#[test]
fn a_packet_that_is_too_old_is_given_up() {
    let profile = Profile {
        attempts_max: 255,
        ..Profile::AC_80.steady()
    };
    let mut cell = Cell::new(profile, 9, -30.0);
    cell.enqueue(Time::ZERO, 0..200);
    cell.run_until_idle();
    assert_eq!(cell.out.len(), 200);
    for outcome in &cell.out {
        assert_eq!(outcome.fate, Fate::Lost(Cause::Lifetime));
        let age_ms = outcome.at.as_nanos() / 1_000_000;
        assert!((512..600).contains(&age_ms), "{age_ms} ms");
    }
}

/// At a tenth of MPDUs lost, each packet still arrives, in order, once, and never are more open
/// than agreed.
#[test]
fn packets_arrive_once_and_in_order_within_the_window() {
    for (profile, mcs, snr_db) in [
        (Profile::AC_80, 9, 23.5),
        (Profile::AX_80, 11, 28.9),
        (Profile::BE_320, 13, 34.2),
    ] {
        let window = u64::from(profile.window);
        let packets = 2 * window;
        let mut cell = Cell::new(profile.steady(), mcs, snr_db);
        cell.enqueue(Time::ZERO, 0..packets);
        cell.run_until_idle();
        let tokens: Vec<u64> = cell.out.iter().map(|outcome| outcome.token).collect();
        assert_eq!(tokens, (0..packets).collect::<Vec<u64>>());
        assert!(cell.out.iter().all(|o| o.fate == Fate::Delivered));
        let counters = cell.medium.counters(cell.from);
        assert!(counters.mpdus_damaged > packets / 20);
        assert_eq!(cell.medium.widest_window(cell.from, cell.to), window);
    }
}

/// With losses that retries do not repair, each packet still has exactly one end, and what is
/// delivered is in order.
#[test]
fn every_packet_has_one_end() {
    let mut cell = Cell::new(Profile::AX_80.steady(), 7, 17.4);
    cell.enqueue(Time::ZERO, 0..2_000);
    cell.run_until_idle();
    let mut tokens: Vec<u64> = cell.out.iter().map(|outcome| outcome.token).collect();
    let delivered = cell.out.iter().filter(|o| o.fate == Fate::Delivered);
    let order: Vec<u64> = delivered.map(|outcome| outcome.token).collect();
    assert!(order.is_sorted());
    assert!((500..1_900).contains(&order.len()), "{}", order.len());
    tokens.sort_unstable();
    assert_eq!(tokens, (0..2_000).collect::<Vec<u64>>());
    assert!(cell.medium.counters(cell.from).requests > 0);
}

/// A lost answer makes the sender repeat what the receiver has: nothing arrives twice.
#[test]
fn what_is_repeated_is_handed_on_once() {
    // Two of three short packets get through here, and nine of ten answers.
    let mut cell = Cell::new(Profile::AC_80.steady(), 0, -1.5);
    let (from, to) = (cell.from, cell.to);
    for token in 0..1_000 {
        let entered = cell.medium.enqueue(Time::ZERO, from, to, 100, token);
        entered.expect("room");
    }
    cell.run_until_idle();
    let mut tokens: Vec<u64> = cell.out.iter().map(|outcome| outcome.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..1_000).collect::<Vec<u64>>());
    let counters = cell.medium.counters(cell.from);
    assert!(counters.unanswered > 0);
    // More was sent again than was damaged.
    assert!(counters.mpdus_sent > 1_000 + counters.mpdus_damaged);
}

/// A window stall: one MPDU that is lost again and again stops all behind it. The larger window
/// keeps sending at the same losses.
#[test]
fn a_lost_head_stalls_a_small_window() {
    let goodput = |window, snr_db| {
        let profile = Profile {
            window,
            ..Profile::AX_80.steady()
        };
        let mut medium = Medium::new(profile);
        let (from, to) = (medium.add_station(), medium.add_station());
        medium.set_snr(from, to, snr_db);
        medium.fix_mcs(from, Some(7));
        let mut flow = OneWay::new(medium, from, to, 3);
        flow.run_for(Duration::from_secs(1))
    };
    let (clean, lossy) = (goodput(64, 40.0), goodput(64, 17.8));
    // A third of MPDUs is lost: more than that is missing, as aggregates stay small.
    assert!(lossy.mpdus_per_ppdu < 0.85 * clean.mpdus_per_ppdu);
    assert!(lossy.goodput_mbit < 0.6 * clean.goodput_mbit);
    assert!(goodput(256, 17.8).mpdus_per_ppdu > 3.0 * lossy.mpdus_per_ppdu);
}

#[test]
fn a_full_queue_refuses() {
    let mut cell = Cell::new(Profile::AC_80.steady(), 9, 40.0);
    let room = cell.medium.profile().queue_packets_max as u64;
    cell.enqueue(Time::ZERO, 0..room);
    let (from, to) = (cell.from, cell.to);
    let refused = cell.medium.enqueue(Time::ZERO, from, to, 1500, room);
    refused.expect_err("it is full");
    assert_eq!(cell.medium.counters(from).overflowed, 1);
    let backlog = cell.medium.backlog(from);
    assert_eq!(backlog.packets as u64, room);
    assert_eq!(backlog.bytes, room * 1500);
    cell.run_until_idle();
    assert_eq!(cell.out.len() as u64, room);
    // 25 ms at the ideal goodput of 668 Mb/s.
    let last = cell.out.last().expect("some").at.as_nanos();
    assert!((23_000_000..27_000_000).contains(&last), "{last}");
}
