//! The queue in front of the radio at one interface: an HTB class with the radio's rate, and the
//! driver's queue behind it.
//!
//! Between the two stands a TBF that lets everything pass at once: the only one of the common
//! queues that splits segmented (GSO) packets into those that take the air, so that the queue
//! counts packets. Where the kernel has none, TCP makes no segmented packets on hosts of ours, and
//! one of anybody else counts as one.

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink::{
    ACK, CREATE, Conversation, DUMP, EXCLUSIVE, Messages, attribute, long_number, number,
};

/// Bytes that the kernel counts beside the IP packet: the Ethernet header.
pub const FRAME_HEADER_BYTES: u64 = 14;

const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;
const NEW_CLASS: u16 = 40;
const GET_CLASS: u16 = 42;
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const STATISTICS: u16 = 7;
const STATISTICS_BASIC: u16 = 1;
const STATISTICS_QUEUE: u16 = 3;
const STATISTICS_PACKETS: u16 = 8;
const HTB_PARAMETERS: u16 = 1;
const HTB_INIT: u16 = 2;
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;

const ROOT: u32 = 0xffff_ffff;
const HTB: u32 = 0x1_0000;
const CLASS: u32 = 0x1_0001;
const TBF: u32 = 0x2_0000;
const TBF_CLASS: u32 = 0x2_0001;
const FIFO: u32 = 0x3_0000;

/// Length of `struct tcmsg`.
const TCMSG_BYTES: usize = 20;
/// The kernel's unit of time for buckets, in ns.
const TICK_NS: u64 = 64;
/// Bytes that may pass at once after a pause. The controller makes up for what a late timer cost
/// in its next step.
const BURST_BYTES: u64 = 16 << 10;
/// Longest burst.
///
/// With `htb_hysteresis` the kernel lends as much, and what was lent at a rate that held for a
/// millisecond is paid back at that rate, for 131 ms at the lowest.
const BURST_NS_MAX: u64 = 4_000_000;
/// Ethernet: packets cost their length, and the kernel wants no table of costs.
const LINK_LAYER_ETHERNET: u8 = 1;
/// Faster than anything can dequeue.
const NO_LIMIT_BYTES_PER_S: u64 = 100_000_000_000;

/// Counts of an interface so far, in packets and bytes of frames (14 more than those of IP
/// packets).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Given to the radio.
    pub sent_bytes: u64,
    /// The same in packets.
    pub sent_packets: u64,
    /// Waiting now.
    pub backlog_bytes: u64,
    /// The same in packets.
    pub backlog_packets: u64,
    /// Dropped because the queue was full. Wraps at 32 bits.
    pub dropped: u32,
}

/// Shapes what leaves an interface.
pub struct Shaper {
    conversation: Conversation,
    index: u32,
    get: Messages,
    splits: bool,
}

