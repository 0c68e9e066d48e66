//! Where senders come in: listeners at devices, and the word to the network that they are there.

use crate::discovery::{Announcement, NoMulticast};
use crate::error::Error;
use crate::progress::Event;
use crate::receive::ReceiveJob;
use airdma::{Device, Endpoint, Listener, Operation};
use std::fmt;
use std::net::IpAddr;

/// Open until they are dropped.
pub struct Doors {
    pub(crate) open: Vec<OpenDoor>,
    announced: Option<Result<Announcement, NoMulticast>>,
}

/// A device, and who is about to come in there.
pub(crate) struct OpenDoor {
    pub device: Device,
    pub listener: Listener,
    pub accepting: Operation<Endpoint>,
}

impl Doors {
    /// Those of a job: at its interfaces and port, announced by its name.
    ///
    /// # Errors
    /// An interface that was named, or each one, cannot be listened at.
    pub fn open(job: &ReceiveJob<'_>) -> Result<Self, Error> {
        let open = open_all(job)?;
        let addresses = addresses_of(&open);
        let name = job.name.as_ref();
        let announced =
            name.map(|name| Announcement::start(name, job.identity.public(), &addresses, job.port));
        Ok(Self { open, announced })
    }

    /// What is to be told about them.
    pub(crate) fn listening(&self) -> Event {
        Event::Listening {
            addresses: addresses_of(&self.open),
            unannounced: match &self.announced {
                Some(Err(error)) => Some(error.to_string()),
                Some(Ok(_)) | None => None,
            },
        }
    }
}

impl fmt::Debug for Doors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Doors({:?})", addresses_of(&self.open))
    }
}

fn addresses_of(doors: &[OpenDoor]) -> Vec<IpAddr> {
    let devices = doors.iter().map(|door| &door.device);
    devices.flat_map(Device::addresses).collect()
}

fn open_all(job: &ReceiveJob<'_>) -> Result<Vec<OpenDoor>, Error> {
    let are_named = !job.interfaces.is_empty();
    let names = if are_named {
        job.interfaces.clone()
    } else {
        Device::names()?
    };
    let (mut doors, mut refused) = (Vec::new(), None);
    for name in names {
        let opened = Device::open(&name).and_then(|device| {
            let device = device.sealed();
            let listener = device.listen(job.port)?;
            let accepting = listener.accept();
            Ok(OpenDoor {
                device,
                listener,
                accepting,
            })
        });
        match opened {
            Ok(door) => doors.push(door),
            Err(error) if are_named => return Err(error.into()),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if doors.is_empty() => Err(error.into()),
        Some(_) | None => Ok(doors),
    }
}
