//! What a receiver counts, and what follows from it.

use std::collections::VecDeque;

use serde::Serialize;

use crate::ends::Resources;
use crate::load::{Load, Stamp};
use crate::take::Came;

/// Frames whose times are remembered: the first ones of a run.
const REMEMBERED_MAX: usize = 4 << 20;
/// Most samples at the begin of a run that do not count, and their share of it: tables grow, and
/// pages are touched for the first time.
const WARM_UP: usize = 100;
const WARM_UP_SHARE: usize = 10;
/// Length of the windows in which the rate of cameras is compared.
const WINDOW_NS: u64 = 100_000_000;
/// What is left out at both ends of a run, before windows are compared.
const EDGE_NS: u64 = 200_000_000;

/// Middle and edges of a number of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
    pub mean: f64,
}

/// When a block was kept, in nanoseconds, and how many frames came meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub from: u64,
    pub until: u64,
    pub frames: u32,
}

pub struct Tally {
    load: Load,
    frames: u64,
    arrivals: Vec<u64>,
    latencies: Vec<u64>,
    delays: Vec<u64>,
    /// When blocks were freed whose next frame has not come.
    freed: VecDeque<u64>,
    late: u64,
}

impl Tally {
    pub fn new(load: &Load) -> Tally {
        Tally {
            load: *load,
            frames: 0,
            arrivals: Vec::new(),
            latencies: Vec::new(),
            delays: Vec::new(),
            freed: VecDeque::new(),
            late: 0,
        }
    }

    /// Number of frames that were taken.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// A frame was taken at this time.
    pub fn came(&mut self, stamp: &Stamp, now: u64) {
        self.frames += 1;
        // Its capture waited for this block, if the receiver holds all others.
        let freed = self.freed.pop_front();
        if self.arrivals.len() >= REMEMBERED_MAX {
            return;
        }
        self.arrivals.push(now);
        let latency = now.saturating_sub(stamp.time);
        if let Some(rate) = self.load.rate {
            self.late += u64::from(latency > 1_000_000_000 / u64::from(rate));
        }
        self.latencies.push(latency);
        if let Some(freed) = freed {
            self.delays.push(stamp.time.saturating_sub(freed));
        }
    }

    /// A block was freed, while the receiver holds all others.
    pub fn freed(&mut self, now: u64) {
        self.freed.push_back(now);
    }

    /// All that follows; none if too few frames came.
    pub fn found(
        mut self,
        kept: Option<Kept>,
        cpu_s: f64,
        resources: Resources,
        resident_bytes: u64,
    ) -> Option<Came> {
        let (first, last) = (*self.arrivals.first()?, *self.arrivals.last()?);
        let remembered = self.arrivals.len() as u64 - 1;
        let bytes = remembered * self.load.bytes as u64;
        let paced = self.load.rate.is_some();
        Some(Came {
            frames: self.frames,
            bytes,
            seconds: (last - first) as f64 / 1e9,
            latency_us: spread(after_warm_up(&mut self.latencies))?,
            control_us: spread(after_warm_up(&mut self.delays)),
            in_time: paced.then(|| 100.0 * (1.0 - self.late as f64 / self.frames as f64)),
            uneven: paced.then(|| uneven(&self.arrivals)).flatten(),
            kept_loss: kept.and_then(|kept| kept_loss(&self.arrivals, kept)),
            kept_frames: kept.map(|kept| kept.frames),
            cpu_s,
            resident_bytes,
            resources,
        })
    }
}

fn after_warm_up(samples: &mut [u64]) -> &mut [u64] {
    let skipped = (samples.len() / WARM_UP_SHARE).min(WARM_UP);
    &mut samples[skipped..]
}

/// In microseconds; none without samples.
fn spread(samples: &mut [u64]) -> Option<Spread> {
    samples.sort_unstable();
    let us = |ns: u64| ns as f64 / 1e3;
    let at = |share: usize| {
        Some(us(
            *samples.get((samples.len() * share / 100).min(samples.len() - 1))?
        ))
    };
    let max = us(*samples.last()?);
    Some(Spread {
        p50: at(50)?,
        p99: at(99)?,
        max,
        mean: us(samples.iter().sum::<u64>()) / samples.len() as f64,
    })
}

/// Largest distance of the number of frames in a window from the mean, in per cent of it.
fn uneven(arrivals: &[u64]) -> Option<f64> {
    let (from, until) = (
        arrivals.first()? + EDGE_NS,
        arrivals.last()?.checked_sub(EDGE_NS)?,
    );
    let windows = until.checked_sub(from)? / WINDOW_NS;
    let mut counts = vec![0u64; usize::try_from(windows).ok()?];
    for at in arrivals.iter().filter(|at| **at >= from) {
        if let Some(count) = counts.get_mut(((at - from) / WINDOW_NS) as usize) {
            *count += 1;
        }
    }
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let far = counts.iter().map(|count| (*count as f64 - mean).abs());
    let most = far.fold(0.0, f64::max);
    (mean > 0.0).then_some(100.0 * most / mean)
}

/// Loss of the rate while a block was kept, to that of the rest of the run, in per cent.
fn kept_loss(arrivals: &[u64], kept: Kept) -> Option<f64> {
    let (first, last) = (*arrivals.first()?, *arrivals.last()?);
    let until = kept.until.min(last);
    let within = arrivals
        .iter()
        .filter(|at| (kept.from..until).contains(at))
        .count();
    let during_ns = until.checked_sub(kept.from)?;
    let others_ns = (last - first).checked_sub(during_ns)?;
    let others = (arrivals.len() - within) as f64 / others_ns as f64;
    let rate = within as f64 / during_ns as f64;
    (others_ns > 0 && during_ns > 0).then(|| 100.0 * (1.0 - rate / others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_compared_in_windows() {
        // A frame each 10 ms, but for one window without.
        let regular: Vec<u64> = (0..200).map(|n| n * 10_000_000).collect();
        assert_eq!(uneven(&regular), Some(0.0));
        let gap = |at: &u64| !(1_000_000_000..1_100_000_000).contains(at);
        let holed: Vec<u64> = regular.iter().copied().filter(gap).collect();
        let found = uneven(&holed).unwrap();
        assert!((99.0..=100.0).contains(&found), "{found}");
        assert_eq!(uneven(&regular[..10]), None);
    }

    #[test]
    fn the_loss_is_that_of_the_time_in_which_a_block_is_kept() {
        let all: Vec<u64> = (0..1000).map(|n| n * 1_000_000).collect();
        let kept = Kept {
            from: 500_000_000,
            until: 600_000_000,
            frames: 100,
        };
        assert!(kept_loss(&all, kept).unwrap().abs() < 1.0);
        let half = |at: &u64| !(kept.from..kept.until).contains(at) || at.is_multiple_of(2_000_000);
        let fewer: Vec<u64> = all.iter().copied().filter(half).collect();
        assert!((kept_loss(&fewer, kept).unwrap() - 50.0).abs() < 1.0);
        let none = |at: &u64| !(kept.from..kept.until).contains(at);
        let stopped: Vec<u64> = all.iter().copied().filter(none).collect();
        assert_eq!(kept_loss(&stopped, kept), Some(100.0));
    }

    #[test]
    fn samples_have_a_middle_and_edges() {
        let mut samples: Vec<u64> = (1..=1000).map(|n| n * 1000).collect();
        let spread = spread(&mut samples).unwrap();
        assert_eq!((spread.p50, spread.p99, spread.max), (501.0, 991.0, 1000.0));
        assert_eq!(super::spread(&mut []), None);
    }
}
