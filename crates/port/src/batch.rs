//! Packets waiting to leave, written once, in place.

use airdma_wire::bundle::{BUNDLE_HEADER_LEN, bundle_header};
use airdma_wire::sealed::is_sealed;
use airdma_wire::{Bth, ICRC_LEN, Neighbour, Qpn};

use crate::Capabilities;
use crate::icrc::{CONGESTION_AT, Flow, IcrcCache};

/// Where a packet goes, and how its IP header should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The peer. IPv6 link-local addresses are meant on the port's own interface.
    pub address: Neighbour,
    /// Which local address sends: index into the addresses the port was bound to, which is the GID
    /// index.
    pub source_index: u8,
    /// IPv4 TOS or IPv6 traffic class: DSCP, and ECN in the low two bits.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit; 0 asks for the kernel's default.
    pub hop_limit: u8,
    /// IPv6 flow label, of 20 bits (outside the ICRC); 0 leaves it to the kernel.
    pub flow_label: u32,
    /// Packets that could leave as one segmented send may leave as one datagram, a bundle
    /// ([`airdma_wire::bundle`]): the peer takes them.
    pub bundles: bool,
}

/// Packets waiting to leave. One contiguous buffer, each packet followed by the 4 bytes of its
/// ICRC, so that consecutive packets of equal size are one segmented send without a copy.
///
/// ```
/// use airdma_port::{Destination, TransmitBatch};
///
/// let destination = Destination {
///     address: [192, 0, 2, 1].into(), source_index: 0, tos: 0, hop_limit: 64, flow_label: 0,
///     bundles: false,
/// };
/// let mut batch = TransmitBatch::with_capacity(8192, 4);
/// let packet = batch.reserve(1036).expect("the batch is empty");
/// packet[..16].fill(0x11);
/// batch.commit(16, destination);
/// assert_eq!((batch.len(), batch.bytes()), (1, 20));
/// ```
#[derive(Debug)]
pub struct TransmitBatch {
    buffer: Box<[u8]>,
    entries: Vec<Entry>,
    entries_max: usize,
    /// Bytes in front of each packet that are left free for the headers of a port.
    headroom: usize,
    /// The port sends packets of equal length together.
    equal_lengths: bool,
    /// One for each run of packets with the same destination: mostly few, so that a packet carries
    /// an index.
    destinations: Vec<Destination>,
    /// First entry that has not left.
    head: usize,
    /// End of the last packet: offset at which the next one starts.
    tail: usize,
    /// Length of the slice given out by `reserve` and not yet committed.
    reserved: usize,
    /// Recipient of the packet that was committed last.
    recipient: Recipient,
}

/// The process of the other host that gets a packet, if several share an address there: see
/// [`crate::sharing`].
///
/// A segmented send may arrive there as one, and goes to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipient {
    /// The process with this range of queue pair numbers.
    Range(u8),
    /// Any: the packet is for queue pair 1.
    Any,
}

/// The range of queue pair numbers that a packet is for, by which a process at the destination is
/// selected; `None` for queue pair 1.
pub(crate) fn recipient_range(packet: &[u8]) -> Option<u8> {
    match Recipient::of(packet) {
        Recipient::Range(range) => Some(range),
        Recipient::Any => None,
    }
}

impl Recipient {
    fn of(packet: &[u8]) -> Self {
        match packet.get(5..8) {
            Some([0, 0, 1]) => Recipient::Any,
            Some(&[high, low, _]) => Recipient::Range(high << 4 | low >> 4),
            Some(_) | None => Recipient::Range(0),
        }
    }

    fn is_same(self, other: Self) -> bool {
        self == other && self != Recipient::Any
    }
}

