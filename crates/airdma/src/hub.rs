//! State shared by the handles of one device: its event queues, and the members that events are
//! for.

use crate::Blame;
use crate::connection::Connection;
use crate::datagrams::Datagrams;
use crate::error::Cause;
use crate::landing::Landings;
use crate::listening::Listening;
use crate::pages::PageFile;
use crate::runner::Runs;
use crate::shared_driver;
use crate::waiting::{Driver, TICK};
use airdma_engine::cm_protocol::Event;
use airdma_engine::{self as engine, Channel, CmChannel, CmNews, Pd};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Instant;

pub(crate) struct Hub {
    pub(crate) engine: Arc<engine::Device>,
    pub(crate) pd: Arc<Pd>,
    /// The channel of all completion queues.
    pub(crate) channel: Arc<Channel>,
    /// Events of the connection manager.
    pub(crate) events: Arc<CmChannel>,
    pub(crate) pages: Arc<PageFile>,
    pub(crate) landings: Arc<Landings>,
    members: Mutex<Members>,
    driving: Mutex<Driving>,
    /// Threads of the program that run the device, in place of the one that wakes tasks.
    pub(crate) runs: Arc<Runs>,
    last_tick: Mutex<Instant>,
}

/// The thread that wakes the device's tasks.
#[derive(Default)]
enum Driving {
    #[default]
    None,
    /// While there are only listeners: one for all devices.
    Shared,
    Own(Driver),
}

/// Connections and listeners by the numbers in events.
#[derive(Default)]
struct Members {
    by_number: HashMap<u64, Member>,
    last: u64,
}

#[derive(Clone)]
pub(crate) enum Member {
    Connection(Weak<Connection>),
    Datagrams(Weak<Datagrams>),
    Listening(Weak<Listening>),
}

impl Hub {
    pub(crate) fn new(device: Arc<engine::Device>) -> crate::Result<Arc<Hub>> {
        let events = CmChannel::that_never_blocks()
            .map_err(|error| crate::Error::system("a channel of connections", &error))?;
        let this = Arc::new(Hub {
            pd: device.alloc_pd()?,
            channel: device.create_channel()?,
            events,
            engine: device,
            pages: PageFile::new()
                .map_err(|error| crate::Error::system("a memory file", &error))?,
            members: Mutex::default(),
            driving: Mutex::default(),
            runs: Arc::default(),
            landings: Arc::default(),
            last_tick: Mutex::new(Instant::now()),
        });
        let hub = Arc::downgrade(&this);
        this.engine.when_gone(move || {
            if let Some(hub) = hub.upgrade() {
                hub.end();
            }
        });
        Ok(this)
    }

    /// Ends all connections and listeners, as the interface is gone.
    fn end(&self) {
        let members: Vec<_> = lock(&self.members).by_number.values().cloned().collect();
        for member in members {
            match member {
                Member::Connection(connection) => {
                    if let Some(connection) = connection.upgrade() {
                        connection.lose_device();
                    }
                }
                Member::Datagrams(datagrams) => {
                    if let Some(datagrams) = datagrams.upgrade() {
                        datagrams.lose_device();
                    }
                }
                Member::Listening(listening) => {
                    if let Some(listening) = listening.upgrade() {
                        listening.wake();
                    }
                }
            }
        }
    }

    /// Why the device no longer works, if it does not.
    pub(crate) fn loss(&self) -> Option<Cause> {
        self.engine.is_gone().then(|| {
            let interface = &self.engine.info().interface;
            let message =
                format!("the interface {interface} is gone: open a device on another one");
            Cause::new(Blame::System, message)
        })
    }

    /// A number for a new member.
    pub(crate) fn number(&self) -> u64 {
        let mut members = lock(&self.members);
        members.last += 1;
        members.last
    }

    pub(crate) fn enter(&self, number: u64, member: Member) {
        lock(&self.members).by_number.insert(number, member);
    }

    pub(crate) fn leave(&self, number: u64) {
        lock(&self.members).by_number.remove(&number);
    }

