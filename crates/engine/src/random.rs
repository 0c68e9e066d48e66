//! Random numbers for keys and queue pair numbers: from the kernel, or, in a simulation, from a
//! seed.

use std::fmt;
use std::io::Read;

/// Bytes that are fetched from the kernel at a time: as many as one call gives whatever happens.
const FETCHED_BYTES: usize = 256;

/// Where random numbers come from.
#[derive(Debug)]
pub(crate) enum Random {
    /// The kernel: keys guard memory.
    Kernel(Box<Fetched>),
    /// A generator in this state, so that a simulation can be repeated.
    Seeded(u64),
}

/// Random bytes that were fetched and not handed out. A child after fork has them as well, and no
/// use of the device for which they are.
pub(crate) struct Fetched {
    bytes: [u8; FETCHED_BYTES],
    left: usize,
}

impl Fetched {
    /// 32 random bits, which nothing keeps.
    fn next_u32(&mut self) -> u32 {
        if self.left == 0 {
            fill(&mut self.bytes);
            self.left = FETCHED_BYTES;
        }
        let end = self.left;
        self.left -= size_of::<u32>();
        let mut next = [0; size_of::<u32>()];
        next.swap_with_slice(&mut self.bytes[self.left..end]);
        u32::from_ne_bytes(next)
    }
}

impl Default for Random {
    fn default() -> Self {
        Random::kernel()
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Fetched({} bytes)", self.left)
    }
}

impl Random {
    /// Random numbers of the kernel, several with one system call.
    pub(crate) fn kernel() -> Random {
        Random::Kernel(Box::new(Fetched {
            bytes: [0; FETCHED_BYTES],
            left: 0,
        }))
    }

    /// 32 random bits.
    pub(crate) fn next_u32(&mut self) -> u32 {
        match self {
            Random::Kernel(fetched) => fetched.next_u32(),
            Random::Seeded(state) => {
                // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = *state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((z ^ (z >> 31)) >> 32) as u32
            }
        }
    }

    /// 64 random bits.
    pub(crate) fn next_u64(&mut self) -> u64 {
        let (high, low) = (self.next_u32(), self.next_u32());
        u64::from(high) << 32 | u64::from(low)
    }

    /// A generator for another purpose.
    pub(crate) fn fork(&mut self) -> Random {
        match self {
            Random::Kernel(_) => Random::kernel(),
            Random::Seeded(_) => Random::Seeded(self.next_u64()),
        }
    }
}

/// 32 random bits from the kernel. The control path can afford the call.
///
/// # Panics
/// As [`fill`].
pub(crate) fn random_u32() -> u32 {
    let mut bytes = [0; size_of::<u32>()];
    fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}

/// Fills at most [`FETCHED_BYTES`] with random bits of the kernel.
///
/// # Panics
/// Where a sandbox allows neither `getrandom` nor `/dev/urandom`: keys that can be guessed guard
/// nothing.
fn fill(bytes: &mut [u8]) {
    // SAFETY: the pointer and the length describe `bytes`, which the kernel may write.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        let device = std::fs::File::open("/dev/urandom");
        device
            .and_then(|mut device| device.read_exact(bytes))
            .expect("random numbers of the kernel: allow getrandom, or /dev/urandom");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_of_the_kernel_differ_and_are_handed_out_once() {
        let mut random = Random::kernel();
        let drawn: HashSet<u64> = (0..1000).map(|_| random.next_u64()).collect();
        assert_eq!(drawn.len(), 1000);
        let Random::Kernel(fetched) = &random else {
            panic!("not of the kernel");
        };
        assert!(fetched.bytes[fetched.left..].iter().all(|byte| *byte == 0));
        assert!(!format!("{random:?}").contains('['));
    }
}
