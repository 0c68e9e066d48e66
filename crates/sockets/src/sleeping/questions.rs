//! The calls that wait, as [questions](super::Question).

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use super::{Question, Refused, timespec_of};
use crate::next;

/// `poll(2)` and `ppoll(2)`.
#[derive(Clone, Copy)]
pub struct Poll {
    /// The call's arguments.
    pub entries: *mut pollfd,
    /// As above.
    pub count: nfds_t,
    /// As above.
    pub time: Time,
    /// As above.
    pub mask: *const sigset_t,
}

/// Most descriptors of a call that sleeps on those of devices, too.
const ENTRIES_MAX: nfds_t = 1024;
/// Addresses that no program has.
const PAGE: usize = 4096;

/// How long a call waits, as it says it.
#[derive(Clone, Copy)]
pub enum Time {
    /// In milliseconds; for ever if it is negative.
    Milliseconds(c_int),
    /// Null: for ever.
    Timespec(*const timespec),
}

impl Time {
    /// How long, if not for ever.
    ///
    /// # Errors
    /// The kernel refuses it.
    ///
    /// # Safety
    /// The pointer is null, or the program's.
    pub unsafe fn limit(self) -> Result<Option<Duration>, Refused> {
        match self {
            Time::Milliseconds(ms) => Ok(u64::try_from(ms).ok().map(Duration::from_millis)),
            // SAFETY: the caller's promise.
            Time::Timespec(time) => unsafe { time.as_ref() }
                .map(|time| duration(time.tv_sec, time.tv_nsec))
                .transpose(),
        }
    }
}

fn duration(seconds: libc::time_t, nanoseconds: i64) -> Result<Duration, Refused> {
    match (u64::try_from(seconds), u32::try_from(nanoseconds)) {
        (Ok(seconds), Ok(nanoseconds @ 0..1_000_000_000)) => {
            Ok(Duration::new(seconds, nanoseconds))
        }
        _ => Err(Refused),
    }
}

impl Question for Poll {
    unsafe fn ask_kernel(&self) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            match self.time {
                Time::Milliseconds(ms) => next::poll(self.entries, self.count, ms),
                Time::Timespec(time) => next::ppoll(self.entries, self.count, time, self.mask),
            }
        }
    }

    unsafe fn ask_now(&self) -> c_int {
        // SAFETY: as above.
        unsafe { next::poll(self.entries, self.count, 0) }
    }

    unsafe fn descriptors(&self, to: &mut Vec<pollfd>) {
        if self.count > 0 {
            // SAFETY: as above.
            let entries = unsafe { std::slice::from_raw_parts(self.entries, self.count as usize) };
            to.extend_from_slice(entries);
        }
    }

    unsafe fn limit(&self) -> Result<Option<Duration>, Refused> {
        if self.count > ENTRIES_MAX {
            return Err(Refused);
        }
        // SAFETY: as above.
        unsafe { self.time.limit() }
    }

    fn mask(&self) -> *const sigset_t {
        self.mask
    }
}

/// `epoll_wait(2)` and its like.
#[derive(Clone, Copy)]
pub struct Epoll {
    /// The call's arguments.
    pub set: c_int,
    /// As above.
    pub events: *mut epoll_event,
    /// As above.
    pub most: c_int,
    /// As above.
    pub time: Time,
    /// As above.
    pub mask: *const sigset_t,
}

impl Question for Epoll {
    unsafe fn ask_kernel(&self) -> c_int {
        let Epoll {
            set,
            events,
            most,
            time,
            mask,
        } = *self;
        // SAFETY: the caller's promise.
        unsafe {
            match time {
                Time::Milliseconds(ms) if mask.is_null() => next::epoll_wait(set, events, most, ms),
                Time::Milliseconds(ms) => next::epoll_pwait(set, events, most, ms, mask),
                Time::Timespec(time) => next::epoll_pwait2(set, events, most, time, mask),
            }
        }
    }

    unsafe fn ask_now(&self) -> c_int {
        // SAFETY: as above.
        unsafe { next::epoll_wait(self.set, self.events, self.most, 0) }
    }

