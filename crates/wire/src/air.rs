//! Messages between airdma hosts: vendor-class management datagrams to queue pair 1 (IBTA 13.4.4,
//! 16.5). Other implementations ignore them, and receive only an occasional [`Hello`].
//! `docs/protocol.md` specifies when each is sent.
//!
//! ```text
//!    0            1            2            3
//!   +------------+------------+------------+------------+
//!   |      MAD header: class 0x4f, version 1, Send      |  0
//!   +------------+------------+------------+------------+
//!   |          RMPP header, inactive, but for           | 24
//!   |    the receiver: top byte of its process's id     | 28
//!   |                                                   | 32
//!   +------------+------------+------------+------------+
//!   |  reserved  |            OUI 02-61-44              | 36
//!   +------------+------------+------------+------------+
//!   |           216 bytes, as the attribute says        | 40
//! ```
//!
//! The receiver lies where connection management has the receiver's communication id, so one rule
//! selects among several processes at an address.

use crate::mad::{MAD_BODY_LEN, MAD_LEN, MadError, MadHeader};
use crate::{Psn, Qpn, field};

/// Management class: the last of the vendor classes that carry an OUI.
pub const AIR_CLASS: u8 = 0x4f;
/// Class version of this format.
pub const AIR_VERSION: u8 = 1;

const METHOD_SEND: u8 = 0x03;
const CLASS_VERSION: u8 = 1;
const ATTRIBUTE_HELLO: u16 = 0x0001;
const ATTRIBUTE_REPORT: u16 = 0x0002;
const ATTRIBUTE_KEY: u16 = 0x0003;
/// Locally administered, so not assigned to any vendor.
const OUI: [u8; 3] = [0x02, 0x61, 0x44];

// Offsets in the body of the MAD, which begins at byte 24.
const RECEIVER: usize = 4;
const OUI_AT: usize = 13;
const CONTENT: usize = 16;
const CONTENT_LEN: usize = MAD_BODY_LEN - CONTENT;

/// Why a management datagram is not a message between airdma hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AirError {
    /// The header of the datagram is malformed.
    #[error(transparent)]
    Mad(#[from] MadError),
    /// The message is another vendor's.
    #[error("another vendor's message")]
    Oui,
    /// A later version, whose format is unknown.
    #[error("version {0} of the format")]
    Version(u8),
    /// The records do not end within the datagram.
    #[error("the records do not fit")]
    Records,
}

/// Features of a host, as bits.
pub mod feature {
    /// Selective repeat: buffers packets that arrive out of order, reports gaps, resends the
    /// reported ones.
    pub const SELECTIVE: u64 = 1 << 0;
    /// Reports the fill of its buffers, and answers pings.
    pub const BUFFERS: u64 = 1 << 1;
    /// As [`SELECTIVE`], but ACK packets report the gaps ([`Seth`](crate::Seth)); there are no
    /// reports.
    pub const SACK: u64 = 1 << 2;
    /// Accepts packets in bundles ([`crate::bundle`]) in air mode.
    pub const BUNDLES: u64 = 1 << 3;
    /// Answers READs in packets as long as their requests ask for ([`Lreth`](crate::Lreth)).
    pub const LONG_READS: u64 = 1 << 4;
    /// Prefers [`SELECTIVE`] to [`SACK`]: on the air, where ACK packets take from the data.
    pub const REPORTS: u64 = 1 << 5;
    /// Accepts packets in [pieces](crate::piece).
    pub const PIECES: u64 = 1 << 6;
    /// Accepts long packets shorter than stated, and [padded](crate::padded) ones, so that those of
    /// a message have one length; answers READs in such if asked.
    pub const EQUAL_LENGTHS: u64 = 1 << 7;
}

