//! Names as bytes, and which of them file systems treat as the same.

use super::{NAME_BYTES_MAX, STAGING_PREFIX};
use unicode_normalization::UnicodeNormalization;

/// FAT's short form of a name that begins like an unfinished directory's.
const SHORT_PREFIX: &[u8] = b"airdma~";

/// Whether a file can have this name.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// Whether some file system treats a name as one of an unfinished transfer, at any depth.
///
/// A subdirectory in one transfer may be the top of the next.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    let begins = |name: &[u8]| {
        [STAGING_PREFIX, SHORT_PREFIX].iter().any(|prefix| {
            let begin = name.get(..prefix.len());
            begin.is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
        })
    };
    // Most names need no folding.
    begins(name) || (!name.is_ascii() && begins(folded(name).as_bytes()))
}

/// Folds a name: all names that some file system treats as the same become equal, perhaps others as
/// well.
///
/// Removes case, combining marks and invisible characters, and replaces compatibility characters by
/// their letters (ext4, APFS, HFS+, FAT). Trailing dots and blanks, which FAT drops, are removed.
pub(crate) fn folded(name: &[u8]) -> String {
    if name.is_ascii() {
        let folded = name
            .iter()
            .map(|byte| char::from(byte.to_ascii_lowercase()));
        return without_end(folded.collect());
    }
    let text = String::from_utf8_lossy(name);
    let seen = text.nfkd().filter(|&character| !is_ignored(character));
    // Through upper case, since some pairs of small letters share a capital.
    let folded = seen
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase);
    let folded: String = folded.collect();
    let decomposed = folded.nfkd().filter(|&character| !is_ignored(character));
    without_end(decomposed.collect())
}

fn without_end(mut name: String) -> String {
    name.truncate(name.trim_end_matches(['.', ' ']).len());
    name
}

/// Unicode's `Default_Ignorable_Code_Point`, and combining marks.
fn is_ignored(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
        || unicode_normalization::char::is_combining_mark(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_are_recognised_in_any_spelling() {
        for name in [
            ".airdma-0123456789abcdef",
            ".airdma-",
            ".AirDMA-x",
            ".\u{200d}airdma-x",
            "\u{feff}.airdma-x",
            ".air\u{200c}dma-x",
            ".airdma\u{ad}-x",
            ".\u{ff41}irdma-x",
            "\u{ff0e}airdma-x",
            "\u{2024}airdma\u{ff0d}x",
            ".a\u{131}rdma-x",
            ".a\u{130}rdma-x",
            ".a\u{2170}rdma-x",
            ".ai\u{33ad}",
            ".a\u{301}irdma-x",
            "AIRDMA~1",
            "airdma~2.x",
        ] {
            let is_one = is_reserved(name.as_bytes());
            assert_eq!(is_one, name != ".ai\u{33ad}", "{name}");
        }
        assert!(is_reserved(b".airDMA-\xff"));
        for name in [
            "airdma-x",
            ".airdma",
            ".airdm",
            "x.airdma-",
            ".airdma_",
            "a",
        ] {
            assert!(!is_reserved(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn what_a_file_system_takes_for_one_name_folds_to_one() {
        for (one, other) in [
            ("Makefile", "makefile"),
            ("stra\u{df}e", "STRASSE"),
            ("\u{e9}", "e\u{301}"),
            ("\u{c9}", "e\u{301}"),
            ("a\u{200b}b", "ab"),
            ("\u{212a}", "k"),
            ("\u{3c2}", "\u{3c3}"),
            ("\u{1fb3}", "\u{1fbc}"),
            ("name.", "NAME"),
            ("name . ", "name"),
        ] {
            assert_eq!(folded(one.as_bytes()), folded(other.as_bytes()), "{one}");
        }
        for (one, other) in [("a", "b"), ("ab", "a b"), ("a.b", "ab")] {
            assert_ne!(folded(one.as_bytes()), folded(other.as_bytes()), "{one}");
        }
    }
}
