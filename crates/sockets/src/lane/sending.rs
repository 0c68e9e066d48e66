//! The direction of a lane in which this end writes.

use std::task::Poll;

use airdma::Region;

use super::hand_back::Phase;
use super::{HEADER_BYTES, Header, Kind, Lane, MESSAGE_BYTES, Sent, UNOPENED_MAX};
use crate::tcp;

impl Lane {
    /// The peer knows from which byte on this end writes to the lane.
    pub fn open(&mut self) {
        self.sending.is_open = true;
        self.pump();
    }

    /// Both ends know where the streams leave the kernel.
    pub fn switched(&mut self) {
        self.sending.is_switched = true;
    }

    /// Whether the lane has failed with a part of the stream. One that fails while it opens may
    /// leave the stream to the kernel.
    pub fn is_lost(&self) -> bool {
        self.failed && self.sending.is_switched
    }

    /// Whether the kernel has ended the connection beside its lane: the peer was killed, say, or a
    /// keepalive failed. The lane is lost once all that it brought is read.
    pub fn notices_end(&mut self, fd: i32) -> bool {
        let may_be = self.sending.is_switched && self.phase() == Phase::None && !self.failed;
        if !may_be || !tcp::is_ended(fd) {
            return false;
        }
        self.progress(fd);
        self.failed |= self.receiving.arrived.is_empty();
        true
    }

    /// Puts the token into the kernel's stream that the read gate of the peer stands on, once all
    /// bytes before it are read: a program that is started anew there, say, would read it.
    pub(super) fn settle_tokens(&mut self, fd: i32) {
        if !self.sending.is_switched || self.phase() != Phase::None || self.failed {
            return;
        }
        if self.source_is_lane() && !self.receiving.drained_told {
            self.receiving.drained_told = true;
            self.tell(Kind::Drained, 0, &[]);
        }
        if self.heard.drained && self.sending.tokens == 0 {
            self.send_token(fd);
        }
    }

    pub(super) fn send_token(&mut self, fd: i32) {
        if tcp::send_token(fd, 0) {
            self.sending.tokens += 1;
        } else {
            self.failed = true;
        }
    }

    /// Whether writes wait although the kernel's descriptor looks writable: the peer's program has
    /// not read what the kernel had, so that no token may shut the gate.
    pub fn has_no_gate(&self) -> bool {
        self.sending.gate_shut && !(self.sending.is_switched && self.heard.drained)
    }

    /// Takes back memory that the peer's program has read.
    pub(super) fn reclaim(&mut self) {
        let sending = &mut self.sending;
        for sent in &mut sending.sent {
            let Some(operation) = &mut sent.operation else {
                continue;
            };
            match operation.look(&self.waker) {
                Poll::Pending => break,
                Poll::Ready(Ok(region)) => sent.region = Some(region),
                Poll::Ready(Err(_)) => self.failed = true,
            }
            sent.operation = None;
        }
        while sending.consumed > 0
            && let Some(first) = sending.sent.front_mut()
            && let Some(region) = first.region.take()
        {
            sending.free.push(region);
            sending.returned += first.length as u64;
            sending.sent.pop_front();
            sending.consumed -= 1;
        }
    }

    /// Sends what has a credit.
    pub(super) fn pump(&mut self) {
        let is_open = self.sending.is_open && self.phase() == Phase::None;
        while is_open && self.sending.credits > 0 && !self.failed {
            let sending = &mut self.sending;
            let next = sending
                .waiting
                .pop_front()
                .or_else(|| sending.filling.take());
            let Some((mut region, length)) = next else {
                return;
            };
            let header = Header {
                kind: Kind::Data,
                credits: std::mem::take(&mut self.receiving.owed),
                tokens: sending.tokens,
                value: 0,
            };
            header.write(&mut region);
            let operation = self.endpoint.send(region, ..HEADER_BYTES + length);
            sending.credits -= 1;
            sending.left += length as u64;
            sending.sent.push_back(Sent {
                operation: Some(operation),
                region: None,
                length,
            });
        }
    }

