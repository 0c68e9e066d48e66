//! The sockets that the shim knows, by descriptor: TCP connections, and UDP sockets where those may
//! have lanes.
//!
//! A [`Socket`] is an open file description: descriptors made by `dup` lead to the same one. They
//! live in memory that is never given back but used again, so a look-up is one load, also in a
//! signal handler and after fork.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Wake, Waker};

use crate::datagram::Datagrams;
use crate::hand_back::Need;
use crate::in_kernel::{Calls, InKernel};
use crate::inside::catch_up_later;
use crate::lane::Lane;
use crate::mode::Mode;
use crate::{hand_back, process, tcp};

/// Descriptors that may have a lane: those below.
const DESCRIPTORS: usize = 1 << 16;

static TABLE: [AtomicPtr<Socket>; DESCRIPTORS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; DESCRIPTORS];
/// One more than the highest descriptor that ever was in the table.
static END: AtomicUsize = AtomicUsize::new(0);
/// Sockets without a descriptor, for reuse.
static FREE: Mutex<Vec<&'static Socket>> = Mutex::new(Vec::new());

/// A TCP connection of the program, or a UDP socket.
pub struct Socket {
    /// Changes whenever the memory gets another connection.
    generation: AtomicU64,
    /// Descriptors that lead here.
    descriptors: AtomicU32,
    /// Whether this end connected.
    pub active: AtomicBool,
    /// Whether it is a UDP socket.
    is_datagram: AtomicBool,
    /// Lanes of a UDP socket.
    pub datagrams: Mutex<Datagrams>,
    /// [`Stage`], as a number.
    stage: AtomicU8,
    /// Calls of the program that moved data.
    pub calls: AtomicU32,
    /// Bytes that they moved.
    pub bytes: AtomicU64,
    /// Calls of the kernel that move data.
    in_kernel: Calls,
    /// Initial sequence number of the end that connected, with bit 32 set once it is known.
    sequence: AtomicU64,
    /// Whether a lane is being tried.
    attempting: AtomicBool,
    /// Whether calls on the descriptor block.
    mode: Mode,
    /// Whether the peer seems to have no library: reads may wait in the kernel.
    is_alone: AtomicBool,
    /// Whether the program has closed it, and the agent has its descriptor.
    left: AtomicBool,
    /// Events of the lane that no thread has handled.
    woken: AtomicBool,
    inner: Mutex<Inner>,
}

/// What is behind the lock of a socket.
pub struct Inner {
    /// One of its descriptors.
    pub fd: c_int,
    /// The lane, and the process that has it.
    pub lane: Option<Box<Lane>>,
    /// Calls that wait, and the descriptor that a close by another thread has left to them.
    pub waiting: u32,
    pub kept: Option<c_int>,
    /// Where a connection without a device left the shim: events go to the task that negotiates.
    pub negotiation: Option<Waker>,
}

/// What a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A TCP connection that this end made.
    Connected,
    /// A TCP connection that it accepted.
    Accepted,
    /// A UDP socket.
    Datagram,
}

/// How far a socket is on its way to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// The kernel's: no lane will be opened.
    Kernel = 0,
    /// A lane may be opened.
    Candidate = 1,
    /// One is being negotiated: calls go to the kernel, under the lock.
    Negotiating = 2,
    /// There is one. The kernel's queue of a UDP socket may have notes.
    Lane = 3,
    /// The parent of this process has one: the stream is not to be had here. A UDP socket has none
    /// any more, and its kernel's queue may have notes, whose datagrams are lost.
    Lost = 4,
}

/// The socket of a descriptor.
#[inline]
pub fn of(fd: c_int) -> Option<&'static Socket> {
    let slot = TABLE.get(usize::try_from(fd).ok()?)?;
    // SAFETY: null, or a socket, which is never freed.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

/// The slot of a descriptor that gets a socket.
fn slot_of(fd: c_int) -> Option<&'static AtomicPtr<Socket>> {
    let at = usize::try_from(fd).ok()?;
    let slot = TABLE.get(at)?;
    END.fetch_max(at + 1, Ordering::Release);
    Some(slot)
}

/// The slots that may have a socket.
fn used_slots() -> &'static [AtomicPtr<Socket>] {
    &TABLE[..END.load(Ordering::Acquire)]
}

