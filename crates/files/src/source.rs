//! The sending end of the stream: reads files into chunks.

use crate::descent::Descent;
use crate::manifest::{Content, Manifest};
use crate::plan::{CHUNK_BYTES, Part, Plan, Unwanted};
use crate::stamp::{Stamps, is_one_file};
use crate::trailer::{Flaw, Trailer};
use crate::walk::{Walked, modified, open_in, open_root};
use crate::{Error, Problem};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// Reads the chunks of a stream, in order.
///
/// A file that changed since the walk, or that cannot be read, does not end the transfer: zeros
/// fill its place in the stream, its trailer takes it back, and [`Source::flaws`] lists it. A file
/// that only grew is sent with its offered length, and [`Source::take_grown`] lists it.
#[derive(Debug)]
pub struct Source {
    manifest: Arc<Manifest>,
    plan: Plan,
    /// Paths of the top-level entries, with their indices.
    roots: Vec<(u32, PathBuf)>,
    descent: Descent,
    next: u64,
    reading: Option<Reading>,
    flaws: Vec<(u32, Flaw)>,
    grown: Vec<u32>,
    stamps: Stamps,
}

/// State of a file compared to the walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Now {
    Unchanged,
    /// The same file, but longer.
    Longer,
    Changed,
}

/// The file that is being read.
#[derive(Debug)]
struct Reading {
    /// Its index in the plan.
    file: usize,
    entry: u32,
    opened: Result<OwnedFd, Flaw>,
    hasher: blake3::Hasher,
}

impl Source {
    /// A source of the walked files without the unwanted ones, from chunk `first` on.
    pub fn new(walked: &Walked, unwanted: &Unwanted, first: u64) -> Self {
        let manifest = Arc::clone(&walked.manifest);
        let plan = Plan::new(&manifest, unwanted);
        let tops = manifest
            .iter()
            .filter(|(_, entry)| entry.depth == 0)
            .map(|(index, _)| index);
        let roots = tops.zip(walked.roots.iter().cloned()).collect();
        let (descent, flaws, grown) = (Descent::default(), Vec::new(), Vec::new());
        Self {
            manifest,
            plan,
            roots,
            descent,
            next: first,
            reading: None,
            flaws,
            grown,
            stamps: Stamps::default(),
        }
    }

    /// The plan of the stream.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Files that were taken back, with the reason.
    pub fn flaws(&self) -> &[(u32, Flaw)] {
        &self.flaws
    }

    /// Files that grew while they were read, since the last call. They are sent with their offered
    /// length.
    pub fn take_grown(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.grown)
    }

    /// The chunk that [`Source::read`] returns next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Reads the next chunk into the front of `buffer`, and returns its length: 0 behind the last.
    ///
    /// `buffer` must hold at least [`crate::CHUNK_BYTES`].
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        let (chunk, manifest) = (self.next, Arc::clone(&self.manifest));
        let pieces: Vec<_> = self.plan.pieces(chunk).collect();
        for piece in &pieces {
            let bytes = &mut buffer[piece.at..piece.at + piece.length];
            match piece.part {
                Part::Data(at) => self.reading(piece.file, at).read(&manifest, at, bytes),
                Part::Padding => bytes.fill(0),
                Part::Trailer => {
                    let data_bytes = self.plan.files()[piece.file].data_bytes;
                    let mut stamps = std::mem::take(&mut self.stamps);
                    let reading = self.reading(piece.file, data_bytes);
                    let (entry, trailer, has_grown) = reading.trailer(&manifest, &mut stamps);
                    self.stamps = stamps;
                    bytes.copy_from_slice(&trailer.encode());
                    self.grown.extend(has_grown.then_some(entry));
                    if let Trailer::Void(flaw) = trailer {
                        self.flaws.push((entry, flaw));
                    }
                    self.reading = None;
                }
            }
        }
        self.next += 1;
        self.plan.chunk_bytes(chunk)
    }

    /// The file whose byte `at` is next.
    ///
    /// If it is not open yet, at its beginning or when a transfer resumes, the data before is read
    /// for the hash.
    fn reading(&mut self, file: usize, at: u64) -> &mut Reading {
        if self
            .reading
            .as_ref()
            .is_none_or(|reading| reading.file != file)
        {
            let entry = self.plan.files()[file].entry;
            let opened = self.open(entry);
            let mut reading = Reading {
                file,
                entry,
                opened,
                hasher: blake3::Hasher::new(),
            };
            reading.hash_before(&self.manifest, at);
            self.reading = Some(reading);
        }
        self.reading.as_mut().expect("it was just set")
    }

    fn open(&mut self, index: u32) -> Result<OwnedFd, Flaw> {
        let manifest = Arc::clone(&self.manifest);
        let entry = manifest.entry(index);
        let opened = match entry.parent {
            None => open_root(root(&self.roots, index)).map_err(Error::at("read", &entry.name)),
            Some(parent) => self.open_below(parent, &entry.name),
        };
        let opened = opened.map_err(|error| {
            let gone = matches!(error.problem, Problem::Missing | Problem::NoDirectory);
            if gone {
                Flaw::Changed
            } else {
                Flaw::Unreadable
            }
        })?;
        // Checked again after all of it was read; a small one only then.
        let stamps = &mut self.stamps;
        let is_small = entry
            .content()
            .is_some_and(|content| content.data_bytes() <= CHUNK_BYTES);
        if is_small || now(&opened, &manifest, index, stamps) != Now::Changed {
            Ok(opened)
        } else {
            Err(Flaw::Changed)
        }
    }

    fn open_below(&mut self, parent: u32, name: &[u8]) -> Result<OwnedFd, Error> {
        let (manifest, roots) = (&self.manifest, &self.roots);
        let directory = self.descent.reach(manifest, parent, |above, index| {
            let name = &manifest.entry(index).name;
            let opened = match above {
                None => open_root(root(roots, index)),
                Some(above) => open_in(above, name),
            };
            opened.map_err(Error::at("read", name))
        })?;
        open_in(directory, name).map_err(Error::at("read", name))
    }
}