/// Most packets of one segmented send or bundle. Kernels before 6.8 accept no more.
const GROUP_PACKETS_MAX: usize = 64;
/// Most bytes of one: with its headers it must be a legal IP packet.
pub const GROUP_BYTES_MAX: usize = 65_000;
const _: () = assert!(GROUP_PACKETS_MAX <= airdma_wire::bundle::BUNDLE_PACKETS_MAX);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    offset: u32,
    /// BTH to pad, without the ICRC.
    len: u32,
    /// IP identification that the ICRC behind the packet was computed for; `None` if not sealed
    /// yet.
    sealed_for: Option<u16>,
    /// The packet's sum stands behind it.
    summed: bool,
    /// Bit to flip after sealing, for a packet that is damaged on purpose (see [`crate::impair`]).
    damage: Option<u32>,
    /// Index into the batch's destinations. Equal for neighbours with the same destination.
    pub(crate) run: u32,
}

/// A packet that waits.
pub(crate) struct Waiting<'a> {
    /// BTH to pad.
    pub(crate) bytes: &'a [u8],
    pub(crate) destination: &'a Destination,
    /// Equal for neighbours with the same destination and recipient.
    pub(crate) run: u32,
    /// The packet is damaged on purpose.
    pub(crate) is_damaged: bool,
}

impl Entry {
    /// Bytes on the wire as UDP payload: BTH to ICRC.
    pub(crate) fn wire_len(&self) -> usize {
        self.len as usize + ICRC_LEN
    }

    /// Bit to flip after sealing, if the packet must be damaged.
    pub(crate) fn damage(&self) -> Option<u32> {
        self.damage
    }
}

impl TransmitBatch {
    /// A batch of at most `packets_max` packets and `bytes` bytes, of which each packet takes its
    /// length and 4.
    ///
    /// # Panics
    /// If `bytes` does not fit 32 bits.
    pub fn with_capacity(bytes: usize, packets_max: usize) -> Self {
        assert!(
            u32::try_from(bytes).is_ok(),
            "a batch of {bytes} bytes is out of proportion"
        );
        TransmitBatch {
            buffer: vec![0; bytes].into_boxed_slice(),
            entries: Vec::with_capacity(packets_max),
            entries_max: packets_max,
            headroom: 0,
            equal_lengths: true,
            destinations: Vec::with_capacity(packets_max),
            head: 0,
            tail: 0,
            reserved: 0,
            recipient: Recipient::Any,
        }
    }

    /// A batch for the packets of a port: `bytes` count without the headers that it adds.
    pub(crate) fn for_port(bytes: usize, packets_max: usize, port: Capabilities) -> Self {
        let headroom = port.headroom;
        TransmitBatch {
            headroom,
            equal_lengths: port.equal_lengths && headroom == 0,
            ..Self::with_capacity(bytes + packets_max * headroom, packets_max)
        }
    }

    /// Whether packets of equal length are worth [`reserve_run`](Self::reserve_run).
    #[inline]
    pub fn takes_runs(&self) -> bool {
        self.equal_lengths
    }

    /// Room for one packet of up to `len_max` bytes (BTH to pad), or `None` when the batch is full.
    /// The slice is scratch, with arbitrary content, until [`TransmitBatch::commit`]; a second call
    /// before that takes it back.
    #[inline]
    pub fn reserve(&mut self, len_max: usize) -> Option<&mut [u8]> {
        let needed = len_max.checked_add(self.headroom + ICRC_LEN)?;
        let fits = |batch: &Self| {
            batch.buffer.len() - batch.tail >= needed && batch.entries.len() < batch.entries_max
        };
        if !fits(self) {
            self.compact();
            if !fits(self) {
                return None;
            }
        }
        self.reserved = len_max;
        let start = self.tail + self.headroom;
        Some(&mut self.buffer[start..start + len_max])
    }

    /// Whether there is room for `packets` packets of up to `len_max` bytes each (BTH to pad).
    pub fn has_room(&mut self, packets: usize, len_max: usize) -> bool {
        let needed = packets * (len_max + self.headroom + ICRC_LEN);
        let fits = |batch: &Self| {
            batch.buffer.len() - batch.tail >= needed
                && batch.entries.len() + packets <= batch.entries_max
        };
        if !fits(self) {
            self.compact();
        }
        fits(self)
    }

