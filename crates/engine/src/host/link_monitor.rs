//! Notifications of changes at network interfaces, by `rtnetlink(7)`: no privilege, no thread.

use airdma_port::descriptors;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// A socket that gets a message whenever an interface or its addresses change.
///
/// The content is ignored: after a message all properties are read again, so that no change can be
/// missed.
pub struct LinkMonitor(OwnedFd);

/// Most messages discarded at once.
const MESSAGES_MAX: usize = 1 << 16;

/// Offset of the interface's index in messages about links and addresses alike: behind a header of
/// 16 bytes and 4 more.
const INDEX_AT: u32 = 20;

impl LinkMonitor {
    /// Starts to monitor one interface, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system's: descriptors, memory, a sandbox that forbids it.
    pub(crate) fn new(interface_index: u32) -> io::Result<Self> {
        let news = Self::socket()?;
        news.pass_only(interface_index)?;
        news.subscribe()?;
        Ok(news)
    }

    /// Starts to monitor all interfaces, including future ones.
    ///
    /// # Errors
    /// The system's: descriptors, memory, a sandbox that forbids it.
    pub fn of_all() -> io::Result<Self> {
        let news = Self::socket()?;
        news.subscribe()?;
        Ok(news)
    }

    /// The monitor, or none where a sandbox forbids it.
    ///
    /// # Errors
    /// A shortage of descriptors or memory, which passes: a device without a monitor stays so.
    pub(crate) fn unless_forbidden(monitor: io::Result<Self>) -> io::Result<Option<Self>> {
        let is_shortage = |error: &io::Error| {
            matches!(
                error.raw_os_error(),
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
            )
        };
        match monitor {
            Ok(monitor) => Ok(Some(monitor)),
            Err(error) if is_shortage(&error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn socket() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: plain integers.
        let socket = || unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        Ok(LinkMonitor(descriptors::open(socket)?))
    }

    /// Sleeps until something has changed.
    ///
    /// # Errors
    /// Errors of `poll(2)`.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            let mut fd = libc::pollfd {
                fd: self.fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one descriptor, which lives until the call returns.
            if unsafe { libc::poll(&raw mut fd, 1, -1) } < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            } else if self.drain() {
                return Ok(());
            }
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Discards the messages; returns whether there were any.
    pub fn drain(&self) -> bool {
        let mut any = false;
        let lost = self.drain_by_interface(|_| any = true);
        any || lost
    }

    /// Discards the messages, and calls `changed` with the index of the interface of each. True if
    /// messages were lost: then any interface may have changed.
    pub(crate) fn drain_by_interface(&self, mut changed: impl FnMut(u32)) -> bool {
        let mut lost = false;
        for _ in 0..MESSAGES_MAX {
            let mut head = [0_u8; INDEX_AT as usize + size_of::<u32>()];
            let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
            // SAFETY: the bytes of `head` may be written; the rest of the message is cut off.
            let got = unsafe { libc::recv(self.fd(), head.as_mut_ptr().cast(), head.len(), flags) };
            if let Ok(got) = usize::try_from(got) {
                match head.last_chunk() {
                    Some(&index) if got >= head.len() => changed(u32::from_ne_bytes(index)),
                    Some(_) | None => lost = true,
                }
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOBUFS) => lost = true,
                Some(libc::EINTR) => {}
                _ => break,
            }
        }
        lost
    }

    /// Installs a filter, so that messages about other interfaces wake no thread.
    fn pass_only(&self, interface_index: u32) -> io::Result<()> {
        let statement = |code, jump_true, jump_false, k| libc::sock_filter {
            code,
            jt: jump_true,
            jf: jump_false,
            k,
        };
        // The filter reads words in network order, but the index is in the host's byte order.
        let wanted = u32::from_be_bytes(interface_index.to_ne_bytes());
        let mut program = [
            statement(
                (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
                0,
                0,
                INDEX_AT,
            ),
            statement(
                (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
                0,
                1,
                wanted,
            ),
            statement((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, u32::MAX),
            statement((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0),
        ];
        let filter = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        // SAFETY: the kernel copies the program that `filter` points to during the call.
        let result = unsafe {
            libc::setsockopt(
                self.fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const filter).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        check(result)
    }

    fn subscribe(&self) -> io::Result<()> {
        // SAFETY: integers, for which zero is a value.
        let mut name: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        name.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        name.nl_groups =
            (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
        // SAFETY: `name` is a socket address of that length.
        let result = unsafe {
            libc::bind(
                self.fd(),
                (&raw const name).cast(),
                size_of::<libc::sockaddr_nl>() as libc::socklen_t,
            )
        };
        check(result)
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_no_sandbox() {
        let without = |errno| {
            let refused = Err(io::Error::from_raw_os_error(errno));
            LinkMonitor::unless_forbidden(refused).map(|monitor| monitor.is_some())
        };
        for errno in [libc::EPERM, libc::EACCES, libc::EAFNOSUPPORT] {
            assert!(!without(errno).expect("a device without a monitor"));
        }
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS] {
            let error = without(errno).expect_err("it passes");
            assert_eq!(error.raw_os_error(), Some(errno));
        }
    }
}
