//! Doors: listeners at devices, through which senders connect, and their announcement on the
//! network.
//!
//! Doors follow the interfaces: a new interface, or one whose port was taken before, gets a door,
//! and an interface that is gone loses its door.

use crate::discovery::{Announcement, NoMulticast, Service};
use crate::error::Error;
use crate::progress::{Event, Shut};
use crate::receive::ReceiveJob;
use crate::send::interface_of;
use airdma::{Changes, Device, Endpoint, Listener, Operation};
use airdma_files::session::PublicKey;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Interval between attempts to open a door, and between checks for interfaces if the kernel does
/// not report changes.
const TRY_EVERY: Duration = Duration::from_secs(5);
/// The kernel reports a change in several messages; one check follows the last of them.
const SETTLE: Duration = Duration::from_millis(200);
/// Pause of a door that could not accept a connection: descriptors or memory are not free again
/// sooner.
const REST: Duration = Duration::from_secs(1);

/// Open listeners, closed when dropped.
pub struct Doors {
    pub(crate) open: Vec<OpenDoor>,
    shut: Vec<Shut>,
    /// Addresses that were announced last.
    addresses: Vec<IpAddr>,
    wanted: DoorConfig,
    changes: Option<Changes>,
    /// Whether something changed since the last check.
    has_changed: bool,
    looked: Instant,
    announced: Option<Result<Announcement, NoMulticast>>,
}

/// Where to listen.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// What for.
    pub service: Service,
    /// Interfaces or addresses; all if empty.
    pub interfaces: Vec<String>,
    /// Port, in the port space of RDMA CM.
    pub port: u16,
    /// Name to announce on this network, if any.
    pub name: Option<String>,
    /// Key of this host's user.
    pub key: PublicKey,
}

/// A device with a listener.
pub(crate) struct OpenDoor {
    pub device: Device,
    pub listener: Listener,
    pub accepting: Operation<Endpoint>,
    /// The name that the job gave.
    named: Option<String>,
    /// Until then the door rests, as it could not accept a connection.
    rests: Option<Instant>,
    /// The last reason that was reported.
    complaint: Option<String>,
}

impl OpenDoor {
    fn open(device: Device, port: u16, named: Option<&str>) -> Result<Self, airdma::Error> {
        let device = device.sealed();
        let listener = device.listen(port)?;
        // Resources for waiting are missing now, or not at all.
        device.start()?;
        let accepting = listener.accept();
        Ok(Self {
            device,
            listener,
            accepting,
            named: named.map(str::to_owned),
            rests: None,
            complaint: None,
        })
    }

    /// Whether the door rests.
    fn rests(&self) -> bool {
        self.rests.is_some_and(|until| Instant::now() < until)
    }

    /// Lets the door rest after a failed accept. Returns what to report: each reason once.
    fn rest(&mut self, error: &airdma::Error) -> Option<String> {
        self.rests = Some(Instant::now() + REST);
        let why = error.to_string();
        let is_new = self.complaint.as_ref() != Some(&why);
        is_new.then(|| self.complaint.insert(why).clone())
    }

    /// Whether peers can still connect through it.
    fn leads_somewhere(&self) -> bool {
        let addresses = self.device.addresses();
        let has = |address| addresses.contains(&address);
        let meant = self.named.as_ref().and_then(|named| named.parse().ok());
        !self.device.is_gone() && meant.is_none_or(has)
    }
}

impl Doors {
    /// Opens the doors of a job: at its interfaces and port, announced by its name.
    ///
    /// # Errors
    /// A named interface cannot be listened on; or, if all are meant, none that leads to other
    /// hosts, though there are some.
    pub fn open(job: &ReceiveJob<'_>) -> Result<Self, Error> {
        Self::open_with(DoorConfig {
            service: Service::Files,
            interfaces: job.interfaces.clone(),
            port: job.port,
            name: job.name.clone(),
            key: job.identity.public(),
        })
    }

    /// Opens doors, announced if they have a name.
    ///
    /// # Errors
    /// As [`Doors::open`].
    pub fn open_with(wanted: DoorConfig) -> Result<Self, Error> {
        let changes = Changes::from_now().ok();
        let mut doors = Self {
            open: Vec::new(),
            shut: Vec::new(),
            addresses: Vec::new(),
            wanted,
            changes,
            has_changed: false,
            looked: Instant::now(),
            announced: None,
        };
        if let Err(error) = doors.open_missing()
            && (!doors.wanted.interfaces.is_empty() || !doors.leads_out())
        {
            return Err(error.into());
        }
        doors.addresses = doors.addresses();
        doors.announce();
        Ok(doors)
    }

