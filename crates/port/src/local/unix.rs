//! Unix sockets that keep the bounds of messages (`SOCK_SEQPACKET`), and descriptors that travel
//! with them. None of the calls blocks.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::descriptors;

/// Descriptors that a message may carry.
pub(super) const DESCRIPTORS_MAX: usize = 2;

/// Connections that may wait to be accepted.
const BACKLOG: libc::c_int = 16;

/// Room for a control message with [`DESCRIPTORS_MAX`] descriptors.
#[repr(C, align(8))]
struct Control([u8; 32]);

const HEADER_LEN: usize = size_of::<libc::cmsghdr>();
const _: () = assert!(HEADER_LEN + DESCRIPTORS_MAX * size_of::<RawFd>() <= size_of::<Control>());

/// A socket that listens at a path.
pub(super) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    let (name, len) = address(path)?;
    // SAFETY: a socket address and its length.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len) })?;
    // SAFETY: plain integers.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

/// A connection to the socket that listens at a path.
pub(super) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    let (name, len) = address(path)?;
    // SAFETY: a socket address and its length.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), len) })?;
    Ok(socket)
}

/// The next connection that waits; `None` if there is none.
pub(super) fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    descriptors::accept(listener).ok()
}

/// The user that the other end of a connection belonged to when it was made.
pub fn peer_user(connection: &impl AsRawFd) -> io::Result<libc::uid_t> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room for the struct, and its length.
    check(unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut len,
        )
    })?;
    // SAFETY: three integers, of which every value is one.
    Ok(unsafe { credentials.assume_init() }.uid)
}

/// Sends one message.
pub(super) fn send(connection: &OwnedFd, bytes: &[u8], with: &[RawFd]) -> io::Result<()> {
    assert!(with.len() <= DESCRIPTORS_MAX, "too many descriptors");
    let mut control = Control([0; size_of::<Control>()]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut message = header(&mut part);
    if !with.is_empty() {
        let len = HEADER_LEN + size_of_val(with);
        control.0[..8].copy_from_slice(&len.to_ne_bytes());
        control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
        control.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
        for (at, fd) in with.iter().enumerate() {
            control.0[HEADER_LEN + 4 * at..][..4].copy_from_slice(&fd.to_ne_bytes());
        }
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = len.next_multiple_of(8);
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the parts live until the call returns, and the kernel only reads them.
    let sent = unsafe { libc::sendmsg(connection.as_raw_fd(), &raw const message, flags) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// What [`receive`] found.
pub(super) enum Message {
    /// A message of this many bytes, and its descriptors.
    Whole(usize, Vec<OwnedFd>),
    /// None waits.
    None,
    /// The other end is closed, or sent what is longer than any message.
    Closed,
}

/// Receives one message.
pub(super) fn receive(connection: &OwnedFd, bytes: &mut [u8]) -> Message {
    let mut control = Control([0; size_of::<Control>()]);
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut message = header(&mut part);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the parts live until the call returns, and have the lengths that it is told.
    let got = unsafe { libc::recvmsg(connection.as_raw_fd(), &raw mut message, flags) };
    if got < 0 {
        return if is_open(&io::Error::last_os_error()) {
            Message::None
        } else {
            Message::Closed
        };
    }
    let with = descriptors_of(&control, message.msg_controllen);
    let is_cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    match usize::try_from(got) {
        Ok(len) if len > 0 && !is_cut => Message::Whole(len, with),
        _ => Message::Closed,
    }
}

/// The descriptors that the kernel has installed in this process.
fn descriptors_of(control: &Control, len: usize) -> Vec<OwnedFd> {
    let word = |at: usize| {
        let bytes = control.0.get(at..at + 4)?;
        Some(libc::c_int::from_ne_bytes(bytes.try_into().ok()?))
    };
    let is_rights = word(8) == Some(libc::SOL_SOCKET) && word(12) == Some(libc::SCM_RIGHTS);
    if len < HEADER_LEN || !is_rights {
        return Vec::new();
    }
    let end = word(0).and_then(|end| usize::try_from(end).ok());
    let end = end.unwrap_or(0).min(size_of::<Control>());
    let numbers = (HEADER_LEN..end.saturating_sub(3))
        .step_by(4)
        .filter_map(word);
    numbers
        .map(|fd| {
            // SAFETY: the kernel just made it, and nothing else owns it.
            descriptors::keep_away(unsafe { OwnedFd::from_raw_fd(fd) })
        })
        .collect()
}

/// Whether a connection on which nothing more may come has ended: its other end is closed, or said
/// something all the same, behind which the end would go unseen.
pub(super) fn is_closed(connection: &OwnedFd) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: room for one byte.
    let got = unsafe { libc::recv(connection.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    got >= 0 || !is_open(&io::Error::last_os_error())
}

/// Whether nothing waits, rather than that nothing can come any more.
fn is_open(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn header(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: all zero is a value of this struct of pointers and integers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain integers.
    descriptors::open(|| unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: all zero is a value of this struct of integers.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if bytes.len() >= name.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, &from) in name.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    Ok((name, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
