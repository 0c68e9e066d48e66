//! The thread that serves the clients of one device, and runs its worker.
//!
//! While there is work it neither sleeps nor makes system calls for its clients: it looks at their
//! doorbells, runs a round, and looks at their sockets every [`SOCKETS_EVERY`]. After [`SPIN`]
//! without work it says in each client's page that it sleeps, fences, looks once more, and sleeps
//! on the descriptors of the port and of its clients.

use super::client::{Client, Orphans};
use super::{Log, Numbers};
use crate::Device;
use crate::core::Core;
use crate::progress::eventfd::EventFd;
use crate::progress::poll_set::PollSet;
use crate::progress::progress_thread::without_signals;
use crate::progress::wait::Descriptors;
use crate::remote::protocol::PACKET_BYTES_MAX;
use crate::worker::Work;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the thread looks for work before it sleeps: about what a sleep and a wake-up cost.
const SPIN: Duration = Duration::from_micros(50);
/// How often it looks at the sockets while it has work.
const SOCKETS_EVERY: Duration = Duration::from_micros(50);
/// Longest sleep: what the progress thread did in the meantime is noticed then.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// The device, as the thread that accepts clients has it.
pub(super) struct Service {
    device: Arc<Device>,
    inbox: Arc<Inbox>,
}

/// Clients on their way to the thread.
struct Inbox {
    clients: Mutex<Vec<Client>>,
    bell: EventFd,
}

/// The thread's own side.
struct Server {
    core: Arc<Core>,
    inbox: Arc<Inbox>,
    clients: Vec<Client>,
    /// What clients that are gone have left, the oldest first.
    orphans: VecDeque<Orphans>,
    poll: PollSet,
    numbers: Numbers,
    log: Log,
    packet: Vec<u8>,
}

/// Most clients that are gone whose connections refuse requests.
const ORPHANS_MAX: usize = 64;

/// Number of the inbox in the poll set. Those of a client are its own, times the kinds, plus its
/// kind.
const INBOX: u64 = 0;
const KINDS: u64 = 5;

#[derive(Clone, Copy)]
enum Kind {
    Requests,
    WakeUp,
    /// Events are there to be sent.
    Events,
    /// The client has taken some.
    Room,
    /// Events of connections are there to be sent.
    Connections,
}

impl Service {
    /// Starts the thread.
    pub(super) fn start(device: Arc<Device>, numbers: Numbers, log: Log) -> io::Result<Self> {
        let inbox = Arc::new(Inbox {
            clients: Mutex::default(),
            bell: EventFd::nonblocking()?,
        });
        let poll = PollSet::out_of_sight()?;
        poll.add_as(inbox.bell.fd(), INBOX)?;
        let mut server = Server {
            core: Arc::clone(device.core()),
            inbox: Arc::clone(&inbox),
            clients: Vec::new(),
            orphans: VecDeque::new(),
            poll,
            numbers,
            log,
            packet: vec![0; PACKET_BYTES_MAX],
        };
        let name = format!("airdma {}", device.info().interface);
        let thread = std::thread::Builder::new().name(name);
        let run = move || {
            // A daemon that served the other devices alone would leave these clients waiting.
            let ended = std::panic::catch_unwind(AssertUnwindSafe(|| server.run()));
            ended.unwrap_or_else(|_| std::process::abort());
        };
        without_signals(|| thread.spawn(run))?;
        Ok(Service { device, inbox })
    }

    pub(super) fn add(&self, client: Client) {
        let clients = self.inbox.clients.lock();
        clients.unwrap_or_else(PoisonError::into_inner).push(client);
        self.inbox.bell.signal();
    }

    pub(super) fn name(&self) -> &str {
        &self.device.info().name
    }

    pub(super) fn interface_index(&self) -> u32 {
        self.device.info().interface_index
    }

    /// Whether the interface is gone: the device never works again.
    pub(super) fn is_gone(&self) -> bool {
        self.device.is_gone()
    }
}

