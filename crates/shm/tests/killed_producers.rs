//! Kills a producer process at every instruction of an enqueue, one child for each: no item of
//! another producer is lost or delayed beyond the timeout, and all blocks are usable again.
//!
//! The child asks to be traced, stops, and is single-stepped into the enqueue
//! (`PTRACE_SINGLESTEP`), then gets SIGKILL: after 0 instructions, after 1, and so on until the
//! enqueue has returned. Where the system does not permit tracing, that test prints so; the other
//! test, in which the child kills itself between the steps of the protocol, always runs.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use airdma_shm::doorbell_queue::{
    ASK_AFTER_NS, PAYLOAD_WORDS, Payload, ProducerId, RECLAIM_AFTER_NS, Take,
};
use airdma_shm::{Arena, DoorbellProducer, DoorbellQueue, Producers};

const BLOCKS: u32 = 8;
/// Most instructions of an enqueue: about a hundred, in a debug build some hundreds.
const INSTRUCTIONS_MAX: u32 = 20_000;
/// Time that a busy machine may add to the timeout.
const SLACK: Duration = Duration::from_secs(2);

/// What the consumer finds of a child that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// It had reserved nothing.
    Nothing,
    /// It held a block, which was reclaimed.
    Held,
    /// Its item was committed, and arrived.
    Committed,
}

fn payload(value: u64) -> Payload {
    [value; PAYLOAD_WORDS]
}

/// The consumer's items and producers.
struct World {
    queue: DoorbellQueue,
    producers: Producers,
    living: DoorbellProducer,
    living_id: ProducerId,
    next: u64,
    start: Instant,
    last: ProducerId,
}

impl World {
    fn new() -> World {
        let queue = DoorbellQueue::new(&Arena::new(), BLOCKS).unwrap();
        let mut producers = Producers::new();
        let living_id = producers.admit(std::process::id()).unwrap();
        World {
            living: queue.producer(living_id),
            queue,
            producers,
            living_id,
            next: 0,
            start: Instant::now(),
            last: living_id,
        }
    }

    fn take(&mut self) -> Take {
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let producers = &self.producers;
        self.queue.take(now_ns, |id| producers.lives(id))
    }

    /// Fills the queue from the living producer after the death of `dead`, and checks that all
    /// items arrive.
    ///
    /// Returns what became of the dead producer's item.
    fn recover_from(&mut self, dead: ProducerId) -> (Outcome, Duration) {
        let reclaimed = self.queue.consumer().reclaimed();
        let mut theirs = 0;
        let mut sent = 0;
        let begin = Instant::now();
        // More than a lap of the blocks; the dead producer's item lies before them or among them.
        let mut outstanding = 0;
        while sent < u64::from(BLOCKS) * 2 || outstanding > 0 {
            if sent < u64::from(BLOCKS) * 2
                && self.living.push(&payload(self.next + outstanding)).is_ok()
            {
                sent += 1;
                outstanding += 1;
            }
            if let Take::Item(item) = self.take() {
                let value = item.payload[0];
                assert_eq!(item.payload, payload(value), "a torn item");
                if item.producer == Some(self.living_id) {
                    assert_eq!(value, self.next, "lost, doubled or out of order");
                    self.next += 1;
                    outstanding -= 1;
                } else {
                    assert_eq!((item.producer, value), (Some(dead), DEAD_VALUE));
                    theirs += 1;
                }
            }
            assert!(begin.elapsed() < SLACK, "the queue does not recover");
        }
        let took = begin.elapsed();
        assert_eq!(self.take(), Take::Empty);
        let held = self.queue.consumer().reclaimed() - reclaimed;
        // The producer is known to be dead, so its block is not even quarantined.
        assert_eq!(self.queue.consumer().quarantined(), 0);
        assert_eq!(self.queue.consumer().dropped(), 0);
        let outcome = match (theirs, held) {
            (0, 0) => Outcome::Nothing,
            (0, 1) => Outcome::Held,
            (1, 0) => Outcome::Committed,
            other => panic!("{other:?} items and reclaimed blocks of one producer"),
        };
        (outcome, took)
    }

