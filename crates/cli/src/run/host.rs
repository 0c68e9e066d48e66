//! Which libraries of rdma-core a program would get from this host, as `ld.so(8)` looks for them:
//! `LD_LIBRARY_PATH`, the cache that ldconfig(8) writes, the default folders; and around those the
//! folders that the program itself names.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::elf::Machine;
use super::search::Search;

/// Names of the two libraries in programs.
pub const VERBS: &str = "libibverbs.so.1";
pub const CM: &str = "librdmacm.so.1";

/// Libraries of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub verbs: Option<PathBuf>,
    pub cm: Option<PathBuf>,
    /// The cache written by ldconfig(8).
    pub(super) cache: Vec<u8>,
}

impl Host {
    /// Reads the cache and the search path.
    pub fn look() -> Host {
        let cache = fs::read(CACHE).unwrap_or_default();
        let path = env::var_os("LD_LIBRARY_PATH");
        let find = |name| find(name, path.as_deref(), &cache);
        Host {
            verbs: find(VERBS),
            cm: find(CM),
            cache,
        }
    }

    /// Where a library is that an object links.
    pub fn library(&self, name: &str, search: &Search) -> Option<PathBuf> {
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(|path| is_for_us(path));
        }
        let path = env::var_os("LD_LIBRARY_PATH");
        let in_own = |folders: &[PathBuf]| {
            let mut paths = folders.iter().map(|folder| folder.join(name));
            paths.find(|path| is_for_us(path))
        };
        in_own(&search.first)
            .or_else(|| in_given(name, path.as_deref()))
            .or_else(|| in_own(&search.later))
            .or_else(|| find(name, None, &self.cache))
    }

    /// Names of the missing libraries.
    pub fn missing(&self) -> Vec<&'static str> {
        let libraries = [(VERBS, &self.verbs), (CM, &self.cm)];
        let missing = libraries.into_iter().filter(|(_, path)| path.is_none());
        missing.map(|(name, _)| name).collect()
    }
}

fn find(name: &str, path: Option<&OsStr>, cache: &[u8]) -> Option<PathBuf> {
    let default = DEFAULT.iter().map(|folder| Path::new(folder).join(name));
    let mut known = cached(cache, name).into_iter().chain(default);
    in_given(name, path).or_else(|| known.find(|path| is_for_us(path)))
}

/// The library in the folders of `LD_LIBRARY_PATH`.
fn in_given(name: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    let folders = path.map_or(&b""[..], OsStr::as_bytes);
    folders
        .split(|byte| matches!(byte, b':' | b';'))
        .filter(|folder| !folder.is_empty())
        .map(|folder| Path::new(OsStr::from_bytes(folder)).join(name))
        .find(|path| is_for_us(path))
}

/// Whether programs of this machine can load the library.
fn is_for_us(path: &Path) -> bool {
    let machine = Machine::of(path).ok().flatten();
    machine.is_some() && machine == Machine::ours().ok()
}

/// The files that the cache has under a name.
///
/// Its layout, in the machine's byte order: "glibc-ld.so.cache1.1", number of entries (4 bytes) and
/// more, 48 bytes in all; then entries of 24 bytes: flags, name and path (4 bytes each; the latter
/// two are offsets of strings from the start), and more. Older headers may precede it.
fn cached(cache: &[u8], name: &str) -> Vec<PathBuf> {
    let start = cache
        .windows(CACHE_MAGIC.len())
        .position(|bytes| bytes == CACHE_MAGIC);
    let Some(cache) = start.and_then(|start| cache.get(start..)) else {
        return Vec::new();
    };
    let number = |at: usize| {
        let bytes = cache.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    let text = |at: usize| cache.get(at..)?.split(|byte| *byte == 0).next();
    let count = number(CACHE_MAGIC.len()).unwrap_or(0);
    (0..count)
        .map_while(|index| {
            let entry = CACHE_HEADER_LEN + index * CACHE_ENTRY_LEN;
            Some((text(number(entry + 4)?)?, text(number(entry + 8)?)?))
        })
        .filter(|(key, _)| *key == name.as_bytes())
        .map(|(_, path)| PathBuf::from(OsStr::from_bytes(path)))
        .collect()
}

const CACHE: &str = "/etc/ld.so.cache";
const CACHE_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const CACHE_HEADER_LEN: usize = 48;
const CACHE_ENTRY_LEN: usize = 24;
const DEFAULT: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_cache_knows_the_c_library() {
        let cache = fs::read(CACHE).unwrap();
        let found = find("libc.so.6", None, &cache).unwrap();
        assert!(found.is_file(), "{}", found.display());
        assert_eq!(find("libno-such-library.so.1", None, &cache), None);
    }

    #[test]
    fn a_damaged_cache_is_no_cache() {
        let whole = fs::read(CACHE).unwrap();
        for len in [0, 10, 30, 60, whole.len() / 2] {
            let _ = cached(&whole[..len], "libc.so.6");
        }
        assert!(cached(b"glibc-ld.so.cache1.1\xff\xff\xff\xff", "x").is_empty());
    }

    #[test]
    fn a_user_folder_comes_first_if_its_file_is_loadable() {
        let folder = env::temp_dir().join(format!("airdma-host-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let cache = fs::read(CACHE).unwrap();
        let genuine = find("libc.so.6", None, &cache).unwrap();
        let path = format!("/nonexistent:{}", folder.display());
        let find = || find("libc.so.6", Some(OsStr::new(&path)), &cache).unwrap();
        fs::write(folder.join("libc.so.6"), "").unwrap();
        assert_eq!(find(), genuine);
        fs::copy(&genuine, folder.join("libc.so.6")).unwrap();
        assert_eq!(find(), folder.join("libc.so.6"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