/// Begins to know the socket of a descriptor.
pub fn enter(fd: c_int, kind: Kind) -> Option<&'static Socket> {
    let slot = slot_of(fd)?;
    leave(fd);
    let owner = std::process::id();
    if OWNER.swap(owner, Ordering::Relaxed) != owner {
        process::prepare();
    }
    // In a child, the lock may be held by a thread that is not there.
    let free = FREE.try_lock().ok().and_then(|mut free| free.pop());
    let socket = free.unwrap_or_else(|| Box::leak(Box::new(Socket::new())));
    socket.generation.fetch_add(1, Ordering::Relaxed);
    socket.in_kernel.renew();
    socket.descriptors.store(1, Ordering::Relaxed);
    let is = |wanted| kind == wanted;
    socket.active.store(is(Kind::Connected), Ordering::Relaxed);
    socket
        .is_datagram
        .store(is(Kind::Datagram), Ordering::Relaxed);
    socket
        .stage
        .store(Stage::Candidate as u8, Ordering::Relaxed);
    socket.calls.store(0, Ordering::Relaxed);
    socket.bytes.store(0, Ordering::Relaxed);
    socket.sequence.store(0, Ordering::Relaxed);
    socket.attempting.store(false, Ordering::Relaxed);
    socket.mode.forget();
    socket.is_alone.store(false, Ordering::Relaxed);
    socket.left.store(false, Ordering::Relaxed);
    socket.woken.store(false, Ordering::Relaxed);
    {
        let mut inner = socket.lock();
        inner.fd = fd;
        // A call that was left by `siglongjmp` still counts.
        inner.waiting = 0;
    }
    slot.store(ptr::from_ref(socket).cast_mut(), Ordering::Release);
    Some(socket)
}

/// Another descriptor leads to the same socket.
pub fn duplicate(fd: c_int, to: c_int) {
    leave(to);
    let slot = slot_of(to);
    match (of(fd), slot) {
        (Some(socket), Some(slot)) => {
            socket.descriptors.fetch_add(1, Ordering::Relaxed);
            slot.store(ptr::from_ref(socket).cast_mut(), Ordering::Release);
        }
        // Its calls would not be seen.
        (Some(socket), None) => hand_back::connection(socket, Need::All),
        (None, _) => {}
    }
}

/// The descriptor leads to its socket no longer.
pub fn leave(fd: c_int) {
    let Some(slot) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) else {
        return;
    };
    let socket = slot.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: as in `of`.
    let Some(socket) = (unsafe { socket.as_ref() }) else {
        return;
    };
    if socket.stage() == Stage::Lost {
        // A thread of the parent may have held its lock at the fork.
        return;
    }
    let is_last = socket.let_go();
    forget(socket, fd, is_last);
}

/// The descriptor, for which [`Socket::let_go`] was called, leads to its socket no longer.
pub fn let_gone(fd: c_int, is_last: bool) {
    let Some(slot) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) else {
        return;
    };
    // SAFETY: as in `of`.
    if let Some(socket) = unsafe { slot.swap(ptr::null_mut(), Ordering::AcqRel).as_ref() } {
        forget(socket, fd, is_last);
    }
}

fn forget(socket: &'static Socket, fd: c_int, is_last: bool) {
    let mut inner = socket.lock();
    if !is_last {
        if inner.fd == fd {
            inner.fd = another(socket).unwrap_or(-1);
        }
        drop(inner);
        return socket.catch_up();
    }
    socket.settle(Stage::Kernel);
    socket.generation.fetch_add(1, Ordering::Relaxed);
    let lane = inner.lane.take();
    let negotiation = inner.negotiation.take();
    drop(inner);
    drop(lane);
    drop(std::mem::take(&mut *lock(&socket.datagrams)));
    if let Some(task) = negotiation {
        task.wake();
    }
    if let Ok(mut free) = FREE.try_lock() {
        free.push(socket);
    }
}

/// The connection ends: its descriptors lead to none any more.
pub fn forget_all(socket: &'static Socket) {
    for (fd, _) in by_descriptor().filter(|(_, known)| ptr::eq(*known, socket)) {
        leave(fd);
    }
}

/// A descriptor of a socket that has several.
fn another(socket: &Socket) -> Option<c_int> {
    let is = |slot: &AtomicPtr<Socket>| ptr::eq(slot.load(Ordering::Relaxed), socket);
    used_slots()
        .iter()
        .position(is)
        .and_then(|fd| c_int::try_from(fd).ok())
}

/// Every descriptor of a socket.
pub fn by_descriptor() -> impl Iterator<Item = (c_int, &'static Socket)> {
    (0..used_slots().len()).filter_map(|fd| {
        let fd = c_int::try_from(fd).ok()?;
        of(fd).map(|socket| (fd, socket))
    })
}

/// Every socket with its descriptors, once; those whose lock is held for each descriptor. A signal
/// handler may have interrupted the thread that holds it.
pub fn all() -> impl Iterator<Item = &'static Socket> {
    by_descriptor().filter_map(|(fd, socket)| {
        let is_first = || socket.try_lock().is_none_or(|inner| inner.fd == fd);
        (socket.stage() != Stage::Lost && is_first()).then_some(socket)
    })
}

