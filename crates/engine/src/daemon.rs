//! A process that owns devices for others: `airdma daemon` (`docs/design/034-daemon.md`).
//!
//! A client connects for each device that it opens. The thread that accepts greets it
//! ([`handshake`]) once its greeting is there, so that a connection that stays silent delays no
//! other one; from then on the thread of the device serves it ([`service`]): it takes its
//! doorbells, runs the worker, handles its requests ([`requests`]), and wakes it. All that the
//! daemon knows of a client is in [`client`].

mod client;
mod connections;
mod handshake;
mod requests;
mod service;
#[cfg(test)]
mod tests;

use crate::core::not_sealed;
use crate::progress::poll_set::PollSet;
use crate::remote::socket::Socket;
use crate::{Device, DeviceConfig, DeviceInfo};
use connections::ClientCm;
use handshake::Refusal;
use service::Service;
use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connections that wait to be accepted.
const BACKLOG: libc::c_int = 128;
/// Connections that were accepted and have sent no greeting. One more, and the oldest is refused.
const NEWCOMERS_MAX: usize = 128;
/// How long a program may take for its greeting.
const GREETING_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a listener at the socket's path may take to accept, before it counts as one.
const LISTENER_TIME_MAX: Duration = Duration::from_millis(250);
/// Pause where there are no descriptors for another client.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Takes a line for the log of the daemon.
pub(crate) type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// A daemon: it listens on a Unix socket, and has a thread for each device that clients use.
pub struct Daemon {
    listener: Socket,
    _place: Place,
    path: PathBuf,
    config: DeviceConfig,
    log: Log,
    services: Vec<Service>,
    numbers: Numbers,
    poll: PollSet,
    /// The oldest first.
    newcomers: VecDeque<Newcomer>,
    /// Connections that were accepted.
    accepted: u64,
}

/// A connection whose greeting has not arrived.
struct Newcomer {
    /// Its number in the poll set.
    number: u64,
    socket: Socket,
    until: Instant,
}

/// Numbers in the poll set; those of newcomers follow.
const LISTENER: u64 = 0;
const STOP: u64 = 1;

/// The numbers of clients, each of one at a time.
#[derive(Clone, Default)]
struct Numbers(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    numbers: HashSet<u64>,
    last: u64,
}

impl Daemon {
    /// Listens at `path`, for programs of this user. Devices work as `config` says. `log` gets a
    /// line for each client that comes, leaves or is refused.
    ///
    /// # Errors
    /// `AddrInUse` if a daemon listens there; `Unsupported` for a secret; those of the system. A
    /// socket that a daemon left behind is replaced; nothing else is.
    pub fn bind(
        path: &Path,
        config: DeviceConfig,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        if config.secret.is_some() {
            return Err(not_sealed());
        }
        let place = Place::take(path)?;
        remove_stale(path)?;
        let listener = Socket::listen(path, BACKLOG)?;
        let poll = PollSet::out_of_sight()?;
        poll.add_as(listener.fd(), LISTENER)?;
        Ok(Daemon {
            listener,
            _place: place,
            path: path.to_owned(),
            config: DeviceConfig {
                daemon: None,
                ..config
            },
            log: Arc::new(log),
            services: Vec::new(),
            numbers: Numbers::default(),
            poll,
            newcomers: VecDeque::new(),
            accepted: 0,
        })
    }

