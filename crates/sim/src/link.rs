//! One direction of a network, as a sentence: the stages that a packet passes, in order.

use core::fmt;
use core::time::Duration;

use airdma_transport::Time;
use airdma_wire::Packet;

use crate::frame;
use crate::random::Random;
use crate::trace::Fate;

/// Bits per second of `n` Gb/s.
pub const fn gbit(n: u64) -> u64 {
    n * 1_000_000_000
}

/// What Ethernet, IPv4 and UDP add to a packet on the wire, preamble and gap included, in bytes.
const OVERHEAD_BYTES: u64 = 66;

/// What the sending port takes before it makes the sender wait: as a socket's send buffer.
const PORT_BACKLOG_BYTES: u64 = 64 * 1024;

/// How long a packet is held back at most, if not told otherwise.
const HOLD_BACK_MAX: Duration = Duration::from_micros(100);

/// Bits that one damage flips at most. CRC-32 finds every damage of up to three bits at our
/// lengths.
const FLIPS_MAX: u64 = 3;

/// Offset in the BTH of the byte that the ICRC does not cover (FECN, BECN and reserved bits).
const CONGESTION_AT: usize = 4;

type Choice = Box<dyn FnMut(u64, &Packet<'_>) -> bool>;

enum Stage {
    Delay(Duration),
    Rate {
        bits_per_s: u64,
        free_at: Time,
    },
    Bottleneck {
        bits_per_s: u64,
        bytes_max: u64,
        free_at: Time,
    },
    Drop(f64),
    DropIf(Choice),
    Duplicate(f64),
    Reorder {
        probability: f64,
        held_max: Duration,
    },
    Corrupt(f64),
    Batch(Duration),
}

/// What a link did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets that entered.
    pub entered: u64,
    /// Packets dropped, for whatever reason.
    pub dropped: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Packets held back.
    pub held_back: u64,
    /// Packets damaged.
    pub damaged: u64,
}

/// A packet that leaves the link.
#[derive(Debug)]
pub(crate) struct Carried {
    pub(crate) at: Time,
    pub(crate) bytes: Vec<u8>,
    pub(crate) damaged: bool,
}

/// One direction of a network. Packets pass the stages in the order in which they were written.
#[derive(Default)]
pub struct Link {
    stages: Vec<Stage>,
    cut: bool,
    counters: LinkCounters,
    /// What happened to the packet that passed last.
    fates: Vec<Fate>,
}

impl Link {
    /// A link without delay that carries everything.
    pub fn new() -> Self {
        Link::default()
    }

    fn with(mut self, stage: Stage) -> Self {
        self.stages.push(stage);
        self
    }

    /// Every packet takes this long.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(Stage::Delay(delay))
    }

    /// The sender's own line rate: the sender is made to wait when its port is full.
    pub fn rate(self, bits_per_s: u64) -> Self {
        assert!(bits_per_s > 0);
        self.with(Stage::Rate {
            bits_per_s,
            free_at: Time::ZERO,
        })
    }

    /// A slower line on the way, with a queue of this many bytes in front of it; what finds it
    /// full is dropped.
    pub fn bottleneck(self, bits_per_s: u64, bytes_max: u64) -> Self {
        assert!(bits_per_s > 0);
        self.with(Stage::Bottleneck {
            bits_per_s,
            bytes_max,
            free_at: Time::ZERO,
        })
    }

    /// Loses packets with this probability.
    pub fn drop(self, probability: f64) -> Self {
        self.with(Stage::Drop(probability))
    }

    /// Drops what `choice` says, which is asked with the packet's number on this link, from zero.
    pub fn drop_if(self, choice: impl FnMut(u64, &Packet<'_>) -> bool + 'static) -> Self {
        self.with(Stage::DropIf(Box::new(choice)))
    }

    /// Sends a second copy with this probability.
    pub fn duplicate(self, probability: f64) -> Self {
        self.with(Stage::Duplicate(probability))
    }

    /// Holds a packet back with this probability, up to 100 us.
    pub fn reorder(self, probability: f64) -> Self {
        self.reorder_by(probability, HOLD_BACK_MAX)
    }

    /// Holds a packet back with this probability, up to `held_max`: beyond the timers of the
    /// endpoints, a packet comes back as a ghost of an earlier attempt.
    pub fn reorder_by(self, probability: f64, held_max: Duration) -> Self {
        self.with(Stage::Reorder {
            probability,
            held_max,
        })
    }

    /// Flips up to three bits, or cuts off the end, with this probability.
    pub fn corrupt(self, probability: f64) -> Self {
        self.with(Stage::Corrupt(probability))
    }

    /// The receiver looks only once in `period`, and finds all packets since.
    pub fn batch(self, period: Duration) -> Self {
        assert!(!period.is_zero());
        self.with(Stage::Batch(period))
    }

    /// Pulls the cable, or puts it back. What is under way arrives.
    pub fn set_cut(&mut self, cut: bool) {
        self.cut = cut;
    }

    /// What it did so far.
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// When the sender may hand over the next packet.
    pub(crate) fn ready_at(&self) -> Time {
        let waits = self.stages.iter().map(|stage| match stage {
            Stage::Rate {
                bits_per_s,
                free_at,
            } => {
                let backlog = time_of(PORT_BACKLOG_BYTES, *bits_per_s);
                Time::from_nanos(free_at.as_nanos().saturating_sub(nanos(backlog)))
            }
            Stage::Delay(_)
            | Stage::Bottleneck { .. }
            | Stage::Drop(_)
            | Stage::DropIf(_)
            | Stage::Duplicate(_)
            | Stage::Reorder { .. }
            | Stage::Corrupt(_)
            | Stage::Batch(_) => Time::ZERO,
        });
        waits.max().unwrap_or(Time::ZERO)
    }

    /// What happened to the packet that passed last, in order.
    pub(crate) fn fates(&self) -> &[Fate] {
        &self.fates
    }

    /// Takes a packet and returns what will arrive, and when.
    pub(crate) fn carry(&mut self, now: Time, bytes: Vec<u8>, random: &mut Random) -> Vec<Carried> {
        let number = self.counters.entered;
        self.counters.entered += 1;
        self.fates.clear();
        if self.cut {
            self.counters.dropped += 1;
            self.fates.push(Fate::Cut);
            return Vec::new();
        }
        let mut passing = vec![Carried {
            at: now,
            bytes,
            damaged: false,
        }];
        for stage in &mut self.stages {
            let mut next = Vec::with_capacity(passing.len());
            for packet in passing {
                let fate = stage.pass(number, packet, random, &mut next);
                self.counters.add(fate);
                self.fates.extend(fate);
            }
            passing = next;
        }
        passing
    }
}