impl Socket {
    fn new() -> Socket {
        Socket {
            generation: AtomicU64::new(0),
            descriptors: AtomicU32::new(0),
            active: AtomicBool::new(false),
            is_datagram: AtomicBool::new(false),
            datagrams: Mutex::default(),
            stage: AtomicU8::new(Stage::Kernel as u8),
            calls: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            in_kernel: Calls::default(),
            sequence: AtomicU64::new(0),
            attempting: AtomicBool::new(false),
            mode: Mode::default(),
            is_alone: AtomicBool::new(false),
            left: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                fd: -1,
                lane: None,
                waiting: 0,
                kept: None,
                negotiation: None,
            }),
        }
    }

    /// How far it is.
    #[inline]
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::SeqCst) {
            1 => Stage::Candidate,
            2 => Stage::Negotiating,
            3 => Stage::Lane,
            4 => Stage::Lost,
            _ => Stage::Kernel,
        }
    }

    /// Whether it is a UDP socket.
    #[inline]
    pub fn is_datagram(&self) -> bool {
        self.is_datagram.load(Ordering::Relaxed)
    }

    /// Sets how far it is.
    pub fn settle(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::SeqCst);
    }

    /// Sets it, if it is at `from`.
    pub fn step(&self, from: Stage, to: Stage) -> bool {
        let order = Ordering::SeqCst;
        self.stage
            .compare_exchange(from as u8, to as u8, order, order)
            .is_ok()
    }

    /// Begins to try a lane, unless that happens already.
    pub fn begin_attempt(&self) -> bool {
        !self.attempting.swap(true, Ordering::AcqRel)
    }

    /// Whether a lane is being tried.
    pub fn is_attempting(&self) -> bool {
        self.attempting.load(Ordering::Relaxed)
    }

    /// Whether calls on a descriptor of a connection do not block. The kernel is asked once: what
    /// changes it is seen ([`Socket::forget_blocking`]), and no other process has a lane's
    /// connection.
    pub fn is_nonblocking(&self, fd: c_int) -> bool {
        self.mode.is_nonblocking(|| tcp::is_nonblocking(fd))
    }

    /// The program may have changed whether calls block.
    pub fn forget_blocking(&self) {
        self.mode.forget();
    }

    /// The peer has not answered for long.
    pub fn leave_alone(&self) {
        self.is_alone.store(true, Ordering::Relaxed);
    }

    /// The peer has answered.
    pub fn end_alone(&self) {
        self.is_alone.store(false, Ordering::Relaxed);
    }

    /// Whether a read may go to the kernel as the program made it: it does not wait, or no lane
    /// waits for its end.
    #[inline]
    pub fn reads_in_kernel(&self) -> bool {
        self.mode.is_known_nonblocking() || self.is_alone.load(Ordering::Relaxed)
    }

    /// Another attempt may begin.
    pub fn end_attempt(&self) {
        self.attempting.store(false, Ordering::Release);
    }

    /// The program closes it, and the agent keeps it for a while.
    pub fn leave_to_agent(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Whether the program has closed it.
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// One descriptor less leads here. Whether it was the last: of threads that close one each, one
    /// is told so.
    pub fn let_go(&self) -> bool {
        let order = Ordering::AcqRel;
        let less = |count: u32| count.checked_sub(1);
        let before = self
            .descriptors
            .fetch_update(order, Ordering::Acquire, less);
        before == Ok(1)
    }

    /// Which connection this is, among those that had this memory.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Its lock. Threads that hold it are [inside](crate::inside).
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Registers a call of the kernel that moves data without the lock; `None` if calls need it.
    #[inline]
    pub fn enter_kernel(&self) -> Option<InKernel<'_>> {
        let call = self.in_kernel.begin();
        matches!(self.stage(), Stage::Kernel | Stage::Candidate).then_some(call)
    }

    /// Whether no thread is in such a call.
    pub fn is_quiet(&self) -> bool {
        self.in_kernel.is_quiet()
    }

    /// Initial sequence number of the end that connected.
    pub fn sequence(&self) -> Option<u32> {
        let known = self.sequence.load(Ordering::Relaxed);
        (known >> 32 != 0).then_some(known as u32)
    }

    /// Keeps it.
    pub fn learn_sequence(&self, sequence: u32) {
        self.sequence
            .store(1 << 32 | u64::from(sequence), Ordering::Relaxed);
    }

    /// The waker of the lane of this connection.
    pub fn waker(&'static self) -> Waker {
        Waker::from(Arc::new(Events {
            socket: self,
            generation: self.generation(),
        }))
    }

    /// Its lock, unless a thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(inner),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Handles events of the lane that came while another thread had the lock. To be called after
    /// each release of it.
    pub fn catch_up(&'static self) {
        while self.woken.load(Ordering::SeqCst) {
            // Its holder catches up.
            let Some(inner) = self.try_lock() else { return };
            self.woken.store(false, Ordering::SeqCst);
            self.handle(inner);
        }
    }

    fn handle(&'static self, mut inner: MutexGuard<'_, Inner>) {
        let fd = inner.fd;
        if let Some(lane) = &mut inner.lane {
            lane.progress(fd);
        }
        let retired = hand_back::after_event(self, &mut inner);
        let task = inner.negotiation.clone();
        drop(inner);
        drop(retired);
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// What a lane wakes.
struct Events {
    socket: &'static Socket,
    generation: u64,
}

impl Wake for Events {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.socket.generation() == self.generation {
            self.socket.woken.store(true, Ordering::SeqCst);
            catch_up_later(self.socket);
        }
    }
}

