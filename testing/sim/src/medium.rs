//! A medium shared by several nodes, such as a radio channel, which decides when a packet gets
//! through. It only knows the packets' lengths.

use airdma_transport::Time;

use crate::trace::Fate;

/// A shared medium. Stations are numbered by their place in the list that
/// [`Topology::share`](crate::Topology::share) was given.
pub trait Medium {
    /// Station `from` queues an IP packet of `bytes` for station `to`. The medium reports the
    /// result later, by `token`; also if its queue is full.
    fn enqueue(&mut self, now: Time, from: usize, to: usize, bytes: usize, token: u64);

    /// Time of the next call of [`Medium::advance`]; never earlier than the last one.
    fn poll_at(&self) -> Option<Time>;

    /// Lets time pass up to `now`, and reports the results of packets, in order of time.
    fn advance(&mut self, now: Time, each: &mut dyn FnMut(Passed));

    /// Time at which station `from` may hand over the next packet, if the medium makes senders
    /// wait.
    fn ready_at(&self, from: usize) -> Time {
        let _ = from;
        Time::ZERO
    }

    /// Its source text, for the topology's.
    fn sentence(&self) -> String;
}

/// Result of a packet on a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Token of the packet.
    pub token: u64,
    /// Time at which it arrived or was dropped.
    pub at: Time,
    /// `None` if it arrived, else the reason.
    pub dropped: Option<Fate>,
}
