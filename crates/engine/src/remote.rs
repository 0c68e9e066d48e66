//! The client's side of a daemon ([`crate::daemon`]): a device whose worker is in another process.
//!
//! Objects are as in a process: rings in this process's arena, their states in its heap. Requests
//! of objects ([`Control`]) cross a socket, with the files of their rings beside them. A round of
//! the local worker, which has neither port nor queue pairs, forwards doorbells to the daemon
//! ([`Remote::forward`]) and looks for what the daemon did ([`Remote::look`]). So threads that
//! poll, wait or sleep do as they do in a process, and sleep on the daemon's descriptors in place
//! of a port's.

pub(crate) mod connections;
mod flush;
pub(crate) mod protocol;
pub(crate) mod socket;
#[cfg(test)]
mod tests;

use crate::control::{
    Beside, Control, MemoryControl, QueueControl, QueuePairControl, Reply, WRONG_BESIDE,
    WRONG_REPLY, encoding,
};
use crate::error::errno_of;
use crate::index::{CqHandle, DOORBELLS, Doorbell, QpHandle, QpIndex, Serial, first_serial_of};
use crate::progress::eventfd::EventFd;
use crate::queues::async_event::{AsyncEvents, EventOwner};
use crate::queues::cq_shared::CqShared;
use crate::queues::cq_watch::CqWatch;
use crate::queues::qp_shared::QpShared;
use crate::queues::shared_page::SharedPage;
use crate::{AsyncEvent, AttrMask, Error, QpEvent, QpState};
use airdma_shm::{Arena, Block, Doorbells};
use airdma_transport::Time;
use connections::Connections;
use protocol::{Event, Extent, Hello, NoGreeting, Versions, Welcome};
use socket::Socket;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use protocol::check_bytes;

/// How often a thread that never sleeps looks whether the daemon lives.
const LOOK_EVERY: Duration = Duration::from_millis(10);

const OWN_MEMORY: &str = "/proc/self/mem";

/// The connection of one device to its daemon.
pub(crate) struct Remote {
    path: PathBuf,
    /// One request at a time.
    control: Mutex<Socket>,
    /// The same, for calls that nothing waits in.
    control_fd: RawFd,
    events: Socket,
    page: Arc<SharedPage>,
    doorbells: Doorbells,
    wake_daemon: EventFd,
    /// A packet of the daemon makes it readable.
    wake_us: Socket,
    /// A thread of this process makes it readable that is about to sleep and has found work.
    wake_self: EventFd,
    first_serial: Serial,
    objects: Mutex<Objects>,
    connections: Mutex<Connections>,
    /// When the socket is looked at next, in nanoseconds.
    look_at: Mutex<Time>,
    /// The daemon has ended: requests are flushed here.
    is_over: AtomicBool,
}

/// What the daemon adds completions to, and reports events of.
#[derive(Default)]
struct Objects {
    cqs: HashMap<Serial, Arc<CqShared>>,
    qps: HashMap<QpIndex, RemoteQp>,
}

/// A queue pair that the daemon runs.
struct RemoteQp {
    serial: Serial,
    shared: Arc<QpShared>,
    events: Arc<AsyncEvents>,
    /// The memory of its rings, of which the daemon has the other ends.
    send: Arc<Block>,
    recv: Arc<Block>,
    send_cq: Option<CqHandle>,
    recv_cq: Option<CqHandle>,
}

/// What a look found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Queues with new completions, and events.
    pub(crate) news: usize,
    /// The daemon has ended since the last look.
    pub(crate) ended: bool,
}

