use super::*;
use crate::carrier::Arrived;
use crate::job::FilePath;

fn order(priority: u8) -> Order {
    Order {
        paths: vec![FilePath("/a".into())],
        to: "anna".into(),
        code: Some("secret".into()),
        key: None,
        priority,
    }
}

fn trouble() -> Trouble {
    Trouble {
        kind: "unreachable".into(),
        message: "nobody is there".into(),
    }
}

fn queue(priorities: &[u8]) -> Queue {
    let mut queue = Queue::default();
    for &priority in priorities {
        let job = queue.job_for(order(priority), 0).unwrap();
        queue.put(job);
    }
    queue
}

/// Runs all jobs, all of which arrive, and returns their order.
fn run(queue: &mut Queue) -> Vec<u64> {
    let now = Instant::now();
    let mut ran = Vec::new();
    while let Some(id) = queue.due(now) {
        queue.begin(id, 1).unwrap();
        queue.end(id, Outcome::Arrived(Arrived::default()), false, now, 2);
        ran.push(id);
    }
    ran
}

#[test]
fn first_come_first_served_but_for_priorities() {
    assert_eq!(run(&mut queue(&[50, 50, 50])), [1, 2, 3]);
    assert_eq!(run(&mut queue(&[50, 1, 100, 50, 100])), [3, 5, 1, 4, 2]);
}

#[test]
fn an_absent_peer_lets_others_go_first_and_is_retried_later() {
    let mut queue = queue(&[50, 50]);
    let mut now = Instant::now();
    let mut pauses = Vec::new();
    for _ in 0..9 {
        queue.begin(1, 1).unwrap();
        queue.end(1, Outcome::Later(trouble()), false, now, 1);
        assert_eq!(queue.due(now), Some(2), "the other one");
        pauses.push(queue.retry_in(1, now).unwrap().as_secs());
        now = queue.next_retry().unwrap();
        assert_eq!(queue.due(now), Some(1), "it came first");
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(queue.job(1).unwrap().trouble, Some(trouble()));
}

#[test]
fn a_peer_that_never_comes_is_given_up() {
    let mut queue = queue(&[50]);
    let mut now = Instant::now();
    for attempt in 1..=ATTEMPTS_MAX {
        assert_eq!(queue.due(now), Some(1), "attempt {attempt}");
        queue.begin(1, 1).unwrap();
        queue.end(1, Outcome::Later(trouble()), false, now, 9);
        now = queue.next_retry().unwrap_or(now);
    }
    let job = queue.job(1).unwrap();
    assert_eq!((job.state, job.ended), (State::Failed, Some(9)));
    let said = &job.trouble.as_ref().unwrap().message;
    assert!(
        said.starts_with("given up after 300 attempts: nobody"),
        "{said}"
    );
    assert_eq!(job.order.code, None, "it is of no use any more");
}

#[test]
fn cancel_ends_waiting_jobs_at_once_and_a_running_one_later() {
    let mut queue = queue(&[50, 50]);
    let now = Instant::now();
    assert_eq!(queue.cancel(2, 1), Ok(false));
    assert_eq!(queue.job(2).unwrap().state, State::Cancelled);
    assert_eq!(queue.cancel(2, 1), Err(Refused::Over(State::Cancelled)));
    assert_eq!(queue.cancel(3, 1), Err(Refused::NoJob));
    queue.begin(1, 1).unwrap();
    assert_eq!(queue.cancel(1, 1), Ok(true));
    assert_eq!(queue.job(1).unwrap().state, State::Running);
    queue.end(1, Outcome::Stopped, true, now, 2);
    assert_eq!(queue.job(1).unwrap().state, State::Cancelled);
    assert_eq!(queue.due(now), None);
}

#[test]
fn what_arrived_while_it_was_cancelled_is_done() {
    let mut queue = queue(&[50]);
    queue.begin(1, 1).unwrap();
    let arrived = Outcome::Arrived(Arrived::default());
    queue.end(1, arrived, true, Instant::now(), 2);
    assert_eq!(queue.job(1).unwrap().state, State::Done);
}

#[test]
fn what_ran_when_the_service_ended_runs_again() {
    let mut before = queue(&[50, 50, 50]);
    before.begin(1, 1).unwrap();
    before.begin(2, 1).unwrap();
    before.end(2, Outcome::Failed(trouble()), false, Instant::now(), 1);
    let jobs: Vec<Job> = before.jobs().cloned().collect();
    let mut queue = Queue::restore(7, jobs);
    assert_eq!(run(&mut queue), [1, 3]);
    assert_eq!(queue.job(1).unwrap().attempts, 2);
    assert_eq!(
        queue.job_for(order(50), 1).unwrap().id,
        8,
        "no number is used twice"
    );
}

#[test]
fn only_the_latest_of_those_that_are_over_are_kept() {
    let mut queue = queue(&[50; HISTORY_MAX + 5]);
    queue.cancel(HISTORY_MAX as u64 + 5, 0).unwrap();
    assert_eq!(run(&mut queue).len(), HISTORY_MAX + 4);
    assert_eq!(queue.jobs().count(), HISTORY_MAX);
    // The job that ended first is gone, though it was queued last.
    assert_eq!(queue.job(HISTORY_MAX as u64 + 5), None);
    assert_eq!(queue.job(4), None);
    assert!(queue.job(5).is_some());
}

#[test]
fn who_ended_last_is_known_though_the_clock_was_set_back() {
    let mut queue = queue(&[50; HISTORY_MAX + 1]);
    let (now, wrong, right) = (Instant::now(), 4_000_000_000, 1_800_000_000);
    for id in 1..=HISTORY_MAX as u64 + 1 {
        let unix = if id <= HISTORY_MAX as u64 {
            wrong
        } else {
            right
        };
        queue.begin(id, unix).unwrap();
        let ended = queue.end(id, Outcome::Failed(trouble()), false, now, unix);
        assert!(ended.is_some(), "job {id} is over, and not known any more");
    }
    assert_eq!(queue.job(1), None);
}

#[test]
fn a_queue_is_full_at_some_point() {
    let mut jobs = queue(&[50]);
    let job = jobs.job(1).unwrap().clone();
    for id in 2..=JOBS_MAX as u64 {
        jobs.put(Job { id, ..job.clone() });
    }
    assert_eq!(jobs.job_for(order(50), 0), Err(Refused::Full));
    jobs.cancel(1, 0).unwrap();
    assert!(jobs.job_for(order(50), 0).is_ok());

    let mut long = order(50);
    long.paths = vec![FilePath("/".repeat(4000).into()); 10_000];
    let mut few = queue(&[50]);
    let job = few.job_for(long.clone(), 0).unwrap();
    few.put(job);
    assert_eq!(few.job_for(long, 0), Err(Refused::Full));
}
