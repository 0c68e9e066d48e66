//! Determines each process's socket index in its groups, by datagrams that name an index.

use super::registry::Seated;
use super::{Change, Ground, Steering};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Longest wait for the answers to probes. A stopped process sends none.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(20);
const PROBE_PAUSE: Duration = Duration::from_micros(100);
/// Probes beyond the known indices: sockets of a dying process exist for a moment longer.
const PLACES_BEYOND: usize = 4;

impl Steering {
    /// Notifies the processes at our addresses that another one has come. No answer is expected.
    pub(super) fn announce_arrival(&self, change: &Change<'_>) {
        let registry = change.registry;
        for &(address, seat) in change.inner.rows.iter().flatten() {
            for other in registry.seated(address).filter(|other| other.seat != seat) {
                let epoch = registry.next_epoch();
                (self.messenger).probe(address, other.place, epoch, registry.secret());
            }
        }
    }

    /// Determines the socket index of each process at our addresses.
    pub(super) fn probe(&self, change: &mut Change<'_>, ground: &mut Ground<'_>) {
        let registry = change.registry;
        let addresses = change.inner.rows.iter().flatten();
        let groups: Vec<(IpAddr, Vec<Seated>)> = addresses
            .map(|&(address, _)| {
                let mut seats: Vec<_> = registry.seated(address).collect();
                seats.sort_by_key(|seated| seated.place);
                (address, seats)
            })
            .filter(|(_, seats)| seats.len() > 1)
            .collect();
        if groups.is_empty() {
            for &(_, seat) in change.inner.rows.iter().flatten() {
                registry.set_place(seat, 0);
            }
            change.in_doubt = false;
            return;
        }
        let epoch = registry.next_epoch();
        // The attached program may be of an earlier state without this one; even an older one knows
        // messages.
        for (row, seat) in (0..).zip(change.inner.rows.clone()) {
            if let Some((address, _)) = seat {
                change.attach(row, address, ground);
            }
        }
        for (address, seats) in &groups {
            let places = seats.len() + change.removed + PLACES_BEYOND;
            for place in 0..places {
                self.messenger
                    .probe(*address, place as u16, epoch, registry.secret());
            }
        }
        let start = Instant::now();
        loop {
            ground.progress();
            let answered = groups
                .iter()
                .flat_map(|(_, seats)| seats)
                .all(|seated| registry.answer(seated.seat, epoch).is_some());
            if answered || start.elapsed() > ANSWER_TIME_MAX {
                break;
            }
            std::thread::sleep(PROBE_PAUSE);
        }
        for (_, seats) in &groups {
            let answers = seats
                .iter()
                .map(|seated| registry.answer(seated.seat, epoch));
            for (seated, place) in seats.iter().zip(complete(answers)) {
                registry.set_place(seated.seat, place);
            }
        }
        change.in_doubt = false;
    }
}

/// Assigns the remaining indices to the sockets without an answer, in their order.
pub(super) fn complete(answers: impl Iterator<Item = Option<u16>>) -> Vec<u16> {
    let answers: Vec<_> = answers.collect();
    let mut free = (0..u16::MAX).filter(|place| !answers.contains(&Some(*place)));
    answers
        .iter()
        .map(|answer| answer.or_else(|| free.next()).unwrap_or(u16::MAX))
        .collect()
}
