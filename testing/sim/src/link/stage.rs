//! The stages of a link, each of which does one thing to a packet.

use core::fmt;
use core::time::Duration;

use airdma_transport::Time;
use airdma_wire::Packet;

use crate::frame;
use crate::ip;
use crate::link::damage::{cut_off, damage_anything, damage_transport};
use crate::link::line::{Line, Marking, Queue, Queued};
use crate::link::loss::GilbertElliott;
use crate::link::{Carried, ETHERNET_BYTES, PORT_BACKLOG_BYTES, nanos};
use crate::random::Random;
use crate::trace::Fate;

pub(crate) type Choice = Box<dyn FnMut(u64, &Packet<'_>) -> bool>;

pub(crate) enum Stage {
    Delay(Duration),
    Jitter {
        most: Duration,
        keeps_order: bool,
        /// Time at which the previous packet left.
        last: Time,
    },
    Rate(Line),
    Queue(Queue),
    Drop(f64),
    DropIf(Choice),
    Bursts {
        channel: GilbertElliott,
        bad: bool,
    },
    Duplicate(f64),
    Reorder {
        probability: f64,
        held_max: Duration,
    },
    Corrupt(f64),
    CorruptAny(f64),
    Truncate(f64),
    Batch(Duration),
}

impl Stage {
    /// Whether packets must reach this stage in order of time, since its state depends on earlier
    /// ones.
    pub(crate) fn needs_order(&self) -> bool {
        match self {
            Stage::Rate(_) | Stage::Queue(_) | Stage::Bursts { .. } => true,
            Stage::Jitter { keeps_order, .. } => *keeps_order,
            Stage::Delay(_)
            | Stage::Drop(_)
            | Stage::DropIf(_)
            | Stage::Duplicate(_)
            | Stage::Reorder { .. }
            | Stage::Corrupt(_)
            | Stage::CorruptAny(_)
            | Stage::Truncate(_)
            | Stage::Batch(_) => false,
        }
    }

    /// Whether packets may leave this stage in another order than they came.
    pub(crate) fn breaks_order(&self) -> bool {
        match self {
            Stage::Reorder { .. } => true,
            Stage::Jitter { keeps_order, .. } => !keeps_order,
            Stage::Delay(_)
            | Stage::Rate(_)
            | Stage::Queue(_)
            | Stage::Drop(_)
            | Stage::DropIf(_)
            | Stage::Bursts { .. }
            | Stage::Duplicate(_)
            | Stage::Corrupt(_)
            | Stage::CorruptAny(_)
            | Stage::Truncate(_)
            | Stage::Batch(_) => false,
        }
    }

    /// Time at which the sender, if this is its port, may hand over the next packet.
    pub(crate) fn ready_at(&self) -> Time {
        match self {
            Stage::Rate(line) => {
                let backlog = line.nanos_of(PORT_BACKLOG_BYTES);
                Time::from_nanos(line.free_at().as_nanos().saturating_sub(backlog))
            }
            Stage::Delay(_)
            | Stage::Jitter { .. }
            | Stage::Queue(_)
            | Stage::Drop(_)
            | Stage::DropIf(_)
            | Stage::Bursts { .. }
            | Stage::Duplicate(_)
            | Stage::Reorder { .. }
            | Stage::Corrupt(_)
            | Stage::CorruptAny(_)
            | Stage::Truncate(_)
            | Stage::Batch(_) => Time::ZERO,
        }
    }

    /// Passes one packet on to `next`, once, twice or not at all.
    pub(crate) fn pass(
        &mut self,
        mut carried: Carried,
        random: &mut Random,
        next: &mut Vec<Carried>,
    ) -> Option<Fate> {
        let mut fate = None;
        match self {
            Stage::Delay(delay) => carried.at = carried.at + *delay,
            Stage::Jitter {
                most,
                keeps_order,
                last,
            } => {
                let more = random.between(0, nanos(*most));
                carried.at = carried.at + Duration::from_nanos(more);
                if *keeps_order {
                    *last = carried.at.max(*last);
                    carried.at = *last;
                }
            }
            Stage::Rate(line) => (_, carried.at) = line.occupy(carried.at, on_line(&carried)),
            Stage::Queue(queue) => {
                let markable = ip::is_ecn_capable(&carried.packet);
                match queue.enter(carried.at, on_line(&carried), markable, random) {
                    Queued::Full => return Some(Fate::Overflowed),
                    Queued::Leaves { at, marked } => {
                        carried.at = at;
                        if marked {
                            ip::mark_congestion(&mut carried.packet);
                            fate = Some(Fate::Marked);
                        }
                    }
                }
            }
            Stage::Drop(probability) => {
                if random.chance(*probability) {
                    return Some(Fate::Lost);
                }
            }
            Stage::DropIf(choice) => {
                let parsed = frame::parse(ip::transport(&carried.packet));
                if parsed.is_ok_and(|packet| choice(carried.number_here, &packet)) {
                    return Some(Fate::Filtered);
                }
            }
            Stage::Bursts { channel, bad } => {
                if channel.loses(bad, random) {
                    return Some(Fate::Lost);
                }
            }
            Stage::Duplicate(probability) => {
                if random.chance(*probability) {
                    fate = Some(Fate::Duplicated);
                    next.push(carried.clone());
                }
            }
            Stage::Reorder {
                probability,
                held_max,
            } => {
                if random.chance(*probability) {
                    fate = Some(Fate::HeldBack);
                    let held = Duration::from_nanos(random.below(nanos(*held_max)));
                    carried.at = carried.at + held;
                    carried.late = true;
                }
            }
            Stage::Corrupt(probability) => {
                if random.chance(*probability) {
                    fate = Some(Fate::Damaged);
                    carried.keep_original();
                    damage_transport(&mut carried.packet, random);
                }
            }
            Stage::CorruptAny(probability) => {
                if random.chance(*probability) {
                    fate = Some(Fate::Damaged);
                    carried.keep_original();
                    damage_anything(&mut carried.packet, random);
                }
            }
            Stage::Truncate(probability) => {
                if random.chance(*probability) {
                    fate = Some(Fate::Damaged);
                    carried.keep_original();
                    cut_off(&mut carried.packet, random);
                }
            }
            Stage::Batch(period) => {
                let period = nanos(*period);
                let at = carried.at.as_nanos().div_ceil(period) * period;
                carried.at = Time::from_nanos(at);
            }
        }
        next.push(carried);
        fate
    }
}

/// Bytes that a packet occupies the line for.
fn on_line(carried: &Carried) -> u64 {
    carried.packet.len() as u64 + ETHERNET_BYTES
}

/// The stage as source text.
impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Delay(delay) => write!(f, "delay({delay:?})"),
            Stage::Jitter {
                most,
                keeps_order: true,
                ..
            } => write!(f, "jitter({most:?})"),
            Stage::Jitter { most, .. } => write!(f, "jitter_reordering({most:?})"),
            Stage::Rate(line) => write!(f, "rate({})", Bits(line.bits_per_s())),
            Stage::Queue(queue) => {
                let rate = Bits(queue.line.bits_per_s());
                match queue.marking {
                    Marking::Never => write!(f, "bottleneck({rate}, {})", queue.bytes_max),
                    marking @ (Marking::Above(_) | Marking::Ramp { .. }) => write!(
                        f,
                        "marking_bottleneck({rate}, {}, Marking::{marking:?})",
                        queue.bytes_max
                    ),
                }
            }
            Stage::Drop(p) => write!(f, "drop({p})"),
            Stage::DropIf(_) => write!(f, "drop_if(..)"),
            Stage::Bursts { channel, .. } => write!(f, "drop_in_bursts({channel:?})"),
            Stage::Duplicate(p) => write!(f, "duplicate({p})"),
            Stage::Reorder {
                probability,
                held_max,
            } => write!(f, "reorder_by({probability}, {held_max:?})"),
            Stage::Corrupt(p) => write!(f, "corrupt({p})"),
            Stage::CorruptAny(p) => write!(f, "corrupt_any({p})"),
            Stage::Truncate(p) => write!(f, "truncate({p})"),
            Stage::Batch(period) => write!(f, "batch({period:?})"),
        }
    }
}

/// A rate as source text.
struct Bits(u64);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bits if bits % 1_000_000_000 == 0 => write!(f, "gbit({})", bits / 1_000_000_000),
            bits if bits % 1_000_000 == 0 => write!(f, "mbit({})", bits / 1_000_000),
            bits => write!(f, "{bits}"),
        }
    }
}
