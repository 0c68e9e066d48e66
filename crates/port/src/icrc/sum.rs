//! CRC-32 of one packet at a time.
//!
//! The crate crc32fast is made for long inputs. At the length of most packets, 1,036 bytes, what it
//! does at the end of an input takes as long as the rest: it joins its streams one after the other.
//! Where the CPU multiplies 512 bits without carries at once (AVX-512 with VPCLMULQDQ: Intel since
//! Ice Lake, AMD since Zen 4), this does the same with fewer steps in a row:
//!
//! ```text
//!   zeros | packet .....................................|  zeros in front change nothing:
//!   | 64 B | 64 B | 64 B | 64 B | 64 B | ... | 64 B |      no step for a short end
//!      a0     a1     a2     a3     a0    ...    a3        four sums; a round moves them by 256 B:
//!      \______\______\______/                         times x^2048
//!              |  times x^1536, x^1024, x^512, 1              all four at once
//!              a: four lanes of 16 B
//!              |  times x^384, x^256, x^128, 1                all four at once
//!              16 B, then as usual (Gopal et al., Fast CRC Computation, Intel 2009)
//! ```
//!
//! docs/design/016 has the gain. Short packets and other CPUs use crc32fast.
//!
//! [`CopySum`] does the same while it copies: each block is loaded once, stored, and summed.

use airdma_wire::ICRC_LEN;

/// Shortest packet that is not left to crc32fast, which is as fast below. Lengths that are not a
/// multiple of 4, which no packet has, are left to it as well.
const WIDE_LEN_MIN: usize = 128;

/// Sums packets.
pub(crate) struct Sum {
    /// A sum of nothing. Making one asks what the CPU can, which takes as long as the sum of a
    /// short packet.
    empty: crc32fast::Hasher,
    wide: Option<wide::Wide>,
}

impl Sum {
    pub(crate) fn new() -> Self {
        Sum {
            empty: crc32fast::Hasher::new(),
            wide: wide::Wide::new(),
        }
    }

    #[inline]
    pub(crate) fn of(&self, bytes: &[u8]) -> u32 {
        if let Some(wide) = self.wide
            && bytes.len() >= WIDE_LEN_MIN
            && bytes.len().is_multiple_of(4)
        {
            return wide.sum(bytes);
        }
        let mut sum = self.empty.clone();
        sum.update(bytes);
        sum.finalize()
    }
}

/// Copies payloads into packets and sums the packets, in one pass.
#[derive(Clone, Copy)]
pub struct CopySum {
    wide: wide::Wide,
}

impl CopySum {
    /// `None` where the CPU does it faster in two passes.
    pub fn new() -> Option<Self> {
        wide::Wide::new().map(|wide| CopySum { wide })
    }

    /// Copies the payload of `packet`, which begins at `start`, and writes the packet's sum behind
    /// it, for [`TransmitBatch::commit_summed_run`](crate::TransmitBatch::commit_summed_run). The
    /// sum is that of the stored bytes, whatever happens to the source meanwhile. False, and
    /// nothing is done, if the packet has a length that is not worth it.
    ///
    /// `packet` has room for the ICRC at its end.
    ///
    /// # Safety
    /// `from` is valid for reads of as many bytes as the payload has, none of which are in
    /// `packet`. Others may write there meanwhile.
    #[inline]
    pub unsafe fn copy(self, from: *const u8, packet: &mut [u8], start: usize) -> bool {
        let Some((bytes, trailer)) = packet.split_last_chunk_mut::<ICRC_LEN>() else {
            return false;
        };
        // SAFETY: as the caller vouches.
        match unsafe { self.wide.copy(from, bytes, start) } {
            Some(sum) => {
                *trailer = sum.to_le_bytes();
                true
            }
            None => false,
        }
    }
}

/// Other processors than x86-64 have none.
#[cfg(not(target_arch = "x86_64"))]
mod wide {
    #[derive(Clone, Copy)]
    pub(super) enum Wide {}

