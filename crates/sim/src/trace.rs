//! What happened to each packet, one line each.

use core::fmt;
use std::collections::VecDeque;

use airdma_transport::Time;
use airdma_wire::{Headers, Syndrome};

use crate::pair::Side;

/// What happened to a packet.
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
    /// Dropped because the link was cut.
    Cut,
    /// A second copy was made.
    Duplicated,
    /// Held back, so that later packets overtake it.
    HeldBack,
    /// Bits were flipped or the end cut off.
    Damaged,
    /// Given to a queue pair.
    Delivered,
    /// Dropped by the receiving port: the ICRC is wrong.
    BadIcrc,
    /// Dropped by the receiving port: not a packet, although the ICRC is right.
    Malformed,
    /// Dropped by the receiving port: no such queue pair.
    NoQueuePair,
}

/// One line of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// When.
    pub at: Time,
    /// Which endpoint sent the packet.
    pub from: Side,
    /// What happened.
    pub fate: Fate,
    /// Its headers, unless they are damaged.
    pub headers: Option<Headers>,
    /// Bytes of payload; of everything, if the headers are damaged.
    pub payload_len: usize,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.at.as_nanos();
        let arrow = match self.from {
            Side::A => "a > b",
            Side::B => "b > a",
        };
        write!(
            f,
            "{:>9}.{:03} us  {arrow}  {:<11}",
            nanos / 1000,
            nanos % 1000,
            format!("{:?}", self.fate),
        )?;
        let Some(headers) = self.headers else {
            return write!(f, "{} bytes", self.payload_len);
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
            self.payload_len,
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
}

/// The latest records, oldest first.
#[derive(Debug)]
pub struct Trace {
    records: VecDeque<Record>,
    printed_max: usize,
    /// Records that were dropped because there were too many.
    forgotten: u64,
}

/// Records that are kept.
const RECORDS_MAX: usize = 100_000;

/// Records that are printed, unless all are asked for.
const PRINTED_MAX: usize = 150;

impl Trace {
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

    pub(crate) fn add(&mut self, record: Record) {
        if self.records.len() == RECORDS_MAX {
            self.records.pop_front();
            self.forgotten += 1;
        }
        self.records.push_back(record);
    }

    /// The records, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.records.iter()
    }

    /// How many of the kept records `matches` accepts.
    pub fn count(&self, matches: impl Fn(&Record) -> bool) -> usize {
        self.records.iter().filter(|record| matches(record)).count()
    }
}

/// The last lines, or all that were kept.
impl fmt::Display for Trace {
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
