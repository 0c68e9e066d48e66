//! The receiving program.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use airdma_engine::monotonic;
use airdma_link::traffic::cpu_s;
use anyhow::{Context, ensure};
use serde::Serialize;

use crate::ends::{Receiving, Resources};
use crate::load::{Load, resident_bytes};
use crate::tally::{Kept, Spread, Tally};

/// Longest time without a frame.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval at which the time of a kept block is checked.
const TICK: Duration = Duration::from_millis(1);

/// What the receiver found.
#[derive(Debug, Serialize)]
pub struct Came {
    pub frames: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// From capture until the receiver has the frame, in microseconds.
    pub latency_us: Spread,
    /// From the time at which a block is freed until the sender knows it, in microseconds; only if
    /// the receiver holds all blocks but one.
    pub control_us: Option<Spread>,
    /// Share of the frames that came before the next one of their device was captured, in per cent.
    pub in_time: Option<f64>,
    /// Largest distance of the rate in 100 ms from the mean, in per cent of it.
    pub uneven: Option<f64>,
    /// Loss of throughput while a block was kept, in per cent.
    pub kept_loss: Option<f64>,
    /// Frames that came while a block was kept.
    pub kept_frames: Option<u32>,
    pub cpu_s: f64,
    pub resident_bytes: u64,
    pub resources: Resources,
}

/// Takes frames until all devices have ended.
pub fn take<R: Receiving>(receiving: &mut R, load: &Load) -> anyhow::Result<Came> {
    let cpu_before_s = cpu_s();
    let held_max = if load.holds {
        load.blocks_of_device() as usize
    } else {
        1
    };
    let mut held = VecDeque::new();
    let mut keeper = Keeper::new(load);
    let mut tally = Tally::new(load);
    let mut ended = 0;
    let mut patience = Instant::now() + PATIENCE;
    while ended < load.devices {
        keeper.free_in_time(receiving)?;
        let until = if keeper.is_idle() {
            patience
        } else {
            Instant::now() + TICK
        };
        let Some((stamp, block)) = receiving.next(until)? else {
            ensure!(Instant::now() < patience, "no frame comes");
            continue;
        };
        if stamp.is_last {
            ended += 1;
            receiving.free(block)?;
            continue;
        }
        let now = monotonic();
        tally.came(&stamp, now);
        patience = Instant::now() + PATIENCE;
        let Some(block) = keeper.keep(receiving, block, tally.frames()) else {
            continue;
        };
        held.push_back(block);
        if held.len() == held_max
            && let Some(oldest) = held.pop_front()
        {
            if load.holds {
                tally.freed(monotonic());
            }
            receiving.free(oldest)?;
        }
    }
    // Before the ends say goodbye.
    let cpu_s = cpu_s() - cpu_before_s;
    keeper.free(receiving)?;
    for block in held {
        receiving.free(block)?;
    }
    let resources = receiving.resources();
    tally
        .found(keeper.kept(), cpu_s, resources, resident_bytes()?)
        .context("too few frames came")
}

/// Keeps one block for a time.
struct Keeper<B> {
    load: Load,
    begin: Instant,
    block: Option<(B, Instant)>,
    kept: Option<Kept>,
}

impl<B> Keeper<B> {
    fn new(load: &Load) -> Keeper<B> {
        Keeper {
            load: *load,
            begin: Instant::now(),
            block: None,
            kept: None,
        }
    }

    fn is_idle(&self) -> bool {
        self.block.is_none()
    }

    fn kept(&self) -> Option<Kept> {
        self.kept
    }

    /// Keeps the block if it is time to, or gives it back. `frames` have come, with its own.
    fn keep<R: Receiving<Block = B>>(
        &mut self,
        receiving: &mut R,
        block: B,
        frames: u64,
    ) -> Option<B> {
        if let (Some(kept), Some(_)) = (&mut self.kept, &self.block) {
            kept.frames += 1;
        }
        let time = self.load.keeps_ms.filter(|_| self.kept.is_none());
        let Some(time) = time.map(Duration::from_millis) else {
            return Some(block);
        };
        if !self.load.is_in_middle(frames, self.begin.elapsed()) {
            return Some(block);
        }
        receiving.keep(&block);
        self.block = Some((block, Instant::now() + time));
        self.kept = Some(Kept {
            from: monotonic(),
            until: u64::MAX,
            frames: 0,
        });
        None
    }

    fn free_in_time<R: Receiving<Block = B>>(&mut self, receiving: &mut R) -> anyhow::Result<()> {
        let (Some((_, until)), Some(kept)) = (&self.block, &self.kept) else {
            return Ok(());
        };
        let is_enough = |most: u32| kept.frames >= most;
        if self.load.keeps_frames.is_some_and(is_enough) || *until <= Instant::now() {
            self.free(receiving)?;
        }
        Ok(())
    }

    fn free<R: Receiving<Block = B>>(&mut self, receiving: &mut R) -> anyhow::Result<()> {
        let Some((block, _)) = self.block.take() else {
            return Ok(());
        };
        if let Some(kept) = &mut self.kept {
            kept.until = monotonic();
        }
        receiving.free(block)
    }
}
