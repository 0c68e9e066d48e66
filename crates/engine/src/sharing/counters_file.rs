//! The file in which all processes of a user add up a device's counters.
//!
//! `airdma devices -v` shows them as it would a kernel device's.
//!
//! ```text
//! 0        8         16           24
//! | magic  | version | names hash | counter 0 | counter 1 | ...     (64-bit words, host byte order)
//! ```
//!
//! It lies in the [runtime directory](crate::sharing::runtime_dir), and is named after the network
//! namespace and the interface. A file with other names in it (of another version) is replaced, not
//! changed: processes of that version keep their file. Counters are optional: without a file
//! nothing fails.

use crate::counter_names::{COUNT, names};
use crate::sharing::runtime_dir::{self, Locked, directory, network_namespace, open_file, reserve};
use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"airdma#1");
const VERSION: u64 = 1;
const HEADER_WORDS: usize = 3;
const WORDS: usize = HEADER_WORDS + COUNT;
const BYTES: usize = WORDS * size_of::<AtomicU64>();

/// A mapped counters file.
pub(crate) struct CountersFile {
    words: NonNull<AtomicU64>,
}

// SAFETY: the mapping belongs to the value, and is only touched through atomics.
unsafe impl Send for CountersFile {}
// SAFETY: as above.
unsafe impl Sync for CountersFile {}

impl CountersFile {
    /// Opens the file of the device on an interface; makes it if it does not exist.
    pub(crate) fn open(interface: &str) -> io::Result<Self> {
        Self::open_at(&directory()?, &file_name(interface)?)
    }

    /// Opens the file of the device on an interface if there is one of this version.
    pub(crate) fn open_existing(interface: &str) -> io::Result<Self> {
        let path = directory()?.join(file_name(interface)?);
        let mapped = Self::map(&open_file(&path, false)?)?;
        if mapped.has_our_header() {
            Ok(mapped)
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }

    fn open_at(directory: &Path, name: &str) -> io::Result<Self> {
        let path = directory.join(name);
        // Twice: a file of another version is removed first.
        for _ in 0..2 {
            let file = Locked::new(open_file(&path, true)?)?;
            if file.0.metadata()?.len() == 0 {
                reserve(&file.0, BYTES)?;
                let mapped = Self::map(&file.0)?;
                mapped.write_header();
                return Ok(mapped);
            }
            match Self::map(&file.0) {
                Ok(mapped) if mapped.has_our_header() => return Ok(mapped),
                Ok(_) | Err(_) => std::fs::remove_file(&path)?,
            }
        }
        Err(io::Error::other(
            "the counters file is being replaced by another version all the time",
        ))
    }

    fn map(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() != BYTES as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Only processes of this user could truncate it, which they do not.
        let words = runtime_dir::map(file, BYTES)?.cast();
        Ok(CountersFile { words })
    }

    /// Adds to a counter, as other processes do.
    pub(crate) fn add(&self, index: usize, amount: u64) {
        self.word(HEADER_WORDS + index)
            .fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn values(&self) -> [u64; COUNT] {
        std::array::from_fn(|index| self.word(HEADER_WORDS + index).load(Ordering::Relaxed))
    }

    fn has_our_header(&self) -> bool {
        let header = [MAGIC, VERSION, names_hash()];
        (0..HEADER_WORDS).all(|word| self.word(word).load(Ordering::Acquire) == header[word])
    }

    fn write_header(&self) {
        for (index, word) in [MAGIC, VERSION, names_hash()].into_iter().enumerate() {
            self.word(index).store(word, Ordering::Release);
        }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "counter beyond the file");
        // SAFETY: within the mapping by the assertion, aligned as every mapping is, mapped until
        // the value is dropped.
        unsafe { self.words.add(index).as_ref() }
    }
}

impl Drop for CountersFile {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this size, and no reference to it outlives
        // `self`.
        unsafe { libc::munmap(self.words.as_ptr().cast(), BYTES) };
    }
}

/// FNV-1a over the names: two versions with the same names may share a file.
fn names_hash() -> u64 {
    let bytes = names().iter().flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Name of an interface of a network namespace; the slash of an odd name would lead to another
/// folder.
fn file_name(interface: &str) -> io::Result<String> {
    let namespace = network_namespace()?;
    if interface.contains('/') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(format!("{namespace}-{interface}.counters"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sharing::runtime_dir::make_directory;
    use std::path::PathBuf;

    /// A directory for one test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("airdma-test-{}-{name}", std::process::id()));
            make_directory(&path).unwrap();
            Directory(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn counts_of_two_openers_add_up_and_stay() {
        let directory = Directory::new("sum");
        let first = CountersFile::open_at(&directory.0, "x").unwrap();
        let second = CountersFile::open_at(&directory.0, "x").unwrap();
        first.add(1, 5);
        second.add(1, 2);
        drop((first, second));
        let values = CountersFile::open_at(&directory.0, "x").unwrap().values();
        assert_eq!(values[..3], [0, 7, 0]);
    }

    #[test]
    fn a_file_of_another_version_is_replaced_and_its_users_keep_it() {
        let directory = Directory::new("version");
        let old = CountersFile::open_at(&directory.0, "x").unwrap();
        old.add(0, 5);
        old.word(2).store(1234, Ordering::Relaxed);
        let new = CountersFile::open_at(&directory.0, "x").unwrap();
        old.add(0, 1);
        assert_eq!((old.values()[0], new.values()[0]), (6, 0));
        std::fs::write(directory.0.join("y"), b"not a counters file").unwrap();
        assert_eq!(
            CountersFile::open_at(&directory.0, "y").unwrap().values()[0],
            0
        );
    }

    #[test]
    fn links_are_not_followed() {
        let directory = Directory::new("link");
        let victim = directory.0.join("victim");
        std::fs::write(&victim, b"").unwrap();
        std::os::unix::fs::symlink(&victim, directory.0.join("x")).unwrap();
        assert!(CountersFile::open_at(&directory.0, "x").is_err());
        assert_eq!(std::fs::metadata(&victim).unwrap().len(), 0);
    }
}
