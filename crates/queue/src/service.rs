//! The service: accepts jobs, runs them one at a time, and records their state.

use crate::carrier::{Carrier, News, Outcome, Stop};
use crate::job::{FilePath, Job, Order, PATHS_MAX, PRIORITIES, State, Trouble};
use crate::journal::{Journal, JournalError};
use crate::protocol::{RefusalKind, Reply, Request};
use crate::queue::{JOBS_MAX, Queue, Refused};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most bytes of a receiver's name, address or code.
const TO_BYTES_MAX: usize = 300;
const CODE_BYTES_MAX: usize = 100;
const KEY_DIGITS: usize = 64;
/// Longest sleep between two checks.
const TICK: Duration = Duration::from_secs(60);

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The journal's error.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Another service, or another kind of file, is at the socket's path.
    #[error("{0}")]
    Socket(String),
    /// The system's error.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The queue, its journal, and the carrier.
pub struct Service {
    carrier: Box<dyn Carrier>,
    log: Box<dyn Fn(&str) + Send + Sync>,
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    queue: Queue,
    journal: Journal,
    running: Option<Running>,
    is_stopping: bool,
}

struct Running {
    id: u64,
    stop: Stop,
    is_cancelled: bool,
}

impl Service {
    /// A service with the jobs of a directory's journal. `log` gets a line for display at each
    /// event.
    ///
    /// # Errors
    /// Another service has this directory; the system's error.
    pub fn open(
        state: &Path,
        carrier: impl Carrier + 'static,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Service, ServiceError> {
        let (journal, recovered) = Journal::open(state)?;
        if recovered.damaged_lines > 0 {
            log(&format!(
                "{} lines of the journal were damaged, and what they said is lost: the file as it was is queue.journal.damaged",
                recovered.damaged_lines
            ));
        }
        let queue = Queue::restore(recovered.last_id, recovered.jobs.into_values());
        let open = queue.jobs().filter(|job| !job.state.is_over()).count();
        if open > 0 {
            log(&format!("{open} jobs from before"));
        }
        Ok(Service {
            carrier: Box::new(carrier),
            log: Box::new(log),
            inner: Mutex::new(Inner {
                queue,
                journal,
                running: None,
                is_stopping: false,
            }),
            changed: Condvar::new(),
        })
    }

    /// Runs jobs until [`Service::stop`].
    pub fn run(&self) {
        while let Some((job, stop)) = self.next() {
            let id = job.id;
            let tell = |news| match news {
                News::Progress(progress) => self.lock().queue.tell(id, progress),
                News::Met(key) => self.note_receiver(id, key),
            };
            let carried = catch_unwind(AssertUnwindSafe(|| {
                self.carrier.carry(&job.order, &tell, &stop)
            }));
            let panicked = |_| {
                Outcome::Failed(Trouble {
                    kind: "system".into(),
                    message: "airdma panicked: this is a mistake in airdma".into(),
                })
            };
            self.ended(id, carried.unwrap_or_else(panicked));
        }
    }

    /// Ends [`Service::run`]. The running job is stopped, and resumes with the next service.
    pub fn stop(&self) {
        let stop = {
            let mut inner = self.lock();
            inner.is_stopping = true;
            inner.running.as_ref().map(|running| running.stop.clone())
        };
        self.changed.notify_all();
        if let Some(stop) = stop {
            stop.stop();
        }
    }

