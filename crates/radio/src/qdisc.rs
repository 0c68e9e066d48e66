//! The queue in front of an interface, by RTM_GETQDISC.
//!
//! The root's counters are complete: classful qdiscs count at each level what waits below, and
//! `mq`, the root of interfaces with several queues, adds up its queues. Adding up the levels would
//! count twice.
//!
//! The reader dumps the qdiscs of all interfaces and picks those of its own. A request for a single
//! one would also notify every listener for queue changes (network managers, for example), even if
//! nothing changed: a reading must not wake them.

use std::fmt;
use std::io;
use std::str;

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink::{ACK, Conversation, DUMP, Request, attribute, long, number};
use crate::unreadable::Unreadable;

/// The queue in front of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// A queue with counters.
    Backlog(Backlog),
    /// `noqueue`: packets go straight to the driver, whose own queue is not visible here.
    ///
    /// Such are loopback, a new veth, and every wireless interface whose driver uses mac80211 since
    /// Linux 6.2 (many before that).
    NoQueue,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Queue::NoQueue => f.write_str("noqueue: packets go straight to the driver"),
            Queue::Backlog(backlog) => backlog.fmt(f),
        }
    }
}

/// Packets that wait in a queue, and its counters since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Kind of queueing discipline.
    pub kind: QdiscKind,
    /// Bytes that wait now, link-layer headers included.
    pub bytes: u32,
    /// Packets that wait now; a segmented (GSO) packet may count as one.
    pub packets: u32,
    /// Packets dropped here or below. Wraps.
    pub dropped: u32,
    /// Bytes given to the driver.
    pub sent_bytes: u64,
    /// Packets given to the driver.
    pub sent_packets: u64,
    /// Limit at which it drops, if the kind has a single limit and reports it.
    pub limit: Option<Limit>,
}

impl fmt::Display for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Backlog {
            kind,
            bytes,
            packets,
            dropped,
            ..
        } = self;
        write!(f, "{kind}: {bytes} bytes in {packets} packets wait")?;
        match self.limit {
            Some(Limit::Packets(most)) => write!(f, " (at most {most} packets)")?,
            Some(Limit::Bytes(most)) => write!(f, " (at most {most} bytes)")?,
            None => {}
        }
        write!(f, ", {dropped} were dropped")
    }
}

/// Capacity of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// In packets.
    Packets(u32),
    /// In bytes.
    Bytes(u32),
}

/// Name of a queueing discipline, as `tc` prints it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct QdiscKind([u8; KIND_BYTES_MAX]);

impl QdiscKind {
    fn new(text: &[u8]) -> QdiscKind {
        let mut kind = [0; KIND_BYTES_MAX];
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        for (to, from) in kind.iter_mut().zip(text) {
            *to = *from;
        }
        QdiscKind(kind)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let text = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        str::from_utf8(text).unwrap_or("?")
    }
}

impl fmt::Display for QdiscKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for QdiscKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// One of the queueing disciplines of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// Its number: major in the upper half.
    pub handle: u32,
    /// Its parent class, or [`Qdisc::ROOT`].
    pub parent: u32,
    /// What waits in it and below it.
    pub backlog: Backlog,
}

impl Qdisc {
    /// The parent of the root.
    pub const ROOT: u32 = 0xffff_ffff;
}

/// Reads the queue of one interface, on a socket that stays open.
pub struct QueueReader {
    conversation: Conversation,
    index: u32,
    queues: Request,
    interface: Request,
}

impl QueueReader {
    /// A reader for the interface with this number, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel's error, for example that no descriptor is left. A missing interface shows when
    /// it is read.
    pub fn open(index: u32) -> io::Result<QueueReader> {
        let mut interface = [0; IFINFOMSG_BYTES];
        interface[4..8].copy_from_slice(&index.to_ne_bytes());
        Ok(QueueReader {
            conversation: Conversation::open(NETLINK_ROUTE)?,
            index,
            queues: Request::new(GET_QDISC, DUMP, &[0; TCMSG_BYTES]),
            interface: Request::new(GET_LINK, ACK, &interface),
        })
    }

    /// What waits now.
    ///
    /// Takes microseconds for each interface of the namespace, and the kernel's lock for network
    /// configuration (RTNL): a process that holds it for long makes this wait.
    ///
    /// # Errors
    /// [`Unreadable::NoInterface`], [`Unreadable::NeverUp`], or the kernel's error.
    pub fn read(&mut self) -> Result<Queue, Unreadable> {
        let mut found = None;
        self.each(|parent, body| {
            if parent == Qdisc::ROOT {
                found = Some(backlog(body));
            }
        })?;
        match found {
            Some(backlog) => backlog.map(queue).ok_or(Unreadable::Garbled),
            None => Err(self.why_none()),
        }
    }

