//! Use of bundles ([`airdma_wire::bundle`]), which IP cuts into fragments.
//!
//! A lost fragment takes the whole bundle along, so bundles are given up on lossy paths. Reports
//! tell the number of missing packets. With bundles, these are counted as the bundles that they
//! fill: each was one loss, of one frame. Reports cover requests only, so only requests are
//! bundled, and only the first time ([`airdma_transport::QueuePair::sends_new`]): packets that a
//! path always loses in bundles, as one that blocks fragments, are repeated singly.
//!
//! | parameter | value | reason |
//! |---|---|---|
//! | given up above | 1 frame of 1,000 | SMUFF |
//! | detected by | 8 losses more than that | fewer are chance |
//! | and at the latest after | 16 losses in 30 s | the receiver keeps the other fragments of each (on Linux for 30 s, `ipfrag_time`, some 100 KB of 4 MB, `ipfrag_high_thresh`); without room for more, it reassembles no fragments at all |
//! | tried again below | 1 frame of 2,000 | hysteresis |
//! | and not before | 30 s, twice as long each time, 16 min at most | the receiver has dropped the fragments by then |
//! | 30 s again after | bundles that lasted longer than the last pause | the path has changed |
//!
//! This module decides on bundles; the port fills and cuts them, and [`super::exchange`] has the
//! agreement on them.

use super::pace::{MISSED_MAX, OVERHEAD_BYTES, Told};
use super::peer::AirPeer;
use super::{Air, AirIndex};
use crate::tables::qp_table::QpTable;
use airdma_transport::Time;
use airdma_wire::bundle::BUNDLE_PACKETS_MAX;
use airdma_wire::{Bth, ICRC_LEN, Qpn};
use std::time::Duration;

/// Bytes of a fragment on most interfaces.
const FRAME_BYTES: u64 = 1500;
/// Most bytes of a bundle: a valid IP packet.
const BUNDLE_BYTES_MAX: u64 = 65_000;

/// Least number of frames for each loss: with fewer, bundles are given up.
const FRAMES_PER_LOSS: u64 = 1_000;
const FRAMES_PER_LOSS_AGAIN: u64 = 2_000;
const LOSSES_BEYOND: u64 = 8;
const LOSSES_MAX: u64 = 16;
const LOSSES_TIME: Duration = Duration::from_secs(30);
const PAUSE_MIN: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(16 * 60);
/// Largest debt that is remembered: more would take longer than a pause to pay.
const DEBT_MAX: u64 = 2 * DEBT_OFF;
/// Debt at which bundles are given up.
const DEBT_OFF: u64 = LOSSES_BEYOND * FRAMES_PER_LOSS * FRAME_BYTES;

impl Air {
    /// Whether packets to the peer leave in bundles.
    pub(crate) fn bundles(&self, index: AirIndex) -> bool {
        self.peers[index.place()].takes_bundles()
    }
}

impl Air {
    /// Whether a packet of a bundle is from a peer that was told that we accept bundles. Packets
    /// for another process are that process's.
    #[cold]
    pub(crate) fn may_bundle(&mut self, qps: &mut QpTable, packet: &[u8]) -> bool {
        let Some(&[a, b, c]) = packet.get(5..8) else {
            return true;
        };
        let Some(index) = qps.find(Qpn::new(u32::from_be_bytes([0, a, b, c]))) else {
            return true;
        };
        let connection = qps.slot(index).and_then(|slot| slot.connection);
        let air = connection.and_then(|connection| connection.air);
        air.is_some_and(|air| self.peer(air).may_bundle)
    }
}

impl AirPeer {
    /// Applies an agreement on bundles, which is new or known. Only reports show the losses.
    pub(super) fn agree_on_bundles(
        &mut self,
        is_new: bool,
        agreed: bool,
        has_reports: bool,
        begin: impl FnOnce() -> Bundling,
    ) {
        if is_new {
            self.bundling = None;
        }
        // A silent peer was told that we accept bundles, and may still send some; another process
        // was not.
        if is_new && self.agreed.is_some() {
            self.may_bundle = false;
        }
        self.may_bundle |= agreed;
        if agreed && has_reports {
            self.bundling.get_or_insert_with(begin);
        } else {
            self.bundling = None;
        }
    }
}

