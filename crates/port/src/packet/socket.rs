//! Sockets of `packet(7)` for one interface and one family, and the UDP sockets that keep the
//! kernel quiet.

use std::io;
use std::mem::size_of;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;

use airdma_wire::ROCE_PORT;
use libc::{c_int, sock_filter};

use super::frame::{ETHERNET_LEN, HEADER_LEN_V4, HEADER_LEN_V6};
use crate::udp::address::SocketAddress;
use crate::udp::control::EMPTY_HEADER;
use crate::{BindError, PortCounters, TransmitBatch, descriptors};

/// Frames offered to the kernel at once.
pub(super) const SLOTS: usize = 8;
/// Frames per `sendmmsg`.
pub(super) const MESSAGES_MAX: usize = 64;
/// Longest frame that is taken: an IP packet of 64 KiB that the sender's kernel has not segmented.
pub(super) const FRAME_LEN_MAX: usize = ETHERNET_LEN + (1 << 16);

const RECEIVE_BUFFER_BYTES: c_int = 8 << 20;

/// `struct virtio_net_hdr`: what travels beside a frame.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Beside {
    flags: u8,
    segmentation: u8,
    header_len: u16,
    segment: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

/// linux/virtio_net.h
const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;
const SEGMENTATION_NONE: u8 = 0;
const SEGMENTATION_UDP: u8 = 5;
/// Where the UDP header has its checksum.
const UDP_CHECKSUM_AT: u16 = 6;

/// A received frame.
pub(super) struct Frame<'a> {
    pub(super) bytes: &'a [u8],
    /// The interface that the kernel gave it to: that of a VLAN, for a frame with a tag.
    pub(super) interface_index: u32,
    /// Whether the frame was sent to the Ethernet address of the interface.
    pub(super) is_for_us: bool,
    /// The kernel vouches for the UDP checksum, or it is not filled in yet.
    pub(super) checksum_known: bool,
    /// Bytes of UDP payload in each datagram of the frame, but for the last; 0 for one datagram.
    pub(super) segment: usize,
    /// The frame did not fit its buffer, or is segmented by a protocol other than UDP.
    pub(super) truncated: bool,
}

/// What became of frames.
pub(super) enum Sent {
    /// The kernel accepted this many, from the first on.
    Frames(usize),
    /// The kernel accepts none now.
    Busy,
    /// The kernel will never accept the first, for this `errno`.
    Refused(i32),
}

/// Sends and receives the frames of one family.
pub(super) struct FrameSocket {
    fd: OwnedFd,
    /// Ethernet address of the interface.
    pub(super) ethernet: [u8; 6],
    /// Longest IP packet of the interface.
    pub(super) mtu: usize,
    outgoing: Beside,
    buffers: Box<[u8]>,
    slots: Box<[Slot]>,
    headers: Box<[libc::mmsghdr]>,
    parts: Box<[[libc::iovec; 2]]>,
    messages: Box<[libc::mmsghdr]>,
}

// SAFETY: the raw pointers are written and used within one call of `fetch` or `send`, and never
// read after it; nothing in here is tied to a thread.
unsafe impl Send for FrameSocket {}

#[derive(Clone, Copy)]
struct Slot {
    beside: Beside,
    name: libc::sockaddr_ll,
    parts: [libc::iovec; 2],
}

const NO_PART: libc::iovec = libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

