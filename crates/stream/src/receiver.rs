//! The receiving end.

use crate::error::Result;
use crate::frame::Frame;
use crate::greeting::{self, Hello, Welcome};
use crate::header::now_ns;
use crate::judge::{Judge, Judged, Judgement, Refused};
use crate::pool::{Blocks, Pool};
use crate::sequence::Sequences;
use airdma::{Device, Endpoint, Operation, Region};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Receives frames of one sender at a time.
pub struct Receiver {
    blocks: Arc<Blocks>,
    endpoint: Arc<Endpoint>,
    /// A wait for the next write.
    written: Option<Operation<u64>>,
    judge: Judge,
}

/// A sender that has connected, and waits for blocks.
#[derive(Debug)]
pub struct Incoming {
    endpoint: Endpoint,
    hello: Hello,
}

impl Incoming {
    /// Hears what a sender says of itself. The device is that of the connection.
    ///
    /// # Errors
    /// The peer does not speak this protocol, or the connection fails.
    pub fn hear(device: &Device, endpoint: Endpoint) -> Result<Incoming> {
        let hello = Hello::decode(&greeting::hear(device, &endpoint)?)?;
        Ok(Incoming { endpoint, hello })
    }

    /// Bytes of its longest frame, as it says.
    pub fn frame_bytes(&self) -> usize {
        self.hello.frame_bytes as usize
    }

    /// Answers, and offers blocks. Returns the connection, and the sender's epoch.
    fn answer(self, blocks: &Blocks) -> Result<(Arc<Endpoint>, u32)> {
        let Incoming { endpoint, hello } = self;
        let welcome = Welcome {
            sums: blocks.sums(),
            blocks: blocks.count(),
            block_bytes: blocks.block_bytes(),
        };
        greeting::say(&blocks.device, &endpoint, &welcome.encode())?;
        let endpoint = Arc::new(endpoint);
        blocks.offer_to(&endpoint, hello.credits)?;
        Ok((endpoint, hello.epoch))
    }
}

impl Receiver {
    /// Answers a sender that has connected, and offers it the blocks of the pool.
    ///
    /// # Errors
    /// The connection fails, or is not of the device of the pool.
    pub fn open(sender: Incoming, pool: &Pool) -> Result<Receiver> {
        let (endpoint, epoch) = sender.answer(&pool.0)?;
        Ok(Receiver {
            blocks: Arc::clone(&pool.0),
            endpoint,
            written: None,
            judge: Judge::new(epoch, pool.0.sums()),
        })
    }

    /// Goes on with a sender that has connected again, or with another one.
    ///
    /// Frames that arrived by the former connection and were not taken are lost; the sender sends
    /// those again whose arrival it had not seen.
    ///
    /// # Errors
    /// As [`Receiver::open`]; the former connection is over then, too.
    pub fn reopen(&mut self, sender: Incoming, pool: &Pool) -> Result<()> {
        self.written = None;
        self.blocks.take_back(&self.endpoint);
        let (endpoint, epoch) = sender.answer(&pool.0)?;
        self.blocks = Arc::clone(&pool.0);
        self.endpoint = endpoint;
        self.judge.begin(epoch, pool.0.sums());
        Ok(())
    }

    /// What arrived of each device.
    pub fn sequences(&self) -> &Sequences {
        self.judge.sequences()
    }

    /// What was not a frame.
    pub fn refused(&self) -> Refused {
        self.judge.refused()
    }

    /// The next frame, in the order in which they were sent; waits for it at most for `limit`. The
    /// thread sleeps meanwhile.
    ///
    /// # Errors
    /// The connection has ended, by its peer where [`Error::is_closed`](crate::Error::is_closed)
    /// says so, or the peer breaks the protocol. All frames before that were returned.
    pub fn next(&mut self, limit: Duration) -> Result<Option<Frame>> {
        let deadline = Instant::now().checked_add(limit);
        loop {
            let seen = self.endpoint.writes();
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            let left = deadline.map_or(limit, |at| at.saturating_duration_since(Instant::now()));
            let Some(written) = self.wait_beyond(seen).wait_timeout(left) else {
                return Ok(None);
            };
            self.written = None;
            written?;
        }
    }

    /// As [`Receiver::next`], without waiting: `waker` is woken when there may be one.
    ///
    /// # Errors
    /// As [`Receiver::next`].
    pub fn poll(&mut self, waker: &Waker) -> Result<Option<Frame>> {
        loop {
            let seen = self.endpoint.writes();
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            let waiting = Pin::new(self.wait_beyond(seen));
            match waiting.poll(&mut Context::from_waker(waker)) {
                Poll::Pending => return Ok(None),
                Poll::Ready(written) => {
                    self.written = None;
                    written?;
                }
            }
        }
    }

    fn wait_beyond(&mut self, seen: u64) -> &mut Operation<u64> {
        let endpoint = &self.endpoint;
        self.written.get_or_insert_with(|| endpoint.written(seen))
    }

    /// The next frame, if it is there.
    fn take(&mut self) -> Result<Option<Frame>> {
        while let Some(block) = self.blocks.take(&self.endpoint)? {
            if let Some(frame) = self.lend(block) {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Makes a frame of a block, or frees it.
    fn lend(&mut self, block: Region) -> Option<Frame> {
        let arrived = now_ns();
        match self.judge.block(&block, arrived) {
            Judged::Frame(frame) if frame.header.is_data() == 0 => {
                self.blocks.release(block);
                Some(self.frame(None, frame, arrived))
            }
            Judged::Frame(frame) if !self.blocks.lend(&frame.header) => {
                self.judge.drop_last(&frame);
                self.blocks.release(block);
                None
            }
            Judged::Frame(frame) => Some(self.frame(Some(block), frame, arrived)),
            Judged::Nothing => {
                self.blocks.release(block);
                None
            }
        }
    }

    fn frame(&self, block: Option<Region>, frame: Judgement, arrived: u64) -> Frame {
        let format = self.judge.format_of(&frame.header);
        let at = (frame.header, frame.payload);
        Frame::new(&self.blocks, block, at, format, frame.missing, arrived)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.written = None;
        self.blocks.take_back(&self.endpoint);
    }
}
