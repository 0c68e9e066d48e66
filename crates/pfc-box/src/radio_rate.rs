//! The rate to the radio, and its source.

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
    /// Drops of the radio's queue at the first reading, and now.
    dropped: Option<(u32, u32)>,
    waiting: u64,
}

enum Source {
    /// Configured by the user.
    Said(f64),
    /// Measured by what leaves its queue.
    Queue(Pacer),
    /// Estimated by its driver for the stations; in bytes per second.
    Driver(f64),
}

/// Part of a radio's bit rate that reaches programs.
const SHARE_OF_BITRATE: f64 = 0.65;
/// Rate while a radio has no peer.
const FIRST_BYTES_PER_S: f64 = 1.25e6;
/// A station that was silent for longer is gone, or sleeps.
const ACTIVE: Duration = Duration::from_secs(10);

impl RadioRate {
    /// The rate of a radio: `said`, in bytes per second, or by its queue or its driver.
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

    /// Reads the radio again at its pace; false if it is gone. `is_held_back`: frames wait for the
    /// pacer.
    pub fn see(&mut self, began: Instant, is_held_back: bool) -> bool {
        let now = Instant::now();
        let Aged { value, taken } = *self.view.read_queue(now);
        match value {
            Ok(Queue::Backlog(backlog)) if taken == Some(now) => {
                self.see_queue(now - began, &backlog, is_held_back);
            }
            Err(Unreadable::NoInterface) => return false,
            // Nothing new, or the queue was removed, as at the end of an emulated link: the last
            // value holds.
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

    /// Source of the rate, for display.
    pub fn source(&self) -> &'static str {
        match self.source {
            Source::Said(_) => "the rate that was named",
            Source::Queue(_) => "what leaves the radio's queue",
            Source::Driver(_) => "what the radio's driver says of its stations",
        }
    }

    /// Rate of the radio in bytes per second.
    pub fn link(&self) -> f64 {
        match &self.source {
            Source::Said(rate) | Source::Driver(rate) => *rate,
            Source::Queue(pacer) => pacer.link(),
        }
    }

    /// Allowed rate in bytes per second.
    pub fn allowed(&self) -> f64 {
        match &self.source {
            Source::Said(rate) | Source::Driver(rate) => *rate,
            Source::Queue(pacer) => pacer.allowed(),
        }
    }

    /// Bytes in the radio's queue, as far as visible.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Drops of that queue since the box started.
    pub fn dropped(&self) -> u32 {
        self.dropped
            .map_or(0, |(first, last)| last.wrapping_sub(first))
    }
}

/// Whether the radio sends frames with its own address only.
///
/// An access point answers stations that it knows by their addresses, and accepts frames of no
/// others.
fn speaks_for_itself_alone(radio: &WirelessInterface) -> bool {
    let kinds = [
        InterfaceKind::Station,
        InterfaceKind::P2pClient,
        InterfaceKind::AdHoc,
    ];
    kinds.contains(&radio.kind) && !radio.four_addresses
}

/// Expected throughput of a program.
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