    /// Whether [`Service::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Answers a request.
    pub fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Add(order) => self.add(order),
            Request::List {} => {
                let inner = self.lock();
                let jobs = inner.queue.jobs().map(|job| inner.shown(job));
                Reply::Jobs(jobs.collect())
            }
            Request::Status { id } => self.status(id),
            Request::Cancel { id } => self.cancel(id),
        }
    }

    fn add(&self, order: Order) -> Reply {
        if let Err(refusal) = check(&order) {
            return refusal;
        }
        let mut inner = self.lock();
        let job = match inner.queue.job_for(order, unix()) {
            Ok(job) => job,
            Err(refused) => return refusal_of(&refused, 0),
        };
        // A job must be durable before it is reported as queued.
        if let Err(error) = inner.record(&job) {
            let message = format!("the job could not be written down ({error}), and is not queued");
            return Reply::error(RefusalKind::System, message);
        }
        let shown = inner.shown(&job);
        inner.queue.put(job);
        drop(inner);
        self.changed.notify_all();
        Reply::Job(Box::new(shown))
    }

    fn status(&self, id: u64) -> Reply {
        let inner = self.lock();
        match inner.queue.job(id) {
            Some(job) => Reply::Job(Box::new(inner.shown(job))),
            None => refusal_of(&Refused::NoJob, id),
        }
    }

    fn cancel(&self, id: u64) -> Reply {
        let mut inner = self.lock();
        match inner.queue.cancel(id, unix()) {
            Err(refused) => return refusal_of(&refused, id),
            Ok(true) => {
                let mut stop = None;
                if let Some(running) = &mut inner.running
                    && running.id == id
                {
                    running.is_cancelled = true;
                    stop = Some(running.stop.clone());
                }
                drop(inner);
                if let Some(stop) = stop {
                    stop.stop();
                }
            }
            Ok(false) => {
                if let Some(job) = inner.queue.job(id).cloned()
                    && let Err(error) = inner.record(&job)
                {
                    drop(inner);
                    let message = format!(
                        "job {id} is cancelled, but that could not be written down ({error}): it comes back when the service is started again"
                    );
                    return Reply::error(RefusalKind::System, message);
                }
                drop(inner);
            }
        }
        self.status(id)
    }

    /// Waits for the next job to run; `None` once the service stops.
    fn next(&self) -> Option<(Job, Stop)> {
        let mut inner = self.lock();
        loop {
            if inner.is_stopping {
                return None;
            }
            let now = Instant::now();
            if let Some(id) = inner.queue.due(now) {
                let job = inner.queue.begin(id, unix())?.clone();
                let stop = Stop::default();
                inner.running = Some(Running {
                    id,
                    stop: stop.clone(),
                    is_cancelled: false,
                });
                let recorded = inner.record(&job);
                drop(inner);
                self.log_failure(id, recorded);
                let (to, attempt) = (&job.order.to, job.attempts);
                (self.log)(&format!("job {id} to {to} runs (attempt {attempt})"));
                return Some((job, stop));
            }
            let until = inner.queue.next_retry();
            let limit = until.map_or(TICK, |at| at.saturating_duration_since(now).min(TICK));
            inner = self
                .changed
                .wait_timeout(inner, limit)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn ended(&self, id: u64, outcome: Outcome) {
        let mut inner = self.lock();
        let is_cancelled = inner.running.take().is_some_and(|it| it.is_cancelled);
        let now = Instant::now();
        let ended = inner
            .queue
            .end(id, outcome, is_cancelled, now, unix())
            .cloned();
        let Some(job) = ended else { return };
        let retry_in = inner.queue.retry_in(id, now);
        let recorded = inner.record(&job);
        drop(inner);
        self.log_failure(id, recorded);
        (self.log)(&format!("job {id} {}", end_in_words(&job, retry_in)));
    }

    /// Records durably that the code was used: another receiver could ask for it in a later
    /// attempt.
    fn note_receiver(&self, id: u64, key: String) {
        let mut inner = self.lock();
        let met = inner.queue.bind_receiver(id, key).cloned();
        let recorded = met.map_or(Ok(()), |job| inner.record(&job));
        drop(inner);
        self.log_failure(id, recorded);
    }

    fn log_failure(&self, id: u64, recorded: io::Result<()>) {
        if let Err(error) = recorded {
            (self.log)(&format!(
                "how job {id} is now could not be written down: {error}; after a restart it is as before"
            ));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn record(&mut self, job: &Job) -> io::Result<()> {
        self.journal.record(job)?;
        if self.journal.is_long(self.queue.jobs().count()) {
            let jobs = self.queue.jobs().filter(|known| known.id != job.id);
            let jobs = jobs.chain([job]);
            self.journal.rewrite(self.queue.last_id(), jobs)?;
        }
        Ok(())
    }

    /// A job as programs see it.
    fn shown(&self, job: &Job) -> Job {
        let mut shown = job.clone();
        shown.order.code = None;
        let retry_in = self.queue.retry_in(job.id, Instant::now());
        shown.retry_in = retry_in.map(|pause| pause.as_secs());
        shown
    }
}

fn end_in_words(job: &Job, retry_in: Option<Duration>) -> String {
    let trouble = job.trouble.as_ref().map_or("", |trouble| &trouble.message);
    match (job.state, retry_in) {
        (State::Done, _) if job.flaws.is_empty() => format!("is done: {} files", job.files),
        (State::Done, _) => format!(
            "is done: {} files, and {} that did not arrive",
            job.files,
            job.flaws.len()
        ),
        (State::Failed, _) => format!("failed: {trouble}"),
        (State::Cancelled, _) => "is cancelled".into(),
        (State::Queued | State::Running, Some(pause)) => {
            format!("is tried again in {} s: {trouble}", pause.as_secs())
        }
        (State::Queued | State::Running, None) => "is stopped, and goes on later".into(),
    }
}

/// Checks of an order that are possible before its turn.
fn check(order: &Order) -> Result<(), Reply> {
    let malformed = |message: String| Err(Reply::error(RefusalKind::Malformed, message));
    if order.paths.is_empty() || order.paths.len() > PATHS_MAX {
        let count = order.paths.len();
        return malformed(format!("{count} paths: one at least, {PATHS_MAX} at most"));
    }
    if order.to.is_empty() || order.to.len() > TO_BYTES_MAX {
        return malformed("`to` is an address or a name".into());
    }
    if order
        .code
        .as_ref()
        .is_some_and(|code| code.len() > CODE_BYTES_MAX)
    {
        return malformed("`code` is not a code: a code is two words of five letters".into());
    }
    if let Some(key) = &order.key {
        if order.code.is_some() {
            return malformed("`code` and `key`: one of them".into());
        }
        if key.len() != KEY_DIGITS || !key.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return malformed(format!(
                "`key` is not a key: a key is {KEY_DIGITS} hexadecimal digits"
            ));
        }
    }
    if !PRIORITIES.contains(&order.priority) {
        let (low, high) = (PRIORITIES.start(), PRIORITIES.end());
        return malformed(format!("`priority` is from {low} to {high}"));
    }
    for FilePath(path) in &order.paths {
        let named = path.display();
        if !path.is_absolute() {
            let message =
                format!("{named:?} is not an absolute path: the service has its own directory");
            return Err(Reply::error(RefusalKind::Path, message));
        }
        if let Err(error) = std::fs::symlink_metadata(path) {
            let message = format!("{named:?}: {error}");
            return Err(Reply::error(RefusalKind::Path, message));
        }
    }
    Ok(())
}

fn refusal_of(refused: &Refused, id: u64) -> Reply {
    match refused {
        Refused::Full => Reply::error(
            RefusalKind::Full,
            format!("{JOBS_MAX} jobs are waiting: wait until some are done, or cancel some"),
        ),
        Refused::NoJob => Reply::error(
            RefusalKind::NoJob,
            format!("no job {id}: `airdma queue list` names those that are known"),
        ),
        Refused::Over(state) => {
            let how = match state {
                State::Done => "done",
                State::Failed => "failed",
                State::Cancelled => "cancelled",
                State::Queued | State::Running => "under way",
            };
            Reply::error(RefusalKind::Over, format!("job {id} is over: {how}"))
        }
    }
}

fn unix() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
