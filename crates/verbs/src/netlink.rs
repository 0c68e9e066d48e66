//! The kernel's answers about RDMA devices by netlink (`NETLINK_RDMA`, `RDMA_NL_NLDEV` of
//! `rdma/rdma_netlink.h`), for airdma's devices: devices, ports, their counters, and the system's
//! modes. Other requests are refused with `EOPNOTSUPP`, as by an older kernel.

use std::ffi::c_int;
use std::mem::zeroed;

use airdma_engine::{DeviceInfo, counters_of};

use crate::errno::Errno;
use crate::sysfs;

/// The longest request that is read: those that are answered are far shorter.
pub const REQUEST_LEN_MAX: usize = 4096;

/// Reads the request that a program sent on its socket, and sends the answer to that.
///
/// # Errors
/// `EINVAL` for what is no request; those of the system.
pub fn answer(fd: c_int, request: &[u8]) -> Result<(), Errno> {
    let devices = airdma_engine::devices().unwrap_or_default();
    let port = port_of(fd)?;
    let reply = reply(request, port, &devices).ok_or(Errno::INVALID)?;
    deliver(port, &reply)
}

/// Kinds of messages, and flags (`netlink(7)`).
const ERROR: u16 = 2;
const DONE: u16 = 3;
const MULTI: u16 = 2;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const HEADER_LEN: usize = 16;

/// The client of these messages, above their commands.
const NLDEV: u16 = 5 << 10;
const GET: u16 = 1;
const PORT_GET: u16 = 5;
const SYS_GET: u16 = 6;
const RES_GET: u16 = 9;
const STAT_GET: u16 = 17;

/// `RDMA_NLDEV_ATTR_*`, in the order of their numbers.
mod attribute {
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const FW_VERSION: u16 = 5;
    pub const NODE_GUID: u16 = 6;
    pub const SYS_IMAGE_GUID: u16 = 7;
    pub const PORT_STATE: u16 = 12;
    pub const PORT_PHYS_STATE: u16 = 13;
    pub const DEV_NODE_TYPE: u16 = 14;
    pub const RES_SUMMARY: u16 = 15;
    pub const NDEV_INDEX: u16 = 50;
    pub const NDEV_NAME: u16 = 51;
    pub const NETNS_MODE: u16 = 66;
    pub const DEV_PROTOCOL: u16 = 67;
    pub const HWCOUNTERS: u16 = 80;
    pub const HWCOUNTER: u16 = 81;
    pub const HWCOUNTER_NAME: u16 = 82;
    pub const HWCOUNTER_VALUE: u16 = 83;
    pub const DEV_DIM: u16 = 84;
    pub const COPY_ON_FORK: u16 = 93;
}

/// The datagrams that answer a request from the socket with that port; `None` if it is no request.
fn reply(request: &[u8], port: u32, devices: &[DeviceInfo]) -> Option<Vec<Vec<u8>>> {
    let half = |at: usize| {
        Some(u16::from_ne_bytes(
            request.get(at..at + 2)?.try_into().ok()?,
        ))
    };
    let (kind, flags) = (half(4)?, half(6)?);
    let sequence = u32::from_ne_bytes(request.get(8..12)?.try_into().ok()?);
    let asked = Asked::parse(request.get(HEADER_LEN..)?);
    let is_dump = flags & DUMP != 0;
    let message = |kind, flags| Message::new(kind, flags, sequence, port);
    let part = |body: &dyn Fn(&mut Message)| {
        let mut message = message(kind, if is_dump { MULTI } else { 0 });
        body(&mut message);
        message.finish()
    };
    let error = |number: c_int| {
        let mut message = message(ERROR, 0);
        message.bytes.extend((-number).to_ne_bytes());
        message.bytes.extend(&request[..HEADER_LEN]);
        message.finish()
    };
    let wanted = devices.iter().filter(|info| asked.means(info));
    let mut out: Vec<Vec<u8>> = match kind.checked_sub(NLDEV) {
        Some(GET) => wanted
            .map(|info| part(&|message| device(message, info)))
            .collect(),
        Some(PORT_GET) => wanted
            .map(|info| part(&|message| port_of_device(message, info)))
            .collect(),
        Some(RES_GET) => wanted
            .map(|info| part(&|message| resources(message, info)))
            .collect(),
        Some(STAT_GET) => wanted
            .map(|info| part(&|message| statistics(message, info)))
            .collect(),
        Some(SYS_GET) => vec![part(&system)],
        _ => return Some(vec![error(libc::EOPNOTSUPP)]),
    };
    if is_dump {
        let mut done = message(DONE, MULTI);
        done.bytes.extend(0_u32.to_ne_bytes());
        out.push(done.finish());
        out = packed(out);
    } else if out.is_empty() {
        out.push(error(libc::ENODEV));
    } else if flags & ACK != 0 {
        out.push(error(0));
    }
    Some(out)
}

