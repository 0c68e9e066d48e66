//! Where the peers are found: by a process's address, by a host's, and the queue pairs that are
//! connected to none of them.
//!
//! The work of each call grows with what it finds, and with the logarithm of the number of peers:
//! any host can name a peer, and a process can have very many. Ordered maps cannot be filled with
//! colliding keys.

use super::Caller;
use crate::index::{AirIndex, QpIndex};
use airdma_wire::{Gid, Neighbour};
use std::collections::{BTreeMap, BTreeSet};

/// The address of a peer, and ours.
pub(super) type Ends = (Neighbour, Neighbour);

/// Peers with queue pairs, and connected queue pairs without a process as their peer.
#[derive(Debug, Default)]
pub(super) struct Directory {
    /// Peers by addresses, and range of queue pair numbers; without one it is a host's.
    peers: BTreeMap<(Ends, Option<u8>), AirIndex>,
    /// Places of former peers.
    free: Vec<AirIndex>,
    /// Queue pairs whose peer is plain: by the addresses and the range at the other end.
    plain: BTreeSet<(Ends, u8, QpIndex)>,
}

impl Directory {
    pub(super) fn find(&self, ends: Ends, range: Option<u8>) -> Option<AirIndex> {
        self.peers.get(&(ends, range)).copied()
    }

    /// Any peer at this address, whichever of ours it knows.
    pub(super) fn at_address(&self, address: Neighbour) -> Option<AirIndex> {
        let first = Neighbour::from(Gid::default().to_ip());
        let (&((found, _), _), &index) = self.peers.range(((address, first), None)..).next()?;
        (found == address).then_some(index)
    }

    /// All peers between two addresses.
    pub(super) fn between(&self, ends: Ends) -> Vec<AirIndex> {
        let range = self.peers.range((ends, None)..=(ends, Some(u8::MAX)));
        range.map(|(_, &index)| index).collect()
    }

    /// Adds a peer. Returns its place, which is a new one if it is `peers`, the number of places.
    pub(super) fn add(&mut self, ends: Ends, range: Option<u8>, peers: usize) -> AirIndex {
        let place = self.free.pop();
        let index = place.unwrap_or_else(|| AirIndex::from_place(peers));
        self.peers.insert((ends, range), index);
        index
    }

    /// Removes a peer: its place is free.
    pub(super) fn remove(&mut self, ends: Ends, range: Option<u8>, index: AirIndex) {
        let removed = self.peers.remove(&(ends, range));
        debug_assert_eq!(removed, Some(index));
        self.free.push(index);
    }

    /// A peer that was a process is a host from now on.
    pub(super) fn turn_into_host(&mut self, ends: Ends, range: Option<u8>) {
        if let Some(index) = self.peers.remove(&(ends, range)) {
            self.peers.insert((ends, None), index);
        }
    }

    /// Number of peers.
    pub(super) fn count(&self) -> usize {
        self.peers.len()
    }

    /// A connected queue pair has no process as its peer.
    pub(super) fn note_plain(&mut self, ends: Ends, range: u8, queue_pair: QpIndex) {
        self.plain.insert((ends, range, queue_pair));
    }

    pub(super) fn forget_plain(&mut self, ends: Ends, range: u8, queue_pair: QpIndex) {
        self.plain.remove(&(ends, range, queue_pair));
    }

    /// Queue pairs that are connected to this process, and do not know it as one.
    pub(super) fn plain_of(&self, caller: Caller) -> Vec<QpIndex> {
        let key = |last| ((caller.address, caller.local), caller.range, last);
        let all = key(QpIndex::new(0))..=key(QpIndex::new(u32::MAX));
        self.plain.range(all).map(|&(.., index)| index).collect()
    }

    /// Queue pairs between two addresses that know no process.
    pub(super) fn plain_between(&self, ends: Ends) -> Vec<QpIndex> {
        let first = (ends, 0, QpIndex::new(0));
        let all = first..=(ends, u8::MAX, QpIndex::new(u32::MAX));
        self.plain.range(all).map(|&(.., index)| index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Neighbour {
        [192, 0, 2, last].into()
    }

    fn index(place: u32) -> AirIndex {
        AirIndex::new(place)
    }

    #[test]
    fn peers_are_found_by_process_by_host_and_by_addresses() {
        let mut directory = Directory::default();
        let (near, far) = ((address(2), address(1)), (address(3), address(1)));
        assert_eq!(directory.at_address(address(2)), None);
        for (place, (ends, range)) in [(near, None), (near, Some(4)), (far, Some(255))]
            .into_iter()
            .enumerate()
        {
            assert_eq!(
                directory.add(ends, range, place),
                AirIndex::from_place(place)
            );
        }
        assert_eq!(directory.find(near, Some(4)), Some(index(1)));
        assert_eq!(directory.find(near, Some(5)), None);
        assert_eq!(directory.find((near.1, near.0), Some(4)), None);
        assert_eq!(directory.between(near), [index(0), index(1)]);
        assert_eq!(directory.between(far), [index(2)]);
        assert_eq!(directory.at_address(address(3)), Some(index(2)));
        assert_eq!(directory.at_address(address(1)), None);
        directory.remove(far, Some(255), index(2));
        assert_eq!(directory.at_address(address(3)), None);
        assert_eq!(directory.add(far, None, 3), index(2), "its place is free");
    }

    #[test]
    fn plain_queue_pairs_are_found_by_their_peers_process() {
        let mut directory = Directory::default();
        let ends = (address(2), address(1));
        let qp = QpIndex::new;
        for (range, number) in [(7, 1), (7, u32::MAX), (8, 3), (255, 4)] {
            directory.note_plain(ends, range, qp(number));
        }
        directory.note_plain((address(3), address(1)), 7, qp(5));
        let caller = Caller {
            address: ends.0,
            local: ends.1,
            range: 7,
        };
        assert_eq!(directory.plain_of(caller), [qp(1), qp(u32::MAX)]);
        assert_eq!(directory.plain_between(ends).len(), 4);
        directory.forget_plain(ends, 7, qp(1));
        assert_eq!(directory.plain_of(caller), [qp(u32::MAX)]);
    }
}
