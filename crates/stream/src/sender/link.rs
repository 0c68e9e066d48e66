//! The connection of a sender: credits in, frames out.

use super::Flight;
use crate::credit::{self, CREDIT_BYTES, CREDITS};
use crate::error::{Error, Result};
use crate::greeting::{self, Hello, Welcome};
use crate::header::{Header, block_bytes};
use airdma::{Device, Endpoint, Operation, Region, Remote, Rights, Shared};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(super) struct Link {
    // Dropped first: it ends the connection, so that no peer writes the ring.
    endpoint: Endpoint,
    /// The ring of credits.
    credits: Shared,
    /// Number of the next frame, and of its credit.
    next: u64,
    sums: bool,
    pub(super) block_bytes: usize,
    /// A wait for the next credit.
    written: Option<Operation<u64>>,
    /// Number of writes of the peer when credits were looked at last.
    seen: u64,
    /// The peer wrote something that is no credit.
    pub(super) is_broken: bool,
}

impl Link {
    pub(super) fn open(
        device: &Device,
        endpoint: Endpoint,
        (epoch, frame_bytes): (u32, usize),
    ) -> Result<Link> {
        let ring = device.allocate_private(CREDITS * CREDIT_BYTES)?;
        let credits = ring.share(Rights::WRITE)?;
        let hello = Hello {
            epoch,
            frame_bytes: frame_bytes as u32,
            credits: credits.remote(&endpoint)?,
        };
        greeting::say(device, &endpoint, &hello.encode())?;
        let welcome = Welcome::decode(&greeting::hear(device, &endpoint)?)?;
        Ok(Link {
            endpoint,
            credits,
            next: 1,
            sums: welcome.sums,
            block_bytes: welcome.block_bytes as usize,
            written: None,
            seen: 0,
            is_broken: false,
        })
    }

    /// The receiver's block for the next frame, if it has one free.
    pub(super) fn next_block(&mut self) -> Option<Remote> {
        // Before the look: what comes later is waited for.
        self.seen = self.endpoint.writes();
        let number = self.credits.word(credit::number_offset(self.next)).ok()?;
        if u64::from_le(number) != self.next {
            return None;
        }
        let mut entry = [0; CREDIT_BYTES];
        let at = credit::offset(self.next);
        self.credits.copy_out(at, &mut entry).ok()?;
        let remote = credit::get(&entry, self.next);
        self.is_broken |= remote.is_none();
        remote
    }

    /// Writes a frame to the end of a block of the receiver, and uses its credit.
    pub(super) fn write(&mut self, mut region: Region, header: Header, remote: &Remote) -> Flight {
        let turn = self.next;
        self.next += 1;
        let header = Header { turn, ..header };
        header.put(&mut region, self.sums);
        let bytes = block_bytes(header.length as usize);
        let start = region.len() - bytes;
        // The peer's block is shorter only if it lies about it, which fails.
        let at = remote.len().saturating_sub(bytes as u64);
        let operation = self.endpoint.write(region, start.., remote, at);
        Flight { operation, header }
    }

    /// Whether the receiver has a block for the next frame.
    pub(super) fn has_credit(&self) -> bool {
        let number = self.credits.word(credit::number_offset(self.next));
        number.is_ok_and(|number| u64::from_le(number) == self.next)
    }

    /// Runs the device.
    pub(super) fn run(&self) -> Result<()> {
        self.endpoint.run();
        let mut active = self.endpoint.active(self.endpoint.activity());
        match active.look(Waker::noop()) {
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Ready(Ok(_)) | Poll::Pending => Ok(()),
        }
    }

    /// Number of what has happened on the connection.
    pub(super) fn activity(&self) -> u64 {
        self.endpoint.activity()
    }

    /// Waits until something has happened that `seen` does not count, at most for `limit`. Returns
    /// whether it has.
    pub(super) fn wait(&self, seen: u64, limit: Duration) -> Result<bool> {
        let happened = self.endpoint.active(seen).wait_timeout(limit);
        Ok(happened.transpose()?.is_some())
    }

    /// Whether credits may have come since the last look; if not, `waker` is woken when some come.
    pub(super) fn poll(&mut self, waker: &Waker) -> Result<bool> {
        if self.is_broken {
            return Err(Error::Protocol("a credit names no block"));
        }
        let (endpoint, seen) = (&self.endpoint, self.seen);
        let written = self.written.get_or_insert_with(|| endpoint.written(seen));
        match Pin::new(written).poll(&mut Context::from_waker(waker)) {
            Poll::Pending => Ok(false),
            Poll::Ready(written) => {
                self.written = None;
                self.seen = written?;
                Ok(true)
            }
        }
    }
}