/// The part of a dump that a program reads at once: libmnl and iproute2 have a buffer of a page.
const DATAGRAM_LEN_MAX: usize = 4096;

/// Packs messages into as few datagrams as possible: each takes a multiple of its length of the
/// receiver's buffer, and all of a dump wait there.
fn packed(messages: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut datagrams: Vec<Vec<u8>> = Vec::new();
    for message in messages {
        match datagrams.last_mut() {
            Some(last) if last.len() + message.len() <= DATAGRAM_LEN_MAX => last.extend(message),
            _ => datagrams.push(message),
        }
    }
    datagrams
}

/// The device that a request is about; all devices if it names none.
#[derive(Default)]
struct Asked {
    index: Option<u32>,
    name: Option<Vec<u8>>,
}

impl Asked {
    fn parse(mut attributes: &[u8]) -> Asked {
        let mut asked = Asked::default();
        while let Some((head, _)) = attributes.split_at_checked(4) {
            let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
            let Some(value) = attributes.get(4..len) else {
                break;
            };
            match u16::from_ne_bytes([head[2], head[3]]) {
                attribute::DEV_INDEX => {
                    asked.index = value.try_into().ok().map(u32::from_ne_bytes);
                }
                attribute::DEV_NAME => {
                    let name = value.split(|byte| *byte == 0).next();
                    asked.name = name.map(<[u8]>::to_vec);
                }
                _ => {}
            }
            attributes = attributes
                .get(len.next_multiple_of(4)..)
                .unwrap_or_default();
        }
        asked
    }

    fn means(&self, info: &DeviceInfo) -> bool {
        self.index.is_none_or(|index| index == info.interface_index)
            && self
                .name
                .as_deref()
                .is_none_or(|name| name == info.name.as_bytes())
    }
}

fn names(message: &mut Message, info: &DeviceInfo) {
    message.put(attribute::DEV_INDEX, &info.interface_index.to_ne_bytes());
    message.text(attribute::DEV_NAME, &info.name);
}

fn device(message: &mut Message, info: &DeviceInfo) {
    const PORTS: u32 = 1;
    const NODE_TYPE_CA: u8 = 1;
    names(message, info);
    message.put(attribute::PORT_INDEX, &PORTS.to_ne_bytes());
    message.text(attribute::FW_VERSION, env!("CARGO_PKG_VERSION"));
    message.put(attribute::NODE_GUID, &info.guid.to_ne_bytes());
    message.put(attribute::SYS_IMAGE_GUID, &info.guid.to_ne_bytes());
    message.put(attribute::DEV_NODE_TYPE, &[NODE_TYPE_CA]);
    message.text(attribute::DEV_PROTOCOL, "roce");
    message.put(attribute::DEV_DIM, &[0]);
}

fn port_of_device(message: &mut Message, info: &DeviceInfo) {
    // As in sysfs: state and physical state.
    let (state, phys_state) = if info.up { (4, 5) } else { (1, 3) };
    names(message, info);
    message.put(attribute::PORT_INDEX, &1_u32.to_ne_bytes());
    message.put(attribute::PORT_STATE, &[state]);
    message.put(attribute::PORT_PHYS_STATE, &[phys_state]);
    message.put(attribute::NDEV_INDEX, &info.interface_index.to_ne_bytes());
    message.text(attribute::NDEV_NAME, &info.interface);
}

