use super::*;
use crate::carrier::{Arrived, Progress};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

const PATIENCE: Duration = Duration::from_secs(20);
const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
static FOLDERS: AtomicU32 = AtomicU32::new(0);

/// A carrier that reports its orders, and waits for the outcome that the test sets.
struct Told {
    asked: Mutex<Sender<String>>,
    answers: Mutex<Receiver<Outcome>>,
}

impl Carrier for Told {
    fn carry(&self, order: &Order, tell: &dyn Fn(News), stop: &Stop) -> Outcome {
        tell(News::Progress(Progress {
            bytes: 5,
            bytes_total: 10,
        }));
        if order.code.is_some() && order.to == "met" {
            tell(News::Met(KEY.into()));
        }
        let asked = format!("{}{}", order.to, order.key.as_deref().unwrap_or_default());
        self.asked.lock().unwrap().send(asked).unwrap();
        let answers = self.answers.lock().unwrap();
        loop {
            if let Ok(outcome) = answers.recv_timeout(Duration::from_millis(5)) {
                drop(answers);
                assert!(order.to != "panic", "as asked for");
                return outcome;
            }
            if stop.is_stopped() {
                return Outcome::Stopped;
            }
        }
    }
}

struct Bench {
    service: Arc<Service>,
    worker: Option<std::thread::JoinHandle<()>>,
    asked: Receiver<String>,
    answers: Sender<Outcome>,
    state: PathBuf,
}

impl Bench {
    fn new() -> Bench {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("airdma-service-{}-{number}", std::process::id());
        Bench::at(std::env::temp_dir().join(name))
    }

    fn at(state: PathBuf) -> Bench {
        let ((asked, asks), (answers, answered)) = (channel(), channel());
        let carrier = Told {
            asked: Mutex::new(asked),
            answers: Mutex::new(answered),
        };
        let service = Arc::new(Service::open(&state, carrier, |_| {}).unwrap());
        let running = Arc::clone(&service);
        Bench {
            service,
            worker: Some(std::thread::spawn(move || running.run())),
            asked: asks,
            answers,
            state,
        }
    }

    fn add(&self, to: &str) -> Job {
        self.add_with(to, 50)
    }

    fn add_with(&self, to: &str, priority: u8) -> Job {
        match self.service.answer(Request::Add(order(to, priority))) {
            Reply::Job(job) => *job,
            other @ (Reply::Jobs(_) | Reply::Error(_)) => panic!("{other:?}"),
        }
    }

    fn runs(&self) -> String {
        self.asked.recv_timeout(PATIENCE).unwrap()
    }

    fn status(&self, id: u64) -> Job {
        match self.service.answer(Request::Status { id }) {
            Reply::Job(job) => *job,
            other @ (Reply::Jobs(_) | Reply::Error(_)) => panic!("{other:?}"),
        }
    }