    fn member(&self, number: u64) -> Option<Member> {
        lock(&self.members).by_number.get(&number).cloned()
    }

    /// Starts the thread that wakes tasks, unless it runs. A device with endpoints has its own.
    pub(crate) fn drive(self: &Arc<Self>) -> io::Result<()> {
        let mut driving = lock(&self.driving);
        match *driving {
            Driving::Own(_) => {}
            Driving::None | Driving::Shared if self.has_endpoints() => {
                let driver = Driver::start(self)?;
                if let Driving::Shared = std::mem::replace(&mut *driving, Driving::Own(driver)) {
                    shared_driver::remove(&self.events);
                }
            }
            Driving::None => {
                shared_driver::add(self)?;
                *driving = Driving::Shared;
            }
            Driving::Shared => {}
        }
        Ok(())
    }

    /// Makes the thread that wakes tasks look what it has to do.
    pub(crate) fn call_driver(&self) {
        if let Driving::Own(driver) = &*lock(&self.driving) {
            driver.call();
        }
    }

    fn has_endpoints(&self) -> bool {
        let members = lock(&self.members);
        let mut all = members.by_number.values();
        all.any(|member| matches!(member, Member::Connection(_) | Member::Datagrams(_)))
    }

    /// Handles what happened during a sleep.
    pub(crate) fn attend(&self, completed: Option<u64>) {
        match completed.and_then(|number| self.member(number)) {
            Some(Member::Connection(connection)) => {
                if let Some(connection) = connection.upgrade() {
                    connection.attend();
                }
            }
            Some(Member::Datagrams(datagrams)) => {
                if let Some(datagrams) = datagrams.upgrade() {
                    datagrams.attend();
                }
            }
            Some(Member::Listening(_)) | None => {}
        }
        self.take_events();
        self.tick();
    }

    /// Distributes events of the connection manager.
    pub(crate) fn take_events(&self) {
        while let Some((number, news)) = self.events.pop() {
            let CmNews::Event(event) = news else {
                continue;
            };
            match (self.member(number), event) {
                (Some(Member::Connection(connection)), event) => {
                    if let Some(connection) = connection.upgrade() {
                        connection.handle(event);
                    }
                }
                (Some(Member::Listening(listening)), Event::ConnectRequest(request)) => {
                    if let Some(listening) = listening.upgrade() {
                        listening.requested(request);
                    }
                }
                (Some(Member::Listening(listening)), Event::Rejected { id, .. }) => {
                    if let Some(listening) = listening.upgrade() {
                        listening.withdrawn(id);
                    }
                }
                // The member has gone meanwhile, and has notified its peer.
                (Some(Member::Listening(_) | Member::Datagrams(_)) | None, _) => {}
            }
        }
    }

    /// Periodic checks: deadlines, and keepalives.
    fn tick(&self) {
        {
            let mut last = lock(&self.last_tick);
            if last.elapsed() < TICK {
                return;
            }
            *last = Instant::now();
        }
        let connections: Vec<_> = {
            let members = lock(&self.members);
            let connection = |member: &Member| match member {
                Member::Connection(connection) => connection.upgrade(),
                Member::Listening(_) | Member::Datagrams(_) => None,
            };
            members.by_number.values().filter_map(connection).collect()
        };
        for connection in connections {
            connection.tick();
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        match std::mem::take(&mut *lock(&self.driving)) {
            Driving::Own(driver) => driver.stop(),
            Driving::Shared => shared_driver::remove(&self.events),
            Driving::None => {}
        }
    }
}

/// Locks a mutex. Data is consistent even after a panic: nothing here changes in two steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds `waker` to those that are woken, unless it is among them.
pub(crate) fn watch(watchers: &mut Vec<Waker>, waker: Option<&Waker>) {
    if let Some(waker) = waker
        && !watchers.iter().any(|known| known.will_wake(waker))
    {
        watchers.push(waker.clone());
    }
}