impl Server {
    fn run(&mut self) {
        let core = Arc::clone(&self.core);
        let standby = &core.progress_thread.standby;
        // The progress thread of the device stands by.
        standby.enter();
        let mut descriptors = Descriptors::default();
        let mut last_work = Instant::now();
        let mut looked = last_work;
        loop {
            if core.is_gone() && self.is_unused() {
                return;
            }
            let mut has_work = self.take_doorbells();
            if let Some(round) = core.try_progress(Work::All) {
                has_work |= round.received > 0 || round.more;
            }
            standby.note_round();
            self.wake_clients();
            let now = Instant::now();
            if now.duration_since(looked) >= SOCKETS_EVERY {
                has_work |= self.serve_sockets();
                self.end_orphans(now);
                looked = now;
            }
            if has_work {
                last_work = now;
            } else if now.duration_since(last_work) >= SPIN {
                self.sleep(&mut descriptors);
                last_work = Instant::now();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Whether nothing needs the thread of a device that never works again.
    fn is_unused(&self) -> bool {
        let inbox = self.inbox.clients.lock();
        let is_empty = inbox.unwrap_or_else(PoisonError::into_inner).is_empty();
        is_empty && self.clients.is_empty() && self.orphans.is_empty()
    }

    fn take_doorbells(&self) -> bool {
        let mut rung = false;
        for client in &self.clients {
            rung |= client.take_doorbells(&self.core);
        }
        rung
    }

    /// Wakes the clients that sleep and got completions.
    fn wake_clients(&mut self) {
        // Pairs with the fence of a client that is about to sleep.
        fence(Ordering::SeqCst);
        for client in &mut self.clients {
            client.wake_for_completions();
        }
    }

    /// Sleeps until a client, the port or a timer has work.
    fn sleep(&mut self, descriptors: &mut Descriptors) {
        self.note_sleeps(true);
        fence(Ordering::SeqCst);
        if !self.take_doorbells() {
            let core = Arc::clone(&self.core);
            core.progress_of_waiter();
            core.progress_thread.standby.note_round();
            self.wake_clients();
            if let Some(timeout) = core.fall_asleep(descriptors, self.poll.fd(), None) {
                let timeout = timeout.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
                let waited = descriptors.wait(Some(timeout));
                // No signal comes to this thread.
                core.wake_up(descriptors, waited).ok();
            }
        }
        self.note_sleeps(false);
        self.serve_sockets();
    }

    fn note_sleeps(&self, sleeps: bool) {
        for client in &self.clients {
            client.greeted.page.note_daemon_sleeps(sleeps);
        }
    }

    /// Serves what is ready: new clients, requests, and events. Returns whether anything was.
    fn serve_sockets(&mut self) -> bool {
        let Ok(ready) = self.poll.ready() else {
            return false;
        };
        let mut has_work = false;
        let mut ended = Vec::new();
        for number in ready {
            has_work = true;
            if number == INBOX {
                self.inbox.bell.clear();
                self.take_new_clients();
                continue;
            }
            let (client, kind) = (number / KINDS, number % KINDS);
            if !self.serve(client, kind) {
                ended.push(client);
            }
        }
        for number in ended {
            self.end(number);
        }
        has_work
    }

    /// Serves one descriptor of a client. False if the client has ended.
    fn serve(&mut self, number: u64, kind: u64) -> bool {
        let mut clients = self.clients.iter_mut();
        let Some(client) = clients.find(|client| client.greeted.number == number) else {
            return true;
        };
        if kind == Kind::WakeUp as u64 {
            // Edge-triggered, and never read: the client could empty it first, and block the read.
            return true;
        }
        let sends = [Kind::Events, Kind::Room, Kind::Connections];
        if sends.iter().any(|&it| it as u64 == kind) {
            return client.send_events(&self.log);
        }
        match client.socket.receive(&mut self.packet, false) {
            Ok(Some(got)) => {
                let packet = &self.packet[..got.length];
                let reply = client.handle(&self.core, packet, got.descriptors);
                reply.is_some_and(|reply| {
                    let reply = crate::control::encoding::encode(&reply);
                    client.socket.send(&reply, &[], false).is_ok()
                })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Ok(None) | Err(_) => false,
        }
    }

    fn take_new_clients(&mut self) {
        let new = self.inbox.clients.lock();
        let new = std::mem::take(&mut *new.unwrap_or_else(PoisonError::into_inner));
        for client in new {
            let number = client.greeted.number;
            let watched = client.descriptors().into_iter().try_for_each(|(fd, kind)| {
                let number = number * KINDS + kind as u64;
                match kind {
                    // While the socket has no room, events are there for long.
                    Kind::WakeUp | Kind::Events | Kind::Connections => {
                        self.poll.add_edges_as(fd, number)
                    }
                    Kind::Room => self.poll.add_room_as(fd, number),
                    Kind::Requests => self.poll.add_as(fd, number),
                }
            });
            client.begin(&self.core);
            self.clients.push(client);
            if let Err(error) = watched {
                (self.log)(&format!("client {number} cannot be watched: {error}"));
                self.end(number);
            }
        }
    }

    /// Ends all that a client has.
    fn end(&mut self, number: u64) {
        let is_it = |client: &Client| client.greeted.number == number;
        let Some(index) = self.clients.iter().position(is_it) else {
            return;
        };
        let client = self.clients.swap_remove(index);
        for (fd, _) in client.descriptors() {
            self.poll.remove(fd);
        }
        let (qps, keys) = (client.qps.len(), client.keys.len());
        let orphans = client.leave(&self.core);
        (self.log)(&format!(
            "client {number} has ended: {qps} queue pairs and {keys} keys were left"
        ));
        self.orphans.push_back(orphans);
        while self.orphans.len() > ORPHANS_MAX {
            self.end_oldest();
        }
    }

    /// Ends what has refused requests for long enough.
    fn end_orphans(&mut self, now: Instant) {
        while self.orphans.front().is_some_and(|left| left.until <= now) {
            self.end_oldest();
        }
    }

    fn end_oldest(&mut self) {
        if let Some(orphans) = self.orphans.pop_front() {
            let number = orphans.number;
            orphans.end(&self.core);
            self.numbers.give_back(number);
        }
    }
}

impl Client {
    fn descriptors(&self) -> [(RawFd, Kind); 5] {
        [
            (self.socket.fd(), Kind::Requests),
            (self.greeted.wake_daemon.fd(), Kind::WakeUp),
            (self.greeted.events.fd(), Kind::Events),
            (self.greeted.event_socket.fd(), Kind::Room),
            (self.cm.channel.fd(), Kind::Connections),
        ]
    }
}
