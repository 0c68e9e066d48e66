//! The jobs, and whose turn it is. Nothing here reads a clock or touches a disk.

use crate::carrier::{Outcome, Progress};
use crate::job::{Job, Order, State, Trouble};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Jobs that are not over yet.
pub const JOBS_MAX: usize = 10_000;
/// Bytes of all that is asked for by jobs that are known.
const ORDERS_BYTES_MAX: usize = 64 << 20;
/// Jobs that are over, and still known.
pub const HISTORY_MAX: usize = 100;
/// How often a job is tried: with the pauses between, about a day.
pub const ATTEMPTS_MAX: u32 = 300;
/// Files that did not arrive, and are named.
const FLAWS_MAX: usize = 100;
/// The first pause after a peer was not there; each further one is twice as long, up to the longest.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// All jobs that are known.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: BTreeMap<u64, Entry>,
    last_id: u64,
    /// Jobs that are over, in the order in which they ended: by their times it would be another one where somebody has set the clock.
    over: VecDeque<u64>,
}

#[derive(Debug)]
struct Entry {
    job: Job,
    /// Not before this moment. Only in memory: after a restart peers are tried at once.
    retry_at: Option<Instant>,
}

/// Why a job is not taken, or not given up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    NoJob,
    Over(State),
}

impl Queue {
    /// With what a journal says. What ran when the service ended is queued again.
    pub fn restore(last_id: u64, jobs: impl IntoIterator<Item = Job>) -> Queue {
        let mut queue = Queue {
            last_id,
            ..Queue::default()
        };
        for mut job in jobs {
            if job.state == State::Running {
                job.state = State::Queued;
            }
            queue.last_id = queue.last_id.max(job.id);
            queue.put(job);
        }
        let over = queue.jobs().filter(|job| job.state.is_over());
        let mut over: Vec<_> = over.map(|job| (job.ended, job.id)).collect();
        over.sort_unstable();
        over.into_iter().for_each(|(_, id)| queue.close(id));
        queue
    }

