//! Packets that are handed on together.

use std::cell::Cell;

use airdma_wire::ICRC_LEN;

/// Packets behind a received one, in the same buffer: of the same origin and length, checked. Their
/// recipient may take them at once, as long as they are alike; those that it leaves are handed on
/// one by one.
#[derive(Debug)]
pub struct Following<'a> {
    /// Packets of `stride` bytes, BTH to ICRC, of which the last may be shorter.
    packets: &'a [u8],
    stride: usize,
    /// Where the next one begins.
    next: Cell<usize>,
}

impl<'a> Following<'a> {
    /// Packets of `stride` bytes each, BTH to ICRC; the last may be shorter.
    pub(crate) fn new(packets: &'a [u8], stride: usize) -> Self {
        Following {
            packets,
            stride,
            next: Cell::new(0),
        }
    }

    /// The next packet, unless it is shorter: BTH to pad.
    #[inline]
    pub fn peek(&self) -> Option<&'a [u8]> {
        let rest = self.packets.get(self.next.get()..)?;
        rest.get(..self.stride)?.get(..self.stride - ICRC_LEN)
    }

    /// Takes the packet that was looked at.
    #[inline]
    pub fn take(&self) {
        self.next.set(self.next.get() + self.stride);
    }

    /// How many bytes were taken so far.
    pub(crate) fn taken(&self) -> usize {
        self.next.get()
    }

    /// The packets that were taken since [`taken`](Self::taken) was `before`: BTH to pad.
    pub(crate) fn taken_since(&self, before: usize) -> impl Iterator<Item = &'a [u8]> {
        let end = self.next.get().min(self.packets.len());
        let taken = self.packets.get(before..end).unwrap_or_default();
        let whole = |packet: &'a [u8]| packet.get(..packet.len().checked_sub(ICRC_LEN)?);
        taken.chunks(self.stride.max(1)).filter_map(whole)
    }

    /// The next packet, which is handed on.
    #[inline]
    pub(crate) fn pop(&self) -> Option<&'a [u8]> {
        let rest = self.packets.get(self.next.get()..)?;
        self.take();
        let len = self.stride.min(rest.len()).checked_sub(ICRC_LEN)?;
        rest.get(..len)
    }
}
