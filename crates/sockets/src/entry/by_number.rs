//! Calls of the system by their numbers, as libuv and language runtimes make them: each is what the
//! function of its name is.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use super::descriptors as on_descriptors;
use super::{data, hooks, known, options};
use crate::hand_back::{self, Need};
use crate::inside::is_inside;
use crate::{descriptors, next, process, turn};

/// Whether the calling process becomes two by the call.
fn forks(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if matches!(number, libc::SYS_fork | libc::SYS_vfork) {
        return true;
    }
    matches!(number, libc::SYS_clone | libc::SYS_clone3)
}

/// Whether the call waits for descriptors. The kernel answers it, as the gates of lanes let it.
fn waits(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if matches!(
        number,
        libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait
    ) {
        return true;
    }
    matches!(
        number,
        libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2
    )
}

/// What is done before a call that is the kernel's.
fn before(number: c_long, fd: c_int) {
    if is_inside() {
        return;
    }
    match number {
        _ if waits(number) => turn::flush(),
        _ if forks(number) => hand_back::all(Need::All),
        // Without an offset, `-1`, they are `readv(2)` and `writev(2)`.
        libc::SYS_preadv2 | libc::SYS_pwritev2 => hand_back::descriptor(fd),
        libc::SYS_exit_group => process::at_exit(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_execve | libc::SYS_execveat => super::images::new_image(std::ptr::null()),
        _ => {}
    }
}

/// Calls that make, duplicate or close descriptors, or name one in another argument than the first.
unsafe fn of_descriptors(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Option<isize> {
    let fd = a as c_int;
    // SAFETY: the caller's promise is that of each call.
    let answer = unsafe {
        match number {
            libc::SYS_close_range => {
                on_descriptors::close_range(a as c_uint, b as c_uint, c as c_int)
            }
            libc::SYS_dup => on_descriptors::dup(fd),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => on_descriptors::dup2(fd, b as c_int),
            libc::SYS_dup3 => on_descriptors::dup3(fd, b as c_int, c as c_int),
            libc::SYS_fcntl => on_descriptors::fcntl(fd, b as c_int, c as c_ulong),
            libc::SYS_socket => on_descriptors::socket(fd, b as c_int, c as c_int),
            libc::SYS_connect => on_descriptors::connect(fd, b as *const _, c as u32),
            libc::SYS_listen => on_descriptors::listen(fd, b as c_int),
            libc::SYS_accept | libc::SYS_accept4 => {
                on_descriptors::accepted(next::syscall(number, a, b, c, d, e, f) as c_int)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => on_descriptors::epoll_create(fd),
            libc::SYS_epoll_create1 => on_descriptors::epoll_create1(fd),
            libc::SYS_epoll_ctl => {
                on_descriptors::epoll_ctl(fd, b as c_int, c as c_int, d as *mut _)
            }
            // It may pass descriptors.
            libc::SYS_sendmsg => return Some(data::sendmsg(fd, b as *const _, c as c_int)),
            libc::SYS_splice => {
                let (to, offset, length) = (c as c_int, d as *mut _, e as usize);
                let moved = data::splice(fd, b as *mut _, to, offset, length, f as c_uint);
                return Some(moved);
            }
            _ => return None,
        }
    };
    Some(answer as isize)
}

/// Calls on a descriptor that the shim knows.
unsafe fn of_ours(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> Option<isize> {
    let fd = a as c_int;
    if known(fd).is_none() && !descriptors::is_own(fd) {
        return None;
    }
    // SAFETY: as above.
    let answer = unsafe {
        match number {
            libc::SYS_close => on_descriptors::close(fd) as isize,
            libc::SYS_shutdown => on_descriptors::shutdown(fd, b as c_int) as isize,
            libc::SYS_ioctl => options::ioctl(fd, b as c_ulong, c as *mut c_void) as isize,
            libc::SYS_setsockopt => {
                options::setsockopt(fd, b as c_int, c as c_int, d as *const _, e as u32) as isize
            }
            libc::SYS_read => data::read(fd, b as *mut c_void, c as usize),
            libc::SYS_write => data::write(fd, b as *const c_void, c as usize),
            libc::SYS_readv => data::readv(fd, b as *const _, c as c_int),
            libc::SYS_writev => data::writev(fd, b as *const _, c as c_int),
            libc::SYS_sendto => {
                let (to, length) = (e as *const _, f as u32);
                data::sendto(fd, b as *const _, c as usize, d as c_int, to, length)
            }
            libc::SYS_recvfrom => {
                let (from, length) = (e as *mut _, f as *mut _);
                data::recvfrom(fd, b as *mut _, c as usize, d as c_int, from, length)
            }
            libc::SYS_recvmsg => data::recvmsg(fd, b as *mut _, c as c_int),
            libc::SYS_sendmmsg => data::sendmmsg(fd, b as *mut _, c as c_uint, d as c_int) as isize,
            libc::SYS_recvmmsg => {
                let limit = e as *mut _;
                data::recvmmsg(fd, b as *mut _, c as c_uint, d as c_int, limit) as isize
            }
            libc::SYS_sendfile => data::sendfile(fd, b as c_int, c as *mut _, d as usize),
            _ => return None,
        }
    };
    Some(answer)
}

hooks! {
    /// `syscall(2)`.
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> isize {
        let arguments = [a, b, c, d, e, f];
        if let Some(answer) = of_descriptors(number, arguments) {
            return answer;
        }
        if let Some(answer) = of_ours(number, arguments) {
            return answer;
        }
        before(number, a as c_int);
        next::syscall(number, a, b, c, d, e, f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::ptr;

    use super::*;

    /// Those of the C library, which are this crate's in its tests.
    fn by_number(number: c_long, a: c_int, b: usize, c: usize) -> c_long {
        // SAFETY: the tests' own descriptors and memory.
        unsafe { libc::syscall(number, c_long::from(a), b, c, 0usize, 0usize, 0usize) }
    }

    #[test]
    fn a_mode_that_is_set_by_number_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = active.as_raw_fd();
        let socket = known(fd).unwrap();
        for is_on in [1, 0, 1] {
            assert_eq!(socket.is_nonblocking(fd), is_on == 0);
            let is_on: c_int = is_on;
            let at = (&raw const is_on).addr();
            assert_eq!(
                by_number(libc::SYS_ioctl, fd, libc::FIONBIO as usize, at),
                0
            );
            assert_eq!(socket.is_nonblocking(fd), is_on != 0);
        }
    }

    #[test]
    fn a_connection_that_is_made_by_number_is_known() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
            },
            sin_zero: [0; 8],
        };
        let stream = libc::SOCK_STREAM as usize;
        let active = by_number(libc::SYS_socket, libc::AF_INET, stream, 0) as c_int;
        let length = size_of::<libc::sockaddr_in>();
        let address = (&raw const to).expose_provenance();
        assert_eq!(by_number(libc::SYS_connect, active, address, length), 0);
        assert!(
            known(active)
                .unwrap()
                .active
                .load(std::sync::atomic::Ordering::Relaxed)
        );
        let null = ptr::null::<c_void>().addr();
        let passive = by_number(libc::SYS_accept, listener.as_raw_fd(), null, null) as c_int;
        assert!(known(passive).is_some());
        for end in [active, passive] {
            assert_eq!(by_number(libc::SYS_close, end, 0, 0), 0);
            assert!(known(end).is_none());
        }
    }
}