/// Identity and features of the sender.
///
/// ```text
///   +------------+------------+-------------------------+
///   | version 1  | A 0000000  |      long payload       |  0    A: an answer is wanted
///   +------------+------------+-------------------------+
///   |                     features                      |  4
///   |                                                   |
///   +---------------------------------------------------+
///   |        the sender: what its answer names          | 12
///   +---------------------------------------------------+
///   |                     instance                      | 16
///   |                                                   |
///   +---------------------------------------------------+
///   |       instance of the one who asked, or 0         | 24
///   |                                                   |
///   +---------------------------------------------------+
///   |            nonce of this question                 | 32
///   |                                                   |
///   +---------------------------------------------------+
///   |     nonce of the question that this answers       | 40
///   |                                                   |
///   +---------------------------------------------------+
///   |       number of the sender's last report          | 48
///   +---------------------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Whether an answer is wanted.
    pub asks: bool,
    /// Largest payload of packets to the sender, if that is more than the path MTU.
    pub long_payload: u16,
    /// Bits of [`feature`].
    pub features: u64,
    /// Value that an answer must give as its receiver.
    pub sender: u32,
    /// Random number that identifies the sender to this receiver, and to no other host.
    ///
    /// If it changes, another process has taken the sender's place.
    pub instance: u64,
    /// In an answer, the instance of the requester: proves that the answer was not forged by a
    /// third host.
    pub answers: Option<u64>,
    /// Random number of this question.
    ///
    /// It proves that the answer was not forged by a host that had the peer's address before.
    pub nonce: u64,
    /// In an answer, the nonce of the question.
    pub echo: u64,
    /// Number of the sender's last report to any host; later reports have higher numbers.
    pub number: u32,
}

/// Bytes of a public key of X25519 (RFC 7748).
pub const PUBLIC_KEY_LEN: usize = 32;

/// One half of the key exchange of a connection whose packets are [sealed](crate::sealed).
///
/// ```text
///   +------------+------------+-------------------------+
///   | version 1  | A K 000000 |        reserved         |  0    A: an answer is wanted
///   +------------+------------+-------------------------+       K: the sender has the keys
///   |  reserved  |      queue pair of the sender        |  4
///   +------------+--------------------------------------+
///   |  reserved  |      queue pair of the receiver      |  8
///   +------------+--------------------------------------+
///   |     public key of the sender's queue pair         | 12
///   |                    (32 bytes)                     |
///   +---------------------------------------------------+
///   |     that of the receiver's, or 0                  | 44
///   |                    (32 bytes)                     |
///   +---------------------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyOffer {
    /// Whether an answer is wanted: the sender does not know yet that the receiver has the keys.
    pub asks: bool,
    /// Whether the sender has the keys.
    pub has_keys: bool,
    /// The sender's queue pair.
    pub sender: Qpn,
    /// The receiver's queue pair.
    pub receiver: Qpn,
    /// The sender's public key, drawn for this connection.
    pub public_key: [u8; PUBLIC_KEY_LEN],
    /// The receiver's public key as the sender has it: a host that has not seen the exchange cannot
    /// know it.
    pub seen: Option<[u8; PUBLIC_KEY_LEN]>,
}

