//! Memory that was read by datagrams.

use crate::Region;
use crate::arrived::{Arrived, Ended};
use std::fmt;
use std::ops::Deref;

/// What [`DatagramEndpoint::read_record`](crate::DatagramEndpoint::read_record) has read: the
/// region, and which of the bytes arrived ([`Arrived`]).
///
/// Where nothing arrived the region has what it had before.
pub struct Fetched {
    region: Region,
    arrived: Arrived,
}

impl Fetched {
    pub(crate) fn new(region: Region, arrived: Arrived) -> Fetched {
        Fetched { region, arrived }
    }

    /// The bytes that were asked for; [`Arrived::valid`] says which of them arrived.
    pub fn bytes(&self) -> &[u8] {
        &self.region[self.arrived.range()]
    }

    /// Why it ended.
    pub fn ended(&self) -> Ended {
        self.arrived.end().unwrap_or(Ended::Asked)
    }

    /// The region that was given.
    pub fn into_region(self) -> Region {
        self.region
    }

    /// The region that was given, and which bytes arrived.
    pub fn into_parts(self) -> (Region, Arrived) {
        (self.region, self.arrived)
    }
}

impl Deref for Fetched {
    type Target = Arrived;

    fn deref(&self) -> &Arrived {
        &self.arrived
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fetched({:?})", self.arrived)
    }
}
