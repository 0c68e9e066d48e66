//! The answer to a packet of a Write-Record that asks for one (`docs/protocol.md`, "The rate of
//! records"): it names the packet, and states how full the buffer is that packets arrive in and the
//! entries that the target has for further messages.
//!
//! ```text
//!    0            1            2            3
//!   +------------+------------+------------+------------+
//!   |   BTH with the opcode 0xc2; PSN: the instance     |  0
//!   |   DETH                                            | 12
//!   +---------------------------------------------------+
//!   |                     message id                    | 20
//!   +---------------------------------------------------+
//!   |                       offset                      | 24
//!   +---------------------------------------------------+
//!   |              bytes in the receive buffer          | 28
//!   +---------------------------------------------------+
//!   |             its capacity; 0: unknown              | 32
//!   +------------+--------------------------------------+
//!   |version|00QE|       free entries of the target     | 36    E: they are stated
//!   +------------+--------------------------------------+
//!   |   ICRC                                            |       Q: a question, to the target
//! ```
//!
//! A sender that waits for entries asks in the same format: the queue pairs are then those of a
//! packet, the number is that of the last message, and the answer repeats number and offset.

use crate::{Bth, Deth, Opcode, ParseError, Psn, Qkey, Qpn, field};

/// First byte of such an answer.
pub const RECORD_ECHO_OPCODE: u8 = 0xc2;
/// Bytes of an answer, BTH to the entries: less than the shortest packet that asks for one, and as
/// many as a question has.
pub const RECORD_ECHO_LEN: usize = 40;
/// Most free entries that an answer states.
pub const RECORD_ENTRIES_MAX: u32 = (1 << 24) - 1;

const ENTRIES: u8 = 1;
const QUESTION: u8 = 2;

/// An answer: all that was sent before the packet that it names has arrived, or will not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordEcho {
    /// The queue pair that sent the packet.
    pub dest_qpn: Qpn,
    /// Its instance, from the packet.
    pub instance: Psn,
    /// The Q_Key in the packet.
    pub qkey: Qkey,
    /// The queue pair that the packet was for.
    pub src_qpn: Qpn,
    /// Number of the message in the packet.
    pub id: u32,
    /// Offset in the packet.
    pub offset: u32,
    /// Bytes that wait in the receiver's socket.
    pub socket_bytes: u32,
    /// Bytes that it holds at most; 0 if that is unknown.
    pub socket_bytes_max: u32,
    /// Messages beyond those that have arrived for which the target has entries, at most
    /// [`RECORD_ENTRIES_MAX`]. Earlier versions do not state it.
    pub entries: Option<u32>,
    /// It is no answer: the sender of messages asks, and `dest_qpn` is the target.
    pub asks: bool,
}

