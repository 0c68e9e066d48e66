//! Granularity of file times: some file systems truncate them.
//!
//! They do so to 100 ns (NTFS), 1 µs, 10 ms, 1 s (exFAT by FUSE, old ext3) or 2 s (FAT).

use crate::manifest::Modified;

const NANOS: i128 = 1_000_000_000;
/// Granularities in nanoseconds.
const GRAINS: [i128; 7] = [1, 100, 1_000, 1_000_000, 10_000_000, NANOS, 2 * NANOS];

/// Whether a file that was given one time may now have the other: the same, or the same truncated.
///
/// A file that was changed since passes only if its new time happens to be a truncation of the old
/// one.
pub(crate) fn is_kept(given: Modified, found: Modified) -> bool {
    let nanos = |time: Modified| i128::from(time.seconds) * NANOS + i128::from(time.nanos);
    let (given, found) = (nanos(given), nanos(found));
    let mut cuts = GRAINS.iter().map(|grain| given - given.rem_euclid(*grain));
    cuts.any(|cut| cut == found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_was_cut_is_the_same_and_one_that_is_near_is_not() {
        let time = |seconds, nanos| Modified { seconds, nanos };
        let given = time(101, 312_345_678);
        for found in [
            given,
            time(101, 312_345_600),
            time(101, 312_345_000),
            time(101, 310_000_000),
            time(101, 0),
            time(100, 0),
        ] {
            assert!(is_kept(given, found), "{found:?}");
            assert_eq!(is_kept(found, given), found == given, "{found:?}");
        }
        for found in [
            time(101, 312_345_679),
            time(101, 312_345_677),
            time(101, 1),
            time(100, 312_345_678),
            time(102, 0),
            time(99, 0),
            time(98, 0),
        ] {
            assert!(!is_kept(given, found), "{found:?}");
        }
        assert!(is_kept(time(-1, 5), time(-2, 0)));
    }
}
