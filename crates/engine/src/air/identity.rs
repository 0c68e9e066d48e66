//! Identity of this process towards each of its peers, from which a host learns nothing to
//! impersonate another.
//!
//! | value | derived from | known to |
//! |---|---|---|
//! | instance | a key of the process, the address of the peer, ours | the peer, which is told in Hello |
//! | nonce of a question | the same key, a count | the peer that is asked |
//! | tag of a queue pair's packets | the instances of both ends, the number of the queue pair that takes them | both ends |
//!
//! All are SipHash-2-4, so neither the key nor a value follows from any number of other values. A
//! host off the path sees none of two other hosts' values. The instance is the same for all
//! processes at an address: these share a port, so they belong to one user, and one process may
//! have several ranges.

use super::AirIndex;
use crate::random::Random;
use airdma_transport::{TAG_BITS, Tags};
use airdma_wire::siphash::siphash;
use airdma_wire::{Gid, Neighbour, Qpn};

/// Keys of a process that offers more than RoCEv2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    key: [u64; 2],
    questions: u64,
}

impl Identity {
    pub(super) fn draw(random: &mut Random) -> Self {
        Identity {
            key: [random.secret_u64(), random.secret_u64()],
            questions: 0,
        }
    }

    /// The instance for a peer.
    pub(super) fn instance(&self, peer: Neighbour, local: Neighbour) -> u64 {
        let mut ends = [0; 32];
        ends[..16].copy_from_slice(&Gid::from(peer).0);
        ends[16..].copy_from_slice(&Gid::from(local).0);
        // 0 is not an instance.
        siphash(self.key, &ends).max(1)
    }

    /// Nonce of the next question.
    pub(super) fn nonce(&mut self) -> u64 {
        self.questions += 1;
        siphash(self.key, &self.questions.to_le_bytes())
    }
}

/// Tags of a queue pair between the instances of the two ends.
pub(super) fn tags([ours, theirs]: [u64; 2], own: Qpn, peer: Qpn) -> Tags {
    let tag = |from, to, taker: Qpn| {
        siphash([from, to], &taker.get().to_le_bytes()) as u16 & ((1 << TAG_BITS) - 1)
    };
    Tags {
        sent: tag(ours, theirs, peer),
        taken: tag(theirs, ours, own),
    }
}

impl super::Air {
    /// The instance for a peer.
    pub(super) fn instance(&self, index: AirIndex) -> Option<u64> {
        let peer = &self.peers[index.place()];
        self.instance_for(peer.address, peer.local)
    }

    /// The instance for a process at an address, if anything is offered to it.
    pub(super) fn instance_for(&self, address: Neighbour, local: Neighbour) -> Option<u64> {
        let identity = self.identity.as_ref()?;
        Some(identity.instance(address, local))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_of_no_number_that_was_fetched_before() {
        let mut random = Random::kernel();
        random.next_u32();
        let before = random.fetched();
        Identity::draw(&mut random);
        assert!(before == random.fetched());
    }

    #[test]
    fn each_peer_is_told_an_instance_of_its_own() {
        let mut random = Random::Seeded(7);
        let one = Identity::draw(&mut random);
        let other = Identity::draw(&mut random);
        let address = |last: u8| Neighbour::from([192, 0, 2, last]);
        let told =
            |identity: &Identity, peer, local| identity.instance(address(peer), address(local));
        assert_eq!(told(&one, 2, 1), told(&one, 2, 1));
        let all = [
            told(&one, 2, 1),
            told(&one, 3, 1),
            told(&one, 2, 4),
            told(&one, 1, 2),
            told(&other, 2, 1),
        ];
        for (at, instance) in all.iter().enumerate() {
            assert!(!all[..at].contains(instance));
        }
    }

    #[test]
    fn each_question_has_a_nonce_of_its_own() {
        let mut identity = Identity::draw(&mut Random::Seeded(7));
        assert_ne!(identity.nonce(), identity.nonce());
    }

    #[test]
    fn what_one_end_sends_the_other_takes() {
        let [left, right] = [Qpn::new(5), Qpn::new(9)];
        let one = tags([1, 2], left, right);
        let other = tags([2, 1], right, left);
        assert_eq!((one.sent, one.taken), (other.taken, other.sent));
        assert_ne!(one.sent, one.taken);
        assert_ne!(one.sent, tags([1, 2], left, Qpn::new(10)).sent);
        assert!(one.sent < 1 << TAG_BITS);
    }
}