/// Objects belong to processes, which report no count of them.
fn resources(message: &mut Message, info: &DeviceInfo) {
    names(message, info);
    message.nest(attribute::RES_SUMMARY, |_| ());
}

fn statistics(message: &mut Message, info: &DeviceInfo) {
    names(message, info);
    message.put(attribute::PORT_INDEX, &1_u32.to_ne_bytes());
    let counters = sysfs::hw_counters(&counters_of(info));
    // The list's own header.
    let room = DATAGRAM_LEN_MAX - message.bytes.len() - 4;
    message.nest(attribute::HWCOUNTERS, |message| {
        for (name, value) in fitting(&counters, room) {
            message.nest(attribute::HWCOUNTER, |message| {
                message.text(attribute::HWCOUNTER_NAME, name);
                message.put(attribute::HWCOUNTER_VALUE, &value.to_ne_bytes());
            });
        }
    });
}

/// The counters that fit into `room` bytes, in their order: all that are not 0 come before any that
/// is. The kernel sends the counters of a port in one message, and iproute2 reads a page; sysfs has
/// them all.
fn fitting(
    counters: &[(&'static str, u64)],
    mut room: usize,
) -> impl Iterator<Item = (&'static str, u64)> {
    let mut fits = vec![false; counters.len()];
    for counted in [true, false] {
        for ((name, value), fits) in counters.iter().zip(&mut fits) {
            // Headers of the nest, the name and the value; the name with its NUL, in whole words.
            let len = 12 + (name.len() + 1).next_multiple_of(4) + size_of::<u64>();
            if (*value != 0) == counted && len <= room {
                room -= len;
                *fits = true;
            }
        }
    }
    let kept = counters.iter().zip(fits).filter(|(_, fits)| *fits);
    kept.map(|(counter, _)| *counter)
}

/// A device is seen in its own network namespace only; registered memory is not pinned, so forks
/// copy it.
fn system(message: &mut Message) {
    message.put(attribute::NETNS_MODE, &[0]);
    message.put(attribute::COPY_ON_FORK, &[1]);
}

/// A message as it grows: its header, then attributes, each with its length and type before it, to
/// a multiple of four bytes.
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(kind: u16, flags: u16, sequence: u32, port: u32) -> Message {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(port.to_ne_bytes());
        Message { bytes }
    }

    fn put(&mut self, kind: u16, value: &[u8]) {
        self.attribute(kind, |message| message.bytes.extend(value));
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, |message| {
            message.bytes.extend(value.as_bytes());
            message.bytes.push(0);
        });
    }

    fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Message)) {
        const NESTED: u16 = 1 << 15;
        self.attribute(kind | NESTED, body);
    }

    fn attribute(&mut self, kind: u16, body: impl FnOnce(&mut Message)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend(kind.to_ne_bytes());
        body(self);
        let len = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes
    }
}

/// The address of a netlink socket, which gets one if it has none.
fn port_of(fd: c_int) -> Result<u32, Errno> {
    // SAFETY: all zeros is a valid address; the call gets its length.
    unsafe {
        let mut address: libc::sockaddr_nl = zeroed();
        for _ in 0..2 {
            let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
            if libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) != 0 {
                return Err(Errno::current());
            }
            if address.nl_pid != 0 {
                return Ok(address.nl_pid);
            }
            address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
            if libc::bind(fd, (&raw const address).cast(), len) != 0 {
                return Err(Errno::current());
            }
        }
    }
    Err(Errno(libc::EADDRNOTAVAIL))
}

