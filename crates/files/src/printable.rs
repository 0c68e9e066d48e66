//! Untrusted text for display: names of files and hosts, and messages of peers.

use std::fmt::Write;

/// Combining marks shown on one letter: more than any script uses, and too few to cover other
/// lines.
const MARKS_MAX: usize = 3;

/// A name or text for display: UTF-8 as it is, except what a terminal would not show as a
/// character.
///
/// Escaped are control characters, direction marks, blanks other than the space, invisible and
/// unassigned characters, piles of combining marks, and bytes that are not UTF-8.
pub fn printable(text: &[u8]) -> String {
    let mut out = String::new();
    // A mark at the beginning has no letter of its own.
    let mut marks = MARKS_MAX;
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            marks = if is_mark(character) { marks + 1 } else { 0 };
            if is_hidden(character) || marks > MARKS_MAX {
                out.extend(character.escape_default());
                marks = MARKS_MAX;
            } else {
                out.push(character);
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(out, "\\x{byte:02x}");
            marks = MARKS_MAX;
        }
    }
    out
}

/// As [`printable`], for a text of several lines, which stay lines.
pub fn printable_lines(text: &str) -> String {
    let lines = text.split('\n').map(|line| printable(line.as_bytes()));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a character is invisible, or changes how others are displayed.
pub fn is_hidden(character: char) -> bool {
    !has_shape(character) || is_ignorable(character)
}

/// Whether `Debug` of strings leaves it as it is: all but Unicode's categories Cc, Cf, Cn, Co, Cs,
/// Zl, Zp, and Zs without the space.
fn has_shape(character: char) -> bool {
    let within = ['a', character];
    is_quoted(character) || String::from_iter(within).escape_debug().count() == within.len()
}

/// Whether it is a combining mark: visible, but escaped if it stands alone.
fn is_mark(character: char) -> bool {
    !is_quoted(character) && has_shape(character) && character.escape_debug().len() > 1
}

/// Whether it is escaped because of the surrounding quotes.
fn is_quoted(character: char) -> bool {
    matches!(character, '\'' | '"' | '\\')
}

/// Invisible letters, marks and symbols: `Default_Ignorable_Code_Point` of other categories, and
/// the blank of Braille.
fn is_ignorable(character: char) -> bool {
    matches!(
        character,
        '\u{34f}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{e0100}'..='\u{e01ef}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printed_without_what_moves_the_cursor() {
        assert_eq!(printable(b"a\nb\x1b[2J"), "a\\nb\\u{1b}[2J");
        assert_eq!(printable("grün".as_bytes()), "grün");
        assert_eq!(printable(b"\xffx"), "\\xffx");
        assert_eq!(printable("gpj.\u{202e}exe".as_bytes()), "gpj.\\u{202e}exe");
    }

    #[test]
    fn what_is_not_seen_is_shown() {
        for hidden in [
            '\u{7f}',
            '\u{80}',
            '\u{9b}',
            '\u{a0}',
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{115f}',
            '\u{17b4}',
            '\u{180b}',
            '\u{180e}',
            '\u{2003}',
            '\u{200b}',
            '\u{200d}',
            '\u{200e}',
            '\u{2028}',
            '\u{2029}',
            '\u{202a}',
            '\u{2060}',
            '\u{2064}',
            '\u{2065}',
            '\u{2069}',
            '\u{2800}',
            '\u{3000}',
            '\u{3164}',
            '\u{e000}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{fff9}',
            '\u{ffff}',
            '\u{1d173}',
            '\u{e0001}',
            '\u{e0041}',
            '\u{e0100}',
            '\u{10fffe}',
        ] {
            assert!(is_hidden(hidden), "{hidden:?}");
            let name = printable(format!("a{hidden}b").as_bytes());
            assert_eq!(name, format!("a{}b", hidden.escape_default()));
        }
        for seen in [
            "it's \"a\" \\ b",
            "Ärger",
            "日本語",
            "שלום",
            "ไทย",
            "🦀",
            "e\u{301}",
        ] {
            assert_eq!(printable(seen.as_bytes()), seen);
        }
    }

    #[test]
    fn what_was_made_printable_stays_as_it_is() {
        let text = "a\u{202e}b\n\u{1b}c";
        let shown = printable_lines(text);
        assert_eq!(shown, "a\\u{202e}b\n\\u{1b}c");
        assert_eq!(printable_lines(&shown), shown);
    }

    #[test]
    fn marks_are_shown_on_letters_and_not_in_heaps() {
        assert_eq!(printable("\u{301}a".as_bytes()), "\\u{301}a");
        assert_eq!(printable("\n\u{301}".as_bytes()), "\\n\\u{301}");
        let heap = format!("a{}b\u{301}", "\u{301}".repeat(5));
        let shown = format!("a{}\\u{{301}}\\u{{301}}b\u{301}", "\u{301}".repeat(3));
        assert_eq!(printable(heap.as_bytes()), shown);
    }
}