impl Shaper {
    /// At the interface of this number, in the namespace of the calling thread; `mtu` and
    /// `queue_packets_max` in IP packets.
    ///
    /// # Errors
    ///
    /// The kernel's, with the step that it refused.
    pub fn new(
        index: u32,
        mtu: u32,
        queue_packets_max: u32,
        bytes_per_s: u64,
    ) -> Result<Shaper, (io::Error, &'static str)> {
        let step = |what: &'static str| move |error| (error, what);
        let conversation = Conversation::begin(NETLINK_ROUTE).map_err(step("netlink"))?;
        let get = Messages::default().message(GET_CLASS, DUMP, &tcmsg(index, 0, 0));
        let mut shaper = Shaper {
            conversation,
            index,
            get,
            splits: true,
        };
        shaper.htb().map_err(step("adding HTB"))?;
        let made = shaper.class(CREATE | EXCLUSIVE, bytes_per_s);
        made.map_err(step("adding a class to HTB"))?;
        let parent = match shaper.splitter(mtu) {
            Ok(()) => TBF_CLASS,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                shaper.splits = false;
                CLASS
            }
            Err(error) => return Err((error, "adding TBF below HTB")),
        };
        let fifo = shaper.fifo(parent, queue_packets_max);
        fifo.map_err(step("adding pfifo below HTB"))?;
        Ok(shaper)
    }

    /// Whether the queue counts what a segmented packet is split into.
    pub fn splits(&self) -> bool {
        self.splits
    }

    fn htb(&mut self) -> io::Result<()> {
        // Version, quantum divisor, default class, debugging, a counter.
        let global: Vec<u8> = [3u32, 10, CLASS & 0xffff, 0, 0]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let add = self
            .request(NEW_QDISC, CREATE | EXCLUSIVE, HTB, ROOT)
            .string(KIND, "htb")
            .nested(OPTIONS, |options| options.attribute(HTB_INIT, &global));
        self.conversation.tell(&add)
    }

    /// Adds or changes the class. It keeps its tokens when its rate changes.
    fn class(&mut self, flags: u16, bytes_per_s: u64) -> io::Result<()> {
        let rate = rate_spec(bytes_per_s);
        let buffer = bucket_ticks(bytes_per_s);
        let mut parameters = [rate.clone(), rate].concat();
        // Buckets for rate and ceiling, quantum, level, priority.
        for word in [buffer, buffer, 60_000, 0, 0] {
            parameters.extend(word.to_ne_bytes());
        }
        let change = self
            .request(NEW_CLASS, flags, CLASS, HTB)
            .string(KIND, "htb")
            .nested(OPTIONS, |options| {
                options.attribute(HTB_PARAMETERS, &parameters)
            });
        self.conversation.tell(&change)
    }

    fn splitter(&mut self, mtu: u32) -> io::Result<()> {
        let mut parameters = [rate_spec(u64::MAX), rate_spec(0)].concat();
        // Limit in bytes of a queue that is replaced, bucket, peak's bucket.
        for word in [1u32 << 20, 0, 0] {
            parameters.extend(word.to_ne_bytes());
        }
        let longest = mtu + FRAME_HEADER_BYTES as u32;
        let add = self
            .request(NEW_QDISC, CREATE | EXCLUSIVE, TBF, CLASS)
            .string(KIND, "tbf")
            .nested(OPTIONS, |options| {
                options
                    .attribute(TBF_PARAMETERS, &parameters)
                    .attribute(TBF_RATE64, &NO_LIMIT_BYTES_PER_S.to_ne_bytes())
                    .attribute(TBF_BURST, &longest.to_ne_bytes())
            });
        self.conversation.tell(&add)
    }

    fn fifo(&mut self, parent: u32, packets: u32) -> io::Result<()> {
        let add = self
            .request(NEW_QDISC, CREATE | EXCLUSIVE, FIFO, parent)
            .string(KIND, "pfifo")
            .attribute(OPTIONS, &packets.to_ne_bytes());
        self.conversation.tell(&add)
    }

    /// The rate from now on, in bytes of frames.
    pub fn set_rate(&mut self, bytes_per_s: u64) -> io::Result<()> {
        self.class(0, bytes_per_s)
    }

    /// Returns the counts until now.
    pub fn counted(&mut self) -> io::Result<Counted> {
        let mut found = None;
        self.conversation.list(&self.get, |body| {
            if number(body, 8) == Some(CLASS) {
                found = counted(body);
            }
        })?;
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    /// Lets everything pass again at an interface, in the namespace of the calling thread.
    pub fn remove(index: u32) -> io::Result<()> {
        let remove = Messages::default().message(DELETE_QDISC, ACK, &tcmsg(index, HTB, ROOT));
        Conversation::begin(NETLINK_ROUTE)?.tell(&remove)
    }

    fn request(&self, kind: u16, flags: u16, handle: u32, parent: u32) -> Messages {
        Messages::default().message(kind, flags | ACK, &tcmsg(self.index, handle, parent))
    }
}

/// Size of the bucket, in the kernel's unit of time.
fn bucket_ticks(bytes_per_s: u64) -> u32 {
    let burst_ns = BURST_BYTES * 1_000_000_000 / bytes_per_s.max(1);
    (burst_ns.min(BURST_NS_MAX) / TICK_NS) as u32
}

/// A struct tcmsg: family, interface, handle, parent, information.
fn tcmsg(index: u32, handle: u32, parent: u32) -> Vec<u8> {
    let words = [0, index, handle, parent, 0];
    words
        .iter()
        .flat_map(|word: &u32| word.to_ne_bytes())
        .collect()
}

/// A struct tc_ratespec.
fn rate_spec(bytes_per_s: u64) -> Vec<u8> {
    let mut spec = vec![0, LINK_LAYER_ETHERNET, 0, 0, 0, 0, 0, 0];
    let rate = u32::try_from(bytes_per_s).unwrap_or(u32::MAX);
    spec.extend(rate.to_ne_bytes());
    spec
}

fn counted(body: &[u8]) -> Option<Counted> {
    let statistics = attribute(body.get(TCMSG_BYTES..)?, STATISTICS)?;
    let basic = attribute(statistics, STATISTICS_BASIC)?;
    let queue = attribute(statistics, STATISTICS_QUEUE)?;
    let packets = attribute(statistics, STATISTICS_PACKETS)
        .and_then(|packets| long_number(packets, 0))
        .or_else(|| number(basic, 8).map(u64::from))?;
    Some(Counted {
        sent_bytes: long_number(basic, 0)?,
        sent_packets: packets,
        backlog_packets: number(queue, 0)?.into(),
        backlog_bytes: number(queue, 4)?.into(),
        dropped: number(queue, 8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_an_aggregate_and_never_lends_for_long() {
        let bucket = |mbit: u64| u64::from(bucket_ticks(mbit * 125_000)) * TICK_NS;
        assert_eq!(bucket(650), 201_600, "16 KiB");
        assert_eq!(bucket(1), 4_000_000);
        assert_eq!(bucket(0), 4_000_000);
    }
}
