//! One slot of a ring: copies in, copies out, never a reference to what lies there.
//!
//! Everything goes word by word through relaxed atomics, which cost what plain moves cost. The
//! ring's indices order them. If the other side breaks the protocol and writes at the same time,
//! the outcome is a torn value and not undefined behaviour.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pod::Pod;
use crate::wqe::{Sge, Wqe};
use crate::{Corrupt, RingConsumer, RingProducer};

const WORD: usize = size_of::<u64>();

/// A free slot, which the producer fills. Until written, it holds what its last user left there.
#[derive(Debug)]
pub struct SlotMut<'a> {
    words: Words,
    ring: PhantomData<&'a mut RingProducer>,
}

impl SlotMut<'_> {
    /// # Safety
    ///
    /// As for [`Words`], for as long as the lifetime of the slot.
    pub(crate) unsafe fn new(base: NonNull<u64>, stride: u32) -> Self {
        Self {
            words: Words { base, stride },
            ring: PhantomData,
        }
    }

    /// Writes the header (or the whole slot, for a [`crate::Cqe`]).
    ///
    /// # Panics
    ///
    /// When the ring's stride is smaller than `T`.
    #[inline]
    pub fn write_header<T: Pod>(&mut self, value: &T) {
        assert!(self.words.write_at(0, value), "header beyond the slot");
    }

    /// Writes entry `index` of the list that follows header `H`.
    ///
    /// # Panics
    ///
    /// When the slot has no room for it: see [`SlotMut::sges_max`].
    #[inline]
    pub fn write_sge<H: Wqe>(&mut self, index: u32, sge: &Sge) {
        assert!(
            self.words.write_at(sge_offset::<H>(index), sge),
            "list beyond the slot"
        );
    }

    /// Writes inline data, `offset` bytes into the area that follows header `H`.
    ///
    /// # Panics
    ///
    /// When the slot has no room for it: see [`SlotMut::inline_max`].
    pub fn write_inline<H: Wqe>(&mut self, offset: u32, data: &[u8]) {
        let start = size_of::<H>() + offset as usize;
        assert!(
            self.words.copy_in(start, data),
            "inline data beyond the slot"
        );
    }

    /// Entries that the slot has room for after header `H`.
    #[must_use]
    pub fn sges_max<H: Wqe>(&self) -> u32 {
        self.words.room::<H>() / size_of::<Sge>() as u32
    }

    /// Bytes of inline data that the slot has room for after header `H`.
    #[must_use]
    pub fn inline_max<H: Wqe>(&self) -> u32 {
        self.words.room::<H>()
    }
}

/// A slot that the consumer has taken.
///
/// Each call copies out what is there now; two calls may differ if the other side is hostile. Check
/// the copy, never the slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotRef<'a> {
    words: Words,
    ring: PhantomData<&'a RingConsumer>,
}

impl SlotRef<'_> {
    /// # Safety
    ///
    /// As for [`Words`], for as long as the lifetime of the slot.
    pub(crate) unsafe fn new(base: NonNull<u64>, stride: u32) -> Self {
        Self {
            words: Words { base, stride },
            ring: PhantomData,
        }
    }

    pub(crate) fn stride(&self) -> u32 {
        self.words.stride
    }

    /// Copies out word `index`; `None` beyond the slot.
    pub(crate) fn word_at(&self, index: usize) -> Option<u64> {
        let is_inside = self.words.holds(index * WORD, WORD);
        // SAFETY: the word lies within the slot.
        is_inside.then(|| unsafe { self.words.word(index) }.load(Ordering::Relaxed))
    }

    /// Copies out the header (or the whole slot, for a [`crate::Cqe`]).
    ///
    /// # Panics
    /// If the ring's stride is smaller than `T`; the maker of the ring chose both.
    #[must_use]
    #[inline]
    pub fn read_header<T: Pod>(&self) -> T {
        self.words
            .read_at(0)
            .expect("a ring's stride holds its header")
    }

    /// Copies out entry `index` of the list that follows header `H`.
    ///
    /// # Errors
    /// [`Corrupt::SlotBounds`] if it lies beyond the slot: the count in the header was false.
    #[inline]
    pub fn sge<H: Wqe>(&self, index: u32) -> Result<Sge, Corrupt> {
        self.words
            .read_at(sge_offset::<H>(index))
            .ok_or(Corrupt::SlotBounds)
    }

    /// Fills `out` with inline data from `offset` bytes into the area that follows header `H`.
    ///
    /// # Errors
    /// [`Corrupt::SlotBounds`] if it reaches beyond the slot: the length in the header was false.
    /// `out` is then unchanged.
    pub fn copy_inline<H: Wqe>(&self, offset: u32, out: &mut [u8]) -> Result<(), Corrupt> {
        let start = size_of::<H>() + offset as usize;
        if self.words.copy_out(start, out) {
            Ok(())
        } else {
            Err(Corrupt::SlotBounds)
        }
    }

    /// Entries that the slot has room for after header `H`.
    #[must_use]
    pub fn sges_max<H: Wqe>(&self) -> u32 {
        self.words.room::<H>() / size_of::<Sge>() as u32
    }

    /// Bytes of inline data that the slot has room for after header `H`.
    #[must_use]
    pub fn inline_max<H: Wqe>(&self) -> u32 {
        self.words.room::<H>()
    }
}

