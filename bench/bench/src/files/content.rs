//! The files that are copied, and a comparison of the copy.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use blake3::{Hash, Hasher};

/// `files` files of `file_bytes` bytes: a single one by itself, more in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Name in cases.
    pub name: &'static str,
    pub files: u32,
    pub file_bytes: u64,
}

pub const CONTENTS: [Content; 3] = [
    content("1GB", 1, 1_000_000_000),
    content("10MB", 1, 10_000_000),
    content("10000x4KiB", 10_000, 4096),
];
/// Contents of a quick run, which shows that all of it works.
pub const SMALL: [Content; 2] = [content("1MB", 1, 1_000_000), content("100x4KiB", 100, 4096)];

const fn content(name: &'static str, files: u32, file_bytes: u64) -> Content {
    Content {
        name,
        files,
        file_bytes,
    }
}

const CHUNK_BYTES: usize = 1 << 20;

impl Content {
    pub fn bytes(self) -> u64 {
        u64::from(self.files) * self.file_bytes
    }

    pub fn is_directory(self) -> bool {
        self.files > 1
    }

    /// Writes the content: bytes that no program can compress, the same each time.
    pub fn make(self, path: &Path) -> io::Result<()> {
        if !self.is_directory() {
            return write(path, self.file_bytes, 0);
        }
        fs::create_dir(path)?;
        (0..self.files).try_for_each(|number| {
            write(&path.join(format!("{number:05}")), self.file_bytes, number)
        })
    }
}

fn write(path: &Path, bytes: u64, number: u32) -> io::Result<()> {
    let mut random = Hasher::new().update(&number.to_le_bytes()).finalize_xof();
    let mut file = File::create(path)?;
    let mut chunk = vec![0; CHUNK_BYTES.min(bytes as usize)];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(chunk.len() as u64) as usize;
        random.fill(&mut chunk[..length]);
        file.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    Ok(())
}

/// Checksum of a file, or of all names and files in a directory.
pub fn digest(path: &Path) -> io::Result<Hash> {
    let mut hasher = Hasher::new();
    if !path.is_dir() {
        hasher.update_reader(File::open(path)?)?;
        return Ok(hasher.finalize());
    }
    let names: io::Result<Vec<_>> = path
        .read_dir()?
        .map(|entry| Ok(entry?.file_name()))
        .collect();
    let mut names = names?;
    names.sort_unstable();
    for name in names {
        hasher.update(name.as_encoded_bytes());
        let of_file = digest(&path.join(&name))?;
        hasher.update(of_file.as_bytes());
    }
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_a_name_and_a_missing_file_are_seen() {
        let folder = std::env::temp_dir().join(format!("airdma-content-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let made = |name: &str| {
            let path = folder.join(name);
            content("", 3, 1000).make(&path).unwrap();
            path
        };
        let right = digest(&made("right")).unwrap();
        assert_eq!(digest(&made("same")).unwrap(), right);
        let changed = made("changed");
        fs::write(changed.join("00001"), [0; 1000]).unwrap();
        let renamed = made("renamed");
        fs::rename(renamed.join("00002"), renamed.join("00003")).unwrap();
        let missing = made("missing");
        fs::remove_file(missing.join("00002")).unwrap();
        for wrong in [changed, renamed, missing] {
            assert_ne!(digest(&wrong).unwrap(), right, "{}", wrong.display());
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