    /// All blocks can be filled: none was lost.
    fn has_all_blocks(&mut self) {
        for ahead in 0..u64::from(BLOCKS) {
            self.living.push(&payload(self.next + ahead)).unwrap();
        }
        assert!(self.living.push(&payload(0)).is_err());
        for _ in 0..BLOCKS {
            assert!(matches!(self.take(), Take::Item(item) if item.payload[0] == self.next));
            self.next += 1;
        }
    }
}

const DEAD_VALUE: u64 = u64::MAX;

/// Forks; the child runs `child` with its producer's end, and never returns from here. Nothing in
/// the child allocates or locks.
fn fork_producer(world: &mut World, child: impl FnOnce(&DoorbellProducer)) -> (i32, ProducerId) {
    // The child gets its number before it exists; the number is bound to its process below, before
    // anything is taken.
    let id = ProducerId::new(world.last.get() + 1).unwrap();
    let producer = world.queue.producer(id);
    // SAFETY: the child calls `child` only, and ends without running anything inherited from its
    // parent.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        child(&producer);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    assert_eq!(world.producers.admit(pid as u32).unwrap(), id);
    world.last = id;
    (pid, id)
}

fn wait(pid: i32) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: a local to write to.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
        if waited == pid {
            return status;
        }
        let error = std::io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::EINTR), "waitpid: {error}");
    }
}

fn kill_and_reap(pid: i32) {
    // SAFETY: plain integers; the child is not reaped yet, so it is still ours.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    while !libc::WIFSIGNALED(wait(pid)) {}
}

/// # Safety
/// As `ptrace(2)` for a request that takes no memory.
unsafe fn trace(request: libc::c_uint, pid: i32) -> bool {
    // SAFETY: the caller's.
    unsafe { libc::ptrace(request, pid, null_mut::<u8>(), null_mut::<u8>()) == 0 }
}

/// Not inlined, so that the first step leads into it.
#[inline(never)]
fn enqueue(producer: &DoorbellProducer) {
    let _ = std::hint::black_box(producer).push(&payload(DEAD_VALUE));
}

/// Kills a child after `instructions` steps of its way into, through and out of the enqueue.
///
/// `None`: tracing is not permitted. False: the child had already ended.
fn kill_after(world: &mut World, instructions: u32) -> Option<(ProducerId, bool)> {
    let (pid, id) = fork_producer(world, |producer| {
        // SAFETY: asks to be traced by the parent, and stops.
        unsafe {
            if !trace(libc::PTRACE_TRACEME, 0) {
                libc::_exit(77);
            }
            libc::raise(libc::SIGSTOP);
        }
        enqueue(producer);
    });
    let status = wait(pid);
    if !libc::WIFSTOPPED(status) {
        return None;
    }
    for _ in 0..instructions {
        // SAFETY: the child is ours and stopped.
        if !unsafe { trace(libc::PTRACE_SINGLESTEP, pid) } {
            kill_and_reap(pid);
            return None;
        }
        let status = wait(pid);
        if libc::WIFEXITED(status) {
            return Some((id, false));
        }
        assert!(libc::WIFSTOPPED(status), "an odd end: {status:#x}");
    }
    kill_and_reap(pid);
    Some((id, true))
}

/// The same between the steps of the protocol, without tracing.
fn kill_at_point(world: &mut World, point: u32) -> (ProducerId, bool) {
    const LAST: u32 = 3;
    let (pid, id) = fork_producer(world, |producer| {
        let die_at = |here| {
            if here == point {
                // SAFETY: this process, which ends here.
                unsafe { libc::raise(libc::SIGKILL) };
            }
        };
        die_at(0);
        let Ok(mut reservation) = producer.reserve() else {
            return;
        };
        die_at(1);
        reservation.write(&payload(DEAD_VALUE));
        die_at(2);
        let _ = reservation.commit();
        die_at(LAST);
    });
    assert!(libc::WIFSIGNALED(wait(pid)), "it is still there");
    (id, point < LAST)
}