    impl Wide {
        pub(super) fn new() -> Option<Self> {
            None
        }

        pub(super) fn sum(self, _bytes: &[u8]) -> u32 {
            match self {}
        }

        /// # Safety
        /// There is no such value.
        pub(super) unsafe fn copy(
            self,
            _from: *const u8,
            _packet: &mut [u8],
            _start: usize,
        ) -> Option<u32> {
            match self {}
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::ptr;

    use super::WIDE_LEN_MIN;

    /// Proof that the CPU has what [`sum`] needs.
    #[derive(Clone, Copy)]
    pub(super) struct Wide(());

    impl Wide {
        pub(super) fn new() -> Option<Self> {
            let there = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("vpclmulqdq")
                && is_x86_feature_detected!("pclmulqdq")
                && is_x86_feature_detected!("sse4.1");
            there.then_some(Wide(()))
        }

        /// CRC-32 of a multiple of 4 bytes, at least 4: the first four lie in one block.
        #[inline]
        pub(super) fn sum(self, bytes: &[u8]) -> u32 {
            let len = bytes.len();
            assert!(
                len >= 4 && len.is_multiple_of(4),
                "{len} bytes are no packet"
            );
            // SAFETY: `new` found all features of the CPU that `sum` is compiled for.
            unsafe { sum(bytes) }
        }

        /// Copies what follows the first `start` bytes of `packet`, and returns the packet's sum.
        /// `None` for lengths that are left to others, and for a header longer than the first
        /// block.
        ///
        /// # Safety
        /// As for [`CopySum::copy`](super::CopySum::copy).
        #[inline]
        pub(super) unsafe fn copy(
            self,
            from: *const u8,
            packet: &mut [u8],
            start: usize,
        ) -> Option<u32> {
            let len = packet.len();
            if len < WIDE_LEN_MIN || !len.is_multiple_of(4) || start > head(len) {
                return None;
            }
            // SAFETY: `new` found all features of the CPU that `copy` is compiled for; the rest as
            // the caller vouches.
            Some(unsafe { copy(from, packet, start) })
        }
    }

    const BLOCK: usize = 64;

    // Polynomials are written as the bits come: the lowest power is the highest bit. A factor has
    // 33 bits, of which the lowest stays empty, because the product of two such numbers lacks a bit
    // at the lower end.

    /// P(x) without x^32.
    const P: u32 = 0xedb8_8320;

    const fn power_of_x(exponent: usize) -> u32 {
        let mut power = 1 << 31;
        let mut done = 0;
        while done < exponent {
            power = (power >> 1) ^ if power & 1 == 1 { P } else { 0 };
            done += 1;
        }
        power
    }

    /// Factors that move 16 bytes by `bits` bits: for their first and second half, which are 64
    /// bits apart, reduced modulo P.
    const fn factors(bits: usize) -> [i64; 2] {
        [
            (power_of_x(bits + 32) as i64) << 1,
            (power_of_x(bits - 32) as i64) << 1,
        ]
    }

    const LOOP: [i64; 2] = factors(2048);
    const SUMS: [[i64; 2]; 3] = [factors(1536), factors(1024), factors(512)];
    const LANES: [[i64; 2]; 3] = [factors(384), factors(256), factors(128)];
    const LAST: [i64; 2] = factors(128);
    /// x^64.
    const HALF: i64 = (power_of_x(64) as i64) << 1;
    /// P(x) with x^32, and the quotient of x^64 by it (Barrett's reduction).
    const BARRETT: [i64; 2] = [0x1_db71_0641, 0x1_f701_1641];

    /// Bytes of a packet before its last whole blocks: 1 to 64.
    fn head(len: usize) -> usize {
        (len - 1) % BLOCK + 1
    }

    #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,sse4.1")]
    fn sum(bytes: &[u8]) -> u32 {
        let (first, blocks) = bytes.split_at(head(bytes.len()));
        // The sums stand in the order of their bytes, the first block so that the last of all is
        // `sums[3]`.
        let (before, rounds) = blocks.split_at(blocks.len() % (4 * BLOCK));
        let mut sums = [_mm512_setzero_si512(); 4];
        let place = 3 - before.len() / BLOCK;
        sums[place] = preset(first);
        for (sum, block) in sums[place + 1..].iter_mut().zip(before.chunks_exact(BLOCK)) {
            *sum = load(block);
        }
        let around = every_lane(LOOP);
        for round in rounds.chunks_exact(4 * BLOCK) {
            for (sum, block) in sums.iter_mut().zip(round.chunks_exact(BLOCK)) {
                *sum = moved_to(load(block), *sum, around);
            }
        }
        join_sums(sums)
    }

    /// As [`sum`], of a packet whose bytes from `start` on are copied first.
    ///
    /// # Safety
    /// As for [`CopySum::copy`](super::CopySum::copy); `start` is at most the packet's head.
    #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,sse4.1")]
    unsafe fn copy(mut from: *const u8, packet: &mut [u8], start: usize) -> u32 {
        let (first, blocks) = packet.split_at_mut(head(packet.len()));
        let rest = &mut first[start..];
        // SAFETY: the first bytes of the payload, as the caller vouches.
        unsafe {
            ptr::copy_nonoverlapping(from, rest.as_mut_ptr(), rest.len());
            from = from.add(rest.len());
        }
        let (before, rounds) = blocks.split_at_mut(blocks.len() % (4 * BLOCK));
        let mut sums = [_mm512_setzero_si512(); 4];
        let place = 3 - before.len() / BLOCK;
        sums[place] = preset(first);
        let blocks = before.chunks_exact_mut(BLOCK);
        for (sum, block) in sums[place + 1..].iter_mut().zip(blocks) {
            // SAFETY: the next 64 bytes of the payload.
            *sum = unsafe { pass(&mut from, block) };
        }
        let around = every_lane(LOOP);
        for round in rounds.chunks_exact_mut(4 * BLOCK) {
            for (sum, block) in sums.iter_mut().zip(round.chunks_exact_mut(BLOCK)) {
                // SAFETY: the next 64 bytes of the payload.
                *sum = moved_to(unsafe { pass(&mut from, block) }, *sum, around);
            }
        }
        join_sums(sums)
    }

    /// Copies a block, and moves the source behind it.
    ///
    /// # Safety
    /// 64 bytes can be read there.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn pass(from: &mut *const u8, block: &mut [u8]) -> __m512i {
        assert_eq!(block.len(), BLOCK);
        let bytes: __m512i;
        // A load that the compiler may not repeat: what is summed must be what is stored, even if
        // another thread changes the source.
        // SAFETY: 64 bytes of the source, as the caller vouches, and a block of them.
        unsafe {
            asm!(
                "vmovdqu64 {bytes}, zmmword ptr [{from}]",
                bytes = out(zmm_reg) bytes,
                from = in(reg) *from,
                options(readonly, nostack, preserves_flags),
            );
            *from = from.add(BLOCK);
            _mm512_storeu_si512(block.as_mut_ptr().cast(), bytes);
        }
        bytes
    }

    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
    fn join_sums([a, b, c, d]: [__m512i; 4]) -> u32 {
        let [from_a, from_b, from_c] = SUMS.map(|factors| every_lane(factors));
        let all = moved_to(moved_to(moved_to(d, a, from_a), b, from_b), c, from_c);
        finish(join_lanes(all))
    }

