//! The reads of one datagram endpoint: those that wait for their turn, those at the device, and
//! results.

use super::books::Aftermath;
use crate::arrived::{Arrived, Ended};
use crate::error::Cause;
use crate::work::{Buffer, keep};
use crate::{Blame, Error, Region};
use airdma_engine::{self as engine, DatagramRead, Qp, RECORD_READS_MAX, RecordHandle};
use std::task::Waker;

pub(super) type Outcome = std::result::Result<Arrived, Cause>;

/// The reads that have not given their result.
pub(super) struct Reads {
    reads: Vec<Read>,
    /// Most of them at the device.
    at_device_max: usize,
    last_number: u64,
}

struct Read {
    number: u64,
    wanted: DatagramRead,
    buffer: Buffer,
    state: State,
    waker: Option<Waker>,
    /// Whether its operation was dropped.
    abandoned: bool,
}

enum State {
    Waits,
    AtDevice(RecordHandle),
    Done(Outcome),
}

impl Reads {
    /// None yet, at an endpoint whose table holds `open_max` messages.
    pub(super) fn new(open_max: u32) -> Reads {
        let most = RECORD_READS_MAX.min((open_max / 2).max(1));
        Reads {
            reads: Vec::new(),
            at_device_max: most as usize,
            last_number: 0,
        }
    }

    /// Adds a read, which [`Reads::begin`] begins; returns its number.
    pub(super) fn enter(
        &mut self,
        wanted: DatagramRead,
        buffer: Buffer,
        failure: Option<Cause>,
    ) -> u64 {
        self.last_number += 1;
        self.reads.push(Read {
            number: self.last_number,
            wanted,
            buffer,
            state: failure.map_or(State::Waits, |cause| State::Done(Err(cause))),
            waker: None,
            abandoned: false,
        });
        self.last_number
    }

    fn at_device(&self) -> usize {
        let is_there = |read: &&Read| matches!(read.state, State::AtDevice(_));
        self.reads.iter().filter(is_there).count()
    }

    /// Whether some wait for their turn.
    pub(super) fn overflows(&self) -> bool {
        let mut reads = self.reads.iter();
        reads.any(|read| matches!(read.state, State::Waits))
    }

    /// Whether a task waits for one.
    pub(super) fn is_watched(&self) -> bool {
        self.overflows() || self.reads.iter().any(|read| read.waker.is_some())
    }

    /// Begins those that the device has room for.
    pub(super) fn begin(&mut self, qp: &Qp, after: &mut Aftermath) {
        let mut at_device = self.at_device();
        for read in &mut self.reads {
            if !matches!(read.state, State::Waits) {
                continue;
            }
            if at_device == self.at_device_max {
                return;
            }
            match qp.read_record(&read.wanted) {
                Ok(handle) => {
                    at_device += 1;
                    read.state = State::AtDevice(handle);
                }
                // The end of another one makes room.
                Err(engine::Error::NoMemory(_)) if at_device > 0 => return,
                Err(error) => {
                    let error = Error::from(error);
                    let cause = Cause::new(error.blame(), error.to_string());
                    read.state = State::Done(Err(cause));
                    after.wakers.extend(read.waker.take());
                }
            }
        }
    }

    /// The device is done with the read of this record; false if it is of none.
    pub(super) fn ended(
        &mut self,
        handle: RecordHandle,
        qp: &Qp,
        failure: Option<&Cause>,
        after: &mut Aftermath,
    ) -> bool {
        let is_it = |read: &Read| matches!(read.state, State::AtDevice(at) if at == handle);
        let Some(at) = self.reads.iter().position(is_it) else {
            return false;
        };
        let arrived = qp.record(handle, Arrived::of);
        after.records.push(handle);
        let read = &mut self.reads[at];
        read.state = State::Done(match (arrived, failure) {
            (Some(arrived), _) if arrived.valid_bytes() > 0 => {
                Ok(arrived.at(read.buffer.range.start))
            }
            (_, Some(failure)) => Err(failure.clone()),
            (arrived, None) => Err(cause_of(arrived.and_then(|arrived| arrived.end()))),
        });
        after.wakers.extend(read.waker.take());
        if read.abandoned {
            after.regions.push(self.reads.remove(at).buffer.region);
        }
        true
    }

    /// The result of a read; if there is none yet, keeps `waker`.
    pub(super) fn result(
        &mut self,
        number: u64,
        waker: Option<&Waker>,
    ) -> Option<(Outcome, Region)> {
        let at = self.position(number)?;
        if !matches!(self.reads[at].state, State::Done(_)) {
            keep(&mut self.reads[at].waker, waker);
            return None;
        }
        let read = self.reads.remove(at);
        let State::Done(outcome) = read.state else {
            return None;
        };
        Some((outcome, read.buffer.region))
    }

    /// Drops the operation of a read, which the device ends if it has begun.
    pub(super) fn abandon(&mut self, number: u64, after: &mut Aftermath) {
        let Some(at) = self.position(number) else {
            return;
        };
        let read = &mut self.reads[at];
        if let State::AtDevice(_) = read.state {
            read.abandoned = true;
            read.waker = None;
            // No other open message has these bytes: the read has the region.
            let key = engine::Rkey(read.wanted.lkey.0);
            after.closes.push((key, read.wanted.to));
        } else {
            after.regions.push(self.reads.remove(at).buffer.region);
        }
    }

    fn position(&self, number: u64) -> Option<usize> {
        let mut reads = self.reads.iter();
        reads.position(|read| read.number == number)
    }

    /// The endpoint has ended: reads that wait fail at once, the others when the device is done.
    pub(super) fn fail(&mut self, cause: &Cause, after: &mut Aftermath) {
        for read in &mut self.reads {
            if let State::Waits = read.state {
                read.state = State::Done(Err(cause.clone()));
                after.wakers.extend(read.waker.take());
            }
        }
    }
}

/// Why nothing of a read arrived.
fn cause_of(ended: Option<Ended>) -> Cause {
    match ended {
        Some(Ended::Refused) => Cause::new(
            Blame::Peer,
            "the peer refused the read: its region is withdrawn, not for this host, or not of the device of that endpoint",
        ),
        Some(Ended::Age | Ended::Idle) => Cause::new(
            Blame::Network,
            "nothing of the read arrived in time: does the endpoint of the peer still exist?",
        ),
        _ => Cause::new(Blame::System, "the read ended without a byte"),
    }
}
