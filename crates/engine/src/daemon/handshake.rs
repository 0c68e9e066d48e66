//! The greeting of a client, and the checks of what it passed.
//!
//! | passed | checked |
//! |---|---|
//! | the process | of the daemon's user, by SO_PEERCRED |
//! | its memory | the name of the descriptor is `/proc/PID/mem` of that process, in the file system of `/proc` |
//! | shared memory | a file in memory, sealed against shrinking, of a bounded size; no huge pages, whose lack would end the daemon |
//! | versions | both, before all else that the greeting says |
//! | network namespace | that of the daemon |

use super::client::{Chunks, Greeted};
use crate::Error;
use crate::index::DOORBELLS;
use crate::memory::foreign::Foreign;
use crate::progress::eventfd::EventFd;
use crate::queues::async_event::AsyncEvents;
use crate::queues::shared_page::SharedPage;
use crate::remote::protocol::{Hello, NoGreeting, Versions, Welcome};
use crate::remote::socket::{Peer, Socket};
use crate::sharing::runtime_dir;
use airdma_shm::Doorbells;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Why a client is not served.
pub(super) struct Refusal {
    errno: i32,
    message: String,
}

/// A greeting whose descriptors are what they should be.
pub(super) struct Greeting {
    peer: Peer,
    pub(super) interface_index: u32,
    memory: Foreign,
    page: SharedPage,
    doorbells: Doorbells,
    chunks: Chunks,
}

/// Receives and checks the greeting, which is there.
pub(super) fn receive(socket: &Socket) -> Result<Greeting, Refusal> {
    let peer = socket.peer()?;
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    if peer.user != user {
        return Err(Refusal::new(
            libc::EPERM,
            format!(
                "process {} is user {}'s, and the daemon is user {user}'s",
                peer.process, peer.user
            ),
        ));
    }
    let mut buffer = [0; 256];
    let got = socket.receive(&mut buffer, false)?;
    let got = got
        .ok_or_else(|| Refusal::new(libc::EPIPE, "the program closed the connection".to_owned()))?;
    let hello = Hello::decode(&buffer[..got.length]).map_err(|error| match error {
        NoGreeting::Other(versions) => Refusal::new(
            libc::EPROTO,
            format!(
                "the program speaks version {versions}, and the daemon {}: install the same airdma \
                 for both",
                Versions::OURS
            ),
        ),
        NoGreeting::Malformed => {
            Refusal::new(libc::EPROTO, "the program sent no greeting".to_owned())
        }
    })?;
    if hello.network != runtime_dir::network_namespace()? {
        return Err(Refusal::new(
            libc::ENODEV,
            "the program is in another network namespace, whose devices this daemon does not have"
                .to_owned(),
        ));
    }
    let descriptors: [OwnedFd; 3] = got.descriptors.try_into().map_err(|_| {
        Refusal::new(
            libc::EPROTO,
            "the greeting lacks its descriptors".to_owned(),
        )
    })?;
    let [memory, page, doorbells] = descriptors;
    let memory = memory_of(peer, memory)?;
    let mut chunks = Chunks::default();
    let page = SharedPage::attach(chunks.block(page, hello.page)?);
    let page = page.map_err(|_| Refusal::corrupt("the shared page"))?;
    let seen = page.clone();
    let memory = Foreign::new(memory, Box::new(move || seen.lends_memory()));
    let doorbells = Arc::new(chunks.block(doorbells, hello.doorbells)?);
    let doorbells = Doorbells::attach(doorbells, DOORBELLS);
    let doorbells = doorbells.map_err(|_| Refusal::corrupt("the doorbells"))?;
    Ok(Greeting {
        peer,
        interface_index: hello.interface_index,
        memory,
        page,
        doorbells,
        chunks,
    })
}

/// Answers a greeting.
pub(super) fn accept(socket: &Socket, greeting: Greeting, number: u64) -> Result<Greeted, Refusal> {
    let (events_here, events_there) = Socket::pair()?;
    let (wake_client, woken) = Socket::pair()?;
    let wake_daemon = EventFd::nonblocking()?;
    let client = Greeted {
        number,
        process: greeting.peer.process,
        memory: Arc::new(greeting.memory),
        page: greeting.page,
        doorbells: greeting.doorbells,
        chunks: greeting.chunks,
        events: Arc::new(AsyncEvents::out_of_sight()?),
        event_socket: events_here,
        wake_client,
        wake_daemon,
    };
    let beside: [BorrowedFd<'_>; 3] = [
        woken.as_fd(),
        client.wake_daemon.as_fd(),
        events_there.as_fd(),
    ];
    socket.send(&Welcome::Accepted(number).encode(), &beside, false)?;
    Ok(client)
}

/// Checks that a descriptor is that process's memory: another file could block the daemon.
fn memory_of(peer: Peer, memory: OwnedFd) -> Result<File, Refusal> {
    let link = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let name = std::fs::read_link(link)?;
    let wanted = format!("/proc/{}/mem", peer.process);
    // A file system of the client's own may have such a name: it is not asked for anything.
    let is_of_proc =
        || Ok::<_, io::Error>(device_of(&memory)? == device_of(&File::open("/proc")?)?);
    if name.as_os_str() != wanted.as_str() || !is_of_proc()? {
        return Err(Refusal::new(
            libc::EINVAL,
            format!("the program passed {} in place of {wanted}", name.display()),
        ));
    }
    Ok(File::from(memory))
}

/// The device of a file's file system, as this kernel has it, without a question to a server of it.
fn device_of(file: &impl AsRawFd) -> io::Result<(u32, u32)> {
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let (fd, empty) = (file.as_raw_fd(), c"".as_ptr());
    // SAFETY: an empty path, and room for the answer.
    if unsafe { libc::statx(fd, empty, flags, 0, found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeros are an answer, and the call succeeded.
    let found = unsafe { found.assume_init() };
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// The kind of the file system that a file is in.
pub(super) fn file_system(file: &BorrowedFd<'_>) -> io::Result<libc::c_long> {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: room for the answer.
    if unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded and has filled it.
    Ok(unsafe { found.assume_init() }.f_type)
}

impl Refusal {
    pub(super) fn new(errno: i32, message: String) -> Self {
        Refusal { errno, message }
    }

    pub(super) fn full(what: &str) -> Self {
        Refusal::new(libc::ENOMEM, format!("the daemon has no more {what}"))
    }

    fn corrupt(what: &str) -> Self {
        Refusal::new(libc::EPROTO, format!("{what} does not fit its block"))
    }

    /// Tells the client, if it reads.
    pub(super) fn send(self, socket: &Socket) {
        let Refusal { errno, message } = self;
        let refused = Welcome::Refused { errno, message };
        socket.send(&refused.encode(), &[], false).ok();
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
        Refusal::new(errno, error.to_string())
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::new(error.errno(), error.to_string())
    }
}