/// State of reception from the peer: measures of the path, and one record for each queue pair that
/// owes an acknowledgement.
///
/// The transaction id of the MAD header, otherwise unused, is the instance of the sender.
///
/// ```text
///   +------------+------------+-------------------------+
///   | version 1  |  records   |        reserved         |  0
///   +------------+------------+-------------------------+
///   |       instance of the receiver, from its Hello    |  4
///   |                                                   |
///   +---------------------------------------------------+
///   |             number of this report                 | 12
///   +---------------------------------------------------+
///   |        ping: to be answered, 0 is none            | 16
///   +---------------------------------------------------+
///   |        pong: the ping that this answers           | 20
///   +---------------------------------------------------+
///   |        microseconds between that ping and now     | 24
///   +---------------------------------------------------+
///   |            bytes received since the start         | 28
///   |                                                   |
///   +---------------------------------------------------+
///   |            packets missed since the start         | 36
///   +---------------------------------------------------+
///   |      bytes that came with congestion marks        | 40
///   +---------------------------------------------------+
///   |     bytes in the receiver's socket buffer         | 44
///   +---------------------------------------------------+
///   |     bytes that it holds                           | 48
///   +---------------------------------------------------+
///   |     bytes that wait for the application           | 52
///   +---------------------------------------------------+
///   |     bytes that may                                | 56
///   +---------------------------------------------------+
///   |     the sender, as in its Hello                   | 60
///   +---------------------------------------------------+
///   |     microseconds between the start and now        | 64
///   +---------------------------------------------------+
///   |     records                                       | 68
///
///   a record
///   +--------------------------------------+------------+
///   |     queue pair of the receiver       |   ranges   |
///   +--------------------------------------+------------+
///   |     expected PSN                     |  reserved  |
///   +--------------------------------------+------------+
///   and of each range: 3 bytes first PSN, 3 bytes number of packets
/// ```
///
/// The start is the first packet that came from the peer, or the first after a pause
/// ([`PAUSE_US`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The receiver's instance, from its own Hello.
    pub instance: u64,
    /// The sender's instance, from its own Hello.
    pub from: u64,
    /// [`Hello::sender`] of this report's sender.
    pub sender: u32,
    /// Number of this report; one with a lower number than the last is late, and ignored.
    pub number: u32,
    /// Number to echo at once as a pong; 0 is none.
    pub ping: u32,
    /// The ping that this report answers; 0 is none.
    pub pong: u32,
    /// Time from the arrival of that ping to this report, in microseconds.
    pub pong_held_us: u32,
    /// Bytes received from the peer since the start, with all headers of their packets.
    pub received_bytes: u64,
    /// Packets missing from what was received. Wraps.
    pub missed_packets: u32,
    /// Part of `received_bytes` that came with congestion marks (ECN CE). Wraps.
    pub marked_bytes: u32,
    /// When these measures were taken, in microseconds since the start. Wraps.
    pub at_us: u32,
    /// Bytes in the receiver's socket buffer.
    pub socket_bytes: u32,
    /// Capacity of that buffer in bytes.
    pub socket_bytes_max: u32,
    /// Bytes that wait for the application, for example for the disk of a file service.
    pub application_bytes: u32,
    /// Most bytes that may wait for it.
    pub application_bytes_max: u32,
}

/// Progress of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Queue pair of the report's receiver.
    pub qpn: Qpn,
    /// PSN of the first packet that was not executed.
    pub expected: Psn,
    ranges: &'a [[u8; RANGE_LEN]],
}

impl Record<'_> {
    /// Missing ranges: PSN of the first packet, and number of packets.
    pub fn missing(&self) -> impl ExactSizeIterator<Item = (Psn, u32)> + '_ {
        self.ranges.iter().map(|range| {
            let [a, b, c, d, e, f] = *range;
            let first = Psn::new(u32::from_be_bytes([0, a, b, c]));
            (first, u32::from_be_bytes([0, d, e, f]))
        })
    }
}

/// Pause in reception, in microseconds, after which the counters of a [`Report`] start again.
pub const PAUSE_US: u32 = 900_000;

/// Most records of a report.
pub const RECORDS_MAX: usize = (CONTENT_LEN - REPORT_LEN) / RECORD_LEN;

const REPORT_LEN: usize = 68;
const RECORD_LEN: usize = 8;
const RANGE_LEN: usize = 6;

/// A message, as it was received. Records lie in the bytes it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A [`Hello`], and the value that it gives as its receiver.
    Hello(Hello, u32),
    /// A [`Report`] with its records.
    Report(Report, Records<'a>),
    /// A [`KeyOffer`].
    Key(KeyOffer),
}

/// The records of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records<'a> {
    left: u8,
    bytes: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (head, rest) = self.bytes.split_first_chunk::<RECORD_LEN>()?;
        let [a, b, c, count, d, e, f, _] = *head;
        let (ranges, rest) = rest.split_at_checked(usize::from(count) * RANGE_LEN)?;
        self.bytes = rest;
        Some(Record {
            qpn: Qpn::new(u32::from_be_bytes([0, a, b, c])),
            expected: Psn::new(u32::from_be_bytes([0, d, e, f])),
            ranges: ranges.as_chunks().0,
        })
    }
}