    /// The first bytes at the end of a block of zeros, with the first four inverted, as the sum
    /// begins.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn preset(first: &[u8]) -> __m512i {
        let empty = BLOCK - first.len();
        let mask = u64::MAX << empty;
        let from = first.as_ptr().wrapping_sub(empty);
        // SAFETY: the mask selects the bytes of `first`; what it does not select is not accessed.
        let bytes = unsafe { _mm512_maskz_loadu_epi8(mask, from.cast()) };
        _mm512_xor_si512(bytes, _mm512_maskz_set1_epi8(0xf << empty, -1))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(block: &[u8]) -> __m512i {
        assert_eq!(block.len(), BLOCK);
        // SAFETY: a block has 64 bytes, as was just seen, and may lie anywhere.
        unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn every_lane([low, high]: [i64; 2]) -> __m512i {
        _mm512_set_epi64(high, low, high, low, high, low, high, low)
    }

    /// `to` plus each lane of `sum` times its factors.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn moved_to(to: __m512i, sum: __m512i, factors: __m512i) -> __m512i {
        const XOR: i32 = 0x96;
        let low = _mm512_clmulepi64_epi128(sum, factors, 0x00);
        let high = _mm512_clmulepi64_epi128(sum, factors, 0x11);
        _mm512_ternarylogic_epi64(to, low, high, XOR)
    }

