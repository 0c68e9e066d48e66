//! The socket of a service: whoever may open it may queue, see and cancel every job.

use crate::lines::{Line, next_line};
use crate::protocol::{REQUEST_BYTES_MAX, RefusalKind, Reply, Request};
use crate::service::{Service, ServiceError};
use rustix::fs::Mode;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Programs that are connected at a time.
pub const CONNECTIONS_MAX: usize = 32;
/// Who says nothing for so long is disconnected.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Programs that wait to be connected.
const BACKLOG: i32 = 128;

/// A socket that is listened to. Dropping it removes it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
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
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(&name).map_err(failed("the lock beside it"))?;
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
        let listener = bind_private(path).map_err(failed("listening there"))?;
        Ok(Socket {
            listener,
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Answers programs until `service` has been stopped and [`Socket::waker`] was called. Those that are connected then are left to
    /// the end of the process.
    ///
    /// # Errors
    /// The system's: no thread is to be had.
    pub fn serve(&self, service: &Arc<Service>) -> io::Result<()> {
        let connected = Arc::new(Mutex::new(0));
        for stream in self.listener.incoming() {
            if service.is_stopping() {
                break;
            }
            // Out of descriptors, say: that passes.
            let Ok(stream) = stream else {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if !enter(&connected) {
                refuse(stream);
                continue;
            }
            let (connected, service) = (Arc::clone(&connected), Arc::clone(service));
            std::thread::Builder::new()
                .name("airdma-queue".into())
                .spawn(move || {
                    // Programs may go when they like.
                    let _ = converse(&stream, &service);
                    leave(&connected);
                })?;
        }
        Ok(())
    }

    /// Lets [`Socket::serve`] look whether it is over, from another thread.
    pub fn waker(&self) -> impl Fn() + Send + 'static {
        let path = self.path.clone();
        move || drop(UnixStream::connect(&path))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // If it is gone already, all is well.
        let _ = std::fs::remove_file(&self.path);
    }
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
fn bind_private(path: &Path) -> io::Result<UnixListener> {
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
    std::fs::rename(&new, path)?;
    Ok(socket.into())
}

fn enter(connected: &Mutex<usize>) -> bool {
    let mut connected = count(connected);
    let has_room = *connected < CONNECTIONS_MAX;
    *connected += usize::from(has_room);
    has_room
}

fn leave(connected: &Mutex<usize>) {
    *count(connected) -= 1;
}

fn count(connected: &Mutex<usize>) -> std::sync::MutexGuard<'_, usize> {
    connected
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn refuse(mut stream: UnixStream) {
    let busy = format!("{CONNECTIONS_MAX} programs are connected: try again");
    // Nobody waits for one who does not read.
    let _ = stream.set_nonblocking(true);
    let _ = tell(&mut stream, &Reply::error(RefusalKind::Busy, busy));
}

fn converse(stream: &UnixStream, service: &Service) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    answer_lines(BufReader::new(stream), stream, service)
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
    loop {
        let line = match next_line(&mut requests, REQUEST_BYTES_MAX)? {
            Line::Whole(line) => line,
            Line::TooLong => {
                let message = format!("a request of more than {REQUEST_BYTES_MAX} bytes");
                return tell(&mut answers, &Reply::error(RefusalKind::Malformed, message));
            }
            Line::End => return Ok(()),
        };
        let reply = match serde_json::from_slice::<Request>(&line) {
            Ok(request) => service.answer(request),
            Err(error) => {
                let message = format!("no request: {error}; docs/queue-protocol.md has them");
                Reply::error(RefusalKind::Malformed, message)
            }
        };
        tell(&mut answers, &reply)?;
    }
}

fn tell(stream: &mut impl Write, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests;