/// Reads a management datagram of class [`AIR_CLASS`].
///
/// # Errors
/// Why it is not such a message, or not one of this version; the caller drops and counts it.
pub fn parse(mad: &[u8]) -> Result<Message<'_>, AirError> {
    let (header, body) = MadHeader::parse(mad)?;
    if header.class != AIR_CLASS {
        return Err(MadError::Class(header.class).into());
    }
    if header.class_version != CLASS_VERSION {
        return Err(MadError::ClassVersion(header.class_version).into());
    }
    if header.method != METHOD_SEND {
        return Err(MadError::Method(header.method).into());
    }
    if field::get::<OUI_AT, 3, _>(body) != OUI {
        return Err(AirError::Oui);
    }
    let content: &[u8; CONTENT_LEN] = &field::get::<CONTENT, CONTENT_LEN, _>(body);
    if content[0] != AIR_VERSION {
        return Err(AirError::Version(content[0]));
    }
    match header.attribute {
        ATTRIBUTE_HELLO => {
            let hello = Hello {
                asks: content[1] & 0x80 != 0,
                long_payload: u16::from_be_bytes(field::get::<2, 2, _>(content)),
                features: u64::from_be_bytes(field::get::<4, 8, _>(content)),
                sender: u32::from_be_bytes(field::get::<12, 4, _>(content)),
                instance: u64::from_be_bytes(field::get::<16, 8, _>(content)),
                answers: Some(u64::from_be_bytes(field::get::<24, 8, _>(content)))
                    .filter(|&instance| instance != 0),
                nonce: u64::from_be_bytes(field::get::<32, 8, _>(content)),
                echo: u64::from_be_bytes(field::get::<40, 8, _>(content)),
                number: u32::from_be_bytes(field::get::<48, 4, _>(content)),
            };
            let receiver = u32::from_be_bytes(field::get::<RECEIVER, 4, _>(body));
            Ok(Message::Hello(hello, receiver))
        }
        ATTRIBUTE_REPORT => {
            let records = Records {
                left: content[1],
                bytes: &mad[MadHeader::LEN + CONTENT + REPORT_LEN..],
            };
            if records.count() != usize::from(content[1]) {
                return Err(AirError::Records);
            }
            let report = Report {
                from: header.transaction,
                ..report(content)
            };
            Ok(Message::Report(report, records))
        }
        ATTRIBUTE_KEY => Ok(Message::Key(key_offer(content))),
        other => Err(MadError::Attribute(other).into()),
    }
}

fn report(content: &[u8; CONTENT_LEN]) -> Report {
    Report {
        instance: u64::from_be_bytes(field::get::<4, 8, _>(content)),
        number: u32::from_be_bytes(field::get::<12, 4, _>(content)),
        ping: u32::from_be_bytes(field::get::<16, 4, _>(content)),
        pong: u32::from_be_bytes(field::get::<20, 4, _>(content)),
        pong_held_us: u32::from_be_bytes(field::get::<24, 4, _>(content)),
        received_bytes: u64::from_be_bytes(field::get::<28, 8, _>(content)),
        missed_packets: u32::from_be_bytes(field::get::<36, 4, _>(content)),
        marked_bytes: u32::from_be_bytes(field::get::<40, 4, _>(content)),
        socket_bytes: u32::from_be_bytes(field::get::<44, 4, _>(content)),
        socket_bytes_max: u32::from_be_bytes(field::get::<48, 4, _>(content)),
        application_bytes: u32::from_be_bytes(field::get::<52, 4, _>(content)),
        application_bytes_max: u32::from_be_bytes(field::get::<56, 4, _>(content)),
        sender: u32::from_be_bytes(field::get::<60, 4, _>(content)),
        at_us: u32::from_be_bytes(field::get::<64, 4, _>(content)),
        from: 0,
    }
}

fn key_offer(content: &[u8; CONTENT_LEN]) -> KeyOffer {
    let number = |[_, a, b, c]: [u8; 4]| Qpn::new(u32::from_be_bytes([0, a, b, c]));
    KeyOffer {
        asks: content[1] & 0x80 != 0,
        has_keys: content[1] & 0x40 != 0,
        sender: number(field::get::<4, 4, _>(content)),
        receiver: number(field::get::<8, 4, _>(content)),
        public_key: field::get::<12, PUBLIC_KEY_LEN, _>(content),
        seen: Some(field::get::<44, PUBLIC_KEY_LEN, _>(content))
            .filter(|key| *key != [0; PUBLIC_KEY_LEN]),
    }
}

