//! What a daemon and its clients say to each other, beside the requests and replies of
//! [`crate::control`]: the greeting, the blocks of shared memory beside a request, and events.
//!
//! ```text
//! client: Hello      its memory, the shared page, its doorbells
//! daemon: Welcome    the client's wake-up, the daemon's, the socket of events; or a refusal
//! client: Request    blocks of shared memory, then a `Control`          (one at a time)
//! daemon: `Reply`
//! daemon: Event                                                         (on the socket of events)
//! ```
//!
//! All numbers have the order of the host's bytes, of fixed width: both ends are on one host.

use crate::control::encoding;
use airdma_cm::Event as CmEvent;
use airdma_transport::QpEvent;
use std::time::Duration;

/// First bytes of a greeting.
const MAGIC: [u8; 8] = *b"airdma-d";
/// It rises with each change of this file, or of what lies in shared memory. The encoding of
/// requests has a number of its own.
const VERSION: u32 = 3;

/// Longest packet of either side.
pub(crate) const PACKET_BYTES_MAX: usize = encoding::MESSAGE_BYTES_MAX + 64;
/// Longest event: a peer's request for a connection has some 300 bytes.
pub(crate) const EVENT_BYTES_MAX: usize = 1024;
/// Longest answer to a greeting.
pub(crate) const WELCOME_BYTES_MAX: usize = 1024;
/// Longest sentence of a refusal: a name that a client passed may have 4,096 bytes.
const REFUSAL_BYTES_MAX: usize = WELCOME_BYTES_MAX - 64;
/// Most blocks beside a request.
pub(crate) const BLOCKS_MAX: usize = 2;
/// How long a client waits for an answer. A daemon that is stopped for longer counts as ended.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// The versions of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    protocol: u32,
    encoding: u32,
}

impl Versions {
    /// Those of this program.
    pub(crate) const OURS: Versions = Versions {
        protocol: VERSION,
        encoding: encoding::VERSION as u32,
    };
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.protocol, self.encoding)
    }
}

/// A block of shared memory, in the file that is passed beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// The first packet of a client. Beside: its `/proc/self/mem`, and the files of both blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The network namespace that the client is in, by its inode.
    pub(crate) network: u64,
    pub(crate) interface_index: u32,
    pub(crate) page: Extent,
    pub(crate) doorbells: Extent,
}

/// The daemon's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Welcome {
    /// The client's number. Beside: the eventfd that wakes the client, the one that wakes the
    /// daemon, the socket of events.
    Accepted(u64),
    /// Why not.
    Refused { errno: i32, message: String },
}

/// A greeting of another version, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoGreeting {
    Malformed,
    Other(Versions),
}

/// What happened to a client's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// To the queue pair with this number.
    Qp(u32, QpEvent),
    /// The completion queue with this serial number overflowed.
    CqError(u64),
    /// The port broke, or the interface is gone.
    DeviceFatal,
    /// To a listener, a connection or a resolution.
    Cm(CmEvent),
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = greeting(Versions::OURS);
        out.extend(self.network.to_ne_bytes());
        out.extend(self.interface_index.to_ne_bytes());
        for extent in [self.page, self.doorbells] {
            put_extent(extent, &mut out);
        }
        out
    }

    pub(crate) fn decode(packet: &[u8]) -> Result<Self, NoGreeting> {
        let mut input = greeted(packet)?;
        let hello = (|| {
            Some(Hello {
                network: u64::from_ne_bytes(take(&mut input)?),
                interface_index: u32::from_ne_bytes(take(&mut input)?),
                page: take_extent(&mut input)?,
                doorbells: take_extent(&mut input)?,
            })
        })();
        hello
            .filter(|_| input.is_empty())
            .ok_or(NoGreeting::Malformed)
    }
}

