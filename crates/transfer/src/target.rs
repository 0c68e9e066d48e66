//! Destination of chunks at the receiver: files below a directory, or a stream.

use crate::error::Error;
use crate::receive::Destination;
use airdma_files::{
    CHUNK_BYTES, JournalKey, Manifest, ManifestId, Plan, Pour, Preview, Report, Sink, Unwanted,
};
use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// A pipe for an offer of one file. It outlives connections: what was written is not sent again.
pub struct Stream(Mutex<Option<Flow>>);

enum Flow {
    /// Nothing was written yet.
    New(Box<dyn Write + Send>),
    /// A connection was lost after the start.
    Begun(ManifestId, Pour),
}

/// An open destination.
pub(crate) enum Target<'a> {
    Directory(Box<Sink>),
    Stream(Flowing<'a>),
}

/// A stream in use, which is returned to its owner if the transfer ends early.
pub(crate) struct Flowing<'a> {
    stream: &'a Stream,
    id: ManifestId,
    pour: Option<Pour>,
}

impl Stream {
    /// A stream to `out`.
    pub fn new(out: impl Write + Send + 'static) -> Self {
        Self(Mutex::new(Some(Flow::New(Box::new(out)))))
    }

    fn preview(&self, manifest: &Manifest, id: ManifestId) -> Result<Preview, Error> {
        if !Pour::takes(manifest) {
            return Err(Error::Unfit(
                "only a single file goes to standard output: name a directory there",
            ));
        }
        let bytes = Plan::new(manifest, &Unwanted::default()).bytes();
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Flow::New(_)) => Ok(Preview {
                goes_on: false,
                bytes,
            }),
            Some(Flow::Begun(begun, pour)) if *begun == id => Ok(Preview {
                goes_on: true,
                bytes: bytes.saturating_sub(pour.next() * CHUNK_BYTES),
            }),
            Some(Flow::Begun(..)) | None => Err(taken()),
        }
    }

    fn open(&self, manifest: Arc<Manifest>, id: ManifestId) -> Result<Flowing<'_>, Error> {
        let mut flow = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pour = match flow.take() {
            Some(Flow::New(out)) => Pour::new(manifest, out),
            Some(Flow::Begun(begun, pour)) if begun == id => Some(pour),
            other => {
                *flow = other;
                None
            }
        };
        Ok(Flowing {
            stream: self,
            id,
            pour: Some(pour.ok_or_else(taken)?),
        })
    }
}

fn taken() -> Error {
    Error::Unfit("standard output holds a part of another offer: start again")
}

impl<'a> Target<'a> {
    /// What accepting an offer would mean; nothing is written.
    pub fn preview(
        destination: &Destination,
        manifest: &Arc<Manifest>,
        id: ManifestId,
        key: &JournalKey,
    ) -> Result<Preview, Error> {
        match destination {
            Destination::Directory { path, options } => {
                Ok(Sink::preview(path, manifest, id, options, key)?)
            }
            Destination::Stream(stream) => stream.preview(manifest, id),
        }
    }

    pub fn open(
        destination: &'a Destination,
        manifest: Arc<Manifest>,
        id: ManifestId,
        key: &JournalKey,
    ) -> Result<Self, Error> {
        match destination {
            Destination::Directory { path, options } => {
                let sink = Sink::open(path, manifest, id, *options, key)?;
                Ok(Self::Directory(Box::new(sink)))
            }
            Destination::Stream(stream) => Ok(Self::Stream(stream.open(manifest, id)?)),
        }
    }

    pub fn unwanted(&self) -> Unwanted {
        match self {
            Self::Directory(sink) => sink.unwanted().clone(),
            Self::Stream(_) => Unwanted::default(),
        }
    }

    pub fn plan(&self) -> &Plan {
        match self {
            Self::Directory(sink) => sink.plan(),
            Self::Stream(flowing) => flowing.pour().plan(),
        }
    }

    pub fn next(&self) -> u64 {
        match self {
            Self::Directory(sink) => sink.next(),
            Self::Stream(flowing) => flowing.pour().next(),
        }
    }

    /// Number of durable chunks.
    pub fn durable(&self) -> u64 {
        match self {
            Self::Directory(sink) => sink.durable(),
            Self::Stream(flowing) => flowing.pour().next(),
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Self::Directory(sink) => Ok(sink.write(bytes)?),
            Self::Stream(flowing) => {
                let mut pour = flowing.pour.take().ok_or_else(taken)?;
                // A stream that failed in the middle of a chunk cannot resume.
                pour.write(bytes)?;
                flowing.pour = Some(pour);
                Ok(())
            }
        }
    }

    /// Begins to make data durable in the background.
    pub fn checkpoint_beside(&mut self) -> Result<(), Error> {
        match self {
            Self::Directory(sink) => Ok(sink.checkpoint_beside()?),
            Self::Stream(_) => Ok(()),
        }
    }

    pub fn checkpoint(&mut self) -> Result<(), Error> {
        match self {
            Self::Directory(sink) => Ok(sink.checkpoint()?),
            Self::Stream(_) => Ok(()),
        }
    }

    /// Ends the transfer; returns its sink until the sender knows.
    pub fn settle(self) -> Result<(Report, Option<Box<Sink>>), Error> {
        match self {
            Self::Directory(mut sink) => Ok((sink.settle()?, Some(sink))),
            Self::Stream(mut flowing) => {
                let pour = flowing.pour.take().ok_or_else(taken)?;
                Ok((pour.finish()?, None))
            }
        }
    }
}

impl Flowing<'_> {
    fn pour(&self) -> &Pour {
        self.pour
            .as_ref()
            .expect("it is there until it is finished, or has failed")
    }
}

impl Drop for Flowing<'_> {
    fn drop(&mut self) {
        if let Some(pour) = self.pour.take() {
            let mut flow = self.stream.0.lock().unwrap_or_else(PoisonError::into_inner);
            *flow = Some(Flow::Begun(self.id, pour));
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Stream")
    }
}
