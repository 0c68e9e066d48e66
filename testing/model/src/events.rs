//! Completion events: an armed queue raises one event for a new completion, and no other.

use crate::Verdict;

/// State of one completion queue with a channel.
///
/// The judge must be told of everything in order. All events are fetched before a queue is armed,
/// so that at most one can be pending.
/// most one can wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alarm {
    /// Whether it is armed, and for solicited completions only.
    armed: Option<bool>,
    /// Whether the queue may hold completions from before it was armed, which may or may not count.
    stale: bool,
    /// Completions polled since it was armed.
    polled: Polled,
    /// Whether completions were removed with their queue pair: an event of theirs may be left.
    purged: bool,
    /// Whether an event came without a polled completion: the next poll must find one.
    owed: bool,
}

/// Result of the polls since the queue was armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Polled {
    /// No completion that would raise an event.
    #[default]
    Nothing,
    /// A completion that may raise one.
    Old,
    /// A completion that must raise one.
    New,
}

impl Alarm {
    /// Arms the queue.
    pub fn arm(&mut self, solicited_only: bool) {
        let only = solicited_only && self.armed.unwrap_or(true);
        if self.armed.is_none() {
            self.polled = Polled::Nothing;
        }
        self.armed = Some(only);
        self.stale = true;
    }

    /// Records a poll of all completions: their number, and how many are solicited or unsuccessful.
    ///
    /// # Errors
    /// An event came without a completion.
    pub fn poll(&mut self, all: usize, special: usize) -> Verdict {
        if std::mem::take(&mut self.owed) && all == 0 {
            return Err("an event came, and the completion queue is empty".to_owned());
        }
        let count = match self.armed {
            Some(true) => special,
            Some(false) => all,
            None => 0,
        };
        if count > 0 && self.polled != Polled::New {
            self.polled = if self.stale { Polled::Old } else { Polled::New };
        }
        self.stale = false;
        Ok(())
    }

    /// Records a fetched event of this queue.
    ///
    /// # Errors
    /// It was not armed.
    pub fn event(&mut self) -> Verdict {
        if self.armed.take().is_none() {
            return Err("an event of a completion queue that is not armed".to_owned());
        }
        self.owed = self.polled == Polled::Nothing && !std::mem::take(&mut self.purged);
        Ok(())
    }

    /// Records that completions were removed by the reset of a queue pair.
    pub fn purge(&mut self) {
        self.purged = true;
        self.owed = false;
    }

    /// Records that no event is pending.
    ///
    /// # Errors
    /// One is missing.
    pub fn silence(&self) -> Verdict {
        if self.armed.is_some() && self.polled == Polled::New {
            return Err("a completion came to an armed queue, and no event".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_for_one_arm() {
        let mut alarm = Alarm::default();
        assert!(alarm.event().is_err());
        alarm.arm(false);
        alarm.poll(0, 0).expect("nothing came");
        alarm.silence().expect("nothing came");
        alarm.poll(1, 0).expect("something came");
        assert!(alarm.silence().is_err());
        alarm.event().expect("it was armed");
        assert!(alarm.event().is_err());
        alarm.silence().expect("it is not armed");
    }

    #[test]
    fn what_was_there_before_may_count_or_not() {
        let mut alarm = Alarm::default();
        alarm.arm(false);
        alarm.poll(3, 0).expect("any number");
        alarm.silence().expect("they may not have counted");
        alarm.event().expect("they may have counted");
    }

    #[test]
    fn an_event_before_the_poll_needs_something_to_poll() {
        let mut alarm = Alarm::default();
        alarm.arm(false);
        alarm.event().expect("something may be there");
        assert!(alarm.poll(0, 0).is_err());
    }

    #[test]
    fn solicited_ones_only() {
        let mut alarm = Alarm::default();
        alarm.arm(true);
        alarm.poll(0, 0).expect("nothing came");
        alarm.poll(2, 0).expect("something came");
        alarm.silence().expect("it was not asked for");
        alarm.arm(true);
        alarm.poll(0, 0).expect("nothing came");
        alarm.poll(2, 1).expect("something came");
        assert!(alarm.silence().is_err());
    }
}
