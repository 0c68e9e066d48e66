//! Measures what announcing work of a queue pair costs: by a bit ([`Doorbells`]) or by an item of a
//! [`DoorbellQueue`].
//!
//! ```text
//! cargo build --release -p airdma-shm --example doorbell_costs
//! target/release/examples/doorbell_costs threads
//! # Run it with 10000 as well: the difference counts.
//! valgrind --tool=callgrind target/release/examples/doorbell_costs bitmap-one 20000
//! ```
//!
//! With the queue, a flag marks the queue pairs that are queued already, as an engine would have to
//! do: a queue with one block for each queue pair is then never full. `threads` posts as the engine
//! does: lock a ring, fill a slot, publish, unlock, ring.
#![cfg(not(loom))]
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use airdma_shm::doorbell_queue::{PAYLOAD_WORDS, Payload, ProducerId, Take};
use airdma_shm::{Arena, DOORBELLS_MAX, DoorbellProducer, DoorbellQueue, Doorbells, RecvWqe, ring};

const POSTS: u32 = 20_000;
const REPEAT: usize = 7;

/// Doorbells that many threads ring and one drains.
trait Bells: Send + Sync {
    fn ring(&self, index: u32);
    fn drain(&self, handle: &mut dyn FnMut(u32));
}

impl Bells for Doorbells {
    fn ring(&self, index: u32) {
        Doorbells::ring(self, index);
    }

    fn drain(&self, handle: &mut dyn FnMut(u32)) {
        Doorbells::drain(self, handle);
    }
}

struct Queued {
    /// An engine would keep it behind the worker's lock; here it is never contended.
    queue: Mutex<DoorbellQueue>,
    producer: DoorbellProducer,
    is_in: Box<[AtomicBool]>,
}

impl Bells for Queued {
    fn ring(&self, index: u32) {
        if !self.is_in[index as usize].swap(true, Ordering::AcqRel) {
            let mut item: Payload = [0; PAYLOAD_WORDS];
            item[0] = index.into();
            while self.producer.push(&item).is_err() {
                thread::yield_now();
            }
        }
    }

    fn drain(&self, handle: &mut dyn FnMut(u32)) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while let Take::Item(item) = queue.take(0, |_| true) {
            let index = item.payload[0] as u32;
            self.is_in[index as usize].swap(false, Ordering::AcqRel);
            handle(index);
        }
    }
}

fn make(kind: &str) -> Result<Arc<dyn Bells>, Box<dyn Error>> {
    let arena = Arena::new();
    if kind.starts_with("bitmap") {
        return Ok(Arc::new(Doorbells::new(&arena, DOORBELLS_MAX)?));
    }
    let queue = DoorbellQueue::new(&arena, DOORBELLS_MAX)?;
    let id = ProducerId::new(1).ok_or("no such producer")?;
    Ok(Arc::new(Queued {
        producer: queue.producer(id),
        queue: Mutex::new(queue),
        is_in: (0..DOORBELLS_MAX).map(|_| AtomicBool::new(false)).collect(),
    }))
}

/// One thread rings and drains `times` times.
fn alone(scenario: &str, times: u32) -> Result<(), Box<dyn Error>> {
    let bells = make(scenario)?;
    let mut seen = 0_u64;
    let mut count = |index: u32| seen += u64::from(black_box(index));
    let what = scenario.split_once('-').map(|(_, what)| what);
    let rung: Vec<u32> = match what {
        Some("one") => vec![5],
        // What a busy worker finds at once, spread over the table.
        Some("many") => (0..64).map(|n| n * 1021).collect(),
        Some("near") => (0..64).collect(),
        Some("empty") => Vec::new(),
        Some(_) | None => return Err("bitmap- or queue-, then one, many, near or empty".into()),
    };
    for _ in 0..times {
        for index in &rung {
            bells.ring(*index);
        }
        bells.drain(&mut count);
    }
    black_box(seen);
    Ok(())
}

/// Posts from `posters` threads until the worker has taken everything.
///
/// Each thread has a queue pair of its own, or all of them share one.
fn post(kind: &str, posters: u32, shared: bool) -> Result<(Duration, Duration), Box<dyn Error>> {
    let (bells, arena) = (make(kind)?, Arena::new());
    let mut consumers = Vec::new();
    let mut producers = Vec::new();
    for _ in 0..if shared { 1 } else { posters } {
        let (producer, consumer) = ring(&arena, 64, 64)?;
        producers.push(Arc::new(Mutex::new(producer)));
        consumers.push(consumer);
    }
    let ready = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..posters)
        .map(|number| {
            let index = if shared { 0 } else { number };
            let ring = Arc::clone(&producers[index as usize]);
            let (bells, ready) = (Arc::clone(&bells), Arc::clone(&ready));
            thread::spawn(move || {
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) <= posters {
                    thread::yield_now();
                }
                for wr_id in 0..POSTS {
                    loop {
                        let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
                        if let Some(mut slot) = ring.slot(0) {
                            slot.write_header(&RecvWqe {
                                wr_id: wr_id.into(),
                                ..RecvWqe::default()
                            });
                            ring.publish(1);
                            break;
                        }
                        drop(ring);
                        thread::yield_now();
                    }
                    bells.ring(index);
                }
            })
        })
        .collect();
    while ready.load(Ordering::SeqCst) < posters {
        thread::yield_now();
    }
    let (start, cpu) = (Instant::now(), cpu_time());
    ready.fetch_add(1, Ordering::SeqCst);
    let mut left = posters * POSTS;
    while left > 0 {
        let before = left;
        bells.drain(&mut |index| {
            let ring = &mut consumers[index as usize];
            while let Some(number) = ring.take() {
                black_box(ring.slot(number).read_header::<RecvWqe>());
                ring.release(1);
                left -= 1;
            }
        });
        if left == before {
            thread::yield_now();
        }
    }
    let took = start.elapsed();
    for thread in threads {
        thread.join().map_err(|_| "a poster panicked")?;
    }
    Ok((took, cpu_time().saturating_sub(cpu)))
}

/// CPU time that the threads of this process have used so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a local to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn threads() -> Result<(), Box<dyn Error>> {
    println!(
        "ns for each of {POSTS} posts of a thread: wall / processor time of all threads; least of {REPEAT}"
    );
    println!(
        "{:>8} {:>9} {:>17} {:>17}",
        "posters", "to", "bitmap", "queue"
    );
    for shared in [false, true] {
        for posters in [1, 2, 4, 8, 16, 32, 64] {
            let mut cells = [(f64::MAX, f64::MAX); 2];
            for _ in 0..REPEAT {
                for (cell, kind) in cells.iter_mut().zip(["bitmap", "queue"]) {
                    let (took, cpu) = post(kind, posters, shared)?;
                    let each = |time: Duration| time.as_nanos() as f64 / f64::from(posters * POSTS);
                    *cell = (cell.0.min(each(took)), cell.1.min(each(cpu)));
                }
            }
            let to = if shared { "one" } else { "their own" };
            let [bitmap, queue] = cells.map(|(took, cpu)| format!("{took:.0} / {cpu:.0}"));
            println!("{posters:>8} {to:>9} {bitmap:>17} {queue:>17}");
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("threads"), None) => threads(),
        (Some(scenario), Some(times)) => alone(scenario, times.parse()?),
        _ => Err("usage: doorbell_costs threads | SCENARIO TIMES".into()),
    }
}
