//! Runs many worlds on many threads, and shrinks a failing one.

use crate::plan::{Action, Plan};
use crate::run::{plan_of, run};
use crate::world::{Counts, Seen};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Worlds to run, and limits.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// The first seed; the others follow it.
    pub first: u64,
    /// Number of worlds.
    pub worlds: u64,
    /// Time after which no new world starts.
    pub time: Option<Duration>,
    /// Number of threads.
    pub threads: usize,
    /// Failures after which no new world starts.
    pub failures_max: usize,
}

/// Result of a soak.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Counts of what happened.
    pub counts: Counts,
    /// Completions by kind.
    pub seen: Seen,
    /// Failed seeds with their errors, in the order of the seeds.
    pub failures: Vec<(u64, String)>,
    /// Duration.
    pub time: Duration,
}

/// Real time after which the seed of a running world is reported: it may never end.
pub const SLOW: Duration = Duration::from_secs(30);

/// The running worlds, with their start, and whether their slowness was reported.
#[derive(Default)]
struct Watch {
    running: Mutex<Vec<(u64, Instant, bool)>>,
}

impl Watch {
    fn running(&self) -> MutexGuard<'_, Vec<(u64, Instant, bool)>> {
        self.running.lock().expect("not poisoned")
    }

    fn during<T>(&self, seed: u64, run: impl FnOnce() -> T) -> T {
        self.running().push((seed, Instant::now(), false));
        let outcome = run();
        self.running().retain(|(other, ..)| *other != seed);
        outcome
    }

    /// Seeds of slow worlds, each reported once.
    fn slow(&self) -> Vec<u64> {
        let mut running = self.running();
        let slow = running
            .iter_mut()
            .filter(|(_, since, told)| !told && since.elapsed() > SLOW);
        slow.map(|(seed, _, told)| {
            *told = true;
            *seed
        })
        .collect()
    }
}

/// Runs worlds.
///
/// `each` is called now and then with the number of completed worlds, `slow` with the seed of a
/// world that takes longer than [`SLOW`].
pub fn soak(soak: &Soak, each: impl Fn(u64) + Sync, slow: impl Fn(u64)) -> Report {
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let enough = AtomicBool::new(false);
    let report = Mutex::new(Report::default());
    let watch = Watch::default();
    let in_time = || soak.time.is_none_or(|time| start.elapsed() < time);
    let work = || {
        while !enough.load(Ordering::Relaxed) && in_time() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= soak.worlds {
                return;
            }
            let seed = soak.first.wrapping_add(index);
            let outcome = watch.during(seed, || run(plan_of(seed), false));
            let mut report = report.lock().expect("not poisoned");
            report.counts.add(&outcome.counts);
            for (of, count) in outcome.world.seen {
                *report.seen.entry(of).or_default() += count;
            }
            if let Some(why) = outcome.failure {
                report.failures.push((seed, why));
                enough.store(
                    report.failures.len() >= soak.failures_max,
                    Ordering::Relaxed,
                );
            }
            drop(report);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(1000) {
                each(done);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..soak.threads.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        while !workers.iter().all(|worker| worker.is_finished()) {
            // A longer sleep would delay the end.
            std::thread::sleep(Duration::from_millis(20));
            for seed in watch.slow() {
                slow(seed);
            }
        }
    });
    let mut report = report.into_inner().expect("not poisoned");
    report.failures.sort();
    report.time = start.elapsed();
    report
}

/// Text of a failure without its numbers.
fn kind(failure: &str) -> String {
    // Numbers and the place of the failure do not matter.
    let words = failure.split_whitespace().filter(|word| {
        let number = word.contains(|c: char| c.is_ascii_digit());
        !number && !["action", "at", "the", "end", "end:"].contains(word)
    });
    words.take(8).collect::<Vec<_>>().join(" ")
}

/// Leaves out actions of a failing world as long as the rest fails in the same way, by delta
/// debugging (Zeller and Hildebrandt, 2002).
pub fn shrink(plan: &Plan) -> Plan {
    let with = |actions: Vec<Action>| Plan {
        actions,
        ..plan.clone()
    };
    let fails = |actions: Vec<Action>| run(with(actions), false).failure.map(|why| kind(&why));
    let before = fails(plan.actions.clone());
    let mut kept = plan.actions.clone();
    let mut chunk = kept.len().div_ceil(2);
    while chunk > 0 {
        let length = kept.len();
        let mut at = 0;
        while at < kept.len() {
            let end = (at + chunk).min(kept.len());
            let without: Vec<_> = kept[..at].iter().chain(&kept[end..]).cloned().collect();
            if before.is_some() && fails(without.clone()) == before {
                kept = without;
            } else {
                at = end;
            }
        }
        if kept.len() == length {
            chunk /= 2;
        }
    }
    with(kept)
}

#[cfg(test)]
mod tests {
    use super::{SLOW, Watch, kind};
    use std::time::{Duration, Instant};

    #[test]
    fn a_world_that_takes_long_is_told_once() {
        let watch = Watch::default();
        let Some(long_ago) = Instant::now().checked_sub(SLOW + Duration::from_secs(1)) else {
            return; // the clock is as young as that
        };
        watch.running().push((7, long_ago, false));
        watch.during(8, || {
            assert_eq!(watch.slow(), [7]);
            assert_eq!(watch.slow(), []);
        });
        assert_eq!(watch.running().len(), 1);
    }

    #[test]
    fn failures_of_a_kind_are_alike() {
        let alike = [
            "action 35: end 4: READ 6 returned 0xbc for byte 0x17d3a, which it did not hold",
            "at the end: end 1: READ 34 returned 0xb1 for byte 0x13bd8, which it did not hold",
        ];
        assert_eq!(kind(alike[0]), kind(alike[1]));
        let other = "at the end: end 4: write 10 succeeded, yet byte 0x187ab is 0xc3";
        assert_ne!(kind(alike[0]), kind(other));
    }
}
