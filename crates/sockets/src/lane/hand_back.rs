//! The hand-back: the lane gives the stream back to the kernel's socket, for ever.
//!
//! | end whose program needs the kernel's socket | | its peer |
//! |---|---|---|
//! | writes no more to the lane; once what it sent is acknowledged, `Back`: how many bytes its program has read | -> | |
//! | | <- | writes no more to the lane; once what it sent is acknowledged, `Back`: from which byte on it takes the stream from the kernel |
//! | takes the peer's tokens, writes what has not left, and is the kernel's | | writes what the other program has not read, and is the kernel's once its own has read what the lane brought |
//!
//! There is one message, each end sends it once, and either may begin: if both do, each message
//! answers the other. It says from which byte of the peer's stream on the lane the kernel's carries
//! on, and how many tokens lie before that byte there. An end whose program needs the socket names
//! the byte that its program reads next, so that nothing of the stream is left in this process. Any
//! other end keeps what has arrived, unless that is little.

use std::collections::VecDeque;

use airdma::Region;

use super::{HEADER_BYTES, Kind, LOST_FOR, Lane};
use crate::hand_back::Need;
use crate::tcp;

/// Unread bytes that an answering end does not keep: there is room for them in the kernel's queues.
const SMALL: usize = 16 * 1024;

/// How far a hand-back is at one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// None: the lane has the stream.
    #[default]
    None,
    /// Nothing more is written to the lane, and what was sent is not yet acknowledged.
    Stopping,
    /// `Back` is sent, the peer's has not come.
    Told,
    /// Both are there: the kernel has the stream.
    Done,
}

/// What the peer's `Back` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Back {
    /// From which byte on the peer takes this end's stream from the kernel.
    pub from: u64,
    /// Tokens that the peer has written to the kernel's stream, all in all.
    pub tokens: u32,
}

/// The hand-back of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandBack {
    /// For what this end's program needs the kernel's socket.
    need: Option<Need>,
    is_told: bool,
    heard: Option<Back>,
}

impl HandBack {
    /// How far it is.
    pub fn phase(&self) -> Phase {
        match (self.is_told, self.heard) {
            (true, Some(_)) => Phase::Done,
            (true, None) => Phase::Told,
            (false, None) if self.need.is_none() => Phase::None,
            (false, _) => Phase::Stopping,
        }
    }

    /// This end's program needs the kernel's socket.
    pub fn ask(&mut self, need: Need) {
        self.need.get_or_insert(need);
    }

    /// For what it needed it first; `None` if the peer began.
    pub fn need(&self) -> Option<Need> {
        self.need
    }

    /// The peer's `Back` has come. Whether it may.
    pub fn hear(&mut self, back: Back) -> bool {
        let is_first = self.heard.is_none();
        self.heard.get_or_insert(back);
        is_first
    }

    /// This end sends its `Back`. `read` of `received` bytes of the peer's stream on the lane are
    /// read: from which byte on it takes the stream from the kernel.
    pub fn tell(&mut self, read: u64, received: u64) -> u64 {
        self.is_told = true;
        let is_small = received - read <= SMALL as u64;
        // What is kept makes the descriptor readable by a token.
        let has_token = self.heard.is_some_and(|back| back.tokens > 0);
        if self.need.is_some() || is_small || !has_token {
            read
        } else {
            received
        }
    }
}

/// What the kernel still gets of a stream that was the lane's.
#[derive(Default)]
pub struct Rest {
    parts: VecDeque<(Region, usize, usize)>,
}

impl Rest {
    /// Adds the bytes of a message up to `end`, without the first `skip` of its payload.
    fn add(&mut self, region: Region, length: usize, skip: usize) {
        if skip < length {
            self.parts
                .push_back((region, HEADER_BYTES + skip, HEADER_BYTES + length));
        }
    }

    /// Writes what there is room for.
    fn push(&mut self, fd: i32) {
        while let Some((region, at, end)) = self.parts.front_mut() {
            *at += tcp::send_some(fd, &region[*at..*end]);
            if at < end {
                return;
            }
            self.parts.pop_front();
        }
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, at, end)| end - at).sum()
    }
}

impl Lane {
    /// This end's program needs the kernel's socket.
    pub fn ask_back(&mut self, fd: i32, need: Need) {
        self.hand_back.ask(need);
        self.run(fd);
    }

    /// Whether the stream is on its way from the lane to the kernel, or stays there: calls look
    /// again in a moment.
    pub fn is_moving(&self) -> bool {
        let opens_not = self.failed && !self.is_lost();
        opens_not || matches!(self.phase(), Phase::Stopping | Phase::Told)
    }

