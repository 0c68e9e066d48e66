//! Reliable datagrams: what a target may deliver, and what a completion promises.
//!
//! A message is delivered at most once, as it was sent, to the destination that it was sent to. Its
//! request completes once. If it succeeds, the message was delivered before.

use std::collections::BTreeMap;

use crate::Verdict;

#[derive(Debug)]
struct Sent {
    destination: u64,
    bytes: Vec<u8>,
    is_delivered: bool,
    completed: Option<bool>,
}

/// The messages of one sender.
#[derive(Debug, Default)]
pub struct Reliable {
    messages: BTreeMap<u64, Sent>,
}

impl Reliable {
    /// A message is posted, under a name that no other one has.
    pub fn sent(&mut self, name: u64, destination: u64, bytes: &[u8]) -> Verdict {
        let sent = Sent {
            destination,
            bytes: bytes.to_vec(),
            is_delivered: false,
            completed: None,
        };
        match self.messages.insert(name, sent) {
            Some(_) => Err(format!("message {name} was sent before")),
            None => Ok(()),
        }
    }

    /// A destination has a message.
    pub fn delivered(&mut self, name: u64, destination: u64, bytes: &[u8]) -> Verdict {
        let sent = self.messages.get_mut(&name);
        let sent = sent.ok_or(format!("message {name} was never sent"))?;
        if sent.destination != destination {
            return Err(format!("message {name} went to {}", sent.destination));
        }
        if sent.bytes != bytes {
            return Err(format!("message {name} has other bytes"));
        }
        if std::mem::replace(&mut sent.is_delivered, true) {
            return Err(format!("message {name} was delivered twice"));
        }
        Ok(())
    }

    /// The request of a message completes.
    pub fn completed(&mut self, name: u64, succeeds: bool) -> Verdict {
        let sent = self.messages.get_mut(&name);
        let sent = sent.ok_or(format!("request {name} was never posted"))?;
        if sent.completed.replace(succeeds).is_some() {
            return Err(format!("request {name} completed twice"));
        }
        if succeeds && !sent.is_delivered {
            return Err(format!(
                "request {name} succeeded before its message arrived"
            ));
        }
        Ok(())
    }

    /// Where a message was sent to.
    pub fn destination(&self, name: u64) -> Option<u64> {
        self.messages.get(&name).map(|sent| sent.destination)
    }

    /// Nothing is in flight: every request has completed. Returns how many succeeded.
    pub fn end(&self) -> Result<usize, String> {
        let mut succeeded = 0;
        for (name, sent) in &self.messages {
            match sent.completed {
                None => return Err(format!("request {name} never completed")),
                Some(succeeds) => succeeded += usize::from(succeeds),
            }
        }
        Ok(succeeded)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn violations_are_found() {
        let mut judge = Reliable::default();
        judge.sent(1, 7, b"one").unwrap();
        judge.sent(2, 7, b"two").unwrap();
        judge.sent(3, 8, b"three").unwrap();
        assert!(judge.sent(1, 7, b"one").is_err() && judge.completed(9, true).is_err());
        judge.sent(4, 8, b"four").unwrap();
        assert!(judge.completed(4, true).is_err(), "it was not delivered");
        assert!(judge.delivered(2, 8, b"two").is_err());
        assert!(judge.delivered(2, 7, b"to").is_err());
        judge.delivered(2, 7, b"two").unwrap();
        assert!(judge.delivered(2, 7, b"two").is_err());
        judge.completed(2, true).unwrap();
        assert!(judge.completed(2, true).is_err());
        assert!(judge.end().is_err(), "requests wait");
    }

    #[test]
    fn what_failed_may_have_arrived() {
        let mut judge = Reliable::default();
        judge.sent(1, 7, b"one").unwrap();
        judge.sent(2, 7, b"two").unwrap();
        judge.completed(1, false).unwrap();
        judge.delivered(1, 7, b"one").unwrap();
        judge.delivered(2, 7, b"two").unwrap();
        judge.completed(2, true).unwrap();
        assert_eq!(judge.end(), Ok(1));
    }
}
