//! A bad network on purpose: wraps any port and loses, repeats, reorders or damages what it sends.
//!
//! The same seed and the same packets give the same faults. Faults apply to sending only; to have
//! them in both directions, impair both ends. A damaged packet is one with a bit flipped after its
//! ICRC was computed, so that the receiver, not this wrapper, has to find out.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::str::FromStr;

use crate::passing::pass_on;
use crate::{Port, Received, TransmitBatch};

/// Rates of faults.
///
/// Parsed from a list like `drop=1%,dup=1%,reorder=1%,corrupt=0.1%,seed=7`, in any order. The
/// default of each rate is 0, that of the seed 1.
///
/// ```
/// use airdma_port::impair::Impairment;
///
/// let impairment: Impairment = "drop=0.5%,seed=7".parse()?;
/// assert_eq!(impairment.to_string(), "drop=0.5%,dup=0%,reorder=0%,corrupt=0%,seed=7");
/// # Ok::<(), airdma_port::impair::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impairment {
    /// Packets that vanish.
    pub drop: Rate,
    /// Packets that are sent twice.
    pub duplicate: Rate,
    /// Packets that are held back behind one to eight later ones.
    pub reorder: Rate,
    /// Packets with one bit flipped.
    pub corrupt: Rate,
    /// Where the generator starts.
    pub seed: u64,
}

impl Impairment {
    /// Nothing goes wrong.
    pub const NONE: Impairment = Impairment {
        drop: Rate::ZERO,
        duplicate: Rate::ZERO,
        reorder: Rate::ZERO,
        corrupt: Rate::ZERO,
        seed: 1,
    };
}

/// A probability, in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u32);

impl Rate {
    /// Never.
    pub const ZERO: Rate = Rate(0);

    /// `None` above one million.
    pub const fn from_ppm(ppm: u32) -> Option<Rate> {
        if ppm <= PPM { Some(Rate(ppm)) } else { None }
    }

    /// Parts per million.
    pub const fn ppm(self) -> u32 {
        self.0
    }
}

const PPM: u32 = 1_000_000;
const PPM_PER_PERCENT: u32 = PPM / 100;

/// Why a list of impairments was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A part is not of the form key=value.
    #[error("`{0}` is not of the form key=value, such as drop=1% or seed=7")]
    NoValue(String),
    /// The key is none of ours.
    #[error("there is no impairment `{0}`: it is one of drop, dup, reorder, corrupt, or seed")]
    UnknownKey(String),
    /// A key is given twice.
    #[error("`{0}` is given twice")]
    Repeated(String),
    /// Not a percentage.
    #[error("`{key}={value}`: the rate must be a percentage from 0% to 100%, such as {key}=0.1%")]
    BadRate {
        /// The impairment.
        key: String,
        /// What was given as its rate.
        value: String,
    },
    /// Not a number.
    #[error("`seed={0}`: the seed must be a whole number from 0 to 2^64-1")]
    BadSeed(String),
}

impl FromStr for Impairment {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<Self, SpecError> {
        let mut impairment = Impairment::NONE;
        let mut seen = Vec::new();
        for part in spec
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (key, value) = part
                .split_once('=')
                .map(|(key, value)| (key.trim(), value.trim()))
                .ok_or_else(|| SpecError::NoValue(part.to_owned()))?;
            if seen.contains(&key) {
                return Err(SpecError::Repeated(key.to_owned()));
            }
            seen.push(key);
            let rate = match key {
                "drop" => &mut impairment.drop,
                "dup" => &mut impairment.duplicate,
                "reorder" => &mut impairment.reorder,
                "corrupt" => &mut impairment.corrupt,
                "seed" => {
                    impairment.seed = value
                        .parse()
                        .map_err(|_| SpecError::BadSeed(value.to_owned()))?;
                    continue;
                }
                _ => return Err(SpecError::UnknownKey(key.to_owned())),
            };
            *rate = parse_rate(value).ok_or_else(|| SpecError::BadRate {
                key: key.to_owned(),
                value: value.to_owned(),
            })?;
        }
        Ok(impairment)
    }
}

fn parse_rate(text: &str) -> Option<Rate> {
    let percent: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    let in_range = (0.0..=100.0).contains(&percent);
    in_range.then(|| Rate((percent * f64::from(PPM_PER_PERCENT)).round() as u32))
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / f64::from(PPM_PER_PERCENT))
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Impairment {
            drop,
            duplicate,
            reorder,
            corrupt,
            seed,
        } = self;
        write!(
            f,
            "drop={drop},dup={duplicate},reorder={reorder},corrupt={corrupt},seed={seed}"
        )
    }
}

/// What an [`Impaired`] port did to the packets it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairCounters {
    /// Packets that vanished.
    pub dropped: u64,
    /// Packets that were sent twice.
    pub duplicated: u64,
    /// Packets that were held back.
    pub reordered: u64,
    /// Packets that were damaged.
    pub corrupted: u64,
}

