//! Options and queries of sockets.

use std::ffi::{c_int, c_ulong, c_void};

use libc::socklen_t;

use super::{hooks, known};
use crate::hand_back::{self, Need};
use crate::inside::{Inside, is_inside};
use crate::socket::{Socket, Stage};
use crate::{datagram, next, tcp};

const TCP_NOTSENT_LOWAT: c_int = 25;

/// Options by which the kernel gets a part in the stream that a lane does not have.
fn is_kernels(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_RCVLOWAT
                | libc::SO_ATTACH_FILTER
                | libc::SO_ATTACH_BPF
                | libc::SO_TIMESTAMP
                | libc::SO_TIMESTAMPNS
                | libc::SO_TIMESTAMPING
                | libc::SO_ZEROCOPY
                | libc::SO_OOBINLINE
                | libc::SO_PEEK_OFF
        ),
        libc::IPPROTO_TCP => matches!(
            name,
            TCP_NOTSENT_LOWAT | libc::TCP_ULP | libc::TCP_REPAIR | libc::TCP_INQ | libc::TCP_MD5SIG
        ),
        _ => false,
    }
}

/// Whether such an option was set before the connection was known, or inherited from a listener.
pub fn has_the_kernels(fd: c_int) -> bool {
    let at_first = [
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 0),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0),
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY, 0),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE, 0),
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1),
        (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0),
        (libc::IPPROTO_TCP, libc::TCP_REPAIR, 0),
        (libc::IPPROTO_TCP, libc::TCP_INQ, 0),
    ];
    // Kernels that do not know one have no part by it.
    let is_set =
        |(level, name, value)| tcp::integer(fd, level, name).is_some_and(|now| now != value);
    at_first.into_iter().any(is_set) || tcp::has_filter(fd) || tcp::has_upper_protocol(fd)
}

/// The socket of a call of the program.
fn used(fd: c_int) -> Option<&'static Socket> {
    known(fd).filter(|socket| socket.stage() != Stage::Kernel && !is_inside())
}

hooks! {
    /// `setsockopt(2)`.
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int {
        let Some(socket) = used(fd) else {
            return next::setsockopt(fd, level, name, value, length);
        };
        if socket.is_datagram() {
            datagram::options::set(socket, level, name);
            return next::setsockopt(fd, level, name, value, length);
        }
        if is_kernels(level, name) {
            hand_back::connection(socket, Need::All);
        }
        let set = next::setsockopt(fd, level, name, value, length);
        if set == 0 && (level, name) == (libc::IPPROTO_TCP, libc::TCP_CORK) {
            let _inside = Inside::enter();
            if let Some(lane) = &mut socket.lock().lane {
                lane.cork(value.cast::<c_int>().read_unaligned() != 0);
            }
            socket.catch_up();
        }
        set
    }

    /// `ioctl(2)`: how much there is to read, and to send.
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        let answer = next::ioctl(fd, request, argument);
        if request == libc::FIONBIO
            && let Some(socket) = known(fd)
        {
            socket.forget_blocking();
        }
        if !matches!(request, libc::FIONREAD | libc::TIOCOUTQ) || answer != 0 {
            return answer;
        }
        let on_lane = |socket: &&Socket| matches!(socket.stage(), Stage::Lane | Stage::Lost);
        if let Some(socket) = used(fd).filter(on_lane) {
            if socket.is_datagram() {
                if request == libc::FIONREAD {
                    let count = argument.cast::<c_int>();
                    count.write(datagram::reading::next_length(fd, count.read()));
                }
                return answer;
            }
            if socket.stage() == Stage::Lost {
                return answer;
            }
            let _inside = Inside::enter();
            if let Some(lane) = &mut socket.lock().lane {
                let count = argument.cast::<c_int>();
                count.write(match request {
                    libc::FIONREAD => lane.all_readable(count.read().unsigned_abs().into()),
                    _ => lane.unsent(),
                });
            }
            socket.catch_up();
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn options_that_a_listener_left_are_the_kernels() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepted = || {
            let active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (passive, _) = listener.accept().unwrap();
            [active, passive].map(|end| has_the_kernels(end.as_raw_fd()))
        };
        assert_eq!(accepted(), [false, false]);
        let one: c_int = 1;
        // SAFETY: an integer.
        let set = unsafe {
            libc::setsockopt(
                listener.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_OOBINLINE,
                (&raw const one).cast(),
                size_of::<c_int>() as socklen_t,
            )
        };
        assert_eq!((set, accepted()), (0, [false, true]));
    }

    #[test]
    fn a_filter_that_a_listener_left_is_the_kernels() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // It takes all.
        let mut rule = libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: u32::MAX,
        };
        let program = libc::sock_fprog {
            len: 1,
            filter: &raw mut rule,
        };
        // SAFETY: a program of one rule.
        let set = unsafe {
            libc::setsockopt(
                listener.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as socklen_t,
            )
        };
        let active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (passive, _) = listener.accept().unwrap();
        assert_eq!(set, 0);
        assert!(has_the_kernels(passive.as_raw_fd()));
        assert!(!has_the_kernels(active.as_raw_fd()));
    }
}