    /// Makes the first `len` bytes of the reserved slice the next packet. `len` counts BTH to pad.
    ///
    /// # Panics
    /// If nothing is reserved, `len` exceeds the reservation, `len` is not a multiple of 4 (the pad
    /// is missing), or it is less than a BTH: such a datagram ends the kernel of a peer with rxe of
    /// Linux 6.1.
    pub fn commit(&mut self, len: usize, destination: Destination) {
        self.push(len, Some(destination));
    }

    /// As [`commit`](Self::commit), with the destination of the packet that was committed before.
    ///
    /// # Panics
    /// As it, and if none waits.
    #[inline]
    pub fn commit_another(&mut self, len: usize) {
        assert!(!self.is_empty(), "there is no packet before this one");
        self.push(len, None);
    }

    /// `None`: the destination of the packet before.
    #[inline]
    fn push(&mut self, len: usize, destination: Option<Destination>) {
        assert!(
            (Bth::LEN..=self.reserved).contains(&len),
            "commit of {len} bytes, reserved were {}",
            self.reserved
        );
        assert!(
            len.is_multiple_of(4),
            "a RoCEv2 packet is padded to four bytes, not {len}"
        );
        self.reserved = 0;
        let start = self.tail + self.headroom;
        let recipient = Recipient::of(&self.buffer[start..start + len]);
        let last = self.destinations.last().copied();
        let goes_on =
            (destination.is_none() || destination == last) && recipient.is_same(self.recipient);
        if let Some(destination) = destination.or(last).filter(|_| !goes_on) {
            self.destinations.push(destination);
        }
        self.recipient = recipient;
        self.entries.push(Entry {
            offset: start as u32,
            len: len as u32,
            sealed_for: None,
            summed: false,
            damage: None,
            run: self.destinations.len() as u32 - 1,
        });
        self.tail = start + len + ICRC_LEN;
    }

    /// Room for packets of one length, `len` bytes each (BTH to pad), for up to `packets` of them:
    /// they stand `len` + 4 bytes apart, which leaves room for the ICRC of each. Shorter than asked
    /// for where the batch has no more room. Otherwise as [`reserve`](Self::reserve).
    pub fn reserve_run(&mut self, len: usize, packets: usize) -> &mut [u8] {
        debug_assert!(
            self.takes_runs(),
            "packets of a run have no headers between them"
        );
        let each = len + ICRC_LEN;
        let room = (self.buffer.len() - self.tail) / each;
        let packets = packets.min(room).min(self.entries_max - self.entries.len());
        self.reserved = packets * each;
        &mut self.buffer[self.tail..self.tail + self.reserved]
    }

    /// Makes the first `packets` of the reserved run the next packets, for the queue pair and the
    /// destination of the packet that was committed before.
    ///
    /// # Panics
    /// If none waits, `packets` exceed the reservation, or `len` is not a multiple of 4.
    pub fn commit_run(&mut self, len: usize, packets: usize) {
        self.push_run(len, packets, false);
    }

    /// As [`commit_run`](Self::commit_run), where [`CopySum`](crate::CopySum) has written the
    /// sum of each packet behind it.
    ///
    /// # Panics
    /// As there.
    pub fn commit_summed_run(&mut self, len: usize, packets: usize) {
        self.push_run(len, packets, true);
    }

    #[inline]
    fn push_run(&mut self, len: usize, packets: usize, summed: bool) {
        assert!(!self.is_empty(), "there is no packet before this run");
        let each = len + ICRC_LEN;
        assert!(
            packets * each <= self.reserved && len >= Bth::LEN && len.is_multiple_of(4),
            "commit of {packets} packets of {len} bytes, reserved were {} bytes",
            self.reserved
        );
        self.reserved = 0;
        let run = self.destinations.len() as u32 - 1;
        self.entries.extend((0..packets).map(|index| Entry {
            offset: (self.tail + index * each) as u32,
            len: len as u32,
            sealed_for: None,
            summed,
            damage: None,
            run,
        }));
        self.tail += packets * each;
    }

    /// No packet waits.
    pub fn is_empty(&self) -> bool {
        self.head == self.entries.len()
    }

    /// Packets that wait.
    pub fn len(&self) -> usize {
        self.entries.len() - self.head
    }

