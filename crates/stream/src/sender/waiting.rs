//! Waiting of a sender. The thread that waits runs the device.

use super::Sender;
use crate::block::Block;
use crate::error::{Error, Result};
use std::task::Waker;
use std::time::{Duration, Instant};

impl Sender {
    /// Whether a frame that is sent now leaves at once: no other waits, and the receiver has a
    /// block for it.
    ///
    /// # Errors
    /// As [`Sender::poll`].
    pub fn has_credit(&mut self) -> Result<bool> {
        if self.leaves_at_once() {
            return Ok(true);
        }
        if let Err(error) = self.link.as_ref().ok_or(Error::NotOpen)?.run() {
            self.end_link();
            return Err(error);
        }
        self.advance()?;
        Ok(self.leaves_at_once())
    }

    /// Waits until a frame has arrived or the receiver has freed a block since the last call of any
    /// function of this sender, moves on as [`Sender::poll`] does, and returns true; false after
    /// `limit`.
    ///
    /// # Errors
    /// As [`Sender::poll`].
    pub fn wait(&mut self, limit: Duration) -> Result<bool> {
        let link = self.link.as_ref().ok_or(Error::NotOpen)?;
        match link.wait(self.looked, limit) {
            Ok(has_happened) => {
                self.advance()?;
                Ok(has_happened)
            }
            Err(error) => {
                self.end_link();
                Err(error)
            }
        }
    }

    /// As [`Sender::block`], and waits until there is one.
    ///
    /// # Errors
    /// As [`Sender::block`] and [`Sender::poll`].
    pub fn wait_for_block(&mut self, device: u32, length: usize) -> Result<Block> {
        loop {
            self.advance()?;
            if let Some(block) = self.block(device, length)? {
                return Ok(block);
            }
            self.wait(Duration::MAX)?;
        }
    }

    /// Waits until all frames have arrived or were dropped, at most for `limit`. Returns whether
    /// they have.
    ///
    /// # Errors
    /// As [`Sender::poll`].
    pub fn flush(&mut self, limit: Duration) -> Result<bool> {
        let deadline = Instant::now().checked_add(limit);
        loop {
            self.collect(|operation| operation.look(Waker::noop()));
            // A receiver that has all may have gone.
            if self.is_idle() {
                return Ok(true);
            }
            self.advance()?;
            let left = deadline.map_or(limit, |at| at.saturating_duration_since(Instant::now()));
            if !self.wait(left)? {
                return Ok(self.is_idle());
            }
        }
    }

    fn leaves_at_once(&self) -> bool {
        let has_credit = self.link.as_ref().is_some_and(|link| link.has_credit());
        has_credit && self.turns.is_empty()
    }

    /// Moves on by what is in the books: it does not run the device.
    fn advance(&mut self) -> Result<()> {
        let link = self.link.as_ref().ok_or(Error::NotOpen)?;
        // Before the look: what comes later ends the next wait.
        self.looked = link.activity();
        self.collect(|operation| operation.look(Waker::noop()));
        self.transmit();
        if self.link.as_ref().is_some_and(|link| link.is_broken) {
            self.end_link();
            return Err(Error::Protocol("a credit names no block"));
        }
        Ok(())
    }
}
