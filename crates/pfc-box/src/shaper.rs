//! What waits for the radio, and when it may leave.

use std::collections::VecDeque;
use std::time::Duration;

/// Frames in the order in which they came, bounded in bytes.
#[derive(Debug)]
pub struct Queue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    bytes_max: usize,
    /// The most that ever waited, in bytes.
    pub peak: usize,
    /// Frames that found no room.
    pub dropped: u64,
}

impl Queue {
    /// Of so many bytes at most.
    pub fn new(bytes_max: usize) -> Queue {
        Queue {
            frames: VecDeque::new(),
            bytes: 0,
            bytes_max,
            peak: 0,
            dropped: 0,
        }
    }

    /// At the end; gives the frame back if there is no room.
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

    /// The one that leaves next.
    pub fn front(&self) -> Option<&[u8]> {
        self.frames.front().map(Vec::as_slice)
    }

    /// Takes it.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    /// What waits.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing does.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// A token bucket: a frame may leave while it is not in debt, and may put it into debt.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// In bytes; below zero is debt.
    tokens: f64,
    bytes_per_s: f64,
    filled: Duration,
}

impl Bucket {
    /// Full, at the beginning of time.
    pub fn new(bytes_per_s: f64) -> Bucket {
        Bucket {
            tokens: 0.0,
            bytes_per_s,
            filled: Duration::ZERO,
        }
    }

    /// From `now` on. What was saved and owed in bytes stays.
    pub fn set_rate(&mut self, now: Duration, bytes_per_s: f64) {
        self.fill(now);
        self.bytes_per_s = bytes_per_s;
    }

    /// Whether a frame may leave.
    pub fn is_open(&mut self, now: Duration) -> bool {
        self.fill(now);
        self.tokens >= 0.0 && self.bytes_per_s > 0.0
    }

    /// A frame that waited for its turn has left.
    pub fn pay(&mut self, bytes: usize) {
        self.tokens -= bytes as f64;
    }

    /// A frame has left that waits for nobody. It is paid for like any other, but does not shut the others out for long.
    pub fn pay_for_priority(&mut self, bytes: usize) {
        let deepest = -self.bytes_per_s * DEBT.as_secs_f64();
        let owed = (self.tokens - bytes as f64).max(deepest);
        self.tokens = self.tokens.min(owed);
    }

    /// How long until a frame may leave.
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
        // A lower rate takes nothing away that is owed.
        self.tokens = tokens.min(saved_max.max(0.0));
    }
}

/// What may leave at once after a pause: as much as a loop that is late may have to make up for.
const SAVED: Duration = Duration::from_millis(2);
/// The most that frames with priority can cost the others.
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

    /// Sends whenever it may, looking each millisecond; what left in all, in bytes.
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
