//! The direction of a lane in which this end reads.

use airdma::Message;

use super::{CREDITS, HEADER_BYTES, Kind, Lane, Source, TOKENS_MAX};
use crate::inside;
use crate::lane::hand_back::Phase;
use crate::tcp;

impl Lane {
    /// The peer writes to the lane once the program has read `left` bytes more from the kernel.
    pub fn peer_switches(&mut self, left: u64) {
        self.receiving.from_kernel = Some(left);
    }

    /// Whether the program reads from the lane next.
    pub(super) fn source_is_lane(&self) -> bool {
        self.receiving.from_kernel == Some(0)
    }

    /// Where the program's next bytes come from.
    pub fn source(&self) -> Source {
        match self.receiving.from_kernel {
            None => Source::Kernel(usize::MAX),
            Some(0) => Source::Lane,
            Some(left) => Source::Kernel(usize::try_from(left).unwrap_or(usize::MAX)),
        }
    }

    /// The program has read that many bytes from the kernel.
    pub fn read_from_kernel(&mut self, fd: i32, bytes: usize) {
        if let Some(left) = &mut self.receiving.from_kernel {
            *left = left.saturating_sub(bytes as u64);
            if *left == 0 {
                self.progress(fd);
                self.settle_read_gate(fd);
            }
        }
    }

    /// Shuts the read gate if there is nothing to read.
    pub fn settle_read_gate(&mut self, fd: i32) {
        if let Some(least) = self.readable_from() {
            tcp::set_readable_from(fd, least);
            return;
        }
        if !self.source_is_lane() {
            return;
        }
        if self.has_something() {
            if !self.receiving.gate_open {
                self.receiving.gate_open = true;
                tcp::open_read_gate(fd);
            }
        } else if self.receiving.gate_open {
            // What arrives opens it again: both happen under the lock.
            self.receiving.gate_open = false;
            tcp::shut_read_gate(fd);
        }
    }

    /// The calling thread runs the device and waits for what arrives, and reads it next: the gate
    /// stays shut for what it takes itself.
    pub fn set_awaited(&mut self, is_awaited: bool) {
        self.receiving.awaited_by = is_awaited.then(inside::thread);
    }

    /// Whether nothing has come of what a read waits for.
    pub fn is_quiet(&self) -> bool {
        self.source_is_lane() && self.phase() == Phase::None && !self.has_something()
    }

    fn has_something(&self) -> bool {
        !self.receiving.arrived.is_empty() || self.failed
    }

    /// Bytes that the program can read from the lane.
    pub fn readable(&self) -> usize {
        let payload = |message: &Message| message.len() - HEADER_BYTES;
        let all: usize = self.receiving.arrived.iter().map(payload).sum();
        all - self.receiving.read_of_first
    }

    /// Bytes that the program can read, of `in_kernel` that the kernel has.
    pub fn all_readable(&self, in_kernel: u64) -> i32 {
        let before = self.receiving.from_kernel.unwrap_or(in_kernel);
        let behind = match self.phase() {
            Phase::Done => in_kernel.saturating_sub(before.saturating_add(self.tokens_due())),
            Phase::None | Phase::Stopping | Phase::Told => 0,
        };
        let all = in_kernel.min(before) + self.readable() as u64 + behind;
        i32::try_from(all).unwrap_or(i32::MAX)
    }

    /// Copies received bytes out, into one buffer after the other; how many. With `peek` they stay.
    pub fn read(&mut self, fd: i32, buffers: &mut [&mut [u8]], peek: bool) -> usize {
        if self.receiving.arrived.is_empty() {
            self.run(fd);
        }
        let mut copied = 0;
        let (mut at, mut message) = (self.receiving.read_of_first, 0);
        'buffers: for buffer in buffers {
            let mut room = &mut buffer[..];
            while !room.is_empty() {
                let Some(first) = self.receiving.arrived.get(message) else {
                    break 'buffers;
                };
                let payload = &first[HEADER_BYTES + at..];
                let count = payload.len().min(room.len());
                let (now, later) = room.split_at_mut(count);
                now.copy_from_slice(&payload[..count]);
                room = later;
                copied += count;
                at += count;
                if count == payload.len() {
                    at = 0;
                    if peek {
                        message += 1;
                    } else if let Some(read) = self.receiving.arrived.pop_front()
                        && self.phase() != Phase::Done
                    {
                        self.receiving.owed += 1;
                        self.post(read);
                    }
                }
            }
        }
        if !peek {
            self.receiving.read_of_first = at;
            if usize::from(self.receiving.owed) >= CREDITS / 2 {
                self.tell(Kind::Credits, 0, &[]);
            }
            if self.phase() == Phase::Done && self.receiving.arrived.is_empty() {
                self.progress(fd);
            }
            if copied > 0 {
                self.settle_read_gate(fd);
            }
        }
        copied
    }

    /// Leaves few tokens in the kernel's receive queue.
    pub(super) fn drain_tokens(&mut self, fd: i32) {
        if !self.source_is_lane() {
            return;
        }
        let receiving = &mut self.receiving;
        let there = u64::from(receiving.tokens_sent).saturating_sub(receiving.tokens_taken);
        if there > TOKENS_MAX {
            // The last one may be on its way, and the gate stands on one that is here.
            let here = tcp::count(fd, libc::FIONREAD).unwrap_or(0);
            let most = here.min(there).saturating_sub(1);
            receiving.tokens_taken += tcp::take_tokens(fd, most);
        }
    }

    /// Takes all tokens, so that the kernel closes the connection with FIN.
    pub fn take_all_tokens(&mut self, fd: i32) {
        if self.source_is_lane() {
            // Not one read more, which would take the error of the connection.
            let here = tcp::count(fd, libc::FIONREAD).unwrap_or(0);
            self.receiving.tokens_taken += tcp::take_tokens(fd, here);
        }
    }

    /// Whether the program has left bytes unread that are here.
    pub fn leaves_bytes(&self, fd: i32) -> bool {
        let from_kernel = !self.source_is_lane() && tcp::count(fd, libc::FIONREAD) != Some(0);
        from_kernel || !self.receiving.arrived.is_empty()
    }
}
