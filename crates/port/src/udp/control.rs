//! Control messages: what travels beside a datagram through `sendmsg` and `recvmsg`.

use std::mem::{MaybeUninit, size_of};

/// Room for the control messages of one send or receive: at most four of them, each a header of 16
/// bytes and an integer padded to 8.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct ControlBuffer([u8; CONTROL_ROOM]);

/// Bytes to offer the kernel for the control messages it writes.
pub(super) const CONTROL_ROOM: usize = 128;

impl ControlBuffer {
    pub(crate) const fn zeroed() -> Self {
        ControlBuffer([0; CONTROL_ROOM])
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// Writes control messages one behind the other.
pub(crate) struct ControlWriter<'a> {
    buffer: &'a mut ControlBuffer,
    len: usize,
}

impl<'a> ControlWriter<'a> {
    pub(crate) fn new(buffer: &'a mut ControlBuffer) -> Self {
        ControlWriter { buffer, len: 0 }
    }

    /// Adds one message with the bytes of an integer as its value.
    pub(crate) fn push<const N: usize>(
        &mut self,
        level: libc::c_int,
        kind: libc::c_int,
        value: [u8; N],
    ) {
        let end = self.len + space(N);
        assert!(
            end <= CONTROL_ROOM,
            "the control buffer holds every message a send needs"
        );
        let message = &mut self.buffer.0[self.len..end];
        // The kernel's layout of a header: its length with the value, level, kind.
        let head = size_of::<usize>();
        message[..head].copy_from_slice(&(HEADER_LEN + N).to_ne_bytes());
        message[head..head + 4].copy_from_slice(&level.to_ne_bytes());
        message[head + 4..head + 8].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER_LEN..HEADER_LEN + N].copy_from_slice(&value);
        self.len = end;
    }

    /// Bytes written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// The kernel's information about a received buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Size of the datagrams coalesced into the buffer; 0 when it holds one.
    pub(super) segment: usize,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// IPv6 only, 20 bits.
    pub(super) flow_label: u32,
}

impl Arrival {
    /// Reads the first `len` bytes of a buffer that `recvmmsg` filled in. Whatever is there, this
    /// neither fails nor reads beyond it.
    pub(super) fn parse(buffer: &ControlBuffer, len: usize) -> Self {
        let mut arrival = Arrival::default();
        let mut rest = &buffer.0[..len.min(CONTROL_ROOM)];
        while let Some((head, _)) = rest.split_first_chunk::<HEADER_LEN>() {
            let (length, ids) = head.split_at(size_of::<usize>());
            let length = usize::from_ne_bytes(length.try_into().unwrap_or_default());
            let Some(value) = rest.get(HEADER_LEN..length) else {
                break;
            };
            let level = libc::c_int::from_ne_bytes([ids[0], ids[1], ids[2], ids[3]]);
            let kind = libc::c_int::from_ne_bytes([ids[4], ids[5], ids[6], ids[7]]);
            arrival.note(level, kind, value);
            rest = rest
                .get(HEADER_LEN + align(value.len())..)
                .unwrap_or_default();
        }
        arrival
    }

    fn note(&mut self, level: libc::c_int, kind: libc::c_int, value: &[u8]) {
        // The kernel gives IP_TOS as one byte and the others as an int.
        let number = match *value {
            [byte] => i32::from(byte),
            [a, b, c, d, ..] => i32::from_ne_bytes([a, b, c, d]),
            _ => return,
        };
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => self.segment = usize::try_from(number).unwrap_or(0),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.tos = number as u8;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                self.ttl = number as u8;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                self.flow_label = u32::from_be(number as u32) & FLOW_LABEL_MASK;
            }
            _ => {}
        }
    }
}

/// The flow label's part of the flow information; the rest is the traffic class.
pub(super) const FLOW_LABEL_MASK: u32 = 0x000f_ffff;

/// A message header that points at nothing.
// SAFETY: integers and null pointers; all zero is a value of each of them.
pub(crate) const EMPTY_HEADER: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };

/// A message's header: its length as a word, then level and kind.
const HEADER_LEN: usize = align(size_of::<usize>() + 8);

const _: () = assert!(size_of::<libc::cmsghdr>() == size_of::<usize>() + 8);

/// Messages begin at multiples of a word.
const fn align(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

const fn space(value_len: usize) -> usize {
    HEADER_LEN + align(value_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut buffer = ControlBuffer::zeroed();
        let mut writer = ControlWriter::new(&mut buffer);
        writer.push(libc::SOL_UDP, libc::UDP_GRO, 1040_i32.to_ne_bytes());
        writer.push(libc::IPPROTO_IP, libc::IP_TOS, [0x6b]);
        writer.push(libc::IPPROTO_IP, libc::IP_TTL, 61_i32.to_ne_bytes());
        let len = writer.len();
        assert_eq!(
            Arrival::parse(&buffer, len),
            Arrival {
                segment: 1040,
                tos: 0x6b,
                ttl: 61,
                flow_label: 0,
            }
        );
    }

    #[test]
    fn the_layout_is_that_of_the_c_library() {
        // SAFETY: pure computations.
        let (space_of_short, space_of_int, len_of_nothing) =
            unsafe { (libc::CMSG_SPACE(2), libc::CMSG_SPACE(4), libc::CMSG_LEN(0)) };
        assert_eq!(space(2), space_of_short as usize);
        assert_eq!(space(4), space_of_int as usize);
        assert_eq!(HEADER_LEN, len_of_nothing as usize);
    }

    #[test]
    fn nonsense_is_read_without_harm() {
        for fill in [0x00, 0x01, 0x0f, 0x11, 0x18, 0x7f, 0x80, 0xff] {
            for len in 0..=CONTROL_ROOM + 8 {
                let _ = Arrival::parse(&ControlBuffer([fill; CONTROL_ROOM]), len);
            }
        }
        // A length that would wrap around when rounded up.
        let mut buffer = ControlBuffer::zeroed();
        buffer.0[..8].copy_from_slice(&usize::MAX.to_ne_bytes());
        assert_eq!(Arrival::parse(&buffer, CONTROL_ROOM), Arrival::default());
    }
}
