//! Calls that need the kernel's socket wait here until the lane has given the stream back.
//!
//! Any process may hold the kernel's socket, and the kernel does what it does for any: so a
//! connection is handed back before it is inherited, passed, closed, or used by a call that a lane
//! has no answer for. What the messages are: [`lane::hand_back`](crate::lane::hand_back).

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::agent;
use crate::datagram;
use crate::inside::Inside;
use crate::lane::Lane;
use crate::socket::{self, Inner, Socket, Stage};
use crate::tcp;

/// How long the peer's library may take, and the kernel's queue, where the program cannot go on
/// without. Then the connection ends with an error.
const LIMIT: Duration = Duration::from_secs(2);
/// Between two looks at a hand-back, at first.
pub const PAUSE: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// How late a thread that sleeps wakes as a rule, at most.
const LATENESS: Duration = Duration::from_millis(2);
/// How many times as long a starved process waits, at most.
const STARVED: u32 = 5;
/// Between two attempts to write what the kernel's queue has no room for: while they succeed, and
/// at most.
const TEND_EVERY: Duration = Duration::from_millis(2);
const TEND_EVERY_MAX: Duration = Duration::from_millis(50);

/// What the kernel's socket is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Another process reads and writes it, or the kernel does.
    All,
    /// As above after a fork: what the lane brought before stays with the parent, and is an error
    /// in the child.
    Fork,
    /// One direction of it is shut.
    Shutdown,
    /// It is closed.
    End,
    /// The process ends, or is replaced.
    Exit,
}

/// Hands a connection back.
pub fn connection(socket: &'static Socket, need: Need) {
    wait([socket].into_iter(), need, LIMIT, true);
}

/// Hands a connection back. Whether the kernel has it within `limit`; else it is on its way.
pub fn within(socket: &'static Socket, need: Need, limit: Duration) -> bool {
    wait([socket].into_iter(), need, limit, false)
}

/// Hands the connection of a descriptor back, if it is one.
pub fn descriptor(fd: c_int) {
    if let Some(socket) = socket::of(fd).filter(|socket| socket.stage() != Stage::Kernel) {
        connection(socket, Need::All);
    }
}

/// Hands all connections back.
pub fn all(need: Need) {
    // The child closes what the program has closed.
    let is_needed = |socket: &&Socket| need != Need::Fork || !socket.is_left();
    wait(socket::all().filter(is_needed), need, LIMIT, true);
}

/// Hands those back that a program has which is started without a fork of this one.
#[cfg(target_arch = "x86_64")]
pub fn inheritable() {
    let is_inherited = |fd: c_int| {
        // SAFETY: plain integers.
        let flags = unsafe { crate::next::fcntl(fd, libc::F_GETFD, 0) };
        flags >= 0 && flags & libc::FD_CLOEXEC == 0
    };
    let inherited = socket::by_descriptor().filter(|(fd, _)| is_inherited(*fd));
    wait(inherited.map(|(_, socket)| socket), Need::All, LIMIT, true);
}

