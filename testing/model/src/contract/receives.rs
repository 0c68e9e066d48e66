//! Receive completions: their message, and the bytes that it left in memory.

use super::{
    Accepted, Contract, Done, GRH, Kind, Life, Message, Opcode, Path, Service, Status, head,
};
use crate::memory::Origin;
use crate::{Rights, Verdict};

impl Contract {
    /// Checks a polled receive completion of `qp`.
    ///
    /// # Errors
    /// A violation of the contract.
    pub fn received(&mut self, qp: usize, done: &Done, path: Path) -> Verdict {
        let number = self.queue_pairs[qp].receives;
        let queue = &self.queues[number];
        let Some(index) = queue
            .posted
            .iter()
            .position(|accepted| accepted.recv.id == done.id)
        else {
            return Err(format!(
                "a completion for receive {}, which is not outstanding: {done:?}",
                done.id
            ));
        };
        if index > 0 && !queue.shared {
            return Err(format!(
                "receive {} completed before receive {}",
                done.id, queue.posted[0].recv.id
            ));
        }
        if done.status == Status::Flush && !self.may_have_failed(qp, path) {
            return Err(format!(
                "receive {} was flushed, and nothing explains it",
                done.id
            ));
        }
        let of = &self.queue_pairs[qp];
        let delivered = of.peer.map_or(0, |peer| self.queue_pairs[peer].delivered);
        if done.status == Status::Flush && of.received < delivered {
            return Err(format!(
                "receive {} was flushed, and message {} that succeeded has not come",
                done.id, of.received
            ));
        }
        if done.status != Status::Flush && self.queue_pairs[qp].drained {
            return Err(format!(
                "receive {} ended with {:?} after others were flushed",
                done.id, done.status
            ));
        }
        let Some(accepted) = self.queues[number].posted.remove(index) else {
            return Ok(());
        };
        let host = self.queue_pairs[qp].host;
        self.memories[host].close(done.id);
        let verdict = self.end_receive(qp, done, &accepted, path);
        self.note_scarcity(number);
        verdict
    }

    /// Checks the end of a receive.
    fn end_receive(&mut self, qp: usize, done: &Done, accepted: &Accepted, path: Path) -> Verdict {
        let period = (accepted.at, self.now);
        let standing = self.local(qp, &accepted.recv.sges, Rights::LOCAL_WRITE, period);
        match done.status {
            Status::Success => self.receive_message(qp, done, accepted, path),
            Status::Flush => {
                self.queue_pairs[qp].drained = true;
                Ok(())
            }
            Status::LocalLength | Status::LocalProtection => {
                self.queue_pairs[qp].life = Life::Failed;
                let length = accepted.recv.length();
                let next = self.next_message(qp).map(|message| message.bytes.len());
                let explained = match done.status {
                    Status::LocalLength => next.is_some_and(|next| next > length),
                    _ => !standing.always,
                };
                if explained && !self.careful {
                    return Ok(());
                }
                Err(format!(
                    "receive {} ended with {:?}, and nothing explains it",
                    done.id, done.status
                ))
            }
            _ => Err(format!("receive {} ended with {:?}", done.id, done.status)),
        }
    }

    pub(super) fn next_message(&self, qp: usize) -> Option<&Message> {
        let of = &self.queue_pairs[qp];
        self.queue_pairs[of.peer?].messages.get(of.received)
    }

