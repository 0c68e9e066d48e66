//! Bytes as choices: what a fuzzer mutates and a seed expands to. Past the end every choice is the
//! first option.

/// A reader of choices.
#[derive(Debug)]
pub struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Reads choices from these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Choices { bytes }
    }

    /// Whether none are left.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((&first, rest)) => {
                self.bytes = rest;
                first
            }
            None => 0,
        }
    }

    /// The next `N` bytes.
    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// The next eight bytes as a number.
    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound <= 256 {
            usize::from(self.byte()) * bound / 256
        } else {
            usize::from(u16::from_le_bytes(self.array())) * bound / 65_536
        }
    }

    /// True in about `of_256` of 256 cases, and false past the end.
    pub fn chance(&mut self, of_256: u8) -> bool {
        self.byte() > 255 - of_256
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
