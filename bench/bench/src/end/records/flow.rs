//! Messages back to back in one direction.

use super::{Completion, Duration, Ends, Instant, POLL, Reading, RecordsLoad, depth};
use crate::peer::PAPER_DATAGRAM;
use anyhow::ensure;

/// Silence after which no record follows: longer than a message stays open without a packet.
const SILENCE: Duration = Duration::from_millis(60);
/// Polls without a completion between two looks at the connection.
const LOOK: u32 = 256;
/// Words of the largest map.
const WORDS: usize = 64;

/// Sends for `duration`, then says how many messages it were.
pub fn send(ends: &mut Ends, load: RecordsLoad, duration: Duration) -> anyhow::Result<()> {
    let (depth, mut space) = (depth(load.bytes), [Completion::default(); POLL]);
    let every = (depth / 4).max(1);
    let (mut posted, mut done, began) = (0_u64, 0_u64, Instant::now());
    while began.elapsed() < duration || done < posted {
        let is_over = began.elapsed() >= duration;
        while posted - done < u64::from(depth) && !is_over {
            let signaled = (posted + 1).is_multiple_of(u64::from(every));
            let to = ends.place(0, posted, load.bytes);
            let part = (&ends.source, 0, load.bytes);
            let pair = &ends.pairs[0];
            ends.records
                .post(pair, (posted, signaled, false), part, to)?;
            posted += 1;
        }
        if is_over && posted - done < u64::from(every) {
            // The last ones are not signaled.
            let settled = Instant::now();
            while settled.elapsed() < SILENCE {
                ends.verbs.poll(&mut space)?;
            }
            break;
        }
        for completion in ends.verbs.poll(&mut space)? {
            done = completion.id + 1;
        }
    }
    ends.say(&posted.to_string())?;
    ends.wait_end()
}

/// The target's count.
pub struct Flow {
    load: RecordsLoad,
    valid: u64,
    /// Bytes valid by the paper's rule.
    paper: u64,
    first: Option<Instant>,
    /// When the last record came while the source sent, and the valid bytes until then.
    last: Option<(Instant, u64)>,
}

impl Flow {
    pub fn new(load: RecordsLoad) -> Flow {
        Flow {
            load,
            valid: 0,
            paper: 0,
            first: None,
            last: None,
        }
    }

    /// Counts until the source has sent all.
    pub fn take(mut self, ends: &mut Ends) -> anyhow::Result<Reading> {
        let mut space = [Completion::default(); POLL];
        let mut map = [0; WORDS];
        let (mut sent, mut silent, mut idle) = (None, Instant::now(), 0_u32);
        while sent.is_none() || silent.elapsed() < SILENCE {
            let done = ends.verbs.poll(&mut space)?;
            if done.is_empty() {
                idle += 1;
                if sent.is_none() && idle.is_multiple_of(LOOK) {
                    sent = match ends.overhear()? {
                        Some(line) => Some(line.parse::<u64>()?),
                        None => None,
                    };
                }
                continue;
            }
            for completion in done {
                self.count(ends, completion, &mut map)?;
                ends.records.free(&ends.pairs[0], completion.id)?;
            }
            silent = Instant::now();
            self.first.get_or_insert(silent);
            if sent.is_none() {
                self.last = Some((silent, self.valid));
            }
        }
        ends.say("done")?;
        self.reading(sent.unwrap_or(0))
    }

    fn count(
        &mut self,
        ends: &Ends,
        completion: &Completion,
        map: &mut [u64; WORDS],
    ) -> anyhow::Result<()> {
        self.valid += u64::from(completion.bytes);
        if completion.bytes == self.load.bytes {
            self.paper += u64::from(completion.bytes);
        } else {
            let record = ends.records.read(&ends.pairs[0], completion.id, map)?;
            self.paper += by_the_paper(record.length, record.unit, map);
        }
        Ok(())
    }

    fn reading(&self, sent: u64) -> anyhow::Result<Reading> {
        let sent = sent * u64::from(self.load.bytes);
        ensure!(sent > 0, "nothing was sent");
        // A strict target may have no record at all.
        let (seconds, bytes) = match (self.first, self.last) {
            (Some(first), Some((last, bytes))) => (last.duration_since(first).as_secs_f64(), bytes),
            _ => (0.0, 0),
        };
        Ok(Reading {
            value: bytes as f64 * 8.0 / seconds.max(1e-3) / 1e9,
            moved_bytes: Some(self.valid),
            valid: Some(self.valid as f64 / sent as f64 * 100.0),
            paper: Some(self.paper as f64 / sent as f64 * 100.0),
            ..Reading::default()
        })
    }
}

/// Bytes of a record that were valid if its packets were the fragments of datagrams of 64 KB, each
/// of which arrives whole or not at all, and the message is lost without the last of them. A packet
/// is of the datagram that has its last byte.
fn by_the_paper(length: u32, unit: u32, map: &[u64]) -> u64 {
    let units = length.div_ceil(unit);
    let end_of = |index: u32| ((index + 1) * unit).min(length);
    let has = |index: u32| map[index as usize / 64] >> (index % 64) & 1 == 1;
    let (mut valid, mut first) = (0, 0);
    while first < units {
        let datagram = (end_of(first) - 1) / PAPER_DATAGRAM;
        let is_of = |index: &u32| (end_of(*index) - 1) / PAPER_DATAGRAM == datagram;
        let end = first + (first..units).take_while(is_of).count() as u32;
        if (first..end).all(has) {
            valid += u64::from(end_of(end - 1) - first * unit);
        } else if end == units {
            return 0;
        }
        first = end;
    }
    valid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_its_last_datagram_is_lost_by_the_paper() {
        let all = [u64::MAX; 2];
        assert_eq!(by_the_paper(100_000, 1000, &all), 100_000);
        // A packet of the first datagram, which has 65: the others are left.
        assert_eq!(by_the_paper(100_000, 1000, &[!1, u64::MAX]), 35_000);
        // The last packet.
        assert_eq!(by_the_paper(100_000, 1000, &[u64::MAX, !(1 << 35)]), 0);
        // A message of one datagram is whole or lost.
        assert_eq!(by_the_paper(3500, 1000, &[0b1101, 0]), 0);
        assert_eq!(by_the_paper(3500, 1000, &[0b1111, 0]), 3500);
    }

    #[test]
    fn the_last_datagram_of_the_paper_has_the_rest() {
        // 256 KiB in 186 packets: the fifth datagram has the last one alone.
        let mut map = [u64::MAX; 3];
        map[2] &= !(1 << (184 - 128));
        let valid = by_the_paper(262_144, 1412, &map);
        assert_eq!(valid, 262_144 - (185 - 139) * 1412);
    }
}