impl Welcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = greeting(Versions::OURS);
        match self {
            Welcome::Accepted(number) => {
                out.extend(0_i32.to_ne_bytes());
                out.extend(number.to_ne_bytes());
            }
            Welcome::Refused { errno, message } => {
                out.extend(errno.to_ne_bytes());
                out.extend(front(message).as_bytes());
            }
        }
        out
    }

    pub(crate) fn decode(packet: &[u8]) -> Result<Self, NoGreeting> {
        let mut input = greeted(packet)?;
        let errno = take(&mut input).ok_or(NoGreeting::Malformed)?;
        match i32::from_ne_bytes(errno) {
            0 => {
                let number = take(&mut input).filter(|_| input.is_empty());
                let number = number.ok_or(NoGreeting::Malformed)?;
                Ok(Welcome::Accepted(u64::from_ne_bytes(number)))
            }
            errno => Ok(Welcome::Refused {
                errno,
                message: String::from_utf8_lossy(input).into_owned(),
            }),
        }
    }
}

/// As much of a sentence as a refusal has room for.
fn front(message: &str) -> &str {
    let ends = message
        .char_indices()
        .map(|(at, each)| at + each.len_utf8());
    let end = ends.take_while(|&end| end <= REFUSAL_BYTES_MAX).last();
    &message[..end.unwrap_or(0)]
}

fn greeting(versions: Versions) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(versions.protocol.to_ne_bytes());
    out.extend(versions.encoding.to_ne_bytes());
    out
}

/// What follows the versions, if those are ours.
fn greeted(packet: &[u8]) -> Result<&[u8], NoGreeting> {
    let mut input = packet;
    let versions = (|| {
        (take(&mut input)? == MAGIC).then_some(())?;
        Some(Versions {
            protocol: u32::from_ne_bytes(take(&mut input)?),
            encoding: u32::from_ne_bytes(take(&mut input)?),
        })
    })();
    match versions {
        Some(Versions::OURS) => Ok(input),
        Some(other) => Err(NoGreeting::Other(other)),
        None => Err(NoGreeting::Malformed),
    }
}

/// The front of a request: its blocks. The encoding of the `Control` follows.
pub(crate) fn put_blocks(blocks: &[Extent]) -> Vec<u8> {
    let mut out = vec![blocks.len() as u8];
    for &extent in blocks {
        put_extent(extent, &mut out);
    }
    out
}

/// The blocks of a request, and what follows.
pub(crate) fn take_blocks(packet: &[u8]) -> Option<(Vec<Extent>, &[u8])> {
    let mut input = packet;
    let [count] = take(&mut input)?;
    if usize::from(count) > BLOCKS_MAX {
        return None;
    }
    let blocks = (0..count).map(|_| take_extent(&mut input));
    Some((blocks.collect::<Option<_>>()?, input))
}

impl Event {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, number) = match self {
            &Event::Qp(number, event) => (number_of(event), u64::from(number)),
            &Event::CqError(serial) => (CQ_ERROR, serial),
            Event::DeviceFatal => (DEVICE_FATAL, 0),
            Event::Cm(event) => return [&[CM], &encoding::encode(event)[..]].concat(),
        };
        let mut out = vec![kind];
        out.extend(number.to_ne_bytes());
        out
    }

    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let mut input = packet;
        let [kind] = take(&mut input)?;
        if kind == CM {
            return encoding::decode(input).ok().map(Event::Cm);
        }
        let number = u64::from_ne_bytes(take(&mut input)?);
        input.is_empty().then_some(())?;
        Some(match kind {
            CQ_ERROR => Event::CqError(number),
            DEVICE_FATAL => Event::DeviceFatal,
            _ => {
                let event = QP_EVENTS.into_iter().find(|&it| number_of(it) == kind)?;
                Event::Qp(u32::try_from(number).ok()?, event)
            }
        })
    }
}

const CQ_ERROR: u8 = 100;
const DEVICE_FATAL: u8 = 101;
const CM: u8 = 102;

