//! What both ends are told, and what a frame carries.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};

/// How the ends agree on who may touch a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Discipline {
    /// A credit for each free block: the crate `airdma-stream`.
    Credits,
    /// Bytes that say of each block whether it is empty, filled or kept, which the sender reads.
    Paper,
    /// A sliding window on a queue pair for each device: WRITE with immediate data, and an ACK for
    /// each block, in order.
    Window,
    /// The same, where one ACK is for all blocks that were freed since the last one.
    WindowMerged,
    /// The same, where each ACK names its block: a kept one stops no other.
    WindowAny,
}

/// Load of a run.
#[derive(Clone, Copy, Debug, Args)]
pub struct Load {
    /// Discipline of both ends.
    #[arg(long)]
    pub discipline: Discipline,
    /// Blocks of each end, for all devices together.
    #[arg(long)]
    pub blocks: u32,
    /// Bytes of a frame.
    #[arg(long)]
    pub bytes: usize,
    /// Number of devices, each with a share of the blocks where a discipline does not share them.
    #[arg(long, default_value_t = 1)]
    pub devices: u32,
    /// Frames a second of each device; as fast as possible without it.
    #[arg(long)]
    pub rate: Option<u32>,
    /// For how long frames are sent.
    #[arg(long)]
    pub seconds: f64,
    /// Most frames, or captures with --rate, after which sending ends before the time is over.
    #[arg(long)]
    pub frames: Option<u32>,
    /// The receiver has all blocks but one at any time: one frame is on its way.
    #[arg(long)]
    pub holds: bool,
    /// Time for which the receiver keeps one block, in the middle of the run.
    #[arg(long)]
    pub keeps_ms: Option<u64>,
    /// Most frames that come meanwhile, after which the block is freed before the time is over.
    #[arg(long, requires = "keeps_ms")]
    pub keeps_frames: Option<u32>,
}

impl Load {
    pub fn check(&self) -> anyhow::Result<()> {
        let is_length = self.bytes.is_multiple_of(8) && self.bytes >= FRAME_BYTES_MIN;
        ensure!(is_length, "--bytes: a multiple of 8, at least 64");
        ensure!((1..=256).contains(&self.devices), "--devices: 1 to 256");
        let share = self.blocks / self.devices;
        ensure!(share > 0, "--blocks: at least one for each device");
        ensure!(!self.holds || share > 1, "--holds wants two blocks");
        ensure!(self.rate != Some(0), "--rate: at least 1");
        ensure!(
            self.seconds > 0.0 && self.seconds < 600.0,
            "--seconds: up to 600"
        );
        Ok(())
    }

    pub fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Whether it is the middle of the run, in which the receiver keeps a block if it does.
    pub fn is_in_middle(&self, frames: u64, since_begin: Duration) -> bool {
        let is_half = |most| frames >= u64::from(most) / 2;
        since_begin >= self.time() / 2 || self.frames.is_some_and(is_half)
    }

    /// Blocks of a queue pair that serves one device.
    pub fn blocks_of_device(&self) -> u32 {
        self.blocks / self.devices
    }
}

/// Least length of a frame.
pub const FRAME_BYTES_MIN: usize = 64;

/// What a frame says: its first words, and its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// When it was captured, in nanoseconds of CLOCK_MONOTONIC, which both ends share.
    pub time: u64,
    /// Number of the frame.
    pub number: u64,
    /// Number of the device.
    pub device: u32,
    /// The device sends no more.
    pub is_last: bool,
}

/// Words at the beginning of a frame.
pub const STAMP_WORDS: usize = 3;

impl Stamp {
    /// The words at the beginning of the frame.
    pub fn words(&self) -> [u64; STAMP_WORDS] {
        let last = u64::from(self.is_last) << 32;
        [self.time, self.number, u64::from(self.device) | last]
    }

    /// The word at its end, which differs for each frame.
    pub fn end(&self) -> u64 {
        !self.time ^ self.number.rotate_left(32)
    }

    /// Reads a frame, of which both ends are there.
    pub fn read(words: [u64; STAMP_WORDS], end: u64) -> anyhow::Result<Stamp> {
        let stamp = Stamp {
            time: words[0],
            number: words[1],
            device: words[2] as u32,
            is_last: words[2] >> 32 == 1,
        };
        ensure!(stamp.end() == end, "a frame is torn: {stamp:?}");
        Ok(stamp)
    }
}

/// Resident memory of this process.
pub fn resident_bytes() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib = status.lines().find_map(|line| {
        let size = line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?;
        size.parse::<u64>().ok()
    });
    Ok(kib.context("no VmRSS in /proc/self/status")? * 1024)
}
