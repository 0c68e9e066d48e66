//! Many sources that write to one queue pair; and reliable records to many queue pairs, one of
//! which dies.

use super::{
    Completion, Duration, Ends, HashMap, Instant, PATIENCE, POLL, Reading, RecordsLoad,
    RecordsMode, depth_of_many, resident_bytes,
};
use anyhow::{Context, ensure};

/// Messages posted by all sources together and not completed.
const AHEAD: u64 = 256;
/// Polls between two looks at the connection.
const LOOK: u32 = 1024;

/// Sends from all sources in turn.
pub fn send(ends: &mut Ends, load: RecordsLoad, duration: Duration) -> anyhow::Result<()> {
    let mut turns = Turns::new(load);
    // One source first, as long as all of them, so that the target has used its table.
    let began = Instant::now();
    turns.until(ends, load, 1, |_| began.elapsed() >= duration)?;
    ends.say("warm")?;
    ends.hear("go")?;
    let began = Instant::now();
    turns.until(ends, load, load.count, |_| began.elapsed() >= duration)?;
    ends.say("sent")?;
    ends.wait_end()
}

struct Turns {
    posted: u64,
    done: u64,
    /// Free entries of each queue pair.
    room: Vec<u32>,
}

impl Turns {
    fn new(load: RecordsLoad) -> Turns {
        Turns {
            posted: 0,
            done: 0,
            room: vec![depth_of_many(load.count); load.count as usize],
        }
    }

    fn until(
        &mut self,
        ends: &Ends,
        load: RecordsLoad,
        sources: u32,
        enough: impl Fn(&Turns) -> bool,
    ) -> anyhow::Result<()> {
        while !enough(self) {
            while self.posted - self.done < AHEAD {
                let source = (self.posted % u64::from(sources)) as usize;
                if self.room[source] == 0 {
                    break;
                }
                let to = ends.place(0, self.posted, load.bytes);
                let part = (&ends.source, 0, load.bytes);
                let pair = &ends.pairs[source];
                let id = source as u64;
                ends.records.post(pair, (id, true, false), part, to)?;
                self.posted += 1;
                self.room[source] -= 1;
            }
            self.poll(ends)?;
        }
        while self.done < self.posted {
            self.poll(ends)?;
        }
        Ok(())
    }

    fn poll(&mut self, ends: &Ends) -> anyhow::Result<()> {
        let mut space = [Completion::default(); POLL];
        let done = ends.verbs.poll(&mut space)?;
        for completion in done {
            self.room[completion.id as usize] += 1;
        }
        self.done += done.len() as u64;
        Ok(())
    }
}

/// Takes records of all sources: messages a second, or the growth of this process for each of them.
pub fn take(ends: &mut Ends, load: RecordsLoad) -> anyhow::Result<Reading> {
    let until = |ends: &mut Ends, word: &str| count_until(ends, word);
    until(ends, "warm")?;
    let before = resident_bytes()?;
    ends.say("go")?;
    let began = Instant::now();
    let messages = until(ends, "sent")?;
    let seconds = began.elapsed().as_secs_f64();
    let grown = resident_bytes()?.saturating_sub(before);
    ends.say("done")?;
    Ok(Reading {
        value: if load.mode == RecordsMode::SourceMemory {
            grown as f64 / f64::from(load.count)
        } else {
            messages as f64 / seconds / 1e6
        },
        moved_bytes: Some(messages * u64::from(load.bytes)),
        ..Reading::default()
    })
}

/// Whole records until the other end says `word`.
fn count_until(ends: &mut Ends, word: &str) -> anyhow::Result<u64> {
    let mut space = [Completion::default(); POLL];
    let (mut records, mut idle) = (0, 0_u32);
    loop {
        let done = ends.verbs.poll(&mut space)?;
        for completion in done {
            ends.records.free(&ends.pairs[0], completion.id)?;
        }
        records += done.len() as u64;
        idle += 1;
        if idle.is_multiple_of(LOOK)
            && let Some(line) = ends.overhear()?
        {
            ensure!(line == word, "the other end says {line:?}");
            return Ok(records);
        }
    }
}

/// Takes reliable records at all queue pairs; when asked, the first of them dies.
pub fn die(ends: &mut Ends) -> anyhow::Result<()> {
    let numbers = ends.pairs.iter().enumerate();
    let numbers: HashMap<u32, usize> = numbers.map(|(at, pair)| (pair.number, at)).collect();
    let mut space = [Completion::default(); POLL];
    let (mut is_dead, mut polls) = (false, 0_u32);
    loop {
        for completion in ends.verbs.poll(&mut space)? {
            let index = *numbers.get(&completion.pair).context("an unknown pair")?;
            let freed = ends.records.free(&ends.pairs[index], completion.id);
            // Records of the dead one are gone with it.
            if !(is_dead && index == 0) {
                freed?;
            }
        }
        polls += 1;
        if !polls.is_multiple_of(LOOK) {
            continue;
        }
        match ends.overhear()?.as_deref() {
            Some("die") => {
                ends.records.reset(&ends.verbs, &ends.pairs[0])?;
                is_dead = true;
                ends.say("dead")?;
            }
            Some(_) => return Ok(()),
            None => (),
        }
    }
}

/// Sends to all destinations, a message to each at a time, before and after the first one dies.
/// The rate of the others afterwards, in per cent of the rate before.
pub fn outlive(ends: &mut Ends, load: RecordsLoad, duration: Duration) -> anyhow::Result<Reading> {
    let mut busy = vec![false; load.count as usize];
    let before = rate(ends, load, duration, &mut busy)?;
    ends.say("die")?;
    ends.hear("dead")?;
    let after = rate(ends, load, duration, &mut busy)?;
    ends.say("done")?;
    Ok(Reading {
        value: after / before * 100.0,
        p99: None,
        moved_bytes: Some((before * duration.as_secs_f64()) as u64 * u64::from(load.bytes)),
        ..Reading::default()
    })
}

/// Messages a second to all destinations but the first.
fn rate(
    ends: &Ends,
    load: RecordsLoad,
    duration: Duration,
    busy: &mut [bool],
) -> anyhow::Result<f64> {
    let mut space = [Completion::default(); POLL];
    let (mut done, began, mut heard) = (0_u64, Instant::now(), Instant::now());
    while began.elapsed() < duration {
        for (index, is_busy) in busy.iter_mut().enumerate().filter(|(_, busy)| !**busy) {
            let mut to = ends.place(index, 0, load.bytes);
            to.address += index as u64 * u64::from(load.bytes);
            let part = (&ends.source, 0, load.bytes);
            ends.records
                .post(&ends.pairs[0], (index as u64, true, true), part, to)?;
            *is_busy = true;
        }
        for completion in ends.verbs.poll_any(&mut space)? {
            busy[completion.id as usize] = false;
            if completion.id == 0 {
                continue;
            }
            ensure!(
                completion.status == 0,
                "a record to a living destination ended with status {}",
                completion.status
            );
            (done, heard) = (done + 1, Instant::now());
        }
        ensure!(heard.elapsed() < PATIENCE, "no completion");
    }
    Ok(done as f64 / began.elapsed().as_secs_f64())
}
