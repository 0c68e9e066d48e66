//! The credits of `airdma-stream`, by its public interface.

use std::time::Instant;

use airdma::Device;
use airdma_stream::{Block, Description, Frame, Incoming, Pool, SenderConfig, Source};
use anyhow::Context;

use crate::ends::{Receiving, Resources, Sending};
use crate::load::{Load, STAMP_WORDS, Stamp};
use crate::meeting::Meeting;

/// Port of RDMA CM: the one of `airdma stream`.
const PORT: u16 = 7480;
/// Queues of a connection of the crate `airdma`.
const RESOURCES: Resources = Resources {
    queue_pairs: 1,
    sends: 128,
    receives: 128,
    completions: 512,
};

pub struct Sender {
    sender: airdma_stream::Sender,
    bytes: usize,
    /// A block for the next frame of a device.
    block: Option<Block>,
}

impl Sender {
    pub fn open(meeting: &mut Meeting, load: &Load) -> anyhow::Result<Sender> {
        let device = Device::open(&meeting.here.to_string())?;
        let config = SenderConfig {
            blocks: load.blocks,
            frame_bytes: load.bytes,
            ..SenderConfig::default()
        };
        let mut sender = airdma_stream::Sender::new(&device, config)?;
        // A device alone has all blocks.
        let quota = load.blocks_of_device().max(3) as usize;
        for number in 0..load.devices {
            let source = Source {
                quota,
                ..Source::default()
            };
            sender.add(number, source)?;
        }
        // Pages of zeros would be one.
        let mut blocks = Vec::new();
        for number in 0..load.devices {
            while let Some(mut block) = sender.block(number, load.bytes)? {
                block.fill(0x55);
                blocks.push(block);
            }
        }
        for block in blocks {
            sender.discard(block);
        }
        let _: String = meeting.hear()?;
        let endpoint = device.connect((meeting.there.ip(), PORT)).wait()?;
        sender.open(endpoint)?;
        Ok(Sender {
            sender,
            bytes: load.bytes,
            block: None,
        })
    }
}

impl Sending for Sender {
    fn has_room(&mut self, device: u32) -> anyhow::Result<bool> {
        if let Some(block) = self.block.take_if(|block| block.device() != device) {
            self.sender.discard(block);
        }
        if !self.sender.has_credit()? {
            return Ok(false);
        }
        if self.block.is_none() {
            self.block = self.sender.block(device, self.bytes)?;
        }
        Ok(self.block.is_some())
    }

    fn send(&mut self, stamp: &Stamp) -> anyhow::Result<()> {
        let mut block = self.block.take().context("a block was asked for")?;
        for (word, value) in block.chunks_exact_mut(8).zip(stamp.words()) {
            word.copy_from_slice(&value.to_le_bytes());
        }
        let end = block.len() - 8;
        block[end..].copy_from_slice(&stamp.end().to_le_bytes());
        self.sender.send(block, Description::default());
        Ok(())
    }

    fn wait(&mut self, until: Instant) -> anyhow::Result<()> {
        let limit = until.saturating_duration_since(Instant::now());
        self.sender.wait(limit)?;
        Ok(())
    }

    fn resources(&self) -> Resources {
        RESOURCES
    }
}

pub struct Receiver {
    receiver: airdma_stream::Receiver,
}

impl Receiver {
    pub fn open(meeting: &mut Meeting, load: &Load) -> anyhow::Result<Receiver> {
        let device = Device::open(&meeting.here.to_string())?;
        let pool = Pool::new(&device, load.blocks, load.bytes)?;
        let listener = device.listen(PORT)?;
        meeting.say(&"listens")?;
        let incoming = Incoming::hear(&device, listener.accept().wait()?)?;
        Ok(Receiver {
            receiver: airdma_stream::Receiver::open(incoming, &pool)?,
        })
    }
}

impl Receiving for Receiver {
    type Block = Frame;

    fn next(&mut self, until: Instant) -> anyhow::Result<Option<(Stamp, Frame)>> {
        let limit = until.saturating_duration_since(Instant::now());
        let Some(frame) = self.receiver.next(limit)? else {
            return Ok(None);
        };
        let word = |at: usize| -> anyhow::Result<u64> {
            let bytes = frame.get(at..at + 8).context("a frame is too short")?;
            Ok(u64::from_le_bytes(bytes.try_into()?))
        };
        let mut words = [0; STAMP_WORDS];
        for (number, value) in words.iter_mut().enumerate() {
            *value = word(number * 8)?;
        }
        let stamp = Stamp::read(words, word(frame.len().saturating_sub(8))?)?;
        Ok(Some((stamp, frame)))
    }

    fn keep(&mut self, _block: &Frame) {}

    fn free(&mut self, block: Frame) -> anyhow::Result<()> {
        drop(block);
        Ok(())
    }

    fn resources(&self) -> Resources {
        RESOURCES
    }
}