impl Remote {
    /// Asks the daemon at `path` for the device on an interface of this network namespace.
    ///
    /// # Errors
    /// No daemon listens there, or it is another user's; it refused, or speaks another version.
    pub(crate) fn connect(
        path: &Path,
        arena: &Arena,
        network: u64,
        interface_index: u32,
    ) -> io::Result<Self> {
        let named = |what: &str, error: &io::Error| {
            let message = format!("AIRDMA_DAEMON={}: {what}: {error}", path.display());
            match errno_of(error) {
                Some(errno) => io::Error::new(error.kind(), Error::System { message, errno }),
                None => io::Error::new(error.kind(), message),
            }
        };
        let control = Socket::connect(path, protocol::ANSWER_TIME_MAX).map_err(|error| {
            named(
                "no daemon answers (start `airdma daemon`)",
                &no_device(error),
            )
        })?;
        check_owner(&control).map_err(|error| named("the daemon is not trusted", &error))?;
        let memory = File::options().read(true).write(true).open(OWN_MEMORY);
        let memory =
            memory.map_err(|error| named("the program cannot open its own memory", &error))?;
        let page = SharedPage::new(arena)?;
        let doorbells = Doorbells::new(arena, DOORBELLS)?;
        let hello = Hello {
            network,
            interface_index,
            page: extent_of(page.block()),
            doorbells: extent_of(doorbells.block()),
        };
        let beside = [memory.as_fd(), page.block().fd(), doorbells.block().fd()];
        let greeted = greet(&control, &hello, &beside);
        let (number, [wake_us, wake_daemon, events]) =
            greeted.map_err(|error| named("the daemon does not serve this device", &error))?;
        Ok(Remote {
            path: path.to_owned(),
            control_fd: control.fd(),
            control: Mutex::new(control),
            events: Socket::from_other(events),
            page: Arc::new(page),
            doorbells,
            wake_daemon: EventFd::from_other(wake_daemon),
            wake_us: Socket::from_other(wake_us),
            wake_self: EventFd::nonblocking()?,
            first_serial: first_serial_of(number),
            objects: Mutex::default(),
            connections: Mutex::default(),
            look_at: Mutex::new(Time::ZERO),
            is_over: AtomicBool::new(false),
        })
    }

    /// The first serial number of this client's objects.
    pub(crate) fn first_serial(&self) -> Serial {
        self.first_serial
    }