/// Byte offset of entry `index` behind header `H`. Cannot overflow: a `u32` times 16 fits 64 bits.
fn sge_offset<H: Wqe>(index: u32) -> usize {
    size_of::<H>() + index as usize * size_of::<Sge>()
}

/// The memory of a slot. Invariant, which its makers promise: `stride` bytes from `base` on are
/// mapped, readable and writable, `base` is aligned to 8 and `stride` a multiple of 8, and this
/// process touches them through atomics only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    base: NonNull<u64>,
    stride: u32,
}

impl Words {
    /// # Safety
    ///
    /// The invariant of the type, for as long as the value is used.
    pub(crate) unsafe fn new(base: NonNull<u64>, stride: u32) -> Self {
        Words { base, stride }
    }

    /// Bytes behind header `H`.
    fn room<H: Wqe>(&self) -> u32 {
        self.stride.saturating_sub(size_of::<H>() as u32)
    }

    fn holds(&self, start: usize, len: usize) -> bool {
        start
            .checked_add(len)
            .is_some_and(|end| end <= self.stride as usize)
    }

    /// The word at byte offset `8 * index`.
    ///
    /// # Safety
    ///
    /// The word lies within the slot.
    #[inline]
    unsafe fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: in bounds by the caller, aligned and mapped for as long as `self` by the type's
        // invariant, which also says that this process has no non-atomic access to it. Other
        // processes are outside of the language's rules.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(index)) }
    }

    /// Copies `T` out from byte offset `start`, a multiple of 8. None when it does not fit.
    #[inline]
    fn read_at<T: Pod>(&self, start: usize) -> Option<T> {
        if !self.holds(start, size_of::<T>()) {
            return None;
        }
        let mut value = MaybeUninit::<T>::uninit();
        for index in 0..size_of::<T>() / WORD {
            // SAFETY: `holds` said that all of T lies within the slot, and T is whole words
            // (`Pod`).
            let word = unsafe { self.word(start / WORD + index) }.load(Ordering::Relaxed);
            // SAFETY: `value` is size_of::<T>() bytes, whole words; the write need not be aligned.
            unsafe {
                value
                    .as_mut_ptr()
                    .cast::<u64>()
                    .add(index)
                    .write_unaligned(word)
            };
        }
        // SAFETY: every word of it was written, and every bit pattern is a T (`Pod`).
        Some(unsafe { value.assume_init() })
    }

    /// Copies `value` to byte offset `start`, a multiple of 8. False when it does not fit.
    #[inline]
    fn write_at<T: Pod>(&self, start: usize, value: &T) -> bool {
        if !self.holds(start, size_of::<T>()) {
            return false;
        }
        for index in 0..size_of::<T>() / WORD {
            // SAFETY: T is whole words without padding (`Pod`), so each word of it is initialised;
            // the read need not be aligned.
            let word = unsafe {
                std::ptr::from_ref(value)
                    .cast::<u64>()
                    .add(index)
                    .read_unaligned()
            };
            // SAFETY: `holds` said that all of T lies within the slot.
            unsafe { self.word(start / WORD + index) }.store(word, Ordering::Relaxed);
        }
        true
    }

    /// Copies bytes out from any offset. False, and nothing done, when they do not fit.
    #[inline]
    pub(crate) fn copy_out(&self, start: usize, out: &mut [u8]) -> bool {
        if !self.holds(start, out.len()) {
            return false;
        }
        let (head, rest) = out.split_at_mut(head_len(start, out.len()));
        self.copy_out_part(start, head);
        let mut at = start + head.len();
        let mut words = rest.chunks_exact_mut(WORD);
        for chunk in &mut words {
            // SAFETY: `holds` said that these eight bytes lie within the slot; `at` is a multiple
            // of 8 behind the head.
            let word = unsafe { self.word(at / WORD) }.load(Ordering::Relaxed);
            chunk.copy_from_slice(&word.to_ne_bytes());
            at += WORD;
        }
        self.copy_out_part(at, words.into_remainder());
        true
    }

    /// As [`copy_out`](Self::copy_out), as fast as the processor copies.
    #[inline]
    pub(crate) fn load(&self, start: usize, out: &mut [u8]) -> bool {
        if !HAS_STRING_COPY || out.len() < STRING_COPY_MIN {
            return self.copy_out(start, out);
        }
        if !self.holds(start, out.len()) {
            return false;
        }
        // SAFETY: `holds` said that the bytes lie within the slot, and `out` is as long.
        unsafe {
            let from = self.base.as_ptr().cast::<u8>().add(start);
            string_copy(from, out.as_mut_ptr(), out.len());
        }
        true
    }

    /// As [`copy_in`](Self::copy_in), as fast as the processor copies.
    #[inline]
    pub(crate) fn store(&self, start: usize, data: &[u8]) -> bool {
        if !HAS_STRING_COPY || data.len() < STRING_COPY_MIN {
            return self.copy_in(start, data);
        }
        if !self.holds(start, data.len()) {
            return false;
        }
        // SAFETY: `holds` said that the bytes lie within the slot, and `data` is as long.
        unsafe {
            let to = self.base.as_ptr().cast::<u8>().add(start);
            string_copy(data.as_ptr(), to, data.len());
        }
        true
    }

    /// Copies out bytes that lie within one word and within the slot.
    fn copy_out_part(&self, start: usize, out: &mut [u8]) {
        if out.is_empty() {
            return;
        }
        // SAFETY: the bytes lie within the slot, whose length is whole words, so their word does
        // too.
        let word = unsafe { self.word(start / WORD) }
            .load(Ordering::Relaxed)
            .to_ne_bytes();
        out.copy_from_slice(&word[start % WORD..][..out.len()]);
    }

    /// Copies bytes in at any offset. False, and nothing done, when they do not fit.
    #[inline]
    pub(crate) fn copy_in(&self, start: usize, data: &[u8]) -> bool {
        if !self.holds(start, data.len()) {
            return false;
        }
        let (head, rest) = data.split_at(head_len(start, data.len()));
        self.copy_in_part(start, head);
        let mut at = start + head.len();
        let mut words = rest.chunks_exact(WORD);
        for chunk in &mut words {
            let mut word = [0; WORD];
            word.copy_from_slice(chunk);
            // SAFETY: `holds` said that these eight bytes lie within the slot; `at` is a multiple
            // of 8 behind the head.
            unsafe { self.word(at / WORD) }.store(u64::from_ne_bytes(word), Ordering::Relaxed);
            at += WORD;
        }
        self.copy_in_part(at, words.remainder());
        true
    }

    /// Copies in bytes that lie within one word and within the slot, and keeps the rest of the
    /// word.
    fn copy_in_part(&self, start: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        // SAFETY: the bytes lie within the slot, whose length is whole words, so their word does
        // too.
        let shared = unsafe { self.word(start / WORD) };
        let mut word = shared.load(Ordering::Relaxed).to_ne_bytes();
        word[start % WORD..][..data.len()].copy_from_slice(data);
        shared.store(u64::from_ne_bytes(word), Ordering::Relaxed);
    }
}

/// Whether there is a copy that the compiler does not look into, and that is faster than words.
const HAS_STRING_COPY: bool = cfg!(all(target_arch = "x86_64", not(miri)));
/// Bytes from which on it is faster, as it takes a while to start: 4 KiB take 46 ns in place of
/// 109, and 1 KiB the same.
const STRING_COPY_MIN: usize = 2048;

/// Copies `len` bytes by one instruction. To the compiler that is no access to memory of a certain
/// value, so another process may write to it meanwhile, as with the copies by words.
///
/// # Safety
///
/// As for [`std::ptr::copy_nonoverlapping`], but that the bytes may change.
#[inline]
unsafe fn string_copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the caller; the direction flag is clear (ABI).
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (from, to, len);
        unreachable!("`HAS_STRING_COPY` is false");
    }
}

/// Bytes from `start` to the next word boundary, at most `len`.
fn head_len(start: usize, len: usize) -> usize {
    (start.next_multiple_of(WORD) - start).min(len)
}

#[cfg(test)]
mod tests;