    pub fn last_id(&self) -> u64 {
        self.last_id
    }

    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.entries.values().map(|entry| &entry.job)
    }

    pub fn job(&self, id: u64) -> Option<&Job> {
        self.entries.get(&id).map(|entry| &entry.job)
    }

    /// How long until a job is tried again.
    pub fn retry_in(&self, id: u64, now: Instant) -> Option<Duration> {
        let at = self.entries.get(&id)?.retry_at?;
        Some(at.saturating_duration_since(now))
    }

    /// A job for an order, which becomes part of the queue by [`Queue::put`].
    pub fn job_for(&self, order: Order, unix: u64) -> Result<Job, Refused> {
        let open = self.jobs().filter(|job| !job.state.is_over()).count();
        let bytes: usize = self.jobs().map(|job| job.order.bytes()).sum();
        if open >= JOBS_MAX || bytes.saturating_add(order.bytes()) > ORDERS_BYTES_MAX {
            return Err(Refused::Full);
        }
        // A journal may say any number.
        let id = self.last_id.checked_add(1).ok_or(Refused::Full)?;
        Ok(Job {
            id,
            order,
            state: State::Queued,
            added: unix,
            started: None,
            ended: None,
            attempts: 0,
            trouble: None,
            bytes: 0,
            bytes_total: 0,
            files: 0,
            flaws: Vec::new(),
            retry_in: None,
        })
    }

    pub fn put(&mut self, job: Job) {
        self.last_id = self.last_id.max(job.id);
        let retry_at = None;
        self.entries.insert(job.id, Entry { job, retry_at });
    }

    /// Whose turn it is: of the highest priority the one that came first, but for those whose peer was not there just now.
    pub fn due(&self, now: Instant) -> Option<u64> {
        let is_due = |entry: &&Entry| {
            entry.job.state == State::Queued && entry.retry_at.is_none_or(|at| at <= now)
        };
        let due = self.entries.values().filter(is_due);
        let first = due.min_by_key(|entry| (Reverse(entry.job.order.priority), entry.job.id));
        first.map(|entry| entry.job.id)
    }

    /// When to look again, if no job is due and none comes.
    pub fn next_retry(&self) -> Option<Instant> {
        let queued = self.entries.values();
        let queued = queued.filter(|entry| entry.job.state == State::Queued);
        queued.filter_map(|entry| entry.retry_at).min()
    }

    /// It runs from now on.
    pub fn begin(&mut self, id: u64, unix: u64) -> Option<&Job> {
        let entry = self.entries.get_mut(&id)?;
        entry.retry_at = None;
        entry.job.state = State::Running;
        entry.job.attempts = entry.job.attempts.saturating_add(1);
        entry.job.started.get_or_insert(unix);
        Some(&entry.job)
    }

    pub fn tell(&mut self, id: u64, progress: Progress) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.job.bytes = progress.bytes;
            entry.job.bytes_total = progress.bytes_total;
        }
    }

    /// Its code was used: from now on it is for the receiver that has this key.
    pub fn meet(&mut self, id: u64, key: String) -> Option<&Job> {
        let order = &mut self.entries.get_mut(&id)?.job.order;
        (order.code, order.key) = (None, Some(key));
        self.job(id)
    }

    /// An attempt is over. `is_cancelled`: somebody gave the job up meanwhile.
    pub fn end(
        &mut self,
        id: u64,
        outcome: Outcome,
        is_cancelled: bool,
        now: Instant,
        unix: u64,
    ) -> Option<&Job> {
        let entry = self.entries.get_mut(&id)?;
        let job = &mut entry.job;
        match outcome {
            Outcome::Arrived(arrived) => {
                job.state = State::Done;
                (job.files, job.bytes) = (arrived.files, arrived.bytes);
                job.bytes_total = arrived.bytes;
                job.flaws = arrived.flaws;
                job.flaws.truncate(FLAWS_MAX);
                job.trouble = None;
            }
            _ if is_cancelled => job.state = State::Cancelled,
            Outcome::Stopped => job.state = State::Queued,
            Outcome::Failed(trouble) => {
                job.state = State::Failed;
                job.trouble = Some(trouble);
            }
            Outcome::Later(trouble) if job.attempts >= ATTEMPTS_MAX => {
                job.state = State::Failed;
                job.trouble = Some(Trouble {
                    message: format!(
                        "given up after {ATTEMPTS_MAX} attempts: {}",
                        trouble.message
                    ),
                    ..trouble
                });
            }
            Outcome::Later(trouble) => {
                job.state = State::Queued;
                job.trouble = Some(trouble);
                entry.retry_at = Some(now + pause_after(job.attempts));
            }
        }
        if job.state.is_over() {
            job.ended = Some(unix);
            // It was for this job alone.
            job.order.code = None;
            self.close(id);
        }
        self.job(id)
    }

    /// Gives up a job that does not run. One that runs is over when it has stopped: true.
    pub fn cancel(&mut self, id: u64, unix: u64) -> Result<bool, Refused> {
        let entry = self.entries.get_mut(&id).ok_or(Refused::NoJob)?;
        match entry.job.state {
            State::Running => Ok(true),
            State::Queued => {
                entry.job.state = State::Cancelled;
                entry.job.ended = Some(unix);
                entry.job.order.code = None;
                self.close(id);
                Ok(false)
            }
            over @ (State::Done | State::Failed | State::Cancelled) => Err(Refused::Over(over)),
        }
    }

    /// A job is over. Of those that are, only the latest are kept.
    fn close(&mut self, id: u64) {
        self.over.push_back(id);
        if self.over.len() > HISTORY_MAX
            && let Some(oldest) = self.over.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }
}

fn pause_after(attempts: u32) -> Duration {
    let doubled = attempts.saturating_sub(1).min(16);
    (PAUSE * (1 << doubled)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests;
