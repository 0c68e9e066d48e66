//! Whether packets to a peer leave in bundles ([`airdma_wire::bundle`]), which IP cuts into fragments, and from whom they are taken.
//!
//! A fragment that is lost takes the whole bundle along, so bundles are given up where packets get lost. Reports tell how many packets
//! are missing. While there are bundles, those are counted as the bundles that they fill: each was one loss, of one frame. Reports
//! tell of requests alone, so only they are in bundles, and only the first time ([`airdma_transport::QueuePair::sends_new`]): what a path loses of
//! them for good, as one that lets no fragments through, always comes by itself.
//!
//! | parameter | value | why |
//! |---|---|---|
//! | given up above | 1 frame of 1,000 | SMUFF |
//! | which is noticed by | 8 losses more than that | fewer are chance |
//! | and at the latest after | 16 losses in 30 s | the receiver keeps the other fragments of each (on Linux for 30 s, `ipfrag_time`, some 100 KB of 4 MB, `ipfrag_high_thresh`); when it has no room for more, no fragments of anybody come together |
//! | tried again below | 1 frame of 2,000 | so that it does not go to and fro |
//! | and not before | 30 s, twice as long each time, 16 min at most | the receiver has let go of the fragments by then |
//! | 30 s again after | bundles that lasted longer than the last pause | it was another path, or another day |
//!
//! Whatever decides about them is here; how they are filled and cut is the port's, and what is agreed on them is in [`super::exchange`].

use super::pace::{MISSED_MAX, OVERHEAD_BYTES, Told};
use super::peer::AirPeer;
use super::{Air, AirIndex};
use crate::tables::qp_table::QpTable;
use airdma_transport::Time;
use airdma_wire::bundle::BUNDLE_PACKETS_MAX;
use airdma_wire::{Bth, ICRC_LEN, Qpn};
use std::time::Duration;

/// A fragment, as most interfaces take it.
const FRAME_BYTES: u64 = 1500;
/// Of a bundle: a legal IP packet.
const BUNDLE_BYTES_MAX: u64 = 65_000;

/// For each loss so many frames must come, or bundles are given up.
const FRAMES_PER_LOSS: u64 = 1_000;
const FRAMES_PER_LOSS_AGAIN: u64 = 2_000;
const LOSSES_BEYOND: u64 = 8;
const LOSSES_MAX: u64 = 16;
const LOSSES_TIME: Duration = Duration::from_secs(30);
const PAUSE_MIN: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(16 * 60);
/// More debt than this is not remembered: it would take longer than a pause to be paid.
const DEBT_MAX: u64 = 2 * DEBT_OFF;
/// Bundles are given up.
const DEBT_OFF: u64 = LOSSES_BEYOND * FRAMES_PER_LOSS * FRAME_BYTES;

impl Air {
    /// Whether packets to the peer leave in bundles now.
    pub(crate) fn bundles(&self, index: AirIndex) -> bool {
        self.peers[index.place()].takes_bundles()
    }
}

impl Air {
    /// Whether a packet of a bundle is from somebody who was told that we take bundles. One for another process is that one's.
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
    /// It has `agreed` on them or not, and what was agreed on with it `is_new` or known. Only with reports is it known what gets lost.
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
        // Who does not answer any more was told that we take them, and may send some still; another process was not.
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

/// What is known of the losses on the way to a peer that takes bundles.
#[derive(Debug)]
pub(super) struct Bundling {
    /// Of a packet, as reports count them.
    packet_bytes: u64,
    packets_max: u64,
    is_on: bool,
    /// Since when that is so.
    since: Time,
    /// Before they are tried again.
    pause: Duration,
    /// Bytes that have yet to come for what was lost.
    debt: u64,
    /// Bundles lost since then.
    losses: u64,
    losses_since: Time,
    told: Option<Told>,
}

impl Bundling {
    /// They leave. `payload` is that of most packets.
    pub(super) fn new(payload: u32, now: Time) -> Self {
        let packet = u64::from(payload) + Bth::LEN as u64;
        let most = BUNDLE_BYTES_MAX / (packet + ICRC_LEN as u64);
        Bundling {
            packet_bytes: packet + OVERHEAD_BYTES,
            packets_max: most.min(BUNDLE_PACKETS_MAX as u64),
            is_on: true,
            since: now,
            // Twice as long as this comes first.
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

    /// The peer has told what it received. Whether bundles were given up.
    pub(super) fn take_report(&mut self, now: Time, told: Told) -> bool {
        // What was before is nobody's fault.
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

    /// A path of 400 Mb/s, told of every 10 ms.
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

        /// Frames are lost evenly, at this rate. How long it took until bundles were given up, or tried again, if they were.
        fn pass(&mut self, time: Duration, loss: f64) -> Option<Duration> {
            let (begin, was_on) = (self.now, self.bundling.is_on());
            while self.now.duration_since(begin) < time {
                self.now = self.now + Duration::from_millis(10);
                self.told.at_us = self.told.at_us.wrapping_add(10_000);
                let frame = if was_on { 1_500 } else { PACKET };
                self.lost += loss * (BYTES / frame) as f64;
                let units = self.lost as u32;
                self.lost -= f64::from(units);
                // Of a bundle all packets are missing.
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
    fn who_was_told_that_we_take_them_may_send_them_until_another_process_is_there() {
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
        // It does not answer: what it can do now is not known, but it was told.
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
    fn they_are_given_up_before_the_receiver_has_no_room_for_fragments() {
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
    fn they_are_not_tried_again_while_more_than_half_of_the_limit_is_lost() {
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
        // After a pause all is zero.
        path.told.received_bytes = 2_000;
        path.told.at_us = 5_000;
        path.told.missed_packets = 3;
        assert!(!again.take_report(path.now, path.told));
        assert_eq!(again.losses, 1);
    }
}
