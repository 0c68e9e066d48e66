//! Messages and writes of unreliable services, settled once no packet is in flight.

use super::{Contract, Kind, Life, Message, Path, QueuePair, Service};
use crate::{Rights, Step, Verdict};

impl Contract {
    /// Settles a queue pair's requests to another one, with no packet in flight, all sent that
    /// could be, and all completions polled: a message that has not arrived needs a reason.
    ///
    /// # Errors
    /// There is none.
    /// It has none.
    pub fn settle(&mut self, qp: usize, to: usize, path: Path) -> Verdict {
        match self.queue_pairs[qp].service {
            Service::Ud => self.settle_messages(qp, to, path),
            Service::Uc | Service::Rc if self.queue_pairs[qp].peer != Some(to) => Ok(()),
            Service::Rc => {
                self.settle_ghosts(qp);
                Ok(())
            }
            Service::Uc => {
                self.settle_messages(qp, to, path)?;
                self.settle_writes(qp, path)
            }
        }
    }

    /// Settles failed requests, whose packets have arrived by now, and were refused or not.
    fn settle_ghosts(&mut self, qp: usize) {
        let of = &self.queue_pairs[qp];
        let refused = of
            .ghosts
            .iter()
            .any(|posted| self.may_be_refused(qp, posted));
        if let Some(peer) = of.peer.filter(|_| refused) {
            self.queue_pairs[peer].refused = true;
        }
        self.queue_pairs[qp].ghosts.clear();
    }

    /// Whether a message posted now is certainly received if a receive is there and no packet is
    /// lost.
    pub(super) fn is_receivable(&self, to: Option<usize>, bytes: usize) -> bool {
        let Some(to) = to.map(|to| &self.queue_pairs[to]) else {
            return false;
        };
        let queue = &self.queues[to.receives];
        to.listens() && !queue.doubtful && bytes <= queue.shortest
    }

    fn is_due(&self, qp: usize, message: &Message, path: Path) -> bool {
        let of = &self.queue_pairs[qp];
        let untouched = path.lost == message.path.lost && path.astray == message.path.astray;
        let receiver = message.to.or(of.peer).map(|to| &self.queue_pairs[to]);
        let heard_out = receiver.is_some_and(|receiver| {
            let scarce = self.queues[receiver.receives].scarce;
            let enough = scarce.is_none_or(|scarce| scarce < message.at);
            receiver.listens() && enough
        });
        message.receivable
            && untouched
            && heard_out
            && of.sends()
            && !path.disorderly
            && self.lands(qp, &message.kind, message.bytes.len(), message.at)
    }

    /// Whether the target of a request's write has been granted since it was posted.
    fn lands(&self, qp: usize, kind: &Kind, length: usize, posted: Step) -> bool {
        let (&Kind::Write { key, va, .. }, Some(peer)) = (kind, self.queue_pairs[qp].peer) else {
            return true;
        };
        let needs = Rights::REMOTE_WRITE;
        let standing = self.remote(peer, key, va, length, needs, (posted, self.now));
        standing.always && self.queue_pairs[peer].rights_surely.contain(needs)
    }

    fn settle_messages(&mut self, qp: usize, to: usize, path: Path) -> Verdict {
        let of = &self.queue_pairs[qp];
        let goes = |message: &Message| !message.over && message.to.is_none_or(|other| other == to);
        let open = || of.messages.iter().filter(|message| goes(message));
        let (due, lucky): (Vec<_>, Vec<_>) = open()
            .filter(|message| message.heard != self.is_due(qp, message, path))
            .partition(|message| !message.heard);
        let mut lucky: Vec<_> = lucky.into_iter().map(|message| message.alike()).collect();
        for message in due {
            // Which of two equal messages was received does not matter.
            match lucky.iter().position(|other| *other == message.alike()) {
                Some(index) => drop(lucky.swap_remove(index)),
                None => {
                    return Err(format!(
                        "message {} of queue pair {qp}, posted in step {}, has not arrived, and nothing explains it",
                        message.number, message.at
                    ));
                }
            }
        }
        let silent = open().any(|message| !message.heard);
        let (peer, all) = (of.peer, of.messages.len());
        // A partly received message keeps its receive.
        self.queue_pairs[to].holds |= silent;
        let messages = &mut self.queue_pairs[qp].messages;
        for message in messages.iter_mut().filter(|message| goes(message)) {
            message.over = true;
        }
        if let Some(peer) = peer {
            self.queue_pairs[peer].received = all;
        }
        Ok(())
    }

    fn settle_writes(&mut self, qp: usize, path: Path) -> Verdict {
        let sent = std::mem::take(&mut self.queue_pairs[qp].sent);
        let Some(peer) = self.queue_pairs[qp].peer else {
            return Ok(());
        };
        let there = self.queue_pairs[peer].host;
        for posted in sent {
            let request = &posted.request;
            let (of, receiver) = (&self.queue_pairs[qp], &self.queue_pairs[peer]);
            let untouched = path.lost == posted.path.lost && path.astray == posted.path.astray;
            let lands = self.lands(qp, &request.kind, request.payload.len(), posted.at)
                && untouched
                && !path.disorderly
                && of.sends()
                && receiver.listens()
                // With immediate data it takes a receive, which may be missing.
                && !request.kind.takes_receive();
            let now = self.now;
            self.memories[there].settle_sent(posted.request.id, lands, now)?;
        }
        Ok(())
    }

    /// Receives of a shared queue that its users may keep for messages that never came whole.
    pub fn held(&self, queue: usize) -> usize {
        let held = self.users(queue).filter(|(_, user)| {
            let peer = user.peer.map(|peer| &self.queue_pairs[peer]);
            let given_up =
                peer.is_some_and(|peer| !peer.sends() && peer.messages.len() > user.received);
            user.holds || given_up
        });
        if self.queues[queue].shared {
            held.count()
        } else {
            0
        }
    }

    /// Excuses all messages to and from a queue pair that is reset.
    pub(super) fn excuse(&mut self, qp: usize) {
        let peer = self.queue_pairs[qp].peer;
        for (index, other) in self.queue_pairs.iter_mut().enumerate() {
            let of = Some(index);
            for message in &mut other.messages {
                if of == Some(qp) || of == peer || message.to == Some(qp) {
                    message.receivable = false;
                }
            }
        }
    }
}

impl QueuePair {
    /// Whether it certainly receives.
    fn listens(&self) -> bool {
        self.life == Life::Running && !self.refused && !self.drained
    }

    /// Whether it certainly sends.
    fn sends(&self) -> bool {
        self.listens() && !self.stopped
    }
}

impl Message {
    /// The properties that a receiver can tell it by.
    fn alike(&self) -> (Kind, &[u8], bool, Option<usize>) {
        (self.kind, &self.bytes, self.solicited, self.to)
    }

    /// A message posted in this step.
    pub(super) fn since(at: Step, number: u64, path: Path) -> Self {
        Message {
            number,
            at,
            path,
            receivable: false,
            heard: false,
            over: false,
            solicited: false,
            kind: Kind::Send {
                immediate: None,
                invalidate: None,
            },
            bytes: Vec::new(),
            to: None,
        }
    }
}