impl FrameSocket {
    /// A socket for the family of `address`.
    pub(super) fn open(address: IpAddr, interface_index: u32) -> Result<Self, BindError> {
        let failed = |call| {
            move |source: io::Error| match source.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => BindError::RawNotPermitted,
                _ => BindError::System {
                    call,
                    address,
                    source,
                },
            }
        };
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Protocol 0 receives nothing, until the filter is there.
        // SAFETY: plain integers.
        let fd = descriptors::open(|| unsafe { libc::socket(libc::AF_PACKET, kind, 0) });
        let fd = fd.map_err(failed("socket(AF_PACKET)"))?;
        let filter: &[sock_filter] = match address {
            IpAddr::V4(_) => &FILTER_V4,
            IpAddr::V6(_) => &FILTER_V6,
        };
        attach_filter(&fd, filter).map_err(failed("setsockopt(SO_ATTACH_FILTER)"))?;
        set(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)
            .map_err(failed("setsockopt(PACKET_VNET_HDR)"))?;
        if set(
            &fd,
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            RECEIVE_BUFFER_BYTES,
        )
        .is_err()
        {
            // A smaller buffer costs speed, not function.
            let _ = set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER_BYTES);
        }
        let protocol = match address {
            IpAddr::V4(_) => libc::ETH_P_IP,
            IpAddr::V6(_) => libc::ETH_P_IPV6,
        };
        let ethernet = bind(&fd, interface_index, protocol).map_err(failed("bind(AF_PACKET)"))?;
        let Some(ethernet) = ethernet else {
            return Err(BindError::NotEthernet { address });
        };
        let mtu = mtu(&fd, interface_index).map_err(failed("ioctl(SIOCGIFMTU)"))?;
        let checksum_start = match address {
            IpAddr::V4(_) => HEADER_LEN_V4,
            IpAddr::V6(_) => HEADER_LEN_V6,
        } - 8;
        // SAFETY: integers, for which zero is a value.
        let name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let slot = Slot {
            beside: Beside::default(),
            name,
            parts: [NO_PART; 2],
        };
        Ok(FrameSocket {
            fd,
            ethernet,
            mtu,
            outgoing: Beside {
                flags: NEEDS_CHECKSUM,
                checksum_start: checksum_start as u16,
                checksum_offset: UDP_CHECKSUM_AT,
                ..Beside::default()
            },
            buffers: vec![0; SLOTS * FRAME_LEN_MAX].into_boxed_slice(),
            slots: vec![slot; SLOTS].into_boxed_slice(),
            headers: vec![EMPTY_HEADER; SLOTS].into_boxed_slice(),
            parts: vec![[NO_PART; 2]; MESSAGES_MAX].into_boxed_slice(),
            messages: vec![EMPTY_HEADER; MESSAGES_MAX].into_boxed_slice(),
        })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Frames that the kernel dropped here since the last call.
    pub(super) fn take_drops(&mut self) -> u64 {
        let mut statistics = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes into `statistics`.
        let result = unsafe {
            libc::getsockopt(
                self.descriptor(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut len,
            )
        };
        if result == 0 {
            statistics.tp_drops.into()
        } else {
            0
        }
    }

    /// Sends the first `planned` packets of a batch, whose headers have this length.
    ///
    /// # Errors
    /// When the socket is broken.
    pub(super) fn send(
        &mut self,
        batch: &TransmitBatch,
        planned: usize,
        header_len: usize,
    ) -> io::Result<Sent> {
        let planned = planned.min(MESSAGES_MAX);
        let messages = self.messages.iter_mut().zip(self.parts.iter_mut());
        for (index, (message, parts)) in messages.enumerate().take(planned) {
            let frame = batch.frame(index, header_len);
            *parts = [
                libc::iovec {
                    iov_base: (&raw mut self.outgoing).cast(),
                    iov_len: size_of::<Beside>(),
                },
                libc::iovec {
                    iov_base: frame.as_ptr().cast_mut().cast(),
                    iov_len: frame.len(),
                },
            ];
            message.msg_hdr.msg_iov = parts.as_mut_ptr();
            message.msg_hdr.msg_iovlen = parts.len();
        }
        // SAFETY: the first `planned` messages were pointed just now at `self.parts`, those at
        // `self.outgoing` and the batch, with their true lengths; none is moved or written before
        // the call returns.
        let sent = unsafe {
            libc::sendmmsg(
                self.fd.as_raw_fd(),
                self.messages.as_mut_ptr(),
                planned as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        match usize::try_from(sent) {
            Ok(0) => Ok(Sent::Busy),
            Ok(sent) => Ok(Sent::Frames(sent)),
            Err(_) => {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => Ok(Sent::Busy),
                    Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => Err(error),
                    errno => Ok(Sent::Refused(errno.unwrap_or(libc::EIO))),
                }
            }
        }
    }

    /// Lets the kernel fill buffers; returns how many it did.
    ///
    /// # Errors
    /// When the socket is broken.
    pub(super) fn fetch(&mut self, counters: &mut PortCounters) -> io::Result<usize> {
        let buffers = self.buffers.chunks_exact_mut(FRAME_LEN_MAX);
        let slots = self.headers.iter_mut().zip(self.slots.iter_mut());
        for ((header, slot), buffer) in slots.zip(buffers) {
            slot.parts = [
                libc::iovec {
                    iov_base: (&raw mut slot.beside).cast(),
                    iov_len: size_of::<Beside>(),
                },
                libc::iovec {
                    iov_base: buffer.as_mut_ptr().cast(),
                    iov_len: buffer.len(),
                },
            ];
            let header = &mut header.msg_hdr;
            header.msg_name = (&raw mut slot.name).cast();
            header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            header.msg_iov = slot.parts.as_mut_ptr();
            header.msg_iovlen = 2;
            header.msg_flags = 0;
        }
        // SAFETY: the headers were pointed just now at `self.slots` and `self.buffers`, with their
        // true lengths; neither is moved or used before the call returns.
        let filled = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                SLOTS as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        usize::try_from(filled).or_else(|_| {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => Err(error),
                // The interface went down, or this kernel cannot describe how a frame must be cut.
                _ => {
                    counters.rx_errors += 1;
                    Ok(0)
                }
            }
        })
    }

    /// The `index`-th frame of the last [`FrameSocket::fetch`].
    pub(super) fn frame(&self, index: usize) -> Frame<'_> {
        let (header, slot) = (&self.headers[index], &self.slots[index]);
        let start = index * FRAME_LEN_MAX;
        let len = (header.msg_len as usize).saturating_sub(size_of::<Beside>());
        let beside = slot.beside;
        let (segment, is_known) = match beside.segmentation {
            SEGMENTATION_NONE => (0, true),
            SEGMENTATION_UDP => (usize::from(beside.segment), beside.segment > 0),
            _ => (0, false),
        };
        Frame {
            bytes: &self.buffers[start..start + len.min(FRAME_LEN_MAX)],
            interface_index: slot.name.sll_ifindex.cast_unsigned(),
            is_for_us: slot.name.sll_pkttype == libc::PACKET_HOST,
            checksum_known: beside.flags & (NEEDS_CHECKSUM | CHECKSUM_VALID) != 0,
            segment,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 || !is_known,
        }
    }
}

