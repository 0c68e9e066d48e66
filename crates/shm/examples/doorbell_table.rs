//! Table 2 of the BURST paper: 1 to 128 producer threads queue 10,000 items of 56 bytes each, and
//! one consumer takes them. Measured is the time until it has all items, for this crate's queue and
//! for others.
//!
//! ```text
//! cargo run --release -p airdma-shm --example doorbell_table -- \
//!     --repeat 5 --items 10000 --threads 1,2,4 --only NAME
//! ```
//!
//! A thread that finds no room, or nothing to take, yields, with every queue. A queue that spins
//! inside, as rte_ring does, still spins.
#![cfg(not(loom))]
#![allow(clippy::print_stdout)]

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::error::Error;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use airdma_shm::doorbell_queue::{PAYLOAD_WORDS, Payload, ProducerId, Take};
use airdma_shm::{Arena, DoorbellProducer, DoorbellQueue};
use crossbeam_queue::{ArrayQueue, SegQueue};

/// Capacity of the bounded queues, in items.
const BLOCKS: u32 = 1024;

type Push = Box<dyn Fn(&Payload) -> bool + Send>;
type Pop = Box<dyn FnMut() -> Option<Payload>>;

/// Both ends of a queue: one `Push` for each producer.
struct Ends {
    pushes: Vec<Push>,
    pop: Pop,
}

type Make = fn(usize) -> Result<Ends, Box<dyn Error>>;

const QUEUES: [(&str, Make); 5] = [
    ("airdma", airdma),
    ("mutex", mutex),
    ("ArrayQueue", array_queue),
    ("SegQueue", seg_queue),
    ("rte_ring", rte_ring),
];

fn airdma(producers: usize) -> Result<Ends, Box<dyn Error>> {
    let mut queue = DoorbellQueue::new(&Arena::new(), BLOCKS)?;
    let push = |number| {
        let id = ProducerId::new(number).ok_or("too many producers")?;
        let producer: DoorbellProducer = queue.producer(id);
        Ok(Box::new(move |item: &Payload| producer.push(item).is_ok()) as Push)
    };
    let pushes = (1..=producers as u32)
        .map(push)
        .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let start = Instant::now();
    let mut now_ns = 0;
    let pop = Box::new(move || match queue.take(now_ns, |_| true) {
        Take::Item(item) => Some(item.payload),
        Take::Empty => None,
        Take::Held { .. } => {
            now_ns = start.elapsed().as_nanos() as u64;
            None
        }
    });
    Ok(Ends { pushes, pop })
}

/// Makes both ends of a queue from a shared value and two functions.
fn ends<Q: Send + Sync + 'static>(
    producers: usize,
    queue: Q,
    push: fn(&Q, &Payload) -> bool,
    pop: fn(&Q) -> Option<Payload>,
) -> Ends {
    let queue = Arc::new(queue);
    let one = |_| {
        let queue = Arc::clone(&queue);
        Box::new(move |item: &Payload| push(&queue, item)) as Push
    };
    Ends {
        pushes: (0..producers).map(one).collect(),
        pop: Box::new(move || pop(&queue)),
    }
}

fn mutex(producers: usize) -> Result<Ends, Box<dyn Error>> {
    fn lock(queue: &Mutex<VecDeque<Payload>>) -> std::sync::MutexGuard<'_, VecDeque<Payload>> {
        queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
    let queue = Mutex::new(VecDeque::with_capacity(BLOCKS as usize));
    let push = |queue: &Mutex<VecDeque<Payload>>, item: &Payload| {
        let mut queue = lock(queue);
        let has_room = queue.len() < BLOCKS as usize;
        if has_room {
            queue.push_back(*item);
        }
        has_room
    };
    Ok(ends(producers, queue, push, |queue| {
        lock(queue).pop_front()
    }))
}

fn array_queue(producers: usize) -> Result<Ends, Box<dyn Error>> {
    let queue = ArrayQueue::new(BLOCKS as usize);
    let push = |queue: &ArrayQueue<Payload>, item: &Payload| queue.push(*item).is_ok();
    Ok(ends(producers, queue, push, ArrayQueue::pop))
}

fn seg_queue(producers: usize) -> Result<Ends, Box<dyn Error>> {
    let push = |queue: &SegQueue<Payload>, item: &Payload| {
        queue.push(*item);
        true
    };
    Ok(ends(producers, SegQueue::new(), push, SegQueue::pop))
}

/// DPDK's ring with many producers and one consumer.
///
/// A producer moves `head` over its slot, fills it, waits until all producers before it have moved
/// `tail`, then moves `tail` itself.
struct RteRing {
    head: Apart,
    tail: Apart,
    taken: Apart,
    slots: Box<[UnsafeCell<Payload>]>,
}

#[repr(align(128))]
struct Apart(AtomicU32);

// SAFETY: a slot is written by the producer that reserved it, and read by the consumer between
// `tail` and `taken`.
unsafe impl Sync for RteRing {}

impl RteRing {
    fn new() -> RteRing {
        let zero = || Apart(AtomicU32::new(0));
        RteRing {
            head: zero(),
            tail: zero(),
            taken: zero(),
            slots: (0..BLOCKS)
                .map(|_| UnsafeCell::new([0; PAYLOAD_WORDS]))
                .collect(),
        }
    }

