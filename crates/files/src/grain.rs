//! Granularity of file times: some file systems truncate them.
//!
//! They do so to 100 ns (NTFS), 1 µs, 10 ms, 1 s (exFAT by FUSE, old ext3) or 2 s (FAT). Each has a
//! first and a last time, which the kernel sets in place of those beyond.

use crate::manifest::Modified;

const NANOS: i128 = 1_000_000_000;
/// Granularities in nanoseconds.
const GRAINS: [i128; 7] = [1, 100, 1_000, 1_000_000, 10_000_000, NANOS, 2 * NANOS];

/// First times in seconds: NTFS and CIFS, signed 32 bits (old ext4, XFS), NFS 3, FAT and exFAT.
const FIRST: [i64; 4] = [-11_644_473_600, i32::MIN as i64, 0, FAT_FIRST];
/// Last times: signed 32 bits, NFS 3, FAT and exFAT, ext4, XFS.
const LAST: [i64; 6] = [
    i32::MAX as i64,
    u32::MAX as i64,
    FAT_LAST - 1,
    FAT_LAST,
    15_032_385_535,
    16_299_260_424,
];
/// 1980 begins, and 2107 ends, in the local time of the kernel.
const FAT_FIRST: i64 = 315_532_800;
const FAT_LAST: i64 = 4_354_819_199;
/// Local time is a multiple of this from UTC, and at most 14 hours.
const ZONE: i64 = 900;
const ZONES_MAX: i64 = 14 * 3600;

/// Whether a file that was given one time may now have the other: the same, the same truncated, or
/// the first or last time of a file system in place of one beyond.
///
/// A file that was changed since passes only if its new time happens to be one of these.
pub(crate) fn is_kept(given: Modified, found: Modified) -> bool {
    is_truncated(given, found) || is_limited(given, found)
}

/// Whether a file system may have no such time.
pub(crate) fn is_rare(time: Modified) -> bool {
    !(FAT_FIRST + ZONES_MAX..i64::from(i32::MAX)).contains(&time.seconds)
}

fn is_limited(given: Modified, found: Modified) -> bool {
    let is_one = |limit: i64| {
        let off = found.seconds - limit;
        let is_fat = limit == FAT_FIRST || (FAT_LAST - 1..=FAT_LAST).contains(&limit);
        off == 0 || is_fat && off % ZONE == 0 && off.abs() <= ZONES_MAX
    };
    let (given_s, found_s) = (given.seconds, found.seconds);
    found.nanos == 0
        && (given_s < found_s && FIRST.into_iter().any(is_one)
            || given_s > found_s && LAST.into_iter().any(is_one))
}

/// Whether the second is the first, or that truncated.
pub(crate) fn is_truncated(given: Modified, found: Modified) -> bool {
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

    #[test]
    fn a_time_beyond_those_of_a_file_system_is_its_first_or_last() {
        let time = |seconds| Modified { seconds, nanos: 0 };
        let at = |seconds, nanos| Modified { seconds, nanos };
        for (given, found) in [
            (at(1, 0), time(FAT_FIRST)),
            (at(160_000_000, 5), time(FAT_FIRST - 3600)),
            (at(7_258_118_400, 0), time(FAT_LAST)),
            (at(7_258_118_400, 0), time(FAT_LAST - 1 + 20_700)),
            (at(7_258_118_400, 9), time(i32::MAX.into())),
            (at(-5, 9), time(0)),
        ] {
            assert!(is_kept(given, found), "{given:?} {found:?}");
            assert!(!is_truncated(given, found), "{given:?} {found:?}");
            assert!(is_rare(given), "{given:?}");
        }
        for (given, found) in [
            (at(1, 0), time(FAT_FIRST + 1)),
            (at(1, 0), at(FAT_FIRST, 1)),
            (at(FAT_FIRST + 7200, 0), time(FAT_FIRST)),
            (at(1_700_000_000, 0), time(FAT_LAST)),
            (at(1_700_000_000, 0), time(0)),
            (at(1_700_000_000, 0), time(i32::MAX.into())),
        ] {
            assert!(!is_kept(given, found), "{given:?} {found:?}");
        }
        assert!(!is_rare(time(1_700_000_000)));
    }
}
