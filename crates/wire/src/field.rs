//! Fields at fixed offsets of a header, checked when the crate is compiled.

/// The `N` bytes at offset `AT` of a header of `LEN` bytes.
#[inline(always)]
pub(crate) fn get<const AT: usize, const N: usize, const LEN: usize>(
    header: &[u8; LEN],
) -> [u8; N] {
    const { assert!(AT + N <= LEN, "the field lies inside the header") };
    std::array::from_fn(|i| header[AT + i])
}

/// Writes `value` at offset `AT` of a header of `LEN` bytes.
#[inline(always)]
pub(crate) fn set<const AT: usize, const N: usize, const LEN: usize>(
    header: &mut [u8; LEN],
    value: [u8; N],
) {
    const { assert!(AT + N <= LEN, "the field lies inside the header") };
    header[AT..AT + N].copy_from_slice(&value);
}

/// One byte above a 24-bit number: a common word of the headers.
#[inline(always)]
pub(crate) fn byte_and_24(byte: u8, low: u32) -> [u8; 4] {
    (u32::from(byte) << 24 | (low & 0x00ff_ffff)).to_be_bytes()
}

/// The inverse of [`byte_and_24`].
#[inline(always)]
pub(crate) fn split_24(word: [u8; 4]) -> (u8, u32) {
    let word = u32::from_be_bytes(word);
    ((word >> 24) as u8, word & 0x00ff_ffff)
}
