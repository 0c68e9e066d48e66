//! A Unix socket of packets (`SOCK_SEQPACKET`), which carry descriptors beside their bytes.

use airdma_port::descriptors;
use airdma_preload::Uncancelled;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Most descriptors of one packet. The kernel closes what a hostile sender adds.
pub(crate) const DESCRIPTORS_MAX: usize = 4;

/// One end of a connection, or a socket that listens for some.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

/// A packet that was received.
pub(crate) struct Packet {
    pub(crate) length: usize,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// The process at the other end, as the kernel knows it since the connection was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) process: libc::pid_t,
    pub(crate) user: libc::uid_t,
}

/// Room for the headers and the descriptors of a packet, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

const _: () = assert!(DESCRIPTORS_MAX * size_of::<RawFd>() + 16 <= 64);

impl Socket {
    fn new() -> io::Result<Self> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: plain integers.
        let fd = descriptors::open(|| unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
        Ok(Socket(descriptors::keep_away(fd)))
    }

    /// Connects to the socket at `path`. This and later calls wait for the other end for `time`.
    pub(crate) fn connect(path: &Path, time: Duration) -> io::Result<Self> {
        let socket = Self::new()?;
        socket.limit_wait(time)?;
        let (address, length) = address_of(path)?;
        // SAFETY: an address of that length.
        check(unsafe { libc::connect(socket.fd(), (&raw const address).cast(), length) })?;
        Ok(socket)
    }

    /// Listens at `path`, where nothing may be, for processes of this user.
    pub(crate) fn listen(path: &Path, backlog: libc::c_int) -> io::Result<Self> {
        let socket = Self::new()?;
        let (address, length) = address_of(path)?;
        // SAFETY: plain integers. The file that `bind` makes has the mode of the socket.
        check(unsafe { libc::fchmod(socket.fd(), 0o600) })?;
        // SAFETY: an address of that length.
        check(unsafe { libc::bind(socket.fd(), (&raw const address).cast(), length) })?;
        // SAFETY: plain integers.
        check(unsafe { libc::listen(socket.fd(), backlog) })?;
        Ok(socket)
    }

    /// Waits for a connection.
    pub(crate) fn accept(&self) -> io::Result<Self> {
        // SAFETY: no address is asked for.
        let fd = check(unsafe {
            let none = std::ptr::null_mut();
            libc::accept4(self.fd(), none, std::ptr::null_mut(), libc::SOCK_CLOEXEC)
        })?;
        // SAFETY: the call above just opened it.
        Ok(Socket(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Both ends of a connection.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
        // SAFETY: the call above just opened both.
        let [one, other] = ends.map(|fd| Socket(unsafe { OwnedFd::from_raw_fd(fd) }));
        Ok((one, other))
    }

    pub(crate) fn from_other(fd: OwnedFd) -> Self {
        Socket(descriptors::keep_away(fd))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.0)
    }

    /// Limits how long a call waits for the other end.
    pub(crate) fn limit_wait(&self, time: Duration) -> io::Result<()> {
        let time = libc::timeval {
            tv_sec: time.as_secs() as libc::time_t,
            tv_usec: time.subsec_micros().into(),
        };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            self.set(option, &time)?;
        }
        Ok(())
    }

    fn set<T>(&self, option: libc::c_int, value: &T) -> io::Result<()> {
        let length = size_of::<T>() as libc::socklen_t;
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: a value of that length.
        check(unsafe { libc::setsockopt(self.fd(), libc::SOL_SOCKET, option, value, length) })?;
        Ok(())
    }