    /// All queueing disciplines for outgoing packets of the interface, as in `tc qdisc show`; at
    /// most 4,096.
    ///
    /// # Errors
    /// The kernel's error. A missing interface has no queueing disciplines.
    pub fn tree(&mut self) -> Result<Vec<Qdisc>, Unreadable> {
        let mut tree = Vec::new();
        self.each(|parent, body| {
            if parent != INGRESS && tree.len() < TREE_MAX {
                tree.extend(qdisc(body));
            }
        })?;
        Ok(tree)
    }

    /// Calls `each` with the parent and the message of each qdisc of the interface.
    fn each(&mut self, mut each: impl FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        let index = self.index;
        self.conversation.ask(&mut self.queues, |body| {
            let word = |at: usize| body.get(at..).and_then(number);
            if word(INDEX_AT) == Some(index)
                && let Some(parent) = word(PARENT_AT)
            {
                each(parent, body);
            }
        })
    }

    /// Why there is no queue. An interface that was never up has a placeholder (`noop`), which the
    /// kernel does not list.
    fn why_none(&mut self) -> Unreadable {
        match self.conversation.ask(&mut self.interface, |_| {}) {
            Ok(()) => Unreadable::NeverUp,
            Err(Unreadable::Refused(libc::ENODEV)) => Unreadable::NoInterface,
            Err(reason) => reason,
        }
    }
}

fn queue(backlog: Backlog) -> Queue {
    if backlog.kind.as_str() == "noqueue" {
        Queue::NoQueue
    } else {
        Queue::Backlog(backlog)
    }
}

fn qdisc(body: &[u8]) -> Option<Qdisc> {
    Some(Qdisc {
        handle: number(body.get(HANDLE_AT..)?)?,
        parent: number(body.get(PARENT_AT..)?)?,
        backlog: backlog(body)?,
    })
}

fn backlog(body: &[u8]) -> Option<Backlog> {
    let body = body.get(TCMSG_BYTES..)?;
    let kind = QdiscKind::new(attribute(body, KIND)?);
    let statistics = attribute(body, STATISTICS)?;
    let basic = attribute(statistics, STATISTICS_BASIC)?;
    let queue = attribute(statistics, STATISTICS_QUEUE)?;
    // The 32-bit count in the basic statistics is kept for old programs.
    let sent_packets = attribute(statistics, STATISTICS_PACKETS)
        .and_then(long)
        .or_else(|| basic.get(8..).and_then(number).map(u64::from))?;
    let limit = attribute(body, OPTIONS).and_then(|options| limit(kind.as_str(), options));
    Some(Backlog {
        kind,
        packets: number(queue)?,
        bytes: number(queue.get(4..)?)?,
        dropped: number(queue.get(8..)?)?,
        sent_bytes: long(basic)?,
        sent_packets,
        limit,
    })
}

/// The limit in the options of a qdisc: in a struct, or in an attribute.
fn limit(kind: &str, options: &[u8]) -> Option<Limit> {
    let at = |offset: usize| options.get(offset..).and_then(number);
    let in_attribute = |kind: u16| attribute(options, kind).and_then(number);
    match kind {
        "pfifo" | "pfifo_head_drop" => at(0).map(Limit::Packets),
        "bfifo" => at(0).map(Limit::Bytes),
        // The limit follows the latency; in sfq, quantum and period.
        "netem" => at(4).map(Limit::Packets),
        "sfq" => at(8).map(Limit::Packets),
        "codel" | "fq_codel" => in_attribute(2).map(Limit::Packets),
        "fq" => in_attribute(1).map(Limit::Packets),
        // Follows two rates.
        "tbf" => number(attribute(options, 1)?.get(24..)?).map(Limit::Bytes),
        _ => None,
    }
}

const GET_LINK: u16 = 18;
const GET_QDISC: u16 = 38;
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const STATISTICS: u16 = 7;
const STATISTICS_BASIC: u16 = 1;
const STATISTICS_QUEUE: u16 = 3;
const STATISTICS_PACKETS: u16 = 8;
/// The parent of ingress qdiscs.
const INGRESS: u32 = 0xffff_fff1;
/// Length of `struct tcmsg`: family, interface, handle, parent, info.
const TCMSG_BYTES: usize = 20;
const INDEX_AT: usize = 4;
const HANDLE_AT: usize = 8;
const PARENT_AT: usize = 12;
/// Length of `struct ifinfomsg`.
const IFINFOMSG_BYTES: usize = 16;
/// The kernel's IFNAMSIZ.
const KIND_BYTES_MAX: usize = 16;
/// Most qdiscs that are read: enough for an `mq` with a queue for every core of a large machine.
const TREE_MAX: usize = 4096;
