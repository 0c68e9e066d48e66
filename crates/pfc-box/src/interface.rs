//! One end of the box: whole Ethernet frames in and out of an interface, by `packet(7)`.
//!
//! In front of each frame is the kernel's own header (`PACKET_VNET_HDR`): a frame that the kernel
//! left unsegmented or without checksum passes through as it is; the kernel completes it if the
//! other interface requires that.

use std::ffi::CString;
use std::io;
use std::mem::{self, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use airdma_wire::udp::UDP_LEN;

use crate::error::{ControllerError, Tried};
use crate::frame::TAG_LEN;

/// Length of the kernel's header, a `struct virtio_net_hdr`.
pub const HEADER_LEN: usize = 10;

/// The frame behind the kernel's header.
pub fn ethernet(frame: &[u8]) -> &[u8] {
    frame.get(HEADER_LEN..).unwrap_or_default()
}

/// Bytes of a frame on the cable: an unsegmented one becomes several, each with the headers of the
/// first.
pub fn cable_len(frame: &[u8]) -> usize {
    let len = ethernet(frame).len();
    let Some(header) = frame.first_chunk::<HEADER_LEN>() else {
        return len;
    };
    let word = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    let (segment, headers) = (word(SEGMENT_AT), word(CHECKSUM_BEGINS_AT) + UDP_LEN);
    let payload = len.saturating_sub(headers);
    match header[SEGMENTATION_AT] {
        0 => len,
        _ => len + payload.div_ceil(segment.max(1)).saturating_sub(1) * headers,
    }
}

/// Result of sending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is in flight.
    Yes,
    /// There is no room now.
    Later,
    /// The interface refused it, or its queue dropped it.
    Dropped,
}

/// An interface that passes all its frames to the box.
pub struct Interface {
    socket: OwnedFd,
    name: String,
    index: u32,
    mac: [u8; 6],
    mbit_per_s: Option<u32>,
    buffer: Box<[u8]>,
    missed: u64,
}

impl Interface {
    /// Opens an interface in the network namespace of the calling thread, in promiscuous mode until
    /// dropped.
    pub fn open(name: &str) -> Result<Interface, ControllerError> {
        let index = index_of(name).tried(format!("looking for the interface {name}"))?;
        let socket = socket().tried(format!("opening a packet socket for {name}"))?;
        let fd = socket.as_raw_fd();
        let prepared = prepare(fd, index).and_then(|()| bind(fd, index));
        prepared.tried(format!("listening at {name}"))?;
        let mac = mac_of(fd, name).tried(format!("asking {name} for its address"))?;
        Ok(Interface {
            mbit_per_s: mbit_per_s(fd, name),
            socket,
            name: name.to_owned(),
            index,
            mac,
            buffer: vec![0; TAG_LEN + HEADER_LEN + FRAME_LEN_MAX].into_boxed_slice(),
            missed: 0,
        })
    }

    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Index of the interface.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// MAC address of the interface.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Speed of its cable, if known.
    pub fn mbit_per_s(&self) -> Option<u32> {
        self.mbit_per_s
    }

    /// Descriptor to wait for frames.
    pub fn raw(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The next frame, behind the kernel's header; `None` if there is none.
    ///
    /// # Errors
    /// If the interface is down or gone.
    pub fn receive(&mut self) -> Result<Option<&mut [u8]>, ControllerError> {
        loop {
            match self.take() {
                Ok((from, to)) => return Ok(Some(&mut self.buffer[from..to])),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(None),
                    Some(libc::EINTR) => {}
                    // A frame that does not fit the kernel's header, or is longer than any should
                    // be.
                    Some(libc::EINVAL | libc::EMSGSIZE) => self.missed += 1,
                    _ => return Err(error).tried(format!("receiving from {}", self.name)),
                },
            }
        }
    }