    /// The event that reports the doors.
    pub(crate) fn listening(&self) -> Event {
        Event::Listening {
            addresses: self.addresses(),
            shut: self.shut.clone(),
            unannounced: match &self.announced {
                Some(Err(error)) => Some(error.to_string()),
                Some(Ok(_)) | None => None,
            },
        }
    }

    /// Opens and closes doors as interfaces and addresses change. Returns an event for changes.
    pub(crate) fn follow(&mut self) -> Option<Event> {
        self.has_changed |= self.changes.as_ref().is_some_and(Changes::any);
        let waits = if self.has_changed { SETTLE } else { TRY_EVERY };
        let is_of_use = self.has_changed || !self.shut.is_empty() || self.changes.is_none();
        if !is_of_use || self.looked.elapsed() < waits {
            return None;
        }
        (self.has_changed, self.looked) = (false, Instant::now());
        let was_shut = std::mem::take(&mut self.shut);
        self.open.retain(OpenDoor::leads_somewhere);
        // Doors that are still shut report so themselves.
        drop(self.open_missing());
        let addresses = self.addresses();
        let has_moved = addresses != self.addresses;
        if has_moved {
            self.addresses = addresses.clone();
            self.announce();
        }
        let shut = self.shut.clone();
        (has_moved || shut != was_shut).then_some(Event::Doors { addresses, shut })
    }
}

impl Doors {
    /// Accepts what has come: connections, and doors that could not accept one. Each reason is
    /// reported once.
    pub(crate) fn accept(&mut self, waker: &Waker) -> Vec<Result<(Device, Endpoint), Shut>> {
        let mut came = Vec::new();
        for door in self.open.iter_mut().filter(|door| !door.rests()) {
            let polled = Pin::new(&mut door.accepting).poll(&mut Context::from_waker(waker));
            let Poll::Ready(accepted) = polled else {
                continue;
            };
            door.accepting = door.listener.accept();
            match accepted {
                Ok(endpoint) => {
                    // Again, so that the next one is noticed.
                    waker.wake_by_ref();
                    door.complaint = None;
                    came.push(Ok((door.device.clone(), endpoint)));
                }
                Err(error) => {
                    let interface = interface_of(&door.device);
                    let is_gone = door.device.is_gone();
                    // The next check removes the door of an interface that is gone.
                    if let Some(why) = door.rest(&error).filter(|_| !is_gone) {
                        came.push(Err(Shut { interface, why }));
                    }
                }
            }
        }
        came
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let devices = self.open.iter().map(|door| &door.device);
        devices.flat_map(Device::addresses).collect()
    }

    /// Whether other hosts can connect, or no interface leads to any.
    fn leads_out(&self) -> bool {
        let is_of_others = |address: &IpAddr| !address.is_loopback();
        self.shut.is_empty() || self.addresses().iter().any(is_of_others)
    }

    /// Opens the wanted doors that are not open, and notes those that fail.
    ///
    /// # Errors
    /// The first failure.
    fn open_missing(&mut self) -> Result<(), airdma::Error> {
        let (port, mut first) = (self.wanted.port, Ok(()));
        let mut enter =
            |doors: &mut Self, interface: &str, opened: Result<OpenDoor, airdma::Error>| {
                match opened {
                    Ok(door) => doors.open.push(door),
                    Err(error) => {
                        let (interface, why) = (interface.to_owned(), error.to_string());
                        doors.shut.push(Shut { interface, why });
                        if first.is_ok() {
                            first = Err(error);
                        }
                    }
                }
            };
        if self.wanted.interfaces.is_empty() {
            for interface in Device::interfaces()? {
                if self.open.iter().any(|door| interface.is_of(&door.device)) {
                    continue;
                }
                let opened = interface.open();
                let opened = opened.and_then(|device| OpenDoor::open(device, port, None));
                enter(self, interface.name(), opened);
            }
        }
        for named in self.wanted.interfaces.clone() {
            if self
                .open
                .iter()
                .any(|door| door.named.as_ref() == Some(&named))
            {
                continue;
            }
            let opened = Device::open(&named);
            let opened = opened.and_then(|device| OpenDoor::open(device, port, Some(&named)));
            enter(self, &named, opened);
        }
        first
    }

    /// Updates the announcement, if there is one.
    fn announce(&mut self) {
        let addresses = self.addresses();
        if let Some(Ok(announcement)) = &self.announced {
            return announcement.tell(&addresses);
        }
        let DoorConfig {
            service,
            name,
            key,
            port,
            ..
        } = &self.wanted;
        let announce = |name: &String| Announcement::start(*service, name, *key, &addresses, *port);
        self.announced = name.as_ref().map(announce);
    }
}

impl fmt::Debug for Doors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Doors({:?})", self.addresses())
    }
}