    /// Bytes that wait, ICRCs included.
    pub fn bytes(&self) -> usize {
        self.tail - self.start()
    }

    /// Forgets all packets.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.destinations.clear();
        self.head = 0;
        self.tail = 0;
        self.reserved = 0;
    }

    /// The waiting packets, oldest first: bytes from BTH to pad, and destination. For other ports,
    /// and for tests.
    pub fn packets(&self) -> impl Iterator<Item = (&[u8], &Destination)> {
        self.waiting()
            .iter()
            .map(|entry| (&self.buffer[self.range(entry)], self.destination(entry)))
    }

    /// Drops the `count` oldest packets: they were sent, or refused.
    ///
    /// # Panics
    /// If fewer packets wait.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "advance past the end of the batch");
        self.head += count;
        if self.is_empty() {
            self.clear();
        }
    }

    pub(crate) fn waiting(&self) -> &[Entry] {
        &self.entries[self.head..]
    }

    pub(crate) fn destination(&self, entry: &Entry) -> &Destination {
        &self.destinations[entry.run as usize]
    }

    /// Destination of the oldest waiting packet.
    pub(crate) fn next_destination(&self) -> Option<Destination> {
        self.waiting().first().map(|entry| *self.destination(entry))
    }

    /// Number of packets, from the `first`-th waiting one on, that can leave together: equal in
    /// destination and size, except that the last may be shorter.
    #[inline(always)]
    pub(crate) fn group_len(&self, first: usize) -> usize {
        let waiting = &self.waiting()[first..];
        let Some(first) = waiting.first() else {
            return 0;
        };
        let segment = first.wire_len();
        let mut bytes = segment;
        let mut count = 1;
        for next in waiting.iter().take(GROUP_PACKETS_MAX).skip(1) {
            let len = next.wire_len();
            if len > segment || bytes + len > GROUP_BYTES_MAX || next.run != first.run {
                break;
            }
            bytes += len;
            count += 1;
            if len < segment {
                break;
            }
        }
        count
    }

    /// What the last segmented send has room for: number of packets, and their length (BTH to pad).
    /// `None` if it is full, or ends with a shorter packet.
    pub fn room_of_last_send(&self) -> Option<(usize, usize)> {
        let waiting = self.waiting();
        let mut first = 0;
        loop {
            let next = first + self.group_len(first);
            if next >= waiting.len() {
                break;
            }
            first = next;
        }
        let (begin, end) = (waiting.get(first)?, waiting.last()?);
        let packets_max = GROUP_PACKETS_MAX.min(GROUP_BYTES_MAX / begin.wire_len());
        let room = packets_max.saturating_sub(waiting.len() - first);
        (room > 0 && end.len == begin.len).then_some((room, end.len as usize))
    }

    /// The header of a bundle of `count` packets, from the `first`-th waiting one on.
    pub(crate) fn bundle_header(&self, first: usize, count: usize) -> [u8; BUNDLE_HEADER_LEN] {
        let entry = &self.waiting()[first];
        let packet = &self.buffer[self.range(entry)];
        let number = match packet.get(5..8) {
            Some(&[a, b, c]) => Qpn::new(u32::from_be_bytes([0, a, b, c])),
            Some(_) | None => Qpn::default(),
        };
        // `group_len` keeps the sum below 65,000, so one segment fits.
        bundle_header(entry.wire_len() as u16, count, number)
    }

    /// Bytes from the first byte of the `first`-th waiting packet to the ICRC of the last of
    /// `count`.
    pub(crate) fn wire_bytes(&self, first: usize, count: usize) -> &[u8] {
        let entries = &self.waiting()[first..first + count];
        let (Some(start), Some(end)) = (entries.first(), entries.last()) else {
            return &[];
        };
        &self.buffer[start.offset as usize..end.offset as usize + end.wire_len()]
    }

    /// The headers of the `index`-th waiting packet, which have this length.
    pub(crate) fn headers(&mut self, index: usize, header_len: usize) -> &mut [u8] {
        let end = self.entries[self.head + index].offset as usize;
        assert!(
            header_len <= self.headroom,
            "the batch is lent by another port"
        );
        &mut self.buffer[end - header_len..end]
    }

    /// The bytes from there to its ICRC.
    pub(crate) fn frame(&self, index: usize, header_len: usize) -> &[u8] {
        let entry = &self.waiting()[index];
        let start = entry.offset as usize;
        &self.buffer[start - header_len..start + entry.wire_len()]
    }

    /// Writes the ICRC behind the `index`-th waiting packet, for the IP identification `id`. Cheap
    /// when that is done already. That of a sealed packet is 0.
    #[inline(always)]
    pub(crate) fn seal(&mut self, index: usize, flow: &Flow, id: u16, icrcs: &mut IcrcCache) {
        let entry = &mut self.entries[self.head + index];
        if entry.sealed_for == Some(id) {
            return;
        }
        entry.sealed_for = Some(id);
        let start = entry.offset as usize;
        let packet = &mut self.buffer[start..start + entry.len as usize + ICRC_LEN];
        let Some((bytes, trailer)) = packet.split_last_chunk_mut::<ICRC_LEN>() else {
            return;
        };
        let icrc = if is_sealed(bytes) {
            0
        } else if std::mem::take(&mut entry.summed) {
            icrcs.icrc_summed(flow, id, bytes, u32::from_le_bytes(*trailer))
        } else {
            icrcs.icrc(flow, id, bytes)
        };
        *trailer = icrc.to_le_bytes();
        if let Some(bit) = entry.damage {
            let (mut byte, bit) = (bit as usize / 8 % packet.len(), bit % 8);
            if byte == CONGESTION_AT {
                // Outside the ICRC, where it would not be noticed.
                byte += 1;
            }
            packet[byte] ^= 1 << bit;
        }
    }

    /// Takes out the waiting packets for which `take` returns true.
    pub(crate) fn take_out(&mut self, mut take: impl FnMut(Waiting<'_>) -> bool) {
        let (buffer, destinations) = (&self.buffer, &self.destinations);
        let mut index = 0;
        let head = self.head;
        self.entries.retain(|entry| {
            let has_left = index < head;
            index += 1;
            let start = entry.offset as usize;
            has_left
                || !take(Waiting {
                    bytes: &buffer[start..start + entry.len as usize],
                    destination: &destinations[entry.run as usize],
                    run: entry.run,
                    is_damaged: entry.damage.is_some(),
                })
        });
        if self.is_empty() {
            self.clear();
        }
    }

    /// Copies the `index`-th waiting packet to the end of `to`, to be damaged there if `damage`
    /// names a bit. False when `to` is full.
    pub(crate) fn copy_packet(&self, index: usize, to: &mut Self, damage: Option<u32>) -> bool {
        let entry = &self.waiting()[index];
        let bytes = &self.buffer[self.range(entry)];
        let Some(room) = to.reserve(bytes.len()) else {
            return false;
        };
        room.copy_from_slice(bytes);
        to.commit(bytes.len(), *self.destination(entry));
        if let Some(copy) = to.entries.last_mut() {
            copy.damage = damage;
        }
        true
    }

    /// Moves what waits to the front of the buffer. Only done when the space behind has run out, so
    /// a packet moves rarely.
    fn compact(&mut self) {
        if self.head == 0 {
            return;
        }
        let start = self.start();
        let run = self.waiting().first().map_or(0, |entry| entry.run);
        self.buffer.copy_within(start..self.tail, 0);
        self.entries.drain(..self.head);
        self.destinations.drain(..run as usize);
        for entry in &mut self.entries {
            entry.offset -= start as u32;
            entry.run -= run;
        }
        self.head = 0;
        self.tail -= start;
    }

    fn start(&self) -> usize {
        self.waiting()
            .first()
            .map_or(self.tail, |entry| entry.offset as usize - self.headroom)
    }

    fn range(&self, entry: &Entry) -> std::ops::Range<usize> {
        let start = entry.offset as usize;
        start..start + entry.len as usize
    }
}

#[cfg(test)]
mod tests;