    /// Receives the next frame; returns its position in the buffer.
    fn take(&mut self) -> io::Result<(usize, usize)> {
        let mut auxiliary = Auxiliary([0; 64]);
        let room = &mut self.buffer[TAG_LEN..];
        let mut part = libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        };
        // SAFETY: plain data and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = auxiliary.0.as_mut_ptr().cast();
        message.msg_controllen = auxiliary.0.len();
        // SAFETY: the kernel writes into `room` and `auxiliary`, as far as their lengths allow.
        let len = unsafe { libc::recvmsg(self.raw(), &raw mut message, libc::MSG_DONTWAIT) };
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        if message.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let end = TAG_LEN + len;
        match tag(&message) {
            Some(tag) if len >= HEADER_LEN + ADDRESSES_LEN => {
                put_tag(&mut self.buffer[..end], tag);
                Ok((0, end))
            }
            _ => Ok((TAG_LEN, end)),
        }
    }

    /// Sends a frame, which is behind the kernel's header.
    pub fn send(&self, frame: &[u8]) -> Sent {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the bytes of `frame` may be read.
        let sent = unsafe { libc::send(self.raw(), frame.as_ptr().cast(), frame.len(), flags) };
        if sent >= 0 {
            return Sent::Yes;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Sent::Later,
            _ => Sent::Dropped,
        }
    }

    /// Frames lost so far because they were not received in time.
    pub fn missed(&mut self) -> u64 {
        let mut counted = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes into `counted`, and resets its counters.
        let result = unsafe {
            let to = (&raw mut counted).cast();
            let option = libc::PACKET_STATISTICS;
            libc::getsockopt(self.raw(), libc::SOL_PACKET, option, to, &raw mut len)
        };
        if result == 0 {
            self.missed += u64::from(counted.tp_drops);
        }
        self.missed
    }
}

/// Buffer of control messages, aligned as the kernel requires.
#[repr(align(8))]
struct Auxiliary([u8; 64]);

/// The VLAN tag that the kernel removed from a frame.
fn tag(message: &libc::msghdr) -> Option<[u8; TAG_LEN]> {
    // SAFETY: the kernel filled the control buffer, whose length it wrote into the message;
    // CMSG_FIRSTHDR looks at that.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref()? };
    let is_ours = header.cmsg_level == libc::SOL_PACKET && header.cmsg_type == libc::PACKET_AUXDATA;
    let is_whole = header.cmsg_len >= size_of::<libc::tpacket_auxdata>();
    if !is_ours || !is_whole {
        return None;
    }
    // SAFETY: as long as `cmsg_len` says; any alignment will do.
    let told: libc::tpacket_auxdata = unsafe {
        libc::CMSG_DATA(header)
            .cast::<libc::tpacket_auxdata>()
            .read_unaligned()
    };
    if told.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let is_named = told.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let kind = if is_named { told.tp_vlan_tpid } else { 0x8100 };
    let [[a, b], [c, d]] = [kind, told.tp_vlan_tci].map(u16::to_be_bytes);
    Some([a, b, c, d])
}

/// Inserts a tag behind the addresses of the frame that begins `TAG_LEN` bytes into `room`; the
/// frame then fills `room`.
fn put_tag(room: &mut [u8], tag: [u8; TAG_LEN]) {
    room.copy_within(TAG_LEN..TAG_LEN + HEADER_LEN + ADDRESSES_LEN, 0);
    let at = HEADER_LEN + ADDRESSES_LEN;
    room[at..at + TAG_LEN].copy_from_slice(&tag);
    // Ends of headers, and the start of the checksum, are counted from the beginning of the frame.
    const NEEDS_CHECKSUM: u8 = 1;
    let has_checksum = room[0] & NEEDS_CHECKSUM != 0;
    let offsets = [(HEADERS_END_AT, true), (CHECKSUM_BEGINS_AT, has_checksum)];
    for (at, _) in offsets.into_iter().filter(|(_, is_set)| *is_set) {
        let offset = u16::from_ne_bytes([room[at], room[at + 1]]).wrapping_add(TAG_LEN as u16);
        room[at..at + 2].copy_from_slice(&offset.to_ne_bytes());
    }
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain integers. Protocol 0 receives nothing before the socket is set up.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `socket` just returned it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn prepare(fd: RawFd, index: u32) -> io::Result<()> {
    let yes: libc::c_int = 1;
    set(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &yes)?;
    set(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, &yes)?;
    set(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes)?;
    let membership = libc::packet_mreq {
        mr_ifindex: index.cast_signed(),
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(
        fd,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        &membership,
    )?;
    for (forced, asked) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        set(fd, libc::SOL_SOCKET, forced, &BUFFER_LEN)
            .or_else(|_| set(fd, libc::SOL_SOCKET, asked, &BUFFER_LEN))?;
    }
    Ok(())
}

fn set<T>(fd: RawFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is plain data of the option's type and of `len` bytes.
    let result = unsafe { libc::setsockopt(fd, level, option, (&raw const *value).cast(), len) };
    checked(result)
}

fn bind(fd: RawFd, index: u32) -> io::Result<()> {
    // SAFETY: integers, for which zero is a value.
    let mut name: libc::sockaddr_ll = unsafe { mem::zeroed() };
    name.sll_family = libc::AF_PACKET as libc::sa_family_t;
    name.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    name.sll_ifindex = index.cast_signed();
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `name` is a socket address of `len` bytes.
    checked(unsafe { libc::bind(fd, (&raw const name).cast(), len) })
}

fn index_of(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: a C string that lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: plain data without pointers that are followed, of which all zeros is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(15)) {
        *to = from as libc::c_char;
    }
    request
}