    /// Whether the kernel has all that was written here, and the peer knows all it needs.
    pub fn is_given(&self) -> bool {
        self.phase() == Phase::Done && self.rest.parts.is_empty() && self.sending.control.is_empty()
    }

    /// Whether the kernel's socket is all there is of the connection.
    pub fn is_over(&self) -> bool {
        self.is_given() && self.receiving.arrived.is_empty() && self.tokens_due() == 0
    }

    /// Whether the kernel's streams carry on.
    pub fn is_back(&self) -> bool {
        self.phase() == Phase::Done
    }

    /// Whether the program has not read what the lane brought, of a stream that is back.
    pub fn has_kept(&self) -> bool {
        self.phase() == Phase::Done && !self.receiving.arrived.is_empty()
    }

    pub(super) fn phase(&self) -> Phase {
        self.hand_back.phase()
    }

    /// Bytes that wait for room in the kernel's queue.
    pub fn rest_bytes(&self) -> usize {
        self.rest.bytes()
    }

    /// What changes while a hand-back goes on.
    pub fn left_to_do(&self) -> (Phase, usize, u64) {
        (self.phase(), self.rest_bytes(), self.tokens_due())
    }

    /// Tokens of the peer in the kernel's stream, here or on their way.
    pub fn tokens_due(&self) -> u64 {
        let receiving = &self.receiving;
        u64::from(receiving.tokens_sent).saturating_sub(receiving.tokens_taken)
    }

    /// Carries a hand-back on.
    pub(super) fn carry_back(&mut self, fd: i32) {
        let all_acknowledged = self
            .sending
            .sent
            .iter()
            .all(|sent| sent.operation.is_none());
        // A lane that opens does that first.
        if self.phase() == Phase::Stopping && all_acknowledged && self.sending.is_switched {
            self.tell_back(fd);
            if self.phase() == Phase::Done {
                self.return_stream(fd);
            }
        }
        if self.phase() == Phase::Done {
            self.rest.push(fd);
            self.reclaim_control();
            self.take_due_tokens(fd);
        }
        if self.shut.writing && self.is_given() {
            self.shut.writing = false;
            tcp::shut(fd, libc::SHUT_WR);
        }
    }

    /// The program shuts the connection. For writing the kernel does so once it has what was
    /// written before.
    pub fn shut_later(&mut self, fd: i32, how: i32) {
        if how != libc::SHUT_WR {
            self.shut.reading = true;
            tcp::shut(fd, libc::SHUT_RD);
        }
        if how != libc::SHUT_RD {
            self.shut.writing = true;
            // Writes that wait fail.
            tcp::open_write_gate(fd);
        }
        self.progress(fd);
    }

    /// Whether the program has shut it for writing, and the kernel's socket is not shut yet.
    pub fn is_shut_for_writing(&self) -> bool {
        self.shut.writing
    }

    /// Whether the program has shut it for reading.
    pub fn is_shut_for_reading(&self) -> bool {
        self.shut.reading
    }

    /// Ends the connection of a lane that is lost, unless the kernel has: by an error, which wakes
    /// what waits. Whether it has ended.
    pub fn ends_if_lost(&mut self, fd: i32) -> bool {
        self.notices_end(fd);
        let is_due = self
            .lost_at
            .is_some_and(|since| since.elapsed() >= LOST_FOR);
        // The end of the kernel's socket takes what is unread there.
        if !is_due || self.phase() == Phase::Done || !self.source_is_lane() {
            return false;
        }
        if !tcp::is_ended(fd) {
            tcp::abort(fd);
        }
        true
    }

    fn tell_back(&mut self, fd: i32) {
        if self.sending.gate_shut {
            self.sending.gate_shut = false;
            tcp::open_write_gate(fd);
        }
        // A token may wait for bytes behind it.
        tcp::push(fd);
        let received = self.receiving.bytes;
        let read = received - self.readable() as u64;
        let from = self.hand_back.tell(read, received);
        if from < received {
            self.receiving.arrived.clear();
            self.receiving.read_of_first = 0;
        }
        self.receiving.takes_more = false;
        self.tell(Kind::Back, from, &[]);
        self.settle_read_gate(fd);
    }

    /// The peer's `Back` has come.
    pub(super) fn hear_back(&mut self, fd: i32, back: Back) {
        self.reclaim();
        let written = self.sending.returned..=self.sending.left;
        if !self.hand_back.hear(back) || !written.contains(&back.from) {
            self.failed = true;
        } else if self.phase() == Phase::Done {
            self.return_stream(fd);
        }
    }

