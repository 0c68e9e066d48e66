//! Random numbers for keys and queue pair numbers: from the kernel, or, in a simulation, from a
//! seed.
//!
//! | what | from | why |
//! |---|---|---|
//! | private keys, and the keys from which proofs of identity are derived | [`Random::secret`], [`Random::secret_u64`]: the kernel, each | none is in memory before its use |
//! | memory keys, numbers of queue pairs and connections | [`Random::next_u32`], [`Random::next_u64`]: several at a time | they are on the wire, and many |

use airdma_preload::WipedPage;
use std::cell::OnceCell;
use std::fmt;
use std::io::Read;

/// Bytes that are fetched from the kernel at a time: as many as one call gives whatever happens.
const FETCHED_BYTES: usize = 256;

/// Where random numbers come from.
#[derive(Debug)]
pub(crate) enum Random {
    /// The kernel: keys guard memory.
    Kernel(Fetched),
    /// A generator in this state, so that a simulation can be repeated.
    Seeded(u64),
}

/// Random bytes that were fetched and not handed out, and before them the number of these. Both are
/// zero in a child after fork, which fetches its own. The page is mapped for the first number: many
/// generators draw none. `None` inside: the kernel has no such page.
pub(crate) struct Fetched(OnceCell<Option<WipedPage>>);

impl Fetched {
    /// 32 random bits, which nothing keeps.
    fn next_u32(&mut self) -> u32 {
        self.0.get_or_init(WipedPage::new);
        let Some(Some(page)) = self.0.get_mut() else {
            return random_u32();
        };
        let (left, bytes) = page.bytes().split_at_mut(size_of::<u32>());
        let (left, bytes) = (&mut left[0], &mut bytes[..FETCHED_BYTES]);
        if *left == 0 {
            fill(bytes);
            *left = (FETCHED_BYTES / size_of::<u32>()) as u8;
        }
        *left -= 1;
        let at = usize::from(*left) * size_of::<u32>();
        let mut next = [0; size_of::<u32>()];
        next.swap_with_slice(&mut bytes[at..at + size_of::<u32>()]);
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
        out.write_str("Fetched")
    }
}

impl Random {
    /// Random numbers of the kernel.
    pub(crate) fn kernel() -> Random {
        Random::Kernel(Fetched(OnceCell::new()))
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

    /// Bytes of a private key, fetched for it alone.
    pub(crate) fn secret<const N: usize>(&mut self) -> [u8; N] {
        let mut secret = [0; N];
        match self {
            Random::Kernel(_) => fill(&mut secret),
            Random::Seeded(_) => {
                for word in secret.chunks_mut(size_of::<u32>()) {
                    word.copy_from_slice(&self.next_u32().to_ne_bytes()[..word.len()]);
                }
            }
        }
        secret
    }

    /// 64 bits of a private key, fetched for it alone.
    pub(crate) fn secret_u64(&mut self) -> u64 {
        match self {
            Random::Kernel(_) => u64::from_ne_bytes(self.secret()),
            Random::Seeded(_) => self.next_u64(),
        }
    }

    /// The page of numbers that were fetched: the number of those left, and the bytes.
    #[cfg(test)]
    #[allow(clippy::unwrap_used, reason = "a test's")]
    pub(crate) fn fetched(&mut self) -> [u8; WipedPage::BYTES] {
        let Random::Kernel(Fetched(page)) = self else {
            panic!("a seed's numbers");
        };
        *page.get_mut().unwrap().as_mut().unwrap().bytes()
    }

    /// Whether a page was mapped.
    #[cfg(test)]
    pub(crate) fn has_page(&self) -> bool {
        matches!(self, Random::Kernel(Fetched(page)) if page.get().is_some())
    }

    /// A generator for another purpose.
    pub(crate) fn fork(&mut self) -> Random {
        match self {
            Random::Kernel(_) => Random::kernel(),
            Random::Seeded(_) => Random::Seeded(self.next_u64()),
        }
    }
}

/// 32 random bits from the kernel, fetched for this call alone. The control path can afford it.
///
/// # Panics
/// Where a sandbox allows neither `getrandom` nor `/dev/urandom`: keys that can be guessed guard
/// nothing.
pub fn random_u32() -> u32 {
    let mut bytes = [0; size_of::<u32>()];
    fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}

/// Fills at most [`FETCHED_BYTES`] with random bits of the kernel.
///
/// # Panics
/// As [`random_u32`].
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
mod tests;