impl LinkCounters {
    fn add(&mut self, fate: Option<Fate>) {
        match fate {
            Some(Fate::Lost | Fate::Filtered | Fate::Overflowed | Fate::Cut) => self.dropped += 1,
            Some(Fate::Duplicated) => self.duplicated += 1,
            Some(Fate::HeldBack) => self.held_back += 1,
            Some(Fate::Damaged) => self.damaged += 1,
            Some(
                Fate::Sent
                | Fate::Injected
                | Fate::Delivered
                | Fate::BadIcrc
                | Fate::Malformed
                | Fate::NoQueuePair,
            )
            | None => {}
        }
    }
}

impl Stage {
    /// Passes one packet on to `next`, once, twice or not at all.
    fn pass(
        &mut self,
        number: u64,
        mut packet: Carried,
        random: &mut Random,
        next: &mut Vec<Carried>,
    ) -> Option<Fate> {
        let mut fate = None;
        match self {
            Stage::Delay(delay) => packet.at = packet.at + *delay,
            Stage::Rate {
                bits_per_s,
                free_at,
            } => packet.occupy(free_at, *bits_per_s),
            Stage::Bottleneck {
                bits_per_s,
                bytes_max,
                free_at,
            } => {
                let backlog = free_at.duration_since(packet.at);
                if backlog > time_of(*bytes_max, *bits_per_s) {
                    return Some(Fate::Overflowed);
                }
                packet.occupy(free_at, *bits_per_s);
            }
            Stage::Drop(probability) => {
                if random.chance(*probability) {
                    return Some(Fate::Lost);
                }
            }
            Stage::DropIf(choice) => {
                if frame::parse(&packet.bytes).is_ok_and(|packet| choice(number, &packet)) {
                    return Some(Fate::Filtered);
                }
            }
            Stage::Duplicate(probability) => {
                if random.chance(*probability) {
                    fate = Some(Fate::Duplicated);
                    next.push(Carried {
                        bytes: packet.bytes.clone(),
                        ..packet
                    });
                }
            }
            Stage::Reorder {
                probability,
                held_max,
            } => {
                if random.chance(*probability) {
                    fate = Some(Fate::HeldBack);
                    let held = Duration::from_nanos(random.below(nanos(*held_max)));
                    packet.at = packet.at + held;
                }
            }
            Stage::Corrupt(probability) => {
                if random.chance(*probability) {
                    fate = Some(Fate::Damaged);
                    packet.damaged = true;
                    damage(&mut packet.bytes, random);
                }
            }
            Stage::Batch(period) => {
                let period = nanos(*period);
                let at = packet.at.as_nanos().div_ceil(period) * period;
                packet.at = Time::from_nanos(at);
            }
        }
        next.push(packet);
        fate
    }
}

/// Damages bytes that the ICRC covers, or the ICRC itself.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    if random.chance(0.125) {
        let len = random.index(bytes.len());
        bytes.truncate(len);
        return;
    }
    let mut flipped = Vec::new();
    for _ in 0..random.between(1, FLIPS_MAX) {
        let bit = random.index(bytes.len() * 8);
        if bit / 8 == CONGESTION_AT || flipped.contains(&bit) {
            continue;
        }
        flipped.push(bit);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    if flipped.is_empty() {
        bytes[0] ^= 1;
    }
}

impl Carried {
    /// Waits until the line is free, and takes it.
    fn occupy(&mut self, free_at: &mut Time, bits_per_s: u64) {
        let bytes = self.bytes.len() as u64 + OVERHEAD_BYTES;
        *free_at = self.at.max(*free_at) + time_of(bytes, bits_per_s);
        self.at = *free_at;
    }
}

fn time_of(bytes: u64, bits_per_s: u64) -> Duration {
    Duration::from_nanos((bytes * 8 * 1_000_000_000).div_ceil(bits_per_s))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.stages).finish()
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Delay(delay) => write!(f, "delay({delay:?})"),
            Stage::Rate { bits_per_s, .. } => write!(f, "rate({bits_per_s})"),
            Stage::Bottleneck {
                bits_per_s,
                bytes_max,
                ..
            } => write!(f, "bottleneck({bits_per_s}, {bytes_max})"),
            Stage::Drop(p) => write!(f, "drop({p:.4})"),
            Stage::DropIf(_) => write!(f, "drop_if(..)"),
            Stage::Duplicate(p) => write!(f, "duplicate({p:.4})"),
            Stage::Reorder {
                probability,
                held_max,
            } => write!(f, "reorder({probability:.4}, {held_max:?})"),
            Stage::Corrupt(p) => write!(f, "corrupt({p:.4})"),
            Stage::Batch(period) => write!(f, "batch({period:?})"),
        }
    }
}

#[cfg(test)]
mod tests;