    /// Both ends have said where the kernel's streams carry on.
    fn return_stream(&mut self, fd: i32) {
        let sending = &mut self.sending;
        let read = |back: Back| back.from.checked_sub(sending.returned);
        let Some((back, read)) = self
            .hand_back
            .heard
            .zip(self.hand_back.heard.and_then(read))
        else {
            // The peer has returned credits for messages that it takes from the kernel.
            self.failed = true;
            return;
        };
        let mut skip = usize::try_from(read).unwrap_or(usize::MAX);
        for sent in sending.sent.drain(..) {
            if let Some(region) = sent.region {
                self.rest.add(region, sent.length, skip);
            }
            skip = skip.saturating_sub(sent.length);
        }
        for (region, length) in sending.waiting.drain(..).chain(sending.filling.take()) {
            self.rest.add(region, length, 0);
        }
        self.receiving.tokens_sent = back.tokens;
        self.rest.push(fd);
        self.take_due_tokens(fd);
        self.settle_read_gate(fd);
        // Writes of the program waited.
        tcp::open_write_gate(fd);
    }

    /// Takes the peer's tokens that are here and next in the kernel's stream.
    fn take_due_tokens(&mut self, fd: i32) {
        if self.tokens_due() == 0 || !self.kernel_is_next() {
            return;
        }
        // Not one read more, which would take the error of the connection.
        let here = tcp::count(fd, libc::FIONREAD).unwrap_or(0);
        let taken = tcp::take_tokens(fd, here.min(self.tokens_due()));
        self.receiving.tokens_taken += taken;
        if taken > 0 {
            self.settle_read_gate(fd);
        }
    }

    /// Takes the peer's tokens as a read of the program does: what is not there is its answer.
    pub fn read_due_tokens(&mut self, fd: i32) -> Result<(), libc::c_int> {
        while self.tokens_due() > 0 {
            match tcp::read_tokens(fd, self.tokens_due())? {
                // The end of the stream, which the next read finds too.
                0 => return Ok(()),
                taken => self.receiving.tokens_taken += taken,
            }
        }
        self.progress(fd);
        self.settle_read_gate(fd);
        Ok(())
    }

    /// Whether the kernel's stream carries on with the peer's tokens, or behind them.
    fn kernel_is_next(&self) -> bool {
        self.phase() == Phase::Done
            && self.receiving.arrived.is_empty()
            && self.receiving.from_kernel == Some(0)
    }

    /// The least number of bytes with which the kernel's descriptor is readable, once the stream
    /// is back.
    pub(super) fn readable_from(&self) -> Option<u64> {
        (self.phase() == Phase::Done).then(|| {
            if self.kernel_is_next() {
                self.tokens_due() + 1
            } else {
                1
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACK: Back = Back { from: 7, tokens: 1 };

    #[test]
    fn an_end_that_asks_keeps_nothing_unread() {
        let mut end = HandBack::default();
        assert_eq!(end.phase(), Phase::None);
        end.ask(Need::All);
        end.ask(Need::All);
        assert_eq!(end.phase(), Phase::Stopping);
        assert_eq!(end.tell(10, 1 << 20), 10);
        assert_eq!(end.phase(), Phase::Told);
        assert!(end.hear(BACK));
        assert_eq!(end.phase(), Phase::Done);
    }

    #[test]
    fn an_end_that_answers_keeps_much_and_not_little() {
        for (received, from) in [
            (10 + SMALL as u64, 10),
            (11 + SMALL as u64, 11 + SMALL as u64),
        ] {
            let mut end = HandBack::default();
            assert!(end.hear(BACK));
            assert_eq!(end.phase(), Phase::Stopping);
            assert_eq!(end.tell(10, received), from);
            assert_eq!(end.phase(), Phase::Done);
        }
    }

    #[test]
    fn an_end_that_answers_without_a_token_keeps_nothing() {
        let mut end = HandBack::default();
        assert!(end.hear(Back { from: 7, tokens: 0 }));
        assert_eq!(end.tell(10, 1 << 20), 10);
    }

    #[test]
    fn ends_that_ask_at_once_answer_each_other() {
        let mut end = HandBack::default();
        end.ask(Need::All);
        assert!(end.hear(BACK));
        assert_eq!(end.phase(), Phase::Stopping);
        // An answer to the peer, and yet nothing is kept.
        assert_eq!(end.tell(10, 1 << 20), 10);
        assert_eq!(end.phase(), Phase::Done);
    }

    #[test]
    fn a_second_message_is_refused_and_changes_nothing() {
        let mut end = HandBack::default();
        assert!(end.hear(BACK));
        assert!(!end.hear(Back { from: 9, tokens: 9 }));
        assert_eq!(end.heard, Some(BACK));
    }
}
