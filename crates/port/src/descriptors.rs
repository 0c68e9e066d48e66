//! Descriptors of a program's own limit that a device leaves to the program.
//!
//! A device takes a dozen descriptors, and a listener at all addresses of a host with 200
//! interfaces takes thousands. Programs have 1,024, since `select(2)` knows no number above, though
//! most systems allow far more. So internal descriptors are moved once their numbers exceed a
//! quarter of the program's limit: to numbers above it, as far as the hard limit allows. The limit
//! is raised for that moment only: neither the program nor its children keep a different one.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

/// The part of the limit below which descriptors stay where they are.
const SHARE: libc::rlim_t = 4;
/// Numbers above the program's limit, at most.
const ABOVE_MAX: libc::rlim_t = 1 << 16;
/// Attempts to get the lock, with a pause between two: in a child after fork, it may never be
/// released.
const TRIES_MAX: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// A new descriptor from `make`, a system call that returns one, out of the program's way.
///
/// # Errors
/// That of the call.
pub fn open(make: impl Fn() -> RawFd) -> io::Result<OwnedFd> {
    let mut made = make();
    let failed = (made < 0).then(io::Error::last_os_error);
    if failed.as_ref().and_then(io::Error::raw_os_error) == Some(libc::EMFILE)
        && let Some(_room) = Room::make()
    {
        made = make();
    } else if let Some(error) = failed {
        return Err(error);
    }
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just returned it, and nothing else owns it.
    Ok(keep_away(unsafe { OwnedFd::from_raw_fd(made) }))
}

/// The next connection that waits at a listener, which does not block, nor does the connection.
///
/// # Errors
/// That of the call: `WouldBlock` if none waits.
pub fn accept(listener: &impl AsRawFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    open(|| {
        // SAFETY: null pointers ask for no address.
        unsafe {
            libc::accept4(
                listener.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                flags,
            )
        }
    })
}

/// The same descriptor out of the program's way; as it is where that is impossible, or not needed.
pub fn keep_away(fd: OwnedFd) -> OwnedFd {
    let number = fd.as_raw_fd().unsigned_abs();
    let is_few = |limit: libc::rlimit| libc::rlim_t::from(number) < limit.rlim_cur / SHARE;
    if limit().is_none_or(is_few) {
        return fd;
    }
    let Some(room) = Room::make() else { return fd };
    if libc::rlim_t::from(number) >= room.before.rlim_cur {
        return fd;
    }
    let above = libc::c_int::try_from(room.before.rlim_cur).unwrap_or(libc::c_int::MAX);
    // SAFETY: a descriptor of ours, and plain integers.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, above) };
    if moved < 0 {
        return fd;
    }
    // SAFETY: the call just returned it, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(moved) }
}

/// A limit that is higher than the program's, until it is dropped.
struct Room {
    before: libc::rlimit,
    _turn: MutexGuard<'static, ()>,
}

impl Room {
    /// None where the hard limit leaves none.
    fn make() -> Option<Self> {
        let turn = turn()?;
        let before = limit()?;
        let above = before.rlim_cur.saturating_add(ABOVE_MAX);
        let raised = libc::rlimit {
            rlim_cur: before.rlim_max.min(above),
            ..before
        };
        let is_higher = raised.rlim_cur > before.rlim_cur && set_limit(&raised);
        is_higher.then_some(Self {
            before,
            _turn: turn,
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        set_limit(&self.before);
    }
}

/// One thread at a time: another one would take the raised limit for the program's.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    for _ in 0..TRIES_MAX {
        match TURN.try_lock() {
            Ok(turn) => return Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
        }
    }
    None
}

fn limit() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for one limit.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (got == 0).then_some(limit)
}

fn set_limit(limit: &libc::rlimit) -> bool {
    // SAFETY: one limit.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, std::ptr::from_ref(limit)) == 0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The limit is the process's: a process of its own, which ends with 0 if all is well.
    fn in_a_child(check: impl FnOnce() -> bool) {
        // SAFETY: the child makes system calls and ends; the lock of this module is free, as only
        // these tests take it here.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = libc::c_int::from(!check());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the child of above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    fn event() -> RawFd {
        // SAFETY: plain integers.
        unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }
    }

    fn limited(soft: libc::rlim_t, hard: libc::rlim_t) -> bool {
        set_limit(&libc::rlimit {
            rlim_cur: soft,
            rlim_max: hard,
        })
    }

    #[test]
    fn many_descriptors_leave_the_program_its_own() {
        in_a_child(|| {
            let mut ok = limited(128, 512);
            let of_device: Vec<_> = (0..300).map_while(|_| open(event).ok()).collect();
            let below = of_device.iter().filter(|fd| fd.as_raw_fd() < 128).count();
            ok &= of_device.len() == 300 && below <= 32;
            // The program has what it had, and no more.
            ok &= limit().is_some_and(|it| it.rlim_cur == 128 && it.rlim_max == 512);
            let of_program = std::iter::repeat_with(event).take_while(|fd| *fd >= 0);
            let of_program = of_program.take(200).count();
            ok &= (64..128).contains(&of_program);
            // A device of a program that has used its own up works.
            ok && open(event).is_ok_and(|fd| fd.as_raw_fd() >= 128)
        });
    }

    #[test]
    fn without_room_above_they_stay_below_and_end() {
        in_a_child(|| {
            let ok = limited(64, 64);
            let of_device: Vec<_> = (0..100).map_while(|_| open(event).ok()).collect();
            let last = open(event).err().and_then(|error| error.raw_os_error());
            ok && of_device.len() > 32 && last == Some(libc::EMFILE)
        });
    }
}
