//! The direction of a lane in which this end writes.

use std::task::Poll;
use std::time::Instant;

use airdma::Region;

use super::hand_back::Phase;
use super::{
    ASKED_EVERY, HEADER_BYTES, Header, Kind, Lane, MESSAGE_BYTES, RESERVE, RUN_EVERY, SILENT_FOR,
    Sent, UNOPENED_MAX,
};
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

    /// Whether the kernel has ended the connection beside its lane, or the peer's kernel its
    /// stream: the peer was killed, say, or a keepalive failed. The lane is lost once all that it
    /// brought is read.
    pub fn notices_end(&mut self, fd: i32) -> bool {
        let may_be =
            |lane: &Lane| lane.sending.is_switched && lane.phase() != Phase::Done && !lane.failed;
        if !may_be(self) || !tcp::has_end(fd) {
            return false;
        }
        // A peer that closes says so by the lane before, and that is here.
        self.progress(fd);
        if !may_be(self) {
            return false;
        }
        self.failed = self.receiving.arrived.is_empty();
        true
    }

    /// Asks the kernel's connection for a sign of life of a peer that acknowledges nothing for a
    /// while, and notices its end.
    pub fn check_peer(&mut self, fd: i32) {
        if self.is_silent() {
            // Sends that have ended may not have been entered.
            self.attend();
            self.reclaim();
        }
        if !self.is_silent() {
            self.sending.asked_at = None;
            return;
        }
        if self.notices_end(fd) {
            self.progress(fd);
            return;
        }
        let is_asked = |at: Instant| at.elapsed() < ASKED_EVERY;
        let may_ask = self.sending.is_switched && self.heard.drained;
        if may_ask
            && self.phase() == Phase::None
            && !self.sending.asked_at.is_some_and(is_asked)
            && tcp::send_token(fd, 0)
        {
            self.sending.tokens += 1;
            self.sending.asked_at = Some(Instant::now());
        }
    }

    /// Whether the oldest message is on its way for long, as far as is known.
    fn is_silent(&self) -> bool {
        let mut on_way = self.sending.sent.iter();
        let oldest = on_way.find(|sent| sent.operation.is_some());
        oldest.is_some_and(|sent| sent.at.elapsed() >= SILENT_FOR)
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
        // Without memory the kernel refuses it for a while.
        if self.heard.drained && self.sending.tokens == 0 && tcp::send_token(fd, 0) {
            self.sending.tokens += 1;
        }
    }

    /// Messages that stay free while the peer's program has not read what the kernel had: then the
    /// kernel's queue must have room for all that a hand-back gives it.
    fn reserve(&self) -> usize {
        if self.heard.drained { 0 } else { RESERVE }
    }

    /// Whether writes wait although the kernel's descriptor looks writable: the peer's program has
    /// not read what the kernel had, so that no token may shut the gate.
    pub fn has_no_gate(&self) -> bool {
        self.sending.gate_shut && !(self.sending.is_switched && self.heard.drained)
    }

    /// Whether the end of a send matters before the next message of the peer: memory returns by the
    /// later of both.
    pub(super) fn waits_for_sends(&self) -> bool {
        let sending = &self.sending;
        let is_plain = sending.is_switched && self.phase() == Phase::None && !self.failed;
        !is_plain || sending.gate_shut && sending.consumed > 0
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
            let is_corked = sending.is_corked;
            let filling = &mut sending.filling;
            let next = (sending.waiting.pop_front()).or_else(|| filling.take_if(|_| !is_corked));
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
            sending.unrun += length;
            sending.sent.push_back(Sent {
                operation: Some(operation),
                region: None,
                length,
                at: Instant::now(),
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

    /// Sends what the program keeps back, as far as there are credits.
    pub fn send_kept_back(&mut self) {
        let is_corked = std::mem::take(&mut self.sending.is_corked);
        self.pump();
        self.sending.is_corked = is_corked;
    }

    /// Whether bytes of the program wait for more of them.
    pub fn keeps_back(&self) -> bool {
        self.sending.is_open && self.sending.filling.is_some()
    }

    pub(super) fn has_room(&self) -> bool {
        let sending = &self.sending;
        let fits = |(_, length): &(Region, usize)| HEADER_BYTES + length < MESSAGE_BYTES;
        sending.free.len() > self.reserve() || sending.filling.as_ref().is_some_and(fits)
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
        if self.sending.free.len() <= self.reserve() {
            self.run(fd);
        }
        // Running the device may bring the end of the lane.
        while !bytes.is_empty() && !self.failed && self.phase() == Phase::None {
            let reserve = self.reserve();
            let sending = &mut self.sending;
            let filling = sending.filling.take();
            let has_free = sending.free.len() > reserve;
            let mut empty = || sending.free.pop().map(|region| (region, 0));
            let next = if has_free {
                filling.or_else(&mut empty)
            } else {
                filling
            };
            let Some((mut region, length)) = next else {
                break;
            };
            let start = HEADER_BYTES + length;
            let count = bytes.len().min(MESSAGE_BYTES - start);
            let (now, later) = bytes.split_at(count);
            region[start..start + count].copy_from_slice(now);
            bytes = later;
            sending.bytes += count as u64;
            let filled = (region, length + count);
            if start + count < MESSAGE_BYTES {
                sending.filling = Some(filled);
                break;
            }
            sending.waiting.push_back(filled);
            self.pump();
            self.run_for_much(fd);
        }
        if !more && !self.sending.is_corked {
            self.pump();
            self.run_for_much(fd);
        }
        let written = taken - bytes.len();
        if written < all && self.phase() == Phase::None {
            self.shut_write_gate(fd);
        }
        written
    }

    /// Runs the device if much was sent since it ran.
    fn run_for_much(&mut self, fd: i32) {
        if self.sending.unrun >= RUN_EVERY {
            self.run(fd);
        }
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
        // Programs try again before they ask the kernel, and each time would cost a token.
        let is_shut = self.sending.gate_shut && !tcp::is_writable(fd);
        if may_send_tokens && !is_shut && tcp::shut_write_gate(fd) {
            self.sending.tokens += 1;
        }
        self.sending.gate_shut = true;
        // Room may have come meanwhile.
        self.run(fd);
    }

    /// Bytes that the peer has not acknowledged.
    pub fn unsent(&mut self) -> i32 {
        self.attend();
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