/// Whether the kernel has all of them within `limit`. Those that it has not then end, if the
/// program `cannot_go_on`.
fn wait(
    sockets: impl Iterator<Item = &'static Socket>,
    need: Need,
    limit: Duration,
    cannot_go_on: bool,
) -> bool {
    let before = airdma_preload::errno::current();
    let _inside = Inside::enter();
    let mut patience = Patience::new(limit);
    let mut left: Vec<(&'static Socket, u64)> = sockets
        .filter(|socket| !matches!(socket.stage(), Stage::Kernel | Stage::Lost))
        .map(|socket| (socket, socket.generation()))
        .collect();
    let mut pause = PAUSE;
    loop {
        let is_late = patience.is_over();
        let is_end = is_late && cannot_go_on;
        left.retain(|(socket, generation)| !look(socket, *generation, need, is_end));
        if left.is_empty() || is_late {
            break;
        }
        patience.sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
    airdma_preload::errno::set(before);
    left.is_empty()
}

/// How long a call waits. Time in which this thread was not scheduled is not counted, up to five
/// times the limit.
struct Patience {
    limit: Duration,
    start: Instant,
    /// How much of the time since then does not count.
    lost: Duration,
}

impl Patience {
    fn new(limit: Duration) -> Patience {
        Patience {
            limit,
            start: Instant::now(),
            lost: Duration::ZERO,
        }
    }

    fn sleep(&mut self, pause: Duration) {
        let before = Instant::now();
        std::thread::sleep(pause);
        self.lost += before.elapsed().saturating_sub(pause + LATENESS);
    }

    fn is_over(&self) -> bool {
        let passed = self.start.elapsed();
        passed.saturating_sub(self.lost) > self.limit || passed > self.limit * STARVED
    }
}

/// Asks for the stream; whether the kernel has it. One that `is_late` ends.
pub fn look(socket: &'static Socket, generation: u64, need: Need, is_late: bool) -> bool {
    if socket.is_datagram() {
        datagram::hand_back(socket);
        return true;
    }
    socket.catch_up();
    // A signal handler may have interrupted the thread that has it.
    let Some(mut inner) = socket.try_lock() else {
        return false;
    };
    if socket.generation() != generation {
        drop(inner);
        socket.catch_up();
        return true;
    }
    let fd = inner.fd;
    let need = if socket.is_left() && matches!(need, Need::All | Need::Fork) {
        Need::Exit
    } else {
        need
    };
    let Some(lane) = &mut inner.lane else {
        // None will be opened.
        socket.settle(Stage::Kernel);
        return true;
    };
    // Calls for other needs wait for room in the kernel's queue.
    if !matches!(need, Need::Shutdown | Need::End) && lane.rest_bytes() > 0 {
        tcp::widen_send_queue(fd);
    }
    lane.ask_back(fd, need);
    let is_back = match need {
        Need::Shutdown | Need::End | Need::Exit => {
            lane.is_given() && (lane.tokens_due() == 0 || lane.has_kept())
        }
        Need::Fork => lane.is_over() || (lane.is_given() && lane.has_kept()),
        Need::All => lane.is_over(),
    };
    if is_back && !lane.is_over() {
        return true;
    }
    // A lane that fails before both ends have switched leaves the stream where it was: the
    // negotiation sees to it.
    let cannot = need == Need::All && lane.has_kept();
    let has_ended = || matches!(need, Need::End | Need::Exit) && tcp::is_ended(fd);
    let retired = if is_back {
        retire(socket, &mut inner)
    } else if lane.is_lost() || cannot || is_late || has_ended() {
        abandon(socket, &mut inner)
    } else {
        drop(inner);
        socket.catch_up();
        return false;
    };
    drop(inner);
    drop(retired);
    true
}

/// The lane has given everything back.
fn retire(socket: &Socket, inner: &mut Inner) -> Option<Box<Lane>> {
    socket.settle(Stage::Kernel);
    let lane = inner.lane.take();
    if let Some(lane) = &lane {
        lane.count_end();
    }
    lane
}

/// Bytes would be missing: the connection ends with an error at both ends.
fn abandon(socket: &Socket, inner: &mut Inner) -> Option<Box<Lane>> {
    let why = inner.lane.as_ref().map(|lane| lane.describe());
    crate::process::note(|| format!("a hand-back fails: {why:?}"));
    tcp::abort(inner.fd);
    socket.settle(Stage::Kernel);
    let lane = inner.lane.take();
    if let Some(lane) = &lane {
        lane.count_loss();
    }
    lane
}

/// After each event of the lane: whether the kernel's socket is all there is, and then the lane;
/// what it still has to do is done beside the program's threads.
pub fn after_event(socket: &'static Socket, inner: &mut Inner) -> Option<Box<Lane>> {
    let lane = inner.lane.as_mut()?;
    if lane.is_over() {
        return retire(socket, inner);
    }
    let has_work = lane.is_moving() || lane.is_back() || lane.is_lost();
    if has_work && !lane.is_tended {
        lane.is_tended = true;
        tend(socket);
    }
    None
}

/// Carries a hand-back on from time to time, or the end of a lane that is lost, for a program that
/// does not call.
fn tend(socket: &'static Socket) {
    let generation = socket.generation();
    agent::spawn(move |agent| async move {
        let (mut pause, mut before) = (TEND_EVERY, None);
        loop {
            agent.sleep(pause).await;
            let mut inner = socket.lock();
            if socket.generation() != generation {
                drop(inner);
                return socket.catch_up();
            }
            let fd = inner.fd;
            let Some(lane) = &mut inner.lane else {
                drop(inner);
                return socket.catch_up();
            };
            lane.run(fd);
            // The program's reads do what is left.
            let is_done = lane.is_given() && lane.has_kept() || lane.ends_if_lost(fd);
            let now = Some(lane.left_to_do());
            drop(inner);
            socket.catch_up();
            if is_done {
                return;
            }
            pause = if now == before {
                (pause * 2).min(TEND_EVERY_MAX)
            } else {
                TEND_EVERY
            };
            before = now;
        }
    });
}

/// Forks in progress: no lane is opened meanwhile.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Before a fork.
pub fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    all(Need::Fork);
}

/// After a fork, in the parent. A connection that was accepted meanwhile is in the child too.
pub fn after_fork() {
    socket::share_all();
    FORKS.fetch_sub(1, Ordering::SeqCst);
}

/// In the child.
pub fn in_child() {
    FORKS.store(0, Ordering::SeqCst);
}

/// Whether a lane must not be opened now.
pub fn is_forking() -> bool {
    FORKS.load(Ordering::SeqCst) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_thread_gets_no_processor_hardly_counts() {
        let patience = |passed_ms, lost_ms| Patience {
            limit: Duration::from_secs(2),
            start: Instant::now() - Duration::from_millis(passed_ms),
            lost: Duration::from_millis(lost_ms),
        };
        assert!(!patience(1900, 0).is_over());
        assert!(patience(2100, 0).is_over());
        assert!(!patience(5000, 3100).is_over());
        assert!(patience(5000, 2900).is_over());
        assert!(patience(10_100, 10_000).is_over(), "at last");
    }
}
