//! The tag of a connection between airdma hosts: what each end writes into the reserved bits of the
//! BTH ([`Bth::tag`]), so that a packet that is taken ahead of its turn is no easier to forge than
//! the expected one is on RoCEv2.
//!
//! | the peer | what comes |
//! |---|---|
//! | has not agreed on tags | is taken as on RoCEv2 |
//! | has agreed, and has not shown its tag | is taken in its turn; what comes before that is missing |
//! | has shown its tag | is taken with the tag, up to 8,191 packets ahead, and dropped without it |
//!
//! A peer shows its tag by a packet with it that is taken in its turn, or by a report. It writes
//! its tag into all that it sends from then on, whatever else is agreed on or no more: so nothing
//! of its own is dropped, unless the network changes the order of packets in that moment.

use airdma_wire::Bth;

/// Bits of a tag.
pub const TAG_BITS: u32 = 13;

/// The tags of a connection: of what is sent, and of what is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tags {
    /// Written into all that is sent.
    pub sent: u16,
    /// The peer writes it into all that it sends.
    pub taken: u16,
}

/// Which tags a queue pair has, and what is known of its peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tagging {
    tags: Option<Tags>,
    /// Of what is sent; 0 without tags.
    sent: u16,
    /// The peer has a tag, and has not shown it.
    is_pending: bool,
    /// Packets have these bits under the mask, which is 0 until the peer has shown its tag; until
    /// then a peer that has one has no packet with these bits.
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

    /// The peer is at another address, and may have another tag or none. What is sent keeps its
    /// own.
    pub(crate) fn forget_peer(&mut self) {
        *self = Tagging {
            sent: self.sent,
            ..Tagging::default()
        };
    }

    pub(crate) fn sent(&self) -> u16 {
        self.sent
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.tags.is_some()
    }

    /// Whether a packet may be taken, as far as its tag says.
    #[inline]
    pub(crate) fn takes(&self, bth: &Bth) -> bool {
        self.mask == 0 || bth.tag & self.mask == self.bits
    }

    /// The same of one from the middle of a message that is taken by the short way, on which no
    /// peer shows its tag.
    #[inline]
    pub(crate) fn takes_middle(&self, bth: &Bth) -> bool {
        bth.tag & self.mask == self.bits
    }

    /// Whether nothing may be taken ahead of its turn yet.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// Whether a packet has the tag of the peer.
    pub(crate) fn has_tag(&self, bth: &Bth) -> bool {
        self.tags.is_some_and(|tags| bth.tag == tags.taken)
    }

    /// The peer has shown its tag.
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
