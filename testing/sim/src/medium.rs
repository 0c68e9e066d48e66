//! Something that several nodes share, and that decides by itself when a packet gets through: a
//! radio channel. It knows nothing of packets but their length.

use airdma_transport::Time;

use crate::trace::Fate;

/// A shared medium. Stations are numbered by their place in the list that
/// [`Topology::share`](crate::Topology::share) was given.
pub trait Medium {
    /// Station `from` queues an IP packet of `bytes` for station `to`. The medium says later, by
    /// `token`, what became of it; also if its queue is full.
    fn enqueue(&mut self, now: Time, from: usize, to: usize, bytes: usize, token: u64);

    /// When [`Medium::advance`] wants to be called next; never earlier than the last call.
    fn poll_at(&self) -> Option<Time>;

    /// Lets time pass up to `now` and says what became of packets, in order of time.
    fn advance(&mut self, now: Time, each: &mut dyn FnMut(Passed));

    /// When station `from` may hand over the next packet, if the medium makes senders wait.
    fn ready_at(&self, from: usize) -> Time {
        let _ = from;
        Time::ZERO
    }

    /// As it was written, for the topology's text.
    fn sentence(&self) -> String;
}

/// What became of a packet on a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Which packet.
    pub token: u64,
    /// When it arrived or was given up.
    pub at: Time,
    /// `None` if it arrived, else why not.
    pub dropped: Option<Fate>,
}
