//! A block-ack agreement (802.11-2020 10.25): the packets of one sender to one receiver, from the
//! queue through the window to the receiver's reorder buffer.
//!
//! Sequence numbers are counted without wrapping here. The sender's window begins at the oldest
//! MPDU that is neither acknowledged nor given up and is never wider than agreed, so an MPDU that
//! is lost again and again holds back all behind it. The receiver passes packets on in order; at a
//! gap it waits until the sender either fills it or gives up with a block-ack request.

use std::collections::VecDeque;

use airdma_transport::Time;

use super::outcome::{Cause, Fate, Outcome};
use super::phy::{mpdu_bytes, subframe_bytes};
use super::station::StationId;

/// A packet that waits for its first transmission.
#[derive(Clone, Copy, Debug)]
struct Msdu {
    token: u64,
    bytes: u32,
    arrived: Time,
}

/// A packet that has a sequence number.
#[derive(Clone, Copy, Debug)]
struct Mpdu {
    msdu: Msdu,
    /// Times it was sent without an acknowledgement (the short retry counter).
    failures: u8,
    /// The receiver has it.
    received: bool,
    /// The sender has finished with it: acknowledged or given up.
    done: bool,
}

/// Limits of one PPDU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) mpdus_max: usize,
    pub(crate) bytes_max: u64,
    /// Later packets stay out.
    pub(crate) arrived_until: Time,
}

/// Result of a PPDU at the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) packets: usize,
    pub(crate) bytes: u64,
    pub(crate) given_up: u64,
}

/// One direction between two stations.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    from: StationId,
    to: StationId,
    window_max: u16,
    attempts_max: u8,
    queue: VecDeque<Msdu>,
    window: VecDeque<Mpdu>,
    /// Sequence number of the first of `window`.
    first: u64,
    /// First sequence number of the sender's window.
    start: u64,
    /// Next sequence number that the receiver passes on.
    next_release: u64,
    /// The receiver was told not to wait for gaps before this sequence number.
    told: u64,
    /// The sender gave up an MPDU that the receiver may wait for.
    must_tell: bool,
    /// Requests that the receiver did not get.
    requests: u8,
    /// Widest that the window has been, for tests.
    widest: u64,
}

impl Agreement {
    pub(crate) fn new(from: StationId, to: StationId, window_max: u16, attempts_max: u8) -> Self {
        Agreement {
            from,
            to,
            window_max,
            attempts_max,
            queue: VecDeque::new(),
            window: VecDeque::new(),
            first: 0,
            start: 0,
            next_release: 0,
            told: 0,
            must_tell: false,
            requests: 0,
            widest: 0,
        }
    }

    pub(crate) fn to(&self) -> StationId {
        self.to
    }

    pub(crate) fn widest(&self) -> u64 {
        self.widest
    }

    /// Whether a block-ack request is due.
    pub(crate) fn must_tell(&self) -> bool {
        self.must_tell
    }

    pub(crate) fn enqueue(&mut self, now: Time, bytes: u32, token: u64) {
        self.queue.push_back(Msdu {
            token,
            bytes,
            arrived: now,
        });
    }

    /// Whether a packet that came until then must be sent.
    pub(crate) fn is_waiting_since(&self, until: Time) -> bool {
        let queued = self.queue.front();
        self.must_tell || self.has_open() || queued.is_some_and(|msdu| msdu.arrived <= until)
    }

    fn has_open(&self) -> bool {
        self.start < self.first + self.window.len() as u64
    }

    /// Number of failed attempts of the window's oldest MPDU.
    pub(crate) fn failures(&self) -> u8 {
        self.window
            .get((self.start - self.first) as usize)
            .map_or(0, |mpdu| mpdu.failures)
    }

    /// Chooses the MPDUs of a PPDU, oldest first, and returns their bytes with all that an A-MPDU
    /// adds. At least one is chosen if there is one, however long it is.
    pub(crate) fn select(&mut self, limits: &Limits, chosen: &mut Vec<u64>) -> u64 {
        chosen.clear();
        let mut bytes = 0;
        let mut sequence = self.start;
        while chosen.len() < limits.mpdus_max && sequence < self.start + u64::from(self.window_max)
        {
            let index = (sequence - self.first) as usize;
            if index == self.window.len() && !self.admit(limits, bytes, chosen.is_empty()) {
                break;
            }
            let mpdu = &mut self.window[index];
            if !mpdu.done {
                let subframe = mpdu.msdu.subframe_bytes();
                if bytes + subframe > limits.bytes_max && !chosen.is_empty() {
                    break;
                }
                bytes += subframe;
                chosen.push(sequence);
                self.widest = self.widest.max(sequence + 1 - self.start);
            }
            sequence += 1;
        }
        bytes
    }