/// The management datagram of a [`KeyOffer`]; it goes to the process that has the receiver's queue
/// pair.
pub fn key(offer: &KeyOffer) -> [u8; MAD_LEN] {
    let mut content = [0; CONTENT_LEN];
    content[0] = AIR_VERSION;
    content[1] = u8::from(offer.asks) << 7 | u8::from(offer.has_keys) << 6;
    field::set::<4, 4, _>(&mut content, offer.sender.get().to_be_bytes());
    field::set::<8, 4, _>(&mut content, offer.receiver.get().to_be_bytes());
    field::set::<12, PUBLIC_KEY_LEN, _>(&mut content, offer.public_key);
    field::set::<44, PUBLIC_KEY_LEN, _>(&mut content, offer.seen.unwrap_or_default());
    // Bits 12 to 19 of a queue pair number select the process (docs/protocol.md, "Where messages
    // travel").
    datagram(
        ATTRIBUTE_KEY,
        offer.receiver.get() << 12 & 0xff00_0000,
        0,
        &content,
    )
}

/// The management datagram of a [`Hello`].
///
/// The top byte of `receiver` selects one of the processes at the address.
pub fn hello(hello: &Hello, receiver: u32) -> [u8; MAD_LEN] {
    let mut content = [0; CONTENT_LEN];
    content[0] = AIR_VERSION;
    content[1] = u8::from(hello.asks) << 7;
    field::set::<2, 2, _>(&mut content, hello.long_payload.to_be_bytes());
    field::set::<4, 8, _>(&mut content, hello.features.to_be_bytes());
    field::set::<12, 4, _>(&mut content, hello.sender.to_be_bytes());
    field::set::<16, 8, _>(&mut content, hello.instance.to_be_bytes());
    field::set::<24, 8, _>(&mut content, hello.answers.unwrap_or(0).to_be_bytes());
    field::set::<32, 8, _>(&mut content, hello.nonce.to_be_bytes());
    field::set::<40, 8, _>(&mut content, hello.echo.to_be_bytes());
    field::set::<48, 4, _>(&mut content, hello.number.to_be_bytes());
    datagram(ATTRIBUTE_HELLO, receiver, 0, &content)
}

fn datagram(
    attribute: u16,
    receiver: u32,
    transaction: u64,
    content: &[u8; CONTENT_LEN],
) -> [u8; MAD_LEN] {
    let mut body = [0; MAD_BODY_LEN];
    field::set::<RECEIVER, 4, _>(&mut body, receiver.to_be_bytes());
    field::set::<OUI_AT, 3, _>(&mut body, OUI);
    field::set::<CONTENT, CONTENT_LEN, _>(&mut body, *content);
    let header = MadHeader {
        class: AIR_CLASS,
        class_version: CLASS_VERSION,
        method: METHOD_SEND,
        status: 0,
        class_specific: 0,
        transaction,
        attribute,
        modifier: 0,
    };
    header.emit(&body)
}

/// Writes a [`Report`], record by record.
#[derive(Clone, Debug)]
pub struct ReportWriter {
    content: [u8; CONTENT_LEN],
    from: u64,
    end: usize,
}

