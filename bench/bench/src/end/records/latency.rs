//! Ping-pong: each end answers a record with a record, and polls its completion queue; or a WRITE
//! with a WRITE, and watches its memory as well.

use super::{Completion, Ends, Instant, PATIENCE, POLL, Reading, RecordsLoad};
use anyhow::ensure;

/// Rounds before the first one that counts.
const WARM_UP: u32 = 50;
/// Bytes for which a round takes as long as its packet's way.
const ROUNDS_BYTES: u32 = 12_000_000;

/// Rounds that take about half a second.
fn rounds(bytes: u32) -> u32 {
    (ROUNDS_BYTES / (bytes + 1000)).clamp(200, 10_000)
}

/// Asks, and times the answers: half a round trip, in microseconds.
pub fn ask(ends: &mut Ends, load: RecordsLoad) -> anyhow::Result<Reading> {
    let rounds = rounds(load.bytes);
    let mut took = Vec::with_capacity(rounds as usize);
    for round in 0..rounds + WARM_UP {
        let began = Instant::now();
        post(ends, load, round)?;
        arrive(ends, load, round)?;
        if round >= WARM_UP {
            took.push(began.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
    }
    took.sort_by(f64::total_cmp);
    Ok(Reading {
        value: took[took.len() / 2],
        p99: took.get(took.len() * 99 / 100).copied(),
        ..Reading::default()
    })
}

/// Answers each record.
pub fn answer(ends: &mut Ends, load: RecordsLoad) -> anyhow::Result<()> {
    for round in 0..rounds(load.bytes) + WARM_UP {
        arrive(ends, load, round)?;
        post(ends, load, round)?;
    }
    drain(ends)
}

fn post(ends: &Ends, load: RecordsLoad, round: u32) -> anyhow::Result<()> {
    let to = ends.place(0, 0, load.bytes);
    if load.is_connected() {
        // The last byte says which round it is.
        ends.source.set(load.bytes - 1, round as u8 ^ 1);
        let part = (&ends.source, 0, load.bytes);
        return ends
            .verbs
            .write(&ends.pairs[0], 0, part, (to.address, to.key));
    }
    let signaled = round.is_multiple_of(2);
    let part = (&ends.source, 0, load.bytes);
    ends.records
        .post(&ends.pairs[0], (0, signaled, false), part, to)
}

/// Waits for a whole record, and frees it; or for a WRITE.
fn arrive(ends: &Ends, load: RecordsLoad, round: u32) -> anyhow::Result<()> {
    let mut space = [Completion::default(); POLL];
    let (began, mut polls) = (Instant::now(), 0_u32);
    loop {
        for completion in ends.verbs.poll(&mut space)? {
            if completion.is_record() {
                ensure!(completion.bytes == load.bytes, "a record with holes");
                return ends.records.free(&ends.pairs[0], completion.id);
            }
        }
        if load.is_connected() && ends.target.get(load.bytes - 1) == round as u8 ^ 1 {
            return Ok(());
        }
        polls += 1;
        ensure!(
            !polls.is_multiple_of(1 << 16) || began.elapsed() < PATIENCE,
            "no record arrives"
        );
    }
}

/// Lets the last answer leave.
fn drain(ends: &mut Ends) -> anyhow::Result<()> {
    let mut space = [Completion::default(); POLL];
    while ends.overhear()?.is_none() {
        ends.verbs.poll(&mut space)?;
    }
    Ok(())
}