    /// What the four lanes are together: the last stays where it is.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn join_lanes(sum: __m512i) -> __m128i {
        let [a, b, c] = LANES;
        let factors = _mm512_set_epi64(0, 0, c[1], c[0], b[1], b[0], a[1], a[0]);
        let last = _mm512_maskz_mov_epi64(0b1100_0000, sum);
        let moved = moved_to(last, sum, factors);
        let halves = _mm256_xor_si256(
            _mm512_castsi512_si256(moved),
            _mm512_extracti64x4_epi64(moved, 1),
        );
        _mm_xor_si128(
            _mm256_castsi256_si128(halves),
            _mm256_extracti128_si256(halves, 1),
        )
    }

    /// Reduces 16 bytes to the 4 of the sum, and inverts them.
    #[inline]
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn finish(sum: __m128i) -> u32 {
        let low = _mm_set_epi32(0, 0, 0, -1);
        let [_, to_the_second] = LAST;
        let sum = _mm_xor_si128(
            _mm_clmulepi64_si128(sum, _mm_set_epi64x(0, to_the_second), 0x00),
            _mm_srli_si128(sum, 8),
        );
        let sum = _mm_xor_si128(
            _mm_clmulepi64_si128(_mm_and_si128(sum, low), _mm_set_epi64x(0, HALF), 0x00),
            _mm_srli_si128(sum, 4),
        );
        let [p, quotient] = BARRETT.map(|factor| _mm_set_epi64x(0, factor));
        let times = _mm_clmulepi64_si128(_mm_and_si128(sum, low), quotient, 0x00);
        let excess = _mm_clmulepi64_si128(_mm_and_si128(times, low), p, 0x00);
        !(_mm_extract_epi32(_mm_xor_si128(sum, excess), 1) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_crc32fast_at_every_length_and_place() {
        let sum = Sum::new();
        let mut state = 1_u32;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(9_100)
        .collect();
        for len in (4..1_200).chain([4_096, 4_108, 4_124, 9_000]) {
            for start in [0, 1, 28, 63] {
                let packet = &bytes[start..start + len];
                assert_eq!(
                    sum.of(packet),
                    crc32fast::hash(packet),
                    "{len} from {start}"
                );
            }
        }
    }

    #[test]
    fn a_copy_has_the_bytes_and_their_sum() {
        let Some(copying) = CopySum::new() else {
            return;
        };
        let mut state = 1_u32;
        let source: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(5_000)
        .collect();
        let mut copied = 0;
        for payload in (100..1_500).step_by(4).chain([2_048, 4_096]) {
            for place in [0, 1, 32] {
                let from = &source[place..place + payload];
                let mut packet = vec![0x3c; 12 + payload + 4];
                // SAFETY: `from` has as many bytes as the payload.
                let is_done = unsafe { copying.copy(from.as_ptr(), &mut packet, 12) };
                let expected = [&[0x3c; 12], from].concat();
                if is_done {
                    copied += 1;
                    assert_eq!(&packet[..expected.len()], &expected[..], "{payload}");
                    let sum = crc32fast::hash(&expected).to_le_bytes();
                    assert_eq!(&packet[expected.len()..], &sum, "{payload}");
                } else {
                    assert!(packet.iter().all(|byte| *byte == 0x3c), "{payload}");
                    assert!(![1_024, 1_424, 2_048, 4_096].contains(&payload));
                }
            }
        }
        assert!(copied > 900, "{copied}");
    }

    /// No byte is read or written beside payload and packet, whatever their length: pages without
    /// access are around them.
    #[test]
    fn a_copy_touches_nothing_else() {
        const PAGE: usize = 4_096;
        const LEN_MAX: usize = 4_200;
        let Some(copying) = CopySum::new() else {
            return;
        };
        // Two pages between two without access.
        let island = || {
            // SAFETY: new memory, of which the middle becomes accessible.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let all = std::ptr::null_mut();
                let all = libc::mmap(all, 4 * PAGE, libc::PROT_NONE, flags, -1, 0);
                assert_ne!(all, libc::MAP_FAILED);
                let middle = all.cast::<u8>().add(PAGE);
                let rights = libc::PROT_READ | libc::PROT_WRITE;
                assert_eq!(libc::mprotect(middle.cast(), 2 * PAGE, rights), 0);
                std::slice::from_raw_parts_mut(middle, 2 * PAGE)
            }
        };
        let (source, target) = (island(), island());
        for (number, byte) in source.iter_mut().enumerate() {
            *byte = (number * 7 + number / 256) as u8;
        }
        for len in 0..=LEN_MAX {
            for start in [0, 12, 28, 64].into_iter().filter(|start| *start <= len) {
                let payload = len - start;
                for (from, to) in [(0, 0), (2 * PAGE - payload, 2 * PAGE - len - ICRC_LEN)] {
                    let from = &source[from..from + payload];
                    let packet = &mut target[to..to + len + ICRC_LEN];
                    packet.fill(0x3c);
                    // SAFETY: `from` has as many bytes as the payload.
                    let is_done = unsafe { copying.copy(from.as_ptr(), packet, start) };
                    let (bytes, trailer) = packet.split_at(len);
                    if is_done {
                        assert_eq!(&bytes[start..], from, "{len} from {start}");
                        assert_eq!(trailer, crc32fast::hash(bytes).to_le_bytes());
                    }
                    let end = if is_done { start } else { packet.len() };
                    assert!(packet[..end].iter().all(|byte| *byte == 0x3c), "{len}");
                }
            }
        }
    }

    /// Another thread changes the source all the time.
    #[test]
    fn the_sum_is_of_the_bytes_that_are_stored() {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

        /// Ends the other thread, also when a copy panics.
        struct End<'a>(&'a AtomicBool);

        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }

        let Some(copying) = CopySum::new() else {
            return;
        };
        let source: Vec<AtomicU64> = (0..128).map(AtomicU64::new).collect();
        let is_done = AtomicBool::new(false);
        let wrong = std::thread::scope(|scope| {
            let _end = End(&is_done);
            scope.spawn(|| {
                let mut value = 1_u64;
                while !is_done.load(Ordering::Relaxed) {
                    // One word of each block, so that a block is changed often.
                    for word in source.iter().step_by(8) {
                        value = value.wrapping_mul(6_364_136_223_846_793_005) + 1;
                        word.store(value, Ordering::Relaxed);
                    }
                }
            });
            let copies = (0..20_000).filter(|_| {
                let mut packet = [0x3c; 12 + 1_024 + 4];
                // SAFETY: the source has 1,024 bytes, and stays.
                let copied = unsafe { copying.copy(source.as_ptr().cast(), &mut packet, 12) };
                assert!(copied);
                let (bytes, sum) = packet.split_at(12 + 1_024);
                sum != crc32fast::hash(bytes).to_le_bytes()
            });
            copies.count()
        });
        assert_eq!(wrong, 0, "packets with the sum of other bytes");
    }

    /// `cargo test -p airdma-port --release how_long -- --ignored --nocapture`
    #[test]
    #[ignore = "prints times, judges nothing"]
    #[expect(clippy::print_stdout, reason = "that is what it is for")]
    fn how_long_a_sum_takes() {
        use std::hint::black_box;
        use std::sync::atomic;
        use std::time::Instant;

        const PACKETS: usize = 62;
        const RUNS: usize = 4_000;
        let sum = Sum::new();
        let nanoseconds = |len: usize, of: &dyn Fn(&[u8]) -> u32, in_turn: bool| {
            let mut bytes = vec![0x5a_u8; PACKETS * len];
            let runs = (0..RUNS).map(|_| {
                let begun = Instant::now();
                for packet in bytes.chunks_exact_mut(len) {
                    let sum = black_box(of(black_box(packet)));
                    packet[0] = sum as u8;
                    if in_turn {
                        // The next sum begins when this one is there.
                        atomic::fence(atomic::Ordering::SeqCst);
                    }
                }
                begun.elapsed().as_secs_f64() * 1e9 / PACKETS as f64
            });
            runs.fold(f64::MAX, f64::min)
        };
        let crate_alone = |bytes: &[u8]| {
            let mut sum = sum.empty.clone();
            sum.update(bytes);
            sum.finalize()
        };
        for len in [1_036, 4_108] {
            for in_turn in [true, false] {
                let how = if in_turn {
                    "one at a time"
                } else {
                    "overlapping"
                };
                let theirs = nanoseconds(len, &crate_alone, in_turn);
                let ours = nanoseconds(len, &|bytes| sum.of(bytes), in_turn);
                println!("{len} B, {how}: crc32fast {theirs:.0} ns, ours {ours:.0} ns");
            }
        }
    }

    /// As above.
    #[test]
    #[ignore = "prints times, judges nothing"]
    #[expect(clippy::print_stdout, reason = "that is what it is for")]
    fn how_long_a_copy_with_its_sum_takes() {
        use std::hint::black_box;
        use std::time::Instant;

        const BYTES: usize = 64_000;
        const RUNS: usize = 3_000;
        let sum = Sum::new();
        let copying = CopySum::new();
        for (payload, source_kib) in [(1_024, 64), (1_024, 1_024), (1_424, 1_024), (4_096, 1_024)] {
            let stride = payload + 16;
            let packets = BYTES / stride;
            let mut batch = vec![0_u8; packets * stride];
            let source = vec![0x5a_u8; source_kib * 1_024 + BYTES];
            let mut nanoseconds = [Vec::new(), Vec::new()];
            for run in 0..RUNS {
                let from = &source[run * BYTES % (source_kib * 1_024)..];
                let parts = || from.chunks_exact(payload);
                let together = run / 100 % 2;
                let begun = Instant::now();
                match copying.filter(|_| together == 1) {
                    Some(copying) => {
                        for (packet, part) in batch.chunks_exact_mut(stride).zip(parts()) {
                            // SAFETY: a part has as many bytes as the payload.
                            unsafe { copying.copy(black_box(part.as_ptr()), packet, 12) };
                        }
                    }
                    None => {
                        for (packet, part) in batch.chunks_exact_mut(stride).zip(parts()) {
                            packet[12..12 + payload].copy_from_slice(black_box(part));
                        }
                        for packet in batch.chunks_exact_mut(stride) {
                            let (bytes, trailer) = packet.split_at_mut(stride - 4);
                            trailer.copy_from_slice(&sum.of(black_box(bytes)).to_le_bytes());
                        }
                    }
                }
                black_box(&mut batch);
                nanoseconds[together].push(begun.elapsed().as_secs_f64() * 1e9 / packets as f64);
            }
            let [two, one] = nanoseconds.map(|mut all| {
                all.sort_by(f64::total_cmp);
                all[all.len() / 2]
            });
            println!("{payload} B from {source_kib} KiB: {two:.0} ns, in one pass {one:.0}");
        }
    }
}
