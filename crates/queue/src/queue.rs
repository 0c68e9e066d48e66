//! The jobs, and which of them runs next. Nothing here reads a clock or touches a disk.

use crate::carrier::{Outcome, Progress};
use crate::job::{Job, Order, State, Trouble};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Most jobs that have not ended.
pub const JOBS_MAX: usize = 10_000;
/// Most bytes of the orders of all known jobs.
const ORDERS_BYTES_MAX: usize = 64 << 20;
/// Most jobs that have ended and are still known.
pub const HISTORY_MAX: usize = 100;
/// Most attempts of a job: with the pauses between them, about a day.
pub const ATTEMPTS_MAX: u32 = 300;
/// Most files that are named as not arrived.
const FLAWS_MAX: usize = 100;
/// Pause after the first attempt with an absent peer; it doubles up to the longest.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// All jobs that are known.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: BTreeMap<u64, Entry>,
    last_id: u64,
    /// Ended jobs in the order in which they ended. Their times would not do: the clock may be set
    /// back.
    over: VecDeque<u64>,
}

#[derive(Debug)]
struct Entry {
    job: Job,
    /// Time before which it is not retried. Not in the journal: after a restart peers are tried at
    /// once.
    retry_at: Option<Instant>,
}

/// Why a job was not accepted or cancelled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    NoJob,
    Over(State),
}

impl Queue {
    /// The queue of a journal. A job that ran when the service ended is queued again.
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

    /// Time until a job is retried.
    pub fn retry_in(&self, id: u64, now: Instant) -> Option<Duration> {
        let at = self.entries.get(&id)?.retry_at?;
        Some(at.saturating_duration_since(now))
    }

    /// Makes a job for an order; [`Queue::put`] adds it to the queue.
    pub fn job_for(&self, order: Order, unix: u64) -> Result<Job, Refused> {
        let open = self.jobs().filter(|job| !job.state.is_over()).count();
        let bytes: usize = self.jobs().map(|job| job.order.bytes()).sum();
        if open >= JOBS_MAX || bytes.saturating_add(order.bytes()) > ORDERS_BYTES_MAX {
            return Err(Refused::Full);
        }
        // A journal may hold any number.
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

    /// The next job to run: the oldest of the highest priority.
    ///
    /// Jobs that wait for a retry are left out.
    pub fn due(&self, now: Instant) -> Option<u64> {
        let is_due = |entry: &&Entry| {
            entry.job.state == State::Queued && entry.retry_at.is_none_or(|at| at <= now)
        };
        let due = self.entries.values().filter(is_due);
        let first = due.min_by_key(|entry| (Reverse(entry.job.order.priority), entry.job.id));
        first.map(|entry| entry.job.id)
    }

    /// The time of the next retry.
    pub fn next_retry(&self) -> Option<Instant> {
        let queued = self.entries.values();
        let queued = queued.filter(|entry| entry.job.state == State::Queued);
        queued.filter_map(|entry| entry.retry_at).min()
    }

    /// Marks a job as running.
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

    /// Binds a job to the receiver with this key; its code has been used.
    pub fn bind_receiver(&mut self, id: u64, key: String) -> Option<&Job> {
        let order = &mut self.entries.get_mut(&id)?.job.order;
        (order.code, order.key) = (None, Some(key));
        self.job(id)
    }

    /// Ends an attempt. `is_cancelled`: the job was cancelled meanwhile.
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
            // The code was for this job alone.
            job.order.code = None;
            self.close(id);
        }
        self.job(id)
    }

    /// Cancels a job that does not run. Returns true for one that runs: it ends once it has
    /// stopped.
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

    /// Ends a job. Only the latest ended jobs are kept.
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