/// Kills producers at all points and checks the recovery.
///
/// `kill` returns the producer that it killed at a point, and whether there is a further point.
fn kill_everywhere(used: &str, mut kill: impl FnMut(&mut World, u32) -> (ProducerId, bool)) {
    let mut world = World::new();
    let mut seen: BTreeMap<Outcome, Vec<u32>> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    for point in 0..INSTRUCTIONS_MAX {
        let (id, goes_on) = kill(&mut world, point);
        let (outcome, took) = world.recover_from(id);
        seen.entry(outcome).or_default().push(point);
        longest = longest.max(took);
        if !goes_on {
            break;
        }
    }
    world.has_all_blocks();
    println!("killed with {used}");
    for (outcome, points) in &seen {
        println!("{outcome:?}: {}", ranges(points));
    }
    println!(
        "longest recovery {longest:?} (asked after {ASK_AFTER_NS} ns, timeout {RECLAIM_AFTER_NS} ns)"
    );
    let found: Vec<Outcome> = seen.keys().copied().collect();
    assert_eq!(found, [Outcome::Nothing, Outcome::Held, Outcome::Committed]);
    // The outcomes come in order: nothing held, a block held, the item committed.
    assert!(seen[&Outcome::Nothing].last() < seen[&Outcome::Held].first());
    assert!(seen[&Outcome::Held].last() < seen[&Outcome::Committed].first());
}

#[test]
fn a_producer_killed_at_any_instruction_loses_no_others_item() {
    if kill_after(&mut World::new(), 1).is_none() {
        println!("skipped: tracing is not permitted here; the fault points are all there is");
        return;
    }
    kill_everywhere("PTRACE_SINGLESTEP", |world, instructions| {
        kill_after(world, instructions).expect("tracing is permitted")
    });
}

#[test]
fn a_producer_killed_between_two_steps_loses_no_others_item() {
    kill_everywhere("fault points", kill_at_point);
}

/// "0-41, 43" for a rising list.
fn ranges(points: &[u32]) -> String {
    let mut text = Vec::new();
    let mut rest = points;
    while let Some(&first) = rest.first() {
        let len = (0..)
            .zip(rest)
            .take_while(|(n, point)| first + n == **point);
        let (run, others) = rest.split_at(len.count());
        text.push(match run.last() {
            Some(&last) if last > first => format!("{first}-{last}"),
            Some(_) | None => first.to_string(),
        });
        rest = others;
    }
    format!("{} ({} of them)", text.join(", "), points.len())
}

#[test]
fn a_stopped_process_comes_back_and_its_item_arrives_once() {
    let mut world = World::new();
    let (pid, id) = fork_producer(&mut world, |producer| {
        let reservation = producer.reserve();
        // SAFETY: this process; it continues when its parent sends SIGCONT.
        unsafe { libc::raise(libc::SIGSTOP) };
        let late = reservation.map(|mut reservation| {
            reservation.write(&payload(DEAD_VALUE));
            reservation.commit()
        });
        // The commit was refused, so the item is posted again.
        let again = matches!(late, Ok(Err(_))) && producer.push(&payload(DEAD_VALUE)).is_ok();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if again { 42 } else { 1 }) };
    });
    let mut status = 0;
    // SAFETY: a local to write to.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
    assert_eq!(waited, pid);
    assert!(libc::WIFSTOPPED(status));
    // It lives, so other producers wait for the timeout, and then its block is quarantined.
    world.living.push(&payload(0)).unwrap();
    let begin = Instant::now();
    while !matches!(world.take(), Take::Item(item) if item.payload[0] == 0) {
        assert!(begin.elapsed() < SLACK, "the queue does not recover");
    }
    assert!(begin.elapsed() >= Duration::from_nanos(RECLAIM_AFTER_NS));
    assert_eq!(world.queue.consumer().quarantined(), 1);
    for value in 1..100 {
        world.living.push(&payload(value)).unwrap();
        assert!(matches!(world.take(), Take::Item(item) if item.payload == payload(value)));
    }
    // SAFETY: the child is not reaped yet.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    let status = wait(pid);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 42,
        "{status:#x}"
    );
    let Take::Item(item) = world.take() else {
        panic!("what it posted again is lost");
    };
    assert_eq!(
        (item.producer, item.payload),
        (Some(id), payload(DEAD_VALUE))
    );
    assert_eq!(world.take(), Take::Empty);
    world.next = 1000;
    for _ in 0..2 * BLOCKS {
        world.living.push(&payload(1)).unwrap();
        assert!(matches!(world.take(), Take::Item(_)));
    }
    assert_eq!(world.queue.consumer().quarantined(), 0);
    world.has_all_blocks();
}
