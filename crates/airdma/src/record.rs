//! The record of a message that was written by datagrams.

use crate::arrived::{Arrived, Ended};
use crate::datagrams::Datagrams;
use crate::landing::{Landing, RecordKeys};
use crate::{Error, Result};
use airdma_engine::RecordHandle;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// One message of [`DatagramEndpoint::write_record`](crate::DatagramEndpoint::write_record) at its
/// target: where it is, and which of its bytes arrived ([`Arrived`]).
///
/// It is part of the region that was shared. Its bytes do not change until it is dropped, unless
/// another message is written to the same place. Drop records soon: a target has room for some
/// (`closed_max`, 192, of one source address half of that), and without room messages are lost.
pub struct Record {
    datagrams: Arc<Datagrams>,
    handle: RecordHandle,
    /// `None` if the region was withdrawn before.
    landing: Option<Arc<Landing>>,
    arrived: Arrived,
}

impl Record {
    pub(crate) fn new(
        datagrams: &Arc<Datagrams>,
        handle: RecordHandle,
        arrived: Arrived,
    ) -> Record {
        let found = datagrams.hub.landings.find(&arrived).and_then(|place| {
            let offset = place.offset(&arrived)?;
            Some((place.landing, offset))
        });
        let (landing, offset) = found.map_or((None, 0), |(landing, at)| (Some(landing), at));
        Record {
            datagrams: Arc::clone(datagrams),
            handle,
            landing,
            arrived: arrived.at(offset),
        }
    }

    /// Why it was closed.
    pub fn ended(&self) -> Ended {
        self.arrived.end().unwrap_or(Ended::Asked)
    }

    /// Copies what is at `offset` of the message. Where nothing arrived, the region has
    /// what it had before.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the range exceeds the message, or the region was
    /// withdrawn.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        if offset
            .checked_add(bytes.len())
            .is_none_or(|end| end > self.len())
        {
            return Err(Error::you(format!(
                "{} bytes at offset {offset} of a record of {} bytes: stay within it",
                bytes.len(),
                self.len()
            )));
        }
        match &self.landing {
            Some(landing) => landing.copy_out(self.range().start + offset, bytes),
            None => Err(Error::you(
                "the region of the record was withdrawn before the record was taken",
            )),
        }
    }

    /// A copy of the message, with zeros where nothing arrived.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the region was withdrawn.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()];
        for valid in self.valid() {
            self.copy_out(valid.start, &mut bytes[valid.clone()])?;
        }
        Ok(bytes)
    }

    pub(crate) fn landed_in(&self, keys: &RecordKeys) -> bool {
        let landing = self.landing.as_ref();
        landing.is_some_and(|landing| keys.are_of(landing))
    }
}

impl Deref for Record {
    type Target = Arrived;

    fn deref(&self) -> &Arrived {
        &self.arrived
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.datagrams.free(self.handle);
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({:?})", self.arrived)
    }
}