/// A port with a bad network behind it. See the [module](self).
///
/// A held-back packet leaves after the packets it waits for, or after some [`Port::receive`] calls
/// in which nothing was sent. If neither happens because the caller sleeps, it waits as long.
pub struct Impaired<P> {
    inner: P,
    impairment: Impairment,
    random: Random,
    /// What goes to the inner port.
    out: TransmitBatch,
    held: TransmitBatch,
    /// For each held packet, the value of `passed` at which it may leave.
    due: VecDeque<u64>,
    /// Packets that were not held back, so far.
    passed: u64,
    /// Receive calls since the last packet was sent.
    idle_polls: u32,
    counters: ImpairCounters,
}

const OUT_BYTES: usize = 1 << 20;
const OUT_PACKETS: usize = 1024;
const HELD_PACKETS_MAX: usize = 16;
/// Room for as many of the longest datagrams.
const HELD_BYTES: usize = HELD_PACKETS_MAX << 16;
const HELD_DISTANCE_MAX: u64 = 8;
const IDLE_POLLS_MAX: u32 = 64;

impl<P: Port> Impaired<P> {
    /// Puts a bad network behind `inner`.
    pub fn new(inner: P, impairment: Impairment) -> Self {
        Impaired {
            impairment,
            random: Random(impairment.seed),
            out: inner.lend_batch(OUT_BYTES + HELD_BYTES, OUT_PACKETS),
            held: TransmitBatch::with_capacity(HELD_BYTES, HELD_PACKETS_MAX),
            due: VecDeque::with_capacity(HELD_PACKETS_MAX),
            passed: 0,
            idle_polls: 0,
            counters: ImpairCounters::default(),
            inner,
        }
    }

    /// What was done to the packets so far.
    pub fn impaired(&self) -> ImpairCounters {
        self.counters
    }

    /// Decides about the first packet of `batch`, and takes it.
    fn pass(&mut self, batch: &mut TransmitBatch) {
        // One throw for each kind of fault, whatever comes of the others, keeps the faults of one
        // kind the same when the rate of another changes.
        let dropped = self.random.chance(self.impairment.drop);
        let duplicated = self.random.chance(self.impairment.duplicate);
        let reordered = self.random.chance(self.impairment.reorder);
        let corrupted = self.random.chance(self.impairment.corrupt);
        let detail = self.random.next();
        let damage = corrupted.then_some((detail >> 32) as u32);

        self.passed += 1;
        if dropped {
            self.counters.dropped += 1;
        } else {
            self.counters.corrupted += u64::from(corrupted);
            let held = reordered && batch.copy_packet(0, &mut self.held, damage);
            if held {
                self.counters.reordered += 1;
                self.due
                    .push_back(self.passed + 1 + detail % HELD_DISTANCE_MAX);
            } else {
                self.send(batch, damage);
            }
            if duplicated {
                self.counters.duplicated += 1;
                self.send(batch, None);
            }
        }
        batch.advance(1);
        while self.due.front().is_some_and(|&due| due <= self.passed) {
            self.release();
        }
    }

    fn send(&mut self, batch: &TransmitBatch, damage: Option<u32>) {
        let copied = batch.copy_packet(0, &mut self.out, damage);
        debug_assert!(copied, "`has_room` was asked");
    }

    /// Lets the oldest held packet go.
    fn release(&mut self) {
        let damage = self.held.waiting().first().and_then(|held| held.damage());
        let copied = self.held.copy_packet(0, &mut self.out, damage);
        debug_assert!(copied, "`has_room` was asked");
        self.held.advance(1);
        self.due.pop_front();
    }

    /// Whether one more packet, twice, and all held ones fit the outgoing batch.
    fn has_room(&self, batch: &TransmitBatch) -> bool {
        let next = batch
            .waiting()
            .first()
            .map_or(0, |packet| packet.wire_len());
        self.out.len() + HELD_PACKETS_MAX + 2 <= OUT_PACKETS
            && self.out.bytes() + self.held.bytes() + 3 * next <= OUT_BYTES + HELD_BYTES
    }
}

impl<P: Port> Port for Impaired<P> {
    // `shared` without the impairment, which is for what this process sends.
    pass_on!(
        inner:
        capabilities, wait_descriptors, stopped_at, counters, look_for_drops, send_queue,
        receive_queue, set_address, join, leave, set_active, withdraw, lifelines, shared
    );

    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        self.idle_polls = 0;
        while !batch.is_empty() {
            if !self.has_room(batch) {
                self.inner.transmit(&mut self.out)?;
                if !self.has_room(batch) {
                    return Ok(());
                }
            }
            self.pass(batch);
        }
        self.inner.transmit(&mut self.out)
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        self.idle_polls = self.idle_polls.saturating_add(1);
        if self.idle_polls >= IDLE_POLLS_MAX && self.has_room(&self.held) {
            while !self.held.is_empty() {
                self.release();
            }
        }
        if !self.out.is_empty() {
            self.inner.transmit(&mut self.out)?;
        }
        self.inner.receive(budget, handle)
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, figure 17): small, seeded by any number, good
/// enough to lose packets.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn chance(&mut self, rate: Rate) -> bool {
        self.next() % u64::from(PPM) < u64::from(rate.0)
    }
}

#[cfg(test)]
mod tests;