impl ReportWriter {
    /// A report without records.
    pub fn new(report: &Report) -> Self {
        let mut content = [0; CONTENT_LEN];
        content[0] = AIR_VERSION;
        field::set::<4, 8, _>(&mut content, report.instance.to_be_bytes());
        field::set::<12, 4, _>(&mut content, report.number.to_be_bytes());
        field::set::<16, 4, _>(&mut content, report.ping.to_be_bytes());
        field::set::<20, 4, _>(&mut content, report.pong.to_be_bytes());
        field::set::<24, 4, _>(&mut content, report.pong_held_us.to_be_bytes());
        field::set::<28, 8, _>(&mut content, report.received_bytes.to_be_bytes());
        field::set::<36, 4, _>(&mut content, report.missed_packets.to_be_bytes());
        field::set::<40, 4, _>(&mut content, report.marked_bytes.to_be_bytes());
        field::set::<44, 4, _>(&mut content, report.socket_bytes.to_be_bytes());
        field::set::<48, 4, _>(&mut content, report.socket_bytes_max.to_be_bytes());
        field::set::<52, 4, _>(&mut content, report.application_bytes.to_be_bytes());
        field::set::<56, 4, _>(&mut content, report.application_bytes_max.to_be_bytes());
        field::set::<60, 4, _>(&mut content, report.sender.to_be_bytes());
        field::set::<64, 4, _>(&mut content, report.at_us.to_be_bytes());
        ReportWriter {
            content,
            from: report.from,
            end: REPORT_LEN,
        }
    }

    /// Number of ranges that fit the next record; `None` if there is no room for a record.
    pub fn room(&self) -> Option<usize> {
        let left = (CONTENT_LEN - self.end).checked_sub(RECORD_LEN)?;
        Some(left / RANGE_LEN)
    }

    /// Adds a record.
    ///
    /// # Panics
    /// If there is no [`room`](Self::room) for it.
    pub fn add(
        &mut self,
        qpn: Qpn,
        expected: Psn,
        missing: impl ExactSizeIterator<Item = (Psn, u32)>,
    ) {
        let count = missing.len();
        assert!(
            self.room().is_some_and(|room| count <= room),
            "no room for a record of {count} ranges"
        );
        let [_, a, b, c] = qpn.get().to_be_bytes();
        let [_, d, e, f] = expected.get().to_be_bytes();
        self.push([a, b, c, count as u8, d, e, f, 0]);
        for (first, packets) in missing {
            let [_, a, b, c] = first.get().to_be_bytes();
            let [_, d, e, f] = packets.min(0x00ff_ffff).to_be_bytes();
            self.push([a, b, c, d, e, f]);
        }
        self.content[1] += 1;
    }

    fn push<const N: usize>(&mut self, bytes: [u8; N]) {
        self.content[self.end..self.end + N].copy_from_slice(&bytes);
        self.end += N;
    }

