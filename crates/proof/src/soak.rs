//! Many worlds on many threads, and one failing world made small.

use crate::plan::{Action, Plan};
use crate::run::{plan_of, run};
use crate::world::Counts;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Which worlds are run, and how.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// The first seed; the others follow it.
    pub first: u64,
    /// How many.
    pub worlds: u64,
    /// The time after which no new ones begin.
    pub time: Option<Duration>,
    /// Threads.
    pub threads: usize,
    /// Failures after which no new ones begin.
    pub failures_max: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What went by.
    pub counts: Counts,
    /// Seeds that failed, and why, in the order of the seeds.
    pub failures: Vec<(u64, String)>,
    /// How long it took.
    pub time: Duration,
}

/// Runs worlds. `each` is called now and then with the number of worlds that are done.
pub fn soak(soak: &Soak, each: impl Fn(u64) + Sync) -> Report {
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let enough = AtomicBool::new(false);
    let report = Mutex::new(Report::default());
    let in_time = || soak.time.is_none_or(|time| start.elapsed() < time);
    let work = || {
        while !enough.load(Ordering::Relaxed) && in_time() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= soak.worlds {
                return;
            }
            let seed = soak.first.wrapping_add(index);
            let outcome = run(plan_of(seed), false);
            let mut report = report.lock().expect("nobody panics with it");
            report.counts.add(&outcome.counts);
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
        for _ in 0..soak.threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut report = report.into_inner().expect("nobody panics with it");
    report.failures.sort();
    report.time = start.elapsed();
    report
}

/// Leaves out actions of a failing world for as long as what is left fails, by delta debugging (Zeller and Hildebrandt, 2002).
pub fn shrink(plan: &Plan) -> Plan {
    let with = |actions: Vec<Action>| Plan {
        actions,
        ..plan.clone()
    };
    let mut kept = plan.actions.clone();
    let mut chunk = kept.len().div_ceil(2);
    while chunk > 0 {
        let before = kept.len();
        let mut at = 0;
        while at < kept.len() {
            let end = (at + chunk).min(kept.len());
            let without: Vec<_> = kept[..at].iter().chain(&kept[end..]).cloned().collect();
            if run(with(without.clone()), false).failure.is_some() {
                kept = without;
            } else {
                at = end;
            }
        }
        if kept.len() == before {
            chunk /= 2;
        }
    }
    with(kept)
}
