//! The code phrase of a first contact, short enough to be read aloud.
//!
//! Two words of five letters, consonants and vowels in turn (proquints: 16 bits each), so 32 bits.
//! That is short for a password but enough here: a code is valid for one offer, each guess needs a
//! connection ([`super::handshake`]), and three wrong codes end the offer.

use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;

const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 4] = b"aiou";
/// Letters of a word: which of the 16 bits select each, and whether it is a consonant.
const SHIFTS: [(u32, bool); 5] = [(12, true), (10, false), (6, true), (4, false), (0, true)];
/// Characters of a code, hyphen included.
const CODE_CHARACTERS: usize = 11;

/// A code phrase.
#[derive(Clone, PartialEq, Eq)]
pub struct Code(String);

/// The text is not a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a code: a code is two words of five letters, such as lusab-babad")]
pub struct NoCode;

impl Code {
    /// A new random code.
    pub fn draw() -> Self {
        let mut bytes = [0; 4];
        SystemRandom::new()
            .fill(&mut bytes)
            .expect("the kernel has random bytes");
        let [a, b, c, d] = bytes;
        let words = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
        Self(words.map(word).join("-"))
    }

    /// Parses typed text; case and blanks do not matter.
    pub fn parse(typed: &str) -> Result<Self, NoCode> {
        let letters = typed.trim().to_ascii_lowercase();
        let code = letters
            .split([' ', '-'])
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join("-");
        let sound = code.len() == CODE_CHARACTERS && code.split('-').all(is_word);
        if sound { Ok(Self(code)) } else { Err(NoCode) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// The code for display to its user.
impl fmt::Display for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Does not print the code.
impl fmt::Debug for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Code")
    }
}

fn word(bits: u16) -> String {
    let letter = |(shift, consonant)| {
        let bits = usize::from(bits >> shift);
        char::from(if consonant {
            CONSONANTS[bits & 15]
        } else {
            VOWELS[bits & 3]
        })
    };
    SHIFTS.into_iter().map(letter).collect()
}

fn is_word(word: &str) -> bool {
    let fits = |(letter, (_, consonant)): (u8, (u32, bool))| {
        if consonant {
            CONSONANTS.contains(&letter)
        } else {
            VOWELS.contains(&letter)
        }
    };
    word.len() == SHIFTS.len() && word.bytes().zip(SHIFTS).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_definition() {
        assert_eq!(
            [0x7f00, 0x0001, 0xffff].map(word),
            ["lusab", "babad", "zuzuz"]
        );
    }

    #[test]
    fn what_was_drawn_can_be_typed_in_any_way() {
        let code = Code::draw();
        let loud = format!("  {} ", code.to_string().to_uppercase().replace('-', " "));
        assert_eq!(Code::parse(&loud), Ok(code.clone()));
        assert_ne!(Code::draw(), code);
        for typed in [
            "",
            "lusab",
            "lusab-babax",
            "lusab-babad-gutih",
            "lusabbabad",
            "l\u{fc}sab-baba",
        ] {
            assert_eq!(Code::parse(typed), Err(NoCode), "{typed}");
        }
    }
}