    /// The management datagram; `receiver` as in [`hello`].
    pub fn finish(&self, receiver: u32) -> [u8; MAD_LEN] {
        datagram(ATTRIBUTE_REPORT, receiver, self.from, &self.content)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HELLO: Hello = Hello {
        asks: true,
        long_payload: 0x0594,
        features: feature::SELECTIVE | 1 << 63,
        sender: 0x0300_0000,
        instance: 0x0102_0304_0506_0708,
        answers: Some(0x1112_1314_1516_1718),
        nonce: 0x2122_2324_2526_2728,
        echo: 0x3132_3334_3536_3738,
        number: 0x4142_4344,
    };

    #[test]
    fn a_hello_comes_back_as_it_went() {
        let mad = hello(&HELLO, 0x7f00_0000);
        assert_eq!(mad[..4], [1, 0x4f, 1, 3]);
        assert_eq!(
            mad[28..32],
            [0x7f, 0, 0, 0],
            "where the receiver is looked for"
        );
        assert_eq!(mad[37..40], OUI);
        assert_eq!(parse(&mad), Ok(Message::Hello(HELLO, 0x7f00_0000)));
        assert_eq!(mad, kept()[0]);
    }

    #[test]
    fn a_key_offer_comes_back_as_it_went() {
        let offer = KeyOffer {
            asks: true,
            has_keys: false,
            sender: Qpn::new(0x12_3456),
            receiver: Qpn::new(0x51_2345),
            public_key: std::array::from_fn(|at| at as u8),
            seen: Some([7; PUBLIC_KEY_LEN]),
        };
        let mad = key(&offer);
        assert_eq!(mad[28..32], [0x12, 0, 0, 0], "the receiver's range");
        assert_eq!(mad, kept()[2]);
        assert_eq!(parse(&mad), Ok(Message::Key(offer)));
        let first = KeyOffer {
            asks: false,
            has_keys: true,
            seen: None,
            ..offer
        };
        assert_eq!(parse(&key(&first)), Ok(Message::Key(first)));
    }

    /// The messages in `tests/air.hex`, which the tests of other readers of this format use as
    /// well.
    fn kept() -> Vec<[u8; MAD_LEN]> {
        let byte = |digits: &str| u8::from_str_radix(digits, 16).unwrap();
        let bytes = |line: &str| -> Vec<u8> {
            let places = (0..line.len()).step_by(2);
            places.map(|at| byte(&line[at..at + 2])).collect()
        };
        let lines = include_str!("../tests/air.hex").lines();
        lines.map(|line| bytes(line).try_into().unwrap()).collect()
    }

    #[test]
    fn a_report_comes_back_as_it_went() {
        let report = Report {
            instance: 9,
            from: 0x5152_5354_5556_5758,
            sender: 0x0400_0000,
            number: 1,
            ping: 2,
            pong: 3,
            pong_held_us: 4,
            received_bytes: 1 << 40,
            missed_packets: 5,
            marked_bytes: 6,
            at_us: 12,
            socket_bytes: 7,
            socket_bytes_max: 8,
            application_bytes: 10,
            application_bytes_max: 11,
        };
        let mut writer = ReportWriter::new(&report);
        let gaps = [(Psn::new(0xff_ffff), 2), (Psn::new(77), 0x12_3456)];
        writer.add(Qpn::new(0x11), Psn::new(5), [].into_iter());
        writer.add(Qpn::new(0xff_fff0), Psn::new(0xff_ffff), gaps.into_iter());
        let mad = writer.finish(0x0500_0000);
        assert_eq!(mad, kept()[1]);
        let Message::Report(parsed, records) = parse(&mad).unwrap() else {
            panic!("a report");
        };
        assert_eq!(parsed, report);
        let records: Vec<_> = records
            .map(|record| {
                let missing: Vec<_> = record.missing().collect();
                (record.qpn.get(), record.expected.get(), missing)
            })
            .collect();
        let expected = [(0x11, 5, vec![]), (0xff_fff0, 0xff_ffff, gaps.to_vec())];
        assert_eq!(records, expected);
    }

    #[test]
    fn a_report_takes_what_it_has_room_for() {
        let mut writer = ReportWriter::new(&Report::default());
        assert_eq!(writer.room(), Some(23));
        let gap = (Psn::new(1), 1);
        writer.add(Qpn::new(1), Psn::new(1), [gap; 20].into_iter());
        assert_eq!(writer.room(), Some(2));
        writer.add(Qpn::new(1), Psn::new(1), [gap; 2].into_iter());
        assert_eq!(writer.room(), None);
        let mad = writer.finish(0);
        assert!(matches!(parse(&mad), Ok(Message::Report(_, records)) if records.count() == 2));
    }

    #[test]
    fn what_is_not_ours_or_does_not_fit_is_refused() {
        let mut writer = ReportWriter::new(&Report::default());
        writer.add(Qpn::new(1), Psn::new(1), [(Psn::new(1), 1)].into_iter());
        let good = writer.finish(0);
        let changed = |at: usize, to: u8| {
            let mut mad = good;
            mad[at] = to;
            parse(&mad).map(|_| ())
        };
        assert_eq!(changed(200, 7), Ok(()));
        assert_eq!(changed(1, 7), Err(MadError::Class(7).into()));
        assert_eq!(changed(2, 7), Err(MadError::ClassVersion(7).into()));
        assert_eq!(changed(3, 1), Err(MadError::Method(1).into()));
        assert_eq!(changed(17, 9), Err(MadError::Attribute(9).into()));
        assert_eq!(changed(37, 7), Err(AirError::Oui));
        assert_eq!(changed(40, 2), Err(AirError::Version(2)));
        assert_eq!(changed(41, 200), Err(AirError::Records));
        assert_eq!(changed(111, 25), Err(AirError::Records));
        assert_eq!(parse(&good[..255]), Err(MadError::Length(255).into()));
    }
}
