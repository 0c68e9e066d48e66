//! A test pattern: pictures that move, and that a receiver can compute as well.

/// Marks the format of a test pattern, as a comment of YUV4MPEG2.
const MARK: &str = " XAIRDMA_TEST";

/// The format of a test pattern.
pub fn format(width: usize, height: usize, rate: u32) -> String {
    format!("YUV4MPEG2 W{width} H{height} F{rate}:1 Ip A1:1 C444{MARK}")
}

/// Whether frames of a format are of the test pattern.
pub fn is_format(format: &str) -> bool {
    format.ends_with(MARK)
}

/// Fills a frame: a gradient that moves with its number, different for each device.
pub fn fill(frame: &mut [u8], device: u32, number: u64) {
    let seed = seed(device, number);
    for (at, chunk) in frame.chunks_mut(8).enumerate() {
        let word = word(seed, at as u64).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Whether a frame is what [`fill`] makes.
pub fn is_intact(frame: &[u8], device: u32, number: u64) -> bool {
    let seed = seed(device, number);
    let mut chunks = frame.chunks(8).enumerate();
    chunks.all(|(at, chunk)| chunk == &word(seed, at as u64).to_le_bytes()[..chunk.len()])
}

fn seed(device: u32, number: u64) -> u64 {
    (u64::from(device) << 40).wrapping_add(number.wrapping_mul(0x0303_0303_0303_0303))
}

fn word(seed: u64, at: u64) -> u64 {
    seed.wrapping_add(at.wrapping_mul(0x0101_0101_0101_0101))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_differs_from_others() {
        let mut frame = [0; 203];
        fill(&mut frame, 3, 9);
        assert!(is_intact(&frame, 3, 9));
        assert!(!is_intact(&frame, 3, 10) && !is_intact(&frame, 4, 9));
        frame[202] ^= 1;
        assert!(!is_intact(&frame, 3, 9));
        assert!(is_format(&format(640, 480, 25)));
    }
}
