//! The socket of a service: a program that may open it may queue, see and cancel every job.

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

/// Programs that are connected at a time. Of more, the one goes that has asked nothing for the longest time.
pub const CONNECTIONS_MAX: usize = 32;
/// A program that says nothing for this long is disconnected.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A program that has not read its answer by then is disconnected, however little it reads at a time.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of an answer that are written at once.
const PIECE_BYTES: usize = 4096;
/// Programs that wait to be connected.
const BACKLOG: i32 = 128;

/// A socket that is listened to. Dropping it removes it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and number of the file at the path: another one there is another service's.
    file: (u64, u64),
    /// Rung to let [`Socket::serve`] look whether it is over. The path may be anything by then.
    bell: Arc<OwnedFd>,
    /// Held as long as this lives.
    _lock: File,
}

impl Socket {
    /// Makes a socket that only this user can open.
    ///
    /// # Errors
    /// Another service listens there; something else is there; the system's.
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

    /// Answers programs until `service` has been stopped and [`Socket::waker`] was called. Those that are connected then are left to
    /// the end of the process.
    ///
    /// # Errors
    /// The system's.
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
                // Out of descriptors, say: that passes.
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
                // Programs may go when they like.
                let _ = converse(&stream, &service, &programs);
                programs.leave(&stream);
            });
            // A lack of threads passes: the next program may get one.
            if spawned.is_err() {
                programs.leave(&stream);
                refuse(&stream, "there is no thread to answer with");
            }
        }
        Ok(())
    }

    /// Lets [`Socket::serve`] look whether it is over, from another thread.
    pub fn waker(&self) -> impl Fn() + Send + 'static {
        let bell = Arc::clone(&self.bell);
        move || {
            // It is full only where it was rung already.
            let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another service may have its own there.
        let there = std::fs::symlink_metadata(&self.path);
        if there.is_ok_and(|there| number(&there) == self.file) {
            // If it is gone by now, all is well.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn number(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// A service that was killed leaves its socket; whoever has the lock knows that nobody listens there.
fn remove_former(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(former) if former.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "something that is no socket: move it away, or give another --socket",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// One that only this user can open, from its first moment; by a rename, so that whoever finds it finds somebody who listens.
fn bind_private(path: &Path) -> io::Result<(UnixListener, (u64, u64))> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    remove_former(&new)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file gets the mode that the socket has then. A umask for the moment would be every thread's.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    net::bind(&socket, &SocketAddrUnix::new(&new)?)?;
    net::listen(&socket, BACKLOG)?;
    let file = number(&std::fs::symlink_metadata(&new)?);
    std::fs::rename(&new, path)?;
    Ok((socket.into(), file))
}

/// Those that are connected: the one that has asked nothing for the longest time first, those that are being answered apart.
#[derive(Default)]
struct Programs(Mutex<Connected>);

#[derive(Default)]
struct Connected {
    silent: Vec<Arc<UnixStream>>,
    answered: Vec<Arc<UnixStream>>,
}

impl Programs {
    /// Whether there is room, for which the one that is silent for the longest time goes.
    fn enter(&self, stream: &Arc<UnixStream>) -> bool {
        let mut connected = self.connected();
        if connected.silent.len() + connected.answered.len() >= CONNECTIONS_MAX {
            if connected.silent.is_empty() {
                return false;
            }
            // Its thread ends at its next word. One that is gone already needs no such.
            let _ = connected.silent.remove(0).shutdown(Shutdown::Both);
        }
        connected.silent.push(Arc::clone(stream));
        true
    }

    /// It has asked: nothing ends it before it was answered.
    fn ask(&self, stream: &Arc<UnixStream>) {
        let mut connected = self.connected();
        if remove(&mut connected.silent, stream) {
            connected.answered.push(Arc::clone(stream));
        }
    }

    /// It was answered.
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
    // Nobody waits for one who does not read.
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

/// A stream that is written to up to a moment, and no longer.
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
        // The kernel waits so long for each part of a longer piece.
        self.stream.write(&bytes[..bytes.len().min(PIECE_BYTES)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Answers the requests of a stream, line by line, until it ends or a line is too long.
///
/// # Errors
/// The stream's.
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

/// Answers one request; whether another one may follow.
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
