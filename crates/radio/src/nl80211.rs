//! Readings of wireless drivers by nl80211: kind of an interface, channel, stations, surveys.
//!
//! Attributes are those of `linux/nl80211.h`; those that a driver does not report are `None`. The
//! kernel's messages are not trusted to be complete: attributes that are cut off or too short are
//! `None` as well.

mod interface;
mod rate;
mod station;
mod survey;

use netlink_sys::protocols::NETLINK_GENERIC;

use crate::netlink::{ACK, Conversation, DUMP, Request, attribute, short};
use crate::unreadable::Unreadable;

pub use interface::{Channel, InterfaceKind, WirelessInterface};
pub use rate::{Bitrate, Standard};
pub use station::{Station, TxQueue};
pub use survey::Survey;

/// A socket to nl80211, in the network namespace of the thread that opened it.
pub struct Nl80211 {
    conversation: Conversation,
    family: u16,
}

impl Nl80211 {
    /// Opens the socket. If no wireless driver is loaded, the kernel may try once to load nl80211.
    ///
    /// # Errors
    /// [`Unreadable::NoNl80211`], or the kernel's error.
    pub fn open() -> Result<Nl80211, Unreadable> {
        let mut conversation = Conversation::open(NETLINK_GENERIC)?;
        let mut request = Request::new(GENERIC_CONTROL, ACK, &[GET_FAMILY, 1, 0, 0])
            .attribute(FAMILY_NAME, b"nl80211\0");
        let mut family = None;
        let asked = conversation.ask(&mut request, |body| family = family_id(body));
        match asked {
            Ok(()) => {}
            Err(Unreadable::Refused(libc::ENOENT)) => return Err(Unreadable::NoNl80211),
            Err(reason) => return Err(reason),
        }
        Ok(Nl80211 {
            conversation,
            family: family.ok_or(Unreadable::Garbled)?,
        })
    }

    /// Kind and channel of a wireless interface.
    ///
    /// # Errors
    /// [`Unreadable::NotWireless`], also if there is no such interface; or the kernel's error.
    pub fn interface(&mut self, index: u32) -> Result<WirelessInterface, Unreadable> {
        let mut found = Err(Unreadable::Garbled);
        self.ask(GET_INTERFACE, ACK, index, |attributes| {
            found = WirelessInterface::parse(attributes).ok_or(Unreadable::Garbled);
        })?;
        found
    }

    /// The peers of the interface, at most 512: the access point of a station, otherwise all
    /// stations.
    ///
    /// # Errors
    /// As [`Nl80211::interface`]; [`Unreadable::NotOffered`] if the driver has no list.
    pub fn stations(&mut self, index: u32) -> Result<Vec<Station>, Unreadable> {
        let mut stations = Vec::new();
        self.ask(GET_STATION, DUMP, index, |attributes| {
            if stations.len() < STATIONS_MAX {
                stations.extend(Station::parse(attributes));
            }
        })?;
        Ok(stations)
    }

    /// The survey of the channel that the driver marks as in use, or else of the one at this
    /// frequency in MHz.
    ///
    /// # Errors
    /// As [`Nl80211::stations`].
    pub fn survey(&mut self, index: u32, frequency_mhz: Option<u32>) -> Result<Survey, Unreadable> {
        let mut found: Option<Survey> = None;
        self.ask(GET_SURVEY, DUMP, index, |attributes| {
            let survey = Survey::parse(attributes);
            found = Survey::better(found, survey, frequency_mhz);
        })?;
        found.ok_or(Unreadable::NotOffered)
    }

    fn ask(
        &mut self,
        command: u8,
        flags: u16,
        index: u32,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Unreadable> {
        let mut request = Request::new(self.family, flags, &[command, 0, 0, 0])
            .attribute(INTERFACE_INDEX, &index.to_ne_bytes());
        let asked = self.conversation.ask(&mut request, |body| {
            if let Some(attributes) = body.get(GENERIC_HEADER_BYTES..) {
                each(attributes);
            }
        });
        match asked {
            Err(Unreadable::Refused(libc::ENODEV)) => Err(Unreadable::NotWireless),
            Err(Unreadable::Refused(libc::EOPNOTSUPP)) => Err(Unreadable::NotOffered),
            told => told,
        }
    }
}

fn family_id(body: &[u8]) -> Option<u16> {
    short(attribute(body.get(GENERIC_HEADER_BYTES..)?, FAMILY_ID)?)
}

/// The first 8 bits as a number.
fn byte(bytes: &[u8]) -> Option<u8> {
    bytes.first().copied()
}

/// Length of the generic netlink header: command, version, two reserved bytes.
const GENERIC_HEADER_BYTES: usize = 4;
/// The family that resolves the names of the others.
const GENERIC_CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GET_INTERFACE: u8 = 5;
const GET_STATION: u8 = 17;
const GET_SURVEY: u8 = 50;
const INTERFACE_INDEX: u16 = 3;
const STATIONS_MAX: usize = 512;

#[cfg(test)]
mod tests;
