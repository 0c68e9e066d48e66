//! Random numbers for keys and queue pair numbers: from the kernel, or, in a simulation, from a
//! seed.

use std::io::Read;

/// Where random numbers come from.
#[derive(Debug, Default)]
pub(crate) enum Random {
    /// The kernel: keys guard memory.
    #[default]
    Kernel,
    /// A generator in this state, so that a simulation can be repeated.
    Seeded(u64),
}

impl Random {
    /// 32 random bits.
    pub(crate) fn next_u32(&mut self) -> u32 {
        match self {
            Random::Kernel => random_u32(),
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
            Random::Kernel => Random::Kernel,
            Random::Seeded(_) => Random::Seeded(self.next_u64()),
        }
    }
}

/// 32 random bits from the kernel. The control path can afford the call.
///
/// # Panics
/// Where a sandbox allows neither `getrandom` nor `/dev/urandom`: keys that can be guessed guard
/// nothing.
pub(crate) fn random_u32() -> u32 {
    let mut bytes = [0u8; 4];
    // SAFETY: the pointer and the length describe `bytes`, which the kernel may write.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        let device = std::fs::File::open("/dev/urandom");
        device
            .and_then(|mut device| device.read_exact(&mut bytes))
            .expect("random numbers of the kernel: allow getrandom, or /dev/urandom");
    }
    u32::from_ne_bytes(bytes)
}
