//! One direction of a network, as a sentence: the stages that a packet passes, in order.

use core::fmt;
use core::time::Duration;

use airdma_transport::Time;
use airdma_wire::Packet;

use crate::random::Random;
use crate::trace::Fate;

mod damage;
mod line;
mod loss;
mod stage;

pub use line::Marking;
pub use loss::GilbertElliott;

use line::{Line, Queue};
use stage::Stage;

/// Bits per second of `n` Gb/s.
pub const fn gbit(n: u64) -> u64 {
    n * 1_000_000_000
}

/// Bits per second of `n` Mb/s.
pub const fn mbit(n: u64) -> u64 {
    n * 1_000_000
}

/// Bytes that Ethernet adds to an IP packet on the line, with preamble, check sequence and gap.
pub(crate) const ETHERNET_BYTES: u64 = 38;

/// Bytes that the sending port buffers before the sender waits, as a socket's send buffer.
pub(crate) const PORT_BACKLOG_BYTES: u64 = 64 * 1024;

/// Longest time for which a packet is held back by default.
const HOLD_BACK_MAX: Duration = Duration::from_micros(100);

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets that entered.
    pub entered: u64,
    /// Their bytes, IP header to ICRC.
    pub entered_bytes: u64,
    /// Packets, copies among them, that came out at the other end.
    pub left: u64,
    /// Their bytes.
    pub left_bytes: u64,
    /// Packets dropped, for whatever reason.
    pub dropped: u64,
    /// Dropped packets that were lost by chance.
    pub lost: u64,
    /// Dropped packets that found a queue full.
    pub overflowed: u64,
    /// Dropped packets that were larger than the MTU.
    pub too_large: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Packets held back.
    pub held_back: u64,
    /// Packets damaged or cut off.
    pub damaged: u64,
    /// Packets marked in a congested queue.
    pub marked: u64,
    /// Most bytes that waited in one of its queues.
    pub queue_longest_bytes: u64,
}

/// A packet in flight.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    /// Time at which it reaches its place.
    pub(crate) at: Time,
    /// IP header to ICRC.
    pub(crate) packet: Vec<u8>,
    /// The packet before damage.
    pub(crate) original: Option<Box<[u8]>>,
    /// Its number on the link that it passes.
    pub(crate) number_here: u64,
    /// It was held back, and others overtook it.
    pub(crate) late: bool,
    pub(crate) trip: Trip,
}

impl Carried {
    /// Keeps a copy before damage.
    fn keep_original(&mut self) {
        if self.original.is_none() {
            self.original = Some(self.packet.as_slice().into());
        }
    }
}

/// Fields that do not change in flight and that no damage reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trip {
    /// The frame's number in its network.
    pub(crate) number: u64,
    pub(crate) from: usize,
    pub(crate) goal: Goal,
    pub(crate) sent: Time,
    pub(crate) v6: bool,
}

/// Destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Host(usize),
    /// All hosts but the sender.
    Everyone,
}

/// Fate of a packet on a link: it leaves, or waits at a stage until a time.
#[derive(Debug)]
pub(crate) enum Exit {
    Leaves(Carried),
    WaitsAt(usize, Carried),
}

struct Step {
    stage: Stage,
    /// Packets wait for their time in front of this stage, because a stage before broke their
    /// order and this one needs it.
    sorts: bool,
}

/// One direction of a network. Packets pass the stages in the order in which they were written.
///
/// Whatever a stage does to the order, the next one sees packets in order of time.
#[derive(Default)]
pub struct Link {
    steps: Vec<Step>,
    broken_order: bool,
    mtu: Option<usize>,
    cut: bool,
    counters: LinkCounters,
    /// Events of the last packet, in order.
    fates: Vec<Fate>,
    passing: Vec<Carried>,
    passed: Vec<Carried>,
}

impl Link {
    /// A link without delay that carries everything.
    pub fn new() -> Self {
        Link::default()
    }