/// State of the losses on the path to a peer that accepts bundles.
#[derive(Debug)]
pub(super) struct Bundling {
    /// Bytes of a packet, as reports count them.
    packet_bytes: u64,
    packets_max: u64,
    is_on: bool,
    /// Time of the last change between the two.
    since: Time,
    /// Pause before they are tried again.
    pause: Duration,
    /// Bytes that must still arrive to make up for losses.
    debt: u64,
    /// Bundles lost since `since`.
    losses: u64,
    losses_since: Time,
    told: Option<Told>,
}

impl Bundling {
    /// Starts with bundles; `payload` is that of most packets.
    pub(super) fn new(payload: u32, now: Time) -> Self {
        let packet = u64::from(payload) + Bth::LEN as u64;
        let most = BUNDLE_BYTES_MAX / (packet + ICRC_LEN as u64);
        Bundling {
            packet_bytes: packet + OVERHEAD_BYTES,
            packets_max: most.min(BUNDLE_PACKETS_MAX as u64),
            is_on: true,
            since: now,
            // The first pause is twice as long.
            pause: PAUSE_MIN / 2,
            debt: 0,
            losses: 0,
            losses_since: now,
            told: None,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Evaluates a report of the peer. Returns whether bundles were given up.
    pub(super) fn take_report(&mut self, now: Time, told: Told) -> bool {
        // Earlier losses do not count.
        let before = self.told.replace(told).unwrap_or(told);
        let began_anew = told.received_bytes < before.received_bytes;
        let (bytes, missed) = if began_anew {
            (told.received_bytes, told.missed_packets)
        } else {
            let missed = told.missed_packets.wrapping_sub(before.missed_packets);
            (told.received_bytes - before.received_bytes, missed)
        };
        let missed = u64::from(missed.min(MISSED_MAX));
        if self.is_on {
            self.take_bundles(now, bytes, missed.div_ceil(self.packets_max))
        } else {
            self.take_packets(now, bytes, missed);
            false
        }
    }

    fn take_bundles(&mut self, now: Time, bytes: u64, losses: u64) -> bool {
        if now.duration_since(self.losses_since) >= LOSSES_TIME {
            self.losses_since = now;
            self.losses = 0;
        }
        self.losses += losses;
        self.owe(losses * FRAMES_PER_LOSS * FRAME_BYTES, bytes);
        let gives_up = self.debt >= DEBT_OFF || self.losses >= LOSSES_MAX;
        if gives_up {
            let lasted = now.duration_since(self.since);
            self.pause = if lasted > self.pause {
                PAUSE_MIN
            } else {
                (self.pause * 2).min(PAUSE_MAX)
            };
            self.turn(now, false);
        }
        gives_up
    }

    fn take_packets(&mut self, now: Time, bytes: u64, losses: u64) {
        self.owe(losses * FRAMES_PER_LOSS_AGAIN * self.packet_bytes, bytes);
        if self.debt == 0 && now.duration_since(self.since) >= self.pause {
            self.turn(now, true);
        }
    }

    fn owe(&mut self, more: u64, paid: u64) {
        self.debt = (self.debt + more).saturating_sub(paid).min(DEBT_MAX);
    }

    fn turn(&mut self, now: Time, is_on: bool) {
        self.is_on = is_on;
        self.since = now;
        self.losses = 0;
        self.losses_since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use airdma_transport::ReorderMemory;

    /// A path of 400 Mb/s, with a report every 10 ms.
    const BYTES: u64 = 500_000;
    const PACKET: u64 = 1_024 + 12 + OVERHEAD_BYTES;

    struct Path {
        bundling: Bundling,
        now: Time,
        told: Told,
        lost: f64,
    }

    impl Path {
        fn new() -> Self {
            let told = Told {
                at_us: 0,
                received_bytes: 0,
                marked_bytes: 0,
                missed_packets: 0,
            };
            let mut path = Path {
                bundling: Bundling::new(1024, Time::ZERO),
                now: Time::ZERO,
                told,
                lost: 0.0,
            };
            assert!(!path.bundling.take_report(path.now, told));
            path
        }

        /// Loses frames evenly, at this rate. Returns the time until bundles were given up or tried
        /// again, if they were.
        fn pass(&mut self, time: Duration, loss: f64) -> Option<Duration> {
            let (begin, was_on) = (self.now, self.bundling.is_on());
            while self.now.duration_since(begin) < time {
                self.now = self.now + Duration::from_millis(10);
                self.told.at_us = self.told.at_us.wrapping_add(10_000);
                let frame = if was_on { 1_500 } else { PACKET };
                self.lost += loss * (BYTES / frame) as f64;
                let units = self.lost as u32;
                self.lost -= f64::from(units);
                // All packets of a lost bundle are missing.
                self.told.missed_packets += if was_on { units * 62 } else { units };
                self.told.received_bytes += BYTES;
                let stopped = self.bundling.take_report(self.now, self.told);
                assert_eq!(stopped, was_on && !self.bundling.is_on());
                if self.bundling.is_on() != was_on {
                    return Some(self.now.duration_since(begin));
                }
            }
            None
        }
    }

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_told_peer_may_send_bundles_until_its_process_changes() {
        let address = std::net::IpAddr::from([192, 0, 2, 1]);
        let mut peer = AirPeer::new(
            (address.into(), address.into()),
            Some(0),
            0,
            ReorderMemory::new(0),
        );
        let mut agree = |instance: Option<u64>, agreed: bool| {
            let is_new = peer.agreed != instance;
            peer.note_agreed(instance);
            let begin = || Bundling::new(1024, Time::ZERO);
            peer.agree_on_bundles(is_new, agreed, true, begin);
            (peer.takes_bundles(), peer.may_bundle)
        };
        assert_eq!(agree(None, false), (false, false));
        assert_eq!(agree(Some(1), true), (true, true));
        // Without an answer its present features are unknown, but it was told.
        assert_eq!(agree(None, false), (false, true));
        assert_eq!(agree(Some(1), true), (true, true));
        assert_eq!(agree(Some(2), false), (false, false));
    }

    #[test]
    fn bundles_leave_while_hardly_anything_is_lost() {
        let mut path = Path::new();
        // 10 in 30 s.
        assert_eq!(path.pass(300 * S, 0.000_01), None);
    }

    #[test]
    fn they_are_given_up_at_once_when_much_is_lost() {
        for (loss, ms) in [(1.0, 10), (0.05, 10), (0.01, 40), (0.003, 200)] {
            let after = Path::new().pass(30 * S, loss).expect("given up");
            assert!(after <= Duration::from_millis(ms), "{loss}: {after:?}");
        }
    }

    #[test]
    fn a_lost_bundle_is_one_loss_however_many_packets_it_had() {
        let mut path = Path::new();
        path.told.missed_packets = 62 * 7;
        assert!(!path.bundling.take_report(path.now, path.told));
        path.told.missed_packets += 1;
        assert!(path.bundling.take_report(path.now, path.told), "the eighth");
    }

    #[test]
    fn bundles_end_before_the_receivers_fragments_run_out_of_room() {
        let mut path = Path::new();
        // 20 in 30 s, of a million frames.
        let after = path.pass(60 * S, 0.000_02).expect("given up");
        assert!((20 * S..30 * S).contains(&after), "{after:?}");
    }

    #[test]
    fn they_are_tried_again_when_little_is_lost_and_ever_later() {
        let mut path = Path::new();
        for pause in [30, 60, 120, 240, 480, 960, 960] {
            path.pass(S, 0.01).expect("given up");
            let after = path.pass(2_000 * S, 0.000_2).expect("tried again");
            assert!((pause * S..(pause + 1) * S).contains(&after), "{after:?}");
        }
        // They lasted.
        assert_eq!(path.pass(1_000 * S, 0.0), None);
        path.pass(S, 0.01).expect("given up");
        assert_eq!(path.pass(2_000 * S, 0.0), Some(30 * S));
    }

    #[test]
    fn bundles_are_not_retried_above_half_of_the_loss_limit() {
        let mut path = Path::new();
        path.pass(S, 0.01).expect("given up");
        assert_eq!(path.pass(200 * S, 0.000_7), None);
        // As soon as that has ended.
        let after = path.pass(10 * S, 0.0).expect("tried again");
        assert!(after < S, "{after:?}");
    }

    #[test]
    fn counts_that_begin_anew_are_not_taken_for_losses() {
        let mut path = Path::new();
        path.pass(S, 0.0);
        path.told.missed_packets = 1_000;
        let mut again = Bundling::new(1024, path.now);
        assert!(!again.take_report(path.now, path.told), "of a time before");
        // After a pause all counters are zero.
        path.told.received_bytes = 2_000;
        path.told.at_us = 5_000;
        path.told.missed_packets = 3;
        assert!(!again.take_report(path.now, path.told));
        assert_eq!(again.losses, 1);
    }
}