    pub(super) fn receive_message(
        &mut self,
        qp: usize,
        done: &Done,
        accepted: &Accepted,
        path: Path,
    ) -> Verdict {
        let service = self.queue_pairs[qp].service;
        let before = if service == Service::Ud { GRH } else { 0 };
        let now_there = self.gather(qp, &accepted.recv.sges);
        let matches = |message: &Message| -> Verdict {
            let (opcode, immediate, invalidate) = match message.kind {
                Kind::Send {
                    immediate,
                    invalidate,
                } => (Opcode::Receive, immediate, invalidate),
                Kind::Write { immediate, .. } => (Opcode::ReceiveImmediate, immediate, None),
                _ => return Err("no message takes a receive".to_owned()),
            };
            let length = message.bytes.len() + before;
            if (done.opcode, done.immediate, done.invalidated) != (opcode, immediate, invalidate)
                || done.bytes as usize != length
            {
                return Err(format!(
                    "it says {done:?}, the message is {:?} of {length} bytes",
                    message.kind
                ));
            }
            if done.solicited != message.solicited {
                return Err(format!("it says solicited: {}", done.solicited));
            }
            let placed = if opcode == Opcode::Receive { length } else { 0 };
            let Some((filled, rest)) = now_there.split_at_checked(placed) else {
                return Err("the message is longer than the receive".to_owned());
            };
            if placed > 0 && filled[before..] != message.bytes[..] {
                return Err(format!(
                    "its {} bytes are not those of the message",
                    message.bytes.len()
                ));
            }
            // The rest of an aborted message stays behind the next one in the same receive.
            let earlier = accepted.before.as_ref().filter(|_| service == Service::Rc);
            if earlier.is_some_and(|earlier| rest != &earlier[placed..]) {
                return Err("bytes behind the message changed".to_owned());
            }
            Ok(())
        };
        let of = &self.queue_pairs[qp];
        let mut heard = None;
        let found = match (service, of.peer) {
            (Service::Rc, Some(peer)) => {
                let next = self.queue_pairs[peer].messages.get(of.received);
                let next =
                    next.ok_or_else(|| format!("receive {} completed without a message", done.id))?;
                matches(next).map_err(|why| {
                    format!(
                        "receive {} of queue pair {qp}, message {}: {why}",
                        done.id, of.received
                    )
                })?;
                let (host, number) = (of.host, next.number);
                let flow = self.memories[host].check_flow(Origin { qp: peer, number });
                flow.map_err(|why| format!("receive {} came before its data: {why}", done.id))?;
                of.received + 1
            }
            (Service::Uc, Some(peer)) => {
                let first = if path.disorderly { 0 } else { of.received };
                let rest = self.queue_pairs[peer].messages.iter().enumerate();
                let mut like = rest
                    .skip(first)
                    .filter(|(_, message)| matches(message).is_ok());
                let (index, _) = like.next().ok_or_else(|| {
                    format!(
                        "receive {} of queue pair {qp}: no message is like it: {done:?}",
                        done.id
                    )
                })?;
                heard = Some((peer, index));
                index + 1
            }
            _ => {
                let source = done
                    .source
                    .filter(|&source| source < self.queue_pairs.len());
                let like = source.and_then(|source| {
                    let all = self.queue_pairs[source].messages.iter().enumerate();
                    let mut to_us = all.filter(|(_, message)| {
                        message.to == Some(qp)
                            && (path.disorderly || !message.heard && !message.over)
                            && matches(message).is_ok()
                    });
                    to_us.next().map(|(index, _)| (source, index))
                });
                if like.is_none() {
                    return Err(format!(
                        "receive {} of queue pair {qp}: no datagram is like it: {done:?}",
                        done.id
                    ));
                }
                if let Some((source, index)) = like {
                    let hosts = (self.queue_pairs[source].host, of.host);
                    let between = (self.addresses[hosts.0], self.addresses[hosts.1]);
                    let bytes = self.queue_pairs[source].messages[index].bytes.len();
                    head::check(&now_there[..GRH], between, bytes, done.immediate.is_some())
                        .map_err(|why| format!("receive {} of queue pair {qp}: {why}", done.id))?;
                }
                heard = like;
                of.received
            }
        };
        if let Some((sender, index)) = heard {
            self.queue_pairs[sender].messages[index].heard = true;
        }
        self.queue_pairs[qp].received = found;
        let host = self.queue_pairs[qp].host;
        let now = self.now;
        if let Some(key) = done.invalidated
            && let Some(window) = self.grants.window(host, key)
        {
            window.span.until.1 = window.span.until.1.min(now);
        }
        Ok(())
    }
}