    /// The process at the other end.
    pub(crate) fn peer(&self) -> io::Result<Peer> {
        let mut credentials = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: room for the credentials, and their length.
        check(unsafe {
            libc::getsockopt(
                self.fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        })?;
        Ok(Peer {
            process: credentials.pid,
            user: credentials.uid,
        })
    }

    /// Sends one packet; with `waits`, when there is room.
    pub(crate) fn send(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        waits: bool,
    ) -> io::Result<()> {
        let _whole = Uncancelled::new();
        let mut ancillary = Ancillary([0; 64]);
        let mut part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: a header of zeros is one without address and data.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if !descriptors.is_empty() {
            assert!(descriptors.len() <= DESCRIPTORS_MAX, "too many descriptors");
            let length = std::mem::size_of_val(descriptors) as u32;
            header.msg_control = ancillary.0.as_mut_ptr().cast();
            // SAFETY: plain arithmetic; the room is there, by the assertion beside `Ancillary`. The
            // first header lies in it, and the descriptors behind that.
            unsafe {
                header.msg_controllen = libc::CMSG_SPACE(length) as usize;
                let first = libc::CMSG_FIRSTHDR(&raw const header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(length) as usize;
                let room = libc::CMSG_DATA(first).cast::<RawFd>();
                for (index, descriptor) in descriptors.iter().enumerate() {
                    room.add(index).write_unaligned(descriptor.as_raw_fd());
                }
            }
        }
        let flags = libc::MSG_NOSIGNAL | if waits { 0 } else { libc::MSG_DONTWAIT };
        again(|| {
            // SAFETY: the header leads to the bytes and the descriptors, which outlive the call.
            unsafe { libc::sendmsg(self.fd(), &raw const header, flags) }
        })?;
        Ok(())
    }

    /// Receives one packet into `buffer`; with `waits`, when there is one. `None` at the end of the
    /// connection.
    ///
    /// # Errors
    /// `InvalidData` for a packet that is longer than `buffer`. Descriptors are missing where there
    /// were too many, or this process can have no more.
    pub(crate) fn receive(&self, buffer: &mut [u8], waits: bool) -> io::Result<Option<Packet>> {
        let _whole = Uncancelled::new();
        let mut ancillary = Ancillary([0; 64]);
        let mut part = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        // SAFETY: as in `send`.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = ancillary.0.as_mut_ptr().cast();
        // SAFETY: plain arithmetic.
        let room = unsafe { libc::CMSG_SPACE((DESCRIPTORS_MAX * size_of::<RawFd>()) as u32) };
        header.msg_controllen = room as usize;
        let flags = libc::MSG_CMSG_CLOEXEC | if waits { 0 } else { libc::MSG_DONTWAIT };
        let length = again(|| {
            // SAFETY: the header leads to room for bytes and descriptors, which outlives the call.
            unsafe { libc::recvmsg(self.fd(), &raw mut header, flags) }
        })?;
        let descriptors = taken(&header);
        if header.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok((length > 0).then_some(Packet {
            length,
            descriptors,
        }))
    }
}

/// The descriptors that came with a packet.
fn taken(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has filled the header: its control messages lie in `msg_controllen` bytes
    // at `msg_control`. Each descriptor in them is new in this process, and has no other owner.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while !next.is_null() {
            if (*next).cmsg_level == libc::SOL_SOCKET && (*next).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*next).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(next).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    let fd = first.add(index).read_unaligned();
                    descriptors.push(OwnedFd::from_raw_fd(fd));
                }
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    descriptors
}

fn address_of(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: zeros are an address without a name.
    let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = path.as_os_str().as_bytes();
    if name.is_empty() || name.len() >= address.sun_path.len() || name.contains(&0) {
        let message = format!("{}: a socket's path has 1 to 107 bytes", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Repeats a call that a signal interrupts.
fn again(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn descriptors_arrive_beside_the_bytes() {
        let (one, other) = Socket::pair().unwrap();
        let (passed, _) = Socket::pair().unwrap();
        one.send(b"abc", &[passed.as_fd(), one.as_fd()], true)
            .unwrap();
        let mut buffer = [0; 8];
        let packet = other.receive(&mut buffer, true).unwrap().unwrap();
        assert_eq!((packet.length, packet.descriptors.len()), (3, 2));
        assert_eq!(other.peer().unwrap().process, std::process::id() as i32);
        let would_block = other.receive(&mut buffer, false).map(|_| ());
        assert_eq!(would_block.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop((one, packet));
        assert!(other.receive(&mut buffer, true).unwrap().is_none());
    }

    #[test]
    fn a_packet_that_is_too_long_is_an_error() {
        let (one, other) = Socket::pair().unwrap();
        one.send(&[1; 9], &[], true).unwrap();
        let cut = other.receive(&mut [0; 8], true).map(|_| ());
        assert_eq!(cut.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
