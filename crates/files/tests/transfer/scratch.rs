//! Directories that are removed with the test, and transfers between them.

use airdma_files::{
    CHUNK_BYTES, Error, JournalKey, Limits, Manifest, Options, Report, Sink, Source, Unwanted, walk,
};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Scratch(PathBuf);

static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    pub fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("airdma-files-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (path, mode) in modes(&self.0) {
            if mode & 0o700 != 0o700 {
                let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
            }
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn modes(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Ok(metadata) = fs::symlink_metadata(&path)
            && metadata.is_dir()
        {
            found.push((path.clone(), metadata.mode()));
            found.extend(modes(&path));
        }
    }
    found
}

/// Sends `path` into `directory`.
pub fn send(path: &Path, directory: &Path, options: Options) -> Result<Report, Error> {
    send_all(&[path], directory, options)
}

pub fn send_all(paths: &[&Path], directory: &Path, options: Options) -> Result<Report, Error> {
    let walked = walk(paths, Limits::default())?;
    let manifest = Arc::clone(&walked.manifest);
    let sink = open(directory, &manifest, options)?;
    let source = Source::new(&walked, sink.unwanted(), sink.next());
    let (sink, _) = copy(source, sink, u64::MAX)?;
    sink.finish()
}

pub fn open(directory: &Path, manifest: &Arc<Manifest>, options: Options) -> Result<Sink, Error> {
    Sink::open(
        directory,
        Arc::clone(manifest),
        manifest.id(),
        options,
        &key(),
    )
}

/// The journal key of all tests.
pub fn key() -> JournalKey {
    JournalKey::derive(b"a user")
}

/// Copies chunks until none is left, or `limit` were copied.
pub fn copy(mut source: Source, mut sink: Sink, limit: u64) -> Result<(Sink, Source), Error> {
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    for _ in 0..limit {
        if sink.next() == sink.plan().chunks() {
            break;
        }
        let length = source.read(&mut buffer);
        sink.write(&buffer[..length])?;
    }
    Ok((sink, source))
}

/// A source of everything in `path`.
pub fn source(path: &Path) -> (Source, Arc<Manifest>) {
    let walked = walk(&[path], Limits::default()).unwrap();
    let manifest = Arc::clone(&walked.manifest);
    (Source::new(&walked, &Unwanted::default(), 0), manifest)
}

/// Everything in a tree that a transfer keeps, by path.
pub fn contents(directory: &Path) -> BTreeMap<Vec<u8>, Described> {
    let mut found = BTreeMap::new();
    describe(directory, directory, &mut found);
    found
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub mode: u32,
    pub modified: (i64, i64),
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Directory,
    File(blake3::Hash, u64),
    Link(PathBuf),
}

fn describe(top: &Path, directory: &Path, found: &mut BTreeMap<Vec<u8>, Described>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let what = if metadata.is_dir() {
            describe(top, &path, found);
            What::Directory
        } else if metadata.is_symlink() {
            What::Link(fs::read_link(&path).unwrap())
        } else {
            What::File(blake3::hash(&fs::read(&path).unwrap()), metadata.len())
        };
        let name = path
            .strip_prefix(top)
            .unwrap()
            .as_os_str()
            .as_bytes()
            .to_vec();
        let mode = if metadata.is_symlink() {
            0
        } else {
            metadata.mode() & 0o777
        };
        found.insert(
            name,
            Described {
                mode,
                modified: (metadata.mtime(), metadata.mtime_nsec()),
                what,
            },
        );
    }
}

/// Pseudo-random bytes.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(&seed.to_be_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}
