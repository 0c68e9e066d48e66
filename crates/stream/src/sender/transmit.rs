//! What a sender sends next.

use super::link::Link;
use super::{Flight, Sender, State, Waiting};
use crate::header::{Flags, Header, Kind, block_bytes, now_ns, payload_range};
use airdma::{Device, Remote};

impl Sender {
    /// Sends what the receiver has blocks for.
    pub(super) fn transmit(&mut self) {
        self.drop_late();
        while let Some(&(.., device)) = self.turns.first() {
            let Some(link) = self.link.as_mut() else {
                return;
            };
            let Some(state) = self.sources.get_mut(&device) else {
                return;
            };
            if state.needs_announcement() {
                let Some(flight) = announce(&self.device, link, device, state, self.config.epoch)
                else {
                    return;
                };
                state.announced = Some(state.format.0);
                self.flights.push_back(flight);
                continue;
            }
            let Some(remote) = link.next_block() else {
                return;
            };
            let Some(Waiting { region, header }) = self.take_next(device, &remote) else {
                continue;
            };
            if let Some(link) = self.link.as_mut() {
                self.flights.push_back(link.write(region, header, &remote));
            }
        }
    }

    /// The next frame of a device; `None` if it does not fit the block of the receiver: then the
    /// credit serves another frame.
    fn take_next(&mut self, device: u32, to: &Remote) -> Option<Waiting> {
        self.served += 1;
        let served = self.served;
        let frame = self.change(device, |state| {
            let frame = state.waiting.pop_front()?;
            if block_bytes(frame.header.length as usize) as u64 > to.len() {
                state.counts.too_long += 1;
                return Some(Err(frame));
            }
            state.served = served;
            state.unsent = state.unsent.max(frame.header.sequence + 1);
            Some(Ok(frame))
        });
        match frame.flatten()? {
            Ok(frame) => Some(frame),
            Err(frame) => {
                self.finish(&frame.header, frame.region);
                None
            }
        }
    }

    /// Drops frames whose deadline has passed.
    fn drop_late(&mut self) {
        if self.deadline == u64::MAX {
            return;
        }
        let now = now_ns();
        if self.deadline >= now {
            return;
        }
        self.deadline = u64::MAX;
        let devices: Vec<u32> = self.turns.iter().map(|&(.., device)| device).collect();
        for device in devices {
            let mut earliest = 0;
            let dropped = self.change(device, |state| {
                let dropped = state.drop_late(now);
                let left = state.waiting.iter().map(|frame| frame.header.deadline);
                earliest = left.filter(|deadline| *deadline != 0).min().unwrap_or(0);
                dropped
            });
            self.note_deadline(earliest);
            for frame in dropped.into_iter().flatten() {
                self.finish(&frame.header, frame.region);
            }
        }
    }
}

/// Sends the format of a device, with the number of its next frame. `None` without a credit.
fn announce(
    memory: &Device,
    link: &mut Link,
    device: u32,
    state: &State,
    epoch: u32,
) -> Option<Flight> {
    let (number, text) = &state.format;
    let mut region = memory.allocate_private(block_bytes(text.len())).ok()?;
    let payload = payload_range(region.len(), text.len())?;
    let remote = link.next_block()?;
    region[payload].copy_from_slice(text.as_bytes());
    let first = state.waiting.front();
    let header = Header {
        kind: Kind::Format,
        flags: Flags::default(),
        device,
        epoch,
        sequence: first.map_or(state.unsent, |frame| {
            state.unsent.min(frame.header.sequence)
        }),
        time: 0,
        deadline: 0,
        length: text.len() as u32,
        format: *number,
        turn: 0,
    };
    Some(link.write(region, header, &remote))
}
