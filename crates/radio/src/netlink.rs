//! Netlink, as far as readings need it.
//!
//! Requests are bytes that are kept and sent again, answers are slices of one buffer: nothing is
//! allocated for a reading. `netlink-packet-route` allocates each attribute, and does not know
//! nl80211.

use std::io;

use netlink_sys::{Socket, SocketAddr};

use crate::unreadable::Unreadable;

pub const ACK: u16 = libc::NLM_F_ACK as u16;
pub const DUMP: u16 = libc::NLM_F_DUMP as u16;

const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
/// Flags in the type of an attribute: nested, and network byte order.
const TYPE_FLAGS: u16 = 0xc000;
/// Length of a message header: length, type, flags, sequence number, port.
const HEADER_BYTES: usize = 16;
const SEQUENCE_AT: usize = 8;
/// Most bytes of one part of a dump.
const ANSWER_BYTES_MAX: usize = 32 << 10;

/// A request that can be sent many times. It asks for an acknowledgement or a dump ([`ACK`],
/// [`DUMP`]).
#[derive(Clone, Debug)]
pub struct Request(Vec<u8>);

impl Request {
    /// A request with the header of its family behind the general one.
    pub fn new(kind: u16, flags: u16, family_header: &[u8]) -> Request {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
        bytes.extend(family_header);
        Request(bytes).padded()
    }

    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Request {
        let length = (4 + value.len()) as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.padded()
    }

    fn padded(mut self) -> Request {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self
    }
}

/// A socket to one netlink family, in the network namespace of the thread that opened it.
pub struct Conversation {
    socket: Socket,
    answer: Vec<u8>,
    sequence: u32,
}

impl Conversation {
    pub fn open(protocol: isize) -> io::Result<Conversation> {
        let socket = Socket::new(protocol)?;
        // Connected to the kernel: the socket accepts no other sender.
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Conversation {
            socket,
            answer: Vec::with_capacity(ANSWER_BYTES_MAX),
            sequence: 0,
        })
    }

    /// Sends a request; `each` gets the body of every message of the answer.
    ///
    /// The kernel answers within the send call, so this waits only for the locks that the kernel
    /// needs.
    pub fn ask(
        &mut self,
        request: &mut Request,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Unreadable> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence.to_ne_bytes();
        request.0[SEQUENCE_AT..SEQUENCE_AT + 4].copy_from_slice(&sequence);
        self.socket.send(&request.0, 0)?;
        loop {
            self.answer.clear();
            match self.socket.recv(&mut self.answer, libc::MSG_DONTWAIT) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Unreadable::Garbled);
                }
                Err(error) => return Err(error.into()),
            }
            // Messages left from an earlier request have another number.
            let ours = |message: &Message| message.sequence == self.sequence;
            for message in messages(&self.answer).filter(ours) {
                match message.end() {
                    None => each(message.body),
                    Some(0) => return Ok(()),
                    Some(error) => return Err(Unreadable::Refused(error)),
                }
            }
        }
    }
}

/// One message of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    pub sequence: u32,
    pub body: &'a [u8],
}

impl Message<'_> {
    /// The error number if this message ends the answer; 0 is success.
    fn end(&self) -> Option<i32> {
        let kind = i32::from(self.kind);
        let ends = kind == libc::NLMSG_DONE || kind == libc::NLMSG_ERROR;
        let code = || number(self.body).map_or(0, |code| (code as i32).saturating_neg());
        ends.then(code)
    }
}

/// The messages in a buffer; a truncated one is left out.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = number(bytes)? as usize;
        let kind = short(bytes.get(4..)?)?;
        let sequence = number(bytes.get(SEQUENCE_AT..)?)?;
        let body = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message {
            kind,
            sequence,
            body,
        })
    })
}

/// Type and value of the attributes in a body; a truncated one is left out.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(short(bytes)?);
        let kind = short(bytes.get(2..)?)? & !TYPE_FLAGS;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of this type.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(found, value)| (found == kind).then_some(value))
}

/// The first 16 bits as a number, in host byte order.
pub fn short(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().copied().map(u16::from_ne_bytes)
}

/// The first 32 bits as a number, in host byte order.
pub fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_ne_bytes)
}

/// The first 64 bits as a number, in host byte order.
pub fn long(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().copied().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let request = Request::new(38, ACK, &[9; 20])
            .attribute(1, b"htb\0")
            .attribute(0x8002, &[1, 2, 3])
            .attribute(3, &[4]);
        let message = messages(&request.0).next().unwrap();
        assert_eq!((message.kind, message.sequence), (38, 0));
        let body = &message.body[20..];
        assert_eq!(attribute(body, 1), Some(&b"htb\0"[..]));
        assert_eq!(attribute(body, 2), Some(&[1, 2, 3][..]));
        assert_eq!(attribute(body, 3), Some(&[4][..]));
        assert_eq!(attribute(body, 4), None);
        assert_eq!(messages(&request.0).count(), 1);
    }

    #[test]
    fn the_end_says_what_was_refused() {
        let end = |kind: i32, body: &[u8]| {
            Message {
                kind: kind as u16,
                sequence: 0,
                body,
            }
            .end()
        };
        assert_eq!(end(libc::NLMSG_DONE, &[]), Some(0));
        assert_eq!(end(libc::NLMSG_ERROR, &[0; 4]), Some(0));
        let refused = (-libc::ENODEV).to_ne_bytes();
        assert_eq!(end(libc::NLMSG_ERROR, &refused), Some(libc::ENODEV));
        assert_eq!(end(libc::NLMSG_DONE, &refused), Some(libc::ENODEV));
        let lowest = i32::MIN.to_ne_bytes();
        assert_eq!(end(libc::NLMSG_ERROR, &lowest), Some(i32::MAX));
        assert_eq!(end(36, &refused), None);
    }

    #[test]
    fn what_is_left_of_an_earlier_request_is_no_answer() {
        let mut header = [0; 16];
        // The loopback interface is the first of each namespace; no other interface has its number.
        let mut loopback = Request::new(18, ACK, &header);
        loopback.0[HEADER_BYTES + 4] = 1;
        header[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
        let mut missing = Request::new(18, ACK, &header);
        let mut conversation = Conversation::open(netlink_sys::protocols::NETLINK_ROUTE).unwrap();
        conversation.socket.send(&loopback.0, 0).unwrap();
        let mut answers = 0;
        let refused = conversation.ask(&mut missing, |_| answers += 1);
        assert_eq!(refused, Err(Unreadable::Refused(libc::ENODEV)));
        assert_eq!(answers, 0);
        conversation.ask(&mut loopback, |_| answers += 1).unwrap();
        assert_eq!(answers, 1);
    }

    #[test]
    fn what_is_cut_off_is_nothing() {
        for bytes in [&[][..], &[8], &[8, 0, 1, 0, 1], &[3, 0, 1, 0], &[0; 4]] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
            assert_eq!(messages(bytes).count(), 0, "{bytes:?}");
        }
        assert_eq!(messages(&[200, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
    }
}
