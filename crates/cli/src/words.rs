//! Output of untrusted text: names of files and hosts, and messages of peers and services.

use airdma_files::is_hidden;
pub use airdma_files::printable_lines;
use std::fmt::{Display, Write};

/// JSON in one line with exact texts; invisible characters are escaped.
pub fn json_line(json: &impl Display) -> String {
    json.to_string()
        .chars()
        .fold(String::new(), |mut out, character| {
            // JSON has such characters only within strings, where the escape means the same.
            if is_hidden(character) {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a string does not fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            } else {
                out.push(character);
            }
            out
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn programs_get_the_exact_text_and_terminals_nothing_that_hides() {
        let text =
            "a\u{1b}[2J\u{7f}\u{9b}\u{202e}\u{200b}\u{e0041}\u{feff} gr\u{fc}n \u{1f980} \"\\";
        let json = json!({"names": [text]});
        let line = json_line(&json);
        assert!(!line.chars().any(is_hidden), "{line}");
        assert!(line.contains("\u{fc}") && line.contains("\u{1f980}"));
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), json);
    }
}
