//! The receiving end.

use crate::FORMAT_BYTES_MAX;
use crate::error::Result;
use crate::frame::Frame;
use crate::greeting::{self, Hello, Welcome};
use crate::header::{Header, Kind, Wrong, now_ns};
use crate::pool::{Blocks, Pool};
use crate::sequence::{Sequences, Verdict};
use airdma::{Device, Endpoint, Operation, Region};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Receives frames of one sender at a time.
pub struct Receiver {
    blocks: Arc<Blocks>,
    endpoint: Arc<Endpoint>,
    epoch: u32,
    /// A wait for the next write.
    written: Option<Operation<u64>>,
    formats: BTreeMap<u32, (u32, Arc<str>)>,
    sequences: Sequences,
    refused: Refused,
}

/// Blocks that held no frame of the protocol, by reason. They were freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// No header of this version, or one of another run of the sender.
    pub header: u64,
    /// A length beyond the block.
    pub length: u64,
    /// A checksum that differs.
    pub checksum: u64,
    /// A device that was not announced, or one too many.
    pub device: u64,
    /// A format that is no text, or too long.
    pub format: u64,
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
            epoch,
            written: None,
            formats: BTreeMap::new(),
            sequences: Sequences::default(),
            refused: Refused::default(),
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
        (self.endpoint, self.epoch) = (endpoint, epoch);
        self.formats.clear();
        Ok(())
    }

    /// What arrived of each device.
    pub fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// What was not a frame.
    pub fn refused(&self) -> Refused {
        self.refused
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
            if let Some(frame) = self.judge(block) {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Makes a frame of a block, or frees it.
    fn judge(&mut self, block: Region) -> Option<Frame> {
        let count = match Header::of(&block) {
            Err(Wrong::Header) => &mut self.refused.header,
            Err(Wrong::Length) => &mut self.refused.length,
            Err(Wrong::Sum) => &mut self.refused.checksum,
            Ok((header, _)) if header.epoch != self.epoch => &mut self.refused.header,
            Ok((header, payload)) => match header.kind {
                Kind::Format => {
                    self.take_format(&header, &block[payload]);
                    self.blocks.release(block);
                    return None;
                }
                Kind::Frame => {
                    let arrived = now_ns();
                    let is_late = header.deadline != 0 && header.deadline < arrived;
                    let about = (header.is_data(), payload.len(), is_late);
                    let (device, epoch) = (header.device, header.epoch);
                    match (self.sequences).arrived(device, epoch, header.sequence, about) {
                        Verdict::Next(missing) => {
                            let format = self.formats.get(&device);
                            let format = format.filter(|(number, _)| *number == header.format);
                            let format = format.map(|(_, text)| Arc::clone(text));
                            let at = (header, payload);
                            let frame =
                                Frame::new(&self.blocks, block, at, format, missing, arrived);
                            return Some(frame);
                        }
                        Verdict::Repeated => {
                            self.blocks.release(block);
                            return None;
                        }
                        Verdict::Unknown => &mut self.refused.device,
                    }
                }
            },
        };
        *count += 1;
        self.blocks.release(block);
        None
    }

    /// A device is announced, with its format.
    fn take_format(&mut self, header: &Header, text: &[u8]) {
        let text = match str::from_utf8(text) {
            Ok(text) if text.len() <= FORMAT_BYTES_MAX => text,
            Ok(_) | Err(_) => {
                self.refused.format += 1;
                return;
            }
        };
        let (device, epoch) = (header.device, header.epoch);
        if !(self.sequences).announce(device, epoch, header.sequence) {
            self.refused.device += 1;
            return;
        }
        self.formats.insert(device, (header.format, text.into()));
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.written = None;
        self.blocks.take_back(&self.endpoint);
    }
}
