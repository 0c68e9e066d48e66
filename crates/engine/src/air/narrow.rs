//! Paths on which packets longer than the path MTU vanish, as behind a bridge or a tunnel whose MTU
//! is less than the interface's.
//!
//! A queue pair whose oldest packet is long, and does not arrive however often it is sent, shows
//! it. The path then counts as narrow for a while, and the peer is told by the next Hello that no
//! long packets may come. Both ends do what they do where an interface's MTU shrinks, and packets
//! of messages in progress, whose lengths and PSNs stay, leave in [pieces](airdma_wire::piece). The
//! path is remembered when the peer is gone, and tried again.
//!
//! | parameter | value | reason |
//! |---|---|---|
//! | found by | the fourth packet that does not arrive, while the peer has later ones, or within 250 ms of silence of a process that is not known to be [stopped](crate::host::presence) | the path of a first message may be narrow, and few paths lose 1 of 20 packets |
//! | the same where a later long packet has arrived | the ninth | it has carried them; nine losses in a row are no chance |
//! | tried again after | 30 s, twice as long each time it is found again, 16 min at most | each trial delays a message |
//! | 30 s again after | long packets that arrived for longer than the last pause | the path has changed |
//! | remembered | the last 64 paths | a peer may have many addresses |

use super::{Air, AirIndex, AirView};
use crate::counter_names::EngineCounter;
use crate::index::QpIndex;
use airdma_transport::Time;
use airdma_wire::Neighbour;
use std::collections::VecDeque;
use std::time::Duration;

const PAUSE_MIN: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(16 * 60);
/// Most paths remembered; the oldest is forgotten first.
const NARROW_MAX: usize = 64;

/// A path on which long packets vanished.
#[derive(Debug)]
struct Narrow {
    /// The peer's address, and ours.
    ends: (Neighbour, Neighbour),
    until: Time,
    pause: Duration,
}

/// All such paths, the last one found first.
#[derive(Debug, Default)]
pub(super) struct NarrowPaths(VecDeque<Narrow>);

impl NarrowPaths {
    /// Until when the path counts as narrow.
    pub(super) fn until(&self, ends: (Neighbour, Neighbour), now: Time) -> Option<Time> {
        let path = self.0.iter().find(|path| path.ends == ends)?;
        (path.until > now).then_some(path.until)
    }

    /// A path was found to be narrow. Returns until when it counts as that.
    fn note(&mut self, ends: (Neighbour, Neighbour), now: Time) -> Time {
        let known = self.0.iter().position(|path| path.ends == ends);
        let known = known.and_then(|place| self.0.remove(place));
        let again = known.filter(|path| now.duration_since(path.until) <= path.pause);
        let pause = again.map_or(PAUSE_MIN, |path| (path.pause * 2).min(PAUSE_MAX));
        let until = now + pause;
        self.0.truncate(NARROW_MAX - 1);
        self.0.push_front(Narrow { ends, until, pause });
        until
    }
}

impl Air {
    /// A queue pair missed packets: its path may be narrow.
    #[cold]
    pub(crate) fn note_stuck(&mut self, view: &mut AirView<'_>, index: QpIndex, now: Time) {
        let slot = view.qps.slot(index);
        let Some(slot) = slot.filter(|slot| slot.qp.is_path_narrow(now)) else {
            return;
        };
        let Some(air) = slot.connection.and_then(|connection| connection.air) else {
            return;
        };
        let peer = self.peer(air);
        if peer.agreed.is_none() || peer.narrow_until.is_some() {
            return;
        }
        let ends = (peer.address, peer.local);
        let until = self.narrow.note(ends, now);
        view.counters.count(EngineCounter::AirNarrowPaths);
        for index in self.directory.between(ends) {
            let peer = self.peer(index);
            if peer.range.is_some() {
                peer.narrow_until = Some(until);
                if peer.agreed.is_some() {
                    self.ask_anew(view.qps, index, now);
                    // A question that is on its way says otherwise.
                    self.ask(index, now);
                }
            }
        }
    }

    /// Long packets are tried again, if it is time for that.
    pub(super) fn try_again(&mut self, view: &mut AirView<'_>, index: AirIndex, now: Time) {
        let peer = self.peer(index);
        if peer.narrow_until.take_if(|until| *until <= now).is_some() && peer.agreed.is_some() {
            self.ask_anew(view.qps, index, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Time {
        Time::ZERO + S * seconds
    }

    fn path(last: u8) -> (Neighbour, Neighbour) {
        ([192, 0, 2, last].into(), [192, 0, 2, 1].into())
    }

    #[test]
    fn a_path_that_stays_narrow_is_tried_ever_more_rarely() {
        let mut paths = NarrowPaths::default();
        let mut now = Time::ZERO;
        let pauses: Vec<_> = (0..8)
            .map(|_| {
                let until = paths.note(path(2), now);
                let pause = until.duration_since(now).as_secs();
                assert_eq!(paths.until(path(2), now), Some(until));
                assert_eq!(paths.until(path(2), until), None);
                now = until + S;
                pause
            })
            .collect();
        assert_eq!(pauses, [30, 60, 120, 240, 480, 960, 960, 960]);
        // It was wide for longer than the last pause.
        now = now + PAUSE_MAX;
        assert_eq!(paths.note(path(2), now), now + PAUSE_MIN);
    }

    #[test]
    fn of_very_many_the_last_are_known() {
        let mut paths = NarrowPaths::default();
        for last in 0..=255 {
            paths.note(path(last), at(1));
        }
        assert_eq!(paths.0.len(), NARROW_MAX);
        assert!(paths.until(path(255), at(2)).is_some());
        assert!(paths.until(path(255 - NARROW_MAX as u8), at(2)).is_none());
    }
}