    fn slot(&self, position: u32) -> *mut Payload {
        self.slots[(position % BLOCKS) as usize].get()
    }

    fn push(&self, item: &Payload) -> bool {
        let mut head = self.head.0.load(Ordering::Relaxed);
        loop {
            let taken = self.taken.0.load(Ordering::Acquire);
            if head.wrapping_sub(taken) >= BLOCKS {
                return false;
            }
            let moved = self.head.0.compare_exchange_weak(
                head,
                head.wrapping_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match moved {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        // SAFETY: reserved by the exchange, and the consumer has been past it (`taken`).
        unsafe { *self.slot(head) = *item };
        while self.tail.0.load(Ordering::Relaxed) != head {
            spin_loop();
        }
        self.tail.0.store(head.wrapping_add(1), Ordering::Release);
        true
    }

    /// Takes the oldest item; called by one thread only.
    fn pop(&self) -> Option<Payload> {
        let taken = self.taken.0.load(Ordering::Relaxed);
        if self.tail.0.load(Ordering::Acquire) == taken {
            return None;
        }
        // SAFETY: written before `tail` was moved past it, and not written again before `taken` is
        // moved past it.
        let item = unsafe { *self.slot(taken) };
        self.taken.0.store(taken.wrapping_add(1), Ordering::Release);
        Some(item)
    }
}

fn rte_ring(producers: usize) -> Result<Ends, Box<dyn Error>> {
    Ok(ends(producers, RteRing::new(), RteRing::push, RteRing::pop))
}

/// Measures from the start of all producers until the consumer has taken every item.
fn measure(make: Make, producers: usize, items: u64) -> Result<Sample, Box<dyn Error>> {
    let Ends { pushes, mut pop } = make(producers)?;
    let barrier = Arc::new(Barrier::new(producers + 1));
    let threads: Vec<_> = (0..)
        .zip(pushes)
        .map(|(producer, push)| {
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || {
                barrier.wait();
                for value in 0..items {
                    while !push(&[producer << 32 | value; PAYLOAD_WORDS]) {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut next = vec![0; producers];
    barrier.wait();
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut left = producers as u64 * items;
    while left > 0 {
        let Some(item) = pop() else {
            thread::yield_now();
            continue;
        };
        let (producer, value) = ((item[0] >> 32) as usize, item[0] & u64::from(u32::MAX));
        if value != next[producer] || item.iter().any(|word| *word != item[0]) {
            return Err(format!(
                "producer {producer}: {item:?} instead of {}",
                next[producer]
            )
            .into());
        }
        next[producer] += 1;
        left -= 1;
    }
    let took = start.elapsed();
    for thread in threads {
        thread.join().map_err(|_| "a producer panicked")?;
    }
    let cpu = cpu_time().saturating_sub(cpu);
    Ok(Sample { took, cpu })
}

#[derive(Clone, Copy)]
struct Sample {
    took: Duration,
    /// CPU time of all threads together; the better measure on a machine that runs other programs.
    cpu: Duration,
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

struct Options {
    repeat: usize,
    items: u64,
    threads: Vec<usize>,
    only: Option<String>,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        repeat: 5,
        items: 10_000,
        threads: vec![1, 2, 4, 8, 16, 32, 64, 128],
        only: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or("an option without a value")?;
        match name.as_str() {
            "--repeat" => options.repeat = value.parse::<usize>()?.max(1),
            "--items" => options.items = value.parse()?,
            "--threads" => {
                let numbers = value.split(',').map(str::parse);
                options.threads = numbers.collect::<Result<_, _>>()?;
            }
            "--only" => options.only = Some(value),
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    Ok(options)
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let queues: Vec<_> = QUEUES
        .into_iter()
        .filter(|(name, _)| options.only.as_deref().is_none_or(|only| only == *name))
        .collect();
    println!(
        "{} items for each producer; ms until all were taken: least of {}, then the median; then the processor time of all threads, median",
        options.items, options.repeat
    );
    print!("{:>9}", "producers");
    for (name, _) in &queues {
        print!(" {name:>21}");
    }
    println!();
    for &producers in &options.threads {
        let mut samples = vec![Vec::new(); queues.len()];
        // The queues take turns, so that a busy spell of the machine hits all of them.
        for _ in 0..options.repeat {
            for ((_, make), samples) in queues.iter().zip(&mut samples) {
                samples.push(measure(*make, producers, options.items)?);
            }
        }
        print!("{producers:>9}");
        for samples in &samples {
            let ms = |of: fn(&Sample) -> Duration, place: usize| {
                let mut times: Vec<_> = samples.iter().map(of).collect();
                times.sort();
                times[place].as_secs_f64() * 1e3
            };
            let middle = samples.len() / 2;
            let took: fn(&Sample) -> Duration = |sample| sample.took;
            let (least, median) = (ms(took, 0), ms(took, middle));
            let cell = format!(
                "{least:.1} {median:.1} {:.1}",
                ms(|sample| sample.cpu, middle)
            );
            print!(" {cell:>21}");
        }
        println!();
    }
    Ok(())
}
