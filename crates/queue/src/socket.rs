//! The socket of a service. A program that may open it may queue, see and cancel every job.

use crate::lines::{Line, next_line};
use crate::own;
use crate::protocol::{REQUEST_BYTES_MAX, RefusalKind, Reply, Request};
use crate::service::{Service, ServiceError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::Mode;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{DirBuilder, File, Metadata, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most programs connected at a time. Beyond, the one that has been silent for longest is
/// disconnected.
pub const CONNECTIONS_MAX: usize = 32;
/// Silence after which a program is disconnected.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Time in which a program must read its answer, however little it reads at a time.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of an answer that are written at once.
const PIECE_BYTES: usize = 4096;
/// Most programs that wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening socket. Dropping it removes it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file at the path, which may have been replaced by another service's.
    file: (u64, u64),
    /// Eventfd that wakes [`Socket::serve`] to check for its end. A connection to the path would
    /// not do: the file may be another by then.
    bell: Arc<OwnedFd>,
    /// Holds the lock while the socket exists.
    _lock: File,
}

impl Socket {
    /// Makes a socket that only this user can open.
    ///
    /// # Errors
    /// Another service listens there; another kind of file is there; the system's error.
    pub fn bind(path: &Path) -> Result<Socket, ServiceError> {
        let failed = |what: &str| {
            let what = format!("{}: {what}", path.display());
            move |error: io::Error| ServiceError::Socket(format!("{what}: {error}"))
        };
        if let Some(directory) = path.parent() {
            let mut builder = DirBuilder::new();
            let made = builder.recursive(true).mode(0o700).create(directory);
            made.map_err(failed("the directory of the socket"))?;
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = own::options().create(true).open(&name);
        let lock = lock.map_err(failed("the lock beside it"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ServiceError::Socket(format!(
                    "another `airdma serve` listens at {}: use that one, or give another --socket",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(failed("the lock beside it")(error)),
        }
        remove_former(path).map_err(failed("what is at its place"))?;
        let (listener, file) = bind_private(path).map_err(failed("listening there"))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Socket {
            listener,
            path: path.to_owned(),
            file,
            bell: Arc::new(bell.map_err(io::Error::from)?),
            _lock: lock,
        })
    }

    /// Answers programs until `service` has been stopped and [`Socket::waker`] was called.
    ///
    /// Programs that are still connected then stay so until the process ends.
    ///
    /// # Errors
    /// The system's error.
    pub fn serve(&self, service: &Arc<Service>) -> io::Result<()> {
        self.listener.set_nonblocking(true)?;
        let programs = Arc::new(Programs::default());
        while !service.is_stopping() {
            let readable = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.bell, PollFlags::IN),
            ];
            match poll(&mut { readable }, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                // A lack of descriptors, for example, is temporary.
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            let Ok(stream) = stream.set_nonblocking(false).map(|()| Arc::new(stream)) else {
                continue;
            };
            if !programs.enter(&stream) {
                refuse(
                    &stream,
                    &format!("{CONNECTIONS_MAX} programs are connected"),
                );
                continue;
            }
            let answered = (
                Arc::clone(&programs),
                Arc::clone(service),
                Arc::clone(&stream),
            );
            let thread = std::thread::Builder::new().name("airdma-queue".into());
            let spawned = thread.spawn(move || {
                let (programs, service, stream) = answered;
                // A program may disconnect at any time.
                let _ = converse(&stream, &service, &programs);
                programs.leave(&stream);
            });
            // A lack of threads is temporary: the next program may get one.
            if spawned.is_err() {
                programs.leave(&stream);
                refuse(&stream, "there is no thread to answer with");
            }
        }
        Ok(())
    }

    /// Returns a function that wakes [`Socket::serve`] from another thread to check for its end.
    pub fn waker(&self) -> impl Fn() + Send + 'static {
        let bell = Arc::clone(&self.bell);
        move || {
            // The eventfd is full only if it was signalled already.
            let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another service may have its socket there.
        let there = std::fs::symlink_metadata(&self.path);
        if there.is_ok_and(|there| number(&there) == self.file) {
            // If it is gone already, nothing is left to do.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn number(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Removes the socket of a service that was killed: the holder of the lock knows that it has no
/// listener.
fn remove_former(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(former) if former.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "not a socket: move it away, or give another --socket",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Binds a socket that only this user can ever open.
///
/// It is renamed to its path once it listens, so that every program that finds it can connect.
fn bind_private(path: &Path) -> io::Result<(UnixListener, (u64, u64))> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    remove_former(&new)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file gets the mode that the socket has now. A umask would affect every thread.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    net::bind(&socket, &SocketAddrUnix::new(&new)?)?;
    net::listen(&socket, BACKLOG)?;
    let file = number(&std::fs::symlink_metadata(&new)?);
    std::fs::rename(&new, path)?;
    Ok((socket.into(), file))
}

/// The connected programs.
///
/// Silent ones are in the order of their last request; those being answered are kept apart.
#[derive(Default)]
struct Programs(Mutex<Connected>);

#[derive(Default)]
struct Connected {
    silent: Vec<Arc<UnixStream>>,
    answered: Vec<Arc<UnixStream>>,
}

impl Programs {
    /// Makes room for one more program, disconnecting the one that has been silent for longest;
    /// false if there is none.
    fn enter(&self, stream: &Arc<UnixStream>) -> bool {
        let mut connected = self.connected();
        if connected.silent.len() + connected.answered.len() >= CONNECTIONS_MAX {
            if connected.silent.is_empty() {
                return false;
            }
            // Its thread ends at the next read. A program that has disconnected already needs no
            // shutdown.
            let _ = connected.silent.remove(0).shutdown(Shutdown::Both);
        }
        connected.silent.push(Arc::clone(stream));
        true
    }

    /// Notes a request: the program stays connected until it is answered.
    fn ask(&self, stream: &Arc<UnixStream>) {
        let mut connected = self.connected();
        if remove(&mut connected.silent, stream) {
            connected.answered.push(Arc::clone(stream));
        }
    }

    /// Notes that the request was answered.
    fn answer(&self, stream: &Arc<UnixStream>) {
        let mut connected = self.connected();
        if remove(&mut connected.answered, stream) {
            connected.silent.push(Arc::clone(stream));
        }
    }

    fn leave(&self, stream: &Arc<UnixStream>) {
        let mut connected = self.connected();
        remove(&mut connected.silent, stream);
        remove(&mut connected.answered, stream);
    }

    fn connected(&self) -> MutexGuard<'_, Connected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(streams: &mut Vec<Arc<UnixStream>>, stream: &Arc<UnixStream>) -> bool {
    let before = streams.len();
    streams.retain(|other| !Arc::ptr_eq(other, stream));
    streams.len() < before
}

fn refuse(mut stream: &UnixStream, why: &str) {
    let busy = format!("{why}: try again");
    // A program that does not read must not block the service.
    let _ = stream.set_nonblocking(true);
    let _ = tell(&mut stream, &Reply::error(RefusalKind::Busy, busy));
}

fn converse(stream: &Arc<UnixStream>, service: &Service, programs: &Programs) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let mut requests = BufReader::new(&**stream);
    loop {
        let line = next_line(&mut requests, REQUEST_BYTES_MAX)?;
        programs.ask(stream);
        let mut answers = Punctual {
            stream,
            until: Instant::now() + ANSWER_WITHIN,
        };
        if !answer_line(line, &mut answers, service)? {
            return Ok(());
        }
        programs.answer(stream);
    }
}

/// A stream that can be written to until a deadline.
struct Punctual<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Write for Punctual<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_write_timeout(Some(left))?;
        // The kernel applies the timeout to each part of a longer write.
        self.stream.write(&bytes[..bytes.len().min(PIECE_BYTES)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Answers the requests of a stream, line by line, until it ends or a line is too long.
///
/// # Errors
/// The stream's error.
pub fn answer_lines(
    mut requests: impl BufRead,
    mut answers: impl Write,
    service: &Service,
) -> io::Result<()> {
    while answer_line(
        next_line(&mut requests, REQUEST_BYTES_MAX)?,
        &mut answers,
        service,
    )? {}
    Ok(())
}

/// Answers one request; returns whether another one may follow.
fn answer_line(line: Line, answers: &mut impl Write, service: &Service) -> io::Result<bool> {
    let line = match line {
        Line::Whole(line) => line,
        Line::TooLong => {
            let message = format!("a request of more than {REQUEST_BYTES_MAX} bytes");
            tell(answers, &Reply::error(RefusalKind::Malformed, message))?;
            return Ok(false);
        }
        Line::End => return Ok(false),
    };
    let reply = match serde_json::from_slice::<Request>(&line) {
        Ok(request) => service.answer(request),
        Err(error) => {
            let message = format!("no request: {error}; docs/queue-protocol.md has them");
            Reply::error(RefusalKind::Malformed, message)
        }
    };
    tell(answers, &reply)?;
    Ok(true)
}

fn tell(stream: &mut impl Write, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests;
