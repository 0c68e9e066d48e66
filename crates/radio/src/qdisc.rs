//! The queue in front of an interface, by RTM_GETQDISC.
//!
//! The root says it all: classful qdiscs count at each level what waits below, and `mq`, the root of interfaces with several
//! queues, adds up its queues when it is asked. Adding up the levels would count twice.
//!
//! The kernel lists all qdiscs of all interfaces, and we pick ours. It can be asked for one alone, but tells the answer to all
//! who listen to changes of queues (network managers do), even if nothing changed: a reading must not wake them.

use std::fmt;
use std::io;
use std::str;

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink::{ACK, Conversation, DUMP, Request, attribute, long, number};
use crate::unreadable::Unreadable;

/// What is in front of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// A queue that can be seen into.
    Backlog(Backlog),
    /// `noqueue`: packets go straight to the driver, and what waits there cannot be seen here. Loopback, a veth as it is
    /// made, and every wireless interface whose driver is built on mac80211 since Linux 6.2 (many before that).
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

/// What waits in a queue, and what it has counted since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Which queueing discipline this is.
    pub kind: QdiscKind,
    /// Waiting now, link-layer headers included.
    pub bytes: u32,
    /// Waiting now; a segmented (GSO) packet may count as one.
    pub packets: u32,
    /// Dropped here or below. Wraps.
    pub dropped: u32,
    /// Given to the driver.
    pub sent_bytes: u64,
    /// The same in packets.
    pub sent_packets: u64,
    /// At which it drops, where the kind has one limit for all and says it.
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

/// How much a queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many packets.
    Packets(u32),
    /// So many bytes.
    Bytes(u32),
}

/// The name of a queueing discipline, as `tc` has it.
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
    /// The class that it hangs below, or [`Qdisc::ROOT`].
    pub parent: u32,
    /// What waits in it and below it.
    pub backlog: Backlog,
}

impl Qdisc {
    /// The parent of the root.
    pub const ROOT: u32 = 0xffff_ffff;
}

/// Reads the queue of one interface, on a socket that is kept.
pub struct QueueReader {
    conversation: Conversation,
    index: u32,
    queues: Request,
    interface: Request,
}

impl QueueReader {
    /// Of the interface with this number, in the namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// The kernel's, if there is no descriptor left, say. That there is no such interface shows when it is read.
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

    /// What waits now. Takes microseconds for each interface of the namespace, and the kernel's lock of all that configures
    /// interfaces (RTNL): whoever holds that for long makes this wait.
    ///
    /// # Errors
    ///
    /// [`Unreadable::NoInterface`], [`Unreadable::NeverUp`], or what the kernel says.
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

    /// All queueing disciplines on the way out of the interface, as `tc qdisc show` has them, at most 4,096.
    ///
    /// # Errors
    ///
    /// What the kernel says. An interface that is not there has none.
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

    /// An interface that was never up has a placeholder (`noop`), which the kernel does not list.
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
    // The count of 32 bits in the basic statistics is kept for old programs.
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

/// The limit in the options of a kind: in a struct, or in an attribute.
fn limit(kind: &str, options: &[u8]) -> Option<Limit> {
    let at = |offset: usize| options.get(offset..).and_then(number);
    let in_attribute = |kind: u16| attribute(options, kind).and_then(number);
    match kind {
        "pfifo" | "pfifo_head_drop" => at(0).map(Limit::Packets),
        "bfifo" => at(0).map(Limit::Bytes),
        // After the latency; after quantum and period.
        "netem" => at(4).map(Limit::Packets),
        "sfq" => at(8).map(Limit::Packets),
        "codel" | "fq_codel" => in_attribute(2).map(Limit::Packets),
        "fq" => in_attribute(1).map(Limit::Packets),
        // After two rates.
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
/// The parent of what stands on the way in.
const INGRESS: u32 = 0xffff_fff1;
/// Of a struct tcmsg: family, interface, handle, parent, info.
const TCMSG_BYTES: usize = 20;
const INDEX_AT: usize = 4;
const HANDLE_AT: usize = 8;
const PARENT_AT: usize = 12;
/// Of a struct ifinfomsg.
const IFINFOMSG_BYTES: usize = 16;
/// The kernel's IFNAMSIZ.
const KIND_BYTES_MAX: usize = 16;
/// Enough for an `mq` with a queue for every core of a large machine.
const TREE_MAX: usize = 4096;