impl RecordEcho {
    /// Writes the answer.
    pub fn to_bytes(&self) -> [u8; RECORD_ECHO_LEN] {
        let mut bytes = [0; RECORD_ECHO_LEN];
        let mut bth = Bth::new(Opcode::UdSendOnly, self.dest_qpn, self.instance).to_bytes();
        bth[0] = RECORD_ECHO_OPCODE;
        let deth = Deth {
            qkey: self.qkey,
            src_qpn: self.src_qpn,
        };
        field::set::<0, { Bth::LEN }, _>(&mut bytes, bth);
        field::set::<12, { Deth::LEN }, _>(&mut bytes, deth.to_bytes());
        field::set::<20, 4, _>(&mut bytes, self.id.to_be_bytes());
        field::set::<24, 4, _>(&mut bytes, self.offset.to_be_bytes());
        field::set::<28, 4, _>(&mut bytes, self.socket_bytes.to_be_bytes());
        field::set::<32, 4, _>(&mut bytes, self.socket_bytes_max.to_be_bytes());
        let entries = self.entries.unwrap_or(0).min(RECORD_ENTRIES_MAX);
        field::set::<36, 4, _>(&mut bytes, entries.to_be_bytes());
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.entries.is_some(), ENTRIES) | flag(self.asks, QUESTION);
        bytes[36] = super::RECORD_VERSION << 4 | flags;
        bytes
    }

    /// Reads an answer from the bytes between UDP header and ICRC.
    ///
    /// # Errors
    /// Why the bytes are none; [`ParseError::UnknownOpcode`] for any other packet.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match bytes.first() {
            Some(&RECORD_ECHO_OPCODE) => {}
            Some(&other) => return Err(ParseError::UnknownOpcode(other)),
            None => return Err(ParseError::Truncated),
        }
        if bytes.len() > RECORD_ECHO_LEN {
            return Err(ParseError::BadLength);
        }
        let bytes: &[u8; RECORD_ECHO_LEN] = bytes.try_into().map_err(|_| ParseError::Truncated)?;
        let mut bth: [u8; Bth::LEN] = field::get::<0, { Bth::LEN }, _>(bytes);
        bth[0] = Opcode::UdSendOnly as u8;
        let bth = Bth::from_bytes(&bth)?;
        if bytes[36] >> 4 != super::RECORD_VERSION {
            return Err(ParseError::BadVersion(bytes[36] >> 4));
        }
        let deth = Deth::from_bytes(&field::get::<12, { Deth::LEN }, _>(bytes));
        let entries = u32::from_be_bytes(field::get::<36, 4, _>(bytes)) & RECORD_ENTRIES_MAX;
        Ok(RecordEcho {
            dest_qpn: bth.dest_qpn,
            instance: bth.psn,
            qkey: deth.qkey,
            src_qpn: deth.src_qpn,
            id: u32::from_be_bytes(field::get::<20, 4, _>(bytes)),
            offset: u32::from_be_bytes(field::get::<24, 4, _>(bytes)),
            socket_bytes: u32::from_be_bytes(field::get::<28, 4, _>(bytes)),
            socket_bytes_max: u32::from_be_bytes(field::get::<32, 4, _>(bytes)),
            entries: (bytes[36] & ENTRIES != 0).then_some(entries),
            asks: bytes[36] & QUESTION != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{ICRC_LEN, RECORD_HEADERS_LEN};

    const ECHO: RecordEcho = RecordEcho {
        dest_qpn: Qpn::new(0x0a_0b0c),
        instance: Psn::new(0x01_0203),
        qkey: Qkey(0x1111_2222),
        src_qpn: Qpn::new(0x0d_0e0f),
        id: 0x3333_4444,
        offset: 0x5555_6666,
        socket_bytes: 0x7777_8888,
        socket_bytes_max: 0x9999_aaaa,
        entries: Some(0xbb_ccdd),
        asks: false,
    };

    #[test]
    fn an_answer_reads_as_written() {
        let bytes = ECHO.to_bytes();
        assert_eq!(RecordEcho::parse(&bytes), Ok(ECHO));
        assert_eq!(bytes[0], 0xc2);
        assert_eq!(bytes[5..8], [0x0a, 0x0b, 0x0c]);
        assert_eq!(bytes[9..12], [1, 2, 3]);
        assert_eq!(
            bytes[20..28],
            [0x33, 0x33, 0x44, 0x44, 0x55, 0x55, 0x66, 0x66]
        );
    }

    #[test]
    fn flags_say_what_an_answer_states() {
        assert_eq!(ECHO.to_bytes()[36..], [0x11, 0xbb, 0xcc, 0xdd]);
        let question = RecordEcho {
            entries: None,
            asks: true,
            ..ECHO
        };
        assert_eq!(question.to_bytes()[36..], [0x12, 0, 0, 0]);
        assert_eq!(RecordEcho::parse(&question.to_bytes()), Ok(question));
        // As earlier versions send it: the entries are unknown.
        let earlier = RecordEcho {
            entries: None,
            ..ECHO
        };
        assert_eq!(earlier.to_bytes()[36..], [0x10, 0, 0, 0]);
        assert_eq!(RecordEcho::parse(&earlier.to_bytes()), Ok(earlier));
        let most = RecordEcho {
            entries: Some(u32::MAX),
            ..ECHO
        };
        let read = RecordEcho::parse(&most.to_bytes()).unwrap();
        assert_eq!(read.entries, Some(RECORD_ENTRIES_MAX));
    }

    #[test]
    fn what_is_none_is_refused() {
        let bytes = ECHO.to_bytes();
        for len in 1..RECORD_ECHO_LEN {
            assert_eq!(RecordEcho::parse(&bytes[..len]), Err(ParseError::Truncated));
        }
        let longer = [&bytes[..], &[0; 4]].concat();
        assert_eq!(RecordEcho::parse(&longer), Err(ParseError::BadLength));
        let mut other = bytes;
        other[36] = 0x20;
        assert_eq!(RecordEcho::parse(&other), Err(ParseError::BadVersion(2)));
        other[0] = 0xc0;
        assert_eq!(
            RecordEcho::parse(&other),
            Err(ParseError::UnknownOpcode(0xc0))
        );
        assert_eq!(RecordEcho::parse(&[]), Err(ParseError::Truncated));
    }

    #[test]
    fn an_answer_is_shorter_than_what_asks_for_it() {
        const { assert!(RECORD_ECHO_LEN + ICRC_LEN < RECORD_HEADERS_LEN + ICRC_LEN) };
    }
}