/// Takes the UDP port of RoCEv2 at an address, so that no other program has it and the kernel
/// refuses no datagram; all that comes is dropped there.
pub(super) fn reserve(address: IpAddr, interface_index: u32) -> Result<OwnedFd, BindError> {
    let failed = |call| {
        move |source| BindError::System {
            call,
            address,
            source,
        }
    };
    let family = match address {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain integers.
    let fd = descriptors::open(|| unsafe { libc::socket(family, kind, 0) });
    let fd = fd.map_err(failed("socket"))?;
    attach_filter(&fd, &FILTER_NOTHING).map_err(failed("setsockopt(SO_ATTACH_FILTER)"))?;
    if address.is_ipv6() {
        set(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)
            .map_err(failed("setsockopt(IPV6_V6ONLY)"))?;
    }
    let name = SocketAddress::new(address, ROCE_PORT, interface_index);
    // SAFETY: `name` is a socket address of `len` bytes.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), name.len()) };
    if result == 0 {
        Ok(fd)
    } else {
        let source = io::Error::last_os_error();
        Err(BindError::refused(address, ROCE_PORT, source))
    }
}

/// Begins to receive what comes to an interface; returns its Ethernet address, if it has one.
fn bind(fd: &OwnedFd, interface_index: u32, protocol: c_int) -> io::Result<Option<[u8; 6]>> {
    // SAFETY: integers, for which zero is a value.
    let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    name.sll_family = libc::AF_PACKET as libc::sa_family_t;
    name.sll_protocol = (protocol as u16).to_be();
    name.sll_ifindex = interface_index.cast_signed();
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `name` is a socket address of `len` bytes.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel writes at most `len` bytes into `name`.
    let result = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut name).cast(), &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let [a, b, c, d, e, f, ..] = name.sll_addr;
    let is_ethernet = name.sll_hatype == libc::ARPHRD_ETHER && name.sll_halen == 6;
    Ok(is_ethernet.then_some([a, b, c, d, e, f]))
}

fn mtu(fd: &OwnedFd, interface_index: u32) -> io::Result<usize> {
    // SAFETY: integers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most IF_NAMESIZE bytes, which the field has.
    let name = unsafe { libc::if_indextoname(interface_index, request.ifr_name.as_mut_ptr()) };
    if name.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the request is an `ifreq`, as SIOCGIFMTU wants.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFMTU has filled in this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

fn attach_filter(fd: &OwnedFd, filter: &[sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// `T` is the type that the option has: an int, or a struct of integers.
fn set<T: Copy>(fd: &OwnedFd, level: c_int, option: c_int, value: T) -> io::Result<()> {
    // SAFETY: the kernel reads at most the bytes of `value`, and, of a filter program, the
    // instructions it points at.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

const fn step(code: u32, k: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: yes,
        jf: no,
        k,
    }
}

const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_WORD_BEHIND: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
const LOAD_HEADER_LEN: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const PORT: u32 = ROCE_PORT as u32;

/// Datagrams to the port of RoCEv2, with the first fragments of longer ones: those are counted.
const FILTER_V4: [sock_filter; 9] = [
    step(LOAD_BYTE, 23, 0, 0),
    step(IF_EQUAL, 17, 0, 6),
    step(LOAD_WORD, 20, 0, 0),
    step(IF_SET, 0x1fff, 4, 0),
    step(LOAD_HEADER_LEN, 14, 0, 0),
    step(LOAD_WORD_BEHIND, 16, 0, 0),
    step(IF_EQUAL, PORT, 0, 1),
    step(RETURN, u32::MAX, 0, 0),
    step(RETURN, 0, 0, 0),
];

/// As [`FILTER_V4`], for IPv6; a fragment header must be the first extension header.
const FILTER_V6: [sock_filter; 13] = [
    step(LOAD_BYTE, 20, 0, 0),
    step(IF_EQUAL, 17, 0, 2),
    step(LOAD_WORD, 56, 0, 0),
    step(IF_EQUAL, PORT, 7, 8),
    step(IF_EQUAL, 44, 0, 7),
    step(LOAD_BYTE, 54, 0, 0),
    step(IF_EQUAL, 17, 0, 5),
    step(LOAD_WORD, 56, 0, 0),
    step(IF_SET, 0xfff8, 3, 0),
    step(LOAD_WORD, 64, 0, 0),
    step(IF_EQUAL, PORT, 0, 1),
    step(RETURN, u32::MAX, 0, 0),
    step(RETURN, 0, 0, 0),
];

const FILTER_NOTHING: [sock_filter; 1] = [step(RETURN, 0, 0, 0)];