fn mac_of(fd: RawFd, name: &str) -> io::Result<[u8; 6]> {
    let mut request = request(name);
    // SAFETY: the request lives through the call; the kernel writes the address that is read then.
    unsafe {
        checked(libc::ioctl(fd, libc::SIOCGIFHWADDR, &raw mut request))?;
        let address = request.ifr_ifru.ifru_hwaddr.sa_data;
        Ok(std::array::from_fn(|index| address[index] as u8))
    }
}

/// Speed by `ETHTOOL_GSET`, which every driver with a cable supports.
fn mbit_per_s(fd: RawFd, name: &str) -> Option<u32> {
    const GET_SETTINGS: u32 = 1;
    const UNKNOWN: [u32; 3] = [0, 0xffff, u32::MAX];
    // A struct ethtool_cmd: the command first; the speed's halves at bytes 12 and 28.
    let mut settings = [0u32; 11];
    settings[0] = GET_SETTINGS;
    let mut request = request(name);
    request.ifr_ifru.ifru_data = settings.as_mut_ptr().cast();
    // SAFETY: the request and the 44 bytes that it points to live through the call, in which the
    // kernel writes the latter.
    let result = unsafe { libc::ioctl(fd, libc::SIOCETHTOOL, &raw mut request) };
    let half = |at: usize| {
        let bytes = settings[at / 4].to_ne_bytes();
        u32::from(u16::from_ne_bytes([bytes[at % 4], bytes[at % 4 + 1]]))
    };
    let speed = half(28) << 16 | half(12);
    (result == 0 && !UNKNOWN.contains(&speed)).then_some(speed)
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Offsets in the kernel's header: kind of segmentation, length of the headers, length of each
/// segment, and start of the checksum, which is the UDP header.
const SEGMENTATION_AT: usize = 1;
const HEADERS_END_AT: usize = 2;
const SEGMENT_AT: usize = 4;
const CHECKSUM_BEGINS_AT: usize = 6;
/// Length of both addresses of a frame.
const ADDRESSES_LEN: usize = 12;
/// Longest frame that the kernel leaves unsegmented, unless the interface's limit was raised.
const FRAME_LEN_MAX: usize = 65_536 + 64;
/// Socket buffers, for frames that arrive while this process does not run.
const BUFFER_LEN: libc::c_int = 8 << 20;
/// Since Linux 4.20: the socket does not receive frames that it sent.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_nobody_segmented_is_longer_on_the_cable() {
        // UDP behind 34 bytes of headers, in parts of 1,040 bytes.
        let mut header = [0u8; HEADER_LEN];
        header[6..8].copy_from_slice(&34u16.to_ne_bytes());
        let of = |header: [u8; HEADER_LEN], len: usize| {
            cable_len(&[&header[..], &vec![0; len]].concat())
        };
        assert_eq!(of(header, 42 + 5000), 5042);
        header[1] = 5;
        header[4..6].copy_from_slice(&1040u16.to_ne_bytes());
        assert_eq!(of(header, 42 + 1040), 1082);
        assert_eq!(of(header, 42 + 5 * 1040), 5 * 1082);
        assert_eq!(of(header, 42 + 4 * 1040 + 20), 4 * 1082 + 62);
        assert_eq!(of([0xff; HEADER_LEN], 0), 0);
        assert_eq!(cable_len(&[0; 3]), 0);
    }

    #[test]
    fn a_tag_that_the_kernel_took_out_is_put_back() {
        // Checksum needed, header length 54, checksum begins at 34.
        let mut header = [0u8; HEADER_LEN];
        header[0] = 1;
        header[2..4].copy_from_slice(&54u16.to_ne_bytes());
        header[6..8].copy_from_slice(&34u16.to_ne_bytes());
        let frame: Vec<u8> = (0..30).collect();
        let mut room = [&[0xaa; TAG_LEN][..], &header, &frame].concat();
        put_tag(&mut room, [0x81, 0x00, 0x60, 0x05]);
        assert_eq!(room.len(), TAG_LEN + HEADER_LEN + frame.len());
        assert_eq!(room[2..4], 58u16.to_ne_bytes());
        assert_eq!(room[6..8], 38u16.to_ne_bytes());
        let tagged = [&frame[..12], &[0x81, 0x00, 0x60, 0x05], &frame[12..]].concat();
        assert_eq!(ethernet(&room), tagged);
    }
}
