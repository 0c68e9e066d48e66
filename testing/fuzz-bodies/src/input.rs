//! Bytes, taken as decisions.

/// Decides what happens next. When the bytes are used up, every decision is the first choice and
/// every number zero.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Takes decisions from these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Input { rest: bytes }
    }

    /// Whether all bytes are used up.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `N` bytes, zeros where there are none.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let taken = self.take(N);
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    /// At most `len` bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    /// 16 bits.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    /// 32 bits.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    /// 64 bits.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// A number below `bound`, which is 1 to 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// True once in `n` times, if the bytes are random.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// One of the choices, of which there are 1 to 256.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A number that is mostly one of `near` or next to it, and sometimes any.
    pub fn number(&mut self, near: &[u64]) -> u64 {
        match self.below(8) {
            0..=3 => self.pick(near),
            4 => self.pick(near).wrapping_add(1),
            5 => self.pick(near).wrapping_sub(1),
            6 => u64::from(self.u16()),
            _ => self.u64(),
        }
    }
}