    unsafe fn descriptors(&self, to: &mut Vec<pollfd>) {
        to.push(pollfd {
            fd: self.set,
            events: libc::POLLIN,
            revents: 0,
        });
    }

    unsafe fn limit(&self) -> Result<Option<Duration>, Refused> {
        // SAFETY: as above.
        unsafe { self.time.limit() }
    }

    fn mask(&self) -> *const sigset_t {
        self.mask
    }
}

/// `select(2)` and `pselect(2)`.
#[derive(Clone, Copy)]
pub struct Select {
    count: c_int,
    sets: [*mut fd_set; 3],
    /// The sets as the program gave them: each answer overwrites them.
    asked: [[u64; SET_WORDS]; 3],
    /// Whether they were read.
    is_read: bool,
    time: SelectTime,
    mask: *const sigset_t,
}

/// How long `select(2)` or `pselect(2)` waits. Null: for ever.
#[derive(Clone, Copy)]
pub enum SelectTime {
    /// The time of `select(2)`, which tells how much of it is left.
    Left(*mut timeval),
    /// The time of `pselect(2)`.
    Kept(*const timespec),
}

/// Words of a set, and descriptors that it has room for.
const SET_WORDS: usize = size_of::<fd_set>() / 8;

impl Select {
    /// A call. Its sets are read at once, if `may_ask_again`; otherwise it is the kernel's alone.
    ///
    /// # Safety
    /// The arguments are what the man page demands.
    pub unsafe fn new(
        count: c_int,
        sets: [*mut fd_set; 3],
        time: SelectTime,
        mask: *const sigset_t,
        may_ask_again: bool,
    ) -> Select {
        let mut asked = [[0; SET_WORDS]; 3];
        for (asked, set) in asked.iter_mut().zip(sets) {
            if may_ask_again && set.addr() >= PAGE {
                let words = words(count);
                // SAFETY: the caller's promise: a set has as many words as its descriptors need.
                unsafe { ptr::copy_nonoverlapping(set.cast(), asked.as_mut_ptr(), words) };
            }
        }
        Select {
            count,
            sets,
            asked,
            is_read: may_ask_again,
            time,
            mask,
        }
    }

    fn has(&self, set: usize, fd: usize) -> bool {
        self.asked[set][fd / 64] >> (fd % 64) & 1 != 0
    }
}

/// Words that the kernel reads of a set; none if the call has more than a set has.
fn words(count: c_int) -> usize {
    usize::try_from(count)
        .map(|count| count.div_ceil(64))
        .ok()
        .filter(|words| *words <= SET_WORDS)
        .unwrap_or(0)
}

impl Question for Select {
    unsafe fn ask_kernel(&self) -> c_int {
        let [read, write, except] = self.sets;
        // SAFETY: the caller's promise.
        unsafe {
            match self.time {
                SelectTime::Left(time) => next::select(self.count, read, write, except, time),
                SelectTime::Kept(time) => {
                    next::pselect(self.count, read, write, except, time, self.mask)
                }
            }
        }
    }

    unsafe fn ask_now(&self) -> c_int {
        let mut no_time = timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        // SAFETY: as above.
        unsafe {
            self.restore();
            let [read, write, except] = self.sets;
            next::select(self.count, read, write, except, &raw mut no_time)
        }
    }

