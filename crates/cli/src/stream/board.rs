//! The latest report of a running `airdma stream`, for `airdma stream status` in another process.
//!
//! Each process has a socket in the user's runtime directory, which answers a connection with the
//! report as one line of JSON. A process that has died refuses connections.

use airdma_engine::{monotonic, runtime_dir};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const PREFIX: &str = "stream-";
const SUFFIX: &str = ".sock";
/// Begin of the name of a socket that does not listen yet.
const NEW: &str = "new-";
/// Age at which such a socket is that of a dead process.
const NEW_MAX: Duration = Duration::from_secs(60);
/// How often a socket is made anew whose file is gone before it has its name.
const TRIES_MAX: usize = 3;
/// Most sockets of this user that a start looks at.
const SWEPT_MAX: usize = 256;
/// Time without an answer after one has failed, for want of descriptors mostly.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for the other process.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most bytes of a report: those of all devices fit.
const REPORT_BYTES_MAX: u64 = 1 << 20;

/// Where a process shows its report. Without a runtime directory it shows none.
pub struct Board {
    path: Option<PathBuf>,
    latest: Arc<Mutex<String>>,
    role: &'static str,
}

impl Board {
    /// `role` is the name of the command.
    pub fn new(role: &'static str) -> Board {
        let mut board = Board {
            path: None,
            latest: Arc::default(),
            role,
        };
        board.show(&json!({"devices": []}));
        board.path = board.open().ok();
        board
    }

    fn open(&self) -> io::Result<PathBuf> {
        let (path, listener) = listen_in(&runtime_dir::directory()?)?;
        let latest = Arc::clone(&self.latest);
        let thread = thread::Builder::new().name("airdma-status".into());
        thread.spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    // A peer that does not read is dropped.
                    Ok(stream) => drop(answer(&stream, &latest)),
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        })?;
        Ok(path)
    }

    /// Replaces the report.
    pub fn show(&self, report: &Value) {
        let mut report = report.clone();
        if let Some(report) = report.as_object_mut() {
            report.insert("event".into(), json!("stream"));
            report.insert("role".into(), json!(self.role));
            report.insert("pid".into(), json!(std::process::id()));
        }
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = format!("{report}\n");
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            drop(fs::remove_file(path));
        }
    }
}

/// A socket with a name of its own: processes of several containers may have one number and one
/// directory.
fn listen_in(folder: &Path) -> io::Result<(PathBuf, UnixListener)> {
    listen_with(folder, |_| ())
}

/// `between` is called while the socket has its first name.
fn listen_with(
    folder: &Path,
    mut between: impl FnMut(&Path),
) -> io::Result<(PathBuf, UnixListener)> {
    sweep(folder);
    let mut tries = 0;
    loop {
        tries += 1;
        match listen_once(folder, &mut between) {
            // Another start took it for a dead process's: this one was stopped for a minute, or the
            // clock was set.
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES_MAX => {}
            other => return other,
        }
    }
}

fn listen_once(
    folder: &Path,
    between: &mut impl FnMut(&Path),
) -> io::Result<(PathBuf, UnixListener)> {
    let name = format!("{PREFIX}{}-{:x}{SUFFIX}", std::process::id(), monotonic());
    let (path, new) = (folder.join(&name), folder.join(format!("{NEW}{name}")));
    let listener = UnixListener::bind(&new)?;
    between(&new);
    // Only now: one that has its name and does not listen is taken for that of a dead process.
    fs::rename(&new, &path)?;
    Ok((path, listener))
}

/// Removes sockets of processes that were killed. One that does not listen yet may be that of a
/// process that starts; that of another user, whose runtime directory this may be, is left alone.
fn sweep(folder: &Path) {
    let own = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let named = paths.filter(|path| is_new(path) || is_board(path));
    let sockets = named.filter_map(|path| {
        let metadata = fs::symlink_metadata(&path).ok()?;
        let is_own = metadata.file_type().is_socket() && metadata.uid() == own;
        is_own.then_some((path, metadata))
    });
    for (path, metadata) in sockets.take(SWEPT_MAX) {
        let age = metadata
            .modified()
            .ok()
            .and_then(|made| made.elapsed().ok());
        let is_dead = if is_new(&path) {
            age.is_some_and(|age| age >= NEW_MAX)
        } else {
            connect(&path).is_err_and(|error| is_of_the_dead(&error))
        };
        if is_dead {
            drop(fs::remove_file(&path));
        }
    }
}

fn is_of_the_dead(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

fn answer(mut stream: &UnixStream, latest: &Mutex<String>) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let report = latest
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    stream.write_all(report.as_bytes())
}

/// Reports of the user's processes on this host.
pub fn reports() -> Vec<Value> {
    runtime_dir::directory().map_or_else(|_| Vec::new(), |folder| reports_in(&folder))
}

