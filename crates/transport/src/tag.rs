//! The tag of a connection between airdma hosts, in the reserved bits of the BTH ([`Bth::tag`]).
//! With it, a packet that is accepted out of order is no easier to forge than the expected one is
//! in plain RoCEv2.
//!
//! | the peer | what comes |
//! |---|---|
//! | has not agreed on tags | is taken as on RoCEv2 |
//! | has agreed, and has not shown its tag | is taken in its turn; what comes before that is missing |
//! | has shown its tag | is taken with the tag, up to 8,191 packets ahead, and dropped without it |
//!
//! A peer shows its tag by a packet that is accepted in order, or by a report. It writes its tag
//! into all packets from then on, whatever else is agreed on: so none of its own is dropped, unless
//! the network reorders packets at that moment.

use airdma_wire::Bth;

/// Bits of a tag.
pub const TAG_BITS: u32 = 13;

/// The tags of a connection: of sent and of received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tags {
    /// Tag of sent packets.
    pub sent: u16,
    /// Tag of the peer's packets.
    pub taken: u16,
}

/// Tags of a queue pair, and what is known of its peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tagging {
    tags: Option<Tags>,
    /// Tag of sent packets; 0 without tags.
    sent: u16,
    /// Whether the peer has a tag and has not shown it.
    is_pending: bool,
    /// Accepted packets have these bits under the mask, which is 0 until the peer has shown its
    /// tag.
    ///
    /// Until then, no packet of a peer with a tag has these bits.
    bits: u16,
    mask: u16,
}

impl Tagging {
    pub(crate) fn set(&mut self, tags: Tags) {
        if self.tags != Some(tags) {
            *self = Tagging {
                tags: Some(tags),
                sent: tags.sent,
                is_pending: true,
                bits: u16::MAX,
                mask: 0,
            };
        }
    }

    /// Forgets the peer's tag: it is at another address, and may have another tag or none. Sent
    /// packets keep theirs.
    pub(crate) fn forget_peer(&mut self) {
        *self = Tagging {
            sent: self.sent,
            ..Tagging::default()
        };
    }

    pub(crate) fn sent(&self) -> u16 {
        self.sent
    }

    /// Whether there are tags.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.tags.is_some()
    }

    /// Whether a packet may be accepted, by its tag.
    #[inline]
    pub(crate) fn takes(&self, bth: &Bth) -> bool {
        self.mask == 0 || bth.tag & self.mask == self.bits
    }

    /// As [`takes`](Self::takes), for a packet from the middle of a message on the short path,
    /// on which no peer shows its tag.
    #[inline]
    pub(crate) fn takes_middle(&self, bth: &Bth) -> bool {
        bth.tag & self.mask == self.bits
    }

    /// Whether nothing may be accepted out of order yet.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// Whether a packet has the tag of the peer.
    pub(crate) fn has_tag(&self, bth: &Bth) -> bool {
        self.tags.is_some_and(|tags| bth.tag == tags.taken)
    }

    /// Notes that the peer has shown its tag.
    pub(crate) fn show(&mut self) {
        if let Some(tags) = self.tags {
            self.is_pending = false;
            self.mask = (1 << TAG_BITS) - 1;
            self.bits = tags.taken & self.mask;
        }
    }

    /// Writes the tag into a packet.
    #[inline]
    pub(crate) fn mark(&self, packet: &mut [u8]) {
        if self.sent != 0
            && let Some(header) = packet.first_chunk_mut()
        {
            Bth::mark(header, self.sent);
        }
    }
}