    fn wait_for(&self, id: u64, state: State) -> Job {
        let start = Instant::now();
        loop {
            let job = self.status(id);
            if job.state == state {
                return job;
            }
            assert!(start.elapsed() < PATIENCE, "{job:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn arrive(&self) {
        let arrived = Arrived {
            files: 3,
            bytes: 10,
            flaws: Vec::new(),
        };
        self.answers.send(Outcome::Arrived(arrived)).unwrap();
    }

    /// Ends the service and starts another one.
    fn restart(mut self) -> Bench {
        self.end();
        let state = std::mem::take(&mut self.state);
        drop(self);
        Bench::at(state)
    }

    fn end(&mut self) {
        self.service.stop();
        if let Some(worker) = self.worker.take() {
            worker.join().unwrap();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.end();
        if !self.state.as_os_str().is_empty() {
            std::fs::remove_dir_all(&self.state).ok();
        }
    }
}

fn order(to: &str, priority: u8) -> Order {
    Order {
        paths: vec![FilePath("/".into())],
        to: to.into(),
        code: Some("secret".into()),
        key: None,
        priority,
    }
}

fn refusal(reply: Reply) -> (RefusalKind, String) {
    match reply {
        Reply::Error(refusal) => (refusal.kind, refusal.message),
        other @ (Reply::Jobs(_) | Reply::Job(_)) => panic!("{other:?}"),
    }
}

#[test]
fn jobs_run_one_at_a_time_in_their_order() {
    let bench = Bench::new();
    assert_eq!(bench.add("first").state, State::Queued);
    assert_eq!(bench.runs(), "first");
    bench.add("second");
    bench.add_with("urgent", 100);
    assert!(bench.asked.recv_timeout(Duration::from_millis(50)).is_err());
    let running = bench.wait_for(1, State::Running);
    assert_eq!((running.bytes, running.bytes_total), (5, 10));
    assert_eq!(running.order.code, None, "a code is not shown");
    bench.arrive();
    assert_eq!(bench.runs(), "urgent");
    let done = bench.wait_for(1, State::Done);
    assert_eq!((done.files, done.bytes, done.attempts), (3, 10, 1));
    bench.arrive();
    assert_eq!(bench.runs(), "second");
    bench.arrive();
    bench.wait_for(2, State::Done);
    let Reply::Jobs(jobs) = bench.service.answer(Request::List {}) else {
        panic!("no list");
    };
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn jobs_survive_a_restart_and_what_ran_runs_again() {
    let bench = Bench::new();
    bench.add("first");
    bench.add("second");
    assert_eq!(bench.runs(), "first");
    let bench = bench.restart();
    assert_eq!(bench.runs(), "first");
    assert_eq!(bench.wait_for(1, State::Running).attempts, 2);
    bench.arrive();
    assert_eq!(bench.runs(), "second");
    bench.arrive();
    bench.wait_for(2, State::Done);
    let bench = bench.restart();
    assert_eq!(bench.status(1).state, State::Done);
    assert_eq!(bench.add("third").id, 3);
}

#[test]
fn a_job_is_cancelled_before_it_runs_and_while_it_runs_for_good() {
    let bench = Bench::new();
    bench.add("runs");
    bench.add("waits");
    bench.runs();
    for id in [2, 1] {
        let reply = bench.service.answer(Request::Cancel { id });
        assert!(matches!(reply, Reply::Job(_)), "{reply:?}");
        bench.wait_for(id, State::Cancelled);
    }
    let (kind, message) = refusal(bench.service.answer(Request::Cancel { id: 1 }));
    assert_eq!(
        (kind, &*message),
        (RefusalKind::Over, "job 1 is over: cancelled")
    );
    let (kind, _) = refusal(bench.service.answer(Request::Cancel { id: 9 }));
    assert_eq!(kind, RefusalKind::NoJob);
    let bench = bench.restart();
    assert_eq!(bench.status(1).state, State::Cancelled);
    assert!(bench.asked.recv_timeout(Duration::from_millis(50)).is_err());
}

#[test]
fn failures_and_panics_end_their_job_and_no_other() {
    let bench = Bench::new();
    let trouble = |message: &str| Trouble {
        kind: "refused".into(),
        message: message.into(),
    };
    for to in ["refused", "panic", "later", "last"] {
        bench.add(to);
    }
    assert_eq!(bench.runs(), "refused");
    bench.answers.send(Outcome::Failed(trouble("no"))).unwrap();
    assert_eq!(bench.runs(), "panic");
    bench.arrive();
    assert_eq!(bench.runs(), "later");
    bench.answers.send(Outcome::Later(trouble("away"))).unwrap();
    assert_eq!(bench.runs(), "last");
    assert_eq!(bench.status(1).trouble, Some(trouble("no")));
    let panicked = bench.wait_for(2, State::Failed).trouble.unwrap();
    assert!(
        panicked.message.starts_with("airdma panicked"),
        "{panicked:?}"
    );
    let later = bench.status(3);
    assert_eq!(
        (later.state, later.trouble),
        (State::Queued, Some(trouble("away")))
    );
    assert!(later.retry_in.is_some_and(|seconds| seconds <= 5));
}

/// Another receiver that comes later, by any name, must not be able to use a code again.
#[test]
fn a_code_is_used_once_and_leaves_the_key_that_it_brought() {
    let bench = Bench::new();
    let id = bench.add("met").id;
    assert_eq!(bench.runs(), "met");
    let job = bench.status(id);
    assert_eq!(
        (job.order.code, job.order.key.as_deref()),
        (None, Some(KEY))
    );
    // This holds for the next service, too, if this one is killed.
    let bench = bench.restart();
    assert_eq!(bench.runs(), format!("met{KEY}"));
    bench.arrive();
    bench.wait_for(id, State::Done);
}

#[test]
fn orders_that_cannot_be_are_refused_when_they_are_given() {
    let bench = Bench::new();
    let add = |order| refusal(bench.service.answer(Request::Add(order)));
    let good = order("anna", 50);
    let at = |path: &str| Order {
        paths: vec![FilePath(path.into())],
        ..good.clone()
    };
    let (kind, message) = add(at("/no/such/file"));
    assert_eq!(kind, RefusalKind::Path);
    assert!(message.contains("No such file"), "{message}");
    assert_eq!(add(at("relative")).0, RefusalKind::Path);
    for wrong in [
        Order {
            paths: vec![],
            ..good.clone()
        },
        Order {
            paths: vec![FilePath("/".into()); PATHS_MAX + 1],
            ..good.clone()
        },
        Order {
            to: String::new(),
            ..good.clone()
        },
        Order {
            to: "x".repeat(TO_BYTES_MAX + 1),
            ..good.clone()
        },
        Order {
            code: Some("x".repeat(CODE_BYTES_MAX + 1)),
            ..good.clone()
        },
        Order {
            key: Some(KEY.into()),
            ..good.clone()
        },
        Order {
            code: None,
            key: Some(KEY.replace('0', "g")),
            ..good.clone()
        },
        Order {
            priority: 0,
            ..good.clone()
        },
        Order {
            priority: 101,
            ..good.clone()
        },
    ] {
        assert_eq!(add(wrong).0, RefusalKind::Malformed);
    }
}

#[test]
fn what_cannot_be_written_down_is_not_queued() {
    let bench = Bench::new();
    bench.service.lock().journal.refuse_writes();
    let (kind, message) = refusal(bench.service.answer(Request::Add(order("anna", 50))));
    assert_eq!(kind, RefusalKind::System);
    assert!(message.contains("is not queued"), "{message}");
    assert_eq!(bench.service.answer(Request::List {}), Reply::Jobs(vec![]));
}
