//! How fast frames may go to the radio, and where that is known from.

use std::time::{Duration, Instant};

use airdma_radio::{
    Aged, Backlog, InterfaceKind, LinkView, Queue, Station, Unreadable, WirelessInterface,
};

use crate::error::ControllerError;
use crate::interface::Interface;
use crate::pacer::{Pacer, Reading};

/// The rate of the radio.
pub struct RadioRate {
    view: LinkView,
    source: Source,
    /// What the radio's queue had dropped when it was first read, and now.
    dropped: Option<(u32, u32)>,
    waiting: u64,
}

enum Source {
    /// Somebody said it.
    Said(f64),
    /// What leaves its queue.
    Queue(Pacer),
    /// What its driver thinks of the stations; in bytes per second.
    Driver(f64),
}

/// What of a radio's rate reaches programs.
const SHARE_OF_BITRATE: f64 = 0.65;
/// While a radio has nobody to talk to.
const FIRST_BYTES_PER_S: f64 = 1.25e6;
/// A station that was not heard for so long is gone, or sleeps.
const ACTIVE: Duration = Duration::from_secs(10);

impl RadioRate {
    /// Of this radio: `said`, in bytes per second, or as its queue or its driver says.
    pub fn open(radio: &Interface, said: Option<f64>) -> Result<RadioRate, ControllerError> {
        let mut view = LinkView::open(radio.index());
        let found = view.read(Instant::now());
        if found
            .wireless
            .value
            .as_ref()
            .is_ok_and(speaks_for_itself_alone)
        {
            return Err(ControllerError::OwnNameAlone(radio.name().to_owned()));
        }
        let source = match (said, &found.queue.value, &found.stations.value) {
            (Some(said), _, _) => Source::Said(said),
            (None, Ok(Queue::Backlog(_)), _) => Source::Queue(Pacer::new()),
            (None, _, Ok(_)) => Source::Driver(FIRST_BYTES_PER_S),
            (None, _, Err(reason)) => {
                return Err(ControllerError::NoRate {
                    interface: radio.name().to_owned(),
                    reason: *reason,
                });
            }
        };
        Ok(RadioRate {
            view,
            source,
            dropped: None,
            waiting: 0,
        })
    }

    /// Looks again, as often as it is worth; false if the radio is gone. `is_held_back`: frames wait for us to let them go.
    pub fn see(&mut self, began: Instant, is_held_back: bool) -> bool {
        let now = Instant::now();
        let Aged { value, taken } = *self.view.read_queue(now);
        match value {
            Ok(Queue::Backlog(backlog)) if taken == Some(now) => {
                self.see_queue(now - began, &backlog, is_held_back);
            }
            Err(Unreadable::NoInterface) => return false,
            // Nothing new; or its queue was taken away, as an emulated link does at its end: what was known holds.
            Ok(_) | Err(_) => {}
        }
        if let Source::Driver(rate) = &mut self.source {
            let stations = &self.view.read(now).stations.value;
            let slowest = stations.iter().flatten().filter_map(bytes_per_s);
            *rate = slowest.min_by(f64::total_cmp).unwrap_or(*rate);
        }
        true
    }

    fn see_queue(&mut self, now: Duration, backlog: &Backlog, is_held_back: bool) {
        let (first, _) = self.dropped.unwrap_or((backlog.dropped, 0));
        self.dropped = Some((first, backlog.dropped));
        self.waiting = backlog.bytes.into();
        if let Source::Queue(pacer) = &mut self.source {
            let reading = Reading {
                waiting: self.waiting,
                left: backlog.sent_bytes,
            };
            pacer.see(now, reading, is_held_back);
        }
    }

    /// Where it comes from, in words.
    pub fn source(&self) -> &'static str {
        match self.source {
            Source::Said(_) => "the rate that was named",
            Source::Queue(_) => "what leaves the radio's queue",
            Source::Driver(_) => "what the radio's driver says of its stations",
        }
    }

    /// What the radio carries, in bytes per second.
    pub fn link(&self) -> f64 {
        match &self.source {
            Source::Said(rate) | Source::Driver(rate) => *rate,
            Source::Queue(pacer) => pacer.link(),
        }
    }

    /// How fast frames may go now, in bytes per second.
    pub fn allowed(&self) -> f64 {
        match &self.source {
            Source::Said(rate) | Source::Driver(rate) => *rate,
            Source::Queue(pacer) => pacer.allowed(),
        }
    }

    /// What waits in the radio's queue, in bytes, as far as it can be seen.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// What that queue dropped since the box began.
    pub fn dropped(&self) -> u32 {
        self.dropped
            .map_or(0, |(first, last)| last.wrapping_sub(first))
    }
}

/// An access point answers the stations that it knows by their addresses, and takes frames of no others.
fn speaks_for_itself_alone(radio: &WirelessInterface) -> bool {
    let kinds = [
        InterfaceKind::Station,
        InterfaceKind::P2pClient,
        InterfaceKind::AdHoc,
    ];
    kinds.contains(&radio.kind) && !radio.four_addresses
}

/// What a program would get.
fn bytes_per_s(station: &Station) -> Option<f64> {
    if station.inactive.is_some_and(|inactive| inactive > ACTIVE) {
        return None;
    }
    let expected = station.expected_kbps.map(f64::from);
    let share = station
        .transmit
        .map(|rate| f64::from(rate.kbps) * SHARE_OF_BITRATE);
    Some(expected.or(share)? * 1000.0 / 8.0)
}