/// Locks a mutex. Nothing behind one is changed in two steps.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that two processes hold gets no lane.
pub fn share_all() {
    for (_, socket) in by_descriptor() {
        socket.step(Stage::Candidate, Stage::Kernel);
        socket.step(Stage::Negotiating, Stage::Kernel);
    }
}

/// In a child after fork: its sockets are the kernel's. What the lane brought of a connection that
/// was handed back before, and is unread, stays with the parent: the child's calls fail.
pub fn in_child() {
    OWNER.store(0, Ordering::Relaxed);
    // A thread of the parent may have held the lock of one of them.
    if let Ok(mut free) = FREE.try_lock() {
        std::mem::forget(std::mem::take(&mut *free));
    }
    for slot in used_slots() {
        // SAFETY: as in `of`.
        let Some(socket) = (unsafe { slot.load(Ordering::Relaxed).as_ref() }) else {
            continue;
        };
        match socket.stage() {
            _ if socket.is_left() => slot.store(ptr::null_mut(), Ordering::Relaxed),
            Stage::Lane | Stage::Negotiating | Stage::Lost => socket.settle(Stage::Lost),
            Stage::Kernel | Stage::Candidate => slot.store(ptr::null_mut(), Ordering::Relaxed),
        }
    }
}

/// The process whose descriptors the table has.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Whether the table is that of the calling process, and not of the parent of a child of
/// `vfork(2)`.
pub fn is_own_table() -> bool {
    OWNER.load(Ordering::Relaxed) == std::process::id()
}

/// Whether the calling process is a child of `vfork(2)`, which shares the table with its parent.
pub fn is_of_parent() -> bool {
    OWNER.load(Ordering::Relaxed) != 0 && !is_own_table()
}

/// Whether the descriptor is a TCP socket, for [`enter`].
pub fn is_candidate(fd: c_int) -> bool {
    (0..DESCRIPTORS as c_int).contains(&fd) && tcp::is_tcp(fd)
}

/// Before a message goes to another process: connections whose descriptors are in it are handed
/// back.
///
/// # Safety
/// The message is the program's.
pub unsafe fn passed(message: &libc::msghdr) {
    // SAFETY: the caller's promise; the macros stay within the message's control bytes.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        let empty = libc::CMSG_LEN(0) as usize;
        while let Some(control) = header.as_ref() {
            let at = ptr::from_ref(control) as usize - message.msg_control as usize;
            if !(empty..=message.msg_controllen - at).contains(&control.cmsg_len) {
                // The kernel refuses the message.
                return;
            }
            if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let fds = libc::CMSG_DATA(control).cast::<c_int>();
                for index in 0..(control.cmsg_len - empty) / size_of::<c_int>() {
                    hand_back::descriptor(fds.add(index).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_threads_that_close_a_descriptor_each_one_closes_the_last() {
        let socket = Socket::new();
        socket.descriptors.store(2, Ordering::Relaxed);
        let told: Vec<bool> = (0..3).map(|_| socket.let_go()).collect();
        assert_eq!(told, [false, true, false]);
    }

    #[test]
    fn a_control_message_of_a_wrong_length_has_no_descriptors() {
        #[repr(C, align(8))]
        struct Control(libc::cmsghdr, [c_int; 2]);
        for length in [0, 1, size_of::<libc::cmsghdr>() - 1, usize::MAX] {
            let header = libc::cmsghdr {
                cmsg_len: length,
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            };
            let mut control = Control(header, [-1; 2]);
            // SAFETY: all zeros is an empty message.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = size_of::<Control>();
            // SAFETY: the message is whole, but for the length in its control message.
            unsafe { passed(&message) };
        }
    }
}
