//! Reads of the other end's memory by datagrams, back to back.

use std::collections::HashMap;

use super::{Completion, Duration, Ends, Instant, PATIENCE, POLL, Reading, RecordsLoad, places};
use anyhow::{Context, ensure};

/// Most reads that are open at once: a queue pair has half of its table for them.
const OPEN_MAX: u32 = 32;

/// Reads for `duration`: Gb/s that came, and their share of what was asked for.
pub fn fetch(ends: &mut Ends, load: RecordsLoad, duration: Duration) -> anyhow::Result<Reading> {
    let mut space = [Completion::default(); POLL];
    let mut free: Vec<u32> = (0..places(load.bytes).min(OPEN_MAX)).collect();
    let mut open = HashMap::new();
    let (mut asked, mut valid, began) = (0, 0, Instant::now());
    let mut last = began;
    while began.elapsed() < duration || !open.is_empty() {
        while began.elapsed() < duration
            && let Some(place) = free.pop()
        {
            let from = ends.place(0, place.into(), load.bytes);
            let to = (&ends.source, place * load.bytes, load.bytes);
            let handle = ends.records.read_from(&ends.pairs[0], from, to)?;
            open.insert(handle, place);
            asked += u64::from(load.bytes);
        }
        for completion in ends.verbs.poll(&mut space)? {
            let place = open.remove(&completion.id);
            free.push(place.context("a record that was not asked for")?);
            valid += u64::from(completion.bytes);
            ends.records.free(&ends.pairs[0], completion.id)?;
            last = Instant::now();
        }
        ensure!(last.elapsed() < PATIENCE, "no read ends");
    }
    ends.say("done")?;
    let seconds = last.duration_since(began).as_secs_f64();
    Ok(Reading {
        value: valid as f64 * 8.0 / seconds.max(1e-3) / 1e9,
        moved_bytes: Some(valid),
        valid: Some(valid as f64 / asked as f64 * 100.0),
        ..Reading::default()
    })
}

/// Serves reads until the other end has done all of its own.
pub fn give(ends: &mut Ends) -> anyhow::Result<()> {
    let mut space = [Completion::default(); POLL];
    while ends.overhear()?.is_none() {
        ends.verbs.poll(&mut space)?;
    }
    Ok(())
}
