//! Netlink messages for what `netlink-packet-route` does not know: HTB, TBF and nftables. Written
//! as bytes, because rates are set hundreds of times a second.

use std::io;

use netlink_sys::{Socket, SocketAddr};

pub const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
pub const ACK: u16 = libc::NLM_F_ACK as u16;
pub const DUMP: u16 = libc::NLM_F_DUMP as u16;
pub const CREATE: u16 = libc::NLM_F_CREATE as u16;
pub const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
pub const APPEND: u16 = libc::NLM_F_APPEND as u16;
const NESTED: u16 = libc::NLA_F_NESTED as u16;
/// Length of a message header: length, type, flags, sequence number, port.
const HEADER_BYTES: usize = 16;
/// Longer than any answer here.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Messages one after the other.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    /// Offset of the last message.
    begins: usize,
    /// Offsets of the open attributes.
    open: Vec<usize>,
    /// Sequence number of the last.
    sequence: u32,
    /// Number of messages that request an acknowledgement.
    acknowledged: usize,
}

impl Messages {
    /// Another one, with the header of its family behind the general one.
    pub fn message(mut self, kind: u16, flags: u16, family_header: &[u8]) -> Messages {
        self.begins = self.bytes.len();
        self.sequence += 1;
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.acknowledged += usize::from(flags & ACK != 0);
        self.bytes.extend(family_header);
        self.pad()
    }

    /// An attribute of the last message.
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Messages {
        let length = (4 + value.len()) as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.pad()
    }

    /// An attribute that is a C string.
    pub fn string(self, kind: u16, value: &str) -> Messages {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// An attribute that is a number in network order, as nftables has them.
    pub fn number(self, kind: u16, value: u32) -> Messages {
        self.attribute(kind, &value.to_be_bytes())
    }

    /// An attribute that holds others.
    pub fn nested(mut self, kind: u16, inside: impl FnOnce(Messages) -> Messages) -> Messages {
        self.open.push(self.bytes.len());
        self = inside(self.attribute(kind | NESTED, &[]));
        let begins = self.open.pop().expect("pushed above");
        let length = (self.bytes.len() - begins) as u16;
        self.bytes[begins..begins + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    fn pad(mut self) -> Messages {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let length = (self.bytes.len() - self.begins) as u32;
        self.bytes[self.begins..self.begins + 4].copy_from_slice(&length.to_ne_bytes());
        self
    }
}

/// A conversation with the kernel about the namespace of the thread that began it.
pub struct Conversation {
    socket: Socket,
    answer: Vec<u8>,
}

impl Conversation {
    /// With this part of the kernel (`NETLINK_ROUTE`, `NETLINK_NETFILTER`).
    pub fn begin(protocol: isize) -> io::Result<Conversation> {
        let socket = Socket::new(protocol)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Conversation {
            socket,
            answer: Vec::with_capacity(ANSWER_BYTES_MAX),
        })
    }

    /// Sends all, and waits until each that wants to be is acknowledged, or one is refused.
    pub fn tell(&mut self, messages: &Messages) -> io::Result<()> {
        self.socket.send(&messages.bytes, 0)?;
        let mut left = messages.acknowledged;
        let mut refused = None;
        while left > 0 {
            for (kind, body) in self.receive()? {
                if i32::from(kind) != libc::NLMSG_ERROR {
                    continue;
                }
                left -= left.min(1);
                let code = number(body, 0).map_or(0, |code| code as i32);
                if code != 0 && refused.is_none() {
                    refused = Some(io::Error::from_raw_os_error(-code));
                    // After a refusal the rest of a transaction may never be answered; what is, is
                    // read before the next.
                    left = 0;
                }
            }
        }
        match refused {
            None => Ok(()),
            Some(error) => {
                self.drain();
                Err(error)
            }
        }
    }

    /// Sends a request for a list; `each` gets the body of every answer.
    pub fn list(&mut self, request: &Messages, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.socket.send(&request.bytes, 0)?;
        loop {
            for (kind, body) in self.receive()? {
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => {
                        let code = number(body, 0).map_or(0, |code| code as i32);
                        return Err(io::Error::from_raw_os_error(-code));
                    }
                    _ => each(body),
                }
            }
        }
    }

    fn receive(&mut self) -> io::Result<impl Iterator<Item = (u16, &[u8])>> {
        self.answer.clear();
        self.socket.recv(&mut self.answer, 0)?;
        Ok(split(&self.answer))
    }

    fn drain(&mut self) {
        loop {
            self.answer.clear();
            if self
                .socket
                .recv(&mut self.answer, libc::MSG_DONTWAIT)
                .is_err()
            {
                return;
            }
        }
    }
}

/// The messages of an answer: type and body.
fn split(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = number(bytes, 0)? as usize;
        let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
        let body = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The attributes of a body: type and value.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]));
        let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]) & !NESTED;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The attribute of this type, if there is one.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(found, value)| (found == kind).then_some(value))
}

/// A number of 32 bits of this host, at this place.
pub fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// A number of 64 bits of this host, at this place.
pub fn long_number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nested_is_found_again() {
        let messages = Messages::default()
            .message(40, ACK, &[9; 20])
            .string(1, "htb")
            .nested(2, |inside| inside.attribute(7, &[1, 2, 3]).number(8, 5))
            .attribute(3, &[4]);
        let (kind, body) = split(&messages.bytes).next().unwrap();
        assert_eq!(kind, 40);
        assert_eq!(body.len() + HEADER_BYTES, messages.bytes.len());
        assert_eq!(attribute(&body[20..], 1), Some(&b"htb\0"[..]));
        let nested = attribute(&body[20..], 2).unwrap();
        assert_eq!(attribute(nested, 7), Some(&[1, 2, 3][..]));
        assert_eq!(attribute(nested, 8), Some(&[0, 0, 0, 5][..]));
        assert_eq!(attribute(&body[20..], 3), Some(&[4][..]));
        assert_eq!(attribute(&body[20..], 4), None);
    }

    #[test]
    fn messages_follow_each_other() {
        let both = Messages::default()
            .message(1, ACK, &[0; 4])
            .attribute(1, &[1])
            .message(2, 0, &[0; 4])
            .attribute(1, &[2]);
        let kinds: Vec<u16> = split(&both.bytes).map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [1, 2]);
        assert_eq!(both.acknowledged, 1);
    }

    #[test]
    fn what_is_cut_off_is_no_attribute() {
        for bytes in [&[][..], &[8], &[8, 0, 1, 0, 1], &[3, 0, 1, 0], &[0; 4]] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
        }
        assert_eq!(split(&[200, 0, 0, 0, 1, 0]).count(), 0);
    }
}
