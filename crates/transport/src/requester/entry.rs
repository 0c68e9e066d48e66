//! A posted request in the requester's queue, and its packets.

use airdma_wire::Reth;

use crate::operation::Extent;
use crate::request_packet::packets_of;
use crate::work::SendRequest;

/// Payloads of packets, except the last of a message, are whole words.
const WORD: u32 = 4;

/// One posted request and the sequence numbers it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) request: SendRequest,
    pub(crate) first: u64,
    /// Number of packets; 0 exactly for local requests.
    pub(crate) packets: u32,
    /// Payload of each packet except the first and the last; for a READ, of its responses.
    pub(crate) payload: u32,
    /// How much less the first one carries.
    pub(crate) first_less: u32,
    /// Whether the last of several packets is padded to the length of the others; for a READ, of
    /// its responses.
    pub(crate) is_equal: bool,
    pub(crate) local: Local,
}

/// State of a local request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// Not executed yet, or not a local request.
    Waiting,
    Done,
    Failed,
}

impl Entry {
    /// A request whose first packet has sequence number `first`, in packets of the path MTU.
    pub(crate) fn new(request: SendRequest, first: u64, path_mtu: u32) -> Self {
        Entry::cut(request, first, path_mtu, 0)
    }

    /// As [`Entry::new`], in packets of `payload` bytes, all of one length with their headers.
    pub(crate) fn long(request: SendRequest, first: u64, payload: u32) -> Self {
        let first_less = if request.operation.is_write() {
            Reth::LEN as u32
        } else {
            0
        };
        Entry::cut(request, first, payload, first_less)
    }

    /// As [`Entry::long`], but a message that takes several packets is divided evenly: into as many
    /// packets of at most `payload` bytes, all of one length, the last one padded.
    ///
    /// The padding is less than four bytes for each packet of the message, and less than a packet.
    pub(crate) fn equal(request: SendRequest, first: u64, payload: u32, path_mtu: u32) -> Self {
        let entry = Entry::long(request, first, payload);
        if entry.packets < 2 {
            return entry;
        }
        let first_less = entry.first_less;
        let all = request.length + first_less + request.operation.trailer_len();
        let mut even = all
            .div_ceil(packets_of(all, payload))
            .next_multiple_of(WORD);
        if first_less > 0 && even - first_less == path_mtu {
            // As long as the first packet of an ordinary message.
            even += WORD;
        }
        Entry {
            is_equal: true,
            ..Entry::cut(request, first, even, first_less)
        }
    }

    fn cut(request: SendRequest, first: u64, payload: u32, first_less: u32) -> Self {
        let packets = match request.operation.extent() {
            Extent::List => packets_of(request.length + first_less, payload),
            Extent::Word | Extent::Empty => 1,
            Extent::Local => 0,
        };
        Entry {
            request,
            first,
            packets,
            payload,
            first_less,
            is_equal: false,
            local: Local::Waiting,
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }

    /// Payload of the packet with this index, its padding and what a longer header takes included.
    pub(crate) fn filled(&self, index: u32) -> u32 {
        if self.is_equal || index + 1 < self.packets {
            self.payload
        } else {
            (self.request.length + self.first_less).saturating_sub(index * self.payload)
        }
    }

    /// Offset of the payload of the packet with this index.
    #[inline]
    pub(crate) fn offset(&self, index: u32) -> u32 {
        (index * self.payload).saturating_sub(self.first_less)
    }
}
