//! Records of each packet, one line each.

use core::fmt;
use std::collections::VecDeque;

use airdma_transport::Time;
use airdma_wire::{Headers, Syndrome};

use crate::ip::IpDrop;
use crate::pair::Side;
use crate::topology::Node;

/// Event of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Handed to the link by a queue pair.
    Sent,
    /// Handed to the link by a test.
    Injected,
    /// Dropped by chance.
    Lost,
    /// Dropped because a test chose it.
    Filtered,
    /// Dropped by a full queue.
    Overflowed,
    /// Dropped because the link was cut, or the network between the hosts.
    Cut,
    /// Dropped because it was larger than the MTU.
    TooLarge,
    /// Dropped because there is no route to its destination.
    NoRoute,
    /// Marked by a congested queue.
    Marked,
    /// A second copy was made.
    Duplicated,
    /// Held back, so that later packets overtake it.
    HeldBack,
    /// Bits were flipped or the end cut off.
    Damaged,
    /// Dropped by the IP layer of the receiving host.
    Refused(IpDrop),
    /// Given to a queue pair, or to a host.
    Delivered,
    /// Dropped by the receiving port: the ICRC is wrong.
    BadIcrc,
    /// Dropped by the receiving port: not a packet, although the ICRC is right.
    Malformed,
    /// Dropped by the receiving port: no such queue pair.
    NoQueuePair,
}

impl Fate {
    /// Whether the network dropped the packet.
    pub fn is_drop(self) -> bool {
        match self {
            Fate::Lost
            | Fate::Filtered
            | Fate::Overflowed
            | Fate::Cut
            | Fate::TooLarge
            | Fate::NoRoute
            | Fate::Refused(_) => true,
            Fate::Sent
            | Fate::Injected
            | Fate::Marked
            | Fate::Duplicated
            | Fate::HeldBack
            | Fate::Damaged
            | Fate::Delivered
            | Fate::BadIcrc
            | Fate::Malformed
            | Fate::NoQueuePair => false,
        }
    }
}

/// One line of a trace of a [`Pair`](crate::Pair).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Time.
    pub at: Time,
    /// Endpoint that sent the packet.
    pub from: Side,
    /// Event.
    pub fate: Fate,
    /// Its headers, unless they are damaged.
    pub headers: Option<Headers>,
    /// Bytes of payload; of everything, if the headers are damaged.
    pub payload_len: usize,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrow = match self.from {
            Side::A => "a > b",
            Side::B => "b > a",
        };
        write!(
            f,
            "{}  {arrow}  {:<11}",
            Micros(self.at),
            format!("{:?}", self.fate),
        )?;
        write_contents(f, self.headers.as_ref(), self.payload_len)
    }
}

/// One line of a trace of a [`Network`](crate::Network).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passage {
    /// Time.
    pub at: Time,
    /// The frame's number in its network, which its copies share.
    pub number: u64,
    /// Host that sent it.
    pub from: usize,
    /// Host that it is for; `None` if for all others.
    pub to: Option<usize>,
    /// Line; `None` at a host.
    pub line: Option<(Node, Node)>,
    /// Event.
    pub fate: Fate,
    /// Its headers, unless it is damaged.
    pub headers: Option<Headers>,
    /// Bytes of payload; of everything, if there are no headers.
    pub payload_len: usize,
}

impl fmt::Display for Passage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to.map_or("*".to_string(), |to| to.to_string());
        write!(
            f,
            "{}  {:>2} > {to:<2}  #{:<6} {:<10} ",
            Micros(self.at),
            self.from,
            self.number,
            format!("{:?}", self.fate),
        )?;
        write_contents(f, self.headers.as_ref(), self.payload_len)?;
        match self.line {
            Some((from, to)) => write!(f, ", on {from:?} > {to:?}"),
            None => Ok(()),
        }
    }
}

/// A moment as a column of microseconds.
struct Micros(Time);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        write!(f, "{:>9}.{:03} us", nanos / 1000, nanos % 1000)
    }
}

fn write_contents(
    f: &mut fmt::Formatter<'_>,
    headers: Option<&Headers>,
    payload_len: usize,
) -> fmt::Result {
    let Some(headers) = headers else {
        return write!(f, "{payload_len} bytes");
    };
    let bth = &headers.bth;
    write!(
        f,
        "{:<24} qp {} psn {}{}{} {} B",
        bth.opcode,
        bth.dest_qpn,
        bth.psn,
        if bth.ack_request { " ack?" } else { "" },
        if bth.solicited { " solicited" } else { "" },
        payload_len,
    )?;
    if let Some(reth) = headers.reth {
        write!(f, " va {:#x} length {}", reth.va, reth.length)?;
    }
    if let Some(eth) = headers.atomic_eth {
        write!(
            f,
            " va {:#x} {:#x} {:#x}",
            eth.va, eth.swap_add, eth.compare
        )?;
    }
    if let Some(aeth) = headers.aeth {
        match aeth.syndrome {
            Syndrome::Ack { .. } => write!(f, " msn {}", aeth.msn)?,
            Syndrome::RnrNak { timer } => write!(f, " msn {} RNR {timer}", aeth.msn)?,
            Syndrome::Nak(code) => write!(f, " msn {} NAK {code:?}", aeth.msn)?,
            Syndrome::Reserved(byte) => write!(f, " syndrome {byte:#04x}")?,
        }
    }
    if let Some(original) = headers.atomic_ack {
        write!(f, " original {original:#x}")?;
    }
    Ok(())
}

/// The latest records, oldest first.
#[derive(Debug)]
pub struct Trace<R = Record> {
    records: VecDeque<R>,
    printed_max: usize,
    /// Number of dropped records beyond [`RECORDS_MAX`].
    forgotten: u64,
}

/// Most records kept.
const RECORDS_MAX: usize = 100_000;

/// Most records printed, unless all are requested.
const PRINTED_MAX: usize = 150;

impl<R> Trace<R> {
    pub(crate) fn new() -> Self {
        Trace {
            records: VecDeque::new(),
            printed_max: PRINTED_MAX,
            forgotten: 0,
        }
    }

    pub(crate) fn print_all(&mut self) {
        self.printed_max = RECORDS_MAX;
    }

    pub(crate) fn add(&mut self, record: R) {
        if self.records.len() == RECORDS_MAX {
            self.records.pop_front();
            self.forgotten += 1;
        }
        self.records.push_back(record);
    }

    /// Takes all records out, oldest first.
    pub(crate) fn take(&mut self) -> VecDeque<R> {
        core::mem::take(&mut self.records)
    }

    /// The records, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &R> {
        self.records.iter()
    }

    /// Number of kept records that `matches` accepts.
    pub fn count(&self, matches: impl Fn(&R) -> bool) -> usize {
        self.records.iter().filter(|record| matches(record)).count()
    }
}

/// The last records, or all that were kept.
impl<R: fmt::Display> fmt::Display for Trace<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skip = self.records.len().saturating_sub(self.printed_max);
        let before = self.forgotten + skip as u64;
        if before > 0 {
            writeln!(f, "... {before} lines before")?;
        }
        for record in self.records.iter().skip(skip) {
            writeln!(f, "{record}")?;
        }
        Ok(())
    }
}