    unsafe fn descriptors(&self, to: &mut Vec<pollfd>) {
        const EVENTS: [libc::c_short; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        for fd in 0..usize::try_from(self.count).unwrap_or(0) {
            let of_set = |set: usize| if self.has(set, fd) { EVENTS[set] } else { 0 };
            let events = (0..3).map(of_set).fold(0, |all, one| all | one);
            if events != 0 {
                to.push(pollfd {
                    fd: fd as c_int,
                    events,
                    revents: 0,
                });
            }
        }
    }

    unsafe fn limit(&self) -> Result<Option<Duration>, Refused> {
        let is_missing = |set: &*mut fd_set| !set.is_null() && set.addr() < PAGE;
        if !self.is_read
            || self.count < 0
            || self.count > (SET_WORDS * 64) as c_int
            || self.sets.iter().any(is_missing)
        {
            return Err(Refused);
        }
        match self.time {
            // SAFETY: as above.
            SelectTime::Kept(time) => unsafe { Time::Timespec(time).limit() },
            // SAFETY: as above.
            SelectTime::Left(time) => unsafe { time.as_ref() }
                .map(|time| {
                    let seconds = time
                        .tv_sec
                        .saturating_add(time.tv_usec.div_euclid(1_000_000));
                    duration(seconds, time.tv_usec.rem_euclid(1_000_000) * 1000)
                })
                .transpose(),
        }
    }

    fn mask(&self) -> *const sigset_t {
        self.mask
    }

    unsafe fn tell_left(&self, left: Duration) {
        if let SelectTime::Left(time) = self.time {
            let left = timespec_of(left);
            // SAFETY: as above.
            if let Some(time) = unsafe { time.as_mut() } {
                time.tv_sec = left.tv_sec;
                time.tv_usec = left.tv_nsec / 1000;
            }
        }
    }

    unsafe fn restore(&self) {
        for (asked, set) in self.asked.iter().zip(self.sets) {
            if !set.is_null() {
                // SAFETY: as in `new`.
                unsafe { ptr::copy_nonoverlapping(asked.as_ptr(), set.cast(), words(self.count)) };
            }
        }
    }

    fn is_exact(&self) -> bool {
        // `poll(2)` also tells of ends that a set does not ask for.
        false
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::pipe;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn sets_are_asked_for_again_and_again() {
        let (reader, writer) = pipe().unwrap();
        // SAFETY: sets on the stack.
        unsafe {
            let mut read: fd_set = std::mem::zeroed();
            let mut write: fd_set = std::mem::zeroed();
            libc::FD_SET(reader.as_raw_fd(), &raw mut read);
            let count = writer.as_raw_fd().max(reader.as_raw_fd()) + 1;
            let mut left = timeval {
                tv_sec: 1,
                tv_usec: 2_500_000,
            };
            let sets = [&raw mut read, &raw mut write, ptr::null_mut()];
            let time = SelectTime::Left(&raw mut left);
            let question = Select::new(count, sets, time, ptr::null(), true);
            assert_eq!(question.limit(), Ok(Some(Duration::from_millis(3500))));
            assert_eq!((question.ask_now(), question.ask_now()), (0, 0));
            std::io::Write::write_all(&mut &writer, b"x").unwrap();
            assert_eq!(question.ask_now(), 1);
            assert!(libc::FD_ISSET(reader.as_raw_fd(), &raw const read));
            let mut descriptors = Vec::new();
            question.descriptors(&mut descriptors);
            let entry = descriptors.first().unwrap();
            assert_eq!(
                (descriptors.len(), entry.fd, entry.events),
                (1, reader.as_raw_fd(), libc::POLLIN)
            );
            question.tell_left(Duration::from_micros(1_000_007));
            assert_eq!((left.tv_sec, left.tv_usec), (1, 7));
        }
    }

    #[test]
    fn what_the_kernel_refuses_is_left_to_it() {
        let epoll = |time| Epoll {
            set: -1,
            events: ptr::null_mut(),
            most: 1,
            time,
            mask: ptr::null(),
        };
        let time = |tv_sec, tv_nsec| timespec { tv_sec, tv_nsec };
        for refused in [time(-1, 0), time(0, -1), time(0, 1_000_000_000)] {
            // SAFETY: a time on the stack.
            let limit = unsafe { epoll(Time::Timespec(&raw const refused)).limit() };
            assert_eq!(limit, Err(Refused));
        }
        // SAFETY: nothing is read.
        let limits = unsafe { [-1, 0, 7].map(|ms| epoll(Time::Milliseconds(ms)).limit()) };
        let some = |ms| Ok(Some(Duration::from_millis(ms)));
        assert_eq!(limits, [Ok(None), some(0), some(7)]);
    }
}