    /// Gives the next packet of the queue a sequence number, if it fits behind `bytes`.
    fn admit(&mut self, limits: &Limits, bytes: u64, is_first: bool) -> bool {
        let Some(&msdu) = self.queue.front() else {
            return false;
        };
        let fits = is_first || bytes + msdu.subframe_bytes() <= limits.bytes_max;
        if msdu.arrived > limits.arrived_until || !fits {
            return false;
        }
        self.queue.pop_front();
        self.window.push_back(Mpdu {
            msdu,
            failures: 0,
            received: false,
            done: false,
        });
        true
    }

    /// Length of an MPDU that was chosen, in bytes.
    pub(crate) fn mpdu_bytes(&self, sequence: u64) -> u32 {
        mpdu_bytes(self.window[(sequence - self.first) as usize].msdu.bytes)
    }

    /// Records that the receiver got this MPDU, for the first time or again.
    pub(crate) fn receive(&mut self, sequence: u64) {
        self.window[(sequence - self.first) as usize].received = true;
    }

    /// Sends a block-ack request. If the receiver hears it, it does not wait for what was given up;
    /// if it hears none for long, its own timer has the same effect.
    pub(crate) fn tell(&mut self, is_heard: bool, at: Time, out: &mut Vec<Outcome>) {
        self.requests += 1;
        if is_heard || self.requests == self.attempts_max {
            self.told = self.start;
            self.must_tell = false;
            self.requests = 0;
            self.release(at, out);
        }
    }

    /// Ends the PPDU with these MPDUs. If it was answered, received MPDUs are done; the rest is
    /// retried or given up.
    pub(crate) fn settle(
        &mut self,
        chosen: &[u64],
        answered: bool,
        at: Time,
        out: &mut Vec<Outcome>,
    ) -> Settled {
        let mut settled = Settled::default();
        for &sequence in chosen {
            let mpdu = &mut self.window[(sequence - self.first) as usize];
            let acknowledged = answered && mpdu.received;
            if !acknowledged {
                mpdu.failures += 1;
                if mpdu.failures < self.attempts_max {
                    continue;
                }
            }
            let mpdu = *mpdu;
            if !acknowledged {
                self.give_up(&mpdu, Cause::Retries, at, out);
                settled.given_up += u64::from(!mpdu.received);
            }
            self.window[(sequence - self.first) as usize].done = true;
            settled.add(&mpdu.msdu);
        }
        self.slide();
        settled
    }

    /// Gives up packets beyond their lifetime.
    pub(crate) fn expire(&mut self, older_than: Time, at: Time, out: &mut Vec<Outcome>) -> Settled {
        let mut settled = Settled::default();
        // Packets are in the order of their arrival, in the window as in the queue.
        for index in (self.start - self.first) as usize..self.window.len() {
            let mpdu = self.window[index];
            if mpdu.msdu.arrived >= older_than {
                break;
            }
            if !mpdu.done {
                self.window[index].done = true;
                self.give_up(&mpdu, Cause::Lifetime, at, out);
                settled.given_up += u64::from(!mpdu.received);
                settled.add(&mpdu.msdu);
            }
        }
        while let Some(&msdu) = self.queue.front() {
            if msdu.arrived >= older_than {
                break;
            }
            self.queue.pop_front();
            out.push(self.outcome(&msdu, at, Fate::Lost(Cause::Lifetime)));
            settled.given_up += 1;
            settled.add(&msdu);
        }
        self.slide();
        settled
    }

    fn give_up(&self, mpdu: &Mpdu, cause: Cause, at: Time, out: &mut Vec<Outcome>) {
        if !mpdu.received {
            out.push(self.outcome(&mpdu.msdu, at, Fate::Lost(cause)));
        }
    }

    /// Passes on the receiver's packets that are in order.
    pub(crate) fn release(&mut self, at: Time, out: &mut Vec<Outcome>) {
        while let Some(mpdu) = self.window.get((self.next_release - self.first) as usize) {
            if mpdu.received {
                out.push(self.outcome(&mpdu.msdu, at, Fate::Delivered));
            } else if self.next_release >= self.told {
                break;
            }
            self.next_release += 1;
        }
        self.forget();
    }

    /// Moves the sender's window past MPDUs that are done.
    fn slide(&mut self) {
        while let Some(mpdu) = self.window.get((self.start - self.first) as usize) {
            if !mpdu.done {
                break;
            }
            self.must_tell |= !mpdu.received;
            self.start += 1;
        }
        self.forget();
    }

    /// Drops MPDUs that both sides have finished with.
    fn forget(&mut self) {
        let until = self.start.min(self.next_release);
        while self.first < until {
            self.window.pop_front();
            self.first += 1;
        }
    }

    fn outcome(&self, msdu: &Msdu, at: Time, fate: Fate) -> Outcome {
        Outcome {
            token: msdu.token,
            from: self.from,
            to: self.to,
            at,
            fate,
        }
    }
}

impl Msdu {
    fn subframe_bytes(&self) -> u64 {
        u64::from(subframe_bytes(mpdu_bytes(self.bytes)))
    }
}

impl Settled {
    fn add(&mut self, msdu: &Msdu) {
        self.packets += 1;
        self.bytes += u64::from(msdu.bytes);
    }
}
