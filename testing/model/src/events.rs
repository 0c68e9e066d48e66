//! Completion events: an armed queue says once that something came, and says nothing else.

use crate::Verdict;

/// What is known of one completion queue with a channel.
///
/// The judge must be told of everything in order. Events are fetched until there is none before a queue is armed, so that at
/// most one can wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alarm {
    /// Armed, and whether for solicited completions only.
    armed: Option<bool>,
    /// The queue may hold completions from before it was armed: of those nobody knows whether they count.
    stale: bool,
    /// What has been polled since it was armed.
    polled: Polled,
    /// Completions were taken out of the queue with their queue pair: an event of theirs may be left.
    purged: bool,
    /// An event came that nothing polled explains yet: the next poll must.
    owed: bool,
}

/// What polls have found since the queue was armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Polled {
    /// Nothing that would raise an event.
    #[default]
    Nothing,
    /// Something that may.
    Old,
    /// Something that must.
    New,
}

impl Alarm {
    /// The queue is armed.
    pub fn arm(&mut self, solicited_only: bool) {
        let only = solicited_only && self.armed.unwrap_or(true);
        if self.armed.is_none() {
            self.polled = Polled::Nothing;
        }
        self.armed = Some(only);
        self.stale = true;
    }

    /// All completions were polled: how many, and how many of them are solicited or unsuccessful.
    ///
    /// # Errors
    /// An event came, and there is nothing.
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

    /// An event of this queue was fetched.
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

    /// Completions were taken out of the queue: a queue pair was reset.
    pub fn purge(&mut self) {
        self.purged = true;
        self.owed = false;
    }

    /// There is no event.
    ///
    /// # Errors
    /// There should be one.
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