impl Reading {
    /// Reads data of the file; zeros once it is not readable.
    fn read(&mut self, manifest: &Manifest, at: u64, bytes: &mut [u8]) {
        if let Ok(file) = &self.opened {
            let content = manifest
                .entry(self.entry)
                .content()
                .expect("the plan holds files alone");
            match read_data(file, content, at, bytes) {
                Ok(()) => {
                    self.hasher.update(bytes);
                    return;
                }
                Err(flaw) => self.opened = Err(flaw),
            }
        }
        bytes.fill(0);
    }

    fn hash_before(&mut self, manifest: &Manifest, at: u64) {
        let mut buffer = vec![0; at.min(1 << 18) as usize];
        let mut done = 0;
        while done < at && self.opened.is_ok() {
            let length = (at - done).min(buffer.len() as u64) as usize;
            self.read(manifest, done, &mut buffer[..length]);
            done += length as u64;
        }
    }

    /// Checks after its last byte whether the file is still the offered one, or has grown.
    ///
    /// A file that has grown is read again, to see whether the sent data is still its beginning: a
    /// log, not a file that is being rewritten.
    fn trailer(&self, manifest: &Manifest, stamps: &mut Stamps) -> (u32, Trailer, bool) {
        let (entry, sent) = (self.entry, self.hasher.finalize());
        let flawed = |flaw| (entry, Trailer::Void(flaw), false);
        let file = match &self.opened {
            Ok(file) => file,
            Err(flaw) => return flawed(*flaw),
        };
        match now(file, manifest, entry, stamps) {
            Now::Unchanged if has_unsaid_content(file, manifest, entry) => flawed(Flaw::Unreadable),
            Now::Unchanged => (entry, Trailer::Whole(sent), false),
            Now::Longer if read_again(file, manifest, entry) == Some(sent) => {
                (entry, Trailer::Whole(sent), true)
            }
            Now::Longer | Now::Changed => flawed(Flaw::Changed),
        }
    }
}

/// Hash of the offered part of the data as it is now.
fn read_again(file: &OwnedFd, manifest: &Manifest, entry: u32) -> Option<blake3::Hash> {
    let content = manifest.entry(entry).content()?;
    let (all, mut at) = (content.data_bytes(), 0);
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; all.min(1 << 18) as usize];
    while at < all {
        let length = (all - at).min(buffer.len() as u64) as usize;
        read_data(file, content, at, &mut buffer[..length]).ok()?;
        hasher.update(&buffer[..length]);
        at += length as u64;
    }
    Some(hasher.finalize())
}

/// Whether a file of size 0 has content: one that the kernel generates as it is read (/proc).
fn has_unsaid_content(file: &OwnedFd, manifest: &Manifest, entry: u32) -> bool {
    let is_empty = manifest
        .entry(entry)
        .content()
        .is_some_and(|content| content.size == 0);
    is_empty && rustix::io::pread(file, &mut [0; 1], 0).is_ok_and(|length| length > 0)
}

fn root(roots: &[(u32, PathBuf)], index: u32) -> &PathBuf {
    let at = roots
        .binary_search_by_key(&index, |(root, _)| *root)
        .expect("each entry at the top has a path");
    &roots[at].1
}

fn now(file: &OwnedFd, manifest: &Manifest, index: u32, stamps: &mut Stamps) -> Now {
    let entry = manifest.entry(index);
    let (Some(content), Ok(stat)) = (entry.content(), rustix::fs::fstat(file)) else {
        return Now::Changed;
    };
    let (size, stamp) = (stat.st_size as u64, stamps.of(&stat, || Ok(file)));
    let is_unchanged =
        size == content.size && modified(&stat) == entry.modified && stamp == content.stamp;
    // Holes could hold data by now.
    let is_longer =
        size > content.size && content.extents.is_none() && is_one_file(stamp, content.stamp);
    match (is_unchanged, is_longer) {
        (true, _) => Now::Unchanged,
        (false, true) => Now::Longer,
        (false, false) => Now::Changed,
    }
}

/// Reads `bytes` from byte `at` of the data on.
fn read_data(file: &OwnedFd, content: &Content, mut at: u64, bytes: &mut [u8]) -> Result<(), Flaw> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (offset, run) = content.locate(at);
        let length = run.min(rest.len() as u64) as usize;
        match rustix::io::pread(file, &mut rest[..length], offset) {
            // The file became shorter.
            Ok(0) => return Err(Flaw::Changed),
            Ok(count) => {
                rest = &mut rest[count..];
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(_) => return Err(Flaw::Unreadable),
        }
    }
    Ok(())
}