    /// Serves clients until `stop` is readable.
    ///
    /// # Errors
    /// Those of the listening socket.
    pub fn run(mut self, stop: &impl AsRawFd) -> io::Result<()> {
        self.poll.add_as(stop.as_raw_fd(), STOP)?;
        self.serve()
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            let first = self.newcomers.front();
            let time = first.map(|first| first.until.saturating_duration_since(Instant::now()));
            for number in self.poll.wait_at_most(time)? {
                match number {
                    STOP => return Ok(()),
                    LISTENER => self.accept(),
                    newcomer => self.greet(newcomer),
                }
            }
            let now = Instant::now();
            while self
                .newcomers
                .front()
                .is_some_and(|first| first.until <= now)
            {
                self.refuse_oldest("no greeting came in time");
            }
        }
    }

    /// Takes a connection, whose greeting may take its time.
    fn accept(&mut self) {
        self.accepted += 1;
        let number = STOP + self.accepted;
        let accepted = self.listener.accept().and_then(|socket| {
            self.poll.add_as(socket.fd(), number)?;
            Ok(socket)
        });
        match accepted {
            Ok(socket) => self.newcomers.push_back(Newcomer {
                number,
                socket,
                until: Instant::now() + GREETING_TIME_MAX,
            }),
            Err(error) => {
                (self.log)(&format!("a client cannot be accepted: {error}"));
                std::thread::sleep(FULL_PAUSE);
            }
        }
        if self.newcomers.len() > NEWCOMERS_MAX {
            self.refuse_oldest("more connections send no greeting than the daemon waits for");
        }
    }

    fn refuse_oldest(&mut self, why: &str) {
        if let Some(Newcomer { socket, .. }) = self.newcomers.pop_front() {
            self.refuse(Refusal::new(libc::ETIMEDOUT, why.to_owned()), &socket);
        }
    }

    fn refuse(&self, refusal: Refusal, socket: &Socket) {
        (self.log)(&format!("a client is refused: {refusal}"));
        refusal.send(socket);
    }

    /// A newcomer has sent something, or has left.
    fn greet(&mut self, number: u64) {
        let mut newcomers = self.newcomers.iter();
        let found = newcomers.position(|newcomer| newcomer.number == number);
        if let Some(newcomer) = found.and_then(|index| self.newcomers.remove(index)) {
            self.poll.remove(newcomer.socket.fd());
            self.welcome(newcomer.socket);
        }
    }

    /// Greets a client, and hands it to the thread of its device.
    fn welcome(&mut self, socket: Socket) {
        let number = self.numbers.take();
        let greeted = handshake::receive(&socket).and_then(|greeting| {
            let number = number.ok_or_else(|| Refusal::full("clients"))?;
            let service = self.service(greeting.interface_index)?;
            let cm = ClientCm::new()?;
            let client = handshake::accept(&socket, greeting, number)?;
            Ok((service, client, cm))
        });
        match greeted {
            Ok((service, client, cm)) => {
                (self.log)(&format!(
                    "client {} (process {}) uses {}",
                    client.number,
                    client.process,
                    self.services[service].name()
                ));
                self.services[service].add(client.with_socket(socket, cm));
            }
            Err(refusal) => {
                if let Some(number) = number {
                    self.numbers.give_back(number);
                }
                self.refuse(refusal, &socket);
            }
        }
    }

    /// The thread of the device on an interface, which is started for its first client.
    fn service(&mut self, interface_index: u32) -> Result<usize, Refusal> {
        let is_gone = |service: &Service| service.is_gone();
        self.services.retain(|service| !is_gone(service));
        let found = |service: &Service| service.interface_index() == interface_index;
        if let Some(index) = self.services.iter().position(found) {
            return Ok(index);
        }
        let devices = crate::all_devices()?;
        let is_it = |info: &DeviceInfo| info.interface_index == interface_index;
        let Some(info) = devices.iter().find(|info| is_it(info)) else {
            return Err(Refusal::new(
                libc::ENODEV,
                format!("no device of the daemon is on interface {interface_index}"),
            ));
        };
        let device = Device::open_with(info, &self.config)?;
        let service = Service::start(device, self.numbers.clone(), Arc::clone(&self.log))?;
        self.services.push(service);
        Ok(self.services.len() - 1)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}

/// The lock of a socket's path: one daemon at a time has it.
struct Place(#[expect(dead_code, reason = "closed when dropped")] fs::File);

impl Place {
    fn take(path: &Path) -> io::Result<Self> {
        let name = lock_of(path);
        let mut options = fs::File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        // Another user could have put a link to any file there, or a pipe that no process reads.
        let options = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(&name).map_err(|error| {
            let message = format!(
                "the lock {}: {error}; choose a socket in a directory of your own (--socket)",
                name.display()
            );
            io::Error::new(error.kind(), message)
        })?;
        let found = file.metadata()?;
        // A lock of another user's keeps daemons of this user away for as long as that one likes.
        if !found.is_file() || found.uid() != own_user() {
            let why = "the lock beside it (.lock) is no file of this user: choose a socket in a \
                       directory of your own (--socket)";
            return Err(in_use(path, why));
        }
        match file.try_lock() {
            Ok(()) => Ok(Place(file)),
            Err(fs::TryLockError::WouldBlock) => Err(in_use(path, "a daemon listens there")),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }
}

fn lock_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn own_user() -> libc::uid_t {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() }
}

fn in_use(path: &Path, why: &str) -> io::Error {
    let message = format!("{}: {why}", path.display());
    io::Error::new(io::ErrorKind::AddrInUse, message)
}

/// Removes the socket of a daemon that has ended.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() || found.uid() != own_user() {
        return Err(in_use(path, "what lies there is no socket of this user"));
    }
    match Socket::connect(path, LISTENER_TIME_MAX) {
        Ok(_) => Err(in_use(path, "a program listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(in_use(path, "a program listens there, and accepts nothing"))
        }
        Err(error) => Err(error),
    }
}

impl Numbers {
    /// A number that no client has; `None` if all are taken.
    fn take(&self) -> Option<u64> {
        let mut taken = self.lock();
        for _ in 0..=taken.numbers.len() {
            taken.last = taken.last % crate::index::CLIENT_MAX + 1;
            let number = taken.last;
            if taken.numbers.insert(number) {
                return Some(number);
            }
        }
        None
    }

    fn give_back(&self, number: u64) {
        self.lock().numbers.remove(&number);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
