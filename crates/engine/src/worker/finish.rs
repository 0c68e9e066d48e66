//! What was posted leaves before a connection ends, and peers that do not answer hold up a process no longer than once.

use crate::Qp;
use crate::worker::Work;
use airdma_transport::QpState;
use std::time::{Duration, Instant};

/// The longest that the end of a connection waits for the answers to what was posted: with the timer of connections by RDMA CM
/// (268 ms) its last packet is sent three times.
const FINISH_TIME_MAX: Duration = Duration::from_millis(600);
/// How long between two looks.
const FINISH_PAUSE_MIN: Duration = Duration::from_micros(20);
const FINISH_PAUSE_MAX: Duration = Duration::from_millis(1);

/// From this on the process is as patient as at first.
const FORGIVEN_AFTER: Duration = Duration::from_secs(10);
/// Each wait in vain makes the next shorter by this factor, so many times: to 2.3 ms, in which a peer that runs answers.
const SHORTER_BY: u32 = 4;
const SHORTER_TIMES_MAX: u32 = 4;

/// How long ends of connections wait for answers.
#[derive(Default)]
pub(crate) struct Patience {
    /// Waits in vain, one soon after the other.
    in_vain: u32,
    last: Option<Instant>,
}

impl Patience {
    fn time(&mut self, now: Instant) -> Duration {
        let is_over = |last: Instant| now.saturating_duration_since(last) >= FORGIVEN_AFTER;
        if self.last.is_some_and(is_over) {
            *self = Patience::default();
        }
        FINISH_TIME_MAX / SHORTER_BY.pow(self.in_vain)
    }

    fn note_in_vain(&mut self, now: Instant) {
        self.in_vain = SHORTER_TIMES_MAX.min(self.in_vain + 1);
        self.last = Some(now);
    }
}

impl Qp {
    /// Waits a moment until the peer has answered what was posted, for a connection that is about to end: what is posted and then
    /// flushed never leaves, and what gets lost is not sent again. On hardware it has left before a system call is over. Not for a
    /// peer that is silent, or has no receives: each wait in vain makes the next shorter for a while, so that many such ends one after the other take
    /// less than twice as long as one. Nothing happens in a child after fork, nor where time does not pass.
    pub fn finish(&self) {
        let core = self.core();
        if !core.is_ours() || core.is_simulated() {
            return;
        }
        let since = Instant::now();
        let most = core.patience().time(since);
        let mut pause = FINISH_PAUSE_MIN;
        loop {
            let is_finished = core.control(|worker, now| {
                worker.tables.take_work(self.shared.index, now);
                let gone = self.is_destroyed();
                let slot = worker.tables.qps.slot(self.shared.index).filter(|_| !gone);
                slot.is_none_or(|slot| {
                    slot.qp.state() != QpState::ReadyToSend || !slot.qp.awaits_answers()
                })
            });
            if is_finished {
                return;
            }
            if since.elapsed() >= most {
                core.patience().note_in_vain(Instant::now());
                return;
            }
            if core
                .try_progress(Work::All)
                .is_none_or(|round| round.received == 0)
            {
                std::thread::sleep(pause);
                pause = (pause * 2).min(FINISH_PAUSE_MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ends_in_vain_take_less_than_twice_as_long_as_one_until_they_are_forgotten() {
        let (mut patience, mut now) = (Patience::default(), Instant::now());
        let start = now;
        for _ in 0..100 {
            now += patience.time(now);
            patience.note_in_vain(now);
        }
        assert!(now - start < FINISH_TIME_MAX * 2, "{:?}", now - start);
        assert!(patience.time(now) > Duration::from_millis(2));
        assert_eq!(patience.time(now + FORGIVEN_AFTER), FINISH_TIME_MAX);
    }
}
