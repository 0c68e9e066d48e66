//! Random numbers from the kernel, for keys and queue pair numbers.

/// 32 random bits.
///
/// Keys guard memory, so they come from the kernel's generator; the control path can afford the call. Without
/// entropy (never on a running system) the clock must do.
pub(crate) fn random_u32() -> u32 {
    let mut bytes = [0u8; 4];
    // SAFETY: the pointer and the length describe `bytes`, which the kernel may write.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize {
        return u32::from_ne_bytes(bytes);
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    now.subsec_nanos().wrapping_mul(0x9e37_79b9) ^ (now.as_secs() as u32)
}