    /// What a thread sleeps on that waits for the daemon.
    pub(crate) fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend([self.wake_us.fd(), self.wake_self.fd(), self.events.fd()]);
    }

    /// What a child after fork must close, beside those: the daemon sees the end of a client by it.
    pub(crate) fn lifeline(&self) -> RawFd {
        self.control_fd
    }

    /// A doorbell rang: the daemon takes what was posted.
    pub(crate) fn forward(&self, doorbell: Doorbell) {
        if self.is_over() {
            return self.flush_at(doorbell);
        }
        self.doorbells.ring(doorbell.get());
        if self.page.must_wake_daemon() {
            self.wake_daemon.signal();
        }
    }

    /// A thread is about to sleep on the descriptors.
    pub(crate) fn will_sleep(&self) {
        self.page.will_sleep();
        let objects = self.objects();
        let mut watches = objects.cqs.values().filter(|cq| cq.is_armed_at_daemon());
        if watches.any(|cq| cq.watch.as_ref().is_some_and(CqWatch::has_news)) {
            self.wake_self.signal();
        }
    }

    /// It sleeps no more. What woke it is taken back, whatever the page says: a look follows.
    pub(crate) fn woke(&self) {
        self.page.woke();
        self.take_wake_ups();
    }

    /// Takes wake-ups back. The descriptors come first: the daemon makes them readable after it has
    /// changed the word in the page.
    fn take_wake_ups(&self) {
        self.wake_self.clear();
        while let Ok(Some(_)) = self.wake_us.receive(&mut [0; 8], false) {}
        self.page.take_signal();
    }

    /// Looks for completions, events, and the end of the daemon.
    pub(crate) fn look(&self, now: Time) -> Found {
        if self.page.is_signalled() {
            self.take_wake_ups();
        }
        let mut found = Found::default();
        if (self.page.take_events() || self.is_time(now)) && !self.is_over() {
            found.ended = self.take_events(&mut found.news);
        }
        if self.page.take_armed() {
            for cq in self.objects().cqs.values() {
                if let Some(watch) = cq.watch.as_ref().filter(|_| cq.is_armed_at_daemon()) {
                    watch.note_armed();
                    found.news += usize::from(cq.look());
                }
            }
        }
        found
    }

    fn is_time(&self, now: Time) -> bool {
        let Ok(mut look_at) = self.look_at.try_lock() else {
            return false;
        };
        let is_due = now >= *look_at;
        if is_due {
            *look_at = now + LOOK_EVERY;
        }
        is_due
    }

    /// Takes the events that the daemon has sent. Returns whether it has ended.
    fn take_events(&self, count: &mut usize) -> bool {
        let mut packet = [0; protocol::EVENT_BYTES_MAX];
        loop {
            match self.events.receive(&mut packet, false) {
                Ok(Some(got)) => {
                    if let Some(event) = Event::decode(&packet[..got.length]) {
                        *count += 1;
                        self.raise(event);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Ok(None) | Err(_) => return self.end(),
            }
        }
    }

    /// Raises an event as the worker of this process would have.
    fn raise(&self, event: Event) {
        let objects = self.objects();
        match event {
            Event::Qp(number, event) => {
                let is_it = |qp: &&RemoteQp| qp.shared.number.get() == number;
                let Some(qp) = objects.qps.values().find(is_it) else {
                    return;
                };
                match event {
                    QpEvent::Fatal | QpEvent::AccessError | QpEvent::RequestError => {
                        qp.shared.state.set(QpState::Error);
                    }
                    QpEvent::CommunicationEstablished
                    | QpEvent::SendQueueDrained
                    | QpEvent::LastWqeReached => {}
                }
                let number = qp.shared.number;
                let cookie = qp.shared.cookie.load(Ordering::Relaxed);
                qp.events.push((
                    EventOwner::Qp(number),
                    AsyncEvent::Qp {
                        number,
                        cookie,
                        event,
                    },
                ));
            }
            Event::CqError(serial) => {
                if let Some(cq) = objects.cqs.get(&serial) {
                    cq.overrun.store(true, Ordering::Release);
                    let cookie = cq.cookie.load(Ordering::Relaxed);
                    cq.events
                        .push((EventOwner::Cq(serial), AsyncEvent::CqError { cookie }));
                }
            }
            Event::DeviceFatal => {
                let mut told: Vec<&Arc<AsyncEvents>> = Vec::new();
                for qp in objects.qps.values() {
                    qp.shared.state.set(QpState::Error);
                    if !told.iter().any(|events| Arc::ptr_eq(events, &qp.events)) {
                        told.push(&qp.events);
                    }
                }
                for events in told {
                    events.push((EventOwner::Device, AsyncEvent::DeviceFatal));
                }
            }
            Event::Cm(event) => {
                drop(objects);
                self.tell(event);
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Lets the daemon handle a request.
    ///
    /// # Errors
    /// Those of the request; `EOPNOTSUPP` for what a daemon does not carry; `ENODEV` once it ended.
    pub(crate) fn ask(&self, control: Control<'_>, beside: Beside<'_>) -> Result<Reply, Error> {
        if self.is_over() {
            return self.answer_alone(&control);
        }
        match (control, beside) {
            (
                Control::Queue {
                    call: call @ QueueControl::CreateCompletions { .. },
                },
                Beside::CompletionQueue(new),
            ) => {
                let QueueControl::CreateCompletions {
                    serial,
                    cookie,
                    options,
                } = call
                else {
                    return Err(WRONG_BESIDE);
                };
                let block = Arc::clone(new.ring.block());
                let reply = self.call(&Control::Queue { call }, &[&block])?;
                let watch = CqWatch::new(block, Arc::clone(&self.page));
                let watch = watch.map_err(|_| WRONG_BESIDE)?;
                let channel = new.channel.map(|channel| (channel, cookie));
                let mut shared = CqShared::new(serial, channel, new.events, options);
                shared.watch = Some(watch);
                let shared = Arc::new(shared);
                self.objects().cqs.insert(serial, Arc::clone(&shared));
                *new.made = Some(shared);
                Ok(reply)
            }
            (Control::CreateQueuePair { init }, Beside::QueuePair(new)) => {
                let (send, recv) = (
                    Arc::clone(new.send.0.block()),
                    Arc::clone(new.recv.0.block()),
                );
                let reply = self.call(&Control::CreateQueuePair { init }, &[&send, &recv])?;
                let Reply::QueuePair { index, number } = reply else {
                    return Err(WRONG_REPLY);
                };
                let sizes = (init.qp_type, init.caps, init.signal_all);
                let mut shared = QpShared::new(number, index, sizes, new.send.0, new.recv.0);
                shared.is_at_daemon = true;
                let shared = Arc::new(shared);
                let qp = RemoteQp {
                    serial: init.serial,
                    shared: Arc::clone(&shared),
                    events: new.events,
                    send,
                    recv,
                    send_cq: init.send_cq,
                    recv_cq: init.recv_cq,
                };
                self.objects().qps.insert(index, qp);
                *new.made = Some(shared);
                Ok(reply)
            }
            (control, Beside::Nothing | Beside::Completions(_)) if carries(&control) => {
                let reply = self.call(&control, &[])?;
                self.follow(&control);
                Ok(reply)
            }
            (Control::Cm { call }, beside) => self.ask_cm(call, beside),
            (Control::Connection { call }, beside) => self.ask_connection(call, beside),
            _ => Err(NOT_CARRIED),
        }
    }

    /// What a request changes here, once the daemon has handled it.
    fn follow(&self, control: &Control<'_>) {
        if let Control::QueuePair { qp, call } = control {
            if let QueuePairControl::Modify {
                attributes, mask, ..
            } = call
                && mask.contains(AttrMask::STATE)
                && let Some(known) = self.objects().qps.get(&qp.index)
            {
                known.shared.state.set(attributes.state);
            }
            if *call == QueuePairControl::Destroy {
                self.forget(*qp);
            }
        }
        if let Control::Queue {
            call: QueueControl::DestroyCompletions { cq },
        } = control
        {
            self.objects().cqs.remove(&cq.serial);
        }
    }

    fn forget(&self, qp: QpHandle) {
        let mut objects = self.objects();
        if let std::collections::hash_map::Entry::Occupied(found) = objects.qps.entry(qp.index)
            && found.get().serial == qp.serial
        {
            found.remove();
        }
    }

    /// The answer to a request after the end of the daemon: objects can be destroyed, and do
    /// nothing else.
    fn answer_alone(&self, control: &Control<'_>) -> Result<Reply, Error> {
        let reply = match control {
            Control::Cm { call } => connections::answer_alone(call),
            Control::Connection { call } => self.end_connection_alone(call),
            Control::QueuePair { call, .. } => alone(call),
            Control::Queue { call } => {
                matches!(call, QueueControl::DestroyCompletions { .. }).then_some(Reply::Done)
            }
            Control::Memory { call } => {
                let is_end = matches!(
                    call,
                    MemoryControl::Deregister { .. }
                        | MemoryControl::FreeWindow { .. }
                        | MemoryControl::CloseWindows { .. }
                );
                is_end.then_some(Reply::Done)
            }
            Control::Flush | Control::CreateQueuePair { .. } => None,
        };
        if reply.is_some() {
            self.follow(control);
        }
        reply.ok_or_else(|| Error::System {
            message: format!(
                "the daemon at {} has ended: close the device, and open it again",
                self.path.display()
            ),
            errno: libc::ENODEV,
        })
    }

    /// Sends a request and waits for the reply.
    fn call(&self, control: &Control<'_>, blocks: &[&Arc<Block>]) -> Result<Reply, Error> {
        let extents: Vec<Extent> = blocks.iter().map(|block| extent_of(block)).collect();
        let files: Vec<BorrowedFd<'_>> = blocks.iter().map(|block| block.fd()).collect();
        let mut packet = protocol::put_blocks(&extents);
        packet.extend(encoding::encode(control));
        let socket = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = vec![0; protocol::PACKET_BYTES_MAX];
        let answer = socket
            .send(&packet, &files, true)
            .and_then(|()| socket.receive(&mut buffer, true));
        match answer {
            Ok(Some(got)) => match encoding::decode::<Reply>(&buffer[..got.length]) {
                Ok(reply) => reply.into(),
                Err(encoding::Malformed) => Err(WRONG_REPLY),
            },
            Ok(None) | Err(_) => {
                // A later reply would be taken for that of a later request.
                self.leave();
                drop(socket);
                self.answer_ended()
            }
        }
    }

    /// Ends the connection, from which the daemon learns that the memory is no longer its own to
    /// use.
    fn leave(&self) {
        self.page.take_memory_back();
        for fd in [self.control_fd, self.events.fd()] {
            // SAFETY: a descriptor of ours; the call takes no pointer.
            unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
        }
    }

    fn answer_ended(&self) -> Result<Reply, Error> {
        Err(Error::System {
            message: format!("the daemon at {} does not answer", self.path.display()),
            errno: libc::ENODEV,
        })
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CqShared {
    fn is_armed_at_daemon(&self) -> bool {
        self.channel.is_some() && self.alarm.is_armed()
    }
}

/// What programs may ask for, and a daemon does not carry yet.
const NOT_CARRIED: Error = Error::Unsupported(
    "a daemon (AIRDMA_DAEMON) carries no shared receive queue, extended connection, completion \
     counter, record, raw packet or resized queue yet: this",
);

/// Whether a request without anything beside it goes to the daemon.
fn carries(control: &Control<'_>) -> bool {
    match control {
        Control::Flush => true,
        Control::Memory { call } => !matches!(
            call,
            MemoryControl::RegisterRecords { .. } | MemoryControl::RegisterGroupRecords { .. }
        ),
        Control::Queue { call } => matches!(
            call,
            QueueControl::PurgeCompletions { .. } | QueueControl::DestroyCompletions { .. }
        ),
        Control::QueuePair { call, .. } => !matches!(
            call,
            QueuePairControl::AttachCounter { .. }
                | QueuePairControl::EnableRecords { .. }
                | QueuePairControl::CloseRecord { .. }
                | QueuePairControl::EnableReliable { .. }
                | QueuePairControl::ReadRecord { .. }
                | QueuePairControl::NoteApplicationBuffer
        ),
        Control::CreateQueuePair { .. } | Control::Cm { .. } | Control::Connection { .. } => false,
    }
}

/// The answer about a queue pair whose daemon has ended, if there is one.
fn alone(call: &QueuePairControl) -> Option<Reply> {
    let is_done = matches!(
        call,
        QueuePairControl::RepeatLastAnswer
            | QueuePairControl::DetachAll
            | QueuePairControl::Destroy
    );
    let is_yes_no = matches!(
        call,
        QueuePairControl::Retire | QueuePairControl::IsFinished | QueuePairControl::IsAttached
    );
    let yes = *call != QueuePairControl::IsAttached;
    let answer = is_yes_no.then_some(Reply::Answer { yes });
    answer.or(is_done.then_some(Reply::Done))
}

/// Where no daemon listens there is no device.
fn no_device(error: io::Error) -> io::Error {
    let none = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    if !none.contains(&error.kind()) {
        return error;
    }
    let message = error.to_string();
    let errno = libc::ENODEV;
    io::Error::new(error.kind(), Error::System { message, errno })
}

/// A daemon of this user or of root: it gets all of this process's memory.
fn check_owner(control: &Socket) -> io::Result<()> {
    let peer = control.peer()?;
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    if peer.user == user || peer.user == 0 {
        return Ok(());
    }
    let message = format!(
        "the daemon is user {}'s: only one of this user ({user}) or of root is trusted",
        peer.user
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Sends the greeting; returns the client's number and what came beside the answer.
fn greet(
    control: &Socket,
    hello: &Hello,
    beside: &[BorrowedFd<'_>],
) -> io::Result<(u64, [std::os::fd::OwnedFd; 3])> {
    control.send(&hello.encode(), beside, true)?;
    let mut buffer = [0; protocol::WELCOME_BYTES_MAX];
    let Some(got) = control.receive(&mut buffer, true)? else {
        return Err(io::Error::other("the daemon closed the connection"));
    };
    match Welcome::decode(&buffer[..got.length]) {
        Ok(Welcome::Accepted(number)) => {
            let descriptors = got.descriptors.try_into();
            let descriptors = descriptors
                .map_err(|_| io::Error::other("the daemon passed too few descriptors"))?;
            Ok((number, descriptors))
        }
        Ok(Welcome::Refused { errno, message }) => {
            let kind = io::Error::from_raw_os_error(errno).kind();
            Err(io::Error::new(kind, Error::System { message, errno }))
        }
        Err(NoGreeting::Other(versions)) => Err(io::Error::other(format!(
            "it speaks version {versions}, and this program {}: install the same airdma for both, \
             and restart the daemon",
            Versions::OURS
        ))),
        Err(NoGreeting::Malformed) => {
            Err(io::Error::other("what listens there is no airdma daemon"))
        }
    }
}

fn extent_of(block: &Block) -> Extent {
    Extent {
        offset: block.offset(),
        length: block.len() as u64,
    }
}