    fn with(mut self, stage: Stage) -> Self {
        let sorts = self.broken_order && stage.needs_order();
        self.broken_order = stage.breaks_order() || (self.broken_order && !sorts);
        self.steps.push(Step { stage, sorts });
        self
    }

    /// Every packet takes this long.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(Stage::Delay(delay))
    }

    /// Every packet takes up to this much longer, uniformly distributed, but none overtakes
    /// another.
    pub fn jitter(self, most: Duration) -> Self {
        self.with(Stage::Jitter {
            most,
            keeps_order: true,
            last: Time::ZERO,
        })
    }

    /// As [`jitter`](Self::jitter), and packets may overtake each other.
    pub fn jitter_reordering(self, most: Duration) -> Self {
        self.with(Stage::Jitter {
            most,
            keeps_order: false,
            last: Time::ZERO,
        })
    }

    /// The sender's own line rate: the sender waits while its port is full.
    pub fn rate(self, bits_per_s: u64) -> Self {
        self.with(Stage::Rate(Line::new(bits_per_s)))
    }

    /// A slower line on the way, with a queue of this many bytes in front of it, which drops
    /// packets when full. Bytes are those on the line.
    pub fn bottleneck(self, bits_per_s: u64, bytes_max: u64) -> Self {
        self.marking_bottleneck(bits_per_s, bytes_max, Marking::Never)
    }

    /// A bottleneck that marks packets with ECT before it is full (RFC 3168). Others are dropped
    /// once it is full, and not before.
    pub fn marking_bottleneck(self, bits_per_s: u64, bytes_max: u64, marking: Marking) -> Self {
        let line = Line::new(bits_per_s);
        self.with(Stage::Queue(Queue::new(line, bytes_max, marking)))
    }

    /// Drops IP packets of more than this many bytes, as routers do when DF is set. (A router also
    /// sends ICMP, which hosts here do not handle.)
    pub fn mtu(mut self, bytes: usize) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Loses packets with this probability.
    pub fn drop(self, probability: f64) -> Self {
        self.with(Stage::Drop(probability))
    }

    /// Loses packets in bursts.
    pub fn drop_in_bursts(self, channel: GilbertElliott) -> Self {
        self.with(Stage::Bursts {
            channel,
            bad: false,
        })
    }

    /// Drops a packet if `choice` returns true for its number on this link, from zero, and its
    /// content.
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

    /// Holds a packet back with this probability, up to `held_max`: beyond the endpoints' timers, a
    /// packet arrives as a ghost of an earlier attempt.
    pub fn reorder_by(self, probability: f64, held_max: Duration) -> Self {
        self.with(Stage::Reorder {
            probability,
            held_max,
        })
    }

    /// Flips up to three bits of what the ICRC covers behind the UDP header, or cuts off the end,
    /// with this probability. The headers in front stay right: only the ICRC can find it.
    pub fn corrupt(self, probability: f64) -> Self {
        self.with(Stage::Corrupt(probability))
    }

    /// Flips up to three bits anywhere in the IP packet with this probability.
    pub fn corrupt_any(self, probability: f64) -> Self {
        self.with(Stage::CorruptAny(probability))
    }

    /// Cuts off the end with this probability, anywhere from the first byte on, and leaves the
    /// lengths in the headers as they are.
    pub fn truncate(self, probability: f64) -> Self {
        self.with(Stage::Truncate(probability))
    }

    /// The receiver looks only once in `period`, and finds all packets since.
    pub fn batch(self, period: Duration) -> Self {
        assert!(!period.is_zero());
        self.with(Stage::Batch(period))
    }

    /// Pulls the cable, or plugs it in again. Packets in flight arrive.
    pub fn set_cut(&mut self, cut: bool) {
        self.cut = cut;
    }

    /// Changes the MTU for packets that come from now on.
    pub fn set_mtu(&mut self, bytes: Option<usize>) {
        self.mtu = bytes;
    }

    /// Its counters.
    pub fn counters(&self) -> LinkCounters {
        let queues = self.steps.iter().map(|step| match &step.stage {
            Stage::Queue(queue) => queue.longest_bytes(),
            Stage::Delay(_)
            | Stage::Jitter { .. }
            | Stage::Rate(_)
            | Stage::Drop(_)
            | Stage::DropIf(_)
            | Stage::Bursts { .. }
            | Stage::Duplicate(_)
            | Stage::Reorder { .. }
            | Stage::Corrupt(_)
            | Stage::CorruptAny(_)
            | Stage::Truncate(_)
            | Stage::Batch(_) => 0,
        });
        LinkCounters {
            queue_longest_bytes: queues.max().unwrap_or(0),
            ..self.counters
        }
    }

    /// Time at which the sender may hand over the next packet.
    pub(crate) fn ready_at(&self) -> Time {
        let waits = self.steps.iter().map(|step| step.stage.ready_at());
        waits.max().unwrap_or(Time::ZERO)
    }

    /// Events of the last packet, in order.
    pub(crate) fn fates(&self) -> &[Fate] {
        &self.fates
    }

    /// Takes a packet from the sender.
    pub(crate) fn enter(
        &mut self,
        mut carried: Carried,
        random: &mut Random,
        exits: &mut Vec<Exit>,
    ) {
        carried.number_here = self.counters.entered;
        self.counters.entered += 1;
        self.counters.entered_bytes += carried.packet.len() as u64;
        self.fates.clear();
        let dropped = if self.cut {
            Some(Fate::Cut)
        } else if self.mtu.is_some_and(|mtu| carried.packet.len() > mtu) {
            Some(Fate::TooLarge)
        } else {
            None
        };
        if let Some(fate) = dropped {
            self.counters.add(fate);
            self.fates.push(fate);
            return;
        }
        self.pass(0, carried, random, exits);
    }

    /// Continues with a packet that waited in front of stage `first`.
    pub(crate) fn resume(
        &mut self,
        first: usize,
        carried: Carried,
        random: &mut Random,
        exits: &mut Vec<Exit>,
    ) {
        self.fates.clear();
        self.pass(first, carried, random, exits);
    }

    fn pass(&mut self, first: usize, carried: Carried, random: &mut Random, exits: &mut Vec<Exit>) {
        self.passing.push(carried);
        for index in first..self.steps.len() {
            let step = &mut self.steps[index];
            if step.sorts && index > first {
                let waiting = self.passing.drain(..);
                exits.extend(waiting.map(|carried| Exit::WaitsAt(index, carried)));
                return;
            }
            for carried in self.passing.drain(..) {
                if let Some(fate) = step.stage.pass(carried, random, &mut self.passed) {
                    self.counters.add(fate);
                    self.fates.push(fate);
                }
            }
            core::mem::swap(&mut self.passing, &mut self.passed);
        }
        for carried in self.passing.drain(..) {
            self.counters.left += 1;
            self.counters.left_bytes += carried.packet.len() as u64;
            exits.push(Exit::Leaves(carried));
        }
    }
}

impl LinkCounters {
    pub(crate) fn add(&mut self, fate: Fate) {
        self.dropped += u64::from(fate.is_drop());
        match fate {
            Fate::Lost => self.lost += 1,
            Fate::Overflowed => self.overflowed += 1,
            Fate::TooLarge => self.too_large += 1,
            Fate::Duplicated => self.duplicated += 1,
            Fate::HeldBack => self.held_back += 1,
            Fate::Damaged => self.damaged += 1,
            Fate::Marked => self.marked += 1,
            Fate::Filtered
            | Fate::Cut
            | Fate::Sent
            | Fate::Injected
            | Fate::NoRoute
            | Fate::Delivered
            | Fate::Refused(_)
            | Fate::BadIcrc
            | Fate::Malformed
            | Fate::NoQueuePair => {}
        }
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The link as source text.
impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link::new()")?;
        for step in &self.steps {
            write!(f, ".{:?}", step.stage)?;
        }
        match self.mtu {
            Some(mtu) => write!(f, ".mtu({mtu})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