    /// Keeps messages back until they are full, or no longer.
    pub fn cork(&mut self, is_corked: bool) {
        self.sending.is_corked = is_corked;
        if !is_corked {
            self.pump();
        }
    }

    pub(super) fn has_room(&self) -> bool {
        let sending = &self.sending;
        let fits = |(_, length): &(Region, usize)| HEADER_BYTES + length < MESSAGE_BYTES;
        !sending.free.is_empty() || sending.filling.as_ref().is_some_and(fits)
    }

    /// Copies bytes of the program into messages; how many. `more`: the last message waits for
    /// further bytes. With less than all, the write gate is shut.
    pub fn write(&mut self, fd: i32, mut bytes: &[u8], more: bool) -> usize {
        if self.phase() != Phase::None {
            return 0;
        }
        let all = bytes.len();
        if !self.sending.is_open {
            let room = UNOPENED_MAX.saturating_sub(self.sending.bytes as usize);
            if !tcp::is_writable(fd) {
                return 0;
            }
            bytes = &bytes[..bytes.len().min(room)];
        }
        let taken = bytes.len();
        if self.sending.free.is_empty() {
            self.progress(fd);
        }
        while !bytes.is_empty() && !self.failed {
            let sending = &mut self.sending;
            let filling = sending.filling.take();
            let Some((mut region, length)) = filling.or_else(|| Some((sending.free.pop()?, 0)))
            else {
                break;
            };
            let start = HEADER_BYTES + length;
            let count = bytes.len().min(MESSAGE_BYTES - start);
            let (now, later) = bytes.split_at(count);
            region[start..start + count].copy_from_slice(now);
            bytes = later;
            let filled = (region, length + count);
            if start + count < MESSAGE_BYTES {
                sending.filling = Some(filled);
                break;
            }
            sending.waiting.push_back(filled);
            self.pump();
        }
        if !more && !self.sending.is_corked {
            self.pump();
        }
        let written = taken - bytes.len();
        self.sending.bytes += written as u64;
        if written < all {
            self.shut_write_gate(fd);
        }
        written
    }

    /// What was written before the lane was opened, for the kernel in its place.
    pub fn unopened(&self) -> &[u8] {
        match &self.sending.filling {
            Some((region, length)) if !self.sending.is_open => {
                &region[HEADER_BYTES..HEADER_BYTES + length]
            }
            _ => &[],
        }
    }

    fn shut_write_gate(&mut self, fd: i32) {
        if self.failed {
            return;
        }
        let may_send_tokens = self.sending.is_switched && self.heard.drained;
        if may_send_tokens && tcp::shut_write_gate(fd) {
            self.sending.tokens += 1;
        }
        self.sending.gate_shut = true;
        // Room may have come meanwhile.
        self.progress(fd);
    }

    /// Bytes that the peer has not acknowledged.
    pub fn unsent(&mut self) -> i32 {
        self.reclaim();
        let sending = &self.sending;
        let filling = sending.filling.as_ref().map_or(0, |(_, length)| *length);
        let waiting: usize = sending.waiting.iter().map(|(_, length)| length).sum();
        let on_way = sending.sent.iter().filter(|sent| sent.operation.is_some());
        let on_way: usize = on_way.map(|sent| sent.length).sum();
        i32::try_from(filling + waiting + on_way + self.rest_bytes()).unwrap_or(i32::MAX)
    }

    /// Takes back memory of messages without credits.
    pub(super) fn reclaim_control(&mut self) {
        let sending = &mut self.sending;
        while let Some(operation) = sending.control.front_mut() {
            match operation.look(&self.waker) {
                Poll::Ready(Ok(region)) => sending.control_free.push(region),
                Poll::Ready(Err(_)) => self.failed |= self.hand_back.phase() != Phase::Done,
                Poll::Pending => break,
            }
            sending.control.pop_front();
        }
    }
}
