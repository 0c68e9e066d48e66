//! Where senders come in: listeners at devices, and the word to the network that they are there.
//!
//! Doors follow the interfaces: an interface that comes later, or whose port was taken before, gets a door, and an interface that is gone
//! loses its door.

use crate::discovery::{Announcement, NoMulticast};
use crate::error::Error;
use crate::progress::{Event, Shut};
use crate::receive::ReceiveJob;
use airdma::{Changes, Device, Endpoint, Listener, Operation};
use airdma_files::session::PublicKey;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Between two tries to open what did not open, and between two looks for interfaces where the kernel does not tell.
const TRY_EVERY: Duration = Duration::from_secs(5);
/// The kernel tells a change in several messages: one look after the last of them will do.
const SETTLE: Duration = Duration::from_millis(200);
/// How long a door rests after it could not take a connection: what it lacks (descriptors, memory) does not come back sooner.
const REST: Duration = Duration::from_secs(1);

/// Open until they are dropped.
pub struct Doors {
    pub(crate) open: Vec<OpenDoor>,
    shut: Vec<Shut>,
    /// What was told last.
    addresses: Vec<IpAddr>,
    wanted: Wanted,
    changes: Option<Changes>,
    /// Something changed since the last look.
    has_changed: bool,
    looked: Instant,
    announced: Option<Result<Announcement, NoMulticast>>,
}

/// Where to listen.
struct Wanted {
    /// Interfaces or addresses; all, if there are none.
    named: Vec<String>,
    port: u16,
    name: Option<String>,
    key: PublicKey,
}

/// A device, and who is about to come in there.
pub(crate) struct OpenDoor {
    pub device: Device,
    pub listener: Listener,
    pub accepting: Operation<Endpoint>,
    /// As it was named.
    named: Option<String>,
    /// It could not take a connection: until then it is left alone.
    rests: Option<Instant>,
    /// The reason that was told last.
    complaint: Option<String>,
}

impl OpenDoor {
    fn open(device: Device, port: u16, named: Option<&str>) -> Result<Self, airdma::Error> {
        let device = device.sealed();
        let listener = device.listen(port)?;
        // What it takes to wait there is missing now, or never.
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

    /// Whether it is left alone for now.
    pub fn rests(&self) -> bool {
        self.rests.is_some_and(|until| Instant::now() < until)
    }

    /// It could not take a connection. Returns what to tell, once for each reason.
    pub fn rest(&mut self, error: &airdma::Error) -> Option<String> {
        self.rests = Some(Instant::now() + REST);
        let why = error.to_string();
        let is_new = self.complaint.as_ref() != Some(&why);
        is_new.then(|| self.complaint.insert(why).clone())
    }

    /// It has taken a connection.
    pub fn serves(&mut self) {
        self.complaint = None;
    }

    /// Whether peers can still come to it.
    fn leads_somewhere(&self) -> bool {
        let addresses = self.device.addresses();
        let has = |address| addresses.contains(&address);
        let meant = self.named.as_ref().and_then(|named| named.parse().ok());
        !self.device.is_gone() && meant.is_none_or(has)
    }
}

impl Doors {
    /// Those of a job: at its interfaces and port, announced by its name.
    ///
    /// # Errors
    /// An interface that was named cannot be listened at; or of all not one that leads to other hosts, though there are such.
    pub fn open(job: &ReceiveJob<'_>) -> Result<Self, Error> {
        let changes = Changes::from_now().ok();
        let mut doors = Self {
            open: Vec::new(),
            shut: Vec::new(),
            addresses: Vec::new(),
            wanted: Wanted {
                named: job.interfaces.clone(),
                port: job.port,
                name: job.name.clone(),
                key: job.identity.public(),
            },
            changes,
            has_changed: false,
            looked: Instant::now(),
            announced: None,
        };
        if let Err(error) = doors.open_missing()
            && (!doors.wanted.named.is_empty() || !doors.leads_out())
        {
            return Err(error.into());
        }
        doors.addresses = doors.addresses();
        doors.announce();
        Ok(doors)
    }

    /// What is to be told about them.
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

    /// Opens and closes doors as interfaces and addresses come and go. Returns what to tell of that.
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
        // What is still shut says so itself.
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
    fn addresses(&self) -> Vec<IpAddr> {
        let devices = self.open.iter().map(|door| &door.device);
        devices.flat_map(Device::addresses).collect()
    }

    /// Whether other hosts can come in, or no interface leads to any.
    fn leads_out(&self) -> bool {
        let is_of_others = |address: &IpAddr| !address.is_loopback();
        self.shut.is_empty() || self.addresses().iter().any(is_of_others)
    }

    /// Opens what is wanted and not open, and notes what does not open.
    ///
    /// # Errors
    /// Of those that do not, why the first.
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
        if self.wanted.named.is_empty() {
            for interface in Device::interfaces()? {
                if self.open.iter().any(|door| interface.is_of(&door.device)) {
                    continue;
                }
                let opened = interface.open();
                let opened = opened.and_then(|device| OpenDoor::open(device, port, None));
                enter(self, interface.name(), opened);
            }
        }
        for named in self.wanted.named.clone() {
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

    /// Tells the network where it is now, if it is to.
    fn announce(&mut self) {
        let addresses = self.addresses();
        if let Some(Ok(announcement)) = &self.announced {
            return announcement.tell(&addresses);
        }
        let Wanted {
            name, key, port, ..
        } = &self.wanted;
        let name = name.as_ref();
        self.announced = name.map(|name| Announcement::start(name, *key, &addresses, *port));
    }
}

impl fmt::Debug for Doors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Doors({:?})", self.addresses())
    }
}
