//! Numbers of frames: which arrived, and how many are missing.

use crate::DEVICES_MAX;
use std::collections::BTreeMap;

/// What a receiver knows of each device. It outlives connections.
#[derive(Debug, Default)]
pub struct Sequences(BTreeMap<u32, Device>);

/// What arrived of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames that were lent.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that the sender dropped, or that were lost with a connection.
    pub missing: u64,
    /// Frames that arrived again, after a connection was lost, or out of order. They are not lent.
    pub repeated: u64,
    /// Frames that arrived after their deadline.
    pub late: u64,
    /// Frames that were dropped because the program had the device's quota of blocks.
    pub over_quota: u64,
    /// Times that the sender was started again.
    pub restarts: u64,
}

#[derive(Debug)]
struct Device {
    epoch: u32,
    /// Number of the next frame.
    next: u64,
    /// Frames since the last one that was lent, which were dropped.
    dropped: u64,
    received: Received,
}

/// What a frame is by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The next one, after this number of missing ones.
    Next(u64),
    /// It was there, or is older than one that was.
    Repeated,
    /// Its device was not announced.
    Unknown,
}

impl Sequences {
    /// The devices that were announced, and what arrived of each.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Received)> {
        self.0
            .iter()
            .map(|(&number, device)| (number, device.received))
    }

    /// A sender announces a device, whose next frame has number `first`. False if there are too
    /// many.
    ///
    /// A device that the sender had before, in the same run, goes on where it was: what lies
    /// between was lost with the connection.
    pub(crate) fn announce(&mut self, number: u32, epoch: u32, first: u64) -> bool {
        let is_full = self.0.len() >= DEVICES_MAX;
        match self.0.get_mut(&number) {
            Some(device) if device.epoch == epoch => {}
            Some(device) => {
                device.received.restarts += 1;
                (device.epoch, device.next, device.dropped) = (epoch, first, 0);
            }
            None if is_full => return false,
            None => {
                let received = Received::default();
                let next = first;
                let device = Device {
                    epoch,
                    next,
                    dropped: 0,
                    received,
                };
                self.0.insert(number, device);
            }
        }
        true
    }

    /// A frame has arrived.
    pub(crate) fn arrived(
        &mut self,
        number: u32,
        epoch: u32,
        sequence: u64,
        (frames, bytes, is_late): (u64, usize, bool),
    ) -> Verdict {
        let Some(device) = self.0.get_mut(&number) else {
            return Verdict::Unknown;
        };
        if device.epoch != epoch {
            return Verdict::Unknown;
        }
        let received = &mut device.received;
        let Some(missing) = sequence.checked_sub(device.next) else {
            received.repeated += 1;
            return Verdict::Repeated;
        };
        let Some(next) = sequence.checked_add(1) else {
            received.repeated += 1;
            return Verdict::Repeated;
        };
        device.next = next;
        received.frames += frames;
        received.bytes += bytes as u64;
        received.missing = received.missing.saturating_add(missing);
        received.late += u64::from(is_late);
        Verdict::Next(missing.saturating_add(std::mem::take(&mut device.dropped)))
    }

    /// The frame that has arrived last of a device is not lent: `missing` is what came of
    /// [`Sequences::arrived`].
    pub(crate) fn drop_last(&mut self, number: u32, bytes: usize, missing: u64) {
        let Some(device) = self.0.get_mut(&number) else {
            return;
        };
        device.dropped = missing.saturating_add(1);
        let received = &mut device.received;
        received.frames -= 1;
        received.bytes -= bytes as u64;
        received.over_quota += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_repetitions_are_told_apart() {
        let mut sequences = Sequences::default();
        let mut arrive = |epoch, sequence| sequences.arrived(1, epoch, sequence, (1, 10, false));
        assert_eq!(arrive(5, 0), Verdict::Unknown);
        assert!(sequences.announce(1, 5, 3));
        let mut arrive = |epoch, sequence| sequences.arrived(1, epoch, sequence, (1, 10, false));
        assert_eq!(arrive(5, 4), Verdict::Next(1));
        assert_eq!(arrive(5, 4), Verdict::Repeated);
        assert_eq!(arrive(5, 3), Verdict::Repeated);
        assert_eq!(arrive(6, 5), Verdict::Unknown);
        assert_eq!(arrive(5, 5), Verdict::Next(0));
        assert_eq!(arrive(5, u64::MAX), Verdict::Repeated);
        // The same run by another connection, and another run.
        assert!(sequences.announce(1, 5, 9));
        let mut arrive = |epoch, sequence| sequences.arrived(1, epoch, sequence, (1, 10, true));
        assert_eq!(arrive(5, 9), Verdict::Next(3));
        assert!(sequences.announce(1, 6, 0));
        let (_, received) = sequences.iter().next().unwrap();
        let wanted = Received {
            frames: 3,
            bytes: 30,
            missing: 4,
            repeated: 3,
            late: 1,
            over_quota: 0,
            restarts: 1,
        };
        assert_eq!(received, wanted);
    }

    #[test]
    fn frames_that_are_not_lent_are_missing_in_the_next() {
        let mut sequences = Sequences::default();
        sequences.announce(1, 1, 0);
        let arrive =
            |sequences: &mut Sequences, sequence| sequences.arrived(1, 1, sequence, (1, 10, false));
        assert_eq!(arrive(&mut sequences, 2), Verdict::Next(2));
        sequences.drop_last(1, 10, 2);
        assert_eq!(arrive(&mut sequences, 3), Verdict::Next(3));
        sequences.drop_last(1, 10, 3);
        assert_eq!(arrive(&mut sequences, 5), Verdict::Next(5));
        assert_eq!(arrive(&mut sequences, 6), Verdict::Next(0));
        let (_, received) = sequences.iter().next().unwrap();
        let counts = (received.frames, received.bytes, received.missing);
        assert_eq!((counts, received.over_quota), ((2, 20, 3), 2));
        // Those of a former run of the sender are not missing in this one.
        assert_eq!(arrive(&mut sequences, 7), Verdict::Next(0));
        sequences.drop_last(1, 10, 0);
        assert!(sequences.announce(1, 2, 0));
        assert_eq!(sequences.arrived(1, 2, 0, (1, 10, false)), Verdict::Next(0));
    }

    #[test]
    fn a_sender_with_endless_devices_is_bounded() {
        let mut sequences = Sequences::default();
        let taken = (0..2 * DEVICES_MAX as u32).filter(|&number| sequences.announce(number, 1, 0));
        assert_eq!(taken.count(), DEVICES_MAX);
        assert!(sequences.announce(0, 2, 0), "those that are known stay");
    }
}