const QP_EVENTS: [QpEvent; 6] = [
    QpEvent::Fatal,
    QpEvent::AccessError,
    QpEvent::RequestError,
    QpEvent::CommunicationEstablished,
    QpEvent::SendQueueDrained,
    QpEvent::LastWqeReached,
];

fn number_of(event: QpEvent) -> u8 {
    match event {
        QpEvent::Fatal => 0,
        QpEvent::AccessError => 1,
        QpEvent::RequestError => 2,
        QpEvent::CommunicationEstablished => 3,
        QpEvent::SendQueueDrained => 4,
        QpEvent::LastWqeReached => 5,
    }
}

fn put_extent(extent: Extent, out: &mut Vec<u8>) {
    out.extend(extent.offset.to_ne_bytes());
    out.extend(extent.length.to_ne_bytes());
}

fn take_extent(input: &mut &[u8]) -> Option<Extent> {
    Some(Extent {
        offset: u64::from_ne_bytes(take(input)?),
        length: u64::from_ne_bytes(take(input)?),
    })
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*bytes)
}

/// Decodes bytes as each kind of packet: what decodes must encode to the same bytes. The body of a
/// fuzz target.
///
/// # Panics
/// If it does not.
pub fn check_bytes(bytes: &[u8]) {
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(hello.encode(), bytes);
    }
    if let Ok(welcome @ Welcome::Accepted(_)) = Welcome::decode(bytes) {
        assert_eq!(welcome.encode(), bytes);
    }
    if let Some(event) = Event::decode(bytes) {
        assert_eq!(event.encode(), bytes);
    }
    if let Some((blocks, rest)) = take_blocks(bytes) {
        assert_eq!([&put_blocks(&blocks), rest].concat(), bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use airdma_cm::ConnectionId;
    use airdma_wire::cm::RejReason;

    const HELLO: Hello = Hello {
        network: 7,
        interface_index: 3,
        page: Extent {
            offset: 128,
            length: 640,
        },
        doorbells: Extent {
            offset: 0,
            length: 9000,
        },
    };

    #[test]
    fn packets_come_out_as_they_went_in() {
        assert_eq!(Hello::decode(&HELLO.encode()), Ok(HELLO));
        let refused = Welcome::Refused {
            errno: 13,
            message: "no".to_owned(),
        };
        for welcome in [Welcome::Accepted(9), refused] {
            assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
        }
        let events = QP_EVENTS.map(|event| Event::Qp(17, event));
        let rejected = CmEvent::Rejected {
            id: ConnectionId(7),
            reason: RejReason::CONSUMER,
            private_data: vec![3; 148],
        };
        let others = [Event::CqError(5), Event::DeviceFatal, Event::Cm(rejected)];
        for event in events.into_iter().chain(others) {
            assert_eq!(Event::decode(&event.encode()), Some(event));
        }
        for bytes in [HELLO.encode(), Event::DeviceFatal.encode(), vec![1; 40]] {
            check_bytes(&bytes);
        }
    }

    #[test]
    fn a_refusal_is_cut_to_what_a_client_reads() {
        for word in ["x", "\u{20ac}"] {
            let message = word.repeat(4000);
            let packet = Welcome::Refused { errno: 22, message }.encode();
            assert!(packet.len() <= WELCOME_BYTES_MAX);
            let Ok(Welcome::Refused { errno, message }) = Welcome::decode(&packet) else {
                panic!("no refusal");
            };
            assert!(errno == 22 && message.len() > 900 && message.replace(word, "").is_empty());
        }
    }

    #[test]
    fn another_version_is_told_from_garbage() {
        let mut other = HELLO.encode();
        other[8] ^= 0x40;
        assert!(matches!(Hello::decode(&other), Err(NoGreeting::Other(_))));
        let good = HELLO.encode();
        for length in 0..good.len() {
            assert_eq!(Hello::decode(&good[..length]), Err(NoGreeting::Malformed));
        }
        assert_eq!(Event::decode(&[77; 9]), None);
        assert_eq!(take_blocks(&[3; 100]), None);
    }
}