fn reports_in(folder: &Path) -> Vec<Value> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_board(path))
        .collect();
    paths.sort();
    paths.iter().filter_map(|path| read(path).ok()).collect()
}

fn is_board(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX))
}

fn is_new(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let begun = name.and_then(|name| name.strip_prefix(NEW));
    begun.is_some_and(|name| is_board(Path::new(name)))
}

fn read(path: &Path) -> io::Result<Value> {
    let stream = match connect(path) {
        Err(error) if is_of_the_dead(&error) => {
            // Its process was killed.
            drop(fs::remove_file(path));
            return Err(error);
        }
        connected => connected?,
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(REPORT_BYTES_MAX)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Fails at once where too many connections wait: its process does not answer.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let name = format!("airdma-board-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn processes_with_one_number_have_a_socket_each() {
        let folder = folder("numbers");
        let [one, other] = [(); 2].map(|()| listen_in(&folder).unwrap());
        assert_ne!(one.0, other.0);
        assert!(is_board(&one.0) && is_board(&other.0));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_start_removes_what_killed_processes_left() {
        let folder = folder("left");
        let (live, _listener) = listen_in(&folder).unwrap();
        let left = |name: &str, age_s: u64| {
            let path = folder.join(name);
            drop(UnixListener::bind(&path).unwrap());
            let file = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            let made = std::time::SystemTime::now() - Duration::from_secs(age_s);
            let since = made.duration_since(std::time::UNIX_EPOCH).unwrap();
            let time = rustix::fs::Timespec {
                tv_sec: since.as_secs() as i64,
                tv_nsec: 0,
            };
            let times = rustix::fs::Timestamps {
                last_access: time,
                last_modification: time,
            };
            let at = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(rustix::fs::CWD, &file, &times, at).unwrap();
            path
        };
        let named = left("stream-1-0.sock", 0);
        let old = left("new-stream-2-0.sock", 3600);
        let starting = left("new-stream-3-0.sock", 0);
        let daemon = left("new-daemon.sock", 3600);
        let file = folder.join("new-stream-4-0.sock");
        std::os::unix::fs::symlink(&old, &file).unwrap();
        listen_in(&folder).unwrap();
        assert!(!named.exists() && !old.exists());
        assert!(live.exists() && starting.exists() && daemon.exists());
        assert!(fs::symlink_metadata(&file).is_ok(), "no socket");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn files_that_are_no_sockets_hide_none() {
        let folder = folder("hidden");
        for number in 0..4 * SWEPT_MAX {
            fs::write(folder.join(format!("{PREFIX}x{number}{SUFFIX}")), "").unwrap();
        }
        let dead: Vec<_> = (0..16)
            .map(|number| folder.join(format!("{PREFIX}{number}-0{SUFFIX}")))
            .collect();
        for path in &dead {
            drop(UnixListener::bind(path).unwrap());
        }
        sweep(&folder);
        assert!(dead.iter().all(|path| !path.exists()));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_socket_that_is_swept_before_it_has_its_name_is_made_anew() {
        let folder = folder("swept");
        let mut seen = 0;
        let (path, _listener) = listen_with(&folder, |new| {
            seen += 1;
            if seen == 1 {
                fs::remove_file(new).unwrap();
            }
        })
        .unwrap();
        assert_eq!((seen, path.exists()), (2, true));
        let mut seen = 0;
        let always = |new: &Path| {
            seen += 1;
            fs::remove_file(new).unwrap();
        };
        let error = listen_with(&folder, always).unwrap_err();
        assert_eq!((seen, error.kind()), (TRIES_MAX, io::ErrorKind::NotFound));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_process_that_does_not_answer_is_not_waited_for() {
        let folder = folder("stuck");
        let (path, listener) = listen_in(&folder).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _first = connect(&path).unwrap();
        let error = connect(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(reports_in(&folder).is_empty());
        assert!(path.exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_report_is_read_until_its_process_ends() {
        let folder = folder("ends");
        let (path, listener) = listen_in(&folder).unwrap();
        let board = Board {
            path: None,
            latest: Arc::default(),
            role: "recv",
        };
        board.show(&json!({"devices": [{"device": 3}]}));
        let latest = Arc::clone(&board.latest);
        let answering = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            answer(&stream, &latest).unwrap();
        });
        fs::write(folder.join("counters"), "").unwrap();
        let reports = reports_in(&folder);
        answering.join().unwrap();
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0]["role"], "recv");
        assert_eq!(reports[0]["devices"][0]["device"], 3);
        // The listener is gone, its file is not: as after a kill.
        assert!(path.exists());
        assert!(reports_in(&folder).is_empty());
        assert!(!path.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