/// Sends datagrams to the socket with that port.
fn deliver(port: u32, datagrams: &[Vec<u8>]) -> Result<(), Errno> {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: three integers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_USERSOCK) };
    if fd < 0 {
        return Err(Errno::current());
    }
    // SAFETY: the descriptor was just made, and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_nl = unsafe { zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_pid = port;
    for datagram in datagrams {
        // SAFETY: the datagram and the address, with their lengths.
        let sent = unsafe {
            libc::sendto(
                socket.as_raw_fd(),
                datagram.as_ptr().cast(),
                datagram.len(),
                libc::MSG_DONTWAIT,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_nl>() as libc::socklen_t,
            )
        };
        if sent < 0 {
            return Err(Errno::current());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn request(kind: u16, flags: u16) -> Vec<u8> {
        let mut message = Message::new(kind, flags, 7, 0);
        message.put(attribute::DEV_INDEX, &[1, 0, 0, 0]);
        message.finish()
    }

    fn kind_of(message: &[u8]) -> u16 {
        u16::from_ne_bytes([message[4], message[5]])
    }

    #[test]
    fn an_empty_dump_is_done_and_a_missing_device_is_an_error() {
        let dump = reply(&request(NLDEV | GET, DUMP), 5, &[]).unwrap();
        assert_eq!(
            dump.iter().map(|one| kind_of(one)).collect::<Vec<_>>(),
            [DONE]
        );
        let single = reply(&request(NLDEV | GET, ACK), 5, &[]).unwrap();
        assert_eq!(kind_of(&single[0]), ERROR);
        assert_eq!(single[0][16..20], (-libc::ENODEV).to_ne_bytes());
        // The sequence number and the port are the asker's.
        assert_eq!((single[0][8], single[0][12]), (7, 5));
    }

    #[test]
    fn a_dump_is_packed_in_order_into_datagrams_of_a_page() {
        let messages: Vec<Vec<u8>> = (0..200).map(|number| vec![number; 100]).collect();
        let datagrams = packed(messages.clone());
        assert_eq!(datagrams.concat(), messages.concat());
        assert_eq!(datagrams.len(), 5);
        assert!(datagrams.iter().all(|one| one.len() <= DATAGRAM_LEN_MAX));
        // One that is longer goes alone.
        assert_eq!(
            packed(vec![vec![1; 100], vec![2; 5000], vec![3; 100]]).len(),
            3
        );
    }

    #[test]
    fn counted_events_come_first_where_room_is_short() {
        let counters = [("one", 0), ("two", 1), ("three", 0), ("four", 2)];
        let kept = |room| fitting(&counters, room).collect::<Vec<_>>();
        assert_eq!(kept(1000), counters);
        // 24 bytes for the short names, 28 for the longer ones.
        assert_eq!(kept(24 + 28 + 24), [("one", 0), ("two", 1), ("four", 2)]);
        assert_eq!(kept(24 + 28), [("two", 1), ("four", 2)]);
        assert_eq!(kept(0), []);
        let mut message = Message::new(NLDEV | STAT_GET, 0, 7, 5);
        message.nest(attribute::HWCOUNTERS, |message| {
            message.nest(attribute::HWCOUNTER, |message| {
                message.text(attribute::HWCOUNTER_NAME, "four");
                message.put(attribute::HWCOUNTER_VALUE, &2_u64.to_ne_bytes());
            });
        });
        assert_eq!(message.finish().len(), HEADER_LEN + 4 + 28);
    }

    #[test]
    fn what_is_not_known_is_refused_and_what_is_no_request_too() {
        for kind in [NLDEV | 2, NLDEV | 1023, 0, 4 << 10, 6 << 10, u16::MAX] {
            let refused = reply(&request(kind, 0), 5, &[]).unwrap();
            assert_eq!(
                refused[0][16..20],
                (-libc::EOPNOTSUPP).to_ne_bytes(),
                "{kind}"
            );
        }
        let whole = request(NLDEV | SYS_GET, ACK);
        for len in 0..HEADER_LEN {
            assert_eq!(reply(&whole[..len], 5, &[]), None);
        }
        for len in HEADER_LEN..whole.len() {
            assert_eq!(reply(&whole[..len], 5, &[]).unwrap().len(), 2);
        }
        // An attribute that claims to be shorter than its own header.
        let mut short = whole;
        short[16..18].copy_from_slice(&2_u16.to_ne_bytes());
        assert_eq!(reply(&short, 5, &[]).unwrap().len(), 2);
    }
}
