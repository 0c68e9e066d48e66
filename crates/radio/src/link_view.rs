//! Cached readings of one interface, each refreshed at its own pace.

use std::time::{Duration, Instant};

use crate::nl80211::{Nl80211, Station, Survey, WirelessInterface};
use crate::qdisc::{Queue, QueueReader};
use crate::unreadable::Unreadable;

/// How old a reading may be before the kernel is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// For the queue. Default 1 ms.
    ///
    /// A reading takes microseconds, and a Wi-Fi station sends a burst every few milliseconds.
    pub queue: Duration,
    /// For channel and stations. Default 100 ms, two steps of rate control (minstrel).
    ///
    /// The driver may ask its firmware, which takes milliseconds.
    pub stations: Duration,
    /// For the load of the channel. Default 1 s.
    ///
    /// Drivers count in milliseconds, and add up rarely.
    pub survey: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            queue: Duration::from_millis(1),
            stations: Duration::from_millis(100),
            survey: Duration::from_secs(1),
        }
    }
}

/// A reading and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aged<T> {
    /// The value, or why it could not be read.
    pub value: Result<T, Unreadable>,
    /// When it was read.
    pub taken: Option<Instant>,
}

impl<T> Aged<T> {
    fn never() -> Aged<T> {
        Aged {
            value: Err(Unreadable::NotYet),
            taken: None,
        }
    }

    /// Its age; unlimited if it was never read.
    pub fn age(&self, now: Instant) -> Duration {
        self.taken
            .map_or(Duration::MAX, |taken| now.saturating_duration_since(taken))
    }

    fn renew(
        &mut self,
        now: Instant,
        pace: Duration,
        read: impl FnOnce() -> Result<T, Unreadable>,
    ) {
        if self.age(now) >= pace && !self.is_final() {
            self.value = read();
            self.taken = Some(now);
        }
    }

    /// Marks the value as unreadable, for the reason of another reading.
    fn withdraw<U>(&mut self, other: &Aged<U>) {
        if let Err(reason) = &other.value {
            self.value = Err(*reason);
            self.taken = other.taken;
        }
    }

    /// Whether the reason holds as long as the interface exists: an interface does not become
    /// wireless.
    fn is_final(&self) -> bool {
        matches!(
            self.value,
            Err(Unreadable::NoNl80211 | Unreadable::NotWireless)
        )
    }
}

/// Readings of one interface.
#[derive(Clone, Debug)]
pub struct LinkReading {
    /// The queue in front of the interface.
    pub queue: Aged<Queue>,
    /// The kind of wireless interface, and its channel.
    pub wireless: Aged<WirelessInterface>,
    /// The peers: the access point of a station, otherwise all stations.
    ///
    /// With the queues of mac80211, if the kernel reports them.
    pub stations: Aged<Vec<Station>>,
    /// The load of the channel.
    pub survey: Aged<Survey>,
}

/// A cached view of one interface.
///
/// It belongs to the network namespace of the thread that opened it.
pub struct LinkView {
    index: u32,
    pace: Pace,
    queue: Result<QueueReader, Unreadable>,
    wireless: Result<Nl80211, Unreadable>,
    reading: LinkReading,
}

impl LinkView {
    /// Opens the interface with this number. A missing interface shows in the readings.
    pub fn open(index: u32) -> LinkView {
        LinkView::with_pace(index, Pace::default())
    }

    /// Opens it with another pace.
    pub fn with_pace(index: u32, pace: Pace) -> LinkView {
        LinkView {
            index,
            pace,
            queue: QueueReader::open(index).map_err(Unreadable::from),
            wireless: Nl80211::open(),
            reading: LinkReading {
                queue: Aged::never(),
                wireless: Aged::never(),
                stations: Aged::never(),
                survey: Aged::never(),
            },
        }
    }

    /// Number of the interface.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The readings at `now`. Asks the kernel for those that are older than their pace.
    pub fn read(&mut self, now: Instant) -> &LinkReading {
        self.read_queue(now);
        self.read_wireless(now);
        &self.reading
    }

    /// Only the queue, for callers that check each burst: never waits for a wireless driver.
    pub fn read_queue(&mut self, now: Instant) -> &Aged<Queue> {
        let read = || opened(&mut self.queue)?.read();
        self.reading.queue.renew(now, self.pace.queue, read);
        &self.reading.queue
    }

    /// Only the kind of wireless interface: never waits for its driver to ask the radio.
    pub fn read_interface(&mut self, now: Instant) -> &Aged<WirelessInterface> {
        let index = self.index;
        let nl80211 = &mut self.wireless;
        self.reading.wireless.renew(now, self.pace.stations, || {
            opened(nl80211)?.interface(index)
        });
        &self.reading.wireless
    }

    fn read_wireless(&mut self, now: Instant) {
        self.read_interface(now);
        let LinkReading {
            wireless,
            stations,
            survey,
            ..
        } = &mut self.reading;
        let index = self.index;
        let nl80211 = &mut self.wireless;
        let Ok(interface) = &wireless.value else {
            stations.withdraw(wireless);
            survey.withdraw(wireless);
            return;
        };
        let frequency = interface.channel.map(|channel| channel.frequency_mhz);
        stations.renew(now, self.pace.stations, || opened(nl80211)?.stations(index));
        survey.renew(now, self.pace.survey, || {
            opened(nl80211)?.survey(index, frequency)
        });
    }
}

fn opened<T>(reader: &mut Result<T, Unreadable>) -> Result<&mut T, Unreadable> {
    reader.as_mut().map_err(|reason| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Duration = Duration::from_millis(10);

    #[test]
    fn the_kernel_is_asked_once_per_pace() {
        let start = Instant::now();
        let mut aged = Aged::never();
        assert_eq!(aged.age(start), Duration::MAX);
        let mut asked = 0;
        for ms in 0..100 {
            let now = start + Duration::from_millis(ms);
            aged.renew(now, PACE, || {
                asked += 1;
                Ok(ms)
            });
            assert!(aged.age(now) < PACE);
            assert_eq!(aged.value, Ok(ms / 10 * 10));
        }
        assert_eq!(asked, 10);
    }

    #[test]
    fn what_cannot_change_is_not_asked_again() {
        let start = Instant::now();
        let mut aged = Aged::never();
        let mut answers = [
            Err(Unreadable::NoInterface),
            Ok(1),
            Err(Unreadable::NotWireless),
            Ok(2),
        ]
        .into_iter();
        for ms in [0, 10, 20, 30] {
            let now = start + Duration::from_millis(ms);
            aged.renew(now, PACE, || answers.next().unwrap());
        }
        assert_eq!(aged.value, Err(Unreadable::NotWireless));
        assert_eq!(answers.len(), 1);
    }
}
