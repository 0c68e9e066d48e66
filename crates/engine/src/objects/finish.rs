//! What was posted leaves before a connection ends, and peers that do not answer hold up a process
//! no longer than once.

use crate::Qp;
use crate::worker::Work;
use std::time::{Duration, Instant};

/// How long between two looks.
const FINISH_PAUSE_MIN: Duration = Duration::from_micros(20);
const FINISH_PAUSE_MAX: Duration = Duration::from_millis(1);

impl Qp {
    /// Waits a moment until the peer has answered what was posted, for a connection that is about
    /// to end: what is posted and then flushed never leaves, and what gets lost is not sent again.
    /// On hardware it has left before a system call is over. Not for a peer that is silent, or has
    /// no receives: each wait in vain makes the next shorter for a while, so that many such ends
    /// one after the other take less than twice as long as one. Nothing happens in a child after
    /// fork, nor where time does not pass.
    pub fn finish(&self) {
        let core = self.core();
        if !core.is_ours() || core.is_simulated() {
            return;
        }
        let since = Instant::now();
        let most = core.finish_time().time(since);
        let mut pause = FINISH_PAUSE_MIN;
        loop {
            if self.is_finished() {
                return;
            }
            if since.elapsed() >= most {
                core.finish_time().note_in_vain(Instant::now());
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
