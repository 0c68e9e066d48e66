//! The receiving end of a stream that goes to a pipe: a single file.

use crate::Error;
use crate::manifest::{Content, Manifest};
use crate::plan::{Part, Plan, TRAILER_BYTES, Unwanted};
use crate::sink::{Report, Unkept, problem};
use crate::trailer::{Flaw, Trailer};
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

/// Zeros written at once for a hole.
const ZEROS: [u8; 4096] = [0; 4096];

/// Writes the chunks of an offer of one file to a pipe, in order.
///
/// Written data cannot be taken back: the report tells at the end whether the file changed while it
/// was sent.
pub struct Pour {
    manifest: Arc<Manifest>,
    plan: Plan,
    out: Box<dyn Write + Send>,
    hasher: Box<blake3::Hasher>,
    next: u64,
    /// Bytes of the file that were written, holes included.
    written: u64,
    flaw: Option<Flaw>,
}

impl Pour {
    /// Whether an offer is one file and nothing else.
    pub fn takes(manifest: &Manifest) -> bool {
        matches!(manifest.entries(), [only] if only.content().is_some())
    }

    /// Writes the offered file to `out`; `None` unless [`Pour::takes`] the manifest.
    pub fn new(manifest: Arc<Manifest>, out: Box<dyn Write + Send>) -> Option<Self> {
        Self::takes(&manifest).then(|| Self {
            plan: Plan::new(&manifest, &Unwanted::default()),
            manifest,
            out,
            hasher: Box::default(),
            next: 0,
            written: 0,
            flaw: None,
        })
    }

    /// The plan of the stream.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The chunk that [`Pour::write`] takes next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Writes the next chunk, of the plan's length. After an error nothing more can be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let pieces: Vec<_> = self.plan.pieces(self.next).collect();
        for piece in pieces {
            let bytes = &bytes[piece.at..piece.at + piece.length];
            match piece.part {
                Part::Data(at) => self.write_data(at, bytes).map_err(|error| said(&error))?,
                Part::Padding => {}
                Part::Trailer => {
                    let trailer: &[u8; TRAILER_BYTES as usize] =
                        bytes.try_into().expect("a trailer lies in one chunk");
                    self.flaw = self.check(Trailer::decode(trailer));
                }
            }
        }
        self.next += 1;
        Ok(())
    }

    /// Ends the file after the last chunk.
    pub fn finish(mut self) -> Result<Report, Error> {
        assert_eq!(self.next, self.plan.chunks(), "all chunks were written");
        let size = self.content().size;
        let ended = self.fill_to(size).and_then(|()| self.out.flush());
        ended.map_err(|error| said(&error))?;
        let flaws: Vec<(u32, Flaw)> = self.flaw.map(|flaw| (0, flaw)).into_iter().collect();
        Ok(Report {
            files: 1 - flaws.len() as u64,
            flaws,
            unkept: Unkept::default(),
        })
    }

    fn write_data(&mut self, mut at: u64, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (offset, run) = self.content().locate(at);
            self.fill_to(offset)?;
            let (now, later) = rest.split_at(run.min(rest.len() as u64) as usize);
            self.out.write_all(now)?;
            self.written += now.len() as u64;
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    fn fill_to(&mut self, offset: u64) -> io::Result<()> {
        while self.written < offset {
            let zeros = &ZEROS[..(offset - self.written).min(ZEROS.len() as u64) as usize];
            self.out.write_all(zeros)?;
            self.written += zeros.len() as u64;
        }
        Ok(())
    }

    fn check(&self, trailer: Trailer) -> Option<Flaw> {
        match trailer {
            Trailer::Whole(hash) if hash == self.hasher.finalize() => None,
            Trailer::Whole(_) => Some(Flaw::Damaged),
            Trailer::Void(flaw) => Some(flaw),
        }
    }

    fn content(&self) -> &Content {
        let entry = self.manifest.entry(0);
        entry.content().expect("only a file is taken")
    }
}

fn said(error: &io::Error) -> Error {
    Error::new("write", "to standard output", problem(error))
}

impl fmt::Debug for Pour {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Pour")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}
