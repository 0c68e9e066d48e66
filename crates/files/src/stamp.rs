//! Stamps, by which a sender recognises that a file is still the offered one.

use rustix::fs::Stat;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::AsFd;

/// Magic numbers of file systems that renumber files at a lookup or mount (`statfs(2)`): FAT,
/// exFAT, FUSE, CIFS and SMB.
const NUMBERED_ANEW: [u64; 5] = [0x4d44, 0x2011_bab0, 0x6573_5546, 0xff53_4d42, 0xfe53_4d42];

/// Makes stamps: a hash of the inode and one of its ctime.
///
/// The inode's number counts only on file systems that keep it. The kernel sets ctime at each
/// change.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// Whether inodes keep their numbers, by device.
    keep_numbers: HashMap<u64, bool>,
}

impl Stamps {
    /// The stamp of a file.
    ///
    /// `opened` returns the file, or one with its name, and is called if nothing is known of its
    /// file system yet.
    pub fn of<F: AsFd>(&mut self, stat: &Stat, opened: impl FnOnce() -> Result<F, Errno>) -> u64 {
        let kept = self.keep_numbers.entry(stat.st_dev).or_insert_with(|| {
            let system = opened().and_then(rustix::fs::fstatfs);
            system.is_ok_and(|system| !NUMBERED_ANEW.contains(&(system.f_type as u64)))
        });
        stamp(stat, *kept)
    }
}

/// Whether two stamps are of the same file, changed or not.
pub(crate) fn is_one_file(one: u64, other: u64) -> bool {
    one >> u32::BITS == other >> u32::BITS
}

fn stamp(stat: &Stat, is_number_kept: bool) -> u64 {
    let half = |parts: &[[u8; 8]]| {
        let [a, b, c, d, ..] = *blake3::hash(parts.as_flattened()).as_bytes();
        u64::from(u32::from_be_bytes([a, b, c, d]))
    };
    let changed = [stat.st_ctime as u64, stat.st_ctime_nsec];
    let changed = changed.map(u64::to_be_bytes);
    let number = match is_number_kept {
        true => half(&[stat.st_ino.to_be_bytes()]),
        false => 0,
    };
    number << u32::BITS | half(&changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_counts_only_where_it_is_kept() {
        let mut stat = rustix::fs::stat("/").unwrap();
        let stamps = |stat: &Stat| [true, false].map(|is_kept| stamp(stat, is_kept));
        let before = stamps(&stat);
        stat.st_ino += 1;
        let [kept, anew] = stamps(&stat);
        assert_ne!(kept, before[0]);
        assert!(!is_one_file(kept, before[0]));
        assert_eq!(anew, before[1]);
        stat.st_ctime += 1;
        assert_ne!(stamps(&stat)[1], before[1]);
        assert!(is_one_file(stamps(&stat)[0], kept));
        let mut made = Stamps::default();
        let root = || rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
        let first = made.of(&stat, root);
        assert_eq!(
            made.of(&stat, || -> Result<std::fs::File, _> { panic!() }),
            first
        );
    }
}
