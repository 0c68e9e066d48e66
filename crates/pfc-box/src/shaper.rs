//! The queue for the radio, and when frames may leave it.

use std::collections::VecDeque;
use std::time::Duration;

/// A first-in, first-out queue of frames, bounded in bytes.
#[derive(Debug)]
pub struct Queue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
    /// Most bytes that ever waited.
    pub peak: usize,
    /// Frames dropped for lack of room.
    pub dropped: u64,
}

impl Queue {
    /// A queue of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Queue {
        Queue {
            frames: VecDeque::new(),
            bytes: 0,
            bytes_max,
            peak: 0,
            dropped: 0,
        }
    }

    /// Appends a frame; returns it if there is no room.
    pub fn push(&mut self, frame: Vec<u8>) -> Option<Vec<u8>> {
        if self.bytes + frame.len() > self.bytes_max {
            self.dropped += 1;
            return Some(frame);
        }
        self.bytes += frame.len();
        self.peak = self.peak.max(self.bytes);
        self.frames.push_back(frame);
        None
    }

    /// The next frame to leave.
    pub fn front(&self) -> Option<&[u8]> {
        self.frames.front().map(Vec::as_slice)
    }

    /// Takes the next frame.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    /// Bytes in the queue.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// A token bucket: a frame may leave while it is not in debt, and may put it into debt.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Tokens in bytes; negative is debt.
    tokens: f64,
    bytes_per_s: f64,
    filled: Duration,
}

impl Bucket {
    /// Starts full, at time zero.
    pub fn new(bytes_per_s: f64) -> Bucket {
        Bucket {
            tokens: 0.0,
            bytes_per_s,
            filled: Duration::ZERO,
        }
    }

    /// Sets the rate from `now` on. Savings and debt in bytes stay.
    pub fn set_rate(&mut self, now: Duration, bytes_per_s: f64) {
        self.fill(now);
        self.bytes_per_s = bytes_per_s;
    }

    /// Whether a frame may leave.
    pub fn is_open(&mut self, now: Duration) -> bool {
        self.fill(now);
        self.tokens >= 0.0 && self.bytes_per_s > 0.0
    }

    /// Charges a frame that waited for its turn.
    pub fn pay(&mut self, bytes: usize) {
        self.tokens -= bytes as f64;
    }

    /// Charges a frame with priority.
    ///
    /// It costs as much as any other, but does not block the others for long.
    pub fn pay_for_priority(&mut self, bytes: usize) {
        let deepest = -self.bytes_per_s * DEBT.as_secs_f64();
        let owed = (self.tokens - bytes as f64).max(deepest);
        self.tokens = self.tokens.min(owed);
    }

    /// Time until a frame may leave.
    pub fn wait(&self) -> Duration {
        if self.tokens >= 0.0 && self.bytes_per_s > 0.0 {
            return Duration::ZERO;
        }
        let seconds = -self.tokens / self.bytes_per_s.max(1.0);
        Duration::from_secs_f64(seconds.clamp(0.0, 1.0))
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled);
        self.filled = self.filled.max(now);
        let saved_max = self.bytes_per_s * SAVED.as_secs_f64();
        let tokens = self.tokens + self.bytes_per_s * passed.as_secs_f64();
        // A lower rate does not reduce a debt.
        self.tokens = tokens.min(saved_max.max(0.0));
    }
}

/// Most that may leave at once after a pause: as much as a late loop has to catch up.
const SAVED: Duration = Duration::from_millis(2);
/// Most that frames with priority can cost the others.
const DEBT: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_queue_holds_what_it_has_room_for_in_order() {
        let mut queue = Queue::new(250);
        assert!(queue.push(vec![1; 100]).is_none());
        assert!(queue.push(vec![2; 100]).is_none());
        assert_eq!(queue.push(vec![3; 100]), Some(vec![3; 100]));
        assert!(queue.push(vec![4; 50]).is_none());
        assert_eq!((queue.bytes(), queue.peak, queue.dropped), (250, 250, 1));
        for expected in [1, 2, 4] {
            assert_eq!(queue.front().unwrap()[0], expected);
            assert_eq!(queue.pop().unwrap()[0], expected);
        }
        assert!(queue.is_empty() && queue.bytes() == 0 && queue.peak == 250);
    }

    /// Sends whenever it may, once a millisecond; returns the bytes sent.
    fn greedy(bucket: &mut Bucket, from_ms: u32, to_ms: u32) -> usize {
        let mut left = 0;
        for ms in from_ms..to_ms {
            while bucket.is_open(MS * ms) {
                bucket.pay(1500);
                left += 1500;
            }
        }
        left
    }

    #[test]
    fn over_time_what_leaves_is_the_rate() {
        let mut bucket = Bucket::new(7_500_000.0);
        let left = greedy(&mut bucket, 0, 1000) as f64;
        assert!((left / 7.5e6 - 1.0).abs() < 0.01, "{left}");
        bucket.set_rate(MS * 1000, 1_500_000.0);
        let left = greedy(&mut bucket, 1000, 2000) as f64;
        assert!((left / 1.5e6 - 1.0).abs() < 0.01, "{left}");
    }

    #[test]
    fn a_pause_saves_no_more_than_two_milliseconds() {
        let mut bucket = Bucket::new(7_500_000.0);
        assert!(bucket.is_open(MS * 5000));
        let left = greedy(&mut bucket, 5000, 5001);
        assert!((15_000..=16_500).contains(&left), "{left}");
    }

    #[test]
    fn at_no_rate_nothing_leaves() {
        let mut bucket = Bucket::new(0.0);
        assert!(!bucket.is_open(MS * 1000));
        bucket.set_rate(MS * 1000, 1e6);
        assert!(bucket.is_open(MS * 1001));
    }

    #[test]
    fn frames_with_priority_are_paid_for_but_shut_nobody_out() {
        let mut bucket = Bucket::new(1_000_000.0);
        bucket.pay_for_priority(5_000);
        assert_eq!(bucket.wait(), MS * 5);
        for _ in 0..1000 {
            bucket.pay_for_priority(5_000);
        }
        assert_eq!(bucket.wait(), MS * 20);
        bucket.pay(64_000);
        bucket.pay_for_priority(100);
        assert_eq!(bucket.wait(), MS * 84);
    }
}
